// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which connections of the ports of a network namespace are new.
//!
//! They are listed in rounds: one port a tick, each once for all services that have it. A connection counts
//! to the round in whose list it was first, once it is open. So one that was half-open in an earlier list
//! is as old as its SYN.

use crate::connections::{CONNECTIONS_MAX, Connection, ConnectionSource, Entry};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use tidegate_units::Nanos;

/// From the beginning of one round to that of the next.
pub(crate) const LOOK_EVERY: Nanos = Nanos::SECOND;
/// After so long without a round, its lists are no use any more.
const OLD: Nanos = Nanos::from_secs(60);
/// Most ports of a namespace that are listed.
const PORTS_MAX: usize = 64;
/// So many ticks at most a source may need to be ready again.
const WAITS_MAX: u32 = 64;

/// The lists of one namespace.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    number: u64,
    began: Option<Nanos>,
    /// Ports that the round that runs has not listed yet, the next one last.
    left: Vec<u16>,
    waits: u32,
    ports: BTreeMap<u16, Listed>,
}

/// The connections of a port when they were listed last: counted or from before, or half-open since a round.
#[derive(Debug, Default)]
struct Listed {
    connections: BTreeMap<Connection, Option<u64>>,
    cut: bool,
}

/// What a tick did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// A round of this number began with it.
    pub(crate) begins: Option<u64>,
    /// Connections that are open, and the rounds since which they are new.
    pub(crate) new: Vec<(u64, Connection)>,
    pub(crate) port: u16,
    /// The round ended with it.
    pub(crate) ends: bool,
}

impl Rounds {
    /// The next port of the round that runs, or the first one of another round, if it is time for one, and
    /// it is `due` or a port was never listed.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        ports: &BTreeSet<u16>,
        due: bool,
        source: &mut dyn ConnectionSource,
    ) -> Step {
        let mut step = Step::default();
        if self.left.is_empty() {
            let fresh = ports.iter().take(PORTS_MAX).any(|port| !self.ports.contains_key(port));
            let early = self.began.is_some_and(|began| now.since(began) < LOOK_EVERY);
            if early || !(due || fresh) || ports.is_empty() {
                return step;
            }
            self.begin(now, ports);
            step.begins = Some(self.number);
        }
        let Some(port) = self.left.pop() else { return step };
        step.port = port;
        match source.list(port) {
            Ok(entries) => step.new = self.take(port, &entries),
            // What is left of its last answer has to be read first.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.waits < WAITS_MAX => {
                self.waits += 1;
                self.left.push(port);
                return step;
            }
            // What cannot be listed is no evidence, and the next list is the first one.
            Err(_) => _ = self.ports.remove(&port),
        }
        self.waits = 0;
        step.ends = self.left.is_empty();
        step
    }

    fn begin(&mut self, now: Nanos, ports: &BTreeSet<u16>) {
        if self.began.is_some_and(|began| now.since(began) > OLD) {
            self.ports.clear();
        }
        self.ports.retain(|port, _| ports.contains(port));
        self.left = ports.iter().take(PORTS_MAX).rev().copied().collect();
        self.began = Some(now);
        self.number += 1;
    }

    /// Takes a list for the last one; what is new in it.
    fn take(&mut self, port: u16, entries: &[Entry]) -> Vec<(u64, Connection)> {
        let mut new = Vec::new();
        let cut = entries.len() >= CONNECTIONS_MAX;
        let Some(before) = self.ports.get(&port) else {
            let connections = entries.iter().map(|entry| (entry.connection, None)).collect();
            self.ports.insert(port, Listed { connections, cut });
            return new;
        };
        let end = before.end(entries);
        let mut connections = BTreeMap::new();
        for (at, Entry { connection, open }) in entries.iter().enumerate() {
            let since = match before.connections.get(connection) {
                Some(since) => *since,
                None => (at < end).then_some(self.number),
            };
            match since {
                Some(since) if *open => new.push((since, *connection)),
                _ => {}
            }
            connections.insert(*connection, since.filter(|_| !open));
        }
        self.ports.insert(port, Listed { connections, cut });
        new
    }
}

impl Listed {
    /// Behind which place of the next list nothing is known to be new. Where the list before was cut off,
    /// that is behind the last one that was in it: what follows may have been there.
    fn end(&self, next: &[Entry]) -> usize {
        let known = |entry: &Entry| self.connections.contains_key(&entry.connection);
        if self.cut { next.iter().rposition(known).unwrap_or(0) } else { next.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(remote_port: u16) -> Connection {
        Connection { local: [192, 0, 2, 1].into(), remote: [198, 51, 100, 7].into(), remote_port }
    }

    /// What each port answers next.
    #[derive(Default)]
    struct Answers(BTreeMap<u16, Vec<io::Result<Vec<Entry>>>>);

    impl ConnectionSource for Answers {
        fn list(&mut self, port: u16) -> io::Result<Vec<Entry>> {
            self.0.get_mut(&port).unwrap().remove(0)
        }
    }

    impl Answers {
        fn then(&mut self, port: u16, open: &[u16], half: &[u16]) {
            let of = |open| move |port: &u16| Entry { connection: connection(*port), open };
            let all = open.iter().map(of(true)).chain(half.iter().map(of(false))).collect();
            self.0.entry(port).or_default().push(Ok(all));
        }

        fn fails(&mut self, port: u16, kind: io::ErrorKind) {
            self.0.entry(port).or_default().push(Err(kind.into()));
        }
    }

    fn ports(step: &Step) -> Vec<(u64, u16)> {
        step.new.iter().map(|(round, of)| (*round, of.remote_port)).collect()
    }

    fn at(tenths: u64) -> Nanos {
        Nanos::from_millis(tenths * 100)
    }

    #[test]
    fn a_round_lists_one_port_a_tick_and_begins_once_a_second_where_it_is_due() {
        let (mut rounds, mut answers) = (Rounds::default(), Answers::default());
        let wanted = [80, 81].into();
        for port in [80, 81] {
            (0..3).for_each(|_| answers.then(port, &[], &[]));
        }
        let mut steps = |tenths, due| {
            let step = rounds.step(at(tenths), &wanted, due, &mut answers);
            (step.begins, step.port, step.ends)
        };
        assert_eq!(steps(0, false), (Some(1), 80, false), "never listed");
        assert_eq!(steps(1, false), (None, 81, true));
        assert_eq!(steps(9, true), (None, 0, false), "too early");
        assert_eq!(steps(10, false), (None, 0, false), "not due");
        assert_eq!(steps(11, true), (Some(2), 80, false));
        assert_eq!(steps(12, true), (None, 81, true));
    }

    #[test]
    fn a_connection_is_new_once_and_since_the_list_in_which_it_was_half_open() {
        let (mut rounds, mut answers) = (Rounds::default(), Answers::default());
        // What was there before, half-open or not, is not new.
        answers.then(80, &[1], &[2]);
        answers.then(80, &[1, 2, 3], &[4]);
        answers.then(80, &[1, 2, 3], &[4, 5]);
        answers.then(80, &[3, 4, 5, 6], &[]);
        answers.then(80, &[3, 4, 5, 6], &[]);
        let mut next =
            |second: u64| ports(&rounds.step(at(10 * second), &[80].into(), true, &mut answers));
        assert_eq!(next(0), []);
        assert_eq!(next(1), [(2, 3)]);
        assert_eq!(next(2), []);
        assert_eq!(next(3), [(2, 4), (3, 5), (4, 6)]);
        assert_eq!(next(4), []);
    }

    #[test]
    fn after_an_error_a_gap_or_a_time_without_the_port_the_first_list_is_no_evidence() {
        let (mut rounds, mut answers) = (Rounds::default(), Answers::default());
        answers.then(80, &[1], &[]);
        answers.fails(80, io::ErrorKind::PermissionDenied);
        answers.then(80, &[1, 2], &[]);
        answers.then(80, &[1, 2, 3], &[]);
        let mut next = |tenths: u64, wanted: &[u16], answers: &mut Answers| {
            let wanted = wanted.iter().copied().collect();
            ports(&rounds.step(at(tenths), &wanted, true, answers))
        };
        assert_eq!(next(0, &[80], &mut answers), []);
        assert_eq!(next(10, &[80], &mut answers), [], "an error");
        assert_eq!(next(20, &[80], &mut answers), [], "the first one");
        assert_eq!(next(30, &[80], &mut answers), [(4, 3)]);
        answers.then(81, &[], &[]);
        answers.then(80, &[1, 2, 3, 4], &[]);
        assert_eq!(next(40, &[81], &mut answers), []);
        assert_eq!(next(50, &[80], &mut answers), [], "it was away");
        answers.then(80, &[1, 2, 3, 4, 5], &[]);
        answers.then(80, &[1, 2, 3, 4, 5, 6], &[]);
        assert_eq!(next(650, &[80], &mut answers), [(7, 5)], "60 s");
        assert_eq!(next(1251, &[80], &mut answers), [], "more than 60 s");
    }

    #[test]
    fn a_source_that_is_not_ready_is_waited_for_and_not_for_ever() {
        let (mut rounds, mut answers) = (Rounds::default(), Answers::default());
        answers.then(80, &[], &[]);
        answers.fails(80, io::ErrorKind::WouldBlock);
        answers.then(80, &[1], &[]);
        let mut next =
            |tenths, answers: &mut Answers| rounds.step(at(tenths), &[80].into(), true, answers);
        next(0, &mut answers);
        assert_eq!((next(10, &mut answers).ends, next(11, &mut answers).new.len()), (false, 1));
        (0..=WAITS_MAX).for_each(|_| answers.fails(80, io::ErrorKind::WouldBlock));
        let ends = (20..).position(|tenths| next(tenths, &mut answers).ends);
        assert_eq!(ends, Some(WAITS_MAX as usize));
    }

    #[test]
    fn behind_the_end_of_a_list_that_was_cut_off_nothing_is_new() {
        let entry = |port: &u16| Entry { connection: connection(*port), open: true };
        let count = |cut, now: &[u16]| {
            let entries: Vec<_> = now.iter().map(entry).collect();
            let connections = [10, 20, 30, 40].map(|port| (connection(port), None)).into();
            let mut rounds = Rounds::default();
            rounds.ports.insert(80, Listed { connections, cut });
            rounds.take(80, &entries).len()
        };
        assert_eq!(count(false, &[10, 15, 20, 30, 40, 50, 60]), 3);
        assert_eq!(count(true, &[10, 15, 20, 30, 40, 50, 60]), 1, "50 and 60 may be old");
        assert_eq!(count(true, &[50, 60]), 0);
    }
}
