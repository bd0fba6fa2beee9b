// SPDX-License-Identifier: Apache-2.0 OR MIT
//! tidegate-lab: runs, judges and draws experiments, and makes labs. It starts the product as an operator
//! would; the product links nothing of it.

mod experiment;
mod lab;
mod progress;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use tidegate_cli::Extension;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    if let Some(code) = lab::serve_helper() {
        return code;
    }
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
    let program = clap::Command::new("tidegate-lab")
        .about("Runs the experiments of tidegate: in virtual time, and with real servers in network namespaces")
        .version(tidegate_experiments::folder::PROGRAM);
    let extensions: [&dyn Extension; 2] = [&experiment::Experiments, &lab::Labs];
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let exit =
        tidegate_cli::main_of(std::env::args_os(), (program, &extensions), (&mut out, &mut err));
    ExitCode::from(exit.code())
}
