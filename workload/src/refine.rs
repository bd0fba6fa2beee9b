// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From counts of long periods to rates of short slots: what happened inside a minute of a trace
//! that only counts minutes.

use crate::mwm::{Mwm, MwmError, MwmSpec, Root, SCALES_MAX};
use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// How a period is filled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refine {
    /// Slots of a period, above 0; all slots together at most 2^[`SCALES_MAX`].
    pub slots: u32,
    /// Hurst parameter of what is added, above 0.5 and below 1.
    pub hurst: f64,
    /// Standard deviation of a slot over its mean, above 0. Where periods of k slots have c
    /// around their trend, slots have c·k^(1 − H): the minutes of the World Cup of 1998 have
    /// 0.069, which gives 0.16 for seconds.
    pub cv: f64,
}

impl Refine {
    /// Rates per slot: linear from the middle of each period to the middle of the next, times a
    /// multifractal series of mean 1 over all of them, then scaled so that the rates of a period
    /// add up to its count.
    ///
    /// # Errors
    /// Values out of range, or no slots, or too many.
    pub fn rates(&self, counts: &[u64], rng: &mut Rng) -> Result<Vec<f64>, MwmError> {
        let per_period = self.slots as usize;
        let total = counts.len().saturating_mul(per_period);
        let scales = total.max(2).checked_next_power_of_two().map_or(u32::MAX, usize::ilog2);
        if total == 0 || scales > SCALES_MAX {
            return Err(MwmError::Scales(if total == 0 { 0 } else { scales }));
        }
        let spec = MwmSpec { mean: 1.0, sd: self.cv, hurst: self.hurst, scales, root: Root::Fixed };
        let mut rates = Mwm::new(spec)?.rates(rng);
        rates.truncate(total);
        for (period, slots) in rates.chunks_mut(per_period).enumerate() {
            fill(counts, period, slots);
        }
        Ok(rates)
    }
}

/// Turns the factors in the slots of one period into rates.
fn fill(counts: &[u64], period: usize, slots: &mut [f64]) {
    let count = |i: usize| counts[i.min(counts.len() - 1)] as f64;
    let (before, here, after) = (count(period.saturating_sub(1)), count(period), count(period + 1));
    let length = slots.len() as f64;
    let mut sum = 0.0;
    for (i, slot) in slots.iter_mut().enumerate() {
        // From −1/2 to 1/2 over the period: how far its middle is away.
        let x = (i as f64 + 0.5) / length - 0.5;
        *slot *= if x < 0.0 { here + (here - before) * x } else { here + (after - here) * x };
        sum += *slot;
    }
    for slot in slots {
        *slot = if sum > 0.0 { *slot / sum * here } else { here / length };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Ensemble;

    #[test]
    fn a_period_keeps_its_count_and_leads_to_the_next() {
        let refine = Refine { slots: 60, hurst: 0.8, cv: 1e-6 };
        let counts = [60, 120, 0, 0, 600];
        let rates = refine.rates(&counts, &mut Rng::new(1, 0)).expect("in range");
        for (slots, count) in rates.chunks(60).zip(counts) {
            assert!((slots.iter().sum::<f64>() - count as f64).abs() < 1e-9);
            assert!(slots.iter().all(|rate| rate.is_finite() && *rate >= 0.0));
        }
        // Without fluctuation what is left is the trend: it rises within the first minute's second
        // half, and falls within the second minute's.
        assert!(rates[59] > rates[31] && rates[60] < rates[89] && rates[119] < rates[91]);
        assert_eq!(rates, refine.rates(&counts, &mut Rng::new(1, 0)).expect("in range"));
    }

    #[test]
    fn what_is_added_has_its_deviation_and_its_hurst_parameter() {
        let refine = Refine { slots: 1024, hurst: 0.75, cv: 0.3 };
        let mut ensemble = Ensemble::default();
        for stream in 0..200 {
            let rates = refine.rates(&[102_400; 4], &mut Rng::new(2, stream)).expect("in range");
            rates.chunks(1024).for_each(|period| ensemble.add(period));
        }
        assert!((ensemble.mean() - 100.0).abs() < 1e-6);
        // A little less than 30: what varies from period to period is in the counts.
        assert!((27.0..30.0).contains(&ensemble.sd()), "{}", ensemble.sd());
        let haar = ensemble.hurst_haar(1).expect("enough octaves");
        assert!((haar - 0.75).abs() < 0.03, "{haar}");
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        let refine = Refine { slots: 60, hurst: 0.8, cv: 0.2 };
        let rng = &mut Rng::new(1, 0);
        assert_eq!(refine.rates(&[], rng), Err(MwmError::Scales(0)));
        assert_eq!(Refine { slots: 0, ..refine }.rates(&[1], rng), Err(MwmError::Scales(0)));
        let many = Refine { slots: 1 << 24, ..refine }.rates(&[1, 1], rng);
        assert_eq!(many, Err(MwmError::Scales(25)));
        assert_eq!(Refine { cv: 0.0, ..refine }.rates(&[1], rng), Err(MwmError::Moments));
        assert_eq!(refine.rates(&[7], rng).map(|rates| rates.len()), Ok(60));
    }
}
