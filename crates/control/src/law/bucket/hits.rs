// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of the last second, whatever the interval of the ticks, and which ranks come.

use crate::detect::Window;
use tidegate_model::RANKS;
use tidegate_model::signals::BucketCounts;

/// Length of the window in seconds: the paper's test is on "the last second".
const WINDOW_SECONDS: f64 = 1.0;
/// A rank that has not come for this long keeps no tokens back from those below it.
const RANK_SECONDS: f64 = 60.0;

#[derive(Clone, Copy, Debug, Default)]
struct Tick {
    offered: f64,
    refused: f64,
    ended: f64,
}

/// The mean of a level over the same window.
#[derive(Clone, Debug)]
pub(crate) struct Mean(Window<f64>);

impl Default for Mean {
    fn default() -> Self {
        Self(Window::new(WINDOW_SECONDS))
    }
}

impl Mean {
    /// Takes a level that stood for so many seconds; the mean with it.
    pub(crate) fn push(&mut self, seconds: f64, level: f64) -> f64 {
        self.0.push(seconds, level);
        self.0.sum(|seconds, level| seconds * level) / self.0.seconds()
    }
}

/// The requests of the window.
#[derive(Clone, Debug)]
pub(crate) struct Hits {
    window: Window<Tick>,
    /// For how long each rank still counts.
    ranks_s: [f64; RANKS],
}

impl Default for Hits {
    fn default() -> Self {
        Self { window: Window::new(WINDOW_SECONDS), ranks_s: [0.0; RANKS] }
    }
}

fn float(n: u64) -> f64 {
    n.min(1 << 40) as f64
}

fn sum(counts: &[u64; RANKS]) -> f64 {
    counts.iter().map(|n| float(*n)).sum()
}

impl Hits {
    pub(crate) fn push(&mut self, seconds: f64, counts: &BucketCounts) {
        for (left, offered) in self.ranks_s.iter_mut().zip(counts.offered) {
            *left = if offered > 0 { RANK_SECONDS } else { (*left - seconds).max(0.0) };
        }
        let tick = Tick {
            offered: sum(&counts.offered),
            refused: sum(&counts.refused),
            ended: float(counts.ended),
        };
        self.window.push(seconds, tick);
    }

    fn rate(&self, of: impl Fn(&Tick) -> f64) -> Option<f64> {
        let sum = self.window.sum(|_, tick| of(tick));
        self.window.full().then(|| sum / self.window.seconds())
    }

    /// Requests per second; `None` before there is a second of them.
    pub(crate) fn per_second(&self) -> Option<f64> {
        self.rate(|tick| tick.offered)
    }

    /// Responses per second, likewise.
    pub(crate) fn ended_per_second(&self) -> Option<f64> {
        self.rate(|tick| tick.ended)
    }

    /// Requests that were refused in the window.
    pub(crate) fn refused(&self) -> f64 {
        self.window.sum(|_, tick| tick.refused)
    }

    /// Bucket depth and what each rank must leave in it, where the lowest rank that comes is to
    /// find `burst`. Tokens are added above that for those who are refused last: held back out of
    /// `burst` itself, they would make the bucket shallower for all others.
    pub(crate) fn ranks(&self, burst: u32) -> (u32, [u32; RANKS]) {
        let comes = |rank: usize| self.ranks_s[rank] > 0.0;
        let half = burst.div_ceil(2);
        let protected = if comes(0) && (comes(1) || comes(2)) { burst } else { 0 };
        let new = if comes(2) && (comes(0) || comes(1)) { half } else { 0 };
        let reserve = [0, protected, protected.saturating_add(new)];
        (burst.saturating_add(reserve[2]).min(crate::BURST_MAX), reserve)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(offered: [u64; RANKS]) -> BucketCounts {
        BucketCounts { offered, ..BucketCounts::default() }
    }

    #[test]
    fn the_window_is_a_second_whatever_the_interval() {
        for (tick_s, ticks) in [(0.1, 10), (0.25, 4), (1.0, 1), (0.3, 4), (3.0, 1)] {
            let mut hits = Hits::default();
            for n in 0..40 {
                let known = hits.per_second().is_some();
                assert_eq!(known, n >= ticks, "tick {n} of {tick_s} s");
                hits.push(tick_s, &offered([1, 2, 3]));
            }
            assert!((hits.per_second().unwrap() - 6.0 / tick_s).abs() < 1e-9);
        }
    }

    #[test]
    fn a_rank_that_comes_is_preferred_and_costs_the_lowest_nothing() {
        let table = [
            ([0, 9, 0], 5, [0, 0, 0]),
            ([1, 0, 0], 5, [0, 0, 0]),
            ([1, 9, 0], 10, [0, 5, 5]),
            ([0, 9, 9], 8, [0, 0, 3]),
            ([1, 9, 9], 13, [0, 5, 8]),
        ];
        for (counts, burst, reserve) in table {
            let mut hits = Hits::default();
            hits.push(0.1, &offered(counts));
            assert_eq!(hits.ranks(5), (burst, reserve), "{counts:?}");
            hits.push(RANK_SECONDS + 1.0, &offered([0; RANKS]));
            assert_eq!(hits.ranks(5), (5, [0; RANKS]), "forgotten");
        }
        let mut hits = Hits::default();
        hits.push(0.1, &offered([1, 1, 1]));
        let (burst, reserve) = hits.ranks(crate::BURST_MAX);
        assert!(burst == crate::BURST_MAX && reserve.is_sorted(), "{burst} {reserve:?}");
    }
}
