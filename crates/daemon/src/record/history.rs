// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events that are remembered, and the file in which they outlive the process.
//!
//! ```text
//! tidegate-history 1          one line
//! {"number":41,"at":…}        an event a line, the oldest first
//! ```
//!
//! A file that is damaged loses the lines that are, and nothing else. It is written by a thread of
//! its own: a disk may hang, and the loop that renews the lease must not wait for it.

use crate::state::{BYTES_MAX, Store};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
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

    /// The newest events that find room, as a file.
    pub(crate) fn encode(&self) -> Vec<u8> {
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

/// What became of the last file.
#[derive(Debug, Default)]
struct Outcome {
    /// How many files are with the thread.
    open: usize,
    failed: Option<String>,
}

/// The thread that writes, and what it says.
#[derive(Debug)]
pub(crate) struct Writer {
    files: SyncSender<Vec<u8>>,
    outcome: Arc<(Mutex<Outcome>, Condvar)>,
}

impl Writer {
    /// Starts it: a thread has the privileges of the one that starts it.
    pub(crate) fn start(store: Box<dyn Store + Send>) -> std::io::Result<Self> {
        // One is being written, one waits.
        let (files, received) = sync_channel(1);
        let outcome = Arc::<(Mutex<Outcome>, Condvar)>::default();
        let told = Arc::clone(&outcome);
        let name = "record".to_owned();
        std::thread::Builder::new().name(name).spawn(move || write(store, &received, &told))?;
        Ok(Self { files, outcome })
    }

    /// Gives it what changed, if it has time for it; otherwise the next call does.
    pub(crate) fn offer(&self, history: &mut History) {
        if !std::mem::take(&mut history.changed) {
            return;
        }
        self.count(1);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.files.try_send(history.encode())
        {
            self.count(-1);
            history.changed = true;
        }
    }

    fn count(&self, more: isize) {
        let mut outcome = self.outcome.0.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.open = outcome.open.saturating_add_signed(more);
    }

    /// Waits until all that it was given is written, no longer than this.
    pub(crate) fn flush(&self, patience: Duration) {
        let outcome = self.outcome.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who waited for too long goes on without it.
        drop(self.outcome.1.wait_timeout_while(outcome, patience, |outcome| outcome.open > 0));
    }

    /// Why the last file could not be written; it is to be offered again.
    pub(crate) fn failed(&self) -> Option<String> {
        self.outcome.0.lock().unwrap_or_else(PoisonError::into_inner).failed.clone()
    }
}

fn write(
    mut store: Box<dyn Store + Send>,
    files: &Receiver<Vec<u8>>,
    told: &(Mutex<Outcome>, Condvar),
) {
    while let Ok(file) = files.recv() {
        let failed = store.write(&file).err().map(|error| error.to_string());
        let mut outcome = told.0.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.open = outcome.open.saturating_sub(1);
        outcome.failed = failed;
        told.1.notify_all();
    }
}

impl History {
    /// The file that holds it could not be written: it is to be tried again.
    pub(crate) const fn retry(&mut self) {
        self.changed = true;
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

    /// A disk that hangs until it is told to go on.
    struct Slow(Arc<(Mutex<bool>, Condvar)>, Arc<Mutex<Vec<usize>>>);

    impl Store for Slow {
        fn read(&mut self) -> std::io::Result<Option<Vec<u8>>> {
            Ok(None)
        }

        fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
            let hangs = self.0.0.lock().unwrap();
            drop(self.0.1.wait_while(hangs, |hangs| *hangs).unwrap());
            self.1.lock().unwrap().push(bytes.len());
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn remove(&mut self) -> std::io::Result<()> {
            Ok(())
        }

        fn here(&self) -> crate::state::Here {
            crate::state::Here::default()
        }
    }

    #[test]
    fn a_disk_that_hangs_or_is_full_keeps_nobody_waiting() {
        let hangs = Arc::new((Mutex::new(true), Condvar::new()));
        let written = Arc::<Mutex<Vec<usize>>>::default();
        let slow = Slow(Arc::clone(&hangs), Arc::clone(&written));
        let writer = Writer::start(Box::new(slow)).unwrap();
        let mut history = filled(1);
        for number in 0..50 {
            writer.offer(&mut history);
            history.note(Moment::default(), event(number));
        }
        writer.flush(Duration::from_millis(1));
        assert!(written.lock().unwrap().is_empty() && history.changed);
        *hangs.0.lock().unwrap() = false;
        hangs.1.notify_all();
        writer.flush(Duration::from_secs(10));
        writer.offer(&mut history);
        writer.flush(Duration::from_secs(10));
        let last = written.lock().unwrap().last().copied();
        assert_eq!(last, Some(history.encode().len()), "the last word is written whole");
        assert!(written.lock().unwrap().len() <= 3);
        assert!(writer.failed().is_some_and(|why| why.contains("space")), "{:?}", writer.failed());
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
