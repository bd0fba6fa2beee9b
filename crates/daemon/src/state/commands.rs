// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What commands set, and what the guard did, for the process that comes next in the same boot.
//!
//! It has a file of its own beside that of what was learned. It is written at each command, read at each start
//! that takes over from nobody, and outlives a clean stop, which forgets what was learned: a restart is no word
//! of an operator.

use super::{StateError, frame, unframe};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_api::protocol::Handover;
use tidegate_model::record::By;
use tidegate_model::{Canary, Mode};
use tidegate_units::Nanos;

const MAGIC: &str = "tidegate-commands";

/// A mode that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandedMode {
    /// What was set.
    pub mode: Mode,
    /// Whose refusals are executed.
    pub canary: Canary,
    /// What the file said then.
    pub file: Mode,
    /// When it ends, in the time of the boot.
    pub until: Option<Nanos>,
    /// Who set it.
    #[serde(default = "operator")]
    pub by: By,
}

/// A file of a version that did not say it.
const fn operator() -> By {
    By::Operator
}

/// All that commands have set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commanded {
    /// The boot in which it was written.
    pub boot: String,
    /// By name of the service.
    pub modes: BTreeMap<String, CommandedMode>,
    /// The kill switch.
    pub released: bool,
    /// When that ends, in the time of the boot.
    pub released_until: Option<Nanos>,
}

/// What a start makes of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptCommands {
    /// What still holds, as a predecessor would have left it.
    pub left: Handover,
    /// The kill switch was on, and its time is not over.
    pub released: bool,
    /// What does not hold any more, in sentences.
    pub told: Vec<String>,
}

impl Commanded {
    /// Its bytes.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn encode(&self) -> Result<Vec<u8>, StateError> {
        frame(MAGIC, self)
    }

    /// From these bytes, in this boot.
    ///
    /// # Errors
    /// [`StateError`]; never a panic, whatever the bytes are.
    pub fn decode(bytes: &[u8], boot: &str) -> Result<Self, StateError> {
        let body = unframe(MAGIC, bytes)?;
        let said: Self =
            serde_json::from_slice(body).map_err(|_| StateError::Damaged("its fields"))?;
        if said.boot == boot { Ok(said) } else { Err(StateError::OtherBoot) }
    }

    /// What of it holds now, `up` in the time of the boot. `files`: the modes that the file says. One that was
    /// edited meanwhile has the last word.
    #[must_use]
    pub fn kept(self, up: Nanos, files: &BTreeMap<String, Mode>) -> KeptCommands {
        let mut kept = KeptCommands::default();
        let over = |until: Option<Nanos>| until.is_some_and(|until| up >= until);
        for (name, set) in self.modes {
            let CommandedMode { mode, canary, file, until, by } = set;
            let was = mode.name();
            match files.get(&name) {
                None => continue,
                Some(now) if *now != file => kept.told.push(format!(
                    "{name}: {was} was set by a command; the file was edited since and says {}, which holds",
                    now.name()
                )),
                Some(now) if over(until) => kept.told.push(format!(
                    "{name}: the time for which a command set {was} is over; {} of the file holds",
                    now.name()
                )),
                Some(_) => {
                    let left = &mut kept.left;
                    if !canary.is_all() {
                        left.canaries.insert(name.clone(), canary);
                    }
                    if by == By::Guard {
                        left.guarded.insert(name.clone());
                    }
                    if let Some(until) = until {
                        left.modes_left.insert(name.clone(), until.since(up));
                    }
                    left.modes.insert(name, mode);
                }
            }
        }
        kept.released = self.released && !over(self.released_until);
        // Also of one that is over: where the dataplane still has it, it is ended at once.
        let until = self.released_until.filter(|_| self.released);
        kept.left.release_left = until.map(|until| until.since(up));
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Commanded {
        let canary = Canary::of_percent(5.0).unwrap();
        let (file, by) = (Mode::Shadow, By::Operator);
        let of = |until| CommandedMode { mode: Mode::Enforce, canary, file, until, by };
        let modes = [
            ("for-ever", of(None)),
            ("an-hour", of(Some(Nanos::from_secs(4600)))),
            ("over", of(Some(Nanos::from_secs(1000)))),
            ("edited", of(None)),
            ("gone", of(None)),
        ];
        Commanded {
            boot: "b1".into(),
            modes: modes.map(|(name, set)| (name.to_owned(), set)).into(),
            released: true,
            released_until: Some(Nanos::from_secs(1500)),
        }
    }

    fn files() -> BTreeMap<String, Mode> {
        let said = [
            ("for-ever", Mode::Shadow),
            ("an-hour", Mode::Shadow),
            ("over", Mode::Shadow),
            ("edited", Mode::Enforce),
            ("new", Mode::Enforce),
        ];
        said.map(|(name, mode)| (name.to_owned(), mode)).into()
    }

    #[test]
    fn what_was_written_is_read_in_the_same_boot_only() {
        let bytes = said().encode().unwrap();
        assert_eq!(Commanded::decode(&bytes, "b1"), Ok(said()));
        assert_eq!(Commanded::decode(&bytes, "b2"), Err(StateError::OtherBoot));
        for length in 0..bytes.len() {
            assert!(Commanded::decode(&bytes[..length], "b1").is_err(), "cut to {length}");
        }
        // A state of what was learned is none of these.
        let state = super::super::encode(&super::super::State::default()).unwrap();
        assert_eq!(Commanded::decode(&state, ""), Err(StateError::Foreign));
    }

    #[test]
    fn what_holds_holds_until_the_same_moment_and_an_edited_file_wins() {
        let kept = said().kept(Nanos::from_secs(1000), &files());
        let names: Vec<&str> = kept.left.modes.keys().map(String::as_str).collect();
        assert_eq!(names, ["an-hour", "for-ever"]);
        assert!(kept.left.canaries.values().all(|canary| canary.percent() == 5.0));
        assert_eq!(kept.left.modes_left.get("an-hour"), Some(&Nanos::from_secs(3600)));
        assert_eq!(kept.left.modes_left.get("for-ever"), None);
        assert!(kept.released);
        assert_eq!(kept.left.release_left, Some(Nanos::from_secs(500)));
        assert_eq!(kept.told.len(), 2, "{:?}", kept.told);
        assert!(kept.told.iter().any(|text| text.starts_with("edited: enforce was set")));
        assert!(kept.told.iter().any(|text| text.starts_with("over: the time")));
    }

    #[test]
    fn a_kill_switch_whose_time_is_over_is_off() {
        let kept = said().kept(Nanos::from_secs(1500), &files());
        assert!(!kept.released);
        assert_eq!(kept.left.release_left, Some(Nanos::ZERO));
        let for_ever =
            Commanded { released_until: None, ..said() }.kept(Nanos::from_secs(9000), &files());
        assert!(for_ever.released && for_ever.left.release_left.is_none());
        let off = Commanded { released: false, ..said() }.kept(Nanos::from_secs(1000), &files());
        assert!(!off.released && off.left.release_left.is_none());
    }
}
