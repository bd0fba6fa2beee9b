// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One service at the gate: its chain, what is in flight, what was counted.
//!
//! What reports tell of the requests in flight is in [`crate::reports`].

use crate::counters::{Counter, Times};
use crate::flight::Completion;
use crate::onset::Onset;
use crate::refusal::Backlog;
use crate::reports::Reports;
use crate::turns::{Turn, Turns, Waited};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_config::ServiceConfig;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::totals::{BucketTotals, ConnectionTotals, ServiceTotals};
use tidegate_model::{PRIORITIES, RANKS, service_identity};
use tidegate_policy::{
    Action, Chain, Execution, InFlight, Limits, MinRate, Params, Policy, Reason, RequestChain,
};
use tidegate_units::{Nanos, Rate};

/// Where nothing says how much of the limit in flight may be kept for the upper priorities, it is kept
/// of this part of it.
const SEATS_PART: u64 = 8;

/// Past full limits go at least so many a second while nothing is reported: see [`crate::reports`].
const SILENT_RATE: f64 = 1.0;

/// So far back it is said whom a service has refused.
const MINUTE: Nanos = Nanos::from_secs(60);

/// How often a class got a verdict for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Number of the class: 0 is `default`, then those of the service in their order.
    pub class: usize,
    /// Whether a refusal was executed; an admission is.
    pub execution: Execution,
    /// The reason, which tells admissions from refusals.
    pub reason: Reason,
    /// How many requests.
    pub count: u64,
}

/// Numbers of reasons for admissions, and for requests that passed unevaluated, are below this
/// (policy/reasons.def).
const REFUSALS: u8 = 30;

impl Counted {
    /// Whether the verdict was a refusal.
    #[must_use]
    pub const fn refused(&self) -> bool {
        self.reason as u8 >= REFUSALS
    }

    /// Whether the verdict was carried out, and not only counted.
    #[must_use]
    pub const fn executed(&self) -> bool {
        matches!(self.execution, Execution::Executed)
    }
}

/// What the gate has counted of what no service's totals hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateState {
    /// Requests that passed without being evaluated, by reason.
    pub passed: Vec<(Reason, u64)>,
    /// Reports that ended a request in flight.
    pub completed: u64,
    /// Reports that came too late.
    pub late: u64,
    /// Reports of which nothing is known.
    pub unknown: u64,
    /// Requests that passed and found no room to be followed.
    pub untracked: u64,
    /// Messages at listeners that were not understood.
    pub misunderstood: u64,
}

/// The chain, and what it is told of each priority.
struct Limited {
    chain: Chain,
    /// The limit in flight, less the seats that this priority must leave. Counted as work that waits
    /// they would move the level of thresholds.
    in_flight: [InFlight; PRIORITIES],
    onset: Onset,
    turns: Turns,
    /// The share of what may wait beyond the usual while an overload begins that this priority must leave.
    kept: [f64; PRIORITIES],
    min_rate: Option<Rate>,
    /// When the limit in flight has refused each priority.
    refused: [Option<Nanos>; PRIORITIES],
    /// Nobody waits for what is only counted.
    shadow: bool,
}

impl Limited {
    /// The limits that hold for this priority while so many are in flight. Past a full limit goes the highest priority that came
    /// within an interval: else it would be who comes first, which is nearly always the lowest.
    fn choose(&mut self, now: Nanos, priority: usize, (waiting, silent): (Option<u64>, bool)) {
        let least = Rate::per_second(SILENT_RATE);
        let min_rate = self.min_rate.map(|rate| if silent && rate < least { least } else { rate });
        let interval = |rate: Rate| Nanos::from_secs_f64(1.0 / rate.get());
        let yields = min_rate.map(interval).is_some_and(|interval| {
            let lately = |at: &Option<Nanos>| at.is_some_and(|at| now.since(at) <= interval);
            self.refused[..priority].iter().any(lately)
        });
        let mut limits = *self.chain.limits();
        limits.in_flight = self.in_flight[priority];
        if let Some(most) = waiting.and_then(|waiting| self.onset.asks(now, waiting)) {
            let kept = self.kept[priority] * most.beyond as f64;
            let most = u32::try_from(most.all.saturating_sub(kept as u64)).unwrap_or(u32::MAX);
            limits.in_flight.max = limits.in_flight.max.min(most.max(1));
        }
        limits.set_min_rate(min_rate.filter(|_| !yields).map(MinRate::per));
        self.chain.set(limits);
    }
}

/// One service.
pub(crate) struct Service {
    pub(crate) name: Arc<str>,
    /// What tells it apart, wherever it stands in the file.
    pub(crate) identity: u64,
    limited: Mutex<Limited>,
    reports: Reports,
    offered: Counter,
    admitted: Counter,
    refused: Counter,
    answered: Counter,
    lost: Counter,
    unknown: Counter,
    unseen: Counter,
    by_proxy: Counter,
    /// When a proxy last refused by itself; 0: never.
    by_proxy_at: AtomicU64,
    first_byte: Times,
    end: Times,
    statuses: [Counter; 6],
    pub(crate) backlog: Backlog,
    /// Requests per second that are admitted while that is limited, as bits of an f64; else 0.
    rate: AtomicU64,
    /// How long turns of the proxy are, in nanoseconds, as of the last tick.
    turn: AtomicU64,
    waited: Waited,
}

/// A chain's word on a request, and whether it goes on to the server.
pub(crate) struct Decided {
    pub(crate) reason: Reason,
    pub(crate) refused: bool,
    pub(crate) execution: Execution,
    pub(crate) passes: bool,
    /// It is to wait for so long first.
    pub(crate) delay: Option<Nanos>,
}

/// Who asks, as far as a decision needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) priority: u8,
    pub(crate) random: u64,
    /// A seeded hash of the client; `None`: the proxy does not say who it is.
    pub(crate) source: Option<u64>,
    /// Of a proxy that says it.
    pub(crate) turn: Option<Turn>,
}

impl Service {
    pub(crate) fn new(name: &str) -> Self {
        let chain = Chain::new(Limits::new(Params::no_limit(Policy::TokenBucket)));
        Self {
            name: name.into(),
            identity: service_identity(name),
            limited: Mutex::new(Limited {
                chain,
                in_flight: [InFlight::default(); PRIORITIES],
                onset: Onset::default(),
                turns: Turns::default(),
                kept: [0.0; PRIORITIES],
                min_rate: None,
                refused: [None; PRIORITIES],
                shadow: false,
            }),
            reports: Reports::default(),
            offered: Counter::default(),
            admitted: Counter::default(),
            refused: Counter::default(),
            answered: Counter::default(),
            lost: Counter::default(),
            unknown: Counter::default(),
            unseen: Counter::default(),
            by_proxy: Counter::default(),
            by_proxy_at: AtomicU64::new(0),
            first_byte: Times::default(),
            end: Times::default(),
            statuses: Default::default(),
            backlog: Backlog::default(),
            rate: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            waited: Waited::default(),
        }
    }

    fn limited(&self) -> MutexGuard<'_, Limited> {
        self.limited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes new limits; what the policy has seen stays.
    ///
    /// # Errors
    /// When the policy does not take them; then nothing is limited.
    pub(crate) fn set(
        &self,
        config: &ServiceConfig,
        limits: &ServiceLimits,
        longest_wait: Option<Nanos>,
    ) -> Result<(), String> {
        let policy = policy(config);
        let burst = limits.burst.max(1);
        let reserving = ServiceLimits { reserve: config.reserve_tokens(burst), ..limits.clone() };
        let params = match longest_wait {
            Some(longest) if policy == Policy::Gap => {
                tidegate_params::waiting(&config.policy, &reserving, longest)
            }
            _ => tidegate_params::service(policy, Action::Reject, &config.policy, &reserving),
        };
        let params = params.map_err(|error| error.to_string());
        let mut chain = Limits::new(match &params {
            Ok(params) => *params,
            Err(_) => Params::no_limit(policy),
        });
        let mut by_priority = [InFlight::default(); PRIORITIES];
        if params.is_ok() {
            by_priority = in_flight(config, limits);
            chain.in_flight = by_priority[0];
            chain.set_min_rate(limits.min_rate.map(MinRate::per));
            chain.level = tidegate_params::level(config, limits);
        }
        chain.set_action(Action::Reject);
        chain.set_shadow(config.mode == tidegate_model::Mode::Shadow);
        chain.set_canary(config.canary.share_q16());
        let rate = limits.rate.filter(|_| params.is_ok()).map_or(0.0, |rate| rate.get());
        self.rate.store(rate.to_bits(), Relaxed);
        let mut limited = self.limited();
        limited.in_flight = by_priority;
        limited.onset.set(limits.onset.filter(|_| params.is_ok()), limits.why.shedding);
        limited.kept = kept(config);
        limited.min_rate = limits.min_rate.filter(|rate| params.is_ok() && rate.get() > 0.0);
        limited.chain.set(chain);
        limited.shadow = config.mode == tidegate_model::Mode::Shadow;
        params.map(drop)
    }

    /// The rung of each priority on its ladder of thresholds; `None`: the policy has none.
    pub(crate) fn rungs(&self) -> Option<[u8; PRIORITIES]> {
        self.limited().chain.rungs()
    }

    /// Whose refusals are carried out.
    pub(crate) fn set_mode(&self, mode: tidegate_model::Mode, canary: tidegate_model::Canary) {
        let shadow = mode == tidegate_model::Mode::Shadow;
        let mut limited = self.limited();
        let mut limits = *limited.chain.limits();
        limits.set_shadow(shadow);
        limits.set_canary(canary.share_q16());
        limited.chain.set(limits);
        limited.shadow = shadow;
    }

    /// What the chain says to a request of this priority. One that passes is in flight from here on;
    /// where it `waits`, one that is delayed is not.
    pub(crate) fn decide(
        &self,
        now: Nanos,
        Who { priority, random, source, turn }: Who,
        (lease, waits): (tidegate_policy::Lease, bool),
    ) -> Decided {
        let mut limited = self.limited();
        limited.turns.asks(now, turn);
        let place = usize::from(priority) % PRIORITIES;
        let waiting = self.in_flight();
        let known = (!self.reports.missing()).then_some(waiting);
        limited.choose(now, place, (known, self.reports.silent(now)));
        let ask = tidegate_policy::Ask {
            event: tidegate_policy::Event {
                now_ns: now.0,
                random: random as u32,
                priority,
                ..tidegate_policy::Event::default()
            },
            waiting,
            ..tidegate_policy::Ask::default()
        };
        let how = tidegate_policy::Circumstances {
            lease,
            source,
            random: (random >> 32) as u32,
            waits: waits && !limited.shadow,
            ..tidegate_policy::Circumstances::default()
        };
        let decision = limited.chain.decide(&ask, &how, |_| Ok(()));
        let delayed = decision.verdict.kind == tidegate_policy::VerdictKind::Delay;
        if decision.passes && !delayed {
            self.reports.begin();
            limited.onset.passes(now);
        }
        if decision.verdict.reason == Reason::Waiting {
            limited.refused[place] = Some(now);
        }
        drop(limited);
        Decided {
            reason: decision.verdict.reason,
            refused: decision.verdict.kind != tidegate_policy::VerdictKind::Admit && !delayed,
            execution: decision.execution,
            passes: decision.passes,
            delay: delayed.then_some(decision.verdict.delay),
        }
    }

    /// A request that passes without a look at the limits is in flight as well.
    pub(crate) fn passes(&self, now: Nanos) {
        self.reports.begin();
        // One that is not counted looks old, and this one is rare: no wait for the lock.
        if let Ok(mut limited) = self.limited.try_lock() {
            limited.onset.passes(now);
        }
    }

    /// Counts what was decided about a request.
    pub(crate) fn count(&self, now: Nanos, decided: &Decided) {
        self.offered.one();
        if decided.refused {
            self.refused.one();
        }
        if decided.passes {
            self.admitted.one();
            self.reports.expect(now);
        }
    }

    /// A request that passed could not be followed: that it completes is all that will be known.
    pub(crate) fn untracked(&self) {
        self.reports.leave();
        self.unknown.one();
        self.answered.one();
    }

    /// The report of a request in flight.
    pub(crate) fn complete(
        &self,
        times: (Nanos, Nanos),
        bucket: Option<&Bucket>,
        completion: &Completion,
    ) {
        let took = took(times, completion);
        completion.waited.into_iter().for_each(|waited| self.waited.add(waited));
        self.reports.complete(times, took);
        self.status(completion.status_seen());
        if let Some(bucket) = bucket {
            bucket.ended.one();
        }
        if completion.client_left() {
            self.lost.one();
            return;
        }
        let first_byte = completion.first_byte.unwrap_or(took).min(took);
        self.first_byte.record(first_byte);
        self.end.record(took);
        self.answered.one();
        if let Some(bucket) = bucket {
            bucket.first_byte.record(first_byte);
            bucket.end.record(took);
        }
    }

    /// The report of a request that does not count as in flight any more, and has been counted as
    /// completed.
    pub(crate) fn complete_late(&self, times: (Nanos, Nanos), completion: &Completion) {
        self.reports.complete_late(times, took(times, completion));
        self.status(completion.status_seen());
    }

    /// The proxy has responded to a request in flight, since no server could have it.
    pub(crate) fn unserved(&self, bucket: Option<&Bucket>, status: u16) {
        self.reports.withdraw();
        self.unseen.one();
        self.status(status);
        if let Some(bucket) = bucket {
            bucket.ended.one();
        }
    }

    /// The same of one that does not count as in flight any more.
    pub(crate) fn unserved_late(&self, status: u16) {
        self.reports.withdraw_late();
        self.status(status);
    }

    /// 0: the client left before there was one.
    fn status(&self, status: u16) {
        let hundreds = status / 100;
        self.statuses[usize::from(hundreds).min(self.statuses.len() - 1)].one();
    }

    /// Whether requests that began well after this time are reported.
    pub(crate) fn has_overtaken(&self, started: Nanos) -> bool {
        self.reports.has_overtaken(started)
    }

    /// A request does not count as in flight any more. One that was overtaken has completed; of any
    /// other that is not known.
    pub(crate) fn out_of_sight(&self, bucket: Option<&Bucket>, overtaken: bool) {
        self.reports.out_of_sight(overtaken);
        if overtaken {
            self.unknown.one();
            self.answered.one();
        } else {
            self.unseen.one();
        }
        if let Some(bucket) = bucket {
            bucket.ended.one();
        }
    }

    /// Requests in flight, as far as reports tell.
    pub(crate) fn in_flight(&self) -> u64 {
        self.reports.in_flight()
    }

    /// Whether requests pass and nothing is reported: what is in flight is not known.
    pub(crate) fn reports_missing(&self) -> bool {
        self.reports.missing()
    }

    /// The share of reports that never come, and how late the others are.
    pub(crate) fn reports_quality(&self) -> (f64, Nanos) {
        self.reports.quality()
    }

    /// Requests per second that the service serves, for those who are to come back.
    pub(crate) fn serves(&self) -> f64 {
        let rate = f64::from_bits(self.rate.load(Relaxed));
        if rate > 0.0 { rate } else { self.reports.throughput() }
    }

    /// Requests that came, that were refused, and those of both that a proxy has refused by itself.
    pub(crate) fn came(&self) -> (u64, u64, u64) {
        // First what is part of the others: a difference is never below nothing.
        let by_proxy = self.by_proxy.get();
        (self.offered.get(), self.refused.get(), by_proxy)
    }

    /// Requests per second that are admitted where the rest is refused; `None`: refusals are not executed, or not
    /// all, or the policy is none that limits a rate. Without a rate the limit in flight refuses, and what is
    /// completed is admitted: at the beginning of a crowd the rate is found later.
    pub(crate) fn sheds(&self) -> Option<f64> {
        let limited = self.limited();
        let limits = limited.chain.limits();
        let all = !limited.shadow && limits.canary() == 0;
        let by_rate = limits.params.policy() == Policy::TokenBucket;
        let rate = f64::from_bits(self.rate.load(Relaxed));
        (all && by_rate).then(|| rate.max(self.reports.throughput()))
    }

    /// Whether refusals are executed, of whatever source.
    pub(crate) fn executes_all(&self) -> bool {
        let limited = self.limited();
        !limited.shadow && limited.chain.limits().canary() == 0
    }

    /// So many requests came, and their proxy refused them without a question.
    pub(crate) fn refused_by_proxy(&self, now: Nanos, count: u64, longest: Nanos) {
        self.offered.add(count);
        self.refused.add(count);
        self.by_proxy.add(count);
        self.by_proxy_at.store(now.0.max(1), Relaxed);
        self.backlog.grow(now, self.serves(), (count, longest));
    }

    /// Whether a proxy has refused by itself in the last minute.
    pub(crate) fn proxy_refused_lately(&self, now: Nanos) -> bool {
        let at = self.by_proxy_at.load(Relaxed);
        at > 0 && now.since(Nanos(at)) <= MINUTE
    }

    /// Once a tick: what reports tell.
    pub(crate) fn tick(&self, now: Nanos) {
        self.reports.tick(now, self.admitted.get(), self.answered.get());
        let (late, took) = self.reports.usual();
        let mut limited = self.limited();
        limited.onset.tick(now, late, took);
        self.turn.store(limited.turns.tick(now, &self.waited).0, Relaxed);
    }

    /// In the shape of the dataplane: each request is a connection with one exchange.
    pub(crate) fn totals(&self, told: &Bucket, buckets: &[Arc<Bucket>]) -> ServiceTotals {
        let refused_remote = Some(told.refused());
        // First what ends, then what begins: a difference never shows more ends than there were.
        let (first_byte, end) = (self.first_byte.read(), self.end.read());
        let (answered, lost) = (self.answered.get(), self.lost.get());
        let unknown = self.unknown.get();
        let (refused, admitted) = (self.refused.get(), self.admitted.get());
        let in_flight = self.in_flight();
        ServiceTotals {
            offered: self.offered.get(),
            admitted,
            refused,
            refused_remote,
            waiting: in_flight,
            open: in_flight,
            proxy_turn: Some(Nanos(self.turn.load(Relaxed))),
            connections: ConnectionTotals {
                replied: admitted,
                proved: admitted,
                asked: admitted,
                answered,
                lost,
                ended: answered,
                ended_exchanges: answered,
            },
            unseen: self.unseen.get(),
            unknown,
            first_byte,
            end,
            buckets: buckets.iter().map(|bucket| bucket.totals()).collect(),
            ..ServiceTotals::default()
        }
    }

    /// Responses by the hundreds of their status; 0: the client left.
    pub(crate) fn statuses(&self) -> [u64; 6] {
        self.statuses.each_ref().map(Counter::get)
    }
}

/// How long the server had a request; where the proxy does not tell, all until its report counts.
fn took((started, now): (Nanos, Nanos), completion: &Completion) -> Nanos {
    completion.duration.unwrap_or_else(|| now.since(started))
}

/// The policy of a service at the gate.
fn policy(config: &ServiceConfig) -> Policy {
    Policy::from_name(config.policy.for_requests()).unwrap_or(Policy::TokenBucket)
}

/// The limit in flight of each priority. That it is tighter once it has refused holds only where all
/// requests are of one priority: else those who fill it would tighten it for those above them.
fn in_flight(config: &ServiceConfig, limits: &ServiceLimits) -> [InFlight; PRIORITIES] {
    let seats = seats(config, limits);
    let waiting_low = limits.waiting_low.filter(|_| seats.iter().all(|kept| *kept == 0));
    let limits = ServiceLimits { waiting_low, ..limits.clone() };
    let whole = tidegate_params::in_flight(&limits).unwrap_or_default();
    // A limit of zero is none.
    seats
        .map(|kept| InFlight { max: whole.max.saturating_sub(kept).max(whole.max.min(1)), ..whole })
}

/// What each priority must leave of the limit in flight, as it must leave tokens: while it sheds, of
/// as many as fit into the bucket; while calm, of what lies between the two levels of the limit.
fn seats(config: &ServiceConfig, limits: &ServiceLimits) -> [u32; PRIORITIES] {
    let Some(max) = limits.waiting_max else { return [0; PRIORITIES] };
    let of = match (limits.rate, limits.waiting_low) {
        (Some(_), _) => u64::from(limits.burst).min(max / 2),
        (None, Some(low)) => max.saturating_sub(low.most),
        (None, None) => max / SEATS_PART,
    };
    config.reserve_tokens(u32::try_from(of).unwrap_or(u32::MAX))
}

/// The share that each priority must leave of what may wait while an overload begins.
fn kept(config: &ServiceConfig) -> [f64; PRIORITIES] {
    const OF: u32 = 1 << 16;
    config.reserve_tokens(OF).map(|kept| f64::from(kept) / f64::from(OF))
}

/// One bucket of request rules, or a remote limit on a service.
#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) chain: Mutex<RequestChain>,
    /// Its configuration keeps it in shadow mode, whatever the mode of the service is.
    pub(crate) keeps_shadow: AtomicBool,
    /// There is a limit.
    pub(crate) limited: AtomicBool,
    pub(crate) offered: [Counter; RANKS],
    pub(crate) refused: [Counter; RANKS],
    pub(crate) begun: Counter,
    ended: Counter,
    first_byte: Times,
    end: Times,
}

impl Bucket {
    pub(crate) fn chain(&self) -> MutexGuard<'_, RequestChain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that passed could not be followed.
    pub(crate) fn untracked(&self) {
        self.ended.one();
    }

    /// Of all ranks.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.iter().fold(0, |sum: u64, rank| sum.saturating_add(rank.get()))
    }

    fn totals(&self) -> BucketTotals {
        BucketTotals {
            ended: self.ended.get(),
            first_byte: self.first_byte.read(),
            end: self.end.read(),
            offered: self.offered.each_ref().map(Counter::get),
            refused: self.refused.each_ref().map(Counter::get),
            refused_first: 0,
            begun: self.begun.get(),
        }
    }
}
