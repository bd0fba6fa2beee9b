// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether more comes than usual. What is usual differs by time scale: a crowd within seconds stands out
//! from the last minute, a ramp of half an hour only from the hours before. And whether more comes than
//! completes, for longer than by chance: where a ramp is so slow that it is usual on every scale, the
//! overload shows by what is left behind.
//!
//! Demand is first attempts and exchanges on known connections. Refused clients that come again are not
//! more of them.

use crate::RATE_CEILING;
use crate::kept::{number, within};
use serde_json::{Value, json};

/// Time constant of the present, seconds.
const NOW_S: f64 = 8.0;
/// Time constants of what is usual.
const SCALES_S: [f64; 3] = [60.0, 600.0, 3600.0];
/// The deviation of the present around a mean is learned with this one.
const SPREAD_S: f64 = 600.0;
/// More than usual: by this share at least, and by so many deviations.
const MORE: f64 = 0.15;
const DEVIATIONS: f64 = 3.0;
/// So much more needs no deviation.
const MUCH_MORE: f64 = 1.5;
/// So much more is a crowd of its own: a bystander of 5/s has as much by chance once in a billion times.
const DOUBLED: f64 = 2.0;
/// Fewer than this in [`NOW_S`] are too few to say anything.
const FEW: f64 = 24.0;
/// More seconds than anybody has seen.
const SEEN_S_MAX: f64 = 1e10;
/// Time constant of what is left behind, and the share of what comes that is no chance.
const BALANCE_S: f64 = 16.0;
const LEFT: f64 = 0.1;

#[derive(Clone, Copy, Debug, Default)]
struct Scale {
    mean: f64,
    variance: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    seen_s: f64,
    now: f64,
    scales: [Scale; 3],
    came: f64,
    done: f64,
}

fn move_to(value: &mut f64, to: f64, s: f64, constant_s: f64) {
    *value += -libm::expm1(-s / constant_s) * (to - *value);
}

impl Demand {
    /// What came in a tick of so many seconds: demand; exchanges started and completed. `learn`: whether
    /// it is usual.
    pub(super) fn tick(&mut self, s: f64, demand: f64, (started, done): (f64, f64), learn: bool) {
        let s = s.max(1e-3);
        self.seen_s += s;
        move_to(&mut self.now, demand / s, s, NOW_S.min(self.seen_s));
        move_to(&mut self.came, started / s, s, BALANCE_S);
        move_to(&mut self.done, done / s, s, BALANCE_S);
        if !learn {
            return;
        }
        for (scale, constant_s) in self.scales.iter_mut().zip(SCALES_S) {
            // At first the mean is that of all there was.
            move_to(&mut scale.mean, demand / s, s, constant_s.min(self.seen_s));
            let off = self.now - scale.mean;
            move_to(&mut scale.variance, off * off, s, SPREAD_S.min(self.seen_s));
        }
    }

    /// What is usual, and what comes now, for the process that comes next.
    pub(super) fn kept(&self) -> Value {
        let scales = self.scales.map(|scale| [scale.mean, scale.variance]);
        json!({"seen_s": self.seen_s, "now": self.now, "scales": scales})
    }

    /// Goes on from there; `goes_on`: what came then comes now, and else what is usual. `None`: it is of no use.
    pub(super) fn take(value: &Value, goes_on: bool) -> Option<Self> {
        let rate = (0.0, RATE_CEILING);
        let mut demand = Self {
            seen_s: number(value, "seen_s", (0.0, SEEN_S_MAX))?,
            now: number(value, "now", rate)?,
            ..Self::default()
        };
        let kept = value.get("scales")?.as_array()?;
        if kept.len() != demand.scales.len() {
            return None;
        }
        for (scale, kept) in demand.scales.iter_mut().zip(kept) {
            let [mean, variance] = kept.as_array()?.as_slice() else { return None };
            scale.mean = within(mean, rate)?;
            scale.variance = within(variance, (0.0, RATE_CEILING * RATE_CEILING))?;
        }
        if !goes_on {
            demand.now = demand.usual();
        }
        Some(demand)
    }

    /// More comes than usual on one of the scales.
    fn is_more(&self) -> bool {
        self.now * NOW_S >= FEW
            && self.seen_s > 2.0 * NOW_S
            && self.scales.iter().any(|scale| {
                let by = (MORE * scale.mean).max(DEVIATIONS * libm::sqrt(scale.variance));
                self.now > scale.mean + by || self.now > MUCH_MORE * scale.mean
            })
    }

    /// More comes than completes.
    fn is_left(&self) -> bool {
        let chance = 2.5 * libm::sqrt(self.came / BALANCE_S);
        self.came * BALANCE_S >= FEW && self.came - self.done > LEFT * self.came + chance
    }

    /// Whether there is more demand, as far as anybody can tell.
    pub(super) fn is_up(&self) -> bool {
        self.is_more() || self.is_left()
    }

    /// Demand per second, lately.
    pub(super) const fn now(&self) -> f64 {
        self.now
    }

    /// So many times as much of it is seen from now on.
    pub(super) fn scale(&mut self, times: f64) {
        for scale in &mut self.scales {
            scale.mean = (scale.mean * times).min(RATE_CEILING);
            scale.variance = (scale.variance * times * times).min(RATE_CEILING * RATE_CEILING);
        }
        for rate in [&mut self.now, &mut self.came, &mut self.done] {
            *rate = (*rate * times).min(RATE_CEILING);
        }
    }

    /// What is usual: the least of the scales, so that a crowd that came slowly is not.
    pub(super) fn usual(&self) -> f64 {
        self.scales.iter().map(|scale| scale.mean).fold(f64::MAX, f64::min)
    }

    /// What comes beyond the usual, or beyond what completes, per second.
    pub(super) fn excess(&self) -> f64 {
        (self.now - self.usual()).max(self.came - self.done).max(0.0)
    }

    /// So much more than usual that it is a crowd of its own, whoever else has one.
    pub(super) fn is_doubled(&self) -> bool {
        self.now * NOW_S >= FEW && self.now >= DOUBLED * self.usual()
    }
}

#[cfg(test)]
mod tests {
    use super::Demand;

    /// Seconds of demand at these rates, all completed; returns when it was up first.
    fn run(demand: &mut Demand, rates: impl Iterator<Item = f64>) -> Option<usize> {
        let mut first = None;
        for (n, rate) in rates.enumerate() {
            demand.tick(1.0, rate, (rate, rate), true);
            if demand.is_up() && first.is_none() {
                first = Some(n);
            }
        }
        first
    }

    fn wave(n: usize) -> f64 {
        30.0 * (1.0 + 0.2 * libm::sin(n as f64))
    }

    #[test]
    fn five_times_as_many_are_more_within_seconds_and_the_usual_wave_is_not() {
        let mut demand = Demand::default();
        assert_eq!(run(&mut demand, (0..1000).map(wave)), None);
        let found = run(&mut demand, (0..60).map(|_| 150.0));
        assert!(found.is_some_and(|n| n <= 3), "{found:?}");
    }

    #[test]
    fn what_is_beyond_the_usual_is_what_a_crowd_brings() {
        let mut demand = Demand::default();
        run(&mut demand, (0..1000).map(wave));
        assert!(demand.excess() < 7.0 && !demand.is_doubled(), "{demand:?}");
        let crowd = |demand: &mut Demand, rate: f64, done: f64| {
            (0..60).for_each(|_| demand.tick(1.0, rate, (rate, done), false));
        };
        crowd(&mut demand, 36.0, 36.0);
        assert!((5.0..7.0).contains(&demand.excess()) && !demand.is_doubled(), "{demand:?}");
        crowd(&mut demand, 150.0, 150.0);
        assert!((115.0..125.0).contains(&demand.excess()) && demand.is_doubled(), "{demand:?}");
        // As many as usual come, and half of them complete.
        crowd(&mut demand, 30.0, 15.0);
        assert!((12.0..16.0).contains(&demand.excess()) && !demand.is_doubled(), "{demand:?}");
        let mut few = Demand::default();
        run(&mut few, (0..100).map(|_| 0.1));
        (0..60).for_each(|_| few.tick(1.0, 2.0, (2.0, 2.0), false));
        assert!(!few.is_doubled(), "too few to say anything: {few:?}");
    }

    /// The ramp of window A, 3.5 times in 34 minutes, stands out on the longest scale before it has
    /// doubled.
    #[test]
    fn a_ramp_of_half_an_hour_is_more_on_a_long_scale() {
        let mut demand = Demand::default();
        assert_eq!(run(&mut demand, (0..1200).map(wave)), None);
        let ramp = (0..2040).map(|n| wave(n) * (1.0 + 2.5 * n as f64 / 2040.0));
        let found = run(&mut demand, ramp);
        assert!(found.is_some_and(|n| (100..900).contains(&n)), "{found:?}");
    }

    #[test]
    fn what_is_left_behind_is_demand_whatever_is_usual() {
        let up_after = |done: f64| {
            let mut demand = Demand::default();
            run(&mut demand, (0..300).map(|_| 50.0));
            (0..120).find(|_| {
                demand.tick(1.0, 50.0, (50.0, done), true);
                demand.is_up()
            })
        };
        assert_eq!(up_after(50.0), None);
        assert_eq!(up_after(46.0), None, "within chance");
        assert!(up_after(35.0).is_some_and(|n| n < 30));
    }

    #[test]
    fn a_few_say_nothing() {
        let mut demand = Demand::default();
        assert_eq!(run(&mut demand, (0..600).map(|n| f64::from(u8::from(n % 20 == 0)))), None);
        assert_eq!(run(&mut demand, (0..20).map(|_| 1.0)), None);
        assert!(demand.now() < 2.0);
    }
}
