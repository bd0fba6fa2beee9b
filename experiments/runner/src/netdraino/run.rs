// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario in virtual time: every point and variant, on common random numbers.

use super::measure::{self, Metric};
use super::scenario::Scenario;
use super::setting::Setting;
use crate::abacus::draw;
use crate::abacus::measure::{Place, Table};
use crate::setting::Options;
use crate::survival::{Outcome, Watch};
use anyhow::{Context, Result, anyhow};
use tidegate_sim::netdraino;
use tidegate_sim::syn::parallel;

/// Seeds of one experiment's runs are this far apart.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

struct Job {
    variant: usize,
    setting: Setting,
    run: u32,
}

struct Ran {
    metrics: Vec<Metric>,
    course: Vec<(f64, Vec<Metric>)>,
}

impl Ran {
    fn value(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.0 == name).map(|metric| metric.2)
    }
}

/// Runs it.
///
/// # Errors
/// For what the simulator's checkers found.
pub fn run(scenario: &Scenario, options: &Options, watch: &mut dyn Watch) -> Result<Outcome> {
    let points = scenario.x.points(options.quick);
    let mut table = Table::default();
    for (index, x) in points.iter().enumerate() {
        let jobs = jobs(scenario, *x, options.quick)?;
        watch.step(&format!("{} {x}: {} runs", scenario.x.name, jobs.len()));
        let job = |job: &Job| one(scenario, options, (job, index));
        let ran = parallel::map(&jobs, options.threads, job, |_| ())?;
        let mut ran =
            ran.into_iter().collect::<Result<Vec<_>>>().with_context(|| format!("at {x}"))?;
        gains(scenario, &jobs, &mut ran);
        for (job, ran) in jobs.iter().zip(&ran) {
            add(&mut table, scenario, (index, *x), (job, ran));
        }
    }
    let rows = table.rows(&options.experiment);
    let names: Vec<&str> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
    let figures = draw(&scenario.figures, (&scenario.x.name, &names), &rows)?;
    let notes =
        vec!["load: synthetic (Pareto on/off TCP and constant-rate UDP of the paper)".into()];
    Ok(Outcome { rows, figures, notes, ..Outcome::default() })
}

fn jobs(scenario: &Scenario, x: f64, quick: bool) -> Result<Vec<Job>> {
    let runs = if quick { scenario.quick_runs } else { scenario.runs };
    let mut jobs = Vec::new();
    for (variant, of) in scenario.variants.iter().enumerate() {
        let setting = scenario.setting(&of.set, x, quick)?;
        jobs.extend((0..runs).map(|run| Job { variant, setting: setting.clone(), run }));
    }
    Ok(jobs)
}

fn one(scenario: &Scenario, options: &Options, (job, index): (&Job, usize)) -> Result<Ran> {
    let seed = options.seed.wrapping_add(SEED_STEP.wrapping_mul(u64::from(job.run)));
    let out = netdraino::run(&job.setting.spec(seed)).map_err(|broken| anyhow!("{broken}"))?;
    let wants_course = scenario.course && job.run == 0 && index == 0;
    let course = if wants_course { measure::course(&out) } else { Vec::new() };
    Ok(Ran { metrics: measure::of(&job.setting, &out), course })
}

/// The gain of throughput over another variant in the same run.
fn gains(scenario: &Scenario, jobs: &[Job], ran: &mut [Ran]) {
    let mut gained = Vec::new();
    for (place, job) in jobs.iter().enumerate() {
        let name = &scenario.variants[job.variant].name;
        let Some(over) = scenario.gains.get(name).and_then(|over| scenario.place(over)) else {
            continue;
        };
        let base = jobs.iter().position(|base| base.variant == over && base.run == job.run);
        let throughput = |place: usize| ran[place].value("throughput");
        if let (Some(own), Some(base)) = (throughput(place), base.and_then(throughput)) {
            gained.push((place, own / base - 1.0));
        }
    }
    for (place, gain) in gained {
        ran[place].metrics.push(("gain", "share", gain));
    }
}

fn add(table: &mut Table, scenario: &Scenario, (index, x): (usize, f64), (job, ran): (&Job, &Ran)) {
    let variant = &scenario.variants[job.variant].name;
    let place = |(x_name, x): (&str, usize), metric: &str| Place {
        variant: variant.clone(),
        x_name: x_name.into(),
        x,
        metric: metric.into(),
    };
    for (metric, unit, value) in &ran.metrics {
        table.add(place((&scenario.x.name, index), metric), x, unit, *value);
    }
    for (at, (time_s, metrics)) in ran.course.iter().enumerate() {
        for (metric, unit, value) in metrics {
            table.add(place(("time_s", at), metric), *time_s, unit, *value);
        }
    }
}
