// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What controllers have learned, for the process that comes next: after a crash, a restart or a
//! take-over in a flash crowd it goes on where this one was (docs/decisions/0010-kept-state.md).
//!
//! ```text
//! tidegate-state FORMAT LENGTH CHECKSUM          one line
//! {"boot":…,"at":…,"version":…,"services":[…]}   LENGTH bytes
//! ```
//!
//! This is memory, not configuration: whatever is wrong with it means a fresh start and one warning.

mod commands;
mod keeper;
mod store;

pub use commands::{Commanded, CommandedMode, KeptCommands};
pub(crate) use keeper::take;
pub use keeper::{Keeper, StateSaved};
pub use store::{Directory, Store};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tidegate_config::ServiceConfig;
use tidegate_model::Fnv;
use tidegate_model::limits::ServiceLimits;
use tidegate_units::Nanos;

/// Number of this layout; any other is not read.
pub const FORMAT: u32 = 1;
/// Most bytes of a state: 32 services with [`CONTROLLER_BYTES_MAX`] each find room.
pub const BYTES_MAX: usize = 1 << 20;
/// Most bytes of what one controller keeps.
pub const CONTROLLER_BYTES_MAX: usize = 16 << 10;
/// What was learned (baseline, capacity) is worth nothing after so long: the load of another hour
/// is another load.
pub const LEARNED_AGE_MAX: Nanos = Nanos::from_secs(3600);
/// Limits older than this are not put in force again: a flash crowd of a minute ago may be over,
/// and the lease has let everything pass for most of that time.
pub const LIMITS_AGE_MAX: Nanos = Nanos::from_secs(60);

const MAGIC: &str = "tidegate-state";
/// Most bytes of the first line.
const HEAD_MAX: usize = 128;

/// Where and when a state is read or written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// The id of this boot.
    pub boot: String,
    /// Time since the boot, sleep included.
    pub now: Nanos,
}

/// What is kept of all services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The boot in which it was written.
    pub boot: String,
    /// When, on that boot's clock.
    pub at: Nanos,
    /// Version of the program that wrote it: for people.
    pub version: String,
    /// By name of the service.
    pub services: BTreeMap<String, Kept>,
    /// Flash crowds behind a router.
    #[serde(default)]
    pub crowds: Vec<KeptCrowd>,
}

/// What is kept of a flash crowd behind a router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptCrowd {
    /// Where.
    pub destination: SocketAddr,
    /// For how long it had been there.
    pub lasted: Nanos,
    /// How old this was when it was written: more than nothing if that process had not used it yet.
    pub age: Nanos,
    /// It was written by a process that had not used it.
    pub carried: bool,
    /// Why it was slow, in its words.
    pub why: String,
    /// Its begin was an event.
    pub told: bool,
    /// It had a limit.
    pub limited: bool,
    /// How long ago it had one last.
    pub had_limit: Option<Nanos>,
    /// SYNs that were refused in it, and would have been.
    pub refused: u64,
    /// See `refused`.
    pub would_refuse: u64,
    /// One connection of so many was followed.
    pub sample: u32,
    /// What its detector knows, in its own words.
    pub detector: Value,
}

/// What is kept of one service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Of the configuration that its controller was made from ([`identity`]).
    pub identity: u64,
    /// What was in force.
    pub limits: ServiceLimits,
    /// What its controller has learned, in its own words; `None` if it keeps nothing.
    pub controller: Option<Value>,
}

/// Why a state is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It has more than [`BYTES_MAX`].
    #[error("it has {0} bytes, more than {BYTES_MAX}")]
    TooLarge(usize),
    /// The first line is not ours.
    #[error("it is no state of tidegate")]
    Foreign,
    /// Another layout.
    #[error("it has format {0}, not {FORMAT}")]
    Format(u32),
    /// Cut off, longer than it says, or changed.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// It is from before the last boot, or another machine.
    #[error("it is of another boot")]
    OtherBoot,
    /// It is from the future.
    #[error("it is of {0} in the future")]
    Future(Nanos),
    /// It is too old.
    #[error("it is {0} old, and counts for {LEARNED_AGE_MAX}")]
    Old(Nanos),
}

/// The bytes of a state.
///
/// # Errors
/// [`StateError::TooLarge`], [`StateError::Damaged`] for what is no JSON.
pub fn encode(state: &State) -> Result<Vec<u8>, StateError> {
    frame(MAGIC, state)
}

/// What stands before a body, and the body.
fn frame(magic: &str, body: &impl Serialize) -> Result<Vec<u8>, StateError> {
    let body = serde_json::to_vec(body).map_err(|_| StateError::Damaged("it cannot be written"))?;
    let sum = checksum(&body);
    let mut bytes = format!("{magic} {FORMAT} {} {sum:016x}\n", body.len()).into_bytes();
    bytes.extend_from_slice(&body);
    if bytes.len() > BYTES_MAX { Err(StateError::TooLarge(bytes.len())) } else { Ok(bytes) }
}

/// The state in these bytes, and how old it is.
///
/// # Errors
/// [`StateError`]; never a panic, whatever the bytes are.
pub fn decode(bytes: &[u8], here: &Here) -> Result<(State, Nanos), StateError> {
    let body = unframe(MAGIC, bytes)?;
    let state: State =
        serde_json::from_slice(body).map_err(|_| StateError::Damaged("its fields"))?;
    let age = age(&state, here)?;
    Ok((state, age))
}

/// The body in these bytes, if they are whole.
fn unframe<'a>(magic: &str, bytes: &'a [u8]) -> Result<&'a [u8], StateError> {
    if bytes.len() > BYTES_MAX {
        return Err(StateError::TooLarge(bytes.len()));
    }
    let end = bytes.iter().take(HEAD_MAX).position(|byte| *byte == b'\n');
    let (head, body) = bytes.split_at(end.ok_or(StateError::Foreign)?);
    let body = body.get(1..).unwrap_or_default();
    let head = std::str::from_utf8(head).map_err(|_| StateError::Foreign)?;
    let mut words = head.split(' ');
    if words.next() != Some(magic) {
        return Err(StateError::Foreign);
    }
    let format: u32 = words.next().and_then(|word| word.parse().ok()).ok_or(StateError::Foreign)?;
    if format != FORMAT {
        return Err(StateError::Format(format));
    }
    let length: usize =
        words.next().and_then(|word| word.parse().ok()).ok_or(StateError::Damaged("length"))?;
    if length != body.len() {
        return Err(StateError::Damaged("it is cut off, or longer than it says"));
    }
    let sum = words.next().filter(|word| word.len() == 16);
    let sum = sum.and_then(|word| u64::from_str_radix(word, 16).ok());
    if sum != Some(checksum(body)) || words.next().is_some() {
        return Err(StateError::Damaged("checksum"));
    }
    Ok(body)
}

fn age(state: &State, here: &Here) -> Result<Nanos, StateError> {
    if state.boot != here.boot {
        return Err(StateError::OtherBoot);
    }
    if state.at > here.now {
        return Err(StateError::Future(state.at.since(here.now)));
    }
    let age = here.now.since(state.at);
    if age > LEARNED_AGE_MAX { Err(StateError::Old(age)) } else { Ok(age) }
}

/// What a controller of this service learns depends on: where one of these is another, nothing of
/// it is used.
#[must_use]
pub fn identity(service: &ServiceConfig) -> u64 {
    let ServiceConfig { name, listen, objective, policy, control, backends, .. } = service;
    let buckets = service.requests.as_ref().map(|requests| &requests.buckets);
    let all = (name, listen, objective, &policy.name, control, backends, buckets);
    checksum(format!("{all:?}").as_bytes())
}

/// Guards against damage, and not against whoever may write the file.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    Fnv::default().with(bytes.iter().copied()).get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use tidegate_units::Rate;

    fn here() -> Here {
        Here { boot: "b1".into(), now: Nanos::from_secs(1000) }
    }

    fn state() -> State {
        let limits = ServiceLimits {
            rate: Some(Rate::per_second(123.5)),
            burst: 7,
            ..ServiceLimits::default()
        };
        let controller = Some(json!({"v": 1, "baseline": 0.032, "list": [1, 2, null]}));
        let kept = Kept { identity: 42, limits, controller };
        State {
            boot: "b1".into(),
            at: Nanos::from_secs(990),
            version: "0.1.0".into(),
            services: BTreeMap::from([("shop".to_owned(), kept)]),
            crowds: vec![KeptCrowd {
                destination: SocketAddr::from(([192, 0, 2, 1], 443)),
                lasted: Nanos::from_secs(7),
                age: Nanos::ZERO,
                carried: false,
                had_limit: Some(Nanos::ZERO),
                refused: 17,
                would_refuse: 0,
                why: "its server".into(),
                told: true,
                limited: false,
                sample: 4,
                detector: json!({"usual": [[4, 30, 170]]}),
            }],
        }
    }

    #[test]
    fn what_was_written_is_read_with_its_age() {
        let bytes = encode(&state()).unwrap();
        assert_eq!(decode(&bytes, &here()), Ok((state(), Nanos::from_secs(10))));
    }

    /// One of a version before that kept no crowds.
    #[test]
    fn a_state_without_crowds_is_read() {
        let mut old = serde_json::to_value(state()).unwrap();
        old.as_object_mut().unwrap().remove("crowds");
        let bytes = framed(old.to_string().as_bytes());
        let (read, _) = decode(&bytes, &here()).unwrap();
        assert_eq!(read, State { crowds: Vec::new(), ..state() });
    }

    #[test]
    fn every_truncation_and_every_change_of_a_byte_is_found() {
        let bytes = encode(&state()).unwrap();
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length], &here()).is_err(), "cut to {length}");
        }
        let mut longer = bytes.clone();
        longer.push(b' ');
        assert!(decode(&longer, &here()).is_err());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                let got = decode(&flipped, &here());
                // The checksum's own letters may be written in two ways.
                let same = got.as_ref().is_ok_and(|(read, _)| *read == state());
                assert!(got.is_err() || same, "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn another_format_boot_time_or_size_is_a_fresh_start() {
        let with = |change: &dyn Fn(&mut State)| {
            let mut state = state();
            change(&mut state);
            decode(&encode(&state).unwrap(), &here()).map(|(_, age)| age)
        };
        let second = Nanos::from_secs;
        assert_eq!(with(&|s| s.boot = "b2".into()), Err(StateError::OtherBoot));
        assert_eq!(with(&|s| s.at = second(1001)), Err(StateError::Future(second(1))));
        assert_eq!(with(&|s| s.at = second(1000)), Ok(Nanos::ZERO), "this very moment");
        let old = Here { now: second(990) + LEARNED_AGE_MAX, ..here() };
        let bytes = encode(&state()).unwrap();
        assert!(decode(&bytes, &old).is_ok());
        let older = Here { now: old.now + Nanos(1), ..old };
        assert!(matches!(decode(&bytes, &older), Err(StateError::Old(_))));
        let text = String::from_utf8(bytes).unwrap();
        let other = text.replacen(" 1 ", " 2 ", 1);
        assert_eq!(decode(other.as_bytes(), &here()), Err(StateError::Format(2)));
        let huge = vec![b'x'; BYTES_MAX + 1];
        assert_eq!(decode(&huge, &here()), Err(StateError::TooLarge(BYTES_MAX + 1)));
        let mut large = state();
        large.version = "y".repeat(BYTES_MAX);
        assert!(matches!(encode(&large), Err(StateError::TooLarge(_))));
        for foreign in ["", "\n", "#!/bin/sh\n", "tidegate-state\n", "tidegate-state x 1 1\n"] {
            assert_eq!(decode(foreign.as_bytes(), &here()), Err(StateError::Foreign), "{foreign}");
        }
    }

    /// A body that is well formed and well summed is still no reason to panic.
    fn framed(body: &[u8]) -> Vec<u8> {
        let mut bytes =
            format!("{MAGIC} {FORMAT} {} {:016x}\n", body.len(), checksum(body)).into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes, &here());
            let _ = decode(&framed(&bytes), &here());
        }

        #[test]
        fn whatever_a_controller_keeps_comes_back(
            numbers in prop::collection::vec(any::<i64>(), 0..50),
            text in ".{0,40}",
            depth in 0_usize..100,
        ) {
            let mut value = json!({"numbers": numbers, "text": text});
            for _ in 0..depth {
                value = json!([value]);
            }
            let mut state = state();
            state.services.entry("shop".into()).or_default().controller = Some(value);
            let read = decode(&encode(&state).unwrap(), &here());
            prop_assert_eq!(read.map(|(state, _)| state), Ok(state));
        }
    }

    #[test]
    fn a_body_that_is_nested_without_end_is_refused() {
        let deep = "[".repeat(100_000);
        assert_eq!(
            decode(&framed(deep.as_bytes()), &here()),
            Err(StateError::Damaged("its fields"))
        );
    }
}
