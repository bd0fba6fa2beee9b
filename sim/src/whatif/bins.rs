// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts by period. There are never more than [`BINS_MAX`] periods: where a load is longer, two
//! neighbours become one, and from then on each is twice as long.

use tidegate_model::totals::Histogram;
use tidegate_units::Nanos;

/// Most periods that are kept.
pub const BINS_MAX: usize = 1024;
/// The first width of a period.
pub const WIDTH_FIRST: Nanos = Nanos::SECOND;

/// One period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Clients that came.
    pub offered: u64,
    /// Clients let in.
    pub admitted: u64,
    /// Clients refused for the first time.
    pub refused: u64,
    /// SYNs refused, repeated ones included.
    pub refusals: u64,
    /// SYNs that found the accept queue full.
    pub ignored: u64,
    /// Answers.
    pub answered: u64,
    /// Answers within the objective.
    pub good: u64,
    /// Clients that came in it and never got a response.
    pub failed: u64,
    /// From a client's arrival to its response, by the time of that.
    pub times: Histogram,
    /// Sum of the rate limits of its ticks, in thousandths of an admission per second.
    pub limit_milli_sum: u64,
    /// Ticks in which there was a rate limit.
    pub limit_ticks: u64,
}

impl Bin {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { offered, admitted, refused, refusals, ignored, answered, good, failed, .. } =
            other;
        self.offered += offered;
        self.admitted += admitted;
        self.refused += refused;
        self.refusals += refusals;
        self.ignored += ignored;
        self.answered += answered;
        self.good += good;
        self.failed += failed;
        self.limit_milli_sum = self.limit_milli_sum.saturating_add(other.limit_milli_sum);
        self.limit_ticks += other.limit_ticks;
        merge(&mut self.times, &other.times);
    }

    /// Mean of the rate limits that were set, in admissions per second; `None` if there was none.
    #[must_use]
    pub fn limit(&self) -> Option<f64> {
        (self.limit_ticks > 0).then(|| self.limit_milli_sum as f64 / 1e3 / self.limit_ticks as f64)
    }
}

/// Adds the counts of `from`.
pub(super) fn merge(into: &mut Histogram, from: &Histogram) {
    into.count += from.count;
    into.sum_ns = into.sum_ns.saturating_add(from.sum_ns);
    for (sum, count) in into.buckets.iter_mut().zip(&from.buckets) {
        *sum += count;
    }
}

/// Periods of equal width from time zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bins {
    width: Nanos,
    bins: Vec<Bin>,
}

impl Default for Bins {
    fn default() -> Self {
        Self { width: WIDTH_FIRST, bins: Vec::new() }
    }
}

impl Bins {
    /// The period of this time.
    pub fn at(&mut self, at: Nanos) -> &mut Bin {
        while at.0 / self.width.0 >= BINS_MAX as u64 {
            self.halve();
        }
        let index = (at.0 / self.width.0) as usize;
        if index >= self.bins.len() {
            self.bins.resize_with(index + 1, Bin::default);
        }
        &mut self.bins[index]
    }

    fn halve(&mut self) {
        let pairs = self.bins.len().div_ceil(2);
        for i in 0..pairs {
            let mut left = std::mem::take(&mut self.bins[2 * i]);
            if let Some(right) = self.bins.get(2 * i + 1) {
                left.add(right);
            }
            self.bins[i] = left;
        }
        self.bins.truncate(pairs);
        self.width = self.width + self.width;
    }

    /// Makes the periods at least so wide.
    pub fn widen(&mut self, width: Nanos) {
        while self.width < width {
            self.halve();
        }
    }

    /// How long each period is.
    #[must_use]
    pub const fn width(&self) -> Nanos {
        self.width
    }

    /// The periods, the first from time zero; at most [`BINS_MAX`].
    #[must_use]
    pub fn all(&self) -> &[Bin] {
        &self.bins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long the load: the number of periods is bounded, and not one count is lost.
    #[test]
    fn a_longer_load_has_wider_periods_and_loses_nothing() {
        let mut bins = Bins::default();
        let mut counted = 0;
        for day in 0..400_u64 {
            for k in 0..50 {
                let at = Nanos::from_secs(day * 86_400 + k * 7);
                bins.at(at).offered += 1;
                bins.at(at).times.record(Nanos::from_millis(k));
                counted += 1;
                assert!(bins.all().len() <= BINS_MAX);
            }
        }
        assert_eq!(bins.all().iter().map(|b| b.offered).sum::<u64>(), counted);
        assert_eq!(bins.all().iter().map(|b| b.times.count).sum::<u64>(), counted);
        assert!(bins.width().0 * (BINS_MAX as u64) < 2 * 400 * 86_400 * 1_000_000_000);
        assert_eq!(bins.all()[0].offered, 50, "the first day stays in the first period");
    }

    #[test]
    fn the_last_period_of_one_width_is_not_yet_merged() {
        let mut bins = Bins::default();
        bins.at(Nanos::from_secs(BINS_MAX as u64 - 1)).offered += 1;
        assert_eq!((bins.width(), bins.all().len()), (WIDTH_FIRST, BINS_MAX));
        bins.at(Nanos::from_secs(BINS_MAX as u64)).offered += 1;
        assert_eq!(bins.width(), Nanos::from_secs(2));
        assert_eq!(bins.all().len(), BINS_MAX / 2 + 1);
    }
}
