// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tidegate binary: wiring only. What draws figures and makes labs is another program, tidegate-lab:
//! a daemon that runs as root does not link it.

mod grants;
mod host;
mod log;
mod replay;

use host::Machine;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use tidegate_cli::Extension;
use tidegate_flowspec::keeper;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Between the daemon and its BGP speaker; nobody calls it by hand.
    if let [first, rest @ ..] = arguments.as_slice()
        && first == keeper::COMMAND
    {
        return keeper::main(rest);
    }
    let extensions: [&dyn Extension; 2] = [&grants::Grants, &replay::Replay];
    let (mut out, mut err) = (io::stdout(), log::errors());
    let exit =
        tidegate_cli::main(std::env::args_os(), (&Machine, &extensions), (&mut out, &mut err));
    ExitCode::from(exit.code())
}
