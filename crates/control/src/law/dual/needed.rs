// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether rules that have nothing left hold the load.

use crate::{Freshness, freshness};
use tidegate_model::signals::{Reading, Signals};

/// Most seconds that are given to what was admitted before the rules had done their work: in a queue
/// in order of arrival it is what is served next, whatever is refused now.
const SETTLE_SECONDS_MAX: f64 = 2.0;
/// Seconds after that, and ticks, for which jobs in flight must become more.
const GROWING_SECONDS: f64 = 0.3;
/// See [`GROWING_SECONDS`].
const GROWING_TICKS: u32 = 3;
/// They become more if they exceed those at the beginning by this many deviations of what arrives
/// and leaves by chance.
const GROWING_DEVIATIONS: f64 = 3.0;
/// Seconds where they only do not become fewer. Rules that just suffice work a backlog off slowly.
const STANDING_SECONDS: f64 = 3.0;
/// Not needed for so long, all begins anew.
const PAUSE_SECONDS: f64 = 0.5;
/// At this share of those at the beginning they are on their way down: no reason to activate SYN policing.
const DRAINING: f64 = 0.9;

/// What tells whether rules at their minimum hold the load.
pub(super) struct Work {
    /// In flight now, as [`jobs`] counts them.
    pub(super) jobs: (f64, Counted),
    /// Per second.
    pub(super) arrivals: f64,
    /// Per second.
    pub(super) completions: f64,
    /// The accept queue is full.
    pub(super) overflows: bool,
}

/// What stands for the jobs in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Counted {
    /// They themselves.
    Waiting,
    /// Those in the accept queue.
    Accept,
    /// Neither is known.
    #[default]
    Nothing,
}

/// For how long SYN policing has been needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needed {
    /// Seconds until what was in flight at the beginning has drained.
    settle_s: Option<f64>,
    /// Since then, and the jobs in flight then.
    seconds: f64,
    ticks: u32,
    jobs: f64,
    counted: Counted,
    /// Seconds of a full accept queue.
    lost_s: f64,
    /// Seconds in which it was not needed.
    pause_s: f64,
}

impl Needed {
    /// Takes a tick in which it was not needed: chance, or the end.
    pub(super) fn pause(&mut self, seconds: f64) {
        self.pause_s += seconds;
        if self.pause_s >= PAUSE_SECONDS {
            *self = Self::default();
        }
    }

    /// Takes a tick in which rules had nothing left; whether they do not hold the load.
    pub(super) fn tick(&mut self, seconds: f64, load: &Work) -> bool {
        self.pause_s = 0.0;
        let (jobs, counted) = load.jobs;
        if counted != self.counted {
            // Another number of the same load is no growth.
            *self = Self { counted, lost_s: self.lost_s, ..Self::default() };
        }
        self.lost_s = if load.overflows { self.lost_s + seconds } else { 0.0 };
        self.ticks += 1;
        let lost = self.lost_s >= GROWING_SECONDS && self.ticks >= GROWING_TICKS;
        let backlog_s = (jobs / load.completions.max(1.0)).min(SETTLE_SECONDS_MAX);
        let settle_s = self.settle_s.get_or_insert(backlog_s);
        if *settle_s > 0.0 {
            *settle_s -= seconds;
            (self.jobs, self.ticks) = (jobs, 0);
            return lost;
        }
        if jobs < DRAINING * self.jobs {
            (self.jobs, self.seconds, self.ticks) = (jobs, 0.0, 0);
            return lost;
        }
        self.seconds += seconds;
        // As many leave as arrive, about: both vary.
        let chance = (2.0 * load.arrivals * self.seconds).sqrt();
        let growing = jobs - self.jobs >= GROWING_DEVIATIONS * chance
            && self.seconds >= GROWING_SECONDS
            && self.ticks >= GROWING_TICKS;
        lost || growing || self.seconds >= STANDING_SECONDS
    }
}

/// The value of a reading that is young enough to act upon.
pub(super) fn fresh<T>(reading: Option<Reading<T>>, signals: &Signals) -> Option<T> {
    let young = |age| freshness(age, signals.period) == Freshness::Fresh;
    reading.filter(|reading| young(reading.age)).map(|reading| reading.value)
}

/// Jobs in flight, or where they are not known, in the accept queue.
pub(super) fn jobs(signals: &Signals) -> (f64, Counted) {
    let waiting = fresh(signals.time.waiting, signals).map(|jobs| (jobs, Counted::Waiting));
    let queue = fresh(signals.queue.accept, signals).map(|queue| (queue.length, Counted::Accept));
    let (jobs, counted) = waiting.or(queue).unwrap_or((0, Counted::Nothing));
    (jobs.min(1 << 40) as f64, counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(jobs: f64, counted: Counted) -> Work {
        let jobs = (jobs, counted);
        Work { jobs, arrivals: 100.0, completions: 100.0, overflows: false }
    }

    /// Ticks of 100 ms with such jobs until rules do not hold the load.
    fn ticks(needed: &mut Needed, of: impl Fn(u32) -> (f64, Counted)) -> Option<u32> {
        (1..100).find(|tick| {
            let (jobs, counted) = of(*tick);
            needed.tick(0.1, &load(jobs, counted))
        })
    }

    /// Ten jobs in the accept queue and 500 in flight are one load seen in two ways: settled for
    /// both in a tick and in two seconds, it stands for three.
    #[test]
    fn a_load_that_is_counted_otherwise_has_not_grown() {
        let mut needed = Needed::default();
        let flips =
            |tick| if tick < 10 { (10.0, Counted::Accept) } else { (500.0, Counted::Waiting) };
        let activated = ticks(&mut needed, flips);
        assert!(activated.is_some_and(|tick| tick >= 10 + 20 + 29), "{activated:?}");
        let mut needed = Needed::default();
        let grows = |tick| (if tick < 10 { 10.0 } else { 500.0 }, Counted::Waiting);
        assert!(ticks(&mut needed, grows).is_some_and(|tick| tick <= 10), "growth it is");
    }
}
