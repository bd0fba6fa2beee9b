// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario in virtual time: every point and variant, on common random numbers.

use super::course::{self, Crowd, Tick};
use super::model::{Model, Point};
use super::scenario::{Onset, Scenario};
use super::setting::{Rule, Setting};
use super::{derive, figures};
use crate::abacus::measure::{Place, Table};
use crate::abacus::{Variant, stats};
use crate::results::Row;
use crate::setting::Options;
use crate::survival::{Outcome, Watch};
use anyhow::{Context, Result, anyhow};
use tidegate_sim::syn::parallel;
use tidegate_sim::web::{self, WebReport, WebTrace};

/// Seeds of one experiment's runs are this far apart.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What is kept of every load of a search for an onset.
const KEPT: [&str; 4] = ["refused_syn", "refused_header", "throughput", "response_time"];

/// Name, unit, value.
type Metric = (&'static str, &'static str, f64);

/// Runs it.
///
/// # Errors
/// For a scenario without a `sim` section, and for what the simulator's checkers found.
pub fn run(scenario: &Scenario, options: &Options, watch: &mut dyn Watch) -> Result<Outcome> {
    let sim = scenario.sim.as_ref().context("the scenario has no sim section")?;
    let model = Model::new(&sim.server)?;
    let runs = if options.quick { sim.quick_runs } else { sim.runs };
    let bench = Bench { scenario, options, model, runs };
    let mut table = Table::default();
    let own = !options.quick && !sim.at.is_empty();
    let points = if own { &sim.at } else { scenario.points(options.quick) };
    for (index, x) in points.iter().enumerate() {
        let (name, variants) = (&scenario.x.name, scenario.variants.len());
        watch.step(&format!("{name} {x}: {runs} runs of {variants} variants"));
        match &scenario.onset {
            Some(onset) => bench.onset(onset, (index, *x), &mut table)?,
            None => bench.point((index, *x), &mut table)?,
        }
    }
    let mut rows = table.rows(&options.experiment);
    if scenario.course {
        rows.extend(bench.course(points)?);
    }
    rows.extend(derive::of_peak(&rows, &scenario.x.name));
    let figures = figures::all(scenario, &rows)?;
    Ok(Outcome { rows, figures, ..Outcome::default() })
}

struct Bench<'a> {
    scenario: &'a Scenario,
    options: &'a Options,
    model: Model,
    runs: u32,
}

impl Bench<'_> {
    /// All runs of all variants at one point.
    fn point(&self, (index, x): (usize, f64), table: &mut Table) -> Result<()> {
        let mut jobs = Vec::new();
        for variant in &self.scenario.variants {
            let setting = self.scenario.setting(variant, x)?;
            jobs.extend((0..self.runs).map(|run| (variant, setting.clone(), run)));
        }
        let job = |(_, setting, run): &(&Variant, Setting, u32)| {
            let (point, report) = self.one(setting, *run)?;
            Ok::<_, anyhow::Error>(metrics(setting, &point, &report))
        };
        let results = parallel::map(&jobs, self.options.threads, job, |_| ())?;
        for ((variant, _, _), result) in jobs.iter().zip(results) {
            for (metric, unit, value) in result? {
                let place = self.place(&variant.name, index, metric);
                table.add(place, x, unit, value);
            }
        }
        Ok(())
    }

    fn place(&self, variant: &str, x: usize, metric: &str) -> Place {
        let x_name = self.scenario.x.name.clone();
        Place { variant: variant.into(), x_name, x, metric: metric.into() }
    }

    /// One run of one setting. Runs with the same number have the same arrivals and requests.
    fn one(&self, setting: &Setting, run: u32) -> Result<(Point, WebReport)> {
        let mut point = self.model.point(setting)?;
        let seed = self.options.seed.wrapping_add(SEED_STEP.wrapping_mul(u64::from(run)));
        point.scenario.seed = seed;
        let report = web::run(point.scenario.clone(), self.model.protection(setting))
            .map_err(|broken| anyhow!("{broken}"))
            .with_context(|| format!("{:?}, load {}", setting.control, setting.load))?;
        Ok((point, report))
    }

    /// For each variant and run: the smallest load of the grid from which on SYN policing refuses
    /// more than it may, up to the end of the grid. The grid's end plus a step, where it never does.
    fn onset(&self, onset: &Onset, (index, x): (usize, f64), table: &mut Table) -> Result<()> {
        let steps = ((onset.to - onset.from) / onset.step).round() as u32;
        let loads: Vec<f64> =
            (0..=steps).map(|step| onset.from + onset.step * f64::from(step)).collect();
        for variant in &self.scenario.variants {
            let setting = self.scenario.setting(variant, x)?;
            let jobs: Vec<(usize, u32)> = (0..loads.len())
                .flat_map(|load| (0..self.runs).map(move |run| (load, run)))
                .collect();
            let job = |(load, run): &(usize, u32)| {
                let setting = Setting { load: loads[*load], ..setting.clone() };
                let (point, report) = self.one(&setting, *run)?;
                Ok::<_, anyhow::Error>(metrics(&setting, &point, &report))
            };
            let results = parallel::map(&jobs, self.options.threads, job, |_| ())?;
            let mut last_calm = vec![None; self.runs as usize];
            for ((load, run), result) in jobs.iter().zip(results) {
                for (metric, unit, value) in result? {
                    if metric == "refused_syn" && value <= onset.refused_above {
                        last_calm[*run as usize] = last_calm[*run as usize].max(Some(*load));
                    }
                    if KEPT.contains(&metric) {
                        let name = format!("{}-{}", variant.name, (x * 100.0).round());
                        let x_name = "load".to_owned();
                        let place =
                            Place { variant: name, x_name, x: *load, metric: metric.into() };
                        table.add(place, loads[*load], unit, value);
                    }
                }
            }
            for calm in last_calm {
                let first = calm.map_or(0, |load| load + 1);
                let at = onset.from + onset.step * first as f64;
                table.add(self.place(&variant.name, index, "onset"), x, "C0", at);
                let coarse = (at / COARSE - 1e-9).ceil() * COARSE;
                table.add(self.place(&variant.name, index, "onset_coarse"), x, "C0", coarse);
            }
        }
        Ok(())
    }

    /// The first run tick by tick, and what is read off every run.
    fn course(&self, points: &[f64]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let first = points.first().copied().context("no point")?;
        for variant in &self.scenario.variants {
            let setting = self.scenario.setting(variant, first)?;
            let mut read: Vec<(&'static str, &'static str, Vec<f64>)> = Vec::new();
            for run in 0..self.runs {
                let (point, report) = self.one(&setting, run)?;
                let ticks = ticks(&setting, &report.traces);
                if run == 0 {
                    rows.extend(self.over_time(&variant.name, &ticks));
                }
                let pieces: Vec<(f64, f64)> =
                    setting.steps.iter().map(|(s, load)| (*s, load * point.capacity)).collect();
                let Some(crowd) = Crowd::of(&pieces) else { continue };
                for (metric, unit, value) in course::derived(&ticks, &crowd) {
                    match read.iter_mut().find(|(name, ..)| *name == metric) {
                        Some((_, _, values)) => values.push(value),
                        None => read.push((metric, unit, vec![value])),
                    }
                }
            }
            for (metric, unit, values) in read {
                let (value, ci95) = stats::mean_ci95(&values);
                let row = self.row(&variant.name, (&self.scenario.x.name, first));
                let (metric, unit) = (metric.to_owned(), unit.to_owned());
                let runs = values.len() as u32;
                rows.push(Row { metric, unit, value, ci95, runs, ..row });
            }
        }
        Ok(rows)
    }

    fn over_time(&self, variant: &str, ticks: &[Tick]) -> Vec<Row> {
        let row = |tick: &Tick| {
            let at = self.row(variant, ("time_s", tick.at_s));
            let kept = course::kept(tick).into_iter();
            kept.map(move |(metric, unit, value)| Row {
                metric: metric.into(),
                unit: unit.into(),
                value,
                ..at.clone()
            })
            .collect::<Vec<Row>>()
        };
        ticks.iter().flat_map(row).collect()
    }

    fn row(&self, variant: &str, (x_name, x): (&str, f64)) -> Row {
        Row {
            experiment: self.options.experiment.clone(),
            world: "sim".into(),
            variant: variant.into(),
            x_name: x_name.into(),
            x,
            metric: String::new(),
            unit: String::new(),
            value: 0.0,
            ci95: None,
            runs: 1,
        }
    }
}

/// Steps of the onset as the lab can take them.
const COARSE: f64 = 0.05;

/// What a run gives.
fn metrics(setting: &Setting, point: &Point, report: &WebReport) -> Vec<Metric> {
    let surge = &report.surge;
    let per_second = |count: u64| count as f64 / report.seconds;
    let mut all = vec![
        ("capacity", "1/s", point.capacity),
        ("offered", "1/s", per_second(surge.began)),
        ("throughput", "1/s", per_second(surge.answered)),
        ("throughput_dynamic", "1/s", per_second(surge.answered_dynamic)),
        ("response_time", "s", surge.mean_s()),
        ("response_p99", "s", surge.quantile_s(0.99)),
        ("refused_header", "share", surge.share(surge.refused_header)),
        ("refused_syn", "share", surge.share(surge.refused_syn)),
        ("refused", "share", surge.share(surge.refused_header + surge.refused_syn)),
        ("failed", "share", surge.share(surge.failed)),
        ("cpu", "share", report.cpu),
    ];
    if setting.interface_share > 0.0 {
        let (offered, dropped) = report.packets;
        let share = dropped as f64 / offered.max(1) as f64;
        all.push(("packets_dropped", "share", share));
        let traces = report.traces.iter().filter(|t| t.at.as_secs_f64() > setting.measured_from());
        let (sum, n) = traces.fold((0.0, 0_u32), |(sum, n), t| (sum + t.interface, n + 1));
        all.push(("interface_queue", "packets", sum / f64::from(n.max(1))));
    }
    if setting.large_load > 0.0 {
        let large = &report.large;
        all.extend([
            ("large_offered", "1/s", per_second(large.began)),
            ("large_throughput", "1/s", per_second(large.answered)),
            ("large_response_time", "s", large.mean_s()),
            ("large_refused_header", "share", large.share(large.refused_header)),
            ("both_throughput", "1/s", per_second(surge.answered + large.answered)),
        ]);
    }
    if setting.session_requests > 1 {
        let (begun, completed) = report.sessions;
        all.push(("completed", "share", completed as f64 / begun.max(1) as f64));
    }
    all
}

fn ticks(setting: &Setting, traces: &[WebTrace]) -> Vec<Tick> {
    let cgi = setting.rules.iter().position(|rule| *rule == Rule::Cgi);
    let tick = |trace: &WebTrace| Tick {
        at_s: trace.at.as_secs_f64(),
        syn_rate: trace.syn_rate,
        cgi_rate: cgi.and_then(|index| trace.rates.get(index).copied().flatten()),
        cpu: trace.cpu,
        accept_queue: trace.accept as f64,
        throughput: trace.answers as f64 / trace.period.as_secs_f64().max(1e-9),
        refused_syn: trace.syn_refused as f64,
    };
    let end: f64 = setting.steps.iter().map(|(seconds, _)| seconds).sum();
    let within = |t: &&WebTrace| setting.steps.is_empty() || t.at.as_secs_f64() <= end + 1e-9;
    traces.iter().filter(within).map(tick).collect()
}
