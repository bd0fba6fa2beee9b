// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario in the lab: round by round all variants at each x, each on a fresh server.

use super::super::scenario::Scenario;
use super::super::setting::{Control, Setting};
use super::bench::{Bench, Stand};
use super::load::{self, Span, Wanted};
use super::rows::{Mark, Metric, Seen};
use super::{Lab as Section, LabVariant, feedback, product};
use crate::abacus::measure::{Place, Table};
use crate::abacus::{FigureSpec, draw};
use crate::results::Row;
use crate::schedule::Schedule;
use crate::survival::{Outcome, Watch};
use anyhow::{Context, Result, anyhow, ensure};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_lab::{Helper, LabError, LoadPlan, LoadReport, Product, Script};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// A run whose generator was late is made so often.
const TRIES: u32 = 2;
/// Seconds of the paper that the uncontrolled client is alone. It has settled after one: nobody waits.
const LEAD_S: f64 = 4.0;
/// Seconds in which C is measured before each run.
const CAPACITY_S: f64 = 6.0;
const CAPACITY_QUICK_S: f64 = 3.0;

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
    /// Seed of the arrivals.
    pub seed: u64,
    /// Variants by name, `*` standing for anything; all without it.
    pub filter: Option<String>,
}

/// A run to be made, and at which x its results stand: one that does not depend on x is made once.
#[derive(Clone, Debug)]
struct Job<'a> {
    variant: &'a LabVariant,
    setting: Setting,
    at: Vec<usize>,
}

/// What a run gave.
struct Made {
    job: usize,
    capacity: f64,
    metrics: Vec<Metric>,
}

struct Runner<'a> {
    scenario: &'a Scenario,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    bench: Bench,
    table: Table,
    points: Vec<f64>,
    notes: Vec<String>,
}

/// Runs it.
///
/// # Errors
/// When lab, server, product or load fail, or the scenario has no section `lab`.
pub fn run(scenario: &Scenario, options: &Options, watch: &mut dyn Watch) -> Result<Outcome> {
    let section = scenario.lab.as_ref().context("the scenario has no section lab")?;
    let points = section.points(&scenario.x.at, options.quick).to_vec();
    let jobs = jobs(scenario, section, (&points, options))?;
    watch.step("making the lab, and a server like the paper's");
    let bench = Bench::new(&options.helper, options.program.clone(), &Setting::default())?;
    let (table, notes) = (Table::default(), Vec::new());
    let mut runner = Runner { scenario, options, watch, bench, table, points, notes };
    let rounds = if options.quick { 1 } else { section.rounds };
    let limit = (!options.quick).then(|| Nanos::from_secs_f64(section.minutes * 60.0));
    let mut schedule = Schedule::begin(limit, jobs.len() * rounds as usize);
    for round in 0..rounds {
        runner.round(&jobs, round, &mut schedule)?;
        let so_far =
            Outcome { rows: runner.rows(), notes: runner.notes.clone(), ..Outcome::default() };
        runner.watch.kept(&so_far)?;
    }
    let rows = runner.rows();
    let names: Vec<&str> = section.variants.iter().map(|v| v.name.as_str()).collect();
    let figures = draw(&drawable(scenario, &rows), (&scenario.x.name, &names), &rows)?;
    Ok(Outcome { rows, figures, notes: runner.notes, ..Outcome::default() })
}

/// The figures, with the variants that were run instead of the simulator's.
fn drawable(scenario: &Scenario, rows: &[Row]) -> Vec<FigureSpec> {
    let names = scenario.lab.iter().flat_map(|lab| &lab.variants).map(|variant| &variant.name);
    let names: Vec<String> =
        names.filter(|name| rows.iter().any(|row| row.variant == **name)).cloned().collect();
    let own = scenario.figures.iter().cloned();
    own.map(|figure| FigureSpec { variants: names.clone(), ..figure }).collect()
}

/// What is to be run, each setting once.
fn jobs<'a>(
    scenario: &Scenario,
    section: &'a Section,
    (points, options): (&[f64], &Options),
) -> Result<Vec<Job<'a>>> {
    let quick = options.quick;
    let (warm_s, seconds) = if quick {
        (section.quick.warm_s, section.quick.seconds)
    } else {
        (section.warm_s, section.seconds)
    };
    let wanted = |name: &str| options.filter.as_ref().is_none_or(|f| crate::judge::fits(f, name));
    let mut jobs: Vec<Job<'a>> = Vec::new();
    for variant in section.variants.iter().filter(|variant| wanted(&variant.name)) {
        for (index, x) in points.iter().enumerate() {
            if !section.runs(variant, *x, quick) {
                continue;
            }
            let mut setting = scenario.lab_setting(variant, *x)?;
            (setting.lead_s, setting.warm_s, setting.seconds) = (LEAD_S, warm_s, seconds);
            // Without control nothing depends on what a control would do.
            if setting.control == Control::None {
                setting.gap_ms = Setting::default().gap_ms;
            }
            let same =
                |job: &&mut Job<'a>| job.variant.name == variant.name && job.setting == setting;
            match jobs.iter_mut().find(same) {
                Some(job) => job.at.push(index),
                None => jobs.push(Job { variant, setting, at: vec![index] }),
            }
        }
    }
    ensure!(!jobs.is_empty(), "nothing is named {:?}", options.filter);
    Ok(jobs)
}

impl Runner<'_> {
    /// All jobs once; each round begins with another.
    fn round(&mut self, jobs: &[Job<'_>], round: u32, schedule: &mut Schedule) -> Result<()> {
        let seed = self.options.seed + u64::from(round);
        let first = round as usize * jobs.len() / 3;
        let mut made = Vec::new();
        for index in (0..jobs.len()).cycle().skip(first).take(jobs.len()) {
            let job = &jobs[index];
            let what = format!("round {}, {}", round + 1, self.name(job));
            if schedule.is_over() {
                self.notes.push(format!("{what}: no time was left"));
                continue;
            }
            for attempt in 1..=TRIES {
                self.watch.step(&what);
                let (void, capacity, metrics) =
                    self.once(job, seed).with_context(|| what.clone())?;
                if void.is_empty() {
                    made.push(Made { job: index, capacity, metrics });
                    break;
                }
                self.notes.push(format!("{what}, try {attempt}: void, {}", void.join("; ")));
                if !schedule.may_repeat() {
                    break;
                }
            }
            schedule.step();
        }
        self.add(jobs, &made);
        Ok(())
    }

    fn name(&self, job: &Job<'_>) -> String {
        let at: Vec<String> = job.at.iter().map(|at| self.points[*at].to_string()).collect();
        format!("{} at {} {}", job.variant.name, self.scenario.x.name, at.join(", "))
    }

    /// What runs gave goes to every x at which it stands; the drift of C is that to the next run.
    fn add(&mut self, jobs: &[Job<'_>], made: &[Made]) {
        for (place, one) in made.iter().enumerate() {
            let beside = made.get(place + 1).or_else(|| place.checked_sub(1).map(|p| &made[p]));
            let drift = beside.map_or(0.0, |other| (other.capacity / one.capacity - 1.0).abs());
            let job = &jobs[one.job];
            let drift = [("drift".to_owned(), "share", drift)];
            for (metric, unit, value) in one.metrics.iter().chain(&drift) {
                for x in &job.at {
                    let place = Place {
                        variant: job.variant.name.clone(),
                        x_name: self.scenario.x.name.clone(),
                        x: *x,
                        metric: metric.clone(),
                    };
                    self.table.add(place, self.points[*x], unit, *value);
                }
            }
        }
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = self.table.rows(&self.options.experiment);
        for row in &mut rows {
            row.world = "lab".into();
            if row.metric == "drift" {
                let at = self.points.iter().position(|x| (x - row.x).abs() < 1e-9);
                let place = (row.x_name.as_str(), at.unwrap_or_default());
                let all = self.table.runs(&row.variant, place, "drift").unwrap_or_default();
                (row.value, row.ci95) = (all.iter().copied().fold(0.0, f64::max), None);
            }
        }
        rows
    }

    /// One run on a fresh server: C, then the load.
    fn once(&mut self, job: &Job<'_>, seed: u64) -> Result<(Vec<String>, f64, Vec<Metric>)> {
        let setting = &job.setting;
        // The gate's gap follows C as it was before the run before, loads as it is now.
        let mut stand = self.bench.stand(job.variant, setting, self.bench.faster)?;
        let measured_s = if self.options.quick { CAPACITY_QUICK_S } else { CAPACITY_S };
        let capacity = self.bench.capacity(&stand, measured_s).context("the capacity")?;
        let faster = capacity.faster(setting);
        self.bench.faster = faster;
        self.bench.watch(&mut stand, setting, faster)?;
        let slot = load::SLOT.as_secs_f64();
        let whole = |seconds: f64| (seconds / faster / slot).round() * slot;
        let lead = whole(setting.lead_s);
        let from = lead + whole(setting.warm_s);
        let span = Span { lead, from, to: from + whole(setting.seconds) };
        let wanted = Wanted { setting, faster, span, seed };
        let plan = load::plan(&wanted, &stand.server);
        let ends = [Cell::new(Mark::default()), Cell::new(Mark::default())];
        let script = marks(&stand, span, &ends);
        let report = self.play(&stand, (plan, script))?;
        let monitor = stand.watch.as_ref().context("the monitor")?;
        let seen = Seen {
            setting,
            report: &report,
            span,
            marks: (ends[0].get(), ends[1].get()),
            queue: &monitor.seen(),
            changes: &monitor.changes(&mut 0),
            capacity,
            busy_s: self.bench.busy_s,
        };
        let metrics = seen.metrics();
        stand.end()?;
        Ok((report.void, capacity.rate, metrics))
    }

    /// The load, with the feedback to a control node beside it.
    fn play(
        &mut self,
        stand: &Stand,
        (plan, mut script): (LoadPlan, Script<'_>),
    ) -> Result<LoadReport> {
        let (lab, watch) = (&self.bench.lab, &mut *self.watch);
        let mut load =
            || lab.run_script(&plan, &mut script, &mut |progress| watch.second(progress));
        let (Some(monitor), Some(daemon)) = (&stand.watch, stand.told()) else {
            return Ok(load()?);
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let carry = scope.spawn(|| feedback::carry(monitor, daemon, &done));
            let report = load();
            done.store(true, Ordering::Relaxed);
            let carried = carry.join().map_err(|_| anyhow!("the feedback ended badly"))?;
            carried.context("the feedback")?;
            Ok(report?)
        })
    }
}

/// The looks at the two ends of the measured part.
fn marks<'a>(stand: &'a Stand, span: Span, ends: &'a [Cell<Mark>; 2]) -> Script<'a> {
    let look = |end: &'a Cell<Mark>| {
        move || {
            let status = stand.interface.as_ref().map(Product::status).transpose()?;
            let dropped = status.map_or(0.0, |status| product::dropped(&status));
            // Last: the answer may take its time.
            let cpu = stand.server.group().cpu_used().map_or(f64::NAN, Nanos::as_secs_f64);
            end.set(Mark { at_s: MonotonicClock.now().as_secs_f64(), cpu, dropped });
            Ok::<(), LabError>(())
        }
    };
    let seconds = Nanos::from_secs_f64;
    Script::new().at(seconds(span.from), "begin", look(&ends[0])).at(
        seconds(span.to),
        "end",
        look(&ends[1]),
    )
}
