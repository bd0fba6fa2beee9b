// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events that are remembered, and the file in which they outlive the process.
//!
//! ```text
//! tidegate-history 1          one line
//! {"number":41,"at":…}        an event a line, the oldest first
//! ```
//!
//! A file that is damaged loses the lines that are, and nothing else.

use super::writer::Content;
use crate::state::BYTES_MAX;
use std::collections::VecDeque;
use tidegate_model::record::{Event, Moment, What};

/// Most events that are remembered.
pub const EVENTS_MAX: usize = 1000;
/// Longest event, in bytes: a longer one has an absurd configuration's words in it.
const EVENT_BYTES_MAX: usize = 16 << 10;
const HEAD: &str = "tidegate-history 1";

/// Events, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<Event>,
    number: u64,
    /// Not all of it is on its way to the file.
    changed: bool,
}

impl History {
    /// What a file holds, and how many of its lines are none of ours.
    pub(crate) fn decode(bytes: &[u8]) -> (Self, usize) {
        let mut history = Self::default();
        let mut lost = 0;
        let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        if lines.next().is_some_and(|head| head != HEAD.as_bytes()) {
            return (history, 1);
        }
        for line in lines {
            match serde_json::from_slice::<Event>(line) {
                Ok(event) if line.len() <= EVENT_BYTES_MAX => history.put(event),
                _ => lost += 1,
            }
        }
        (history, lost)
    }

    /// Whether a file is something else: of another version, or none of ours.
    pub(crate) fn is_foreign(bytes: &[u8]) -> bool {
        let head = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        !bytes.is_empty() && head != HEAD.as_bytes()
    }

    fn put(&mut self, event: Event) {
        // Numbers of a file may be anything.
        self.number = self.number.max(event.number);
        self.events.push_back(event);
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// Remembers what happened.
    pub(crate) fn note(&mut self, at: Moment, what: What) {
        let number = self.number.saturating_add(1);
        self.put(Event { number, at, what });
        self.changed = true;
    }

    /// All of it with the times of day as they are seen now, the oldest first.
    pub(crate) fn events(&self, now: &Moment) -> Vec<Event> {
        let seen = |event: &Event| Event { at: event.at.clone().seen_from(now), ..event.clone() };
        self.events.iter().map(seen).collect()
    }
}

impl Content for History {
    fn changed(&mut self) -> &mut bool {
        &mut self.changed
    }

    /// The newest events that find room.
    fn encode(&self) -> Vec<u8> {
        let mut room = BYTES_MAX - HEAD.len() - 1;
        let mut lines = Vec::new();
        for event in self.events.iter().rev() {
            // Our types have no map with other keys than strings, so this does not fail.
            let line = serde_json::to_vec(event).unwrap_or_default();
            if line.len() > EVENT_BYTES_MAX {
                continue;
            }
            let Some(left) = room.checked_sub(line.len() + 1) else { break };
            room = left;
            lines.push(line);
        }
        let mut bytes = HEAD.as_bytes().to_vec();
        for line in lines.iter().rev() {
            bytes.push(b'\n');
            bytes.extend_from_slice(line);
        }
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_units::Nanos;

    fn event(number: usize) -> What {
        What::Started { version: number.to_string(), took_over: false }
    }

    fn filled(events: usize) -> History {
        let mut history = History::default();
        (0..events).for_each(|number| history.note(Moment::default(), event(number)));
        history
    }

    #[test]
    fn the_newest_events_are_kept_and_numbers_go_on() {
        let history = filled(EVENTS_MAX + 7);
        let (mut read, lost) = History::decode(&history.encode());
        assert_eq!((read.events.len(), lost), (EVENTS_MAX, 0));
        assert_eq!(read.events(&Moment::default()), history.events(&Moment::default()));
        read.note(Moment::default(), event(0));
        let numbers =
            |history: &History| history.events.iter().map(|e| e.number).collect::<Vec<_>>();
        let expected: Vec<u64> = (9..=EVENTS_MAX as u64 + 8).collect();
        assert_eq!(numbers(&read), expected);
    }

    #[test]
    fn a_file_has_a_bound_whatever_the_events_say() {
        let mut history = History::default();
        for number in 0..EVENTS_MAX {
            let changes = vec!["x".repeat(4000)];
            history.note(Moment::default(), What::Reload { generation: number as u64, changes });
        }
        history.note(
            Moment::default(),
            What::Reload { generation: 0, changes: vec!["y".repeat(20_000)] },
        );
        let bytes = history.encode();
        assert!((BYTES_MAX - 5000..=BYTES_MAX).contains(&bytes.len()), "{}", bytes.len());
        let (read, lost) = History::decode(&bytes);
        assert_eq!(lost, 0);
        let last = read.events.back().map(|event| event.number);
        assert_eq!(last, Some(EVENTS_MAX as u64), "the newest of those that find room");
    }

    #[test]
    fn a_damaged_line_costs_that_line() {
        let bytes = filled(3).encode();
        let text = String::from_utf8(bytes.clone()).unwrap();
        let (read, lost) = History::decode(text.replacen("\"number\":2", "\"numbe", 1).as_bytes());
        assert_eq!((read.events.len(), lost), (2, 1));
        // Cut off within the last line.
        let (read, lost) = History::decode(&bytes[..bytes.len() - 5]);
        assert_eq!((read.events.len(), lost), (2, 1));
        for foreign in ["#!/bin/sh\n", "tidegate-history 2\n{}", "\u{0}"] {
            let (read, lost) = History::decode(foreign.as_bytes());
            assert_eq!((read.events.len(), lost), (0, 1), "{foreign:?}");
            assert!(History::is_foreign(foreign.as_bytes()), "{foreign:?}");
        }
        assert!(!History::is_foreign(&bytes) && !History::is_foreign(b""));
        assert_eq!(History::decode(b"").1, 0);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = History::decode(&bytes);
            let _ = History::decode(&[HEAD.as_bytes(), b"\n", &bytes].concat());
        }
    }

    #[test]
    fn times_of_day_are_those_of_the_clock_now() {
        let mut history = History::default();
        let moment = |up, unix| Moment { boot: "b".into(), up: Nanos(up), unix: Nanos(unix) };
        history.note(moment(10, 5000), event(0));
        let seen = history.events(&moment(30, 100_020));
        assert_eq!(seen[0].at.unix, Nanos(100_000));
    }
}
