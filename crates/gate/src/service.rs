// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One service at the gate: its chain, what is in flight, what was counted.
//!
//! # In flight
//! A request is in flight from its admission to its report. Reports may be lost or late, and neither
//! may keep the limit shut:
//! - **Lost**: where requests that began later are reported, one that is older than twice the longest
//!   that was seen lately is *overtaken*: its report will not come. It counts as completed, with a time
//!   that is not known. Where nothing is reported nothing is overtaken: that may be a server that hangs.
//! - **Late**: a report says how long the request took. What lies between its end and its report is
//!   counted as in flight too long, and by Little's law as many as rate × delay are taken off.
//! - **None at all**: then nothing is known of what is in flight ([`Service::reports_missing`]), and a
//!   signal that is missing never tightens.

use crate::counters::{Counter, Tally, Times};
use crate::flight::Completion;
use crate::refusal::Backlog;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_config::ServiceConfig;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::totals::{BucketTotals, ConnectionTotals, ServiceTotals};
use tidegate_model::{PRIORITIES, RANKS};
use tidegate_policy::{
    Action, Chain, Execution, InFlight, Limits, MinRate, Params, Policy, Reason, RequestChain,
};
use tidegate_units::Nanos;

/// Time in which throughput and delay of reports are averaged, in seconds.
const AVERAGE_SECONDS: f64 = 1.0;
/// Time in which the longest request fades to half, in seconds.
const LONGEST_HALF_LIFE: f64 = 5.0;
/// The same of one that was overtaken and reported after all: some requests are long.
const LATE_HALF_LIFE: f64 = 60.0;
/// Time in which the share that is overtaken is averaged, in seconds.
const LOST_SECONDS: f64 = 10.0;
/// Ticks for which it is remembered how many were admitted.
const TICKS_MAX: usize = 256;
/// Reports come by batches and through queues: beside twice the longest so much is no loss.
const OVERTAKEN_MIN: f64 = 0.1;
/// So many requests without one report in so long: reports are missing.
const MISSING_REQUESTS: u64 = 16;
/// See [`MISSING_REQUESTS`]; at least twice the longest request as well.
const MISSING_SECONDS: f64 = 5.0;
/// Where nothing says how much of the limit in flight may be kept for the upper priorities, it is kept
/// of this part of it.
const SEATS_PART: u64 = 8;

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

/// The chain, and what each priority must leave of the limit in flight.
struct Limited {
    chain: Chain,
    seats: [u32; PRIORITIES],
}

/// What a tick remembers of the one before.
#[derive(Default)]
struct Pace {
    at: Option<Nanos>,
    answered: u64,
    delay_ns: u64,
    delayed: f64,
    longest_s: f64,
    late_s: f64,
    overtaken: u64,
    /// Of the requests that ended lately: overtaken, and all.
    lost: (f64, f64),
    /// Times of ticks, and how many had been admitted.
    admitted: VecDeque<(Nanos, u64)>,
}

impl Pace {
    /// The share of requests whose report does not come.
    fn lost_share(&self) -> f64 {
        if self.lost.1 > 0.0 { self.lost.0 / self.lost.1 } else { 0.0 }
    }

    /// Requests that were admitted since then.
    fn admitted_since(&self, then: Nanos, now: u64) -> u64 {
        let before = self.admitted.iter().rev().find(|(at, _)| *at <= then);
        now.saturating_sub(before.or(self.admitted.front()).map_or(now, |(_, total)| *total))
    }
}

/// One service.
pub(crate) struct Service {
    pub(crate) name: Arc<str>,
    limited: Mutex<Limited>,
    /// Admitted and not reported; it only counts those that are followed.
    present: AtomicU64,
    /// Of them, those that are over and wait for their report.
    delayed: AtomicU64,
    missing: AtomicBool,
    offered: Counter,
    admitted: Counter,
    refused: Counter,
    answered: Counter,
    lost: Counter,
    unknown: Counter,
    unseen: Counter,
    first_byte: Times,
    end: Times,
    pub(crate) tally: Tally,
    statuses: [Counter; 6],
    pub(crate) backlog: Backlog,
    /// Responses per second, as bits of an f64.
    throughput: AtomicU64,
    /// Requests per second that are admitted while that is limited, likewise; else 0.
    rate: AtomicU64,
    /// Sum of what lay between the end of requests and their reports.
    delay_ns: Counter,
    /// Longest request since the tick before, and longest that was reported after all.
    longest_ns: AtomicU64,
    late_ns: AtomicU64,
    overtaken: Counter,
    /// The latest beginning of a request that was reported.
    latest_ns: AtomicU64,
    /// Whatever began before is overtaken.
    overtaken_ns: AtomicU64,
    /// Requests since the last report, and when the first of them came.
    unreported: AtomicU64,
    silent_ns: AtomicU64,
    pace: Mutex<Pace>,
}

/// A chain's word on a request, and whether it goes on to the server.
pub(crate) struct Decided {
    pub(crate) reason: Reason,
    pub(crate) refused: bool,
    pub(crate) execution: Execution,
    pub(crate) passes: bool,
}

impl Service {
    pub(crate) fn new(name: &str) -> Self {
        let chain = Chain::new(Limits::new(Params::no_limit(Policy::TokenBucket)));
        Self {
            name: name.into(),
            limited: Mutex::new(Limited { chain, seats: [0; PRIORITIES] }),
            present: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            missing: AtomicBool::new(false),
            offered: Counter::default(),
            admitted: Counter::default(),
            refused: Counter::default(),
            answered: Counter::default(),
            lost: Counter::default(),
            unknown: Counter::default(),
            unseen: Counter::default(),
            first_byte: Times::default(),
            end: Times::default(),
            tally: Tally::default(),
            statuses: Default::default(),
            backlog: Backlog::default(),
            throughput: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            delay_ns: Counter::default(),
            longest_ns: AtomicU64::new(0),
            late_ns: AtomicU64::new(0),
            overtaken: Counter::default(),
            latest_ns: AtomicU64::new(0),
            overtaken_ns: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
            silent_ns: AtomicU64::new(0),
            pace: Mutex::default(),
        }
    }

    fn limited(&self) -> MutexGuard<'_, Limited> {
        self.limited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes new limits; what the policy has seen stays.
    ///
    /// # Errors
    /// When the policy does not take them; then nothing is limited.
    pub(crate) fn set(&self, config: &ServiceConfig, limits: &ServiceLimits) -> Result<(), String> {
        let policy = policy(config);
        let burst = limits.burst.max(1);
        let reserving = ServiceLimits { reserve: config.reserve_tokens(burst), ..limits.clone() };
        let params = tidegate_params::service(policy, Action::Reject, &config.policy, &reserving);
        let params = params.map_err(|error| error.to_string());
        let mut chain = Limits::new(match &params {
            Ok(params) => *params,
            Err(_) => Params::no_limit(policy),
        });
        let seats = if params.is_ok() { seats(config, limits) } else { [0; PRIORITIES] };
        if params.is_ok() {
            chain.in_flight = in_flight(limits, seats.iter().any(|kept| *kept > 0));
            chain.set_min_rate(limits.min_rate.map(MinRate::per));
            chain.level = tidegate_params::level(config, limits);
        }
        chain.set_action(Action::Reject);
        chain.set_shadow(config.mode == tidegate_model::Mode::Shadow);
        let rate = limits.rate.filter(|_| params.is_ok()).map_or(0.0, |rate| rate.get());
        self.rate.store(rate.to_bits(), Relaxed);
        let mut limited = self.limited();
        limited.chain.set(chain);
        limited.seats = seats;
        params.map(drop)
    }

    /// The rung of each priority on its ladder of thresholds; `None`: the policy has none.
    pub(crate) fn rungs(&self) -> Option<[u8; PRIORITIES]> {
        self.limited().chain.rungs()
    }

    /// Whether refusals are only counted.
    pub(crate) fn set_shadow(&self, shadow: bool) {
        let mut limited = self.limited();
        let mut limits = *limited.chain.limits();
        limits.set_shadow(shadow);
        limited.chain.set(limits);
    }

    /// What the chain says to a request of this priority. One that passes is in flight from here on.
    pub(crate) fn decide(
        &self,
        now: Nanos,
        (priority, random): (u8, u64),
        lease: tidegate_policy::Lease,
    ) -> Decided {
        let mut limited = self.limited();
        let seats = limited.seats[usize::from(priority) % PRIORITIES];
        let ask = tidegate_policy::Ask {
            event: tidegate_policy::Event {
                now_ns: now.0,
                random: random as u32,
                priority,
                ..tidegate_policy::Event::default()
            },
            // What is kept for the priorities above counts as taken.
            waiting: self.in_flight() + u64::from(seats),
            ..tidegate_policy::Ask::default()
        };
        let how = tidegate_policy::Circumstances {
            lease,
            random: (random >> 32) as u32,
            ..tidegate_policy::Circumstances::default()
        };
        let decision = limited.chain.decide(&ask, &how, |_| Ok(()));
        if decision.passes {
            self.present.fetch_add(1, Relaxed);
        }
        drop(limited);
        Decided {
            reason: decision.verdict.reason,
            refused: decision.verdict.kind != tidegate_policy::VerdictKind::Admit,
            execution: decision.execution,
            passes: decision.passes,
        }
    }

    /// A request that passes without a look at the limits is in flight as well.
    pub(crate) fn passes(&self) {
        self.present.fetch_add(1, Relaxed);
    }

    /// Counts what was decided about a request.
    pub(crate) fn count(&self, now: Nanos, decided: &Decided) {
        self.offered.one();
        if decided.refused {
            self.refused.one();
        }
        if decided.passes {
            self.admitted.one();
            if self.unreported.fetch_add(1, Relaxed) == 0 {
                self.silent_ns.store(now.0, Relaxed);
            }
        }
    }

    /// A request that passed could not be followed: that it completes is all that will be known.
    pub(crate) fn untracked(&self) {
        self.leave();
        self.unknown.one();
        self.answered.one();
    }

    fn leave(&self) {
        // Below zero only if a request left twice, which the table does not let happen.
        let less = |present: u64| present.checked_sub(1);
        let _ = self.present.fetch_update(Relaxed, Relaxed, less);
    }

    /// The report of a request in flight.
    pub(crate) fn complete(
        &self,
        (started, now): (Nanos, Nanos),
        bucket: Option<&Bucket>,
        completion: &Completion,
    ) {
        self.leave();
        let stayed = now.since(started);
        self.reported(started);
        self.longest_ns.fetch_max(stayed.0, Relaxed);
        if let Some(duration) = completion.duration {
            self.delay_ns.add(stayed.since(duration).0);
        }
        let class = usize::from(completion.status / 100).min(self.statuses.len() - 1);
        self.statuses[class].one();
        if let Some(bucket) = bucket {
            bucket.ended.one();
        }
        if completion.client_left() {
            self.lost.one();
            return;
        }
        let duration = completion.duration.unwrap_or(stayed);
        let first_byte = completion.first_byte.unwrap_or(duration).min(duration);
        self.first_byte.record(first_byte);
        self.end.record(duration);
        self.answered.one();
        if let Some(bucket) = bucket {
            bucket.first_byte.record(first_byte);
            bucket.end.record(duration);
        }
    }

    /// The report of a request that does not count as in flight any more: what it says of how long
    /// requests take is still true.
    pub(crate) fn late(&self, (started, now): (Nanos, Nanos)) {
        self.reported(started);
        self.late_ns.fetch_max(now.since(started).0, Relaxed);
    }

    fn reported(&self, started: Nanos) {
        self.unreported.store(0, Relaxed);
        self.latest_ns.fetch_max(started.0, Relaxed);
    }

    /// Whether requests that began well after this time are reported.
    pub(crate) fn has_overtaken(&self, started: Nanos) -> bool {
        started.0 < self.overtaken_ns.load(Relaxed)
    }

    /// A request does not count as in flight any more. One that was overtaken has completed; of any
    /// other that is not known.
    pub(crate) fn out_of_sight(&self, bucket: Option<&Bucket>, overtaken: bool) {
        self.leave();
        if overtaken {
            self.overtaken.one();
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
        if self.missing.load(Relaxed) {
            return 0;
        }
        self.present.load(Relaxed).saturating_sub(self.delayed.load(Relaxed))
    }

    /// Whether requests pass and nothing is reported: what is in flight is not known.
    pub(crate) fn reports_missing(&self) -> bool {
        self.missing.load(Relaxed)
    }

    /// Requests per second that the service serves, for those who are to come back.
    pub(crate) fn serves(&self) -> f64 {
        let rate = f64::from_bits(self.rate.load(Relaxed));
        if rate > 0.0 { rate } else { f64::from_bits(self.throughput.load(Relaxed)) }
    }

    /// Once a tick: how fast, how long, how late, how many are lost.
    pub(crate) fn tick(&self, now: Nanos) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = pace.at.replace(now).map_or(0.0, |at| now.since(at).as_secs_f64());
        let (answered, delay_ns) = (self.answered.get(), self.delay_ns.get());
        let overtaken = self.overtaken.get();
        let done = answered.saturating_sub(std::mem::replace(&mut pace.answered, answered));
        let delay = delay_ns.saturating_sub(std::mem::replace(&mut pace.delay_ns, delay_ns));
        let lost = overtaken.saturating_sub(std::mem::replace(&mut pace.overtaken, overtaken));
        let fade = |half_life: f64| (-seconds / half_life).exp2();
        let longest_s = Nanos(self.longest_ns.swap(0, Relaxed)).as_secs_f64();
        let late_s = Nanos(self.late_ns.swap(0, Relaxed)).as_secs_f64();
        pace.longest_s = longest_s.max(pace.longest_s * fade(LONGEST_HALF_LIFE));
        pace.late_s = late_s.max(pace.late_s * fade(LATE_HALF_LIFE));
        if seconds > 0.0 {
            let keep = (-seconds / AVERAGE_SECONDS).exp();
            let mean = |old: f64, new: f64| keep * old + (1.0 - keep) * new / seconds;
            let throughput = f64::from_bits(self.throughput.load(Relaxed));
            self.throughput.store(mean(throughput, done as f64).to_bits(), Relaxed);
            pace.delayed = mean(pace.delayed, Nanos(delay).as_secs_f64());
            let keep = (-seconds / LOST_SECONDS).exp();
            let (before, of) = pace.lost;
            pace.lost = (keep * before + lost as f64, keep * of + done as f64);
        }
        self.look(now, seconds, &mut pace);
    }

    /// What the tick makes of that.
    fn look(&self, now: Nanos, period_s: f64, pace: &mut Pace) {
        let longest_s = pace.longest_s.max(pace.late_s);
        let margin = Nanos::from_secs_f64(2.0 * longest_s + OVERTAKEN_MIN);
        let latest = self.latest_ns.load(Relaxed);
        let overtaken = Nanos(latest.saturating_sub(margin.0));
        self.overtaken_ns.store(overtaken.0, Relaxed);
        let admitted = self.admitted.get();
        // Who is overtaken is found at a tick: half a period later, on average.
        let found = Nanos(overtaken.0.saturating_sub(Nanos::from_secs_f64(period_s / 2.0).0));
        let since = pace.admitted_since(found, admitted) as f64;
        let throughput = f64::from_bits(self.throughput.load(Relaxed));
        let there = (throughput * longest_s / 2.0).min(since);
        let lost = pace.lost_share() * (since - there);
        self.delayed.store((pace.delayed + lost).round() as u64, Relaxed);
        pace.admitted.push_back((now, admitted));
        if pace.admitted.len() > TICKS_MAX {
            pace.admitted.pop_front();
        }
        let silent_s = now.since(Nanos(self.silent_ns.load(Relaxed))).as_secs_f64();
        let missing = self.unreported.load(Relaxed) >= MISSING_REQUESTS
            && silent_s >= MISSING_SECONDS.max(2.0 * longest_s);
        self.missing.store(missing, Relaxed);
    }

    /// In the shape of the dataplane: each request is a connection with one exchange.
    pub(crate) fn totals(&self, buckets: &[Arc<Bucket>]) -> ServiceTotals {
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
            waiting: in_flight,
            open: in_flight,
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

/// The policy of a service at the gate: those that know repeated SYNs have nothing to recognise here.
fn policy(config: &ServiceConfig) -> Policy {
    let named = Policy::from_name(&config.policy.name);
    named.filter(|policy| policy.serves_requests()).unwrap_or(Policy::TokenBucket)
}

/// The limit in flight as the chain takes it. That it is tighter once it has refused holds only where
/// all requests are of one priority: else those who fill it would tighten it for those above them.
fn in_flight(limits: &ServiceLimits, priorities: bool) -> InFlight {
    let waiting_low = limits.waiting_low.filter(|_| !priorities);
    let limits = ServiceLimits { waiting_low, ..limits.clone() };
    tidegate_params::in_flight(&limits).unwrap_or_default()
}

/// What each priority must leave of the limit in flight, as it must leave tokens: while it sheds, of
/// as many as fit into the bucket; while calm, of what lies between the two levels of the limit. None
/// where priorities have thresholds of their own: what is kept would count as work that waits.
fn seats(config: &ServiceConfig, limits: &ServiceLimits) -> [u32; PRIORITIES] {
    let thresholds = config.policy.level_signal().is_some();
    let Some(max) = limits.waiting_max.filter(|_| !thresholds) else { return [0; PRIORITIES] };
    let of = match (limits.rate, limits.waiting_low) {
        (Some(_), _) => u64::from(limits.burst).min(max / 2),
        (None, Some(low)) => max.saturating_sub(low.most),
        (None, None) => max / SEATS_PART,
    };
    config.reserve_tokens(u32::try_from(of).unwrap_or(u32::MAX))
}

/// One bucket of request rules.
#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) chain: Mutex<RequestChain>,
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
