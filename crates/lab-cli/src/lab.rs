// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate-lab lab`: what the lab starts of itself, and a lab to try things in.

use anyhow::Result;
use clap::{Arg, ArgMatches, Command};
use std::io::Write;
use std::process::ExitCode;
use tidegate_cli::{Exit, Extension};
use tidegate_lab::Helper;

/// What leads to the lab's own subcommands.
const HELPER: &str = "lab-helper";

/// The lab's processes are this binary.
pub(crate) fn helper() -> Helper {
    Helper::this_program(&[HELPER])
}

/// Serves `lab-helper …` when that is what this process was started for.
pub(crate) fn serve_helper() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    (args.first().map(String::as_str) == Some(HELPER))
        .then(|| tidegate_lab::helper::main(&args[1..]))
}

/// The command.
pub(crate) struct Labs;

impl Extension for Labs {
    fn command(&self) -> Command {
        Command::new("lab")
            .about("Network namespaces with client, router and server, for trying things")
            .arg(
                Arg::new("what")
                    .required(true)
                    .value_parser(["hold", "sweep"])
                    .help("hold: make one and keep it until standard input ends; sweep: remove those whose owners are dead"),
            )
    }

    fn run(&self, matches: &ArgMatches, _out: &mut dyn Write) -> Result<Exit> {
        let what = matches.get_one::<String>("what").cloned().unwrap_or_default();
        let code = tidegate_lab::helper::main(&[what]);
        Ok(if code == ExitCode::SUCCESS { Exit::Ok } else { Exit::Failure })
    }
}
