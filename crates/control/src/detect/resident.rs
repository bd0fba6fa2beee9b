// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests in flight of connections that stay: refusing SYNs does not lower their number.
//!
//! A proxy's pool, or a client that keeps 50 connections busy, sends its next request whatever becomes of
//! SYNs. Counted against the limit in flight, they would fill it, nobody new would be let in, and it would
//! be so for as long as they stay. So they are counted beside it: see `Episode::stays`.
//!
//! Connections with many exchanges that come and go are another thing: they end, and refusing holds off
//! their like. What tells the two apart is what connections bring that end, `k` exchanges each:
//!
//! ```text
//!   in flight      N = first exchanges F + later ones
//!   come and go    k·F: for each first exchange in flight there are k − 1 later ones
//!   stay           N − k·F, and never more than N − F
//!   if so          what completes is more than the connections that come, or those that end, bring:
//!                  the share of later exchanges that neither explains, over 20 s (exchanges.rs)
//! ```
//!
//! The number is the product of the two. Each alone errs: in an onset connections are young, and cheap
//! requests on few connections complete often and are hardly ever in flight. F is counted, not estimated.

use super::exchanges::{Exchanges, RATIO_SECONDS};
use super::scale::LASTING_SECONDS;

/// Requests in flight that stay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resident {
    /// In flight beyond those of connections that come and go, on average. Below zero in an onset.
    beyond: f64,
    /// Their number.
    pub(super) jobs: f64,
    /// Their part of what completes.
    pub(super) part: f64,
    /// The same number and all in flight, averaged for as long as that part is.
    own: f64,
    all: f64,
}

impl Resident {
    /// Takes a tick with so many in flight.
    pub(super) fn see(&mut self, exchanges: &Exchanges, waiting: f64, seconds: f64) {
        let first = exchanges.first();
        let keep = libm::exp(-seconds / LASTING_SECONDS);
        self.beyond = keep * self.beyond + (1.0 - keep) * (waiting - exchanges.each() * first);
        self.jobs = exchanges.staying() * self.beyond.clamp(0.0, (waiting - first).max(0.0));
        self.part = exchanges.staying_part();
        let keep = libm::exp(-seconds / RATIO_SECONDS);
        self.own = keep * self.own + (1.0 - keep) * self.jobs;
        self.all = keep * self.all + (1.0 - keep) * waiting;
    }

    /// What a request of a newcomer completes beside the mean of all in flight; 1 at most. Less, where those
    /// that stay are cheap.
    pub(super) fn pace(&self) -> f64 {
        let newcomers = if self.all > 0.0 { 1.0 - self.own / self.all } else { 1.0 };
        (1.0 - self.part).min(newcomers) / newcomers.max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::history::{History, Sums};
    use tidegate_model::signals::{ConnectionCounts, Counts};

    /// What happens in a tick of 100 ms, and what is in flight at its end.
    #[derive(Clone, Copy, Debug)]
    struct Tick {
        /// Connections that asked and were answered, and those that ended with so many exchanges each.
        came: u64,
        ended: u64,
        each: u64,
        completed: u64,
        waiting: u64,
    }

    /// Of one request each, and nobody else.
    const ONES: Tick = Tick { came: 10, ended: 10, each: 1, completed: 10, waiting: 20 };
    /// The same beside others that complete 25 and never end.
    const KEPT: Tick = Tick { completed: 35, waiting: 70, ..ONES };

    #[derive(Default)]
    struct World {
        exchanges: Exchanges,
        resident: Resident,
        history: History,
    }

    impl World {
        fn run(&mut self, tick: Tick, ticks: usize) -> f64 {
            for _ in 0..ticks {
                let connections = ConnectionCounts {
                    replied: tick.came,
                    proved: tick.came,
                    asked: tick.came,
                    answered: tick.came,
                    ended: tick.ended,
                    ended_exchanges: tick.ended * tick.each,
                    lost: 0,
                };
                let connections = Some(connections);
                let completed = tick.completed;
                let counts = Counts { completed, connections, ..Counts::default() };
                let completed = completed as f64;
                let sums = Sums { seconds: 0.1, completed, ..Sums::default() };
                let sums = self.exchanges.see(sums, &counts, &self.history);
                self.history.push(sums);
                let waiting = tick.waiting as f64;
                self.exchanges.follow_first(&counts, waiting);
                self.resident.see(&self.exchanges, waiting, 0.1);
            }
            self.resident.jobs
        }

        /// So many send a first request, and are not answered yet.
        fn asks(&mut self, asked: u64, waiting: u64) {
            let connections = ConnectionCounts { asked, ..ConnectionCounts::default() };
            let counts = Counts { connections: Some(connections), ..Counts::default() };
            self.exchanges.follow_first(&counts, waiting as f64);
        }
    }

    fn near(value: f64, to: f64) -> bool {
        (value - to).abs() <= 0.05 * to + 0.5
    }

    #[test]
    fn what_never_ends_is_told_from_what_comes_and_goes() {
        let mut world = World::default();
        world.asks(20, 20);
        assert!(world.run(ONES, 300) <= 0.0);
        // Two seconds after they came they are known, whatever came before.
        let jobs = world.run(KEPT, 20);
        assert!((40.0..=50.5).contains(&jobs), "{jobs}");
        let jobs = world.run(KEPT, 30);
        assert!(near(jobs, 50.0) && near(world.exchanges.each(), 1.0), "{jobs}");
        assert!(world.resident.part > 0.3, "{}", world.resident.part);
        // They go: so does their number, at once.
        assert!(world.run(ONES, 1) <= 0.5);
    }

    #[test]
    fn sessions_that_end_are_none_of_them_whether_they_are_young_or_old() {
        let twenty = Tick { came: 2, ended: 2, each: 20, completed: 40, waiting: 60 };
        let mut world = World::default();
        world.asks(3, 60);
        assert!(world.run(twenty, 300) <= 0.5);
        // An onset: three times as many come, and those that end are the few from before.
        assert!(world.run(Tick { came: 6, waiting: 200, ..twenty }, 50) <= 0.5);
        // A third is let in, and those that are in still end.
        assert!(world.run(Tick { came: 1, ended: 3, waiting: 90, ..twenty }, 30) <= 0.5);
        assert!(near(world.exchanges.each(), 20.0), "{}", world.exchanges.each());
    }

    /// Five connections with cheap requests: nearly all that completes is theirs.
    #[test]
    fn what_is_hardly_ever_in_flight_is_not_counted_for_more() {
        let mut world = World::default();
        world.asks(95, 100);
        let jobs = world.run(Tick { completed: 1_010, waiting: 100, ..ONES }, 100);
        assert!(near(jobs, 5.0), "{jobs} of one request each");
        let mut world = World::default();
        world.asks(19, 100);
        let five = Tick { came: 2, ended: 2, each: 5, completed: 1_010, waiting: 100 };
        let jobs = world.run(five, 100);
        assert!(near(jobs, 5.0), "{jobs} of five requests each");
    }

    /// An alarm at the very start lets next to nobody in, so nobody ends who would tell.
    #[test]
    fn before_any_has_ended_they_have_to_be_old() {
        let mut world = World::default();
        let young = Tick { came: 3, ended: 0, each: 0, completed: 40, waiting: 60 };
        assert!(world.run(young, 300) <= 0.0);
        let mut world = World::default();
        world.run(Tick { came: 50, ended: 0, each: 0, completed: 50, waiting: 50 }, 1);
        let old = Tick { came: 0, ended: 0, each: 0, completed: 35, waiting: 50 };
        assert!(world.run(old, 60) <= 0.0);
        assert!(world.run(old, 60) > 15.0, "{}", world.resident.jobs);
    }
}
