// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/cli.md, from the commands themselves.

use crate::args::command;
use std::fmt::Write;
use tidegate_api::exit::Exit;

/// The page: exit codes, then the help of every command.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(
        "# Command line\n\nOne binary. Data goes to standard output (`-o json` where there is data), \
         errors to standard error: one sentence, then its causes. Made from the commands themselves \
         (`TIDEGATE_BLESS=1 cargo test -p tidegate-cli`); `experiment` and `lab` describe \
         themselves with `--help`, `replay` has [a page](replay.md).\n\n## Exit codes\n\n| code | meaning |\n| --- | --- |\n",
    );
    for (exit, meaning) in Exit::ALL {
        let _ = writeln!(page, "| {} | {meaning} |", exit.code());
    }
    page.push_str("\n## Commands\n");
    let mut root = command(&[]);
    root.build();
    for sub in root.get_subcommands_mut().filter(|c| c.get_name() != "help") {
        let help = sub.render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        let _ =
            write!(page, "\n### {}\n\n```text\n{}\n```\n", sub.get_name(), help.join("\n").trim());
    }
    page
}
