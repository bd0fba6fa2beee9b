// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the scenario: capacity, then for each load the variants one after the other, each with a
//! fresh server and – but for `none` – a fresh tidegate; then the halved CPU.

use super::arm::{Arm, Known, Place};
use super::figures;
use super::measure::{Point, Span, course, of_load, recovery, worst};
use super::scenario::{Extent, Scenario};
use crate::results::Row;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use tidegate_lab::{
    Arrive, Capacity, CapacityOptions, CpuCutGuard, Helper, Lab, LabOptions, LoadPlan, LoadReport,
    Phase, Progress, Script, Server,
};
use tidegate_units::Nanos;
use tidegate_workload::{Profile, Segment};

/// A run that is void is repeated so often.
const TRIES: u32 = 3;
/// Length of the slots of the time series.
const SLOT: Nanos = Nanos::from_millis(500);
/// What the p99 in the recovery is compared with until `none` at 0.9 has been run, in seconds: a
/// quarter of the objective.
const NORMAL_P99: f64 = 0.25;

/// What `none` at 0.9 has shown: p99 over all, and of its worst slot. In seconds.
#[derive(Clone, Copy, Debug)]
struct Normal {
    p99: f64,
    slot_p99: f64,
    /// Nothing has been seen yet.
    is_assumed: bool,
}

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
}

/// Who is told what happens: one line at a time, and the second just gone.
pub trait Watch {
    /// A new step begins.
    fn step(&mut self, what: &str);
    /// A second of load has passed.
    fn second(&mut self, progress: &Progress);
}

struct Survival<'a> {
    scenario: &'a Scenario,
    extent: &'a Extent,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    lab: Lab,
    out: Outcome,
    clients: u32,
    normal: Normal,
}

/// Runs it.
///
/// # Errors
/// When lab, server, product or load fail, or runs stay void.
pub fn run(
    scenario: &Scenario,
    extent: &Extent,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    watch.step("making the lab");
    let lab = Lab::new(LabOptions::new(options.helper.clone())).context("the lab")?;
    let normal = Normal { p99: NORMAL_P99, slot_p99: NORMAL_P99, is_assumed: true };
    let (clients, out) = (0, Outcome::default());
    let mut survival = Survival { scenario, extent, options, watch, lab, out, clients, normal };
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
    /// One load: all variants between two measurements of the capacity; again while void.
    fn group(&mut self, load: f64) -> Result<()> {
        for attempt in 1..=TRIES {
            let before = self.capacity()?;
            let mut rows = Vec::new();
            for variant in &self.scenario.variants.clone() {
                rows.extend(self.point(variant, load, before)?);
                if self.extent.cold.contains(&load) && variant != "none" {
                    rows.extend(self.cold(variant, load, before)?);
                }
            }
            let what = format!("load {load}, try {attempt}");
            if let Some(capacity) = self.steady(&what, before)? {
                self.keep(rows, capacity);
                return Ok(());
            }
        }
        self.out.notes.push(format!("load {load}: void in {TRIES} tries, left out"));
        Ok(())
    }

    /// Measures the capacity again: the middle of both, or nothing if it drifted too far.
    fn steady(&mut self, what: &str, before: f64) -> Result<Option<f64>> {
        let after = self.capacity()?;
        let drift = (after / before - 1.0).abs();
        if drift > self.scenario.drift_max {
            self.out
                .notes
                .push(format!("{what}: void, the capacity went from {before:.1} to {after:.1}/s"));
        }
        let keep = drift <= self.scenario.drift_max || self.extent.keep_void;
        Ok(keep.then(|| f64::midpoint(before, after)))
    }

    /// The load from the first second on, on a tidegate that has seen nothing.
    fn cold(&mut self, variant: &str, load: f64, capacity: f64) -> Result<Vec<Row>> {
        let seconds = self.extent.load_s;
        let what = format!("{load} x C at once");
        let report = self.load(variant, &what, &[("load", load, seconds)], capacity)?;
        let stream = report.stream("crowd").context("the report lacks the crowd")?;
        let totals = &stream.phase("load").context("the report lacks the load")?.totals;
        let point = self.at(variant, "load_cold", load);
        let metrics = of_load(stream, totals, Span { from: 0.0, to: seconds });
        Ok(metrics.into_iter().map(|metric| point.row(metric)).collect())
    }

    /// Keeps the rows of a group with its capacity beside each point.
    fn keep(&mut self, mut rows: Vec<Row>, capacity: f64) {
        let points: Vec<Row> = rows.iter().filter(|row| row.metric == "goodput").cloned().collect();
        for row in points.into_iter().filter(|row| row.x_name.starts_with("load")) {
            rows.push(Row {
                metric: "capacity".into(),
                unit: "1/s".into(),
                value: capacity,
                ..row
            });
        }
        self.out.rows.append(&mut rows);
    }

    /// Answers per second of the bare server.
    fn capacity(&mut self) -> Result<f64> {
        self.watch.step("measuring the capacity");
        let server = self.scenario.server.start(&self.lab, 80, None).context("the server")?;
        let fast = CapacityOptions { windows: 12, ..CapacityOptions::default() };
        // The search for the number of clients is done once.
        let known = CapacityOptions {
            clients_from: self.clients,
            clients_max: self.clients,
            ..fast.clone()
        };
        let options = if self.clients == 0 { fast } else { known };
        let capacity: Capacity = self.lab.capacity(&server, &options).context("the capacity")?;
        self.clients = capacity.clients;
        self.watch.step(&format!("capacity: {}", capacity.rate));
        Ok(capacity.rate.get())
    }

    fn point(&mut self, variant: &str, load: f64, capacity: f64) -> Result<Vec<Row>> {
        let extent = self.extent;
        // What decides about 1 in 1,000 needs arrivals; `none` refuses nobody.
        let load_s = match variant {
            "none" => extent.load_s,
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
        let report = self.load(variant, &format!("{load} x C"), &pieces, capacity)?;
        let stream = report.stream("crowd").context("the report lacks the crowd")?;
        let totals = &stream.phase("load").context("the report lacks the load")?.totals;
        let point = self.at(variant, "load", load);
        let metrics = of_load(stream, totals, Span { from: begin, to: fall });
        if variant == "none" && (load - 0.9).abs() < 1e-9 {
            let (p99, slot_p99) =
                (totals.service.p99, worst(stream, Span { from: begin, to: fall }));
            self.normal = Normal { p99, slot_p99, is_assumed: false };
        }
        let mut rows: Vec<Row> = metrics.into_iter().map(|metric| point.row(metric)).collect();
        let seconds = recovery(stream, Span { from: fall, to: end }, self.normal.p99);
        rows.push(self.at(variant, "load_after", load).row(("recovery", "s", seconds)));
        if (load - self.scenario.trace_load).abs() < 1e-9 {
            rows.extend(course(stream, &point, end));
        }
        Ok(rows)
    }

    fn at(&self, variant: &str, x_name: &'static str, x: f64) -> Point {
        let experiment = self.options.experiment.clone();
        Point { experiment, variant: variant.into(), x_name, x }
    }

    /// One load on a fresh server, repeated while void.
    fn load(
        &mut self,
        variant: &str,
        what: &str,
        pieces: &[(&str, f64, f64)],
        capacity: f64,
    ) -> Result<LoadReport> {
        let plan = plan(pieces, capacity, self.options.seed);
        for attempt in 1..=TRIES {
            let arm = self.arm(variant, capacity)?;
            self.watch.step(&format!("{what}, {variant}"));
            let report = self.run_plan(&plan, arm.server())?;
            arm.end()?;
            if report.void.is_empty() {
                return Ok(report);
            }
            let why = report.void.join("; ");
            self.out.notes.push(format!("{what}, {variant}, try {attempt}: void, {why}"));
            if self.extent.keep_void {
                return Ok(report);
            }
        }
        bail!("{what}, {variant}: void in {TRIES} tries: {}", self.out.notes.join("; "))
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

    /// The CPU is halved under load, and given back; again while void.
    fn halved(&mut self) -> Result<()> {
        for attempt in 1..=TRIES {
            let before = self.capacity()?;
            let mut rows = Vec::new();
            for variant in &self.scenario.variants.clone() {
                rows.extend(self.halved_point(variant, before)?);
            }
            if let Some(capacity) = self.steady(&format!("CPU halved, try {attempt}"), before)? {
                let shares =
                    rows.iter().filter(|row| row.x_name == "cpu" && row.metric == "goodput");
                let capacities: Vec<Row> = shares
                    .map(|row| Row {
                        metric: "capacity".into(),
                        value: capacity * row.x,
                        ..row.clone()
                    })
                    .collect();
                self.out.rows.extend(rows.into_iter().chain(capacities));
                return Ok(());
            }
        }
        self.out.notes.push(format!("CPU halved: void in {TRIES} tries, left out"));
        Ok(())
    }

    fn halved_point(&mut self, variant: &str, capacity: f64) -> Result<Vec<Row>> {
        let [whole, half, again] = self.extent.halved_s[..] else {
            bail!("halved_s takes three lengths: whole, halved, whole again");
        };
        let load = self.scenario.halved_load;
        let pieces = [("whole", load, whole), ("half", load, half), ("again", load, again)];
        let report = self.halved_run(variant, &pieces, capacity)?;
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
        let seconds = recovery(stream, after, self.normal.slot_p99);
        rows.push(self.at(&name, "cpu", 1.0).row(("recovery", "s", seconds)));
        rows.extend(course(stream, &self.at(&name, "load", load), end));
        Ok(rows)
    }

    /// One run with the CPU cut, repeated while void.
    fn halved_run(
        &mut self,
        variant: &str,
        pieces: &[(&str, f64, f64); 3],
        capacity: f64,
    ) -> Result<LoadReport> {
        let mut notes = Vec::new();
        for attempt in 1..=TRIES {
            let report = self.halved_try(variant, pieces, capacity)?;
            if report.void.is_empty() {
                return Ok(report);
            }
            let why = report.void.join("; ");
            notes.push(format!("CPU halved, {variant}, try {attempt}: void, {why}"));
            self.out.notes.extend(notes.last().cloned());
            if self.extent.keep_void {
                return Ok(report);
            }
        }
        bail!("CPU halved, {variant}: void in {TRIES} tries: {}", notes.join("; "))
    }

    fn halved_try(
        &mut self,
        variant: &str,
        pieces: &[(&str, f64, f64); 3],
        capacity: f64,
    ) -> Result<LoadReport> {
        let arm = self.arm(variant, capacity)?;
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

    fn arm(&self, variant: &str, capacity: f64) -> Result<Arm> {
        let server = &self.scenario.server;
        let place = Place { lab: &self.lab, server, program: &self.options.program };
        Arm::start(&place, variant, Known { capacity, clients: self.clients })
    }
}

/// Pieces (name, load, seconds) as a plan; those of no length are left out.
fn plan(pieces: &[(&str, f64, f64)], capacity: f64, seed: u64) -> LoadPlan {
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
        abortive: false,
    };
    LoadPlan { seed, streams: vec![stream], phases, slot: SLOT, ..LoadPlan::default() }
}
