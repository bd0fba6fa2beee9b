// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that wait for a worker which another connection holds while its client thinks.
//!
//! A server with a worker for each connection (prefork with keep-alive) runs out of workers, not of
//! CPU. Who has a worker is served at once; who has none waits in the accept queue until a whole
//! connection ends. There a standing queue of some jobs, which rides out chance where jobs leave it one
//! by one, takes many response times, and a worker that is free for a moment costs one of many. So
//! while most of those in flight stand in the accept queue, with a free CPU, the queue is kept short.
//!
//! There the ceiling decides who comes in, and the rate is only a bound far above what leaves. A rate
//! of what completes lags by the life of a connection, and it holds the server where it is: a server
//! that starts workers when none is idle (Apache starts 1, 2, 4 … in a second) would see idle ones,
//! because we refuse, and start none.

use super::Tick;

/// Seconds in which the two numbers are averaged.
const SEATS_SECONDS: f64 = 1.0;
/// Share of those in flight that stands in the accept queue: it begins here,
const SEATS_BEGIN: f64 = 0.5;
/// and ends here; a queue that is short is a smaller share.
const SEATS_END: f64 = 0.2;
/// Fewer exchanges a connection hold no worker for others' sake.
const SEATS_EXCHANGES: f64 = 2.5;

/// What is known of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seats {
    /// Averages of those in flight, and of the accept queue.
    waiting: f64,
    queued: f64,
    short: bool,
}

impl Seats {
    /// Takes a tick: the length of the accept queue, the exchanges that a connection brings, and whether
    /// the CPU is used up.
    pub(super) fn see(&mut self, tick: &Tick, queued: Option<f64>, each: f64, cpu_used_up: bool) {
        let Some(queued) = queued else {
            *self = Self::default();
            return;
        };
        let weight = 1.0 - libm::exp(-tick.sums.seconds / SEATS_SECONDS);
        self.waiting += weight * (tick.waiting - self.waiting);
        self.queued += weight * (queued - self.queued);
        let share = if self.short { SEATS_END } else { SEATS_BEGIN };
        self.short =
            each > SEATS_EXCHANGES && !cpu_used_up && self.queued > share * self.waiting.max(1.0);
    }

    /// Whether connections wait for workers.
    pub(super) const fn short(self) -> bool {
        self.short
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DefaultController, DefaultSpec, Tick};
    use super::*;
    use crate::history::Sums;
    use crate::{Controller, Mode};
    use tidegate_model::signals::{AcceptQueue, ConnectionCounts, Counts, Reading, Signals, Times};
    use tidegate_units::{Nanos, Share};

    fn tick(waiting: f64) -> Tick {
        Tick { now: Nanos::ZERO, sums: Sums { seconds: 0.1, ..Sums::default() }, waiting }
    }

    fn after(waiting: f64, queued: Option<f64>, each: f64, cpu_used_up: bool) -> Seats {
        let mut seats = Seats::default();
        (0..50).for_each(|_| seats.see(&tick(waiting), queued, each, cpu_used_up));
        seats
    }

    #[test]
    fn most_of_those_in_flight_wait_for_a_worker_beside_a_free_cpu() {
        assert!(after(30.0, Some(25.0), 5.0, false).short());
        assert!(!after(30.0, Some(25.0), 5.0, true).short(), "the CPU is short");
        assert!(!after(30.0, Some(25.0), 1.0, false).short(), "nobody holds a worker and thinks");
        assert!(!after(30.0, Some(10.0), 5.0, false).short(), "most of them are with the server");
        assert!(!after(30.0, None, 5.0, false).short(), "nothing is known of the queue");
    }

    #[test]
    fn a_queue_that_is_kept_short_is_still_one_and_an_empty_one_is_none() {
        let mut seats = after(30.0, Some(25.0), 5.0, false);
        (0..50).for_each(|_| seats.see(&tick(10.0), Some(3.0), 5.0, false));
        assert!(seats.short());
        (0..50).for_each(|_| seats.see(&tick(10.0), Some(1.0), 5.0, false));
        assert!(!seats.short());
        seats = after(30.0, Some(25.0), 5.0, false);
        seats.see(&tick(30.0), None, 5.0, false);
        assert!(!seats.short());
    }

    /// A tick of a server with few workers, each held for five requests by a client who thinks: so
    /// many connections came, as many as `ended` left, and `queued` wait for a worker.
    fn prefork(n: u64, came: u64, ended: u64, queued: u64) -> Signals {
        let period = Nanos::from_millis(100);
        let mut s = Signals { now: Nanos(period.0 * n), period, ..Signals::default() };
        let connections = ConnectionCounts {
            replied: came,
            proved: came,
            asked: came,
            answered: ended,
            ended,
            ended_exchanges: 5 * ended,
            ..ConnectionCounts::default()
        };
        let completed = 5 * ended;
        s.balance.counts = Some(Reading::fresh(Counts {
            offered: came,
            admitted: came,
            completed,
            connections: Some(connections),
            ..Counts::default()
        }));
        let took = Nanos::from_millis(5);
        let times =
            Times { count: completed, sum: Nanos(took.0 * completed), p50: took, p99: took };
        s.time.waiting = Some(Reading::fresh(1 + queued));
        s.time.first_byte = Some(Reading::fresh(times));
        s.resource.cpu = Some(Reading::fresh(Share::new(0.2)));
        s.queue.accept = Some(Reading::fresh(AcceptQueue { length: queued, limit: 511 }));
        s
    }

    /// 20 connections a second leave, and each worker that becomes free, or is started, must find
    /// one that waits.
    #[test]
    fn the_ceiling_decides_where_connections_wait_for_workers() {
        let mut controller = DefaultController::new(DefaultSpec::default());
        for n in 0..400 {
            controller.tick(&prefork(n, 2, 2, 0), Mode::Enforce);
        }
        let limits = (0..60).map(|n| {
            let signals = prefork(400 + n, 6, 2, 4 * n);
            controller.tick(&signals, Mode::Enforce)
        });
        let limits = limits.last().expect("a tick");
        assert!(limits.why.shedding, "{}", limits.why.text);
        assert!(limits.waiting_max.is_some_and(|most| most <= 8), "{:?}", limits.waiting_max);
        let rate = limits.rate.expect("a rate").get();
        assert!(rate >= 64.0, "{rate} of 20 that leave");
    }
}
