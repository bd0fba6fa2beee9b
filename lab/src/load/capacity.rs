// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Capacity: the most good answers per second that a server sustains, by a saturated closed loop.
//!
//! The number of clients doubles until the throughput of good answers no longer rises; then the
//! best number runs for some windows, and their median is the capacity.

use super::plan::{Arrive, LoadPlan, Stream};
use super::report::LoadReport;
use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use tidegate_units::{Nanos, Rate};

/// How a capacity is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CapacityOptions {
    /// Clients of the first probe (default 4: one client leaves the server idle between an answer and
    /// its next request, and whoever is limited to that number looks worse than it is).
    pub clients_from: u32,
    /// Clients of the last probe at most (default 1,024).
    pub clients_max: u32,
    /// Length of a probe; its first third is not counted (default 1.5 s).
    pub probe: Nanos,
    /// A probe is better when it answers this many times more than the best (default 1.02).
    pub gain: f64,
    /// Probes without gain after which the search ends (default 2).
    pub patience: u32,
    /// Length of the windows of the final run (default 1 s).
    pub window: Nanos,
    /// Number of windows (default 10).
    pub windows: u32,
    /// Time before the first window (default 1 s).
    pub warm_up: Nanos,
    /// Each answer counts only within this time (default 1 s).
    pub objective: Nanos,
}

impl Default for CapacityOptions {
    fn default() -> Self {
        Self {
            clients_from: 4,
            clients_max: 1_024,
            probe: Nanos::from_millis(1_500),
            gain: 1.02,
            patience: 2,
            window: Nanos::SECOND,
            windows: 10,
            warm_up: Nanos::SECOND,
            objective: Nanos::SECOND,
        }
    }
}

impl CapacityOptions {
    /// With the clients that were found before; 0 looks for them.
    #[must_use]
    pub const fn with_clients(self, clients: u32) -> Self {
        match clients {
            0 => self,
            known => Self { clients_from: known, clients_max: known, patience: 1, ..self },
        }
    }
}

/// One step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Clients.
    pub clients: u32,
    /// Good answers per second.
    pub rate: f64,
}

/// A measured capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// Median of the windows, in good answers per second.
    pub rate: Rate,
    /// Clients of the saturated run.
    pub clients: u32,
    /// Good answers per second of each window, in order of time.
    pub windows: Vec<f64>,
    /// The search.
    pub probes: Vec<Probe>,
}

impl Capacity {
    /// Largest distance of a window from the median, as a share of it.
    #[must_use]
    pub fn spread(&self) -> f64 {
        let median = self.rate.get().max(f64::MIN_POSITIVE);
        self.windows.iter().map(|w| (w / median - 1.0).abs()).fold(0.0, f64::max)
    }

    /// How far another measurement lies from this one, as a share of this one.
    #[must_use]
    pub fn drift(&self, later: &Self) -> f64 {
        (later.rate.get() / self.rate.get().max(f64::MIN_POSITIVE) - 1.0).abs()
    }
}

/// Measures a capacity; `stream` says what is asked of whom, `run` runs a load.
pub(crate) fn measure(
    stream: &Stream,
    options: &CapacityOptions,
    mut run: impl FnMut(&LoadPlan) -> Result<LoadReport>,
) -> Result<Capacity> {
    let mut probes: Vec<Probe> = Vec::new();
    let (mut clients, mut best, mut idle) =
        (options.clients_from.max(1), Probe { clients: 1, rate: 0.0 }, 0);
    // Doubles each time: at most 32 rounds.
    while clients <= options.clients_max && idle < options.patience.max(1) {
        let plan = closed(stream, options, clients, options.probe);
        let skipped = Nanos(options.probe.0 / 3);
        let rate = good_rate(&run(&plan)?, skipped, options.probe)?;
        probes.push(Probe { clients, rate });
        let better = rate > best.rate * options.gain;
        idle = if better { 0 } else { idle + 1 };
        if better {
            best = Probe { clients, rate };
        }
        clients = clients.saturating_mul(2);
    }
    if best.rate <= 0.0 {
        return Err(LabError::Load("the server gave no good answer: no capacity".into()));
    }
    let windows = windows(stream, options, best.clients, &mut run)?;
    let mut sorted = windows.clone();
    sorted.sort_by(f64::total_cmp);
    let rate = Rate::per_second(median(&sorted));
    Ok(Capacity { rate, clients: best.clients, windows, probes })
}

fn windows(
    stream: &Stream,
    options: &CapacityOptions,
    clients: u32,
    run: &mut impl FnMut(&LoadPlan) -> Result<LoadReport>,
) -> Result<Vec<f64>> {
    let length = options.warm_up + Nanos(options.window.0.saturating_mul(options.windows.into()));
    let report = run(&closed(stream, options, clients, length))?;
    let window = |i: u32| {
        let from = options.warm_up + Nanos(options.window.0 * u64::from(i));
        good_rate(&report, from, from + options.window)
    };
    (0..options.windows.max(1)).map(window).collect()
}

/// The plan of a closed loop; its slots are a tenth of a window.
fn closed(stream: &Stream, options: &CapacityOptions, clients: u32, length: Nanos) -> LoadPlan {
    let stream = Stream { arrive: Arrive::Closed { clients }, ..stream.clone() };
    LoadPlan {
        streams: vec![stream],
        slot: Nanos((options.window.0 / 10).max(1_000_000)),
        objective: options.objective,
        closed_until: length,
        ..LoadPlan::default()
    }
}

/// Good answers per second among those that ended from `from` to `to` (to whole slots).
fn good_rate(report: &LoadReport, from: Nanos, to: Nanos) -> Result<f64> {
    if let Some(error) = report.void.iter().find(|v| !v.contains("late")) {
        return Err(LabError::Load(format!("capacity: {error}")));
    }
    let (from, to) = (from.as_secs_f64() - 1e-6, to.as_secs_f64() - 1e-6);
    let slots = report.streams.iter().flat_map(|s| &s.slots);
    let good = slots.filter(|s| s.start >= from && s.start < to).map(|s| s.ended.counts.good);
    Ok(good.sum::<u64>() as f64 / (to - from))
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_follow_an_outlier() {
        assert!((median(&[1.0, 2.0, 90.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[1.0, 2.0, 4.0, 90.0]) - 3.0).abs() < 1e-9);
        let capacity = |rate: f64| Capacity {
            rate: Rate::per_second(rate),
            clients: 1,
            windows: vec![95.0, 100.0, 104.0],
            probes: Vec::new(),
        };
        assert!((capacity(100.0).spread() - 0.05).abs() < 1e-9);
        assert!((capacity(100.0).drift(&capacity(97.0)) - 0.03).abs() < 1e-9);
    }
}
