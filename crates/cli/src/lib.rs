// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands and text screens.
//!
//! The crate knows the control socket and the configuration, and nothing of daemon or dataplane:
//! those come in through [`Host`]. Further commands come in as [`Extension`]s. [`main`] turns the
//! arguments of the product into an exit code (docs/cli.md), [`main_of`] those of another program.

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
mod shadow;
mod status;
mod top;

pub use args::{CONFIG_DEFAULT, LogFormat, RunArgs};
pub use detach::DetachArgs;
pub use failure::{UsageError, describe, exit_of};
pub use host::{Detached, Extension, Host, SystemReport};
pub use reference::reference;
pub use shadow::{ReplayAsked, Replayed};
pub use tidegate_api::exit::Exit;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, FromArgMatches, Subcommand};
use std::ffi::{OsStr, OsString};
use std::io::Write;

/// Commands that are now of another program, with its name.
const MOVED: [(&str, &str); 2] = [("experiment", "tidegate-lab"), ("lab", "tidegate-lab")];

/// Standard output and standard error.
type Streams<'a> = (&'a mut dyn Write, &'a mut dyn Write);

/// Runs the command that the arguments name. Data goes to `out`, errors to `err`.
pub fn main<I>(
    args: I,
    (host, extensions): (&dyn Host, &[&dyn Extension]),
    streams: Streams<'_>,
) -> Exit
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    let command = args::command(extensions).version(host.version());
    let dispatch =
        |matches: &_, streams: Streams<'_>| args::dispatch(matches, (host, extensions), streams);
    run(args, command, dispatch, streams)
}

/// Runs a program that has only the commands of `extensions`, and those that write its pages.
/// `command`: its name and what it is.
pub fn main_of<I>(
    args: I,
    (command, extensions): (clap::Command, &[&dyn Extension]),
    streams: Streams<'_>,
) -> Exit
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    let added = extensions.iter().map(|extension| extension.command());
    // What is added to a command takes its description's place.
    let about = command.get_about().cloned();
    let command = pages::Pages::augment_subcommands(command.subcommand_required(true))
        .about(about.unwrap_or_default())
        .subcommands(added)
        .max_term_width(args::WIDTH_MAX);
    let whole = command.clone();
    let dispatch = |matches: &ArgMatches, (out, _): Streams<'_>| {
        if let Some(done) = args::extended(matches, extensions, out) {
            return done;
        }
        pages::Pages::from_arg_matches(matches)?.run(whole.clone(), out)
    };
    run(args, command, dispatch, streams)
}

fn run<I, D>(args: I, command: clap::Command, dispatch: D, (out, err): Streams<'_>) -> Exit
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
    D: FnOnce(&ArgMatches, Streams<'_>) -> anyhow::Result<Exit>,
{
    let program = command.get_name().to_owned();
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let first = args.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let first = first.cloned().unwrap_or_default();
    let matches = match command.try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) => return usage((&program, &first, &e), (out, err)),
    };
    match dispatch(&matches, (&mut *out, &mut *err)) {
        Ok(exit) => exit,
        // Whoever reads our output has seen enough.
        Err(e) if failure::is_broken_pipe(&e) => Exit::Ok,
        Err(e) => {
            // Nobody is left to be told when this fails.
            let _ = err.write_all(describe(&program, &e).as_bytes());
            exit_of(&e)
        }
    }
}

/// `--help` and `--version` are data; everything else is a mistake of the caller.
fn usage((program, first, error): (&str, &OsStr, &clap::Error), (out, err): Streams<'_>) -> Exit {
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let text = match moved((program, first), error) {
        Some(text) => text,
        None => error.render().to_string(),
    };
    // Nobody is left to be told when this fails.
    let _ = if asked { out.write_all(text.as_bytes()) } else { err.write_all(text.as_bytes()) };
    if asked { Exit::Ok } else { Exit::Usage }
}

/// Where a command went that the program had once. `first`: the first argument that is no option; a word
/// behind another command is something else.
fn moved((program, first): (&str, &OsStr), error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (_, now) = MOVED
        .iter()
        .find(|(command, now)| command == word && first == *command && *now != program)?;
    Some(format!("{program}: `{word}` is a command of another program: {now} {word}\n"))
}
