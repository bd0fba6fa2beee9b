// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario in the lab.

use super::bench::{Bench, Scales};
use super::rows::{self, Metric, Seen, Table};
use super::{onset, pairs, plan};
use crate::abacus::{FigureSpec, Variant};
use crate::dual::course::{self, Crowd, Tick};
use crate::dual::{Control, Scenario, Setting, Unit, derive, figures};
use crate::results::Row;
use crate::survival::{Outcome, Watch};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;
use tidegate_lab::{Helper, LoadReport, Product};

/// What is void is run so often.
const TRIES: u32 = 3;

/// Said with every result of them.
const AS_SHIPPED: &str = "the paper's controllers as we ship them, P and SYN policing: both raise a \
    rate that refuses while its resource is calm, where the printed ones hold it, and SYN policing \
    is on standby while request rules suffice";

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the experiment, for the rows.
    pub experiment: String,
    /// The tidegate binary.
    pub program: PathBuf,
    /// What the lab starts its own processes with.
    pub helper: Helper,
    /// Whether the quick run is enough.
    pub quick: bool,
    /// Seed of requests and arrivals.
    pub seed: u64,
}

/// One run's metrics, and its course where that is kept.
pub(super) struct Made {
    pub(super) variant: String,
    pub(super) metrics: Vec<Metric>,
    course: Vec<Tick>,
}

#[cfg(test)]
impl Made {
    /// A run without a course.
    pub(super) fn of(variant: &str, metrics: Vec<Metric>) -> Self {
        Self { variant: variant.to_owned(), metrics, course: Vec::new() }
    }
}

/// Everything that a run needs.
pub(super) struct Runner<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) bench: Bench<'a>,
    pub(super) watch: &'a mut dyn Watch,
    pub(super) notes: Vec<String>,
}

/// Runs it.
///
/// # Errors
/// When lab, server, product or load fail, or the scenario has no section `lab`.
pub fn run(scenario: &Scenario, options: &Options, watch: &mut dyn Watch) -> Result<Outcome> {
    let scenario = &scenario.of_lab();
    let section = scenario.lab.as_ref().context("the scenario has no section lab")?;
    watch.step("making the lab");
    let bench = Bench::new(section, options)?;
    let mut runner = Runner { scenario, bench, watch, notes: Vec::new() };
    let shipped = runner.shipped()?;
    if !shipped.is_empty() {
        runner.notes.push(format!("{}: {AS_SHIPPED}", shipped.join(", ")));
    }
    let mut table = Table::default();
    for round in 0..section.rounds(options.quick) {
        let own = if options.quick { &section.quick_onset } else { &section.onset };
        match own.as_ref().or(scenario.onset.as_ref()) {
            _ if !section.pairs.is_empty() => {
                pairs::round(&mut runner, &section.pairs, round, &mut table)?;
            }
            Some(search) => onset::round(&mut runner, search, round, &mut table)?,
            None => runner.round(round, &mut table)?,
        }
        let so_far = Outcome {
            rows: table.rows(&options.experiment),
            notes: runner.notes.clone(),
            ..Outcome::default()
        };
        runner.watch.kept(&so_far)?;
    }
    let mut rows = table.rows(&options.experiment);
    rows.extend(derive::of_peak(&rows, &scenario.x.name));
    let figures = figures::all(&drawable(scenario, &rows), &rows)?;
    Ok(Outcome { rows, figures, notes: runner.notes, ..Outcome::default() })
}

/// The scenario with the figures whose rows are there: not every metric of one world is one of the
/// other, and a quick run has fewer.
fn drawable(scenario: &Scenario, rows: &[Row]) -> Scenario {
    let there = |spec: &FigureSpec| {
        let x_name = spec.x_name.as_deref().unwrap_or(&scenario.x.name);
        let mut panels = spec.panels.iter();
        panels.all(|panel| rows.iter().any(|r| r.metric == panel.metric && r.x_name == x_name))
    };
    let mut scenario = scenario.clone();
    scenario.figures.retain(there);
    scenario
}

impl Runner<'_> {
    pub(super) fn quick(&self) -> bool {
        self.bench.options.quick
    }

    pub(super) fn points(&self) -> Vec<f64> {
        let section = self.bench.section;
        let own = if self.quick() { &section.quick } else { &section.at };
        if own.is_empty() { self.scenario.points(self.quick()).to_vec() } else { own.clone() }
    }

    /// The variants that have the paper's controllers, but not as published.
    fn shipped(&self) -> Result<Vec<String>> {
        let x = self.points().first().copied().unwrap_or_default();
        let mut names = Vec::new();
        for variant in self.variants(0) {
            let setting = self.scenario.setting(variant, x)?;
            if setting.control == Control::Paper && !setting.published_hold {
                names.push(variant.name.clone());
            }
        }
        Ok(names)
    }

    /// The variants that are run, each round another one first.
    pub(super) fn variants(&self, by: usize) -> Vec<&Variant> {
        let run = |v: &&Variant| self.bench.section.runs(v);
        turned(self.scenario.variants.iter().filter(run).collect(), by)
    }

    /// All points of all variants, once.
    fn round(&mut self, round: u32, table: &mut Table) -> Result<()> {
        for (index, x) in self.points().into_iter().enumerate() {
            let variants = self.variants(round as usize + index);
            let mut jobs = Vec::new();
            for variant in variants {
                jobs.push((variant.name.clone(), self.scenario.setting(variant, x)?));
            }
            let what = format!("{} {x}", self.scenario.x.name);
            let made = self.group(&what, &jobs, round)?;
            for one in made {
                for metric in one.metrics {
                    table.add(&one.variant, (&self.scenario.x.name, x), metric);
                }
                // One course is drawn: the first.
                for tick in one.course.iter().filter(|_| round == 0) {
                    for metric in course::kept(tick) {
                        table.add(&one.variant, ("time_s", tick.at_s), metric);
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs that belong together: the same loads for all of them, each between two measurements of
    /// the capacity of its own, and again while that drifts; the steadiest of them is kept.
    pub(super) fn group(
        &mut self,
        what: &str,
        jobs: &[(String, Setting)],
        round: u32,
    ) -> Result<Vec<Made>> {
        let Some((_, first)) = jobs.first() else { return Ok(Vec::new()) };
        let unit = unit_dynamic(first);
        let mut before = self.bench.capacity(first, unit, self.watch)?;
        let mut scaled = Vec::new();
        for (_, setting) in jobs {
            scaled.push(self.bench.scales(setting, self.watch)?);
        }
        let mut all = Vec::new();
        for ((variant, setting), scales) in jobs.iter().zip(scaled) {
            let what = format!("{what}, {variant}");
            let mut kept: Option<(f64, Made, f64)> = None;
            for attempt in 1..=self.bench.section.tries.max(1) {
                let made = self.one((&what, variant), setting, scales, round)?;
                let after = self.bench.measure(first, unit, self.watch)?;
                let steady = self.is_steady((&what, attempt), before, after);
                let (drift, capacity) =
                    ((after / before - 1.0).abs(), f64::midpoint(before, after));
                before = after;
                if let Some(made) = made
                    && kept.as_ref().is_none_or(|(least, ..)| drift < *least)
                {
                    kept = Some((drift, made, capacity));
                }
                if steady || self.quick() {
                    break;
                }
                // The machine has changed: what was measured of other mixes is old, too.
                self.bench.forget_but(unit);
            }
            match kept {
                Some((drift, mut made, capacity)) => {
                    made.metrics.push(("drift", "share", drift));
                    if (capacity / scales.unit - 1.0).abs() > self.bench.section.drift_max {
                        let unit = scales.unit;
                        let text =
                            format!("{unit:.1}/s in the load, {capacity:.1}/s beside the run");
                        self.notes.push(format!("{what}: C is {text}"));
                    }
                    made.metrics.push(("capacity", "1/s", capacity));
                    all.push(made);
                }
                None => self.notes.push(format!("{what}: void in all tries, left out")),
            }
        }
        Ok(all)
    }

    /// Whether the capacity stayed what it was beside a run; said where it did not.
    fn is_steady(&mut self, (what, attempt): (&str, u32), before: f64, after: f64) -> bool {
        let steady = (after / before - 1.0).abs() <= self.bench.section.drift_max;
        if !steady {
            let text = format!("the capacity went from {before:.1} to {after:.1}/s");
            self.notes.push(format!("{what}, try {attempt}: {text}"));
        }
        steady
    }

    /// One run on a fresh server, repeated while it is void by itself; nothing if it stays so.
    fn one(
        &mut self,
        (what, variant): (&str, &str),
        setting: &Setting,
        scales: Scales,
        round: u32,
    ) -> Result<Option<Made>> {
        for attempt in 1..=TRIES {
            self.watch.step(what);
            let (report, seen) = self.load(setting, &scales, round)?;
            let span = self.bench.section.span(setting, self.quick());
            if !report.void.is_empty() {
                let why = report.void.join("; ");
                self.notes.push(format!("{what}, try {attempt}: void, {why}"));
                if !self.quick() {
                    continue;
                }
            }
            let mut made = self.made(variant, &report, &seen, span);
            made.metrics.extend(self.read_off(setting, &scales, &made.course));
            return Ok(Some(made));
        }
        Ok(None)
    }

    fn made(&self, variant: &str, report: &LoadReport, seen: &Watched, span: (f64, f64)) -> Made {
        let answer = self.bench.section.answer;
        let syn_refused = seen.syn_refused;
        let mut metrics = rows::metrics(&Seen { report, span, syn_refused, answer });
        let inside: Vec<&Moment> =
            seen.moments.iter().filter(|m| m.tick.at_s > span.0 && m.tick.at_s <= span.1).collect();
        let mean = |value: fn(&Moment) -> Option<f64>| {
            let values: Vec<f64> = inside.iter().filter_map(|moment| value(moment)).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        metrics.extend(mean(|m| Some(m.tick.cpu)).map(|cpu| ("cpu", "share", cpu)));
        metrics.extend(mean(|m| m.interface).map(|queue| ("interface_queue", "packets", queue)));
        metrics.extend(seen.dropped.map(|share| ("packets_dropped", "share", share)));
        let mut course = Vec::new();
        if self.scenario.course {
            let mut said: Vec<Tick> = seen.moments.iter().map(|moment| moment.tick).collect();
            if said.is_empty() {
                // Nobody says anything: what the clients got is a course, too.
                said = (1..=span.1 as u32)
                    .map(|s| Tick { at_s: s.into(), ..Tick::default() })
                    .collect();
            }
            course = rows::course(report, &said);
        }
        Made { variant: variant.to_owned(), metrics, course }
    }

    /// What is read off the course of a crowd that comes and goes.
    fn read_off(&self, setting: &Setting, scales: &Scales, course: &[Tick]) -> Vec<Metric> {
        let shorter = self.bench.section.shorter(self.quick());
        let pieces: Vec<(f64, f64)> =
            setting.steps.iter().map(|(s, load)| (s * shorter, load * scales.unit)).collect();
        let crowd = Crowd::of(&pieces).filter(|_| !course.is_empty());
        crowd.map(|crowd| course::derived(course, &crowd)).unwrap_or_default()
    }

    fn load(
        &mut self,
        setting: &Setting,
        scales: &Scales,
        round: u32,
    ) -> Result<(LoadReport, Watched)> {
        let arm = self.bench.arm(setting, scales)?;
        let seed = self.bench.options.seed.wrapping_add(u64::from(round));
        let plan = plan::of(
            self.bench.section,
            self.quick(),
            &plan::Wanted { setting, scales, server: &arm.server, seed },
        );
        let warm = self.bench.section.span(setting, self.quick()).0;
        let mut watched = Watched::default();
        let watch = &mut *self.watch;
        let report = self.bench.lab.run_load(&plan, &mut |progress| {
            watch.second(progress);
            if let Some(product) = &arm.product {
                watched.look(product, progress.second as f64 + 1.0, warm);
            }
        })?;
        if let Some(product) = &arm.product {
            watched.end(product)?;
        }
        if let Some(shaped) = &arm.shaped {
            watched.dropped = Some(shaped.dropped_share()?);
        }
        arm.end()?;
        Ok((report, watched))
    }
}

/// The dynamic share of the requests by which a load of 1 is defined.
pub(super) fn unit_dynamic(setting: &Setting) -> f64 {
    match setting.unit {
        Unit::Mix => setting.dynamic,
        Unit::Static => 0.0,
    }
}

pub(super) fn turned<T>(mut all: Vec<T>, by: usize) -> Vec<T> {
    let by = by % all.len().max(1);
    all.rotate_left(by);
    all
}

/// What tidegate said at one moment.
struct Moment {
    tick: Tick,
    interface: Option<f64>,
}

/// What tidegate said of itself during a run.
#[derive(Default)]
pub(super) struct Watched {
    moments: Vec<Moment>,
    refused_before: Option<u64>,
    pub(super) syn_refused: Option<u64>,
    /// Share of the packets that the narrow interface dropped.
    dropped: Option<f64>,
}

impl Watched {
    /// Looks at it; a snapshot that does not come is one value less.
    fn look(&mut self, product: &Product, at: f64, warm: f64) {
        let Ok(snapshot) = product.status() else { return };
        self.note(&snapshot, at, warm);
    }

    fn note(&mut self, snapshot: &Value, at: f64, warm: f64) {
        let interface = rows::interface_queue(snapshot);
        self.moments.push(Moment { tick: rows::tick(snapshot, at), interface });
        if at <= warm + 1e-6 {
            self.refused_before = Some(rows::syn_refused(snapshot));
        }
    }

    fn end(&mut self, product: &Product) -> Result<()> {
        let all = rows::syn_refused(&product.status().context("tidegate's counts")?);
        self.syn_refused = Some(all.saturating_sub(self.refused_before.unwrap_or(0)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What was refused before the measured part does not count.
    #[test]
    fn refusals_count_from_the_measured_part_on() {
        let snapshot = |count: u64| {
            let row = json!({"verdict": "drop", "shadow": false, "count": count});
            json!({"services": [{"counts": [row]}]})
        };
        let mut watched = Watched::default();
        for (at, count) in [(1.0, 5), (2.0, 7), (3.0, 20)] {
            watched.note(&snapshot(count), at, 2.0);
        }
        assert_eq!((watched.refused_before, watched.moments.len()), (Some(7), 3));
    }

    #[test]
    fn each_round_begins_with_another_variant() {
        let names = |by| turned(vec!['a', 'b', 'c'], by).into_iter().collect::<String>();
        assert_eq!([names(0), names(1), names(2), names(3)], ["abc", "bca", "cab", "abc"]);
        assert!(turned(Vec::<u8>::new(), 1).is_empty());
    }
}
