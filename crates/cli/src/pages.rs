// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a package installs beside the program, made from the commands themselves: manual pages, and what
//! shells need to complete words.

use anyhow::Context;
use clap::{Command, Subcommand};
use clap_complete::Shell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use tidegate_api::exit::Exit;

/// The commands that every program of ours has.
#[derive(Debug, Subcommand)]
pub(crate) enum Pages {
    /// Print what a shell needs to complete commands and options.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages, one for each command.
    Man {
        /// The folder; made if it is not there.
        dir: PathBuf,
    },
}

impl Pages {
    /// `program`: with all its commands.
    pub(crate) fn run(&self, program: Command, out: &mut dyn Write) -> anyhow::Result<Exit> {
        match self {
            Self::Completions { shell } => completions(*shell, program, out),
            Self::Man { dir } => man(program, dir),
        }
    }
}

/// Prints what a shell reads.
fn completions(shell: Shell, mut command: Command, out: &mut dyn Write) -> anyhow::Result<Exit> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    out.write_all(&text)?;
    Ok(Exit::Ok)
}

/// Writes a page for each command into a folder.
fn man(command: Command, dir: &Path) -> anyhow::Result<Exit> {
    let made = fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command, dir));
    made.with_context(|| format!("no manual pages in {}", dir.display()))?;
    Ok(Exit::Ok)
}
