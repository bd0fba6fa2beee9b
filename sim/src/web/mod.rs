// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world of a web server with several bottlenecks: CPU, workers, listen queue, outgoing
//! interface; requests of several kinds; in front of it SYN policing and request rules.
//!
//! ```text
//!   SYN ─► SYN policing ─► handshake ─► request ─► request rules ─► accept queue (limit)
//!                              ▲                                        │
//!                              │ SYN-ACK                          worker (limit)
//!          client ◄── interface (rate, queue) ◄── TCP ◄──────── CPU (shared)
//! ```
//!
//! SYN policing is the foundation's gate, request rules are buckets of the shipped policy, both set
//! by a shipped controller that sees the signals of the kernel. A connection has one request. It is
//! queued for a worker when its request is there (TCP_DEFER_ACCEPT, or the paper's khttpd), and the
//! worker is held until the client has the whole response.

mod client;
mod cpu;
mod link;
pub mod protect;
mod report;
mod rules;
mod serve;
mod spec;
mod tcp;
#[cfg(test)]
mod tests;

pub use client::Stream;
pub use report::{StreamReport, WebReport, WebTrace};
pub use spec::{
    Costs, Interface, Known, LargeLoad, Match, RuleSpec, Sessions, WebProtection, WebScenario,
    WebServer,
};

use crate::APPLY_DELAY;
use crate::clients::{CLIENTS_MAX, Clients, syn_of};
use crate::engine::{Classed, Engine};
use crate::governor::SimGovernor;
use crate::signals::{Seen, Sense};
use crate::world::gate::{Gate, GateSpec, Gated, Queue};
use client::{Asked, Client, State};
use link::{Link, Packet};
use rules::Rules;
use serve::Served;
use tidegate_control::Mode;
use tidegate_control::fleet::Terms;
use tidegate_model::limits::ServiceLimits;
use tidegate_policy::{Action, Policy};
use tidegate_units::{Clock, Nanos};
use tidegate_workload::{Arrivals, OnReset, Profile, RequestKind, Rng};

/// Of a SYN-ACK, in bytes on the wire.
const SYN_ACK_BYTES: u32 = 98;
/// First time-out of a request that the server did not take, and how often it doubles at most.
const UNHEARD_RTO: (Nanos, u32) = (Nanos::from_millis(200), 6);

#[derive(Clone, Copy, Debug)]
enum Happening {
    Cpu(u64),
    /// The packet that was leaving is out.
    Out,
    /// The server has the acknowledgement of a packet of a response.
    Acknowledged(usize, u64),
    /// The whole response, where no interface is modelled.
    Delivered(usize),
    Timeout(usize),
    Apply,
    Tick,
    Sample,
    GiveUp(usize),
    ConnectBy(usize),
    Request(usize),
    Syn(usize),
    /// The next request of a session.
    Next(Asked),
    Arrival(Stream),
}

impl Classed for Happening {
    /// Departures first, then control, and arrivals last.
    fn class(&self) -> u8 {
        match self {
            Self::Cpu(_) => 0,
            Self::Out => 1,
            Self::Acknowledged(..) | Self::Delivered(_) => 2,
            Self::Timeout(_) => 3,
            Self::Apply => 4,
            Self::Sample => 5,
            Self::Tick => 6,
            Self::GiveUp(_) | Self::ConnectBy(_) => 7,
            Self::Request(_) => 8,
            Self::Syn(_) => 9,
            Self::Next(_) | Self::Arrival(_) => 10,
        }
    }
}

/// Streams of random numbers of one seed.
mod streams {
    pub(super) const ARRIVALS: u64 = 0;
    pub(super) const FILES: u64 = 1;
    pub(super) const CLIENTS: u64 = 2;
    pub(super) const LARGE: u64 = 3;
    pub(super) const SESSIONS: u64 = 4;
}

/// One run.
struct World {
    engine: Engine<Happening>,
    scenario: WebScenario,
    arrivals: Arrivals,
    large: Option<Arrivals>,
    files: Rng,
    session_files: Rng,
    mixture: Rng,
    clients: Clients<Client>,
    over: u64,
    /// Responses whose segments did not add up; must be zero.
    unsound: u64,
    served: Served,
    link: Option<Link>,
    gate: Gate,
    rules: Rules,
    governor: Option<SimGovernor>,
    decided: Option<ServiceLimits>,
    sense: Sense,
    cpu_from: f64,
    until: Nanos,
    report: WebReport,
}

/// Runs a scenario, protected or not, and follows everybody who is under way to the end.
///
/// # Errors
/// When a checker finds the world wrong: a request that ended twice or never, a stage that held
/// more than it may, a packet or a segment that got lost in the books, a bucket that gave more than
/// its rate, an event in the past, a limit that a policy refuses.
pub fn run(scenario: WebScenario, protection: Option<WebProtection>) -> Result<WebReport, String> {
    let mut world = World::new(scenario, protection);
    world.begin();
    while world.step()? {}
    world.check()?;
    Ok(world.report)
}

impl World {
    fn new(scenario: WebScenario, protection: Option<WebProtection>) -> Self {
        let rng = |stream| Rng::new(scenario.seed, stream);
        let (governor, gate, rules) = match protection {
            Some(WebProtection { controller, gate, rules }) => {
                let governor = SimGovernor::new(controller, Terms::default(), gate.mode);
                (Some(governor), gate, Rules::new(&rules))
            }
            None => {
                let open = GateSpec::new(Policy::TokenBucket, Action::Drop, Mode::Enforce);
                (None, open, Rules::new(&[]))
            }
        };
        let until = scenario.until();
        let process = scenario.process;
        let large = scenario.large.map(|large| {
            let profile = Profile::constant(until, large.rate);
            Arrivals::new(process, profile, rng(streams::LARGE))
        });
        Self {
            engine: Engine::new(),
            arrivals: Arrivals::new(process, scenario.load.clone(), rng(streams::ARRIVALS)),
            large,
            files: rng(streams::FILES),
            session_files: rng(streams::SESSIONS),
            mixture: rng(streams::CLIENTS),
            clients: Clients::default(),
            over: 0,
            unsound: 0,
            served: Served::new(&scenario.server),
            link: scenario.interface.map(Link::new),
            gate: Gate::new(gate),
            rules,
            governor,
            decided: None,
            sense: Sense::default(),
            cpu_from: 0.0,
            until,
            report: WebReport::default(),
            scenario,
        }
    }

    fn begin(&mut self) {
        self.engine.schedule(Nanos::ZERO, Happening::Tick);
        if self.link.is_some() {
            self.engine.schedule(Nanos::ZERO, Happening::Sample);
        }
        self.come(Stream::Surge);
        self.come(Stream::Large);
        self.report.seconds = self.until.since(self.scenario.measure_from).as_secs_f64();
    }

    /// Schedules a stream's next arrival.
    fn come(&mut self, stream: Stream) {
        let next = match stream {
            Stream::Surge => self.arrivals.next(),
            Stream::Large => self.large.as_mut().and_then(Iterator::next),
        };
        if let Some(at) = next {
            self.engine.schedule(at, Happening::Arrival(stream));
        }
    }

    /// Whether there was anything left to happen.
    fn step(&mut self) -> Result<bool, String> {
        let Some(happening) = self.engine.step() else { return Ok(false) };
        let now = self.engine.now();
        match happening {
            Happening::Cpu(epoch) => self.computed(now, epoch),
            Happening::Out => self.out(now),
            Happening::Acknowledged(client, serial) => self.acknowledged(now, client, serial),
            Happening::Delivered(client) => self.delivered(now, client),
            Happening::Timeout(client) => self.timed_out(now, client),
            Happening::Apply => self.apply(now)?,
            Happening::Sample => self.sample(now),
            Happening::Tick => self.tick(now)?,
            Happening::GiveUp(client) => self.give_up(now, client),
            Happening::ConnectBy(client) => self.connect_by(now, client),
            Happening::Request(client) => self.request(now, client),
            Happening::Syn(client) => self.syn(now, client),
            Happening::Next(asked) => self.start(now, asked)?,
            Happening::Arrival(stream) => self.arrive(now, stream)?,
        }
        Ok(true)
    }

    fn measured(&self, at: Nanos) -> bool {
        at >= self.scenario.measure_from && at < self.until
    }

    fn arrive(&mut self, now: Nanos, stream: Stream) -> Result<(), String> {
        self.come(stream);
        let later = self.scenario.sessions.requests.saturating_sub(1);
        let asked = match stream {
            Stream::Surge => {
                let request = self.scenario.files.sample(&mut self.files);
                let (kind, size) = (request.kind, request.size);
                Asked { stream, kind, size, later, cookie: false, session: now }
            }
            Stream::Large => {
                let size = self.scenario.large.map_or(0, |large| large.size);
                let kind = RequestKind::Large;
                Asked { stream, kind, size, later: 0, cookie: false, session: now }
            }
        };
        if stream == Stream::Surge && self.measured(now) {
            self.report.sessions.0 += 1;
        }
        self.start(now, asked)
    }

    /// A request begins: with the first SYN of its connection.
    fn start(&mut self, now: Nanos, asked: Asked) -> Result<(), String> {
        let schedule = self.scenario.clients.draw(&mut self.mixture);
        let client = |serial| Client::new(now, asked, schedule, serial);
        let Some(client) = self.clients.begin(client) else {
            return Err(format!("more than {CLIENTS_MAX} requests are under way at {now}"));
        };
        if self.measured(now) {
            self.report.of(asked.stream).began += 1;
        }
        self.engine.after(self.scenario.timeout, Happening::GiveUp(client));
        if let Some(limit) = self.scenario.connect_timeout {
            self.clients.hold(client);
            self.engine.after(limit, Happening::ConnectBy(client));
        }
        self.clients.hold(client);
        self.syn(now, client);
        Ok(())
    }

    /// A SYN; its event's hold is given back.
    fn syn(&mut self, now: Nanos, index: usize) {
        match self.clients[index].state {
            State::Trying => self.judge_syn(now, index),
            // Let through before: there is a request socket, and its SYN-ACK is sent again.
            State::Connecting => {
                self.clients[index].syns += 1;
                self.syn_ack(now, index);
            }
            _ => {}
        }
        self.clients.release(index);
    }

    fn judge_syn(&mut self, now: Nanos, index: usize) {
        self.clients[index].syns += 1;
        match self.evaluate(now, index) {
            // The kernel ignores a SYN when the accept queue is full.
            Gated::Passed if self.served.is_full() => self.again(index, None),
            Gated::Passed => {
                self.clients[index].state = State::Connecting;
                self.syn_ack(now, index);
            }
            Gated::Dropped => {
                self.policed(now, index);
                self.again(index, None);
            }
            Gated::Reset => {
                self.policed(now, index);
                match self.clients[index].schedule.on_reset {
                    OnReset::Fail => self.fail(index),
                    OnReset::Again(pause) => self.again(index, Some(now + pause)),
                }
            }
        }
    }

    fn evaluate(&mut self, now: Nanos, index: usize) -> Gated {
        let (length, limit) = self.served.accept();
        self.gate.evaluate(now, syn_of(self.clients[index].serial), Queue { length, limit })
    }

    fn policed(&mut self, now: Nanos, index: usize) {
        self.served.kernel(now, self.scenario.server.costs.police_s);
        let client = &mut self.clients[index];
        let (first, began) = (!client.policed, client.began);
        client.policed = true;
        let stream = client.asked.stream;
        if first && self.measured(began) {
            self.report.of(stream).refused_syn += 1;
        }
    }

    /// Schedules the next SYN: at `at`, or as the client's table says. A client that has none left
    /// waits for its time-out.
    fn again(&mut self, index: usize, at: Option<Nanos>) {
        let client = &self.clients[index];
        if let Some(offset) = client.schedule.at(client.syns) {
            let at = at.unwrap_or(client.began + offset).max(self.engine.now());
            self.clients.hold(index);
            self.engine.schedule(at, Happening::Syn(index));
        } else if at.is_some() {
            self.fail(index);
        }
    }

    /// The SYN-ACK goes out through the interface; if it is dropped there, the client's next SYN
    /// asks for another.
    fn syn_ack(&mut self, now: Nanos, index: usize) {
        if self.link.is_none() {
            self.clients.hold(index);
            self.engine.after(self.scenario.rtt, Happening::Request(index));
            return;
        }
        let packet = Packet { client: index, serial: None, bytes: SYN_ACK_BYTES };
        if !self.send(now, packet) {
            self.again(index, None);
        }
    }

    /// The request has come; its event's hold is given back.
    fn request(&mut self, now: Nanos, index: usize) {
        match self.clients[index].state {
            State::Connecting => self.judge_request(now, index),
            State::Waiting if !self.served.is_full() => self.queue(now, index),
            State::Waiting => self.unheard(index),
            _ => {}
        }
        self.clients.release(index);
    }

    fn judge_request(&mut self, now: Nanos, index: usize) {
        self.gate.established();
        let client = &mut self.clients[index];
        client.requested = now;
        let (kind, cookie) = (client.asked.kind, client.asked.cookie);
        let bucket = self.rules.of(kind);
        let others = self.gate.totals().waiting.saturating_sub(1);
        if bucket.is_some_and(|bucket| !self.rules.evaluate(now, bucket, cookie, others)) {
            self.served.kernel(now, self.scenario.server.costs.refuse_s);
            self.gate.left();
            let (stream, began) = (self.clients[index].asked.stream, self.clients[index].began);
            if self.measured(began) {
                self.report.of(stream).refused_header += 1;
            }
            self.fail(index);
            return;
        }
        let client = &mut self.clients[index];
        (client.state, client.bucket) = (State::Waiting, bucket);
        if self.served.is_full() { self.unheard(index) } else { self.queue(now, index) }
    }

    /// The accept queue is full: the kernel does not take the request, and the client sends it
    /// again.
    fn unheard(&mut self, index: usize) {
        let (first, doublings) = UNHEARD_RTO;
        let client = &mut self.clients[index];
        let wait = Nanos(first.0 << client.unheard.min(doublings));
        client.unheard += 1;
        self.clients.hold(index);
        self.engine.after(wait, Happening::Request(index));
    }

    fn connect_by(&mut self, now: Nanos, index: usize) {
        if matches!(self.clients[index].state, State::Trying | State::Connecting) {
            self.leave(now, index);
        }
        self.clients.release(index);
    }

    fn give_up(&mut self, now: Nanos, index: usize) {
        if self.clients[index].state != State::Over {
            self.leave(now, index);
        }
        self.clients.release(index);
    }

    /// The client goes without a response. Its request stays in the accept queue and with its
    /// worker; the rest of a response is not sent.
    fn leave(&mut self, now: Nanos, index: usize) {
        let state = self.clients[index].state;
        match state {
            State::Waiting => self.gate.left(),
            State::Sending => self.gate.broken_off(),
            _ => {}
        }
        if let (State::Waiting | State::Sending, Some(bucket)) = (state, self.clients[index].bucket)
        {
            self.rules.ended(bucket, None);
        }
        self.fail(index);
        if state == State::Sending {
            self.free_worker(now, index);
        }
    }

    fn fail(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.state = State::Over;
        self.over += 1;
        let (stream, began) = (client.asked.stream, client.began);
        if self.measured(began) {
            self.report.of(stream).failed += 1;
        }
    }

    /// The client has the whole response, half a round trip before the server knows.
    fn answered(&mut self, now: Nanos, index: usize) {
        let client = &mut self.clients[index];
        client.state = State::Over;
        self.over += 1;
        let (asked, began, requested) = (client.asked, client.began, client.requested);
        let bucket = client.bucket;
        self.gate.ended(now.since(began));
        if let Some(bucket) = bucket {
            self.rules.ended(bucket, Some(now.since(requested)));
        }
        let at = now - Nanos(self.scenario.rtt.0 / 2);
        if self.measured(at) {
            let report = self.report.of(asked.stream);
            report.answered += 1;
            report.answered_dynamic += u64::from(asked.kind == RequestKind::Dynamic);
            report.took_s.push(at.since(began).as_secs_f64());
        }
        self.go_on(asked);
    }

    /// A session's next request, or its end.
    fn go_on(&mut self, asked: Asked) {
        if asked.later > 0 {
            let request = self.scenario.files.sample(&mut self.session_files);
            let (kind, size, later) = (request.kind, request.size, asked.later - 1);
            let next = Asked { kind, size, later, cookie: true, ..asked };
            self.engine.after(self.scenario.sessions.think, Happening::Next(next));
        } else if asked.stream == Stream::Surge && self.measured(asked.session) {
            self.report.sessions.1 += 1;
        }
    }

    fn sample(&mut self, now: Nanos) {
        if let Some(link) = &mut self.link {
            link.sample();
        }
        if now < self.until + self.scenario.timeout {
            self.engine.after(link::SAMPLE_EVERY, Happening::Sample);
        }
    }

    fn tick(&mut self, now: Nanos) -> Result<(), String> {
        // Also without a controller: the course is kept, and the CPU's clocks run in the same steps.
        let (used, pressed) = self.served.cpu(now);
        self.account(now, used);
        let mut totals = self.gate.totals().clone();
        totals.buckets = self.rules.totals().cloned().collect();
        let mut signals = self.sense.signals(Seen {
            now,
            totals: &totals,
            cpu: (used, pressed, self.scenario.server.cpus),
            accept: self.served.accept(),
        });
        if let Some(link) = &mut self.link {
            link.tell(&mut signals);
        }
        // The first look gives totals, the second their differences.
        if now > Nanos::ZERO {
            let limits = match &mut self.governor {
                Some(governor) => governor.tick(&signals)?,
                None => ServiceLimits::default(),
            };
            self.report.traces.push(WebTrace::of(&signals, &limits));
            if self.governor.is_some() {
                self.decided = Some(limits);
                self.engine.after(APPLY_DELAY, Happening::Apply);
            }
        }
        if now < self.until + self.scenario.timeout {
            self.engine.after(self.scenario.period, Happening::Tick);
        }
        Ok(())
    }

    /// The share of the CPU that was used while it was measured, to the tick.
    fn account(&mut self, now: Nanos, used: f64) {
        let from = self.scenario.measure_from;
        if now <= from {
            self.cpu_from = used;
        } else if now <= self.until {
            let seconds = now.since(from).as_secs_f64() * f64::from(self.scenario.server.cpus);
            self.report.cpu = (used - self.cpu_from) / seconds.max(1e-9);
        }
    }

    fn apply(&mut self, now: Nanos) -> Result<(), String> {
        let Some(limits) = self.decided.take() else { return Ok(()) };
        self.rules.set(now, &limits.buckets)?;
        self.gate.set(limits).map_err(|e| format!("limits not accepted: {e}"))
    }

    fn check(&mut self) -> Result<(), String> {
        if self.engine.late() > 0 {
            return Err(format!("{} events were scheduled for the past", self.engine.late()));
        }
        if self.unsound > 0 {
            return Err(format!("{} times segments were lost in the books", self.unsound));
        }
        let begun = self.clients.begun();
        if self.over != begun {
            return Err(format!("{begun} requests began, {} ended", self.over));
        }
        if self.clients.present() > 0 {
            return Err(format!("{} requests are held after the end", self.clients.present()));
        }
        let totals = self.gate.totals();
        if (totals.waiting, totals.open) != (0, 0) {
            return Err(format!("{} wait, {} are open at the end", totals.waiting, totals.open));
        }
        self.rules.check()?;
        self.served.check(self.engine.now())?;
        if let Some(link) = &self.link {
            self.report.packets = link.packets();
            if !link.is_settled() {
                return Err(format!(
                    "packets in the interface after the end: {:?}",
                    link.packets()
                ));
            }
        }
        Ok(())
    }
}
