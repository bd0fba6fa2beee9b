// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands and text screens.
//!
//! The crate knows the control socket and the configuration, and nothing of daemon or dataplane:
//! those come in through [`Host`]. Further commands (`experiment`, `lab`) come in as
//! [`Extension`]s. [`main`] turns arguments into an exit code (docs/cli.md).

mod args;
mod check;
mod control;
mod detach;
mod failure;
mod format;
mod history;
mod host;
mod pages;
mod reference;
mod rules;
mod status;
mod top;

pub use args::{CONFIG_DEFAULT, RunArgs};
pub use detach::DetachArgs;
pub use failure::{UsageError, describe, exit_of};
pub use host::{Detached, Extension, Host, SystemReport};
pub use reference::reference;
pub use tidegate_api::exit::Exit;

use clap::error::ErrorKind;
use std::ffi::OsString;
use std::io::Write;

/// Runs the command that the arguments name. Data goes to `out`, errors to `err`.
pub fn main<I>(
    args: I,
    (host, extensions): (&dyn Host, &[&dyn Extension]),
    (out, err): (&mut dyn Write, &mut dyn Write),
) -> Exit
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    let matches = match args::command(extensions).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) => return usage(&e, out, err),
    };
    match args::dispatch(&matches, (host, extensions), out) {
        Ok(exit) => exit,
        // Whoever reads our output has seen enough.
        Err(e) if failure::is_broken_pipe(&e) => Exit::Ok,
        Err(e) => {
            // Nobody is left to be told when this fails.
            let _ = err.write_all(describe(&e).as_bytes());
            exit_of(&e)
        }
    }
}

/// `--help` and `--version` are data; everything else is a mistake of the caller.
fn usage(error: &clap::Error, out: &mut dyn Write, err: &mut dyn Write) -> Exit {
    let text = error.render().to_string();
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // Nobody is left to be told when this fails.
    let _ = if asked { out.write_all(text.as_bytes()) } else { err.write_all(text.as_bytes()) };
    if asked { Exit::Ok } else { Exit::Usage }
}
