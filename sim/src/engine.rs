// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual time: a queue of events with a declared total order.
//!
//! Events are ordered by (time, class, sequence): at one time, the class decides what goes first (a
//! departure before an arrival, so that a freed place can be taken), and within a class the order
//! in which they were scheduled. Nothing else has a say, so one seed gives the same run, bit for
//! bit, on any machine.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use tidegate_units::{Clock, Nanos};

/// What an event must tell about itself.
pub trait Classed {
    /// Its class: at one time, lower goes first.
    fn class(&self) -> u8;
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    class: u8,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Nanos, u8, u64) {
        (self.at, self.class, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The engine: the clock and what is still to happen.
#[derive(Debug)]
pub struct Engine<E> {
    now: Nanos,
    sequence: u64,
    heap: BinaryHeap<Reverse<Entry<E>>>,
    late: u64,
}

impl<E: Classed> Engine<E> {
    /// An engine at time zero with nothing to do.
    #[must_use]
    pub fn new() -> Self {
        Self { now: Nanos::ZERO, sequence: 0, heap: BinaryHeap::new(), late: 0 }
    }

    /// Schedules an event. One in the past happens now, and is counted by [`Engine::late`]: a
    /// world that does that is wrong.
    pub fn schedule(&mut self, at: Nanos, event: E) {
        self.late += u64::from(at < self.now);
        let at = at.max(self.now);
        let (class, sequence) = (event.class(), self.sequence);
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at, class, sequence, event }));
    }

    /// Schedules an event some time from now.
    pub fn after(&mut self, delay: Nanos, event: E) {
        self.schedule(self.now + delay, event);
    }

    /// The next event, and the clock is set to its time.
    pub fn step(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// The next event if it is due at `until` or before, and the clock is set to its time; else
    /// none, and the clock is set to `until`.
    pub fn step_until(&mut self, until: Nanos) -> Option<E> {
        match self.heap.peek() {
            Some(Reverse(first)) if first.at <= until => self.step(),
            _ => {
                self.now = self.now.max(until);
                None
            }
        }
    }

    /// Events that were scheduled for the past; must be zero.
    #[must_use]
    pub const fn late(&self) -> u64 {
        self.late
    }

    /// Events scheduled so far.
    #[must_use]
    pub const fn scheduled(&self) -> u64 {
        self.sequence
    }
}

impl<E: Classed> Default for Engine<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Classed> Clock for Engine<E> {
    fn now(&self) -> Nanos {
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Named(u8, &'static str);

    impl Classed for Named {
        fn class(&self) -> u8 {
            self.0
        }
    }

    #[test]
    fn time_then_class_then_sequence_decide() {
        let mut engine = Engine::new();
        engine.schedule(Nanos(5), Named(1, "c"));
        engine.schedule(Nanos(5), Named(0, "b"));
        engine.schedule(Nanos(5), Named(1, "d"));
        engine.schedule(Nanos(1), Named(9, "a"));
        let order: Vec<&str> = std::iter::from_fn(|| engine.step()).map(|e| e.1).collect();
        assert_eq!(order, ["a", "b", "c", "d"]);
        assert_eq!((engine.now(), engine.late()), (Nanos(5), 0));
    }

    #[test]
    fn a_run_in_parts_stops_at_its_limit_and_goes_on() {
        let mut engine = Engine::new();
        engine.schedule(Nanos(5), Named(0, "a"));
        engine.schedule(Nanos(9), Named(0, "b"));
        assert_eq!(engine.step_until(Nanos(4)), None);
        assert_eq!(engine.now(), Nanos(4));
        assert_eq!(engine.step_until(Nanos(5)), Some(Named(0, "a")));
        assert_eq!(engine.step_until(Nanos(8)), None);
        assert_eq!((engine.now(), engine.late()), (Nanos(8), 0));
    }

    #[test]
    fn an_event_in_the_past_is_counted_and_time_does_not_go_back() {
        let mut engine = Engine::new();
        engine.schedule(Nanos(5), Named(0, "first"));
        engine.step();
        engine.schedule(Nanos(3), Named(0, "late"));
        engine.step();
        assert_eq!((engine.now(), engine.late()), (Nanos(5), 1));
    }
}
