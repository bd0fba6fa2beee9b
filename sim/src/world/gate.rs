// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dataplane as the kernel has it: the same chain (the same C), the same counts; only the packets
//! are missing.

use super::replies::{Replies, ReplyCaps};
use tidegate_control::Mode;
use tidegate_model::Canary;
use tidegate_model::limits::{Pending, ServiceLimits};
use tidegate_model::signals::ConnectionCounts;
use tidegate_model::totals::{ConnectionTotals, Histogram, ServiceTotals};
use tidegate_policy::{
    AcceptQueue, Action, Ask, BucketSpec, Chain, Circumstances, Decision, Event, InFlight, Lease,
    Level, Limits, MinRate, Noted, Params, Policy, Reason, SourceKey, VerdictKind,
};
use tidegate_units::{Nanos, Random};
use tidegate_workload::Rng;

/// Seed of the bits that policies decide by: they are the kernel's, and no scenario's.
pub(crate) const DICE_SEED: u64 = 0x6761_7465;

/// What the gate does with one SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gated {
    /// To the server.
    Passed,
    /// Refused in silence.
    Dropped,
    /// Refused by a RST.
    Reset,
}

/// What the gate sees of a SYN.
#[derive(Clone, Copy, Debug)]
pub struct Syn {
    /// The seeded hash of its tuple and sequence number.
    pub key: u64,
    /// The priority of its class, 0 to 7.
    pub priority: u8,
    /// Where it says that it comes from; `None` where clients have no addresses.
    pub source: Option<u64>,
}

/// What is told to a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyLimits {
    /// Its parameters.
    pub params: Params,
    /// How the work that waits counts.
    pub level: Level,
}

impl PolicyLimits {
    /// Of a policy that looks at no level.
    #[must_use]
    pub const fn new(params: Params) -> Self {
        Self { params, level: Level::NONE }
    }
}

/// Makes what a policy is told of limits, or says why they are refused.
pub type MakeParams = Box<dyn Fn(&ServiceLimits) -> Result<PolicyLimits, String> + Send>;

/// What a dataplane is told about a service, but for its limits.
pub struct GateSpec {
    /// What evaluates SYNs.
    pub policy: Policy,
    /// What is done with the refused.
    pub action: Action,
    /// Whether it is done.
    pub mode: Mode,
    /// And to which sources.
    pub canary: Canary,
    /// How limits become the policy's parameters; `None` for a plain bucket.
    pub params: Option<MakeParams>,
    /// Most RSTs; `None` for no cap.
    pub replies: Option<ReplyCaps>,
}

impl GateSpec {
    /// A plain bucket, and as many RSTs as are asked for.
    #[must_use]
    pub fn new(policy: Policy, action: Action, mode: Mode) -> Self {
        Self { policy, action, mode, canary: Canary::ALL, params: None, replies: None }
    }

    fn params(&self, limits: &ServiceLimits) -> Result<PolicyLimits, String> {
        if let Some(make) = &self.params {
            return make(limits);
        }
        let Some(rate) = limits.rate else {
            return Ok(PolicyLimits::new(Params::no_limit(self.policy)));
        };
        let mut spec = BucketSpec::new(rate, limits.burst, self.action);
        spec.reserve = limits.reserve;
        let params = match self.policy {
            Policy::TokenBucket => Params::token_bucket(&spec),
            Policy::FreshFirst => Params::fresh_first(&spec),
            other => return Err(format!("{} is more than a bucket", other.name())),
        };
        params.map(PolicyLimits::new).map_err(|e| e.to_string())
    }
}

/// By which a canary chooses among sources; here nobody has to be kept from guessing it.
const SOURCES: SourceKey = SourceKey::new([
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0x2545_f491_4f6c_dd1d,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
]);

/// A source as a canary knows it: as if its number were an IPv6 /64.
fn hashed(source: u64) -> u64 {
    let mut prefix = [0; 16];
    prefix[..8].copy_from_slice(&source.wrapping_add(1).to_be_bytes());
    SOURCES.source(prefix, 0)
}

/// What the gate looks at beside the SYN.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Length of the accept queue.
    pub length: usize,
    /// Its limit.
    pub limit: usize,
}

/// One service's dataplane.
pub struct Gate {
    spec: GateSpec,
    replies: Option<Replies>,
    limits: ServiceLimits,
    chain: Chain,
    dice: Rng,
    lease: Lease,
    noted: Noted,
    totals: ServiceTotals,
}

impl Gate {
    /// A gate without limits.
    #[must_use]
    pub fn new(spec: GateSpec) -> Self {
        let mut gate = Self {
            replies: spec.replies.map(Replies::new),
            limits: ServiceLimits::default(),
            chain: Chain::default(),
            dice: Rng::new(DICE_SEED, 0),
            lease: Lease::WHOLE,
            noted: Noted::default(),
            totals: ServiceTotals::default(),
            spec,
        };
        gate.put(PolicyLimits::new(Params::no_limit(gate.spec.policy)));
        gate
    }

    /// Writes new limits; the policy's state stays.
    ///
    /// # Errors
    /// When the policy does not take the parameters.
    pub fn set(&mut self, limits: ServiceLimits) -> Result<(), String> {
        let params = self.spec.params(&limits)?;
        self.limits = limits;
        self.put(params);
        Ok(())
    }

    /// The limits as the chain takes them.
    fn put(&mut self, PolicyLimits { params, level }: PolicyLimits) {
        let limits = &self.limits;
        let low = limits.waiting_low.map_or((0, 0), |low| (low.most, low.rest));
        let Pending { silent, asks_q10 } = limits.pending;
        let mut chain = Limits::new(params);
        chain.level = level;
        chain.accept_queue_max_q10 = limits.accept_queue_max_q10;
        chain.in_flight = limits.waiting_max.map_or_else(InFlight::default, |max| {
            InFlight::up_to(max).tight(low).counting(silent, asks_q10)
        });
        chain.set_min_rate(limits.min_rate.map(MinRate::per));
        chain.set_action(self.spec.action);
        chain.set_shadow(self.spec.mode == Mode::Shadow);
        chain.set_canary(self.spec.canary.share_q16());
        self.chain.set(chain);
    }

    /// How strong the limits are from now on; whole if nobody says so.
    pub const fn hold(&mut self, lease: Lease) {
        self.lease = lease;
    }

    /// Evaluates a SYN by the chain. Its source is a single client, as far as `auto` asks.
    pub fn evaluate(&mut self, now: Nanos, syn: Syn, queue: Queue) -> Gated {
        if self.lease.passes(false).is_some() {
            self.pass();
            return Gated::Passed;
        }
        let Syn { key, priority, source } = syn;
        let random = self.dice.next_u64();
        let word = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let ask = Ask {
            event: Event {
                now_ns: now.0,
                key,
                random: random as u32,
                priority,
                ..Event::default()
            },
            queue: Some(AcceptQueue { length: word(queue.length), limit: word(queue.limit) }),
            waiting: self.totals.waiting,
            silent: self.totals.silent,
            over: false,
            copy: false,
        };
        let how = Circumstances {
            lease: self.lease,
            source: source.map(hashed),
            random: (random >> 32) as u32,
            ..Circumstances::default()
        };
        let replies = &mut self.replies;
        let decision = self.chain.decide(&ask, &how, |flood| {
            let allowed = replies.as_mut().is_none_or(|replies| replies.allow(now, source, flood));
            if allowed { Ok(()) } else { Err(Reason::ReplyCap) }
        });
        self.count(&decision);
        match decision.verdict.kind {
            _ if decision.passes => Gated::Passed,
            VerdictKind::Reject => Gated::Reset,
            _ => Gated::Dropped,
        }
    }

    fn count(&mut self, decision: &Decision) {
        self.noted = decision.noted;
        self.totals.offered += 1;
        self.totals.repeated += u64::from(decision.verdict.repeated);
        self.totals.refused += u64::from(decision.verdict.kind != VerdictKind::Admit);
        self.totals.admitted += u64::from(decision.passes);
    }

    /// A client of this source has completed a handshake.
    pub fn receives(&mut self, now: Nanos, source: Option<u64>) {
        if let Some(replies) = &mut self.replies {
            replies.note(now, source);
        }
    }

    /// What a connection's tracking writes: a world of sessions counts by itself.
    pub(crate) const fn tracked(&mut self) -> &mut ServiceTotals {
        &mut self.totals
    }

    /// Lets a SYN pass without a look at the limits: its lease has run out.
    fn pass(&mut self) {
        self.totals.offered += 1;
        self.totals.admitted += 1;
        self.noted = Noted::default();
    }

    /// What is noted of the SYN that was evaluated last, if it passed.
    #[must_use]
    pub const fn noted(&self) -> Noted {
        self.noted
    }

    /// The server has replied to a SYN of a sender that nobody has: nothing follows.
    pub fn replied_in_vain(&mut self, noted: Noted) {
        self.totals.connections.replied += 1;
        self.chain.senders().replied(noted);
    }

    /// The handshake of a SYN that passed is complete; beside [`Self::established`].
    pub fn proved(&mut self, noted: Noted) {
        self.chain.senders().replied(noted);
        self.chain.senders().proved(noted);
    }

    /// A connection was established, and its request came with the end of the handshake.
    pub fn established(&mut self) {
        self.totals.waiting += 1;
        self.totals.open += 1;
        self.totals.connections.replied += 1;
        self.totals.connections.proved += 1;
        self.totals.connections.asked += 1;
    }

    /// The response's first byte, and the end: what is sent here is short.
    pub fn answered(&mut self, took: Nanos) {
        self.answering(took);
        self.ended(took);
    }

    /// The response's first byte; its end comes later.
    pub fn answering(&mut self, took: Nanos) {
        self.totals.waiting -= 1;
        self.totals.first_byte.record(took);
        self.totals.connections.answered += 1;
    }

    /// The end of a response whose first byte was seen.
    pub fn ended(&mut self, took: Nanos) {
        self.broken_off();
        self.totals.end.record(took);
    }

    /// The client has closed in the middle of a response.
    pub fn broken_off(&mut self) {
        self.totals.open -= 1;
        self.totals.connections.ended += 1;
        self.totals.connections.ended_exchanges += 1;
    }

    /// The client has closed without a response.
    pub fn left(&mut self) {
        self.totals.connections.lost += 1;
        self.totals.waiting -= 1;
        self.totals.open -= 1;
    }

    /// What was counted so far.
    #[must_use]
    pub const fn totals(&self) -> &ServiceTotals {
        &self.totals
    }

    /// The limits in force.
    #[must_use]
    pub const fn limits(&self) -> &ServiceLimits {
        &self.limits
    }
}

/// What became of connections since then.
#[must_use]
pub const fn connections(now: &ConnectionTotals, then: &ConnectionTotals) -> ConnectionCounts {
    ConnectionCounts {
        replied: now.replied - then.replied,
        proved: now.proved - then.proved,
        asked: now.asked - then.asked,
        answered: now.answered - then.answered,
        lost: now.lost - then.lost,
        ended: now.ended - then.ended,
        ended_exchanges: now.ended_exchanges - then.ended_exchanges,
    }
}

/// Differences of totals become signals, as `tidegate-sense` makes them.
#[must_use]
pub fn times(now: &Histogram, then: &Histogram) -> tidegate_model::signals::Times {
    if now.count == then.count {
        return tidegate_model::signals::Times::default();
    }
    let since = now.since(then);
    tidegate_model::signals::Times {
        count: since.count,
        sum: Nanos(since.sum_ns),
        p50: since.quantile(0.5),
        p99: since.quantile(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Rate;

    const NOW: Nanos = Nanos::from_secs(100);

    /// What becomes of a SYN that is refused, with no reply left for everybody.
    fn refused(gate: &mut Gate, now: Nanos, source: Option<u64>) -> Gated {
        let queue = Queue { length: 0, limit: 1 };
        let syn = |source| Syn { key: 1, priority: 7, source };
        while gate.evaluate(now, syn(None), queue) != Gated::Dropped {}
        gate.evaluate(now, syn(source), queue)
    }

    /// Known since [`NOW`] is source 1.
    fn gate(replies: Option<ReplyCaps>) -> Gate {
        let spec = GateSpec::new(Policy::TokenBucket, Action::Reject, Mode::Enforce);
        let mut gate = Gate::new(GateSpec { replies, ..spec });
        let rate = Some(Rate::per_second(0.001));
        gate.set(ServiceLimits { rate, burst: 1, ..ServiceLimits::default() }).unwrap();
        gate.receives(NOW, Some(1));
        gate
    }

    #[test]
    fn beyond_the_cap_it_is_told_who_is_known() {
        let caps = ReplyCaps { all: 4, proved: 40, cpus: 2, sources: 8 };
        let mut both = gate(Some(caps));
        assert_eq!(refused(&mut both, NOW, Some(1)), Gated::Reset);
        assert_eq!(refused(&mut both, NOW, Some(2)), Gated::Dropped);
        assert_eq!(refused(&mut both, NOW, None), Gated::Dropped);
        let mut one = gate(Some(ReplyCaps { proved: 0, ..caps }));
        assert_eq!(refused(&mut one, NOW, Some(1)), Gated::Dropped);
    }

    /// A server that hangs: what is in flight stays.
    #[test]
    fn a_full_limit_admits_one_an_interval() {
        let spec = GateSpec::new(Policy::TokenBucket, Action::Drop, Mode::Enforce);
        let mut gate = Gate::new(spec);
        let limits = |min_rate: Option<f64>| ServiceLimits {
            waiting_max: Some(1),
            accept_queue_max_q10: 512,
            min_rate: min_rate.map(Rate::per_second),
            ..ServiceLimits::default()
        };
        gate.established();
        let passed = |gate: &mut Gate, from_s: u64, length| {
            let syn = |key| Syn { key, priority: 7, source: None };
            let at = |ms: u64| NOW + Nanos::from_secs(from_s) + Nanos::from_millis(ms);
            let queue = Queue { length, limit: 8 };
            let asked = (0..10_000).map(|ms| gate.evaluate(at(ms), syn(ms), queue));
            asked.filter(|gated| *gated == Gated::Passed).count()
        };
        gate.set(limits(None)).unwrap();
        assert_eq!(passed(&mut gate, 0, 0), 0);
        gate.set(limits(Some(0.5))).unwrap();
        assert_eq!(passed(&mut gate, 10, 0), 5);
        assert_eq!(passed(&mut gate, 20, 8), 5, "the accept queue has one place left");
        assert_eq!(passed(&mut gate, 30, 9), 0, "and none");
    }

    /// Spoofed SYNs, to which the server replies in vain.
    #[test]
    fn in_a_flood_nobody_is_known() {
        let caps = ReplyCaps { all: 4, proved: 40, cpus: 2, sources: 8 };
        let mut gate = gate(Some(caps));
        let set = |gate: &mut Gate, rate: f64| {
            let rate = Some(Rate::per_second(rate));
            gate.set(ServiceLimits { rate, burst: 1_000, ..ServiceLimits::default() }).unwrap();
        };
        set(&mut gate, 1e6);
        for n in 0..300 {
            let (syn, queue) =
                (Syn { key: n, priority: 7, source: None }, Queue { length: 0, limit: 1 });
            assert_eq!(gate.evaluate(NOW, syn, queue), Gated::Passed);
            gate.replied_in_vain(gate.noted());
        }
        set(&mut gate, 0.001);
        assert_eq!(refused(&mut gate, NOW, Some(1)), Gated::Reset, "not known yet");
        let later = NOW + Nanos::from_millis(500);
        assert_eq!(refused(&mut gate, later, Some(1)), Gated::Dropped);
    }

    /// A canary refuses its sources and lets all others pass, with what is counted the same.
    #[test]
    fn a_canary_refuses_a_share_of_the_sources() {
        let mut spec = GateSpec::new(Policy::TokenBucket, Action::Drop, Mode::Enforce);
        spec.canary = Canary::of_percent(25.0).unwrap();
        let mut gate = Gate::new(spec);
        let rate = Some(Rate::per_second(1.0));
        gate.set(ServiceLimits { rate, burst: 1, ..ServiceLimits::default() }).unwrap();
        let mut passed = 0;
        for n in 0..400 {
            let syn = Syn { key: n, priority: 4, source: Some(n) };
            let queue = Queue { length: 0, limit: 128 };
            passed += u32::from(gate.evaluate(Nanos::SECOND, syn, queue) == Gated::Passed);
        }
        assert_eq!((gate.totals.offered, gate.totals.refused), (400, 399));
        assert!((265..=336).contains(&passed), "{passed} of 400");
    }
}
