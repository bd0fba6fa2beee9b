// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SYNs over time (figures 4 and 5): recorded by a filter that stands around the filter.

use super::measure::{Place, Table};
use super::scenario::{Course, Scenario};
use super::setting::Setting;
use super::{arrivals, filters};
use crate::results::Row;
use crate::setting::Options;
use anyhow::{Result, anyhow, ensure};
use tidegate_sim::syn::{self, Filter, Verdict};
use tidegate_units::Nanos;

/// Bins of a course.
const BINS_MAX: f64 = 1e6;

/// One SYN.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Nanos,
    attempt: u8,
    admitted: bool,
}

/// Passes on what the filter says, and writes it down.
struct Recorder<'a, F> {
    filter: F,
    seen: &'a mut Vec<Seen>,
}

impl<F: Filter> Filter for Recorder<'_, F> {
    fn evaluate(&mut self, now: Nanos, key: u64, attempt: u8) -> Verdict {
        let verdict = self.filter.evaluate(now, key, attempt);
        self.seen.push(Seen { at: now, attempt, admitted: verdict == Verdict::Admit });
        verdict
    }
}

/// Rows of the course of each variant at each x, over all runs: `syns` and `refused` per bin
/// (x_name `time_s`), `spread`, `peak` and
/// `intensity` (SYNs over spread) of each attempt (x_name `attempt`), `refused_for` (from the first to the last refusal; x_name as the axis).
///
/// # Errors
/// What the simulator's checkers found.
pub(super) fn rows(scenario: &Scenario, extent: &Course, options: &Options) -> Result<Vec<Row>> {
    let bins = extent.until_s / extent.bin_s;
    ensure!((1.0..=BINS_MAX).contains(&bins), "course: {bins} bins");
    let mut table = Table::default();
    let runs = if options.quick { scenario.runs.quick } else { scenario.runs.full };
    for variant in &scenario.variants {
        for (index, x) in scenario.x.at.iter().enumerate() {
            let setting = scenario.setting(variant, *x)?;
            let name =
                if extent.by_x { format!("{}-{x}", variant.name) } else { variant.name.clone() };
            for run in 0..runs {
                let seen = record(&setting, options.seed, run)?;
                let mut sheet = Sheet { table: &mut table, variant: &name };
                sheet.over_time(&seen, extent);
                sheet.attempts(&seen, extent);
                let refused = || seen.iter().filter(|s| !s.admitted).map(|s| s.at);
                let first = refused().next().unwrap_or_default();
                let lasts = refused().next_back().unwrap_or_default().since(first);
                let place = Place {
                    variant: variant.name.clone(),
                    x_name: scenario.x.name.clone(),
                    x: index,
                    metric: "refused_for".into(),
                };
                table.add(place, *x, "s", lasts.as_secs_f64());
            }
        }
    }
    Ok(table.rows(&options.experiment))
}

fn record(setting: &Setting, seed: u64, run: u32) -> Result<Vec<Seen>> {
    let times = arrivals::times(setting, seed, run)?;
    let mut seen = Vec::new();
    let recorder = Recorder { filter: filters::filter(setting)?, seen: &mut seen };
    let client_seed = arrivals::client_seed(seed, run);
    syn::run(&filters::spec(setting)?, recorder, times.into_iter(), client_seed)
        .map_err(|broken| anyhow!("{broken}"))?;
    Ok(seen)
}

struct Sheet<'a> {
    table: &'a mut Table,
    variant: &'a str,
}

impl Sheet<'_> {
    fn put(&mut self, (x_name, index): (&str, usize), x: f64, metric: (&str, &'static str, f64)) {
        let place = Place {
            variant: self.variant.into(),
            x_name: x_name.into(),
            x: index,
            metric: metric.0.into(),
        };
        self.table.add(place, x, metric.1, metric.2);
    }

    fn over_time(&mut self, seen: &[Seen], extent: &Course) {
        let bins = (extent.until_s / extent.bin_s).round() as usize;
        let width = Nanos::from_secs_f64(extent.bin_s).0.max(1);
        let mut counts = vec![(0u32, 0u32); bins];
        for syn in seen {
            let bin = (syn.at.0 / width) as usize;
            if let Some((syns, refused)) = counts.get_mut(bin) {
                *syns += 1;
                *refused += u32::from(!syn.admitted);
            }
        }
        for (bin, (syns, refused)) in counts.into_iter().enumerate() {
            let x = bin as f64 * extent.bin_s;
            self.put(("time_s", bin), x, ("syns", "1/bin", f64::from(syns)));
            self.put(("time_s", bin), x, ("refused", "1/bin", f64::from(refused)));
        }
    }

    /// How far each attempt's SYNs are spread, and how many fall into the fullest bin.
    fn attempts(&mut self, seen: &[Seen], extent: &Course) {
        let width = Nanos::from_secs_f64(extent.bin_s).0.max(1);
        let last = seen.iter().map(|s| s.attempt).max().unwrap_or(0);
        for attempt in 0..=last {
            let times = || seen.iter().filter(|s| s.attempt == attempt).map(|s| s.at);
            let (Some(first), Some(end)) = (times().min(), times().max()) else { continue };
            let mut counts = std::collections::BTreeMap::new();
            for at in times() {
                *counts.entry(at.0 / width).or_insert(0u32) += 1;
            }
            let peak = counts.into_values().max().unwrap_or(0);
            let (index, x) = (usize::from(attempt), f64::from(attempt));
            let spread = end.since(first).as_secs_f64();
            self.put(("attempt", index), x, ("spread", "s", spread));
            self.put(("attempt", index), x, ("peak", "1/bin", f64::from(peak)));
            let n = times().count() as f64;
            self.put(("attempt", index), x, ("intensity", "1/s", n / spread.max(1e-9)));
        }
    }
}
