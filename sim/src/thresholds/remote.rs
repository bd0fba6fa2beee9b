// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits instead of the paper's messages: the shipped logic of `tidegate_control::fleet::remote` at
//! the server and at the control nodes, and a relay between them that loses, delays, is cut, and lets a
//! forger speak.
//!
//! While the thresholds ask for throttling, the server limits itself to a share of its capacity. Its
//! `Feedback` divides that among the control nodes, every tick. A control node executes what its `Inbound`
//! makes of it by the policy `gap`, and answers "too busy" to the rest.

use super::node::Sent;
use super::report::RemoteReport;
use super::spec::{Feedback as Relay, Remote as RemoteSpec};
use std::collections::BTreeMap;
use tidegate_control::fleet::remote::{Feedback, Flow, Grant, InForce, Inbound, Protected};
use tidegate_model::remote::{Hits, ReceivedLimit, RemoteLimit, Restriction, Scope};
use tidegate_policy::{
    Action, Event, GapSpec, Params, ParamsError, Policy, State, VerdictKind, admit,
};
use tidegate_units::{Nanos, Random, Rate};
use tidegate_workload::Rng;

/// From one message to the next, and how often a control node computes its limit.
pub(super) const TICK: Nanos = Nanos::from_millis(100);
/// Number and epoch of the session that is up.
const SESSION: (u64, u64) = (7, 1);
/// The server, as its control nodes know it.
const SERVER: &str = "server";
const SERVICE: &str = "shop";
/// A step of an opening limit is a rise by half at least.
const STEP: f64 = 1.5;

/// What is under way.
#[derive(Debug)]
enum Message {
    Limit(usize, RemoteLimit),
    Hits(usize, Hits),
}

/// A message and when it arrives.
pub(super) type Carried = (Nanos, u64);

/// See the module.
pub(super) struct Remote {
    spec: RemoteSpec,
    relay: Relay,
    capacity: f64,
    /// When the link is cut, from and to.
    cut: Option<(Nanos, Nanos)>,
    feedback: Feedback,
    nodes: Vec<ControlNode>,
    under_way: BTreeMap<u64, Message>,
    number: u64,
    sequence: u64,
    dice: Rng,
    forger: Rng,
    /// Sums of the nodes' rates in the measured ticks in which all have one.
    limits: Vec<f64>,
    report: RemoteReport,
}

impl Remote {
    /// So many control nodes before a server of this capacity; `from` is when measurement begins.
    pub(super) fn new(
        (spec, relay): (RemoteSpec, Relay),
        (nodes, capacity): (usize, f64),
        from: Nanos,
        (dice, forger): (Rng, Rng),
    ) -> Self {
        let cut = spec.cut.map(|(after, lasts)| (from + after, from + after + lasts));
        Self {
            feedback: Feedback::new(nodes, Rate::per_second(spec.min_rate)),
            nodes: (0..nodes).map(|_| ControlNode::new(spec.min_rate)).collect(),
            under_way: BTreeMap::new(),
            number: 0,
            sequence: 0,
            limits: Vec::new(),
            report: RemoteReport { least_rate: f64::INFINITY, ..RemoteReport::default() },
            spec,
            relay,
            capacity,
            cut,
            dice,
            forger,
        }
    }

    /// A request at this control node, in which nobody waits.
    pub(super) fn evaluate(&mut self, now: Nanos, node: usize) -> Sent {
        if self.nodes[node].passes(now) { Sent::Now } else { Sent::Refused }
    }

    /// A round of all; gives what is to be delivered.
    ///
    /// # Errors
    /// When the policy does not take a rate.
    pub(super) fn tick(
        &mut self,
        now: Nanos,
        throttled: bool,
        measured: bool,
    ) -> Result<Vec<Carried>, String> {
        let own = throttled.then(|| Rate::per_second(self.spec.own * self.capacity));
        let rates = self.feedback.tick(now, TICK, own);
        self.sequence += 1;
        let mut carried = Vec::new();
        for (node, rate) in rates.into_iter().enumerate() {
            let limit = RemoteLimit {
                scope: Scope::Service(SERVICE.to_owned()),
                restriction: Restriction::Rate(rate.unwrap_or(Rate::per_second(1.0))),
                validity: if rate.is_some() { self.spec.validity } else { Nanos::ZERO },
                sequence: self.sequence,
                priority: 0,
            };
            carried.extend(self.send(now, Message::Limit(node, limit)));
        }
        for node in 0..self.nodes.len() {
            self.forge(now, node);
            let hits = self.nodes[node].tick(now).map_err(|error| error.to_string())?;
            for hits in hits {
                carried.extend(self.send(now, Message::Hits(node, hits)));
            }
        }
        if measured {
            self.measure(now);
        }
        Ok(carried)
    }

    /// Puts a message on its way, unless the relay loses it.
    fn send(&mut self, now: Nanos, message: Message) -> Option<Carried> {
        // Both are drawn for each message, lost or not.
        let lost = self.dice.next_f64() < self.relay.loss;
        let late = Nanos::from_secs_f64(self.relay.jitter.as_secs_f64() * self.dice.next_f64());
        if lost || self.is_cut(now) {
            return None;
        }
        self.number += 1;
        self.under_way.insert(self.number, message);
        Some((now + self.relay.delay + late, self.number))
    }

    fn is_cut(&self, now: Nanos) -> bool {
        self.cut.is_some_and(|(from, to)| (from..to).contains(&now))
    }

    /// A message arrives.
    pub(super) fn deliver(&mut self, now: Nanos, number: u64) {
        match self.under_way.remove(&number) {
            Some(Message::Hits(node, hits)) => self.feedback.hear(now, node, &hits),
            Some(Message::Limit(node, limit)) => self.nodes[node].take(now, limit),
            None => {}
        }
    }

    /// Messages that nobody may believe, as many as the scenario says.
    fn forge(&mut self, now: Nanos, node: usize) {
        for _ in 0..self.spec.forged {
            let received = self.forged(now, self.nodes[node].sequence);
            let taken = self.nodes[node].inbound.take(received).is_ok();
            self.report.forged += 1;
            self.report.forged_taken += u64::from(taken);
        }
    }

    /// One of them; `last` is the sequence number that the node took last.
    fn forged(&mut self, now: Nanos, last: u64) -> ReceivedLimit {
        let (kind, random) = (self.forger.next_u64() % 7, self.forger.next_u64());
        let fresh = last + 1 + random % 1_000;
        let mut limit = RemoteLimit {
            scope: Scope::Service(SERVICE.to_owned()),
            restriction: Restriction::Rate(Rate::per_second(0.01)),
            validity: self.spec.validity,
            sequence: fresh,
            priority: 0,
        };
        let (session, epoch) = SESSION;
        let mut received = ReceivedLimit {
            peer: SERVER.to_owned(),
            session,
            epoch,
            at: now,
            limit: limit.clone(),
        };
        match kind {
            0 => received.peer = "somebody".to_owned(),
            1 => received.session = random | 8,
            2 => received.epoch = epoch + 1 + random % 5,
            3 => limit.sequence = last,
            4 => limit.sequence = random % last.max(1),
            5 => limit.scope = Scope::Service("another".to_owned()),
            _ => limit.restriction = Restriction::Rate(Rate::per_second(0.0)),
        }
        ReceivedLimit { limit, ..received }
    }

    fn measure(&mut self, now: Nanos) {
        let rates: Vec<Option<f64>> = self.nodes.iter().map(ControlNode::rate).collect();
        let least = rates.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        self.report.least_rate = self.report.least_rate.min(least);
        self.report.ticks += 1;
        if self.is_cut(now) {
            return;
        }
        if let Some(all) = rates.into_iter().collect::<Option<Vec<f64>>>() {
            self.limits.push(all.iter().sum());
        }
    }

    /// What was seen.
    pub(super) fn report(&self) -> RemoteReport {
        let n = self.limits.len().max(1) as f64;
        let mean = self.limits.iter().sum::<f64>() / n;
        let square = self.limits.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        let latest = |of: fn(&ControlNode) -> Option<Nanos>| {
            let each: Option<Vec<Nanos>> = self.nodes.iter().map(of).collect();
            each.and_then(|each| each.into_iter().max())
        };
        RemoteReport {
            limit_mean: mean,
            limit_variation: square.sqrt() / mean.max(1e-9),
            limited: self.limits.len() as u64,
            first_step: latest(|node| node.opening.first),
            open: latest(|node| node.opening.open),
            ..self.report.clone()
        }
    }
}

/// How a limit opened after the link was cut: times since the last message that counted.
#[derive(Clone, Copy, Debug, Default)]
struct Opening {
    /// The rate when the last message was taken.
    held: Option<f64>,
    first: Option<Nanos>,
    open: Option<Nanos>,
}

struct ControlNode {
    inbound: Inbound,
    in_force: Option<InForce>,
    params: Params,
    state: State,
    flow: Flow,
    /// Of the last message that was taken, and when.
    sequence: u64,
    taken: Nanos,
    opening: Opening,
}

impl ControlNode {
    fn new(min_rate: f64) -> Self {
        let mut inbound = Inbound::default();
        let scope = Scope::Service(SERVICE.to_owned());
        let grant = Grant { peer: SERVER.to_owned(), scopes: vec![scope], ..Grant::default() };
        let min_rate = Rate::per_second(min_rate);
        inbound.follow(
            &[grant],
            vec![Protected { name: SERVICE.to_owned(), min_rate, ..Protected::default() }],
        );
        inbound.session(SERVER, Some(SESSION));
        Self {
            inbound,
            in_force: None,
            params: Params::no_limit(Policy::Gap),
            state: State::fresh(),
            flow: Flow::default(),
            sequence: 0,
            taken: Nanos::ZERO,
            opening: Opening::default(),
        }
    }

    fn rate(&self) -> Option<f64> {
        self.in_force.map(|in_force| in_force.rate.get())
    }

    fn passes(&mut self, now: Nanos) -> bool {
        let verdict = admit(&self.params, &mut self.state, &Event::at(now.0));
        let passes = verdict.kind == VerdictKind::Admit;
        self.flow.offered += 1;
        self.flow.passed += u64::from(passes);
        self.flow.refused += u64::from(!passes);
        passes
    }

    fn take(&mut self, now: Nanos, limit: RemoteLimit) {
        let sequence = limit.sequence;
        let (session, epoch) = SESSION;
        let received = ReceivedLimit { peer: SERVER.to_owned(), session, epoch, at: now, limit };
        // One that another has overtaken is stale, and nothing happens.
        if self.inbound.take(received).is_ok() {
            (self.sequence, self.taken) = (sequence, now);
        }
    }

    fn tick(&mut self, now: Nanos) -> Result<Vec<Hits>, ParamsError> {
        let flow = std::mem::take(&mut self.flow);
        let in_force = self.inbound.tick(now, TICK, &[Some(flow)]).first().copied().flatten();
        if in_force != self.in_force {
            self.params = in_force.map_or(Ok(Params::no_limit(Policy::Gap)), params)?;
            self.in_force = in_force;
        }
        self.open(now);
        Ok(self.inbound.hits(now).into_iter().map(|(_, hits)| hits).collect())
    }

    /// Notes how the limit opens while no message comes.
    fn open(&mut self, now: Nanos) {
        let age = now.since(self.taken);
        let rate = self.rate();
        if age <= TICK {
            self.opening.held = rate;
        }
        let Some(held) = self.opening.held.filter(|_| self.taken > Nanos::ZERO) else { return };
        if rate.is_none_or(|rate| rate >= STEP * held) && age > TICK {
            self.opening.first.get_or_insert(age);
        }
        if rate.is_none() && age > TICK {
            self.opening.open.get_or_insert(age);
        }
    }
}

/// RFC 7415's bucket for a rate and a depth.
fn params(in_force: InForce) -> Result<Params, ParamsError> {
    let mut spec = GapSpec::new(in_force.rate, Action::Reject);
    spec.tau_milli = [in_force.burst.saturating_sub(1).saturating_mul(1000); super::PRIORITIES];
    Params::gap(&spec)
}
