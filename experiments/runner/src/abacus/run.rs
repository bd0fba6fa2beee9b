// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario: every point, every run, every variant, on common random numbers.

use super::scenario::Scenario;
use super::setting::{FilterKind, Setting};
use super::{arrivals, course, figures, filters, measure};
use crate::setting::Options;
use crate::survival::{Outcome, Watch};
use anyhow::{Context, Result, anyhow};
use measure::{METRICS, Measured, Place, Table};
use tidegate_sim::syn::{self, parallel};
use tidegate_units::Nanos;

/// Width of the bins of the bound: tight to some thousandths (sim::syn::bound).
const BIN: Nanos = Nanos::from_millis(100);

/// Runs it.
///
/// # Errors
/// For a scenario that cannot be, and for what the simulator's checkers found.
pub fn run(scenario: &Scenario, options: &Options, watch: &mut dyn Watch) -> Result<Outcome> {
    scenario.check()?;
    let runs = if options.quick { scenario.runs.quick } else { scenario.runs.full };
    let mut table = Table::default();
    let numbers: Vec<u32> = (0..runs).collect();
    for (x, at) in scenario.x.at.iter().enumerate() {
        let name = &scenario.x.name;
        watch.step(&format!("{name} {at}: {runs} runs of {} variants", scenario.variants.len()));
        let settings = settings(scenario, *at)?;
        let one = |run: &u32| point(&settings, options.seed, *run);
        let results = parallel::map(&numbers, options.threads, one, |_| ())?;
        for result in results {
            for (variant, measured) in scenario.variants.iter().zip(result?) {
                keep(&mut table, (&variant.name, name), (x, *at), measured);
            }
        }
    }
    for derive in &scenario.derive {
        derive.apply(scenario, &mut table);
    }
    let mut rows = table.rows(&options.experiment);
    if let Some(extent) = &scenario.course {
        rows.extend(course::rows(scenario, extent, options)?);
    }
    let figures = figures::all(scenario, &rows)?;
    Ok(Outcome { rows, figures, ..Outcome::default() })
}

fn settings(scenario: &Scenario, x: f64) -> Result<Vec<Setting>> {
    scenario.variants.iter().map(|variant| scenario.setting(variant, x)).collect()
}

fn keep(table: &mut Table, names: (&str, &str), (x, at): (usize, f64), measured: Measured) {
    for ((metric, unit), value) in METRICS.iter().zip(measured) {
        let Some(value) = value else { continue };
        let place =
            Place { variant: names.0.into(), x_name: names.1.into(), x, metric: (*metric).into() };
        table.add(place, at, unit, value);
    }
}

/// All variants of one run at one point.
fn point(settings: &[Setting], seed: u64, run: u32) -> Result<Vec<Measured>> {
    let mut known: Option<(&Setting, Vec<Nanos>)> = None;
    let mut all = Vec::with_capacity(settings.len());
    for setting in settings {
        let times = match known.take() {
            Some((of, times)) if arrivals::same(of, setting) => times,
            _ => arrivals::times(setting, seed, run)?,
        };
        all.push(one(setting, &times, arrivals::client_seed(seed, run))?);
        known = Some((setting, times));
    }
    Ok(all)
}

fn one(setting: &Setting, times: &[Nanos], seed: u64) -> Result<Measured> {
    let spec = filters::spec(setting)?;
    if setting.filter == FilterKind::Optimum {
        let bound = syn::bound(&spec, times.iter().copied(), seed, BIN)
            .map_err(|broken| anyhow!("bound: {broken}"))?;
        return Ok(measure::of_bound(&bound));
    }
    let filter = filters::filter(setting)?;
    let outcome = syn::run(&spec, filter, times.iter().copied(), seed)
        .map_err(|broken| anyhow!("{broken}"))
        .with_context(|| format!("{:?}", setting.filter))?;
    Ok(measure::of(&outcome))
}
