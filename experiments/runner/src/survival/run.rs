// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the scenario: for each load the variants one after the other, each with a fresh server and
//! – but for `none` – a fresh tidegate, between two measurements of the capacity; then the halved
//! CPU.

use super::arm::{Arm, Known, Place};
use super::bracket::{Bench, How, Job, Made, Normal, Rule, TRIES, bracket};
use super::figures;
use super::measure::{Point, Span, course, of_load, recoveries, refusals_end, worst};
use super::scenario::{Beside, Extent, Scenario};
use crate::folder::Data;
use crate::results::Row;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use tidegate_lab::{
    Arrive, Capacity, CapacityOptions, CpuCutGuard, Helper, Lab, LabOptions, LoadPlan, LoadReport,
    Phase, Progress, Script, Server,
};
use tidegate_units::Nanos;
use tidegate_workload::{Profile, Segment};

/// Windows of a measurement of the capacity: single ones differ by 2 to 3 %.
const WINDOWS: u32 = 15;
/// The onset of a crowd, in seconds: what it does before a limit has followed.
const ONSET_SECONDS: f64 = 2.0;
/// Length of the slots of the time series.
const SLOT: Nanos = Nanos::from_millis(500);
/// What the p99 in the recovery is compared with until `none` at 0.9 has been run, in seconds: a
/// quarter of the objective.
const NORMAL_P99: f64 = 0.25;

/// How the experiment is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the experiment, for the rows.
    pub experiment: String,
    /// The tidegate binary.
    pub program: PathBuf,
    /// What the lab starts its own processes with.
    pub helper: Helper,
    /// Seed of the arrivals.
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The rows of results.csv.
    pub rows: Vec<Row>,
    /// Figures: file name and SVG.
    pub figures: Vec<(String, String)>,
    /// Remarks: runs repeated because they were void, drift of the capacity.
    pub notes: Vec<String>,
    /// Where the arrivals come from, of an experiment that takes traces.
    pub data: Option<Data>,
}

/// Who is told what happens: one line at a time, and the second just gone.
pub trait Watch {
    /// A new step begins.
    fn step(&mut self, what: &str);
    /// A second of load has passed.
    fn second(&mut self, progress: &Progress);
    /// So much is done, should the rest be interrupted.
    ///
    /// # Errors
    /// When it cannot be kept; the experiment ends.
    fn kept(&mut self, _so_far: &Outcome) -> Result<()> {
        Ok(())
    }
}

struct Survival<'a> {
    scenario: &'a Scenario,
    extent: &'a Extent,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    lab: Lab,
    out: Outcome,
    clients: u32,
    /// The capacity as it was measured last.
    latest: Option<f64>,
    normal: Normal,
}

/// Runs it.
///
/// # Errors
/// When lab, server, product or load fail, or what is done cannot be kept.
pub fn run(
    scenario: &Scenario,
    extent: &Extent,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    watch.step("making the lab");
    let lab = Lab::new(LabOptions::new(options.helper.clone())).context("the lab")?;
    let normal = Normal { p99: NORMAL_P99, slot_p99: NORMAL_P99, is_assumed: true };
    let (clients, latest, out) = (0, None, Outcome::default());
    let mut survival =
        Survival { scenario, extent, options, watch, lab, out, clients, latest, normal };
    let loads = if extent.loads.is_empty() { &scenario.loads } else { &extent.loads };
    for load in loads {
        survival.group(*load)?;
    }
    if survival.normal.is_assumed {
        let note = format!("recovery is against {NORMAL_P99} s: there was no run of none at 0.9");
        survival.out.notes.push(note);
    }
    if !extent.halved_s.is_empty() {
        survival.halved()?;
    }
    let mut out = survival.out;
    out.figures = figures::all(scenario, &out.rows)?;
    Ok(out)
}

impl Survival<'_> {
    /// One load, as a multiple of the capacity just measured: all variants see the same arrivals.
    fn group(&mut self, load: f64) -> Result<()> {
        let base = self.latest()?;
        let mut jobs = Vec::new();
        for variant in &self.scenario.variants {
            let job = |how| Job { variant: variant.clone(), how, base };
            jobs.push(job(How::Load(load)));
            if self.extent.cold.contains(&load) && variant != "none" {
                jobs.push(job(How::Cold(load)));
            }
        }
        self.all(&jobs)
    }

    /// The CPU is halved under load, and given back.
    fn halved(&mut self) -> Result<()> {
        let base = self.latest()?;
        let job = |variant: &String| Job { variant: variant.clone(), how: How::Halved, base };
        let jobs: Vec<Job> = self.scenario.variants.iter().map(job).collect();
        self.all(&jobs)
    }

    /// Runs all of them between measurements of the capacity, and keeps what is not void.
    fn all(&mut self, jobs: &[Job]) -> Result<()> {
        let size = match self.extent.capacity {
            Beside::Each => 1,
            Beside::Group => jobs.len().max(1),
        };
        let (drift_max, keep_void) = (self.scenario.drift_max, self.extent.keep_void);
        for jobs in jobs.chunks(size) {
            let before = self.latest()?;
            for made in bracket(self, jobs, Rule { drift_max, keep_void, before })? {
                self.normal = made.normal.unwrap_or(self.normal);
                self.out.rows.extend(made.rows);
            }
            self.watch.kept(&self.out)?;
        }
        Ok(())
    }

    /// The last capacity: nothing has run since it was measured.
    fn latest(&mut self) -> Result<f64> {
        self.latest.map_or_else(|| self.capacity(), Ok)
    }

    /// The load from the first second on, on a tidegate that has seen nothing.
    fn cold(&mut self, variant: &str, load: f64, capacity: f64) -> Result<Option<Made>> {
        let seconds = self.extent.load_s;
        let what = format!("{load} x C at once");
        let pieces = [("load", load, seconds)];
        let Some(report) = self.load(variant, &what, &pieces, capacity)? else { return Ok(None) };
        let stream = report.stream("crowd").context("the report lacks the crowd")?;
        let totals = &stream.phase("load").context("the report lacks the load")?.totals;
        let point = self.at(variant, "load_cold", load);
        let metrics = of_load(stream, totals, Span { from: 0.0, to: seconds });
        let rows = metrics.into_iter().map(|metric| point.row(metric)).collect();
        Ok(Some(Made { rows, normal: None }))
    }

    fn point(&mut self, variant: &str, load: f64, capacity: f64) -> Result<Option<Made>> {
        let extent = self.extent;
        // What decides about 1 in 1,000 needs arrivals; `none` refuses nobody, but at 0.9 it is what
        // the others are held against.
        let is_reference = (load - 0.9).abs() < 1e-9;
        let load_s = match variant {
            "none" if !is_reference => extent.load_s,
            _ => extent.load_seconds(load, capacity),
        };
        let begin = extent.before_s;
        let fall = begin + load_s;
        let end = fall + extent.after_s;
        let pieces = [
            ("before", extent.before, begin),
            ("load", load, load_s),
            ("after", self.scenario.after, extent.after_s),
        ];
        let what = format!("{load} x C");
        let Some(report) = self.load(variant, &what, &pieces, capacity)? else { return Ok(None) };
        let stream = report.stream("crowd").context("the report lacks the crowd")?;
        let totals = &stream.phase("load").context("the report lacks the load")?.totals;
        let point = self.at(variant, "load", load);
        let mut metrics = of_load(stream, totals, Span { from: begin, to: fall });
        let onset = Span { from: begin, to: fall.min(begin + ONSET_SECONDS) };
        metrics.push(("p99_onset", "s", worst(stream, onset)));
        metrics.push(("closed_clients", "clients", self.clients.into()));
        let normal = (variant == "none" && is_reference).then(|| Normal {
            p99: totals.service.p99,
            slot_p99: worst(stream, Span { from: begin, to: fall }),
            is_assumed: false,
        });
        let normal_p99 = normal.unwrap_or(self.normal).p99;
        let mut rows: Vec<Row> = metrics.into_iter().map(|metric| point.row(metric)).collect();
        let point = self.at(variant, "load_after", load);
        let both = recoveries(stream, Span { from: fall, to: end }, normal_p99);
        rows.extend(both.map(|metric| point.row(metric)));
        rows.push(point.row(refusals_end(stream, Span { from: fall, to: end })));
        if (load - self.scenario.trace_load).abs() < 1e-9 {
            rows.extend(course(stream, &point, end));
        }
        Ok(Some(Made { rows, normal }))
    }

    fn at(&self, variant: &str, x_name: &'static str, x: f64) -> Point {
        let experiment = self.options.experiment.clone();
        Point { experiment, variant: variant.into(), x_name, x }
    }

    /// One load on a fresh server, repeated while void; nothing if it stays void.
    fn load(
        &mut self,
        variant: &str,
        what: &str,
        pieces: &[(&str, f64, f64)],
        capacity: f64,
    ) -> Result<Option<LoadReport>> {
        let plan = plan(pieces, capacity, self.options.seed);
        for attempt in 1..=TRIES {
            let arm = self.arm(variant)?;
            self.watch.step(&format!("{what}, {variant}"));
            let report = self.run_plan(&plan, arm.server())?;
            arm.end()?;
            if report.void.is_empty() {
                return Ok(Some(report));
            }
            let why = report.void.join("; ");
            self.out.notes.push(format!("{what}, {variant}, try {attempt}: void, {why}"));
            if self.extent.keep_void {
                return Ok(Some(report));
            }
        }
        self.out.notes.push(format!("{what}, {variant}: void in {TRIES} tries, left out"));
        Ok(None)
    }

    fn run_plan(&mut self, plan: &LoadPlan, server: &Server) -> Result<LoadReport> {
        let mut plan = plan.clone();
        for stream in &mut plan.streams {
            let template = server.stream(&stream.name, stream.arrive.clone());
            *stream = template;
        }
        let watch = &mut *self.watch;
        Ok(self.lab.run_load(&plan, &mut |progress| watch.second(progress))?)
    }

    fn halved_point(&mut self, variant: &str, capacity: f64) -> Result<Option<Made>> {
        let [whole, half, again] = self.extent.halved_s[..] else {
            bail!("halved_s takes three lengths: whole, halved, whole again");
        };
        let load = self.scenario.halved_load;
        let pieces = [("whole", load, whole), ("half", load, half), ("again", load, again)];
        let Some(report) = self.halved_run(variant, &pieces, capacity)? else { return Ok(None) };
        let stream = report.stream("crowd").context("the report lacks the crowd")?;
        let name = format!("halved-{variant}");
        let mut rows = Vec::new();
        for (x, phase, from, length) in
            [(0.5, "half", whole, half), (1.0, "again", whole + half, again)]
        {
            let totals = &stream.phase(phase).context("the report lacks a phase")?.totals;
            let point = self.at(&name, "cpu", x);
            let metrics = of_load(stream, totals, Span { from, to: from + length });
            rows.extend(metrics.into_iter().map(|metric| point.row(metric)));
        }
        let end = whole + half + again;
        // At 0.9 of C half of all slots are above the p99 over all: the worst one is the measure.
        let after = Span { from: whole + half, to: end };
        let point = self.at(&name, "cpu", 1.0);
        let both = recoveries(stream, after, self.normal.slot_p99);
        rows.extend(both.map(|metric| point.row(metric)));
        rows.extend(course(stream, &self.at(&name, "load", load), end));
        Ok(Some(Made { rows, normal: None }))
    }

    /// One run with the CPU cut, repeated while void; nothing if it stays void.
    fn halved_run(
        &mut self,
        variant: &str,
        pieces: &[(&str, f64, f64); 3],
        capacity: f64,
    ) -> Result<Option<LoadReport>> {
        for attempt in 1..=TRIES {
            let report = self.halved_try(variant, pieces, capacity)?;
            if report.void.is_empty() {
                return Ok(Some(report));
            }
            let why = report.void.join("; ");
            self.out.notes.push(format!("CPU halved, {variant}, try {attempt}: void, {why}"));
            if self.extent.keep_void {
                return Ok(Some(report));
            }
        }
        self.out.notes.push(format!("CPU halved, {variant}: void in {TRIES} tries, left out"));
        Ok(None)
    }

    fn halved_try(
        &mut self,
        variant: &str,
        pieces: &[(&str, f64, f64); 3],
        capacity: f64,
    ) -> Result<LoadReport> {
        let arm = self.arm(variant)?;
        let server = arm.server();
        self.watch.step(&format!("CPU halved, {variant}"));
        let mut plan = plan(pieces, capacity, self.options.seed);
        plan.streams = vec![server.stream("crowd", plan.streams[0].arrive.clone())];
        let cut: std::cell::RefCell<Option<CpuCutGuard>> = std::cell::RefCell::new(None);
        let (lab, watch) = (&self.lab, &mut *self.watch);
        let mut script = Script::new()
            .at(Nanos::from_secs_f64(pieces[0].2), "halve", || {
                *cut.borrow_mut() = Some(lab.halve_cpu(server)?);
                Ok::<(), tidegate_lab::LabError>(())
            })
            .at(Nanos::from_secs_f64(pieces[0].2 + pieces[1].2), "give back", || {
                drop(cut.borrow_mut().take());
                Ok::<(), tidegate_lab::LabError>(())
            });
        let report = lab.run_script(&plan, &mut script, &mut |progress| watch.second(progress))?;
        drop(script);
        if let Some(failed) = report.events.iter().find_map(|event| event.error.as_ref()) {
            bail!("CPU halved, {variant}: {failed}");
        }
        arm.end()?;
        Ok(report)
    }

    /// With limits as an operator would set them by the capacity just measured.
    fn arm(&self, variant: &str) -> Result<Arm> {
        let capacity = self.latest.context("the capacity is not measured yet")?;
        let server = &self.scenario.server;
        let place = Place {
            lab: &self.lab,
            server,
            program: &self.options.program,
            requests: serde_json::Value::Null,
        };
        Arm::start(&place, variant, Known { capacity, clients: self.clients })
    }
}

impl Bench for Survival<'_> {
    /// Answers per second of the bare server.
    fn capacity(&mut self) -> Result<f64> {
        self.watch.step("measuring the capacity");
        let server = self.scenario.server.start(&self.lab, 80, None).context("the server")?;
        let search = CapacityOptions { windows: WINDOWS, ..CapacityOptions::default() };
        // The search for the number of clients is done once.
        let known = CapacityOptions {
            clients_from: self.clients,
            clients_max: self.clients,
            ..search.clone()
        };
        let options = if self.clients == 0 { search } else { known };
        let capacity: Capacity = self.lab.capacity(&server, &options).context("the capacity")?;
        self.clients = capacity.clients;
        self.latest = Some(capacity.rate.get());
        self.watch.step(&format!("capacity: {}", capacity.rate));
        Ok(capacity.rate.get())
    }

    fn run(&mut self, job: &Job) -> Result<Option<Made>> {
        match job.how {
            How::Load(load) => self.point(&job.variant, load, job.base),
            How::Cold(load) => self.cold(&job.variant, load, job.base),
            How::Halved => self.halved_point(&job.variant, job.base),
        }
    }

    fn note(&mut self, note: String) {
        self.out.notes.push(note);
    }
}

/// Pieces (name, load, seconds) as a plan; those of no length are left out.
pub(crate) fn plan(pieces: &[(&str, f64, f64)], capacity: f64, seed: u64) -> LoadPlan {
    let (mut segments, mut phases, mut from) = (Vec::new(), Vec::new(), Nanos::ZERO);
    for (name, load, seconds) in pieces.iter().filter(|piece| piece.2 > 0.0) {
        let lasts = Nanos::from_secs_f64(*seconds);
        segments.push(Segment::constant(lasts, load * capacity));
        phases.push(Phase { name: (*name).to_owned(), start: from, end: from + lasts });
        from += lasts;
    }
    let arrive = Arrive::poisson(Profile::new(&segments));
    // Where it goes is filled in once the server runs.
    let stream = tidegate_lab::Stream {
        name: "crowd".into(),
        arrive,
        target: ([0, 0, 0, 0], 0).into(),
        sources: tidegate_lab::Sources { first: tidegate_lab::CLIENTS_V4, count: 1 },
        path: "/".into(),
        host: "lab.test".into(),
        dscp: 0,
        keep_alive: None,
        transport: tidegate_lab::Transport::Clear,
        manner: tidegate_lab::Manner::Plain,
        ports: None,
        abortive: false,
        mix: None,
        session: None,
        throttle: None,
    };
    LoadPlan { seed, streams: vec![stream], phases, slot: SLOT, ..LoadPlan::default() }
}
