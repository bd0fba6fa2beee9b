// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world of threshold control with feedback (papers/thresholds.txt): one web server, clients that
//! it does not control, and clients that it does.
//!
//! ```text
//!   uncontrolled client ────────────────────────────────┐
//!   controlled client ─► control node ─► interface ─────┴─► queue (253) ─► CPU ─► response
//!           ▲             (gap, queue)   (drops SYNs)          │
//!           └── or, as published, itself ◄──── feedback ◄──────┘ onset, again and again, resume
//! ```
//!
//! A request is one connection. The threshold policy evaluates each SYN in line with the packet, by the
//! number of requests that wait, or by the sample that a monitor took last. A dropped SYN comes again by
//! the client's schedule. A request that finds 253 waiting is told "too busy", which costs CPU time.
//!
//! The policies are the shipped C: `threshold` at the server, `gap` or `percent` in the control node. The
//! messages are the paper's, or remote limits by the shipped logic (remote.rs).
//! At one time the server finishes work first, then messages arrive, then SYNs, then new requests.

mod clients;
mod node;
mod remote;
mod report;
mod serve;
mod spec;
#[cfg(test)]
mod tests;
mod watch;

pub use report::{ClientReport, RemoteReport, Report};
pub use spec::{
    CLASSIC, ClientSpec, Control, Feedback, Ladder, Node as NodeBounds, REQUESTS_MAX,
    Remote as RemoteLimits, SEVERITIES_MAX, ServerSpec, Spec, Spread, Throttling,
};

use crate::engine::{Classed, Engine};
use clients::{Client, streams};
use node::{Node, Sent};
use remote::Remote;
use report::Wish;
use serve::{Done, Server};
use spec::PRIORITIES;
use tidegate_units::{Clock, Nanos, Random};
use tidegate_workload::{Answer, Reaction, Rng, Schedule};
use watch::{Severities, Watch};

#[derive(Clone, Copy, Debug)]
enum Happening {
    Cpu(u64),
    /// A message reaches who throttles: receiver, sequence, severities.
    Message(usize, u64, Severities),
    Monitor,
    Repeat,
    /// A round of remote limits.
    Tick,
    /// A message about remote limits arrives.
    Deliver(u64),
    /// Its time at the control node is over.
    Leave(usize),
    Syn(usize),
    GiveUp(usize),
    /// A client begins its next request.
    Arrival(usize),
    Measure,
}

impl Classed for Happening {
    fn class(&self) -> u8 {
        match self {
            Self::Measure => 0,
            Self::Cpu(_) => 1,
            Self::Message(..) | Self::Deliver(_) => 2,
            Self::Monitor => 3,
            Self::Repeat | Self::Tick => 4,
            Self::Leave(_) => 5,
            Self::Syn(_) => 6,
            Self::GiveUp(_) => 7,
            Self::Arrival(_) => 8,
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
struct Request {
    client: usize,
    began: Nanos,
    schedule: &'static Schedule,
    syns: usize,
    over: bool,
}

/// The server's side of feedback.
#[derive(Default)]
struct Told {
    severities: Severities,
    sequence: u64,
    /// Requests since the last message.
    since: u32,
}

struct World {
    engine: Engine<Happening>,
    spec: Spec,
    server: Server,
    watch: Option<Watch>,
    nodes: Vec<Node>,
    remote: Option<Remote>,
    clients: Vec<Client>,
    requests: Vec<Request>,
    over: usize,
    twice: u64,
    told: Told,
    wish: Wish,
    losses: Rng,
    /// CPU time, waiting, wish at the beginning of the measurement.
    from: (Nanos, u128, Nanos),
    report: Report,
}

/// Runs it, and follows every request to its end.
///
/// # Errors
/// For a spec out of range, and when a checker finds the world wrong: a request that ended twice or
/// never, CPU time that is not that of the work done, an event in the past.
pub fn run(spec: &Spec) -> Result<Report, String> {
    spec.check()?;
    let mut world = World::new(spec.clone())?;
    world.begin();
    while let Some(event) = world.engine.step() {
        world.happen(event)?;
    }
    world.check()?;
    Ok(world.report)
}

impl World {
    fn new(spec: Spec) -> Result<Self, String> {
        let rng = |stream| Rng::new(spec.seed, stream);
        let control = spec.control.as_ref();
        let watch = control.map(|c| Watch::new(c, rng(streams::INTERFACE))).transpose()?;
        let remote = remote_of(&spec);
        let mut nodes = Vec::new();
        let mut clients = Vec::new();
        let mut behind = 0..;
        for (index, client) in spec.clients.iter().enumerate() {
            let bounds = control.and_then(|c| c.throttling.node()).filter(|_| client.priority > 0);
            let place = match (bounds, control) {
                (Some(bounds), Some(control)) => {
                    if nodes.is_empty() || !bounds.shared {
                        let dice = rng(streams::NODES + nodes.len() as u64);
                        let node = Node::new(control, bounds, dice);
                        nodes.push(node.map_err(|e| e.to_string())?);
                    }
                    Some(nodes.len() - 1)
                }
                _ if remote.is_some() && client.priority > 0 => behind.next(),
                _ => None,
            };
            clients.push(Client::new(&spec, index, place));
        }
        let report = Report {
            clients: vec![ClientReport::default(); clients.len() + 1],
            seconds: spec.lasts.as_secs_f64(),
            ..Report::default()
        };
        Ok(Self {
            engine: Engine::new(),
            server: Server::new(spec.server),
            watch,
            nodes,
            remote,
            clients,
            requests: Vec::new(),
            over: 0,
            twice: 0,
            told: Told::default(),
            wish: Wish::default(),
            losses: rng(streams::FEEDBACK),
            from: (Nanos::ZERO, 0, Nanos::ZERO),
            report,
            spec,
        })
    }

    fn begin(&mut self) {
        self.engine.schedule(self.spec.from(), Happening::Measure);
        self.engine.schedule(self.spec.until(), Happening::Measure);
        if let Some(control) = &self.spec.control {
            if let Some(period) = control.monitor {
                self.engine.schedule(period, Happening::Monitor);
            }
            if control.throttling.by_feedback() {
                self.engine.schedule(control.feedback.period, Happening::Repeat);
            }
        }
        if self.remote.is_some() {
            self.engine.schedule(remote::TICK, Happening::Tick);
        }
        (0..self.clients.len()).for_each(|client| self.come(client, Nanos::ZERO));
    }

    fn happen(&mut self, event: Happening) -> Result<(), String> {
        match event {
            Happening::Measure => self.measure(),
            Happening::Cpu(epoch) => self.cpu(epoch),
            Happening::Message(to, sequence, severities) => self.message(to, sequence, severities),
            Happening::Monitor => self.monitor(),
            Happening::Repeat => self.repeat(),
            Happening::Tick => self.tick()?,
            Happening::Deliver(number) => {
                let now = self.now();
                if let Some(remote) = &mut self.remote {
                    remote.deliver(now, number);
                }
            }
            Happening::Leave(request) => self.leave(request),
            Happening::Syn(request) => self.syn(request),
            Happening::GiveUp(request) => {
                self.count(request).gave_up += 1;
                self.end(request);
            }
            Happening::Arrival(client) => self.arrive(client)?,
        }
        Ok(())
    }

    fn now(&self) -> Nanos {
        self.engine.now()
    }

    /// Whether something is still to come.
    fn goes_on(&self) -> bool {
        self.now() < self.spec.until() || self.over < self.requests.len()
    }

    fn measured(&self) -> bool {
        (self.spec.from()..self.spec.until()).contains(&self.now())
    }

    /// Where an event now of this request is counted.
    fn count(&mut self, request: usize) -> &mut ClientReport {
        let client = self.requests[request].client;
        self.count_of(client)
    }

    /// The client's counts; behind all clients those of what is not measured.
    fn count_of(&mut self, client: usize) -> &mut ClientReport {
        let place = if self.measured() { client } else { self.clients.len() };
        &mut self.report.clients[place]
    }

    fn measure(&mut self) {
        let now = self.now();
        let (used, waited) = self.server.account(now);
        let wished = self.wish.lasted(now);
        if now < self.spec.until() {
            self.from = (used, waited, wished);
            return;
        }
        let report = &mut self.report;
        report.cpu_s = used.since(self.from.0).as_secs_f64();
        let lasts = self.spec.lasts.0.max(1) as f64;
        report.queue_mean = (waited - self.from.1) as f64 / lasts;
        report.throttled = wished.since(self.from.2).0 as f64 / lasts;
        report.remote = self.remote.as_ref().map(Remote::report);
    }

    fn come(&mut self, client: usize, gap: Nanos) {
        if let Some(at) = self.clients[client].next(gap).filter(|at| *at < self.spec.until()) {
            self.engine.schedule(at, Happening::Arrival(client));
        }
    }

    /// What a throttled client adds to its interval (section 5.3).
    fn added_gap(&self, client: usize) -> Nanos {
        let Some(control) = &self.spec.control else { return Nanos::ZERO };
        let client = &self.clients[client];
        let severity = usize::from(client.told.severity(client.spec.priority));
        let place = severity.min(control.gaps.len()).checked_sub(1);
        place.map_or(Nanos::ZERO, |place| control.gaps[place])
    }

    fn arrive(&mut self, client: usize) -> Result<(), String> {
        let number = self.requests.len();
        if number >= REQUESTS_MAX {
            return Err(format!("more than {REQUESTS_MAX} requests"));
        }
        let gap = self.added_gap(client);
        self.come(client, gap);
        let now = self.now();
        self.count_of(client).offered += 1;
        let schedule = self.clients[client].schedule(&self.spec.schedules);
        self.requests.push(Request { client, began: now, schedule, syns: 0, over: false });
        let priority = self.clients[client].spec.priority;
        match self.throttle(client, (number, priority)) {
            Sent::Now => self.engine.schedule(now, Happening::Syn(number)),
            Sent::After(delay) => self.engine.after(delay, Happening::Leave(number)),
            Sent::Refused => {
                self.count(number).refused += 1;
                self.end(number);
            }
        }
        Ok(())
    }

    /// At the control node, where there is one.
    fn throttle(&mut self, client: usize, request: (usize, u8)) -> Sent {
        let now = self.now();
        let Some(node) = self.clients[client].node else { return Sent::Now };
        match &mut self.remote {
            Some(remote) => remote.evaluate(now, node),
            None => self.nodes[node].evaluate(now, request),
        }
    }

    fn leave(&mut self, request: usize) {
        let Some(node) = self.clients[self.requests[request].client].node else { return };
        if self.nodes[node].leave(request) {
            self.syn(request);
        }
    }

    /// A SYN at the interface.
    fn syn(&mut self, request: usize) {
        let now = self.now();
        self.told.since = self.told.since.saturating_add(1);
        self.evaluate(false);
        let priority = self.clients[self.requests[request].client].spec.priority;
        let at = (self.server.waiting(), priority);
        let passes = self.watch.as_mut().is_none_or(|watch| watch.passes(now, at));
        if passes {
            self.server.accept(now, request);
            return self.plan();
        }
        self.count(request).dropped += 1;
        let asked = &mut self.requests[request];
        let reaction = asked.schedule.after(asked.syns, Answer::Silence);
        asked.syns += 1;
        match reaction {
            Reaction::SendsAgain(gap) if asked.syns <= self.spec.retries => {
                self.engine.after(gap, Happening::Syn(request));
            }
            Reaction::SendsAgain(gap) | Reaction::GivesUp(gap) => {
                self.engine.after(gap, Happening::GiveUp(request));
            }
            Reaction::Fails => self.engine.schedule(now, Happening::GiveUp(request)),
        }
    }

    fn plan(&mut self) {
        if let Some((at, epoch)) = self.server.plan() {
            self.engine.schedule(at, Happening::Cpu(epoch));
        }
    }

    fn cpu(&mut self, epoch: u64) {
        let now = self.now();
        let Some(done) = self.server.fire(now, epoch) else { return };
        match done {
            Done::Served(request) => {
                let took = now.since(self.requests[request].began).as_secs_f64();
                self.count(request).response_s.push(took);
                self.end(request);
            }
            Done::Busy(request) => {
                self.count(request).busy += 1;
                self.end(request);
            }
        }
        self.plan();
    }

    fn end(&mut self, request: usize) {
        let request = &mut self.requests[request];
        self.twice += u64::from(request.over);
        self.over += usize::from(!request.over);
        request.over = true;
    }

    fn monitor(&mut self) {
        let queue = self.server.waiting();
        if let Some(watch) = &mut self.watch {
            watch.sampled(queue);
        }
        self.evaluate(false);
        let period = self.spec.control.as_ref().and_then(|control| control.monitor);
        if let Some(period) = period.filter(|_| self.goes_on()) {
            self.engine.after(period, Happening::Monitor);
        }
    }

    /// τ is over.
    fn repeat(&mut self) {
        self.evaluate(true);
        if let Some(control) = self.spec.control.as_ref().filter(|_| self.goes_on()) {
            self.engine.after(control.feedback.period, Happening::Repeat);
        }
    }

    /// A round of remote limits.
    fn tick(&mut self) -> Result<(), String> {
        self.evaluate(false);
        let (now, measured) = (self.now(), self.measured());
        let throttled = self.told.severities.iter().any(|severity| *severity > 0);
        let Some(remote) = &mut self.remote else { return Ok(()) };
        for (at, number) in remote.tick(now, throttled, measured)? {
            self.engine.schedule(at, Happening::Deliver(number));
        }
        if self.goes_on() {
            self.engine.after(remote::TICK, Happening::Tick);
        }
        Ok(())
    }

    /// Reads the thresholds, and tells those who throttle: when it changed, after n requests, and when
    /// `due`. The message to resume is sent once.
    fn evaluate(&mut self, due: bool) {
        let now = self.now();
        let (Some(watch), Some(control)) = (&mut self.watch, &self.spec.control) else { return };
        let severities = watch.severities(now, self.server.waiting());
        let throttled = severities.iter().any(|severity| *severity > 0);
        let onset = self.wish.set(now, throttled);
        let every = control.feedback.every;
        let again = throttled && (due || (every > 0 && self.told.since >= every));
        let changed = severities != self.told.severities;
        let tells = control.throttling.by_feedback() && (changed || again);
        self.report.onsets += u64::from(onset && self.measured());
        self.told.severities = severities;
        if tells {
            self.tell(severities);
        }
    }

    /// Sends a message to each who throttles.
    fn tell(&mut self, severities: Severities) {
        let Some(feedback) = self.spec.control.as_ref().map(|control| control.feedback) else {
            return;
        };
        self.told.since = 0;
        self.told.sequence += 1;
        let receivers = if self.nodes.is_empty() { self.clients.len() } else { self.nodes.len() };
        for to in 0..receivers {
            if self.nodes.is_empty() && self.clients[to].spec.priority == 0 {
                continue;
            }
            // Both are drawn for each message, lost or not.
            let lost = self.losses.next_f64() < feedback.loss;
            let late = feedback.jitter.as_secs_f64() * self.losses.next_f64();
            let counted = u64::from(self.measured());
            self.report.messages += counted;
            self.report.lost += counted * u64::from(lost);
            if !lost {
                let delay = feedback.delay + Nanos::from_secs_f64(late);
                let event = Happening::Message(to, self.told.sequence, severities);
                self.engine.after(delay, event);
            }
        }
    }

    fn message(&mut self, to: usize, sequence: u64, severities: Severities) {
        if self.nodes.is_empty() {
            self.clients[to].told.take(sequence, severities);
            return;
        }
        for request in self.nodes[to].take(sequence, severities) {
            self.syn(request);
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.report.clients.truncate(self.clients.len());
        let waiting: usize = self.nodes.iter().map(Node::waiting).sum();
        let all = self.over == self.requests.len() && self.twice == 0 && waiting == 0;
        if !all {
            return Err(format!(
                "{} of {} requests ended, {} twice, {waiting} wait in control nodes",
                self.over,
                self.requests.len(),
                self.twice
            ));
        }
        if self.engine.late() > 0 {
            return Err(format!("{} events in the past", self.engine.late()));
        }
        self.server.check()
    }
}

/// The remote limits of a scenario that has them: a control node for each controlled client.
fn remote_of(spec: &Spec) -> Option<Remote> {
    let control = spec.control.as_ref()?;
    let Throttling::Remote(remote) = control.throttling else { return None };
    let nodes = spec.clients.iter().filter(|client| client.priority > 0).count();
    let capacity = 1.0 / spec.server.work.as_secs_f64();
    let dice = Rng::new(spec.seed, streams::FEEDBACK);
    let forger = Rng::new(spec.seed, streams::FORGER);
    Some(Remote::new((remote, control.feedback), (nodes, capacity), spec.from(), (dice, forger)))
}

// A severity for each priority of the policies.
const _: () = assert!(size_of::<Severities>() == PRIORITIES);
