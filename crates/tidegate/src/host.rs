// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the commands need of the daemon and of this machine.

use std::path::Path;
use tidegate_api::protocol::{ApiError, ErrorKind};
use tidegate_cli::{
    DetachArgs, Detached, Host, LogFormat, ReplayAsked, Replayed, RunArgs, SystemReport,
};
use tidegate_config::{Config, Places, Registry};
use tidegate_daemon::{Options, RunError, controllers, detach, examine, release_pinned, run};
use tidegate_policy::{Policy, Reason};

/// This machine.
pub(crate) struct Machine;

/// What an operator reads for a reason; empty for one that is not known.
fn reason_text(name: &str) -> String {
    let known = Reason::ALL.iter().find(|reason| reason.name() == name);
    known.map_or_else(String::new, |reason| reason.text().to_owned())
}

impl Host for Machine {
    fn registry(&self) -> Registry {
        Registry::new(Policy::ALL.iter().map(|policy| policy.name()), controllers::NAMES)
    }

    fn version(&self) -> &'static str {
        tidegate_results::PROGRAM
    }

    fn log(&self, format: LogFormat) {
        crate::log::begin(format);
    }

    fn run(&self, args: &RunArgs) -> anyhow::Result<()> {
        let options = Options {
            config: args.config.clone(),
            registry: self.registry(),
            reason_text,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            keep: args.keep,
            keep_privileges: args.keep_privileges,
        };
        run(options).map_err(|error| match error {
            // So that its exit code says what was wrong.
            RunError::Config(faults) => faults.into(),
            // An interface may come up later: whoever restarts us is to try again, as it is not where
            // the file is wrong.
            RunError::System(faults) => {
                let what = "the configuration does not fit this system as it is now";
                ApiError::new(ErrorKind::Failed, what).with_details(faults).into()
            }
            other => other.into(),
        })
    }

    fn check_system(&self, config: &Config, places: &Places) -> anyhow::Result<SystemReport> {
        let found = examine(config)?;
        let findings = found.faults.iter().map(|fault| fault.locate(config, places)).collect();
        Ok(SystemReport { notes: found.notes, findings })
    }

    fn table_memory(&self, config: &Config) -> Vec<(&'static str, u64)> {
        tidegate_daemon::table_memory(config)
    }

    fn release_pinned(&self, pins: &Path, on: bool) -> anyhow::Result<()> {
        Ok(release_pinned(pins, on)?)
    }

    fn replay(&self, asked: &ReplayAsked<'_>) -> anyhow::Result<Replayed> {
        crate::replay::of_hours(asked)
    }

    fn detach(&self, args: &DetachArgs) -> anyhow::Result<Detached> {
        let done = detach(&args.pins, args.orphans, args.dry_run)?;
        Ok(Detached { removed: done.removed, left: done.left, orphans: done.orphans })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kill switch that says "done" and did nothing would be believed.
    #[test]
    fn the_kill_switch_never_claims_what_it_did_not_do() {
        let nowhere = Path::new("/nonexistent/tidegate-pins");
        for on in [true, false] {
            assert!(Machine.release_pinned(nowhere, on).is_err(), "on: {on}");
        }
    }

    #[test]
    fn the_names_of_the_registers_are_those_of_the_configuration() {
        let registry = Machine.registry();
        assert!(registry.policies.iter().any(|name| name == "fresh_first"));
        assert!(registry.controllers.iter().any(|name| name == "default"));
        assert_eq!(reason_text("no such reason"), "");
        assert_eq!(reason_text("rate"), "the bucket was empty");
    }
}
