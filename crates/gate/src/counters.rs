// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters that all threads write: histograms of times, and verdicts by class and reason.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_model::CLASSES_MAX;
use tidegate_model::totals::{HISTOGRAM_BUCKETS, Histogram};
use tidegate_policy::{Execution, Reason};
use tidegate_units::Nanos;

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A histogram in the shape of [`Histogram`].
#[derive(Debug)]
pub(crate) struct Times {
    count: Counter,
    sum_ns: Counter,
    buckets: Box<[Counter]>,
}

impl Default for Times {
    fn default() -> Self {
        let buckets = (0..HISTOGRAM_BUCKETS).map(|_| Counter::default()).collect();
        Self { count: Counter::default(), sum_ns: Counter::default(), buckets }
    }
}

impl Times {
    pub(crate) fn record(&self, time: Nanos) {
        self.buckets[Histogram::bucket(time)].one();
        self.sum_ns.add(time.0);
        self.count.one();
    }

    /// Their sum.
    pub(crate) fn sum(&self) -> Nanos {
        Nanos(self.sum_ns.get())
    }

    /// Read while others write: a time that is recorded meanwhile may be in a part of it only.
    pub(crate) fn read(&self) -> Histogram {
        Histogram {
            count: self.count.get(),
            sum_ns: self.sum_ns.get(),
            buckets: self.buckets.iter().map(Counter::get).collect(),
        }
    }
}

/// Numbers of reasons are below this.
pub(crate) const REASONS: usize = {
    let (mut at, mut most) = (0, 0);
    while at < Reason::ALL.len() {
        let number = Reason::ALL[at] as usize;
        most = if number > most { number } else { most };
        at += 1;
    }
    most + 1
};
/// What becomes of a verdict: see [`Execution`].
const EXECUTIONS: [Execution; 3] = [Execution::Executed, Execution::Shadowed, Execution::Spared];

/// How often each class got each reason, and whether it was executed.
#[derive(Debug)]
pub(crate) struct Tally(Box<[Counter]>);

impl Default for Tally {
    fn default() -> Self {
        let cells = CLASSES_MAX * EXECUTIONS.len() * REASONS;
        Self((0..cells).map(|_| Counter::default()).collect())
    }
}

const fn execution_number(execution: Execution) -> usize {
    match execution {
        Execution::Executed => 0,
        Execution::Shadowed => 1,
        Execution::Spared => 2,
    }
}

impl Tally {
    pub(crate) fn count(&self, class: usize, execution: Execution, reason: Reason) {
        self.add(class, execution, reason, 1);
    }

    pub(crate) fn add(&self, class: usize, execution: Execution, reason: Reason, count: u64) {
        let row = class.min(CLASSES_MAX - 1) * EXECUTIONS.len() + execution_number(execution);
        if let Some(cell) = self.0.get(row * REASONS + reason as usize) {
            cell.add(count);
        }
    }

    /// All that are not zero.
    pub(crate) fn read(&self) -> impl Iterator<Item = (usize, Execution, Reason, u64)> {
        let cells = self.0.iter().enumerate().map(|(at, cell)| (at, cell.get()));
        cells.filter(|(_, count)| *count > 0).filter_map(|(at, count)| {
            let (row, reason) = (at / REASONS, u8::try_from(at % REASONS).ok()?);
            let execution = EXECUTIONS[row % EXECUTIONS.len()];
            Some((row / EXECUTIONS.len(), execution, Reason::from_number(reason)?, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_read_under_its_own_names() {
        let tally = Tally::default();
        assert!(Reason::ALL.iter().all(|reason| (*reason as usize) < REASONS));
        tally.count(0, Execution::Executed, Reason::Token);
        tally.count(CLASSES_MAX - 1, Execution::Spared, Reason::AmbiguousPath);
        tally.count(1, Execution::Shadowed, Reason::Rate);
        tally.count(1, Execution::Shadowed, Reason::Rate);
        assert_eq!(
            tally.read().collect::<Vec<_>>(),
            [
                (0, Execution::Executed, Reason::Token, 1),
                (1, Execution::Shadowed, Reason::Rate, 2),
                (CLASSES_MAX - 1, Execution::Spared, Reason::AmbiguousPath, 1),
            ]
        );
    }

    #[test]
    fn times_have_the_shape_of_the_dataplane() {
        let (times, mut expected) = (Times::default(), Histogram::default());
        for ms in [0, 1, 10, 10, 5_000] {
            times.record(Nanos::from_millis(ms));
            expected.record(Nanos::from_millis(ms));
        }
        assert_eq!(times.read(), expected);
    }
}
