// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrival processes: iterators over the times of arrivals, from time zero.
//!
//! A process of unit rate (regular or Poisson) is sent through the inverse of the profile's
//! cumulative rate, so that any profile has exact arrivals and needs no thinning.

use crate::profile::{Cursor, Profile};
use crate::rng::{Rng, exponential};
use serde::{Deserialize, Serialize};
use tidegate_units::{Nanos, Random};

/// How arrivals are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// At equal distances (in expected arrivals).
    Constant,
    /// Independent of each other.
    Poisson,
}

/// Times of arrivals under a profile; they never fall.
#[derive(Clone, Debug)]
pub struct Arrivals {
    process: Process,
    cursor: Cursor,
    reached: f64,
    rng: Rng,
}

impl Arrivals {
    /// Arrivals of a process under a profile; `rng` is only used by Poisson.
    #[must_use]
    pub fn new(process: Process, profile: Profile, rng: Rng) -> Self {
        Self { process, cursor: Cursor::new(profile), reached: 0.0, rng }
    }
}

impl Iterator for Arrivals {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        self.reached += match self.process {
            Process::Constant => 1.0,
            Process::Poisson => exponential(&mut self.rng),
        };
        self.cursor.time_of(self.reached)
    }
}

/// Counts up to here are drawn at once and sorted; larger ones in order, one by one.
const SORTED_MAX: u64 = 1 << 16;

/// The arrivals of one period: uniform within it, in order, in bounded memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    /// Sorted, the first one last.
    pending: Vec<Nanos>,
    /// Still to be drawn in order, from where to where.
    left: u64,
    from: f64,
    span: f64,
    start: Nanos,
}

impl Slot {
    /// `count` arrivals in a period (its start, its length).
    pub(crate) fn fill(&mut self, count: u64, (start, lasts): (Nanos, Nanos), rng: &mut Rng) {
        let span = lasts.0 as f64;
        (self.start, self.span) = (start, span);
        if count > SORTED_MAX || lasts == Nanos::ZERO {
            (self.left, self.from) = (count, 0.0);
            return;
        }
        self.pending.extend((0..count).map(|_| start + Nanos((rng.next_f64() * span) as u64)));
        self.pending.sort_unstable_by(|a, b| b.cmp(a));
    }

    pub(crate) fn next(&mut self, rng: &mut Rng) -> Option<Nanos> {
        if self.left == 0 {
            return self.pending.pop();
        }
        if self.span > 0.0 {
            // The smallest of n uniform numbers is 1 − u^(1/n); the others are uniform above it.
            let step = -libm::expm1(-exponential(rng) / self.left as f64);
            self.from += (self.span - self.from) * step;
        }
        self.left -= 1;
        Some(self.start + Nanos(self.from as u64))
    }
}

/// Arrivals of a trace of counts per period: exactly as many, uniform inside each period
/// (spec: traffic, "arrivals are uniform inside a slot").
#[derive(Clone, Debug)]
pub struct Trace {
    counts: std::vec::IntoIter<u64>,
    period: Nanos,
    next_start: Nanos,
    slot: Slot,
    rng: Rng,
}

impl Trace {
    /// `counts[i]` arrivals in the i-th period.
    #[must_use]
    pub fn new(counts: Vec<u64>, period: Nanos, rng: Rng) -> Self {
        Self {
            counts: counts.into_iter(),
            period,
            next_start: Nanos::ZERO,
            slot: Slot::default(),
            rng,
        }
    }
}

impl Iterator for Trace {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        loop {
            if let Some(time) = self.slot.next(&mut self.rng) {
                return Some(time);
            }
            let count = self.counts.next()?;
            self.slot.fill(count, (self.next_start, self.period), &mut self.rng);
            self.next_start += self.period;
        }
    }
}

/// `size` arrivals at once, `every` so often, until `until`; none when `every` is zero.
pub fn batches(size: u32, every: Nanos, until: Nanos) -> impl Iterator<Item = Nanos> {
    let times = if every == Nanos::ZERO { 0 } else { until.0 / every.0 };
    (1..=times).flat_map(move |k| std::iter::repeat_n(Nanos(k * every.0), size as usize))
}

/// Two streams of arrivals in one, in order of time; the first goes first at equal times.
pub fn merge(
    a: impl Iterator<Item = Nanos>,
    b: impl Iterator<Item = Nanos>,
) -> impl Iterator<Item = Nanos> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(x), Some(y)) if y < x => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Segment;

    fn counts(times: impl Iterator<Item = Nanos>, slots: usize) -> Vec<f64> {
        let mut counts = vec![0.0; slots];
        for t in times {
            counts[((t.0 / 100_000_000) as usize).min(slots - 1)] += 1.0;
        }
        counts
    }

    #[test]
    fn poisson_counts_have_variance_equal_to_their_mean() {
        let profile = Profile::constant(Nanos::from_secs(1000), 100.0);
        let c = counts(Arrivals::new(Process::Poisson, profile, Rng::new(3, 0)), 10_000);
        let mean = c.iter().sum::<f64>() / c.len() as f64;
        let var = c.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / c.len() as f64;
        assert!((mean - 10.0).abs() < 0.15, "mean {mean}");
        assert!((var / mean - 1.0).abs() < 0.06, "variance over mean {}", var / mean);
    }

    #[test]
    fn constant_arrivals_are_regular_and_follow_the_profile() {
        let profile = Profile::new(&[
            Segment::constant(Nanos::from_secs(1), 50.0),
            Segment::constant(Nanos::from_secs(1), 200.0),
        ]);
        let times: Vec<Nanos> = Arrivals::new(Process::Constant, profile, Rng::new(0, 0)).collect();
        assert_eq!(times.len(), 250);
        assert!(times.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(times.iter().filter(|t| t.0 <= 1_000_000_000).count(), 50);
    }

    #[test]
    fn a_trace_keeps_its_counts_and_its_order() {
        let trace = Trace::new(vec![3, 0, 5], Nanos::SECOND, Rng::new(9, 0));
        let times: Vec<Nanos> = trace.collect();
        assert!(times.windows(2).all(|w| w[0] <= w[1]));
        let second = |t: &Nanos| t.0 / 1_000_000_000;
        assert_eq!(times.iter().map(second).filter(|s| *s == 0).count(), 3);
        assert_eq!(times.iter().map(second).filter(|s| *s == 2).count(), 5);
    }

    #[test]
    fn merging_and_batches_keep_order_and_number() {
        let batch = batches(3, Nanos::SECOND, Nanos::from_secs(2));
        let steady = Arrivals::new(
            Process::Constant,
            Profile::constant(Nanos::from_secs(3), 2.0),
            Rng::new(0, 0),
        );
        let all: Vec<Nanos> = merge(batch, steady).collect();
        assert_eq!(all.len(), 12);
        assert!(all.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(batches(3, Nanos::ZERO, Nanos::SECOND).count(), 0);
    }
}
