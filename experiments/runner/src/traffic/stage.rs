// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the runs of a cell are made: its capacity, and one load on one arm.

use super::alarms;
use super::cell::Cell;
use crate::results::Row;
use crate::survival::arm::{Arm, Known, Place};
use crate::survival::measure::{Metric, Point, Span, course, of_load, recoveries, worst};
use crate::survival::{Watch, plan};
use anyhow::{Context, Result};
use std::path::PathBuf;
use tidegate_lab::{
    Arrive, Capacity, CapacityOptions, Counts, Helper, Lab, LabOptions, LoadReport, Server,
};
use tidegate_units::Nanos;

/// Windows of a measurement of the capacity.
const WINDOWS: u32 = 6;
/// Clients of a closed loop at most: beyond what any of the servers holds at once.
const CLIENTS_MAX: u32 = 1_024;
/// A probe of clients that think lasts this many seconds more than one of clients that do not.
const PROBE_THINK_S: f64 = 3.0;
/// A probe, and the time before the first window, without think time.
const PROBE_S: f64 = 1.5;
/// The onset of an overload, in seconds.
const ONSET_S: f64 = 2.0;

/// How long the parts of a run last, in seconds, and the loads around it, in multiples of C. A
/// session's length comes on top where a load has to rise.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Load before.
    pub before: f64,
    /// How long.
    pub before_s: f64,
    /// The load itself.
    pub load_s: f64,
    /// Load after.
    pub after: f64,
    /// How long.
    pub after_s: f64,
}

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The traffic.
    pub cell: &'a Cell,
    /// `none`, `drop`, `reject`.
    pub arm: &'a str,
    /// Multiple of the capacity.
    pub load: f64,
    /// Exchanges per second.
    pub capacity: f64,
    /// Its parts.
    pub lengths: Lengths,
    /// What the p99 of a recovery is compared with, in seconds.
    pub normal_p99: f64,
}

/// What came out of a run.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its metrics.
    pub rows: Vec<Row>,
    /// Its course, a row a second and metric.
    pub course: Vec<Row>,
    /// p99 of the admitted, in seconds.
    pub p99: f64,
    /// Clients that began a connection in the load, and those of them who were refused.
    pub connections: (u64, u64),
    /// Why it must not be judged.
    pub void: Vec<String>,
    /// The end of the daemon's log.
    pub log: String,
}

/// A lab with what all runs share.
pub struct Stage<'a> {
    lab: Lab,
    options: StageOptions,
    watch: &'a mut dyn Watch,
}

/// How runs are made.
#[derive(Clone, Debug)]
pub struct StageOptions {
    /// Name of the experiment, for the rows.
    pub experiment: String,
    /// The tidegate binary.
    pub program: PathBuf,
    /// What the lab starts its own processes with.
    pub helper: Helper,
    /// Seed of the arrivals.
    pub seed: u64,
    /// CPU time of a request in milliseconds.
    pub busy_ms: f64,
}

impl<'a> Stage<'a> {
    /// Makes the lab.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(options: StageOptions, watch: &'a mut dyn Watch) -> Result<Self> {
        watch.step("making the lab");
        let lab = Lab::new(LabOptions::new(options.helper.clone())).context("the lab")?;
        Ok(Self { lab, options, watch })
    }

    /// A remark for whoever watches.
    pub fn say(&mut self, what: &str) {
        self.watch.step(what);
    }

    /// What is done so far, for whoever keeps it.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn keep(&mut self, so_far: &crate::survival::Outcome) -> Result<()> {
        self.watch.kept(so_far)
    }

    /// Exchanges per second of the bare server, by a closed loop of the cell's sessions; `clients`
    /// as found before, 0 to look for them.
    ///
    /// # Errors
    /// When the server gives no good response.
    pub fn capacity(&mut self, cell: &Cell, clients: u32) -> Result<Capacity> {
        self.watch.step(&format!("{}: measuring the capacity", cell.name()));
        let server = cell.spec(self.options.busy_ms).start(&self.lab, 80, None)?;
        let stream = cell.stream(&server, "capacity", Arrive::Closed { clients: 1 });
        let thinks = if cell.ramp_s() > 0.0 { PROBE_THINK_S } else { 0.0 };
        let probe = Nanos::from_secs_f64(PROBE_S + thinks);
        let search = CapacityOptions {
            probe,
            warm_up: probe,
            windows: WINDOWS,
            clients_max: CLIENTS_MAX,
            ..CapacityOptions::default()
        };
        let options = search.with_clients(clients);
        let capacity = self.lab.capacity_of(&stream, &options).context("the capacity")?;
        self.watch.step(&format!(
            "{}: C is {} with {} clients",
            cell.name(),
            capacity.rate,
            capacity.clients
        ));
        Ok(capacity)
    }

    /// One load on a fresh arm.
    ///
    /// # Errors
    /// When server, product or load fail.
    pub fn run(&mut self, run: &Run<'_>) -> Result<Seen> {
        let Run { cell, arm, load, .. } = *run;
        let what = format!("{}, {arm}: {load} x C", cell.name());
        let spec = cell.spec(self.options.busy_ms);
        let place = Place {
            lab: &self.lab,
            server: &spec,
            program: &self.options.program,
            requests: serde_json::Value::Null,
        };
        let known = Known { capacity: run.capacity, clients: 1 };
        let arm = Arm::start(&place, arm, known)?;
        self.watch.step(&what);
        let (pieces, spans) = pieces(run);
        let sessions = run.capacity / f64::from(cell.requests);
        let mut plan = plan(&pieces, sessions, self.options.seed);
        plan.streams = vec![cell.stream(arm.server(), "crowd", plan.streams[0].arrive.clone())];
        let (lab, watch) = (&self.lab, &mut *self.watch);
        let before = cpu_used(arm.server());
        let (report, looked) =
            alarms::during(arm.product(), || lab.run_load(&plan, &mut |p| watch.second(p)));
        let report = report?;
        let server_cpu = before.zip(cpu_used(arm.server())).map(|(a, b)| b - a);
        let log = arm.product().map(|p| std::fs::read_to_string(p.process().log()));
        arm.end()?;
        let mut seen = self.seen(run, &report, spans)?;
        let lasted = plan.duration().as_secs_f64();
        let point = self.point(run, "load");
        let share = server_cpu.map_or(0.0, |used| used.as_secs_f64() / lasted);
        let more: [Metric; 3] = [
            ("alarms", "alarms", f64::from(looked.alarms)),
            ("generator_cpu", "share", report.cpu_peak()),
            ("server_cpu", "share", share),
        ];
        seen.rows.extend(more.map(|metric| point.row(metric)));
        if run.arm != "none" {
            let named = f64::from(u8::from(looked.names_layer));
            seen.rows.push(point.row(("layer_named", "share", named)));
        }
        seen.log = log.and_then(Result::ok).unwrap_or_default();
        Ok(seen)
    }

    fn point(&self, run: &Run<'_>, x_name: &'static str) -> Point {
        Point {
            experiment: self.options.experiment.clone(),
            variant: format!("{}-{}", run.cell.name(), run.arm),
            x_name,
            x: run.load,
        }
    }

    fn seen(&self, run: &Run<'_>, report: &LoadReport, spans: [Span; 2]) -> Result<Seen> {
        let [load, after] = spans;
        let stream = report.stream("crowd").context("the report lacks the crowd")?;
        let totals = &stream.phase("load").context("the report lacks the load")?.totals;
        let point = self.point(run, "load");
        let connections = connections(&totals.counts);
        let refused = share(connections);
        let mut metrics: Vec<Metric> =
            of_load(stream, totals, load).into_iter().filter(|m| m.0 != "refused").collect();
        metrics.push(("refused", "share", refused));
        metrics.push(("connections", "connections", connections.0 as f64));
        metrics.push(("capacity", "1/s", run.capacity));
        let onset = Span { from: load.from, to: load.to.min(load.from + ONSET_S) };
        metrics.push(("p99_onset", "s", worst(stream, onset)));
        let mut rows: Vec<Row> = metrics.into_iter().map(|metric| point.row(metric)).collect();
        let point = self.point(run, "load_after");
        rows.extend(recoveries(stream, after, run.normal_p99).map(|metric| point.row(metric)));
        let course = course(stream, &point, after.to);
        let (p99, void) = (totals.service.p99, report.void.clone());
        Ok(Seen { rows, course, p99, connections, void, log: String::new() })
    }

    /// The lab, for what is not a plain run.
    #[must_use]
    pub const fn lab(&self) -> &Lab {
        &self.lab
    }
}

/// CPU time of a server and of what is behind it.
fn cpu_used(server: &Server) -> Option<Nanos> {
    let behind = server.groups_behind().map(tidegate_lab::Group::cpu_used);
    let all: Option<Vec<Nanos>> = behind.chain([server.group().cpu_used()]).collect();
    all.map(|all| all.into_iter().fold(Nanos::ZERO, |sum, used| sum + used))
}

/// New connections and those of them that met a refusal: a kept connection is refused nothing.
fn connections(counts: &Counts) -> (u64, u64) {
    (counts.offered - counts.reused.min(counts.offered), counts.refused)
}

fn share((connections, refused): (u64, u64)) -> f64 {
    refused as f64 / connections.max(1) as f64
}

/// The parts of a run with the load of each, and the spans of the load and of what comes after it.
/// A load counts once it has risen: where clients think, as many sessions as belong to it are under
/// way only when the first of them are over.
fn pieces<'a>(run: &Run<'_>) -> ([(&'a str, f64, f64); 4], [Span; 2]) {
    let (l, ramp) = (run.lengths, run.cell.ramp_s());
    let begin = l.before_s + ramp;
    let from = begin + ramp;
    let fall = from + l.load_s;
    let pieces = [
        ("before", l.before, begin),
        ("rise", run.load, ramp),
        ("load", run.load, l.load_s),
        ("after", l.after, l.after_s),
    ];
    (pieces, [Span { from, to: fall }, Span { from: fall, to: fall + l.after_s }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::cell::all;

    fn run(cell: &Cell) -> Run<'_> {
        let lengths =
            Lengths { before: 0.5, before_s: 4.0, load_s: 12.0, after: 0.5, after_s: 8.0 };
        Run { cell, arm: "none", load: 2.0, capacity: 100.0, lengths, normal_p99: 0.1 }
    }

    /// Without think time a load is there at once; with it, both steps have to rise.
    #[test]
    fn a_load_counts_once_it_has_risen() {
        let of = |requests, think| {
            let cell = Cell { requests, think, ..all()[0] };
            let (pieces, [load, after]) = pieces(&run(&cell));
            (pieces.map(|p| p.2), load.from, load.to, after.to)
        };
        assert_eq!(of(1, 0.0), ([4.0, 0.0, 12.0, 8.0], 4.0, 16.0, 24.0));
        assert_eq!(of(5, 0.5), ([6.0, 2.0, 12.0, 8.0], 8.0, 20.0, 28.0));
    }

    /// Who comes on a kept connection is no connection; a refusal is one of a connection.
    #[test]
    fn refusals_are_counted_by_connection() {
        let counts = Counts { offered: 100, reused: 80, refused: 5, ..Counts::NONE };
        assert_eq!(connections(&counts), (20, 5));
        assert!((share((20, 5)) - 0.25).abs() < 1e-9);
        assert!(share((0, 0)).abs() < 1e-9);
    }
}
