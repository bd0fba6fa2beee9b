// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that wait for a worker which another connection holds while its client thinks.
//!
//! A server with a worker for each connection (prefork with keep-alive) runs out of workers, not of
//! CPU. Who has a worker is served at once; who has none waits in the accept queue until a whole
//! connection ends. There a standing queue of some jobs, which rides out chance where jobs leave it one
//! by one, takes many response times, and a worker that is free for a moment costs one of many. So
//! while most of those in flight stand in the accept queue, with a free CPU, the queue is kept short.
//!
//! A server may start workers when none is idle (Apache starts 1, 2, 4 … in a second). A rate of what
//! completes lags by the life of a connection: our refusals would leave workers idle, and none would be
//! started. So while completions rise there, the ceiling decides who comes in, and the rate is only a
//! bound far above what leaves. Once they rise no more, the rate decides again: it leaves to the policy
//! who is admitted, and the ceiling does not know first attempts from repeated ones.

use super::Tick;
use super::scale::LASTING_SECONDS;

/// Share of those in flight that stands in the accept queue: it begins here,
const SEATS_BEGIN: f64 = 0.5;
/// and ends here; a queue that is short is a smaller share.
const SEATS_END: f64 = 0.2;
/// Fewer exchanges a connection hold no worker for others' sake.
const SEATS_EXCHANGES: f64 = 2.5;

/// Seconds in which completions are averaged, and those that they are compared with.
const RISE_SECONDS: (f64, f64) = (1.0, 3.0);
/// They rise where the first is so many times the second: at 100/s more than two deviations.
const RISE_FACTOR: f64 = 1.15;
/// For so long they may stand meanwhile: workers are started in batches, once in a second.
const RISE_HOLD_SECONDS: f64 = 3.0;

/// What is known of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seats {
    /// Averages of those in flight, and of the accept queue.
    waiting: f64,
    queued: f64,
    short: bool,
    /// Averages of completions per second, and for how long they count as rising.
    completed: (f64, f64),
    rises_s: f64,
}

impl Seats {
    /// Takes a tick: the length of the accept queue, the exchanges that a connection brings, and whether
    /// the CPU is used up.
    pub(super) fn see(&mut self, tick: &Tick, queued: Option<f64>, each: f64, cpu_used_up: bool) {
        let Some(queued) = queued else {
            *self = Self::default();
            return;
        };
        let weight = 1.0 - libm::exp(-tick.sums.seconds / LASTING_SECONDS);
        self.waiting += weight * (tick.waiting - self.waiting);
        self.queued += weight * (queued - self.queued);
        self.compare(tick);
        let share = if self.short { SEATS_END } else { SEATS_BEGIN };
        self.short =
            each > SEATS_EXCHANGES && !cpu_used_up && self.queued > share * self.waiting.max(1.0);
    }

    fn compare(&mut self, tick: &Tick) {
        let (seconds, rate) = (tick.sums.seconds, tick.sums.rate());
        let weight = |span: f64| 1.0 - libm::exp(-seconds / span);
        self.completed.0 += weight(RISE_SECONDS.0) * (rate - self.completed.0);
        self.completed.1 += weight(RISE_SECONDS.1) * (rate - self.completed.1);
        let rises = self.completed.0 > RISE_FACTOR * self.completed.1;
        self.rises_s = if rises { RISE_HOLD_SECONDS } else { (self.rises_s - seconds).max(0.0) };
    }

    /// Whether they do, and more and more of them find one.
    pub(super) fn grow(self) -> bool {
        self.short && self.rises_s > 0.0
    }

    /// Whether connections wait for workers.
    pub(super) const fn short(self) -> bool {
        self.short
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::Sums;
    use super::*;
    use crate::{Controller, DefaultController, DefaultSpec, Mode};
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

    /// Whether it sheds at the end, its limit in flight and its rate, where `ended` connections leave
    /// in a tick.
    fn limits(ended: impl Fn(u64) -> u64) -> (bool, u64, f64) {
        let mut controller = DefaultController::new(DefaultSpec::default());
        for n in 0..400 {
            controller.tick(&prefork(n, 2, 2, 0), Mode::Enforce);
        }
        let ticks = (0..60).map(|n| prefork(400 + n, 4 + ended(n), ended(n), 4 * n));
        let last = ticks.map(|signals| controller.tick(&signals, Mode::Enforce)).last();
        let limits = last.expect("a tick");
        let rate = limits.rate.map_or(0.0, |rate| rate.get());
        (limits.why.shedding, limits.waiting_max.unwrap_or(u64::MAX), rate)
    }

    #[test]
    fn the_ceiling_decides_while_workers_are_started() {
        let (sheds, most, rate) = limits(|n| 2 + n / 10);
        assert!(sheds && most <= 12, "{most}");
        assert!(rate >= 4.0 * 50.0, "{rate} of 70 that leave at last");
        let (sheds, most, rate) = limits(|_| 2);
        assert!(sheds && most <= 12, "{most}");
        assert!(rate <= 30.0, "{rate} of 20 that leave");
    }
}
