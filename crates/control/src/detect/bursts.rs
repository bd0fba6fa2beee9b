// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How bursty arrivals are. Clients that come in batches leave gaps that look like the end of an overload.

use super::history::Sums;

/// Seconds in which what was seen is forgotten.
const SEEN_SECONDS: f64 = 2.0;
/// Ticks that say something.
const TICKS_MIN: f64 = 8.0;
/// Two ticks are compared where one is at most so many times as long as the other.
const LONGER_MAX: f64 = 2.0;
/// Mean distance of two equal normal variables, in their standard deviations: 2/√π.
const DISTANCE: f64 = std::f64::consts::FRAC_2_SQRT_PI;
/// The variance over the mean is 1 where arrivals come by chance. Estimated from twenty ticks, and across the end of a
/// crowd, it stays below about this.
const DISPERSION_MIN: f64 = 4.0;
/// More is not believed.
const FACTOR_MAX: f64 = 16.0;

/// Changes from tick to tick: a load that changes once says little of bursts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bursts {
    /// Seconds and arrivals of the last tick.
    last: Option<(f64, f64)>,
    /// Sums over comparisons, older ones less.
    compared: f64,
    changes: f64,
    came: f64,
}

impl Bursts {
    /// Takes a tick in which so many came.
    pub(super) fn see(&mut self, tick: &Sums, came: f64) {
        let now = (tick.seconds, came);
        let Some(last) = self.last.replace(now) else { return };
        let keep = libm::exp(-now.0 / SEEN_SECONDS);
        for sum in [&mut self.compared, &mut self.changes, &mut self.came] {
            *sum *= keep;
        }
        let (short, long) = (last.0.min(now.0), last.0.max(now.0));
        if short <= 0.0 || long > LONGER_MAX * short {
            return;
        }
        let seconds = f64::midpoint(last.0, now.0);
        let rates = (last.1 / last.0, now.1 / now.0);
        self.compared += 1.0;
        self.changes += (rates.1 - rates.0).abs() * seconds;
        self.came += f64::midpoint(rates.0, rates.1) * seconds;
    }

    /// So many times as many arrivals as by chance have to be missing before that says something.
    pub(super) fn factor(&self) -> f64 {
        if self.compared < TICKS_MIN || self.came <= 0.0 {
            return 1.0;
        }
        let deviation = self.changes / self.compared / DISTANCE;
        let dispersion = deviation * deviation / (self.came / self.compared);
        (dispersion / DISPERSION_MIN).clamp(1.0, FACTOR_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number from 0 to 1, at random.
    fn random(dice: &mut u64) -> f64 {
        *dice ^= *dice << 13;
        *dice ^= *dice >> 7;
        *dice ^= *dice << 17;
        (*dice >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Largest factor of 200 ticks of 0.1 s after the first 20, and the last one, with batches of that size.
    fn factors(a_second: f64, batch: f64, dice: &mut u64) -> (f64, f64) {
        let (mut bursts, mut most, mut next) = (Bursts::default(), 0.0_f64, 0.0);
        for tick in 1..=220 {
            let mut came = 0.0;
            while next < 0.1 * f64::from(tick) {
                came += batch;
                next -= (1.0 - random(dice)).ln() * batch / a_second;
            }
            bursts.see(&Sums { seconds: 0.1, ..Sums::default() }, came);
            most = if tick > 20 { most.max(bursts.factor()) } else { most };
        }
        (most, bursts.factor())
    }

    #[test]
    fn arrivals_by_chance_are_no_bursts_and_batches_are() {
        let mut dice = 88_172_645_463_325_252;
        for a_second in [1.0, 20.0, 300.0, 5_000.0] {
            assert!(factors(a_second, 1.0, &mut dice).0 <= 1.0, "{a_second}");
        }
        let (_, last) = factors(1_600.0, 40.0, &mut dice);
        assert!((4.0..16.0).contains(&last), "{last}");
    }

    /// A crowd that leaves is one change, and a tick that is late is none.
    #[test]
    fn a_change_is_no_burst() {
        let mut bursts = Bursts::default();
        let mut see = |seconds: f64, a_second: f64| {
            bursts.see(&Sums { seconds, ..Sums::default() }, (a_second * seconds).round());
            bursts.factor()
        };
        (0..30).for_each(|_| assert!(see(0.1, 9_000.0) <= 1.0));
        assert!((0..30).all(|_| see(0.1, 450.0) <= 3.0));
        assert!([0.7, 0.02, 0.1, 0.1, 0.3].into_iter().all(|seconds| see(seconds, 450.0) <= 1.0));
    }
}
