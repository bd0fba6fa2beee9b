// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the control loop decided; written to the dataplane as a whole, under a generation number.

use crate::remote::Form;
use crate::signals::Family;
use crate::{PRIORITIES, RANKS};
use serde::{Deserialize, Serialize};
use tidegate_units::{Nanos, Rate, Share};

/// The limits of all services, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Increases with every change that is written.
    pub generation: u64,
    /// One entry a service.
    pub services: Vec<ServiceLimits>,
}

/// The limits of one service. All that are set must admit; the first that refuses gives the reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceLimits {
    /// Admissions per second; `None` admits everything.
    pub rate: Option<Rate>,
    /// Bucket depth in admissions; at least 1 where a rate is set.
    pub burst: u32,
    /// Most connections that may wait for a response at once; `None` for no limit.
    pub waiting_max: Option<u64>,
    /// Of them, requests of connections that stay: no refusal of a SYN brings them down.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting_staying: u64,
    /// What holds once that has refused; `None`: the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_low: Option<Low>,
    /// How more than the service can do is seen request by request; `None`: only tick by tick. For
    /// gates that hear of each request's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onset: Option<Onset>,
    /// Who counts beside those that wait.
    #[serde(default, skip_serializing_if = "Pending::is_none")]
    pub pending: Pending,
    /// Refuse while the accept queue is at this share of its limit or above, in 1/1024; 0 never.
    pub accept_queue_max_q10: u32,
    /// Connections that a source may hold, silent or slow, before it opens no more; `None` for no
    /// limit. Sources whose exchanges complete have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_max: Option<u32>,
    /// Connections per second that are admitted even if the limit on those that wait or the one on the
    /// accept queue is full; the rate holds for them, too. `None` admits none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<Rate>,
    /// The share of all that arrives that the rate leaves out, where the policy refuses a share; `None`
    /// refuses none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Share>,
    /// What one request takes of the service, where the policy looks at the virtual waiting time: 1 /
    /// capacity. `None`: not known, and nothing is refused by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_request: Option<Nanos>,
    /// A remote limit holds: copies of SYNs that passed take tokens, too, where nobody has replied to the
    /// first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copies: bool,
    /// A server gave the rate, and this is when it ends, even if the daemon has died by then. `None`: it ends with the
    /// lease.
    #[serde(skip)]
    pub until: Option<Nanos>,
    /// Datagrams to its addresses: a remote limit; `None` admits all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<DatagramLimit>,
    /// Requests: a remote limit, beside the rate; `None` admits all of them. Where requests are limited as a
    /// whole, at a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestLimit>,
    /// Tokens that a class of priority i must leave in the bucket (trunk reservation); not falling.
    pub reserve: [u32; PRIORITIES],
    /// Why: what `explain` and `status` show.
    pub why: Why,
    /// The limits of the service's request buckets, in the order of the configuration; empty where
    /// it has no rules.
    #[serde(default)]
    pub buckets: Vec<BucketLimits>,
}

/// Trunk reservation: the share of a bucket that a class of each priority must leave for the classes above it. Never
/// falling, 0 for the highest, below 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reserve(pub [f64; PRIORITIES]);

impl Reserve {
    /// The same of a bucket of this depth, in tokens: at most `burst` - 1.
    #[must_use]
    pub fn tokens(&self, burst: u32) -> [u32; PRIORITIES] {
        self.0.map(|share| ((f64::from(burst) * share) as u32).min(burst.saturating_sub(1)))
    }
}

/// A limit on datagrams (UDP).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatagramLimit {
    /// Datagrams per second.
    pub rate: Rate,
    /// So many at once; at least 1.
    pub burst: u32,
    /// As of connections: see [`ServiceLimits::until`].
    #[serde(skip)]
    pub until: Option<Nanos>,
}

/// A remote limit on requests, in the form in which it was given.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestLimit {
    /// In what form it is enforced.
    pub form: Form,
    /// Requests per second.
    pub rate: Rate,
    /// So many at once; at least 1.
    pub burst: u32,
    /// The share of what is offered that the rate leaves out; `None`: nothing, or not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Share>,
    /// It refuses requests of this priority and of lower ones; 0: all.
    pub priority: u8,
}

/// A limit on those that wait that has refused is tighter, until few are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Low {
    /// Most connections that may wait then.
    pub most: u64,
    /// When no more than so many wait, the whole limit holds again.
    pub rest: u64,
}

/// What tells the first moment of an overload from one that is busy. What comes between two ticks may be
/// more than the service completes in a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Onset {
    /// As many responses per second as the service has given at most in the last minutes.
    pub pace: Rate,
    /// What a response takes while calm.
    pub response: Nanos,
    /// Requests that are usually in flight.
    pub usual: u64,
    /// Where more than so many came faster than the pace, no more than so many may wait beyond those
    /// that are usual or have only just come.
    pub most: u64,
    /// So many more while nothing completes, and until they have drained: what usually comes in that time.
    #[serde(default)]
    pub piles: u64,
}

/// Connections that have completed their handshake and said nothing yet: a share of those beyond the
/// usual will ask, and counts as waiting; up to what lies between the limit and [`Low`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Silent connections that are usual.
    pub silent: u64,
    /// Share of the others that will ask, in 1/1024; 0: none counts.
    pub asks_q10: u32,
}

impl Pending {
    /// Whether nobody counts beside those that wait.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.asks_q10 == 0
    }
}

impl ServiceLimits {
    /// The limit in flight again as a plain one: one level, whoever comes, and only those that wait
    /// count.
    pub fn plain_waiting(&mut self) {
        (self.waiting_low, self.onset, self.pending) = (None, None, Pending::default());
    }

    /// Whether there is a limit that [`Self::min_rate`] goes past.
    #[must_use]
    pub const fn counts_who_is_there(&self) -> bool {
        self.waiting_max.is_some() || self.accept_queue_max_q10 > 0
    }

    /// Takes back what is tighter than `before`, buckets apart: what a controller decides that has
    /// no ground for it.
    pub fn no_tighter_than(&mut self, before: &Self) {
        self.rate = looser(self.rate, before.rate);
        self.loss = less(self.loss, before.loss);
        self.per_request = less(self.per_request, before.per_request);
        self.waiting_max = match (self.waiting_max, before.waiting_max) {
            (Some(now), Some(then)) => Some(now.max(then)),
            _ => None,
        };
        if (self.waiting_low, self.pending) != (before.waiting_low, before.pending) {
            self.plain_waiting();
        }
        self.onset = self.onset.filter(|onset| before.onset == Some(*onset));
        self.accept_queue_max_q10 = match (self.accept_queue_max_q10, before.accept_queue_max_q10) {
            (0, _) | (_, 0) => 0,
            (now, then) => now.max(then),
        };
    }
}

const fn is_zero(n: &u64) -> bool {
    *n == 0
}

fn looser(now: Option<Rate>, then: Option<Rate>) -> Option<Rate> {
    match (now, then) {
        (Some(now), Some(then)) => Some(if now < then { then } else { now }),
        _ => None,
    }
}

/// The smaller one; none is the smallest.
fn less<T: PartialOrd>(now: Option<T>, then: Option<T>) -> Option<T> {
    match (now, then) {
        (Some(now), Some(then)) => Some(if now > then { then } else { now }),
        _ => None,
    }
}

/// The limits of one request bucket: what rules with it admit together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BucketLimits {
    /// Requests per second; `None` admits everything.
    pub rate: Option<Rate>,
    /// As [`ServiceLimits::loss`], of the requests of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Share>,
    /// Bucket depth in requests; at least 1 where a rate is set.
    pub burst: u32,
    /// Tokens that a request of rank i must leave in the bucket; not falling. Ranks: [`RANKS`].
    pub reserve: [u32; RANKS],
    /// Why: what `explain` and `status` show.
    pub why: Why,
}

impl BucketLimits {
    /// Takes back what is tighter than `before`; a bucket that was not there had no limit.
    pub fn no_tighter_than(&mut self, before: Option<&Self>) {
        self.rate = looser(self.rate, before.and_then(|before| before.rate));
        self.loss = less(self.loss, before.and_then(|before| before.loss));
    }
}

/// Why something is refused: a value of metrics and of the record, so the list is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The limit in flight of calm refuses, and the CPU is used up.
    InFlight,
    /// More comes than completes, and too much is in flight.
    Growth,
    /// More comes than completes, and it stands in the accept queue.
    AcceptQueue,
    /// Far too much is in flight, and the CPU has been used up for long.
    Cpu,
    /// The law's own measure is above its reference: a queue, the CPU or the bandwidth.
    Reference,
    /// A process before this one has seen the overload.
    Earlier,
    /// No overload: more comes than an operator's rate, the policy or a limit of calm admits.
    Limit,
    /// A limit of a peer.
    Remote,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::InFlight,
        Self::Growth,
        Self::AcceptQueue,
        Self::Cpu,
        Self::Reference,
        Self::Earlier,
        Self::Limit,
        Self::Remote,
    ];

    /// As in metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in-flight",
            Self::Growth => "growth",
            Self::AcceptQueue => "accept-queue",
            Self::Cpu => "cpu",
            Self::Reference => "reference",
            Self::Earlier => "earlier",
            Self::Limit => "limit",
            Self::Remote => "remote",
        }
    }

    /// For people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::InFlight => "the limit in flight refuses, and the CPU is used up",
            Self::Growth => "more comes than completes, and too much is in flight",
            Self::AcceptQueue => "more comes than completes, and it stands in the accept queue",
            Self::Cpu => "far too much is in flight, and the CPU has been used up for long",
            Self::Reference => "what the controller measures is above its reference",
            Self::Earlier => "a process before has seen it",
            Self::Limit => "more comes than a limit admits; nothing else shows an overload",
            Self::Remote => "a limit of a peer holds",
        }
    }
}

/// The reasoning behind a limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// Whether the controller sheds at the moment.
    pub shedding: bool,
    /// Since when the present state holds.
    pub since: Nanos,
    /// The families that report a problem now.
    pub alarmed: Vec<Family>,
    /// What it began for; `None` while nothing is shed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// One sentence with the figures behind the decision.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_becomes_tighter_and_what_is_looser_stays() {
        let rate = |rate: f64| Some(Rate::per_second(rate));
        let before = ServiceLimits {
            rate: rate(100.0),
            loss: Some(Share::new(0.2)),
            per_request: Some(Nanos::from_millis(2)),
            waiting_max: None,
            accept_queue_max_q10: 512,
            ..ServiceLimits::default()
        };
        let mut limits = ServiceLimits {
            rate: rate(10.0),
            loss: Some(Share::new(0.9)),
            per_request: Some(Nanos::from_millis(3)),
            waiting_max: Some(3),
            accept_queue_max_q10: 100,
            ..ServiceLimits::default()
        };
        limits.no_tighter_than(&before);
        assert_eq!(limits, before);
        limits.waiting_low = Some(Low { most: 2, rest: 1 });
        limits.pending = Pending { silent: 0, asks_q10: 1024 };
        limits.no_tighter_than(&before);
        assert_eq!(limits, before, "neither a lower level nor who counts beside");
        let onset = |most| {
            let (pace, response) = (Rate::per_second(50.0), Nanos::from_millis(20));
            Some(Onset { pace, response, usual: 1, most, piles: 0 })
        };
        let seen = ServiceLimits { onset: onset(128), ..before.clone() };
        limits.onset = onset(64);
        limits.no_tighter_than(&seen);
        assert_eq!(limits, before, "nor by which beginning it is seen");
        let open = ServiceLimits {
            rate: None,
            loss: Some(Share::new(0.1)),
            per_request: None,
            accept_queue_max_q10: 0,
            ..before.clone()
        };
        let mut limits = open.clone();
        limits.no_tighter_than(&before);
        assert_eq!(limits, open, "looser is allowed");
        let mut bucket = BucketLimits { rate: rate(5.0), ..BucketLimits::default() };
        let had = BucketLimits { rate: rate(7.0), ..BucketLimits::default() };
        bucket.no_tighter_than(Some(&had));
        assert_eq!(bucket.rate, rate(7.0));
        bucket.no_tighter_than(None);
        assert_eq!(bucket.rate, None, "a bucket that was not there had no limit");
    }
}
