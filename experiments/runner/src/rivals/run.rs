// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the comparison: the capacity, the sweep, then round by round every load on every arm.

use super::figures;
use super::scenario::{Extent, Scenario, Shape};
use super::summary::{self, Ran};
use super::sweep::{self, Tried, settings};
use crate::results::Row;
use crate::schedule::{LIMIT, Schedule};
use crate::survival::arm::{self, Arm, Known, Place, Setting};
use crate::survival::measure::{Metric, Point, Span, of_load, recovery};
use crate::survival::measure::{Normal, worst};
use crate::survival::{Options, Outcome, Watch};
use anyhow::{Context, Result, bail};
use tidegate_lab::{
    Arrive, CapacityOptions, Lab, LabError, LabOptions, LoadPlan, LoadReport, Phase,
};
use tidegate_units::Nanos;
use tidegate_workload::{Profile, Segment};

/// Windows of a measurement of the capacity.
const WINDOWS: u32 = 6;
/// A run whose generator was late is made so often, while there is time.
const TRIES: u32 = 2;
/// Length of the slots of the time series.
const SLOT: Nanos = Nanos::from_millis(500);
/// The stream of all clients, and the part that counts.
const CROWD: &str = "crowd";
const COUNTS: &str = "counts";
/// The onset of an overload, in seconds.
const ONSET_S: f64 = 2.0;
/// What the p99 of a recovery is compared with, in seconds: a quarter of the objective.
const NORMAL_P99: f64 = 0.25;

struct Rivals<'a> {
    scenario: &'a Scenario,
    extent: &'a Extent,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    lab: Lab,
    runs: Vec<Ran>,
    /// Rows of the sweep.
    swept: Vec<Row>,
    notes: Vec<String>,
    /// The sweep, and the loads of all rounds.
    schedule: Schedule,
}

/// One load.
#[derive(Clone, Copy)]
struct Load {
    shape: Shape,
    before_s: f64,
    load_s: f64,
    after_s: f64,
    /// Responses per second.
    capacity: f64,
    seed: u64,
}

/// An arm with its setting.
type Chosen = (String, Setting);

/// Runs it; `filter` chooses rivals by name.
///
/// # Errors
/// When lab, server, rival, product or load fail, or what is done cannot be kept.
pub fn run(
    scenario: &Scenario,
    (quick, filter): (bool, Option<&str>),
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    watch.step("making the lab");
    let shared = LabOptions { shared: true, ..LabOptions::new(options.helper.clone()) };
    let lab = Lab::new(shared).context("the lab")?;
    let extent = if quick { &scenario.quick } else { &scenario.full };
    let arms = scenario.chosen(extent, filter)?;
    let (runs, swept, notes) = (Vec::new(), Vec::new(), Vec::new());
    let groups = scenario.shapes(extent).len() * extent.rounds as usize;
    let schedule = Schedule::begin(Some(LIMIT), 1 + groups);
    let mut rivals = Rivals { scenario, extent, options, watch, lab, runs, swept, notes, schedule };
    let known = rivals.capacity(0)?;
    let chosen = rivals.sweep(&arms, known)?;
    rivals.keep()?;
    rivals.schedule.step();
    let mut known = known;
    for round in 0..extent.rounds {
        for shape in scenario.shapes(extent) {
            if rivals.schedule.is_over() {
                rivals.notes.push(format!("round {}, {shape}: no time was left", round + 1));
                continue;
            }
            known = rivals.group(&chosen, (shape, round), known)?;
            rivals.keep()?;
            rivals.schedule.step();
        }
    }
    let mut outcome = rivals.outcome();
    outcome.figures = figures::all(&outcome.rows)?;
    Ok(outcome)
}

impl Rivals<'_> {
    fn outcome(&self) -> Outcome {
        let mut rows = summary::rows(&self.options.experiment, &self.runs);
        rows.extend(self.swept.iter().cloned());
        Outcome { rows, notes: self.notes.clone(), ..Outcome::default() }
    }

    fn keep(&mut self) -> Result<()> {
        let so_far = self.outcome();
        self.watch.kept(&so_far)
    }

    /// Measures the bare server; `clients` as found before, 0 to look for them.
    fn capacity(&mut self, clients: u32) -> Result<Known> {
        self.watch.step("measuring the capacity");
        let server = self.scenario.server.start(&self.lab, 80, None).context("the server")?;
        let search = CapacityOptions { windows: WINDOWS, ..CapacityOptions::default() };
        let options = search.with_clients(clients);
        let found = self.lab.capacity(&server, &options).context("the capacity")?;
        self.watch.step(&format!("C is {} with {} clients", found.rate, found.clients));
        Ok(Known { capacity: found.rate.get(), clients: found.clients })
    }

    /// Gives every arm its setting; one whose program is missing is left out, with a note.
    fn sweep(&mut self, arms: &[String], known: Known) -> Result<Vec<Chosen>> {
        let mut chosen = Vec::new();
        for arm in arms {
            if let Some(why) = arm::lacks(arm) {
                self.notes.push(format!("{arm}: left out, {why}"));
                continue;
            }
            let all = settings(self.scenario, self.extent, arm, known);
            if let [only] = all[..] {
                chosen.push((arm.clone(), only.setting));
                continue;
            }
            let mut tried = Vec::new();
            for setting in all {
                tried.push((setting, self.try_one(arm, &setting, known)?));
            }
            let Some((best, goodput)) = sweep::best(&tried) else {
                bail!("{arm}: none of its settings could be measured");
            };
            let Setting { rate, burst, places, queue } = best.setting;
            let numbers = match arm.as_str() {
                "haproxy" => format!("maxconn {places}, timeout queue {queue}"),
                "nginx-conn" => format!("limit_conn {places}"),
                _ => format!("{:.0}/s ({} x C), burst {burst}", rate.floor(), best.x),
            };
            let of = tried.len();
            self.notes.push(format!("{arm}: {numbers}; best of {of}, goodput {goodput:.0}/s"));
            chosen.push((arm.clone(), best.setting));
        }
        Ok(chosen)
    }

    /// The goodput of one setting; no number where the generator was late each time.
    fn try_one(&mut self, arm: &str, tried: &Tried, known: Known) -> Result<f64> {
        let load = Load {
            shape: Shape::Step(self.scenario.sweep.load),
            before_s: self.extent.before_s,
            load_s: self.extent.try_s,
            after_s: 0.0,
            capacity: known.capacity,
            seed: self.options.seed,
        };
        let queue = tried.queue_ms.map(|ms| format!("-q{ms}")).unwrap_or_default();
        let what = format!("sweep: {arm}{queue} at {}", tried.x);
        let Some(metrics) = self.load(arm, &tried.setting, &load, &what)? else {
            return Ok(f64::NAN);
        };
        let point = Point {
            experiment: self.options.experiment.clone(),
            variant: format!("{arm}{queue}"),
            x_name: "setting",
            x: tried.x,
        };
        let goodput = metrics.iter().copied().find(|m| m.0 == "goodput");
        self.swept.extend(goodput.map(|metric| point.row(metric)));
        Ok(goodput.map_or(f64::NAN, |m| m.2))
    }

    /// All arms at one load, next to each other, between two measurements of the capacity. Each
    /// round begins with another arm, so that none always comes first.
    fn group(
        &mut self,
        chosen: &[Chosen],
        (shape, round): (Shape, u32),
        before: Known,
    ) -> Result<Known> {
        let load = Load {
            shape,
            before_s: self.extent.before_s,
            load_s: self.extent.load_s(shape),
            after_s: self.extent.after_s,
            capacity: before.capacity,
            seed: self.options.seed + u64::from(round),
        };
        let first = round as usize * chosen.len() / (self.extent.rounds as usize).max(1);
        let mut made = Vec::new();
        for (arm, setting) in chosen.iter().cycle().skip(first).take(chosen.len()) {
            let what = format!("round {}, {shape}, {arm}", round + 1);
            if let Some(metrics) = self.load(arm, setting, &load, &what)? {
                made.push(Ran { arm: arm.clone(), shape, round, metrics, drift: 0.0 });
            }
        }
        let after = self.capacity(before.clients)?;
        let capacity = f64::midpoint(before.capacity, after.capacity);
        let drift = (after.capacity / before.capacity - 1.0).abs();
        for ran in &mut made {
            ran.drift = drift;
            ran.metrics.push(("capacity", "1/s", capacity));
        }
        self.runs.extend(made);
        Ok(after)
    }

    /// One load on one fresh arm, again while the generator was late; nothing if it stays so.
    fn load(
        &mut self,
        arm: &str,
        setting: &Setting,
        load: &Load,
        what: &str,
    ) -> Result<Option<Vec<Metric>>> {
        for attempt in 1..=TRIES {
            let (report, generator) = self.once(arm, setting, load, what)?;
            if report.void.is_empty() {
                let mut found = metrics(&report, load)?;
                found.push(("generator_cpu", "share", generator));
                return Ok(Some(found));
            }
            let why = report.void.join("; ");
            self.notes.push(format!("{what}, try {attempt}: void, {why}"));
            if !self.schedule.may_repeat() {
                break;
            }
        }
        self.notes.push(format!("{what}: void, left out"));
        Ok(None)
    }

    fn once(
        &mut self,
        name: &str,
        setting: &Setting,
        load: &Load,
        what: &str,
    ) -> Result<(LoadReport, f64)> {
        let place = Place {
            lab: &self.lab,
            server: &self.scenario.server,
            program: &self.options.program,
            requests: serde_json::Value::Null,
        };
        let arm = Arm::start_set(&place, name, setting).with_context(|| what.to_owned())?;
        self.watch.step(what);
        let mut plan = plan(load);
        plan.streams = vec![arm.server().stream(CROWD, arrive(load, self.scenario.around))];
        let watch = &mut *self.watch;
        let report: Result<LoadReport, LabError> =
            self.lab.run_load(&plan, &mut |progress| watch.second(progress));
        let report = report.with_context(|| what.to_owned())?;
        arm.end()?;
        let peak = report.cpu_peak();
        Ok((report, peak))
    }
}

/// Before, the load, after.
fn arrive(load: &Load, around: f64) -> Arrive {
    let (from, to) = match load.shape {
        Shape::Step(x) => (x, x),
        Shape::Ramp(from, to) => (from, to),
    };
    let around = around * load.capacity;
    let seconds = Nanos::from_secs_f64;
    let rises =
        Segment { lasts: seconds(load.load_s), from: from * load.capacity, to: to * load.capacity };
    let before = Segment::constant(seconds(load.before_s), around);
    let after = Segment::constant(seconds(load.after_s), around);
    Arrive::poisson(Profile::new(&[before, rises, after]))
}

/// The part that counts, and all else of a plan but its stream.
fn plan(load: &Load) -> LoadPlan {
    let Span { from, to } = counted(load);
    let (start, end) = (Nanos::from_secs_f64(from), Nanos::from_secs_f64(to));
    let phases = vec![Phase { name: COUNTS.into(), start, end }];
    LoadPlan { seed: load.seed, phases, slot: SLOT, ..LoadPlan::default() }
}

/// What counts of a load, in whole slots.
fn counted(load: &Load) -> Span {
    let slot = SLOT.as_secs_f64();
    let from = load.before_s + load.shape.counts_from() * load.load_s;
    Span { from: (from / slot).ceil() * slot, to: load.before_s + load.load_s }
}

fn metrics(report: &LoadReport, load: &Load) -> Result<Vec<Metric>> {
    let stream = report.stream(CROWD).context("the report lacks the crowd")?;
    let totals = &stream.phase(COUNTS).context("the report lacks what counts")?.totals;
    let span = counted(load);
    let mut found = of_load(stream, totals, span);
    let onset = Span { to: span.to.min(span.from + ONSET_S), ..span };
    found.push(("p99_onset", "s", worst(stream, onset)));
    if load.after_s > 0.0 {
        let after = Span { from: span.to, to: span.to + load.after_s };
        found.push(("recovery", "s", recovery(stream, after, NORMAL_P99, Normal::All)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(shape: Shape) -> Load {
        Load { shape, before_s: 3.0, load_s: 9.0, after_s: 2.0, capacity: 100.0, seed: 1 }
    }

    /// Expected arrivals of the whole, and the span that counts.
    #[test]
    fn a_load_is_what_it_says() {
        let expected = |shape| match arrive(&load(shape), 0.5) {
            Arrive::Open { profile, .. } => profile.expected(),
            _ => 0.0,
        };
        assert!((expected(Shape::Step(3.0)) - (150.0 + 2_700.0 + 100.0)).abs() < 1e-6);
        assert!((expected(Shape::Ramp(0.5, 5.0)) - (150.0 + 2_475.0 + 100.0)).abs() < 1e-6);
        let span = |shape| {
            let Span { from, to } = counted(&load(shape));
            (from, to)
        };
        assert_eq!(span(Shape::Step(3.0)), (3.0, 12.0));
        // It passes the capacity after a ninth of 9 s.
        assert_eq!(span(Shape::Ramp(0.5, 5.0)), (4.0, 12.0));
    }
}
