// SPDX-License-Identifier: Apache-2.0 OR MIT
//! M/G/∞: sessions that start as a Poisson process and last a Pareto time; the number of those
//! under way in a slot is Poisson, with long memory (Cox 1984; Parulekar and Makowski 1997).

use crate::pareto::Pareto;
use crate::rng::{Rng, exponential};
use serde::{Deserialize, Serialize};

/// Most sessions that one series may start: a bound on time and, with it, on bad parameters.
const SESSIONS_MAX: u64 = 1 << 32;

/// Counts of sessions under way, slot by slot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sessions {
    /// Mean number under way: the mean of a slot. Above 0.
    pub mean: f64,
    /// Hurst parameter H, above 0.5 and below 1: durations have the tail index α = 3 − 2H.
    pub hurst: f64,
    /// Shortest duration, in slots, above 0. The mean duration is α/(α − 1) times as long.
    pub shortest: f64,
}

impl Sessions {
    /// Sessions with a shortest duration of one slot; `None` when a value is out of range.
    #[must_use]
    pub fn new(mean: f64, hurst: f64) -> Option<Self> {
        let sessions = Self { mean, hurst, shortest: 1.0 };
        sessions.is_valid().then_some(sessions)
    }

    /// Whether all values are in range.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        positive(self.mean) && positive(self.shortest) && self.hurst > 0.5 && self.hurst < 1.0
    }

    /// Counts at the beginnings of `slots` slots, stationary from the first: a Poisson number is
    /// under way then, with residual lives. Values out of range give zeros.
    #[must_use]
    pub fn counts(&self, slots: usize, rng: &mut Rng) -> Vec<u64> {
        // What begins and ends at each slot; added up at the end.
        let mut change = vec![0_i64; slots + 1];
        if self.is_valid() && slots > 0 {
            let life = Pareto::with_smallest(3.0 - 2.0 * self.hurst, self.shortest);
            self.under_way(&life, &mut change, rng);
            self.starting(&life, &mut change, rng);
        }
        let mut count = 0;
        let add = |c: i64| {
            count += c;
            count.max(0) as u64
        };
        change.into_iter().take(slots).map(add).collect()
    }

    /// Sessions under way at slot 0: a Poisson number, counted by arrivals of a unit process.
    fn under_way(&self, life: &Pareto, change: &mut [i64], rng: &mut Rng) {
        let mut t = exponential(rng);
        for _ in 0..SESSIONS_MAX {
            if t >= self.mean {
                return;
            }
            change[0] += 1;
            change[first_slot_at(life.residual(rng), change.len() - 1)] -= 1;
            t += exponential(rng);
        }
    }

    fn starting(&self, life: &Pareto, change: &mut [i64], rng: &mut Rng) {
        let last = change.len() - 1;
        let gap = life.mean() / self.mean;
        let mut start = gap * exponential(rng);
        for _ in 0..SESSIONS_MAX {
            if start >= last as f64 {
                return;
            }
            change[first_slot_at(start, last)] += 1;
            change[first_slot_at(start + life.sample(rng), last)] -= 1;
            start += gap * exponential(rng);
        }
    }
}

/// The first slot that begins at or after a time, at most `last`.
fn first_slot_at(time: f64, last: usize) -> usize {
    (libm::ceil(time) as usize).min(last)
}
