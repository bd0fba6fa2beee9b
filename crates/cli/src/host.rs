// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the binary hands in.

use crate::args::{LogFormat, RunArgs};
use crate::detach::DetachArgs;
use crate::shadow::{ReplayAsked, Replayed};
use clap::ArgMatches;
use std::io::Write;
use std::path::Path;
use tidegate_api::exit::Exit;
use tidegate_config::{Config, Finding, Places, Registry};

/// The machine and the daemon, as the commands need them.
pub trait Host {
    /// The names that a configuration may use.
    fn registry(&self) -> Registry;

    /// Version and revision, for `--version`.
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Begins the log; called once, before anything else.
    fn log(&self, _format: LogFormat) {}

    /// Runs the daemon until it is told to stop.
    ///
    /// # Errors
    /// When it cannot start or had to give up. An error that holds a
    /// [`tidegate_config::LoadError`] ends with [`Exit::Config`].
    fn run(&self, args: &RunArgs) -> anyhow::Result<()>;

    /// What a configuration takes of this machine's kernel memory: tables by their keys, `states`, `counters`; and
    /// about how many bytes each takes.
    fn table_memory(&self, _config: &Config) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// How a configuration fits this system.
    ///
    /// # Errors
    /// When the system cannot be asked.
    fn check_system(&self, config: &Config, places: &Places) -> anyhow::Result<SystemReport>;

    /// The kill switch without a daemon, on the dataplane that is pinned at `pins`.
    ///
    /// # Errors
    /// When nothing is pinned there, or it cannot be written.
    fn release_pinned(&self, pins: &Path, on: bool) -> anyhow::Result<()>;

    /// What the policy would have done to a recorded load.
    ///
    /// # Errors
    /// When the log or the configuration cannot be used, or no request lies in these hours.
    fn replay(&self, asked: &ReplayAsked<'_>) -> anyhow::Result<Replayed>;

    /// Detaches and removes what daemons have left.
    ///
    /// # Errors
    /// When one runs, or nothing can be found out; then nothing was changed.
    fn detach(&self, args: &DetachArgs) -> anyhow::Result<Detached>;
}

/// What was detached, and what stays and why; one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detached {
    /// What is not there any more.
    pub removed: Vec<String>,
    /// What stays.
    pub left: Vec<String>,
    /// Hooks that belong to nobody, and were not asked for.
    pub orphans: usize,
}

/// What was found on the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemReport {
    /// What would be attached where, a line an interface.
    pub notes: Vec<String>,
    /// What does not fit.
    pub findings: Vec<Finding>,
}

/// A command that the binary adds.
pub trait Extension {
    /// Its arguments; the name must not be taken.
    fn command(&self) -> clap::Command;

    /// Runs it.
    ///
    /// # Errors
    /// Whatever it cannot do; shown with its causes.
    fn run(&self, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Exit>;
}
