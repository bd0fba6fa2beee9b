// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tidegate binary: wiring only. What draws figures and makes labs is another program, tidegate-lab:
//! a daemon that runs as root does not link it.

mod host;
mod replay;

use host::Machine;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use tidegate_cli::Extension;
use tidegate_daemon::Log;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // Logs go to standard error: standard output is for data.
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| Log)
        // The subscriber would tell of a failed write on standard error, and panic where that fails.
        .log_internal_errors(false)
        .init();
    let extensions: [&dyn Extension; 1] = [&replay::Replay];
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let exit =
        tidegate_cli::main(std::env::args_os(), (&Machine, &extensions), (&mut out, &mut err));
    ExitCode::from(exit.code())
}
