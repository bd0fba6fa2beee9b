// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the attacks: round by round, the arms next to each other, each on a fresh server.

use super::fault::{self, Held};
use super::scenario::{Attack, Extent, FaultKind, Hostile, RANGE, Scenario};
use super::summary::{self, Ran};
use crate::schedule::{LIMIT, Schedule};
use crate::survival::arm::{Arm, Known, Place};
use crate::survival::{Options, Outcome, Watch};
use crate::traffic::alarms;
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use tidegate_lab::{
    Arrive, CLIENTS_V4, CapacityOptions, Flood, KeepAlive, Lab, LabOptions, LoadPlan, LoadReport,
    Phase, Server, Sources, Stream,
};
use tidegate_units::Nanos;
use tidegate_workload::{Profile, Segment};

/// Windows of a measurement of the capacity.
const WINDOWS: u32 = 6;
/// First of the source ports of who uses few.
const PORT_FIRST: u16 = 1_024;
/// Requests on a connection of who hammers.
const HAMMERED: u32 = 1_000_000;
/// Streams of the honest, and the phase that counts.
const KNOWN: &str = "known";
const NEW: &str = "new";
const COUNTS: &str = "counts";

struct Attacks<'a> {
    scenario: &'a Scenario,
    extent: &'a Extent,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    lab: Lab,
    runs: Vec<Ran>,
    notes: Vec<String>,
}

/// One run.
#[derive(Clone, Copy)]
struct Now<'a> {
    attack: &'a Attack,
    arm: &'a str,
    round: u32,
    /// Responses per second.
    capacity: f64,
}

/// Runs it; `filter` chooses attacks by name.
///
/// # Errors
/// When lab, server, product or load fail, or what is done cannot be kept.
pub fn run(
    scenario: &Scenario,
    (quick, filter): (bool, Option<&str>),
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    watch.step("making the lab");
    let lab = Lab::new(LabOptions::new(options.helper.clone())).context("the lab")?;
    let extent = if quick { &scenario.quick } else { &scenario.full };
    let chosen = scenario.chosen(extent, filter)?;
    let (runs, notes) = (Vec::new(), Vec::new());
    let mut attacks = Attacks { scenario, extent, options, watch, lab, runs, notes };
    let schedule = Schedule::begin(Some(LIMIT), chosen.len());
    for attack in chosen {
        if schedule.is_over() {
            attacks.notes.push(format!("{}: no time was left", attack.name));
            continue;
        }
        attacks.attack(attack).with_context(|| attack.name.clone())?;
        let so_far = attacks.outcome();
        attacks.watch.kept(&so_far)?;
    }
    Ok(attacks.outcome())
}

impl Attacks<'_> {
    fn outcome(&self) -> Outcome {
        let rows = summary::rows(&self.options.experiment, &self.runs);
        Outcome { rows, notes: self.notes.clone(), ..Outcome::default() }
    }

    fn attack(&mut self, attack: &Attack) -> Result<()> {
        let before = self.capacity(attack, 0)?;
        let capacity = before.capacity;
        let mut made = Vec::new();
        for round in 0..self.extent.rounds {
            for arm in attack.arms(self.scenario, self.extent) {
                made.push(self.run(&Now { attack, arm, round, capacity })?);
            }
        }
        // Pairs of one round do not need it.
        if attack.is_beside_capacity() {
            let after = self.capacity(attack, before.clients)?.capacity;
            for ran in &mut made {
                ran.capacity = f64::midpoint(capacity, after);
                ran.drift = Some((after / capacity - 1.0).abs());
            }
        }
        self.runs.extend(made);
        Ok(())
    }

    /// Measures the bare server; `clients` as found before, 0 to look for them.
    fn capacity(&mut self, attack: &Attack, clients: u32) -> Result<Known> {
        self.watch.step(&format!("{}: measuring the capacity", attack.name));
        let server = attack.server.start(&self.lab, 80, None)?;
        let search = CapacityOptions { windows: WINDOWS, ..CapacityOptions::default() };
        let options = search.with_clients(clients);
        let found = self.lab.capacity(&server, &options).context("the capacity")?;
        Ok(Known { capacity: found.rate.get(), clients: found.clients })
    }

    fn run(&mut self, now: &Now<'_>) -> Result<Ran> {
        let Now { attack, arm, round, capacity } = *now;
        let place = Place {
            lab: &self.lab,
            server: &attack.server,
            program: &self.options.program,
            requests: attack.requests.clone(),
        };
        // Whoever is started in the crowd is not there before it.
        let late = attack.fault.is_some_and(|fault| fault.kind == FaultKind::Start);
        let begins = if late { "none" } else { arm };
        let mut arm = Arm::start(&place, begins, Known { capacity, clients: 1 })?;
        let what = format!("{}, {}, round {}", attack.name, now.arm, round + 1);
        self.watch.step(&what);
        let plan = self.plan(now, arm.server());
        let (report, looked) = {
            let flooded = self.flood(attack, arm.server())?;
            let (lab, watch) = (&self.lab, &mut *self.watch);
            let mut second = |progress: &tidegate_lab::Progress| watch.second(progress);
            let done = if let Some(fault) = attack.fault {
                // A daemon that is stopped or gone does not answer, so nobody looks at its alarms.
                let held = Held::new(&place, now.arm, arm.take_product());
                let mut script = held.script(fault, self.extent.before_s);
                let report = lab.run_script(&plan, &mut script, &mut second);
                drop(script);
                arm.give_product(held.into_product());
                (report, alarms::Looked::default())
            } else {
                alarms::during(arm.product(), || lab.run_load(&plan, &mut second))
            };
            drop(flooded);
            done
        };
        let report = report?;
        arm.end()?;
        if let Some(failed) = report.events.iter().find_map(|event| event.error.as_ref()) {
            bail!("{what}: {failed}");
        }
        // A generator that was late is told; whoever attacks is not judged by its punctuality.
        self.notes.extend(report.void.iter().map(|why| format!("{what}: {why}")));
        ran(now, &report, looked.alarms)
    }

    /// SYNs of spoofed senders, from the run's beginning on.
    fn flood(&self, attack: &Attack, server: &Server) -> Result<Option<tidegate_lab::Managed>> {
        let SocketAddr::V4(target) = server.target() else { return Ok(None) };
        if attack.flood <= 0.0 {
            return Ok(None);
        }
        let flood = Flood { target, rate: attack.flood, seed: self.options.seed };
        self.lab.flood(&flood).map(Some).context("the flood")
    }

    fn plan(&self, now: &Now<'_>, server: &Server) -> LoadPlan {
        let Now { attack, capacity, .. } = *now;
        let before = self.extent.before_s;
        let attacked = attack.attack_s(self.extent);
        let calm = self.scenario.load * capacity;
        let honest = attack.load.unwrap_or(self.scenario.load) * capacity / 2.0;
        let addresses = self.scenario.addresses;
        let steps = |rates: [f64; 2]| {
            let length = [before, attacked].map(Nanos::from_secs_f64);
            let pieces = [0, 1].map(|i| Segment::constant(length[i], rates[i]));
            Arrive::poisson(Profile::new(&pieces))
        };
        let from = |stream: Stream, range: u64, count: u32| {
            let first =
                Sources { first: CLIENTS_V4, count: u32::MAX }.get(range * u64::from(RANGE));
            Stream { sources: Sources { first, count }, ..stream }
        };
        let mut streams = vec![
            from(server.stream(KNOWN, steps([calm, honest])), 0, addresses),
            from(server.stream(NEW, steps([0.0, honest])), 1, addresses),
        ];
        for (index, hostile) in attack.hostile.iter().enumerate() {
            let name = format!("hostile{index}");
            let arrive = arrivals(hostile, capacity, (before, attacked));
            let stream = from(server.stream(&name, arrive), 2 + index as u64, hostile.addresses);
            streams.push(Stream {
                manner: hostile.manner,
                path: hostile.path.clone().unwrap_or(stream.path.clone()),
                ports: (hostile.ports > 0).then_some((PORT_FIRST, hostile.ports)),
                keep_alive: (hostile.hammering > 0).then_some(KeepAlive::of(HAMMERED)),
                ..stream
            });
        }
        let seconds = Nanos::from_secs_f64;
        let counts = Phase {
            name: COUNTS.into(),
            start: seconds(before + attack.counts_from_s()),
            end: seconds(before + attacked),
        };
        LoadPlan {
            seed: self.options.seed + u64::from(now.round),
            streams,
            phases: vec![counts],
            timeout: seconds(self.scenario.patience_s),
            connect_timeout: seconds(attack.connect_s),
            closed_until: seconds(before + attacked),
            ..LoadPlan::default()
        }
    }
}

/// When hostile clients come: nobody before the attack, but for those who hammer.
fn arrivals(hostile: &Hostile, capacity: f64, (before, attacked): (f64, f64)) -> Arrive {
    if hostile.hammering > 0 {
        return Arrive::Closed { clients: hostile.hammering };
    }
    let piece = |seconds: f64, rate: f64| Segment::constant(Nanos::from_secs_f64(seconds), rate);
    let pieces = if hostile.at_once > 0.0 {
        vec![piece(before, 0.0), piece(1.0, hostile.at_once), piece(attacked - 1.0, 0.0)]
    } else {
        let rate = hostile.rate.max(hostile.of_capacity * capacity);
        vec![piece(before, 0.0), piece(attacked, rate)]
    };
    Arrive::constant(Profile::new(&pieces))
}

fn ran(now: &Now<'_>, report: &LoadReport, alarms: u32) -> Result<Ran> {
    let phase = |name: &str| {
        let found = report.stream(name).and_then(|stream| stream.phase(COUNTS));
        found.map(|phase| &phase.totals).with_context(|| format!("the report lacks {name}"))
    };
    let (known, new) = (phase(KNOWN)?, phase(NEW)?);
    let hostile = report.streams.iter().filter(|s| s.name.starts_with("hostile"));
    Ok(Ran {
        attack: now.attack.name.clone(),
        arm: now.arm.to_owned(),
        round: now.round,
        offered: known.counts.offered + new.counts.offered,
        refused: known.counts.refused + new.counts.refused,
        goodput: known.goodput + new.goodput,
        fresh: (new.counts.offered, new.counts.refused),
        p99: known.service.p99.max(new.service.p99),
        hostile: hostile.filter_map(|s| s.phase(COUNTS)).map(|p| p.totals.goodput).sum(),
        capacity: now.capacity,
        alarms,
        back_s: now.attack.fault.map(|_| fault::back_s(report)),
        drift: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hostile(rate: f64, at_once: f64) -> Hostile {
        Hostile {
            manner: tidegate_lab::Manner::Silent,
            path: None,
            rate,
            of_capacity: 0.0,
            at_once,
            hammering: 0,
            addresses: 1,
            ports: 0,
        }
    }

    /// Expected arrivals before the attack, in its first second and in all of it.
    fn expected(hostile: &Hostile) -> [f64; 3] {
        let Arrive::Open { profile, .. } = arrivals(hostile, 100.0, (4.0, 15.0)) else {
            return [0.0; 3];
        };
        let rate = |i: usize| profile.segments[i].from;
        [rate(0), rate(1), profile.expected()]
    }

    #[test]
    fn hostile_clients_come_with_the_attack() {
        assert_eq!(expected(&hostile(50.0, 0.0)), [0.0, 50.0, 750.0]);
        assert_eq!(expected(&hostile(0.0, 100.0)), [0.0, 100.0, 100.0]);
        let crowd = Hostile { of_capacity: 3.0, ..hostile(0.0, 0.0) };
        assert_eq!(expected(&crowd)[1], 300.0);
    }
}
