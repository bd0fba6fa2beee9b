// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario in virtual time: every point and variant, on common random numbers.

use super::measure::{self, Metric};
use super::scenario::Scenario;
use super::setting::{Control, Setting};
use super::traces::{Data, Source, Trace};
use crate::abacus::draw;
use crate::abacus::measure::{Place, Table};
use crate::abacus::stats::poisson_95;
use crate::setting::{Changes, Options};
use crate::survival::{Outcome, Watch};
use anyhow::{Context, Result, anyhow};
use tidegate_sim::news::{self, Detector, NewsSpec};
use tidegate_sim::syn::parallel;
use tidegate_units::Nanos;

/// Seeds of one experiment's runs are this far apart.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// The name of our detector.
const OURS: &str = "ours";

/// One run: which variant, which limit by hand (0: none is swept), which run.
struct Job {
    variant: usize,
    rate: f64,
    setting: Setting,
    run: u32,
}

/// What it gives: metrics by name of the variant, and the course.
struct Ran {
    metrics: Vec<(String, Vec<Metric>)>,
    course: Vec<(f64, Vec<Metric>)>,
    real: bool,
}

/// Runs it. Real traces are read from `data`; stand-ins run for those that are not there.
///
/// # Errors
/// For files that must be there and are not, for broken ones, and for what the simulator's checkers found.
pub fn run(
    scenario: &Scenario,
    options: &Options,
    data: Option<&Source>,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let points = scenario.x.points(options.quick);
    let traces = traces(scenario, points, options.quick)?;
    let data = Data::read(data, &traces)?;
    let mut table = Table::default();
    let mut stand_ins = Vec::new();
    for (index, x) in points.iter().enumerate() {
        let jobs = jobs(scenario, *x, options.quick)?;
        watch.step(&format!("{} {x}: {} runs", scenario.x.name, jobs.len()));
        let job = |job: &Job| one(scenario, (options, &data), job);
        let ran = parallel::map(&jobs, options.threads, job, |_| ())?;
        let ran = ran.into_iter().collect::<Result<Vec<_>>>().with_context(|| format!("at {x}"))?;
        if ran.iter().any(|ran| !ran.real) && !stand_ins.contains(x) {
            stand_ins.push(*x);
        }
        let best = best(scenario, &jobs, &ran);
        for (job, ran) in jobs.iter().zip(&ran) {
            if best.get(job.variant).is_some_and(|best| job.rate > 0.0 && job.rate != *best) {
                continue;
            }
            add(&mut table, scenario, (index, *x), ran);
        }
        for (variant, rate) in scenario.variants.iter().zip(&best).filter(|(_, rate)| **rate > 0.0)
        {
            let (variant, x_name) = (variant.name.clone(), scenario.x.name.clone());
            let place = Place { variant, x_name, x: index, metric: "best_rate".into() };
            table.add(place, *x, "1/s", *rate);
        }
    }
    sums(&mut table, scenario, points);
    let rows = table.rows(&options.experiment);
    let names = names(scenario);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let figures = draw(&scenario.figures, (&scenario.x.name, &names), &rows)?;
    let notes = notes(&traces, &stand_ins);
    Ok(Outcome { rows, figures, notes, data: Some(data.used(&traces)) })
}

/// Of detectors: what they saw at all points together (x_name `all`), by the means of the runs.
fn sums(table: &mut Table, scenario: &Scenario, points: &[f64]) {
    for (variant, _) in detectors(scenario) {
        let mean = |metric: &str, index: usize| {
            let runs = table.runs(&variant, (&scenario.x.name, index), metric).unwrap_or_default();
            runs.iter().sum::<f64>() / runs.len().max(1) as f64
        };
        let sum = |metric| (0..points.len()).map(|index| mean(metric, index)).sum::<f64>();
        let runs = |index: usize| {
            let runs = table.runs(&variant, (&scenario.x.name, index), "false_alarms");
            runs.map_or(0, <[f64]>::len)
        };
        let runs = (0..points.len()).map(runs).max().unwrap_or(0).max(1) as f64;
        let (least, most) = poisson_95((sum("false_alarms") * runs).round());
        let all = [
            ("false_alarms_sum", "alarms", sum("false_alarms")),
            ("false_alarms_least", "alarms", least / runs),
            ("false_alarms_most", "alarms", most / runs),
            ("alarms_sum", "alarms", sum("alarms")),
            ("brown_outs_sum", "times", sum("brown_outs")),
            ("real_share", "share", sum("real") / points.len() as f64),
        ];
        let came = sum("came");
        let refused = (came > 0.0).then(|| {
            [
                ("came_sum", "connections", came),
                ("refused_wrongly_sum", "SYNs", sum("refused_wrongly")),
                ("refused_wrongly_share", "share", sum("refused_wrongly") / came),
                ("refused_rightly_sum", "SYNs", sum("refused_rightly")),
            ]
        });
        for (metric, unit, value) in all.into_iter().chain(refused.into_iter().flatten()) {
            let (variant, metric) = (variant.clone(), metric.to_owned());
            table.add(Place { variant, x_name: "all".into(), x: 0, metric }, 0.0, unit, value);
        }
    }
}

fn traces(scenario: &Scenario, points: &[f64], quick: bool) -> Result<Vec<Trace>> {
    let none = Changes::new();
    let sets: Vec<&Changes> = match scenario.variants.as_slice() {
        [] => vec![&none],
        variants => variants.iter().map(|variant| &variant.set).collect(),
    };
    let mut all = Vec::new();
    for x in points {
        for set in &sets {
            all.push(Trace::numbered(scenario.setting(set, *x, quick)?.trace)?);
        }
    }
    Ok(all)
}

fn notes(traces: &[Trace], stand_ins: &[f64]) -> Vec<String> {
    if traces.iter().all(|trace| *trace == Trace::Crowd) {
        return vec![
            "arrivals: the crowd of the paper, synthetic (five-fold from its time on)".into(),
        ];
    }
    let list: Vec<String> = stand_ins.iter().map(|x| format!("{x}")).collect();
    match list.as_slice() {
        [] => vec!["arrivals: real traces (World Cup 1998, NASA 1995), scaled to the link".into()],
        _ => {
            vec![format!("arrivals: synthetic with the published rates at x = {}", list.join(", "))]
        }
    }
}

fn names(scenario: &Scenario) -> Vec<String> {
    let watched = detectors(scenario).into_iter().map(|(name, _)| name);
    scenario.variants.iter().map(|variant| variant.name.clone()).chain(watched).collect()
}

/// Detectors that watch, with their names; none where variants are compared.
fn detectors(scenario: &Scenario) -> Vec<(String, Detector)> {
    let published = scenario
        .detectors
        .iter()
        .map(|s| (format!("published-{s}"), Detector::Published(Nanos::from_secs_f64(*s))));
    let ours = (!scenario.detectors.is_empty()).then(|| (OURS.to_owned(), Detector::Fast));
    published.chain(ours).collect()
}

fn jobs(scenario: &Scenario, x: f64, quick: bool) -> Result<Vec<Job>> {
    let runs = if quick { scenario.quick_runs } else { scenario.runs };
    let mut jobs = Vec::new();
    let none = Changes::new();
    let watched = (!scenario.detectors.is_empty()).then_some(&none);
    let sets = scenario.variants.iter().map(|variant| &variant.set).chain(watched);
    for (variant, set) in sets.enumerate() {
        let setting = scenario.setting(set, x, quick)?;
        let swept = setting.control == Control::Static && setting.rate <= 0.0;
        let rates: &[f64] = if swept { &scenario.sweep } else { &[0.0] };
        for rate in rates {
            let rate_or = if *rate > 0.0 { *rate } else { setting.rate };
            let setting = Setting { rate: rate_or, ..setting.clone() };
            let job = |run| Job { variant, rate: *rate, setting: setting.clone(), run };
            jobs.extend((0..runs).map(job));
        }
    }
    Ok(jobs)
}

/// For each variant the rate whose goodput is best over all runs; 0 where none was swept.
fn best(scenario: &Scenario, jobs: &[Job], ran: &[Ran]) -> Vec<f64> {
    let goodput = |variant: usize, rate: f64| -> f64 {
        let runs =
            jobs.iter().zip(ran).filter(|(job, _)| job.variant == variant && job.rate == rate);
        let metrics = runs.flat_map(|(_, ran)| ran.metrics.iter().flat_map(|(_, all)| all));
        metrics.filter(|metric| metric.0 == "goodput").map(|metric| metric.2).sum()
    };
    (0..scenario.variants.len())
        .map(|variant| {
            let swept = jobs.iter().any(|job| job.variant == variant && job.rate > 0.0);
            let rates = scenario.sweep.iter().copied().filter(|_| swept);
            let best = rates.max_by(|a, b| goodput(variant, *a).total_cmp(&goodput(variant, *b)));
            best.unwrap_or(0.0)
        })
        .collect()
}

fn one(scenario: &Scenario, (options, data): (&Options, &Data), job: &Job) -> Result<Ran> {
    let seed = options.seed.wrapping_add(SEED_STEP.wrapping_mul(u64::from(job.run)));
    let (mut spec, real) = job.setting.spec(data, seed)?;
    let watched = detectors(scenario);
    if !watched.is_empty() {
        spec.watched = scenario.detectors.iter().map(|s| job.setting.published(*s)).collect();
    }
    let out = news::run(&spec).map_err(|broken| anyhow!("{broken}"))?;
    let mut metrics: Vec<(String, Vec<Metric>)> = if watched.is_empty() {
        let name = scenario.variants[job.variant].name.clone();
        vec![(name, measure::of(&job.setting, &out, real))]
    } else {
        let one =
            |(name, detector)| (name, measure::detector(&job.setting, &out, (detector, real)));
        watched.into_iter().map(one).collect()
    };
    if scenario.enforced {
        let enforced = NewsSpec { control: news::Control::Fast, watched: Vec::new(), ..spec };
        let enforced = news::run(&enforced).map_err(|broken| anyhow!("{broken}"))?;
        let refused = measure::refused_wrongly(&job.setting, (&out, &enforced));
        metrics
            .iter_mut()
            .filter(|(name, _)| name == OURS)
            .for_each(|(_, all)| all.extend(&refused));
    }
    let course = scenario.course.filter(|_| job.run == 0);
    let course = course.map(|course| measure::course(&out, course.step_s)).unwrap_or_default();
    Ok(Ran { metrics, course, real })
}

fn add(table: &mut Table, scenario: &Scenario, (index, x): (usize, f64), ran: &Ran) {
    let place = |variant: &str, (x_name, x): (&str, usize), metric: &str| Place {
        variant: variant.into(),
        x_name: x_name.into(),
        x,
        metric: metric.into(),
    };
    for (variant, metrics) in &ran.metrics {
        for (metric, unit, value) in metrics {
            table.add(place(variant, (&scenario.x.name, index), metric), x, unit, *value);
        }
        // The course is of the first point.
        let course = ran.course.iter().enumerate().filter(|_| index == 0);
        for (at, (time_s, metrics)) in course {
            for (metric, unit, value) in metrics {
                table.add(place(variant, ("time_s", at), metric), *time_s, unit, *value);
            }
        }
    }
}
