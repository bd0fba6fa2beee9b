// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world of one protected server: clients that send their SYNs again, the dataplane, the
//! server, and the controller that ticks beside them.

pub mod gate;
pub mod report;
pub mod server;

use crate::engine::{Classed, Engine};
use gate::{Gate, Gated, Queue};
use report::{Report, Trace};
use server::{Outcome, Server, ServerSpec, Timer};
use tidegate_control::{Controller, Mode};
use tidegate_model::signals::{AcceptQueue, Counts, Reading, Signals};
use tidegate_model::totals::ServiceTotals;
use tidegate_policy::{Action, Policy};
use tidegate_units::{Clock, Nanos, Share};
use tidegate_workload::{
    Arrivals, Mixture, OnReset, Process, Profile, Rng, Schedule, Segment, batches, merge,
};

/// From the tick to the limits in the kernel.
const APPLY_DELAY: Nanos = Nanos::from_millis(2);

/// One piece of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Arrivals per second.
    pub rate: f64,
    /// How long.
    pub lasts: Nanos,
}

/// Something that changes in the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Speed of CPU and upstream; 1 is full.
    Speed(f64),
    /// Mean of the time that workers wait, in seconds.
    Wait(f64),
}

/// Many arrivals at once, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// How many at once.
    pub size: u32,
    /// How often.
    pub every: Nanos,
}

/// What happens to the server.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The server.
    pub server: ServerSpec,
    /// The load, piece by piece.
    pub phases: Vec<Phase>,
    /// How arrivals are spread.
    pub process: Process,
    /// Bursts beside the load.
    pub batches: Option<Batches>,
    /// What changes, and when.
    pub changes: Vec<(Nanos, Change)>,
    /// Kinds of clients.
    pub clients: Mixture,
    /// A client leaves after this long (from its intended start).
    pub timeout: Nanos,
    /// An answer within this long (from the intended start) is good.
    pub objective: Nanos,
    /// Period of the control loop.
    pub period: Nanos,
    /// When the controller begins to tick: before, nothing is limited.
    pub control_from: Nanos,
    /// The seed of everything.
    pub seed: u64,
}

/// The protection in front of the server.
pub struct Protection {
    /// Who decides.
    pub controller: Box<dyn Controller>,
    /// What judges.
    pub policy: Policy,
    /// What is done with the refused.
    pub action: Action,
    /// Whether it is done.
    pub mode: Mode,
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Server(Timer),
    Change(usize),
    Apply,
    Tick,
    GiveUp(usize),
    Syn(usize),
    Arrival,
}

impl Classed for Happening {
    /// Departures first, then changes, control, and arrivals last.
    fn class(&self) -> u8 {
        match self {
            Self::Server(_) => 0,
            Self::Change(_) => 1,
            Self::Apply => 2,
            Self::Tick => 3,
            Self::GiveUp(_) => 4,
            Self::Syn(_) => 5,
            Self::Arrival => 6,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Trying,
    Admitted(Nanos),
    Over,
}

#[derive(Debug)]
struct Client {
    intended: Nanos,
    schedule: &'static Schedule,
    syns: usize,
    refused: bool,
    state: State,
}

/// One run.
struct World {
    engine: Engine<Happening>,
    scenario: Scenario,
    arrivals: Box<dyn Iterator<Item = Nanos>>,
    mixture_rng: Rng,
    clients: Vec<Client>,
    over: u64,
    server: Server,
    gate: Gate,
    controller: Option<(Box<dyn Controller>, Mode)>,
    decided: Option<tidegate_model::limits::ServiceLimits>,
    before: (Nanos, ServiceTotals, f64, f64),
    until: Nanos,
    report: Report,
}

/// Runs a scenario, protected or not.
///
/// # Errors
/// When a checker finds the world wrong: a request that ended twice or never, a stage that held
/// more than it may, an event in the past, a limit that the policy refuses.
pub fn run(scenario: Scenario, protection: Option<Protection>) -> Result<Report, String> {
    let mut world = World::new(scenario, protection);
    world.live()?;
    world.check()?;
    Ok(world.report)
}

impl World {
    fn new(scenario: Scenario, protection: Option<Protection>) -> Self {
        let mut segments = Vec::new();
        let mut until = Nanos::ZERO;
        for phase in &scenario.phases {
            segments.push(Segment::constant(phase.lasts, phase.rate));
            until += phase.lasts;
        }
        let rng = |stream| Rng::new(scenario.seed, stream);
        let steady = Arrivals::new(scenario.process, Profile::new(&segments), rng(0));
        let burst = scenario.batches.unwrap_or(Batches { size: 0, every: Nanos::ZERO });
        let arrivals = Box::new(merge(steady, batches(burst.size, burst.every, until)));
        let server = Server::new(scenario.server.clone(), rng(1));
        let (policy, action, mode) =
            protection.as_ref().map_or((Policy::TokenBucket, Action::Drop, Mode::Enforce), |p| {
                (p.policy, p.action, p.mode)
            });
        let mut world = Self {
            engine: Engine::new(),
            arrivals,
            mixture_rng: rng(2),
            clients: Vec::new(),
            over: 0,
            server,
            gate: Gate::new(policy, action, mode),
            controller: protection.map(|p| (p.controller, p.mode)),
            decided: None,
            before: (Nanos::ZERO, ServiceTotals::default(), 0.0, 0.0),
            until,
            report: Report::new(&scenario.phases),
            scenario,
        };
        world.prepare();
        world
    }

    fn prepare(&mut self) {
        for (index, (at, _)) in self.scenario.changes.iter().enumerate() {
            self.engine.schedule(*at, Happening::Change(index));
        }
        self.engine.schedule(self.scenario.control_from, Happening::Tick);
        self.next_arrival();
    }

    fn live(&mut self) -> Result<(), String> {
        while let Some(happening) = self.engine.step() {
            let now = self.engine.now();
            match happening {
                Happening::Server(timer) => {
                    let clients = &self.clients;
                    let gone = |request: usize| clients[request].state == State::Over;
                    let outcome = self.server.fire(now, timer, gone);
                    self.deliver(now, outcome);
                }
                Happening::Change(index) => self.change(now, index),
                Happening::Apply => self.apply()?,
                Happening::Tick => self.tick(now),
                Happening::GiveUp(client) => self.give_up(now, client),
                Happening::Syn(client) => self.syn(now, client),
                Happening::Arrival => self.arrive(now),
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.server.check()?;
        if self.engine.late() > 0 {
            return Err(format!("{} events were scheduled for the past", self.engine.late()));
        }
        let ends = self.report.answered_total() + self.report.failed_total();
        let begun = self.clients.len() as u64;
        if self.over != begun || ends != begun {
            return Err(format!("{begun} requests began, {} ended, {ends} reported", self.over));
        }
        if self.gate.totals().waiting != 0 {
            return Err(format!("{} still wait after the end", self.gate.totals().waiting));
        }
        Ok(())
    }

    fn next_arrival(&mut self) {
        if let Some(at) = self.arrivals.next() {
            self.engine.schedule(at, Happening::Arrival);
        }
    }

    fn arrive(&mut self, now: Nanos) {
        let schedule = self.scenario.clients.draw(&mut self.mixture_rng);
        let client = self.clients.len();
        self.clients.push(Client {
            intended: now,
            schedule,
            syns: 0,
            refused: false,
            state: State::Trying,
        });
        self.report.began(now);
        self.engine.after(self.scenario.timeout, Happening::GiveUp(client));
        self.syn(now, client);
        self.next_arrival();
    }

    fn syn(&mut self, now: Nanos, index: usize) {
        if self.clients[index].state != State::Trying {
            return;
        }
        self.clients[index].syns += 1;
        let queue =
            Queue { length: self.server.accept_length(), limit: self.scenario.server.accept_limit };
        // Any injection serves as the seeded hash of tuple and sequence number.
        let key = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match self.gate.judge(now, key ^ (key >> 29), queue) {
            Gated::Passed if self.server.accept_full() => self.again(index, None),
            Gated::Passed => {
                self.clients[index].state = State::Admitted(now);
                self.gate.established();
                let outcome = self.server.connect(now, index);
                self.deliver(now, outcome);
            }
            Gated::Dropped => {
                self.refused(now, index);
                self.again(index, None);
            }
            Gated::Reset => {
                self.refused(now, index);
                match self.clients[index].schedule.on_reset {
                    OnReset::Fail => self.fail(index),
                    OnReset::Again(pause) => self.again(index, Some(now + pause)),
                }
            }
        }
    }

    /// Schedules the next SYN: at `at`, or as the client's table says. A client that has none left
    /// waits for its time-out.
    fn again(&mut self, index: usize, at: Option<Nanos>) {
        let client = &self.clients[index];
        if let Some(offset) = client.schedule.at(client.syns) {
            let at = at.unwrap_or(client.intended + offset).max(self.engine.now());
            self.engine.schedule(at, Happening::Syn(index));
        } else if at.is_some() {
            self.fail(index);
        }
    }

    fn refused(&mut self, now: Nanos, index: usize) {
        let client = &mut self.clients[index];
        self.report.refused(now, client.intended, !client.refused);
        client.refused = true;
    }

    fn give_up(&mut self, _now: Nanos, index: usize) {
        match self.clients[index].state {
            State::Trying => self.fail(index),
            State::Admitted(_) => {
                self.gate.left();
                self.fail(index);
            }
            State::Over => {}
        }
    }

    fn fail(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.state = State::Over;
        self.over += 1;
        self.report.failed(client.intended);
    }

    fn deliver(&mut self, now: Nanos, outcome: Outcome) {
        for (at, timer) in outcome.timers {
            self.engine.schedule(at, Happening::Server(timer));
        }
        for request in outcome.answered {
            let client = &mut self.clients[request];
            if let State::Admitted(since) = client.state {
                client.state = State::Over;
                self.over += 1;
                self.gate.answered(now.since(since));
                let good = now.since(client.intended) <= self.scenario.objective;
                self.report.answered(now, client.intended, since, good);
            }
        }
    }

    fn change(&mut self, now: Nanos, index: usize) {
        match self.scenario.changes[index].1 {
            Change::Speed(speed) => {
                let outcome = self.server.set_speed(now, speed);
                self.deliver(now, outcome);
            }
            Change::Wait(mean_s) => self.server.set_wait(mean_s),
        }
    }

    fn tick(&mut self, now: Nanos) {
        let first = now == self.scenario.control_from;
        let signals = self.signals(now);
        // The first look gives totals, the second their differences.
        if let (false, Some((controller, mode))) = (first, &mut self.controller) {
            let limits = controller.tick(&signals, *mode);
            self.report.trace(Trace::of(&signals, &limits));
            self.decided = Some(limits);
            self.engine.after(APPLY_DELAY, Happening::Apply);
        }
        if now < self.until + self.scenario.timeout {
            self.engine.after(self.scenario.period, Happening::Tick);
        }
    }

    fn apply(&mut self) -> Result<(), String> {
        let Some(limits) = self.decided.take() else { return Ok(()) };
        self.gate.set(limits).map_err(|e| format!("limits not accepted: {e}"))
    }

    fn signals(&mut self, now: Nanos) -> Signals {
        let totals = self.gate.totals().clone();
        let (used, pressed) = self.server.cpu(now);
        let (then, before, used_before, pressed_before) =
            std::mem::replace(&mut self.before, (now, totals.clone(), used, pressed));
        let period = now.since(then);
        let dt = period.as_secs_f64().max(1e-9);
        let mut s = Signals { now, period, ..Signals::default() };
        let cpu = (used - used_before) / (dt * f64::from(self.scenario.server.cpus));
        s.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
        let pressure = Share::new((pressed - pressed_before) / dt);
        s.resource.cpu_pressure = Some(Reading::fresh(pressure));
        s.queue.accept = Some(Reading::fresh(AcceptQueue {
            length: self.server.accept_length() as u64,
            limit: self.scenario.server.accept_limit as u64,
        }));
        s.time.waiting = Some(Reading::fresh(totals.waiting));
        s.time.open = Some(Reading::fresh(totals.open));
        let first = gate::times(&totals.first_byte, &before.first_byte);
        s.time.first_byte = Some(Reading::fresh(first));
        s.time.end = Some(Reading::fresh(gate::times(&totals.end, &before.end)));
        s.balance.counts = Some(Reading::fresh(Counts {
            offered: totals.offered - before.offered,
            repeated: totals.repeated - before.repeated,
            admitted: totals.admitted - before.admitted,
            refused: totals.refused - before.refused,
            completed: first.count,
        }));
        s
    }
}
