// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU signal as `tidegate-sense` makes it: a mean over a sliding window of counters that move
//! in steps, and what others use counts as far as the service waited for it.

use std::collections::VecDeque;
use tidegate_units::{Nanos, Share};

/// Span that a reading is the mean of, as in the product.
const WINDOW: Nanos = Nanos::from_millis(500);
/// No reading over less than this, as in the product.
const WINDOW_MIN: Nanos = Nanos::from_millis(250);
/// A hole in the samples longer than this begins the window anew, as in the product.
const GAP_MAX: Nanos = Nanos::from_millis(1500);
/// Step in which /proc/stat counts.
const STEP_S: f64 = 0.01;

/// Where the CPU's share comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounting {
    /// The service has a control group of its own: its usage is exact, the machine's comes in steps.
    #[default]
    Group,
    /// Only /proc/stat: whoever uses the machine.
    Machine,
    /// Nothing can be read.
    Absent,
}

/// Counters of one moment, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at: Nanos,
    /// CPU time of the service.
    pub(super) own_s: f64,
    /// CPU time of packets.
    pub(super) irq_s: f64,
    /// CPU time of all, packets included.
    pub(super) all_s: f64,
}

/// The window of one service.
#[derive(Debug, Default)]
pub(super) struct Window {
    accounting: Accounting,
    samples: VecDeque<Sample>,
}

impl Window {
    pub(super) fn new(accounting: Accounting) -> Self {
        Self { accounting, samples: VecDeque::new() }
    }

    /// Takes a sample in and gives the share of `cores` that is used; `pressure` is the share of time
    /// in which the service waited for a CPU since the sample before.
    pub(super) fn tick(&mut self, sample: Sample, cores: f64, pressure: Share) -> Option<Share> {
        if self.samples.back().is_some_and(|last| sample.at.since(last.at) > GAP_MAX) {
            self.samples.clear();
        }
        self.samples.push_back(sample);
        while self.samples.get(1).is_some_and(|second| sample.at.since(second.at) >= WINDOW) {
            self.samples.pop_front();
        }
        let first = *self.samples.front()?;
        let span = sample.at.since(first.at);
        if span < WINDOW_MIN || self.accounting == Accounting::Absent {
            return None;
        }
        let allowed = span.as_secs_f64() * cores;
        let steps = |s: f64| libm::floor(s / STEP_S) * STEP_S;
        let busy = (steps(sample.all_s) - steps(first.all_s)) / allowed;
        let irq = steps(sample.irq_s) - steps(first.irq_s);
        let own = (sample.own_s - first.own_s + irq) / allowed;
        Some(Share::new(match self.accounting {
            Accounting::Group => own.max(busy.min(own + pressure.get())),
            _ => busy,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(accounting: Accounting, (own, all): (f64, f64), pressure: f64) -> Vec<Option<f64>> {
        let mut window = Window::new(accounting);
        let sample = |k: u64| Sample {
            at: Nanos::from_millis(100 * k),
            own_s: 0.1 * own * k as f64,
            irq_s: 0.0,
            all_s: 0.1 * all * k as f64,
        };
        (0..12).map(|k| window.tick(sample(k), 1.0, Share::new(pressure)).map(Share::get)).collect()
    }

    /// A neighbour counts only as far as the service waited for it, and the first readings come
    /// when the window is long enough.
    #[test]
    fn a_neighbour_counts_as_far_as_the_service_waited() {
        let last = |readings: Vec<Option<f64>>| readings[11].unwrap();
        assert!((last(fed(Accounting::Group, (0.3, 1.0), 0.0)) - 0.3).abs() < 1e-9);
        assert!((last(fed(Accounting::Group, (0.3, 1.0), 0.5)) - 0.8).abs() < 1e-9);
        assert!((last(fed(Accounting::Machine, (0.3, 1.0), 0.0)) - 1.0).abs() < 0.03);
        let readings = fed(Accounting::Group, (0.3, 0.3), 0.0);
        assert!(readings[2].is_none() && readings[3].is_some());
        assert!(fed(Accounting::Absent, (0.3, 0.3), 0.0).iter().all(Option::is_none));
    }
}
