// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much arrivals vary: browsers open six connections at once, a batch job a hundred.
//!
//! Learned from all that comes while nothing is shed, also from what alarms something: a burst does.
//! What came right before an overload that lasted is left out: the rise of a crowd looks like a burst.

use crate::history::Sums;

/// Seconds of a measurement.
const SECONDS: f64 = 10.0;
/// Weights of a measurement: bursts come again, and not in each of them.
const WEIGHT_UP: f64 = 0.5;
/// See [`WEIGHT_UP`].
const WEIGHT_DOWN: f64 = 0.05;
/// No arrivals are taken to vary more.
pub(super) const ARRIVALS_MAX: f64 = 1e4;

/// Variance of the number that comes in a tick, over its mean: 1 where each comes for itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    pub(super) variance: Option<f64>,
    seconds: f64,
    came: f64,
    /// Half the squared steps from one tick to the next, so that a load that rises or falls is no
    /// variance.
    steps: f64,
    before: Option<f64>,
}

impl Arrivals {
    /// Takes a tick without an overload.
    pub(super) fn see(&mut self, tick: &Sums) {
        let Some(before) = self.before.replace(tick.offered) else { return };
        let step = tick.offered - before;
        self.seconds += tick.seconds;
        self.came += tick.offered;
        self.steps += step * step / 2.0;
        if self.seconds < SECONDS {
            return;
        }
        if self.came > 0.0 {
            let now = (self.steps / self.came).min(ARRIVALS_MAX);
            let before = self.variance.unwrap_or(1.0);
            let weight = if now > before { WEIGHT_UP } else { WEIGHT_DOWN };
            self.variance = Some(before + weight * (now - before));
        }
        self.forget();
    }

    /// What was counted was the beginning of an overload, or of another time.
    pub(super) fn forget(&mut self) {
        *self = Self { variance: self.variance, ..Self::default() };
    }

    /// At least as much as those that come each for itself.
    pub(super) fn bursts(&self) -> f64 {
        self.variance.unwrap_or(1.0).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: usize, came: impl Fn(usize) -> f64) -> Arrivals {
        let mut arrivals = Arrivals::default();
        for n in 0..=10 * seconds {
            arrivals.see(&Sums { seconds: 0.1, offered: came(n), ..Sums::default() });
        }
        arrivals
    }

    #[test]
    fn bursts_are_learned_and_a_rise_is_none() {
        let burst = |n: usize| if n.is_multiple_of(100) { 100.0 } else { 15.0 };
        assert!(after(30, burst).bursts() > 3.0, "{:?}", after(30, burst));
        assert!(after(60, |n| n as f64 / 3.0).bursts() <= 1.0);
        assert!(after(9, burst).bursts() <= 1.0, "too little was seen");
        assert!(after(60, |_| 0.0).bursts() <= 1.0);
    }

    #[test]
    fn what_came_before_an_overload_is_no_burst() {
        let mut arrivals = after(9, |n| if n > 85 { 150.0 } else { 15.0 });
        arrivals.forget();
        (0..=100).for_each(|_| {
            arrivals.see(&Sums { seconds: 0.1, offered: 15.0, ..Sums::default() });
        });
        assert!(arrivals.bursts() <= 1.0);
    }
}
