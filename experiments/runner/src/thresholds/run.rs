// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario in virtual time: every point and variant, on common random numbers.

use super::scenario::Scenario;
use super::setting::Setting;
use crate::abacus::measure::{Place, Table};
use crate::abacus::{Variant, draw};
use crate::setting::Options;
use crate::survival::{Outcome, Watch};
use anyhow::{Context, Result, anyhow};
use tidegate_sim::syn::parallel;
use tidegate_sim::thresholds::{self, ClientReport, RemoteReport, Report};
use tidegate_units::Nanos;

/// Seeds of one experiment's runs are this far apart.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Name, unit, value.
type Metric = (String, &'static str, f64);

/// What one run gives: metrics of its point, and shares served within a time.
type Measured = (Vec<Metric>, Vec<(usize, Metric)>);

/// Runs it.
///
/// # Errors
/// For what the simulator's checkers found.
pub fn run(scenario: &Scenario, options: &Options, watch: &mut dyn Watch) -> Result<Outcome> {
    let runs = if options.quick { scenario.quick_runs } else { scenario.runs };
    let mut table = Table::default();
    let within = scenario.within.map(|course| course.points()).unwrap_or_default();
    for (index, x) in scenario.points(options.quick).iter().enumerate() {
        let (name, variants) = (&scenario.x.name, scenario.variants.len());
        watch.step(&format!("{name} {x}: {runs} runs of {variants} variants"));
        let jobs = jobs(scenario, (*x, runs), options.quick)?;
        let job = |(_, setting, run): &Job<'_>| one(setting, options.seed, *run, &within);
        let results = parallel::map(&jobs, options.threads, job, |_| ())?;
        for ((variant, ..), result) in jobs.iter().zip(results) {
            let (point, course) = result.with_context(|| format!("{} at {x}", variant.name))?;
            let place = |x_name: &str, x, metric| Place {
                variant: variant.name.clone(),
                x_name: x_name.into(),
                x,
                metric,
            };
            for (metric, unit, value) in point {
                table.add(place(name, index, metric), *x, unit, value);
            }
            for (at, (metric, unit, value)) in course {
                table.add(place("within_s", at, metric), within[at], unit, value);
            }
        }
    }
    let rows = table.rows(&options.experiment);
    let variants: Vec<&str> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
    let figures = draw(&scenario.figures, (&scenario.x.name, &variants), &rows)?;
    Ok(Outcome { rows, figures, ..Outcome::default() })
}

type Job<'a> = (&'a Variant, Setting, u32);

fn jobs(scenario: &Scenario, (x, runs): (f64, u32), quick: bool) -> Result<Vec<Job<'_>>> {
    let mut jobs = Vec::new();
    for variant in &scenario.variants {
        let mut setting = scenario.setting(variant, x)?;
        if quick {
            setting.seconds = setting.seconds.min(scenario.quick_seconds);
        }
        jobs.extend((0..runs).map(|run| (variant, setting.clone(), run)));
    }
    Ok(jobs)
}

/// One run of one setting. Runs with the same number have the same arrivals, as far as nobody is
/// throttled by a gap of its own.
fn one(setting: &Setting, seed: u64, run: u32, within: &[f64]) -> Result<Measured> {
    let spec = setting.spec(seed.wrapping_add(SEED_STEP.wrapping_mul(u64::from(run))))?;
    let report = thresholds::run(&spec).map_err(|broken| anyhow!("{broken}"))?;
    let (uncontrolled, controlled) = report.clients.split_at(1);
    let mut metrics = whole(setting, &report);
    metrics.extend(of_class("uncontrolled", uncontrolled, report.seconds));
    metrics.extend(of_class("controlled", controlled, report.seconds));
    if setting.priorities {
        let (high, low) = controlled.split_at(controlled.len().div_ceil(2));
        metrics.extend(of_class("high", high, report.seconds));
        metrics.extend(of_class("low", low, report.seconds));
    }
    metrics.extend(report.remote.iter().flat_map(|remote| of_remote(remote, report.seconds)));
    let mut course = Vec::new();
    for (class, clients) in [("uncontrolled", uncontrolled), ("controlled", controlled)] {
        let times = times(clients);
        for (index, at) in within.iter().enumerate() {
            let count = times.iter().filter(|s| *s <= at).count();
            let share = count as f64 / times.len().max(1) as f64;
            course.push((index, (format!("within_{class}"), "share", share)));
        }
    }
    Ok((metrics, course))
}

fn whole(setting: &Setting, report: &Report) -> Vec<Metric> {
    let per_second = |count: u64| count as f64 / report.seconds;
    let sum = |count: fn(&ClientReport) -> u64| per_second(report.clients.iter().map(count).sum());
    let cpu = report.cpu_s / report.seconds;
    let throughput = per_second(report.served());
    let busy = per_second(report.busy());
    let of_both = throughput / setting.capacity + busy * setting.busy_ms / 1e3;
    let all = times(&report.clients);
    [
        ("offered", "1/s", sum(|c| c.offered)),
        ("throughput", "1/s", throughput),
        ("of_capacity", "ratio", throughput / setting.capacity),
        ("response_time", "s", mean(&all)),
        ("response_p50", "s", quantile(all.clone(), 0.5)),
        ("response_p99", "s", quantile(all, 0.99)),
        ("busy", "1/s", busy),
        ("busy_cpu", "share", busy * setting.busy_ms / 1e3),
        ("node_busy", "1/s", sum(|c| c.refused)),
        ("syns_dropped", "1/s", sum(|c| c.dropped)),
        ("gave_up", "1/s", sum(|c| c.gave_up)),
        ("cpu", "share", cpu),
        ("unexplained_cpu", "share", (cpu - of_both).abs()),
        ("queue", "requests", report.queue_mean),
        ("throttled", "share", report.throttled),
        ("onsets", "1/min", per_second(report.onsets) * 60.0),
        ("messages", "1/s", per_second(report.messages)),
    ]
    .map(|(name, unit, value)| (name.to_owned(), unit, value))
    .into()
}

/// Of remote limits; times of an opening only where there was one.
fn of_remote(remote: &RemoteReport, seconds: f64) -> Vec<Metric> {
    let seconds_of = |name: &str, time: Option<Nanos>| {
        time.map(|time| (name.to_owned(), "s", time.as_secs_f64()))
    };
    let mut all = vec![
        ("limit".to_owned(), "1/s", remote.limit_mean),
        ("limit_cv".to_owned(), "ratio", remote.limit_variation),
        ("limited".to_owned(), "share", remote.limited as f64 / remote.ticks.max(1) as f64),
        ("forged".to_owned(), "messages", remote.forged as f64),
        ("forged_rate".to_owned(), "1/s", remote.forged as f64 / seconds),
        ("forged_taken".to_owned(), "messages", remote.forged_taken as f64),
    ];
    if remote.least_rate.is_finite() {
        all.push(("least_rate".to_owned(), "1/s", remote.least_rate));
    }
    all.extend(seconds_of("first_step", remote.first_step));
    all.extend(seconds_of("open", remote.open));
    all
}

fn of_class(class: &str, clients: &[ClientReport], seconds: f64) -> Vec<Metric> {
    let all = times(clients);
    let offered: u64 = clients.iter().map(|c| c.offered).sum();
    vec![
        (format!("throughput_{class}"), "1/s", all.len() as f64 / seconds),
        (format!("offered_{class}"), "1/s", offered as f64 / seconds),
        (format!("response_time_{class}"), "s", mean(&all)),
    ]
}

fn times(clients: &[ClientReport]) -> Vec<f64> {
    clients.iter().flat_map(|client| client.response_s.iter().copied()).collect()
}

/// Zero of nothing.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The smallest value that a share of all does not exceed; zero of nothing.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil().max(1.0) as usize;
    values.get(rank - 1).copied().unwrap_or(0.0)
}
