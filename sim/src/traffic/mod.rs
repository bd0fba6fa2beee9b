// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A world of sessions: connections with several requests, think time, TLS and HTTP/2, in front of
//! servers that keep connections, on a machine that several services may share.
//!
//! ```text
//!   client ─ d ─► gate ─► SYN-ACK ─ 2d ─► ACK, first payload ─► accept queue ─► worker or loop ─► turns
//! ```
//!
//! All events are at the server; the client is half a round trip (d) away, and what it perceives is
//! computed from that. The gate, its policies and the controllers are those of [`crate::world`].
//! Files: `client` is the client's side, `serve` the server's, `decide` the control loop, `kept` what
//! one daemon leaves to the next.

mod client;
mod conn;
mod cpu;
mod decide;
mod kept;
pub mod matrix;
mod sense;
mod serve;
pub mod spec;
#[cfg(test)]
mod tests;
mod track;
pub mod worlds;

pub use conn::CONNECTIONS_MAX;
pub use sense::Accounting;

use crate::engine::{Classed, Engine};
use crate::governor::SimGovernor;
use crate::world::gate::{Gate, GateSpec};
use crate::world::report::Report;
use crate::world::{Arrival, Phase};
use conn::{Conns, Id};
use cpu::Cpu;
use decide::Loop;
use serve::Server;
use spec::{Change, Load, Spec};
use tidegate_control::Mode;
use tidegate_control::fleet::Terms;
use tidegate_policy::{Action, Policy};
use tidegate_units::{Clock, Nanos};
use tidegate_workload::{Arrivals, Process, Profile, Rng, Segment};

/// Users of a closed loop begin within this time.
const CLOSED_SPREAD: Nanos = Nanos::from_millis(500);

#[derive(Clone, Copy, Debug)]
enum Happening {
    /// The next job on the processors is done, unless the epoch has passed.
    Cpu(u64),
    /// A request of a connection has waited.
    Wait(Id, u32),
    /// The upstream has answered a request of a connection.
    Upstream(Id, u32),
    Change(usize),
    Apply,
    Tick,
    /// The server closes, if it has not looked at the connection again.
    Expire(Id, u32),
    /// The client leaves, if the turn is still the same.
    GiveUp(Id, u32),
    /// The requests of the next turn.
    Message(Id),
    /// The ACK of the handshake, and the first payload.
    Data(Id),
    /// The first payload of a client that needs some time for it.
    Speak(Id),
    Syn(Id),
    Arrive(usize),
}

impl Classed for Happening {
    /// Departures first, then changes, control, and arrivals last.
    fn class(&self) -> u8 {
        match self {
            Self::Cpu(_) | Self::Wait(..) | Self::Upstream(..) => 0,
            Self::Change(_) => 1,
            Self::Apply => 2,
            Self::Tick => 3,
            Self::Expire(..) | Self::GiveUp(..) => 4,
            Self::Message(_) | Self::Data(_) | Self::Speak(_) | Self::Syn(_) => 5,
            Self::Arrive(_) => 6,
        }
    }
}

/// One stream of sessions under way.
struct Flow {
    arrivals: Option<Arrivals>,
    until: Nanos,
    /// Requests that were begun, and that ended: well or not.
    begun: u64,
    ended: u64,
    report: Report,
}

/// What became of one stream's sessions.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// `began` and `refused` count sessions, everything else requests. Traces are in the first stream
    /// of a service.
    pub report: Report,
    /// Sessions that the server closed although the client had more to ask.
    pub cut: u64,
}

struct World {
    engine: Engine<Happening>,
    spec: Spec,
    conns: Conns,
    flows: Vec<Flow>,
    cut: Vec<u64>,
    cpu: Cpu,
    servers: Vec<Server>,
    gates: Vec<Gate>,
    loops: Vec<Loop>,
    /// Since when the daemon has been silent; `None` while it ticks.
    silent_since: Option<Nanos>,
    clients_rng: Vec<Rng>,
    /// The end of the load.
    until: Nanos,
    /// Whether the processors have other work than when their timer was set.
    replan: bool,
}

/// Runs a world; what became of each stream.
///
/// # Errors
/// When a checker finds the world wrong: a request that ended twice or never, a gauge that does not
/// return to zero, a stage that holds more than it may, an event in the past, a limit that the
/// policy refuses.
pub fn run(spec: Spec) -> Result<Vec<Course>, String> {
    let mut world = World::new(spec);
    while let Some(happening) = world.engine.step() {
        world.step(happening)?;
    }
    world.check()?;
    let courses = world.flows.into_iter().zip(world.cut);
    Ok(courses.map(|(flow, cut)| Course { report: flow.report, cut }).collect())
}

impl World {
    fn new(mut spec: Spec) -> Self {
        let rng = |stream: usize| Rng::new(spec.seed, stream as u64);
        let flows: Vec<Flow> =
            spec.streams.iter().enumerate().map(|(i, s)| Flow::new(&s.load, rng(16 + i))).collect();
        let mut gates = Vec::new();
        let mut loops = Vec::new();
        for service in &mut spec.services {
            let (governor, gate) = match service.protection.take() {
                Some((controller, gate)) => {
                    (Some(SimGovernor::new(controller, Terms::default(), gate.mode)), gate)
                }
                None => (None, GateSpec::new(Policy::TokenBucket, Action::Drop, Mode::Enforce)),
            };
            gates.push(Gate::new(gate));
            let successor = service.successor.take();
            loops.push(Loop::new((governor, successor), service.accounting));
        }
        let servers: Vec<Server> =
            spec.services.iter().map(|service| Server::new(service.server.clone())).collect();
        let mut world = Self {
            engine: Engine::new(),
            conns: Conns::default(),
            cut: vec![0; flows.len()],
            cpu: Cpu::new(spec.cpus, servers.len()),
            clients_rng: (0..flows.len()).map(|i| Rng::new(spec.seed, 1024 + i as u64)).collect(),
            until: flows.iter().map(|flow| flow.until).max().unwrap_or_default(),
            silent_since: None,
            replan: false,
            flows,
            servers,
            gates,
            loops,
            spec,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        for index in 0..self.flows.len() {
            match self.spec.streams[index].load {
                Load::Open(_) => self.expect(index),
                Load::Closed(users, _) => {
                    for user in 0..users {
                        let at = Nanos(CLOSED_SPREAD.0 * user as u64 / users as u64);
                        self.engine.schedule(at, Happening::Arrive(index));
                    }
                }
            }
        }
        for (index, (at, _)) in self.spec.changes.iter().enumerate() {
            self.engine.schedule(*at, Happening::Change(index));
        }
        self.engine.schedule(self.spec.control_from, Happening::Tick);
    }

    fn step(&mut self, happening: Happening) -> Result<(), String> {
        let now = self.engine.now();
        match happening {
            Happening::Cpu(epoch) => self.computed(now, epoch),
            Happening::Wait(id, part) => self.waited(now, id, part),
            Happening::Upstream(id, part) => self.upstream_done(now, id, part),
            Happening::Change(index) => self.change(now, index),
            Happening::Apply => self.apply()?,
            Happening::Tick => self.tick(now)?,
            Happening::Arrive(stream) => self.arrive(now, stream)?,
            Happening::Expire(id, looks) if self.conns.alive(id) => self.expire(now, id, looks),
            Happening::GiveUp(id, turn) if self.conns.alive(id) => self.give_up(now, id, turn),
            Happening::Message(id) if self.conns.alive(id) => self.message(now, id),
            Happening::Data(id) if self.conns.alive(id) => self.data(now, id),
            Happening::Speak(id) if self.conns.alive(id) => self.speak(now, id),
            Happening::Syn(id) if self.conns.alive(id) => self.syn(now, id),
            _ => {}
        }
        if std::mem::take(&mut self.replan)
            && let Some((at, epoch)) = self.cpu.plan(now)
        {
            self.engine.schedule(at, Happening::Cpu(epoch));
        }
        Ok(())
    }

    fn change(&mut self, now: Nanos, index: usize) {
        match self.spec.changes[index].1 {
            Change::Speed(speed) => {
                self.cpu.set_speed(now, speed);
                self.replan = true;
            }
            Change::Wait(service, mean_s) => self.servers[service].set_wait(mean_s),
            Change::Upstream(service, mean_s) => self.servers[service].set_upstream(mean_s),
            Change::Daemon(true) => {
                self.silent_since = None;
                self.engine.schedule(now, Happening::Tick);
            }
            Change::Daemon(false) => self.silent_since = Some(now),
            Change::Restart => {
                self.loops.iter_mut().for_each(|own| own.succeed(now));
                if self.silent_since.take().is_some() {
                    self.engine.schedule(now, Happening::Tick);
                }
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.engine.late() > 0 {
            return Err(format!("{} events were scheduled for the past", self.engine.late()));
        }
        if self.conns.present() > 0 {
            return Err(format!("{} connections are held after the end", self.conns.present()));
        }
        for flow in &self.flows {
            let told = flow.report.answered_total() + flow.report.failed_total();
            if flow.begun != flow.ended || told != flow.begun {
                let (begun, ended) = (flow.begun, flow.ended);
                return Err(format!("{begun} requests began, {ended} ended, {told} are reported"));
            }
        }
        for (server, gate) in self.servers.iter().zip(&self.gates) {
            server.check()?;
            let totals = gate.totals();
            if totals.waiting + totals.silent + totals.open > 0 {
                return Err(format!("gauges do not return to zero: {totals:?}"));
            }
        }
        Ok(())
    }
}

impl Flow {
    fn new(load: &Load, rng: Rng) -> Self {
        let phases = match load {
            Load::Open(phases) => phases.clone(),
            Load::Closed(_, parts) => {
                parts.iter().map(|lasts| Phase { rate: 0.0, lasts: *lasts }).collect()
            }
        };
        let segments: Vec<Segment> =
            phases.iter().map(|p| Segment::constant(p.lasts, p.rate)).collect();
        let open = matches!(load, Load::Open(_));
        let arrivals = open.then(|| Arrivals::new(Process::Poisson, Profile::new(&segments), rng));
        let until = phases.iter().fold(Nanos::ZERO, |sum, phase| sum + phase.lasts);
        let report = Report::new(&phases);
        Self { arrivals, until, begun: 0, ended: 0, report }
    }

    fn failed(&mut self, intended: Nanos) {
        use crate::world::report::Observer;
        self.ended += 1;
        self.report.failed(&Arrival::at(intended));
    }
}
