// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/cli.md, from the commands themselves.

use crate::args::command;
use std::fmt::Write;
use tidegate_api::exit::Exit;

/// The page: exit codes, then the help of every command.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(
        "# Command line\n\nThe product is one program, `tidegate`. Experiments and labs are commands of \
         another, `tidegate-lab`, which describes itself with `--help`; its exit codes are the same. Data goes to standard output (`-o json` where there is data, see [json.md](json.md)), \
         errors to standard error: one sentence, then its causes. Made from the commands themselves \
         (`TIDEGATE_BLESS=1 cargo test -p tidegate-cli`); `replay` has [a page](replay.md), `grants` (who may limit what, decision 41) describes itself with `--help`. What a reload \
         does not change, and what signals do, stands in [configuration.md](configuration.md).\n\n## Exit codes\n\n| code | meaning |\n| --- | --- |\n",
    );
    for (exit, meaning) in Exit::ALL {
        let _ = writeln!(page, "| {} | {meaning} |", exit.code());
    }
    page.push_str("\n## Commands\n");
    let mut root = command(&[]);
    root.build();
    commands(&mut root, "", &mut page);
    page
}

/// The help of every command below this one, each behind the one that it belongs to.
fn commands(of: &mut clap::Command, above: &str, page: &mut String) {
    for sub in of.get_subcommands_mut().filter(|c| c.get_name() != "help") {
        let name = format!("{above}{}", sub.get_name());
        let help = sub.render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        let _ = write!(page, "\n### {name}\n\n```text\n{}\n```\n", help.join("\n").trim());
        commands(sub, &format!("{name} "), page);
    }
}
