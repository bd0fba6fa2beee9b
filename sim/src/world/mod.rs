// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world of one protected server: clients that send their SYNs again, the dataplane, the
//! server, and the controller that ticks beside them.

pub mod gate;
mod replies;
pub mod report;
pub mod server;

pub use crate::clients::CLIENTS_MAX;
pub use replies::ReplyCaps;

use crate::APPLY_DELAY;
use crate::clients::{Clients, syn_of};
use crate::engine::{Classed, Engine};
use crate::governor::SimGovernor;
use crate::signals::{Seen, Sense};
use gate::{Gate, GateSpec, Gated, Queue, Syn};
use report::{Observer, Report, Trace};
use server::{Outcome, Server, ServerSpec, Timer};
use tidegate_control::fleet::Terms;
use tidegate_control::{Controller, Mode};
use tidegate_model::PRIORITIES;
use tidegate_model::signals::Signals;
use tidegate_policy::{Action, Policy};
use tidegate_units::{Clock, Nanos};
use tidegate_workload::{
    Arrivals, Mixture, OnReset, Process, Profile, Rng, Schedule, Segment, batches, exponential,
    merge,
};

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

/// SYNs of senders that nobody has, as a Poisson process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flood {
    /// SYNs per second.
    pub rate: f64,
    /// From then,
    pub from: Nanos,
    /// to then.
    pub to: Nanos,
}

/// A client that comes: with one request, on a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When its first SYN arrives.
    pub at: Nanos,
    /// Its number, counted from 1 over the whole run, given when it comes; 0: none.
    pub number: u64,
    /// Its class, for whoever observes.
    pub class: u8,
    /// Its priority: 0 is the highest, 7 the lowest.
    pub priority: u8,
    /// Whether it belongs to those who are exempt.
    pub exempt: bool,
    /// Its address, as a number; `None` where it is not known: such clients are never taken for proved.
    pub source: Option<u64>,
}

impl Arrival {
    /// A client of the default class.
    #[must_use]
    pub const fn at(at: Nanos) -> Self {
        Self {
            at,
            number: 0,
            class: 0,
            priority: PRIORITIES as u8 - 1,
            exempt: false,
            source: None,
        }
    }
}

/// What happens to the server.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The server.
    pub server: ServerSpec,
    /// The load, piece by piece; [`World`] itself is fed and does not look at it, nor at
    /// `process` and `batches`.
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
    /// A response within this long (from the intended start) is good.
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
    /// What holds whatever it decides.
    pub terms: Terms,
    /// What evaluates SYNs, and what is done with the refused.
    pub gate: GateSpec,
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
    Spoofed,
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
            Self::Spoofed => 7,
        }
    }
}

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Trying,
    Admitted(Nanos),
    Over,
}

#[derive(Debug)]
struct Client {
    arrival: Arrival,
    schedule: &'static Schedule,
    syns: usize,
    refused: bool,
    state: State,
}

/// One run, fed with arrivals in the order of time.
pub struct World<O> {
    engine: Engine<Happening>,
    scenario: Scenario,
    incoming: Option<Arrival>,
    mixture_rng: Rng,
    clients: Clients<Client>,
    over: u64,
    reported: u64,
    server: Server,
    gate: Gate,
    governor: Option<SimGovernor>,
    decided: Option<tidegate_model::limits::ServiceLimits>,
    sense: Sense,
    until: Nanos,
    flood: Option<(Flood, Rng)>,
    spoofed: u64,
    observer: O,
}

/// Runs a scenario, protected or not.
///
/// # Errors
/// When a checker finds the world wrong: a request that ended twice or never, a stage that held
/// more than it may, an event in the past, a limit that the policy refuses.
pub fn run(scenario: Scenario, protection: Option<Protection>) -> Result<Report, String> {
    run_beside(scenario, protection, None)
}

/// The same beside a flood.
///
/// # Errors
/// As [`run`].
pub fn run_beside(
    scenario: Scenario,
    protection: Option<Protection>,
    flood: Option<Flood>,
) -> Result<Report, String> {
    let mut segments = Vec::new();
    let mut until = Nanos::ZERO;
    for phase in &scenario.phases {
        segments.push(Segment::constant(phase.lasts, phase.rate));
        until += phase.lasts;
    }
    let rng = Rng::new(scenario.seed, 0);
    let steady = Arrivals::new(scenario.process, Profile::new(&segments), rng);
    let burst = scenario.batches.unwrap_or(Batches { size: 0, every: Nanos::ZERO });
    let report = Report::new(&scenario.phases);
    let mut world = World::new(scenario, protection, report);
    if let Some(flood) = flood {
        world.flood(flood);
    }
    for at in merge(steady, batches(burst.size, burst.every, until)) {
        world.offer(Arrival::at(at))?;
    }
    world.finish(until)
}

impl<O: Observer> World<O> {
    /// A world at time zero in which nobody has come yet.
    pub fn new(scenario: Scenario, protection: Option<Protection>, observer: O) -> Self {
        let rng = |stream| Rng::new(scenario.seed, stream);
        let server = Server::new(scenario.server.clone(), scenario.seed);
        let (governor, gate) = match protection {
            Some(Protection { controller, terms, gate }) => {
                (Some(SimGovernor::new(controller, terms, gate.mode)), gate)
            }
            None => (None, GateSpec::new(Policy::TokenBucket, Action::Drop, Mode::Enforce)),
        };
        let mut world = Self {
            engine: Engine::new(),
            incoming: None,
            mixture_rng: rng(2),
            clients: Clients::default(),
            over: 0,
            reported: 0,
            server,
            gate: Gate::new(gate),
            governor,
            decided: None,
            sense: Sense::default(),
            until: Nanos(u64::MAX),
            flood: None,
            spoofed: 0,
            observer,
            scenario,
        };
        for (index, (at, _)) in world.scenario.changes.iter().enumerate() {
            world.engine.schedule(*at, Happening::Change(index));
        }
        world.engine.schedule(world.scenario.control_from, Happening::Tick);
        world
    }

    /// Spoofed SYNs beside the clients.
    pub fn flood(&mut self, flood: Flood) {
        self.engine.schedule(flood.from, Happening::Spoofed);
        self.flood = Some((flood, Rng::new(self.scenario.seed, 3)));
    }

    /// Lets time run until this client has come and its first SYN is evaluated.
    ///
    /// # Errors
    /// When a checker finds the world wrong, or more than [`CLIENTS_MAX`] are under way.
    pub fn offer(&mut self, arrival: Arrival) -> Result<(), String> {
        self.engine.schedule(arrival.at, Happening::Arrival);
        self.incoming = Some(arrival);
        while self.incoming.is_some() {
            self.step()?;
        }
        Ok(())
    }

    /// Follows everybody who is under way to the end; `until` is the end of the load, from which
    /// the controller ticks on for one time-out of the clients.
    ///
    /// # Errors
    /// As [`run`].
    pub fn finish(mut self, until: Nanos) -> Result<O, String> {
        self.until = until;
        while self.step()? {}
        self.check()?;
        Ok(self.observer)
    }

    /// What has been observed so far.
    pub const fn observer(&self) -> &O {
        &self.observer
    }

    /// The most clients that were under way at once: what this run's memory is proportional to.
    pub fn clients_most(&self) -> usize {
        self.clients.places()
    }

    /// Whether there was anything left to happen.
    fn step(&mut self) -> Result<bool, String> {
        let Some(happening) = self.engine.step() else { return Ok(false) };
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
            Happening::Tick => self.tick(now)?,
            Happening::GiveUp(client) => {
                self.give_up(now, client);
                self.clients.release(client);
            }
            Happening::Syn(client) => {
                self.syn(now, client);
                self.clients.release(client);
            }
            Happening::Arrival => self.arrive(now)?,
            Happening::Spoofed => self.spoof(now),
        }
        Ok(true)
    }

    fn check(&self) -> Result<(), String> {
        self.server.check()?;
        if self.engine.late() > 0 {
            return Err(format!("{} events were scheduled for the past", self.engine.late()));
        }
        let begun = self.clients.begun();
        if self.over != begun || self.reported != begun {
            let (over, reported) = (self.over, self.reported);
            return Err(format!("{begun} requests began, {over} ended, {reported} reported"));
        }
        if self.clients.present() > 0 {
            return Err(format!("{} clients are held after the end", self.clients.present()));
        }
        if self.gate.totals().waiting != 0 {
            return Err(format!("{} still wait after the end", self.gate.totals().waiting));
        }
        Ok(())
    }

    fn arrive(&mut self, now: Nanos) -> Result<(), String> {
        let Some(arrival) = self.incoming.take() else { return Ok(()) };
        let schedule = self.scenario.clients.draw(&mut self.mixture_rng);
        let client = |number| Client {
            arrival: Arrival { at: now, number, ..arrival },
            schedule,
            syns: 0,
            refused: false,
            state: State::Trying,
        };
        let Some(client) = self.clients.begin(client) else {
            return Err(format!("more than {CLIENTS_MAX} clients are under way at {now}"));
        };
        self.observer.began(&self.clients[client].arrival);
        self.engine.after(self.scenario.timeout, Happening::GiveUp(client));
        self.syn(now, client);
        Ok(())
    }

    fn syn(&mut self, now: Nanos, index: usize) {
        if self.clients[index].state != State::Trying {
            return;
        }
        self.clients[index].syns += 1;
        match self.evaluate(now, index) {
            Gated::Passed if self.server.accept_full() => {
                self.observer.ignored(now, &self.clients[index].arrival);
                self.again(index, None);
            }
            Gated::Passed => self.admit(now, index),
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

    fn evaluate(&mut self, now: Nanos, index: usize) -> Gated {
        let client = &self.clients[index];
        if client.arrival.exempt {
            return Gated::Passed;
        }
        let Arrival { number, priority, source, .. } = client.arrival;
        let syn = Syn { priority, source, ..syn_of(number) };
        self.gate.evaluate(now, syn, self.accept_queue())
    }

    fn accept_queue(&self) -> Queue {
        Queue { length: self.server.accept_length(), limit: self.scenario.server.accept_limit }
    }

    /// A spoofed SYN, which leaves nothing at the server but a reply; and the next.
    fn spoof(&mut self, now: Nanos) {
        let Some((flood, rng)) = &mut self.flood else { return };
        let next = now + Nanos::from_secs_f64(exponential(rng) / flood.rate);
        if next < flood.to {
            self.engine.schedule(next, Happening::Spoofed);
        }
        self.spoofed += 1;
        // No client's number has this bit.
        let syn = syn_of(self.spoofed | 1 << 63);
        let passed = self.gate.evaluate(now, syn, self.accept_queue()) == Gated::Passed;
        if passed && !self.server.accept_full() {
            self.gate.replied_in_vain(self.gate.noted());
        }
    }

    fn admit(&mut self, now: Nanos, index: usize) {
        let noted = self.gate.noted();
        let client = &mut self.clients[index];
        client.state = State::Admitted(now);
        if !client.arrival.exempt {
            self.gate.established();
            self.gate.proved(noted);
            self.gate.receives(now, client.arrival.source);
        }
        self.observer.admitted(now, &client.arrival);
        let number = client.arrival.number;
        self.clients.hold(index);
        let outcome = self.server.connect(now, index, number);
        self.deliver(now, outcome);
    }

    /// Schedules the next SYN: at `at`, or as the client's table says. A client that has none left
    /// waits for its time-out.
    fn again(&mut self, index: usize, at: Option<Nanos>) {
        let client = &self.clients[index];
        if let Some(offset) = client.schedule.at(client.syns) {
            let at = at.unwrap_or(client.arrival.at + offset).max(self.engine.now());
            self.clients.hold(index);
            self.engine.schedule(at, Happening::Syn(index));
        } else if at.is_some() {
            self.fail(index);
        }
    }

    fn refused(&mut self, now: Nanos, index: usize) {
        let client = &mut self.clients[index];
        self.observer.refused(now, &client.arrival, !client.refused);
        client.refused = true;
    }

    fn give_up(&mut self, _now: Nanos, index: usize) {
        match self.clients[index].state {
            State::Trying => self.fail(index),
            State::Admitted(_) => {
                if !self.clients[index].arrival.exempt {
                    self.gate.left();
                }
                self.fail(index);
            }
            State::Over => {}
        }
    }

    fn fail(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.state = State::Over;
        self.over += 1;
        self.reported += 1;
        self.observer.failed(&client.arrival);
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
                self.reported += 1;
                let arrival = client.arrival;
                if !arrival.exempt {
                    self.gate.answered(now.since(since));
                }
                let good = now.since(arrival.at) <= self.scenario.objective;
                self.observer.answered((now, since), &arrival, good);
            }
            self.clients.release(request);
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

    fn tick(&mut self, now: Nanos) -> Result<(), String> {
        // Also without a controller: the CPU's clocks run in the same steps.
        let cpu = self.server.cpu(now);
        if self.governor.is_some() {
            self.decide(now, cpu)?;
        }
        if now < self.until + self.scenario.timeout {
            self.engine.after(self.scenario.period, Happening::Tick);
        }
        Ok(())
    }

    fn decide(&mut self, now: Nanos, cpu: (f64, f64)) -> Result<(), String> {
        let first = now == self.scenario.control_from;
        let signals = self.signals(now, cpu);
        // The first look gives totals, the second their differences.
        if let (false, Some(governor)) = (first, &mut self.governor) {
            let limits = governor.tick(&signals)?;
            self.observer.trace(Trace::of(&signals, &limits));
            self.decided = Some(limits);
            self.engine.after(APPLY_DELAY, Happening::Apply);
        }
        Ok(())
    }

    fn apply(&mut self) -> Result<(), String> {
        let Some(limits) = self.decided.take() else { return Ok(()) };
        self.gate.set(limits).map_err(|e| format!("limits not accepted: {e}"))
    }

    fn signals(&mut self, now: Nanos, (used, pressed): (f64, f64)) -> Signals {
        let server = &self.scenario.server;
        self.sense.signals(Seen {
            now,
            totals: self.gate.totals(),
            cpu: (used, pressed, server.cpus),
            accept: (self.server.accept_length(), server.accept_limit),
        })
    }
}
