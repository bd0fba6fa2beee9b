// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histograms of times that travel between processes and add up exactly.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

/// Times are recorded in microseconds, up to this many (10 minutes); longer ones count as this.
const VALUE_US_MAX: u64 = 600_000_000;
/// Significant digits where one histogram covers a phase, and where it covers one slot.
const DIGITS_FINE: u8 = 3;
const DIGITS_COARSE: u8 = 2;

/// A histogram of times (HDR: relative error below 0.1 %, or 1 % for single slots).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Wire", into = "Wire")]
pub struct Hist {
    inner: Option<Box<Histogram<u64>>>,
    digits: u8,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    digits: u8,
    counts: Vec<(u64, u64)>,
}

impl Hist {
    /// Empty, with a relative error below 0.1 %.
    #[must_use]
    pub const fn fine() -> Self {
        Self { inner: None, digits: DIGITS_FINE }
    }

    /// Empty, with a relative error below 1 %, small.
    #[must_use]
    pub const fn coarse() -> Self {
        Self { inner: None, digits: DIGITS_COARSE }
    }

    fn inner(&mut self) -> Option<&mut Histogram<u64>> {
        if self.inner.is_none() {
            let digits = self.digits.clamp(1, 4);
            self.inner = Histogram::new(digits).ok().map(Box::new);
        }
        self.inner.as_deref_mut()
    }

    /// Counts one time.
    pub fn record(&mut self, time: Nanos) {
        self.record_us(time.0 / 1_000, 1);
    }

    fn record_us(&mut self, us: u64, count: u64) {
        let us = us.min(VALUE_US_MAX);
        if let Some(inner) = self.inner() {
            // Resizes up to VALUE_US_MAX: cannot fail.
            let _ = inner.record_n(us, count);
        }
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Self) {
        let Some(from) = other.inner.as_deref() else { return };
        for step in from.iter_recorded() {
            self.record_us(step.value_iterated_to(), step.count_at_value());
        }
    }

    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.inner.as_ref().map_or(0, |h| h.len())
    }

    /// The time below or at which the share `quantile` (0…1) of the times lie; zero when empty.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Nanos {
        let us = self.inner.as_ref().map_or(0, |h| h.value_at_quantile(quantile));
        Nanos::from_micros(us)
    }

    /// The usual figures.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        let Some(h) = self.inner.as_deref() else { return Percentiles::default() };
        let at = |q: f64| h.value_at_quantile(q) as f64 / 1e6;
        Percentiles {
            count: h.len(),
            mean: h.mean() / 1e6,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: h.max() as f64 / 1e6,
        }
    }
}

impl From<Wire> for Hist {
    fn from(wire: Wire) -> Self {
        let mut hist = Self { inner: None, digits: wire.digits };
        wire.counts.iter().for_each(|(us, count)| hist.record_us(*us, *count));
        hist
    }
}

impl From<Hist> for Wire {
    fn from(hist: Hist) -> Self {
        let steps = hist.inner.iter().flat_map(|h| h.iter_recorded());
        let counts = steps.map(|s| (s.value_iterated_to(), s.count_at_value())).collect();
        Self { digits: hist.digits, counts }
    }
}

/// Percentiles of a time, in seconds; all zero when nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 of 100 are not longer.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_the_journey_and_adds_up() {
        let mut whole = Hist::fine();
        let (mut left, mut right) = (Hist::fine(), Hist::fine());
        for ms in 1..=1_000_u64 {
            let half = if ms % 2 == 0 { &mut left } else { &mut right };
            half.record(Nanos::from_millis(ms));
            whole.record(Nanos::from_millis(ms));
        }
        let sent = serde_json::to_string(&right).unwrap();
        left.add(&serde_json::from_str(&sent).unwrap());
        assert_eq!(left.count(), 1_000);
        for q in [0.5, 0.9, 0.99, 0.999] {
            let (a, b) = (left.quantile(q).as_secs_f64(), whole.quantile(q).as_secs_f64());
            assert!((a / b - 1.0).abs() < 0.002, "{q}: {a} and {b}");
            assert!((a - q).abs() < 0.003, "{q}: {a}");
        }
    }

    #[test]
    fn empty_and_endless_do_no_harm() {
        let mut hist = Hist::coarse();
        assert_eq!(hist.percentiles(), Percentiles::default());
        hist.record(Nanos(u64::MAX));
        assert!(hist.percentiles().max >= 599.0);
    }
}
