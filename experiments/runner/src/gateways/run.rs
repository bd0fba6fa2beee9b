// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the gateways: round by round each proxy and transport, all its arms between two measurements of
//! the capacity.

use super::arm::{self, Arm, Stand, numbers, settings};
use super::course::{self, CROWD, Gave, Marks};
use super::figures;
use super::scenario::{Extent, Group, Proxy, Scenario};
use super::summary::{self, Ran};
use crate::results::Row;
use crate::rivals::{Shape, Tried, best};
use crate::schedule::Schedule;
use crate::survival::arm::{Known, Setting};
use crate::survival::measure::Point;
use crate::survival::{Options, Outcome, Watch};
use anyhow::{Context, Result, bail};
use tidegate_lab::{Arrive, CapacityOptions, Lab, LabOptions, LoadReport};
use tidegate_units::Nanos;

/// Windows of a measurement of the capacity.
const WINDOWS: u32 = 4;
/// A run whose generator was late is made so often, while there is time.
const TRIES: u32 = 2;

struct Gateways<'a> {
    scenario: &'a Scenario,
    extent: &'a Extent,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    lab: Lab,
    edge_cpu: usize,
    runs: Vec<Ran>,
    /// Rows of the sweep.
    swept: Vec<Row>,
    /// What was chosen, by proxy and arm.
    chosen: Vec<(Proxy, Arm, Tried)>,
    /// The clients of the closed loop, by proxy and transport.
    clients: Vec<(String, u32)>,
    notes: Vec<String>,
    schedule: Schedule,
}

/// Runs it; `filter` chooses variants by name.
///
/// # Errors
/// When lab, server, proxy, product or load fail, or what is done cannot be kept.
pub fn run(
    scenario: &Scenario,
    (quick, filter): (bool, Option<&str>),
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    watch.step("making the lab");
    let usual = LabOptions::new(options.helper.clone());
    let edge_cpu = usual.load_cpu;
    // Proxy and gate are on the load's CPU, which goes first there.
    let beside = LabOptions { load_first: true, product_cpu: Some(edge_cpu), ..usual };
    let lab = Lab::new(beside).context("the lab")?;
    let extent = if quick { &scenario.quick } else { &scenario.full };
    let mut notes = Vec::new();
    let mut groups = scenario.groups(extent, filter)?;
    groups.retain(|group| match arm::program(group.proxy) {
        Ok(_) => true,
        Err(why) => {
            notes.push(format!("{}: left out, {why}", group.name()));
            false
        }
    });
    let limit = extent.minutes.map(|minutes| Nanos::from_secs_f64(minutes * 60.0));
    let schedule = Schedule::begin(limit, groups.len() * extent.rounds as usize);
    let (runs, swept, chosen, clients) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut gateways = Gateways {
        scenario,
        extent,
        options,
        watch,
        lab,
        edge_cpu,
        runs,
        swept,
        chosen,
        clients,
        notes,
        schedule,
    };
    for round in 0..extent.rounds {
        for group in &groups {
            if gateways.schedule.is_over() {
                let what = format!("round {}, {}: no time was left", round + 1, group.name());
                gateways.notes.push(what);
                continue;
            }
            gateways.group(group, round)?;
            gateways.keep()?;
            gateways.schedule.step();
        }
    }
    let mut outcome = gateways.outcome();
    outcome.figures = figures::all(&outcome.rows)?;
    Ok(outcome)
}

impl Gateways<'_> {
    fn outcome(&self) -> Outcome {
        let mut rows = summary::rows(&self.options.experiment, &self.runs);
        rows.extend(self.swept.iter().cloned());
        Outcome { rows, notes: self.notes.clone(), ..Outcome::default() }
    }

    fn keep(&mut self) -> Result<()> {
        let so_far = self.outcome();
        self.watch.kept(&so_far)
    }

    /// Measures the server through a proxy without a limit.
    fn capacity(&mut self, group: &Group) -> Result<Known> {
        let name = group.name();
        self.watch.step(&format!("{name}: measuring the capacity"));
        // It limits nothing: no setting is looked at.
        let unset = Setting::of(Known { capacity: 1.0, clients: 1 });
        let stand = Stand::start(self.place(), (group, Arm::None), &unset)?;
        let stream = stand.stream("capacity", Arrive::Closed { clients: 1 }, 0);
        let found = self.clients.iter().find(|(of, _)| *of == name).map_or(0, |(_, n)| *n);
        let search = CapacityOptions { windows: WINDOWS, ..CapacityOptions::default() };
        let options = search.with_clients(found);
        let capacity = self.lab.capacity_of(&stream, &options).context("the capacity")?;
        stand.end()?;
        if found == 0 {
            self.clients.push((name.clone(), capacity.clients));
        }
        self.watch
            .step(&format!("{name}: C is {} with {} clients", capacity.rate, capacity.clients));
        Ok(Known { capacity: capacity.rate.get(), clients: capacity.clients })
    }

    fn place(&self) -> (&Lab, &Scenario, &std::path::Path) {
        (&self.lab, self.scenario, &self.options.program)
    }

    /// All arms of a proxy and transport next to each other, between two measurements of the capacity.
    /// Each round begins with another arm, so that none always comes first.
    fn group(&mut self, group: &Group, round: u32) -> Result<()> {
        let before = self.capacity(group)?;
        for arm in &group.arms {
            self.choose(group, *arm, before)?;
        }
        let count = group.arms.len();
        let first = round as usize * count / (self.extent.rounds as usize).max(1);
        let mut made = Vec::new();
        for arm in group.arms.iter().cycle().skip(first).take(count) {
            let shapes = self.scenario.shapes(self.extent, *arm);
            let seed = self.options.seed + u64::from(round);
            let setting = self.setting(group, *arm, before);
            let what = format!("round {}, {}-{}", round + 1, group.name(), arm.name());
            let extent = self.extent;
            let run = (extent, shapes.as_slice(), (before.capacity, seed));
            for gave in self.course(group, (*arm, &setting), run, &what)?.into_iter().flatten() {
                made.push(Ran { group: group.clone(), arm: *arm, round, gave, drift: 0.0 });
            }
        }
        let after = self.capacity(group)?;
        let capacity = f64::midpoint(before.capacity, after.capacity);
        let drift = (after.capacity / before.capacity - 1.0).abs();
        for ran in &mut made {
            ran.drift = drift;
            ran.gave.metrics.push(("capacity", "1/s", capacity));
        }
        self.runs.extend(made);
        Ok(())
    }

    /// The setting of an arm at this capacity: what the sweep found best.
    fn setting(&self, group: &Group, arm: Arm, known: Known) -> Setting {
        let mut all = settings(self.scenario, self.extent, arm, known).into_iter();
        let mine = |(proxy, of, _): &&(Proxy, Arm, Tried)| (*proxy, *of) == (group.proxy, arm);
        let best = self.chosen.iter().find(mine).map(|(.., tried)| *tried);
        let same =
            |t: &Tried| best.is_none_or(|b| (t.x - b.x).abs() < 1e-9 && t.queue_ms == b.queue_ms);
        all.find(same).map_or_else(|| Setting::of(known), |tried| tried.setting)
    }

    /// Tries the settings of an arm, once for each proxy.
    fn choose(&mut self, group: &Group, arm: Arm, known: Known) -> Result<()> {
        let all = settings(self.scenario, self.extent, arm, known);
        let done = self.chosen.iter().any(|(proxy, of, _)| (*proxy, *of) == (group.proxy, arm));
        if done || all.len() < 2 {
            return Ok(());
        }
        let mut tried = Vec::new();
        for setting in all {
            tried.push((setting, self.try_one(group, (arm, &setting), known)?));
        }
        let variant = format!("{}-{}", group.name(), arm.name());
        let Some((best, goodput)) = best(&tried) else {
            bail!("{variant}: none of its settings could be measured");
        };
        let (of, numbers) = (tried.len(), numbers(arm, &best));
        self.notes.push(format!("{variant}: {numbers}; best of {of}, goodput {goodput:.0}/s"));
        self.chosen.push((group.proxy, arm, best));
        Ok(())
    }

    /// The goodput of one setting; no number where the generator was late each time.
    fn try_one(&mut self, group: &Group, (arm, tried): (Arm, &Tried), known: Known) -> Result<f64> {
        let queue = tried.queue_ms.map(|ms| format!("-q{ms}")).unwrap_or_default();
        let variant = format!("{}-{}{queue}", group.name(), arm.name());
        let what = format!("sweep: {variant} at {}", tried.x);
        let extent = Extent { step_s: self.extent.try_s, after_s: 0.0, ..self.extent.clone() };
        let shapes = [Shape::Step(self.scenario.sweep.load)];
        let run = (&extent, shapes.as_slice(), (known.capacity, self.options.seed));
        let gave = self.course(group, (arm, &tried.setting), run, &what)?;
        let metric = gave.and_then(|all| {
            all.first()?.metrics.iter().copied().find(|metric| metric.0 == "goodput")
        });
        let experiment = self.options.experiment.clone();
        let point = Point { experiment, variant, x_name: "setting", x: tried.x };
        self.swept.extend(metric.map(|metric| point.row(metric)));
        Ok(metric.map_or(f64::NAN, |metric| metric.2))
    }

    /// One course on one fresh arm, again while the generator was late; nothing if it stays so.
    fn course(
        &mut self,
        group: &Group,
        (arm, setting): (Arm, &Setting),
        run: (&Extent, &[Shape], (f64, u64)),
        what: &str,
    ) -> Result<Option<Vec<Gave>>> {
        for attempt in 1..=TRIES {
            let (void, gave) =
                self.once(group, (arm, setting), run, what).with_context(|| what.to_owned())?;
            if void.is_empty() {
                return Ok(Some(gave));
            }
            let why = void.join("; ");
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
        group: &Group,
        (arm, setting): (Arm, &Setting),
        (extent, shapes, load): (&Extent, &[Shape], (f64, u64)),
        what: &str,
    ) -> Result<(Vec<String>, Vec<Gave>)> {
        let stand = Stand::start(self.place(), (group, arm), setting)?;
        self.watch.step(what);
        let pieces = course::pieces(extent, shapes);
        let (mut plan, arrive) = course::plan((self.scenario, extent), &pieces, load);
        plan.streams = vec![stand.stream(CROWD, arrive, self.scenario.connections)];
        let marks = Marks::default();
        let watched = stand.watched(self.edge_cpu);
        let mut script = marks.script(&pieces, &watched);
        let watch = &mut *self.watch;
        let report: LoadReport =
            self.lab.run_script(&plan, &mut script, &mut |progress| watch.second(progress))?;
        drop(script);
        let gave = course::read(&report, &pieces, &marks)?;
        stand.end()?;
        Ok((report.void, gave))
    }
}
