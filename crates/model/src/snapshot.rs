// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What anyone may look at: the only thing that metrics, CLI and pages read.

mod flowspec;

pub use flowspec::{
    FlowspecState, ImportState, ImportedState, RefusedRoutes, RouteState, SessionState,
};

use crate::in_band::InBandState;
use crate::limits::{BucketLimits, ServiceLimits};
use crate::record::Sums;
use crate::remote::{Restriction, Unit};
use crate::router::RouterState;
use crate::shadow::ShadowSums;
use crate::sharing::BusState;
use crate::signals::{BucketSignals, Reading, Signals};
use crate::totals::ServiceTotals;
use crate::{PRIORITIES, RANKS};
use serde::{Deserialize, Serialize};
use tidegate_units::{Nanos, Rate};

/// The state of the whole daemon at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of the program.
    pub version: String,
    /// When it was taken (monotonic clock).
    pub now: Nanos,
    /// When the daemon took over.
    pub started: Nanos,
    /// The time of day when it was taken, since 1970; `None`: not known.
    #[serde(default)]
    pub unix: Option<Nanos>,
    /// Number of the configuration in force: 1 at the start, +1 a reload.
    pub config_generation: u64,
    /// Number of the limits in force.
    pub limits_generation: u64,
    /// Whether the kill switch is on: everything passes.
    pub released: bool,
    /// How long it stays on; `None`: until it is switched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_left: Option<Nanos>,
    /// When the dataplane's lease was last renewed (monotonic clock); `None` if never.
    #[serde(default)]
    pub heartbeat: Option<Nanos>,
    /// The hooks.
    pub interfaces: Vec<InterfaceState>,
    /// The interfaces on the servers' side of a router.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkState>,
    /// The services, in the order of the configuration.
    pub services: Vec<ServiceState>,
    /// Packets that passed untouched, by reason.
    pub passed: Vec<ReasonCount>,
    /// Packets whose marks a border has cleared; `None`: there is no border.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared: Option<u64>,
    /// Options of congested routers that were added or read; `None`: this host marks nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_band: Option<InBandState>,
    /// What found no room in the dataplane's tables, by table, since its state was made.
    #[serde(default)]
    pub table_losses: Vec<ReasonCount>,
    /// What went wrong lately and is not over (signals missing, maps full …), one sentence each.
    pub warnings: Vec<String>,
    /// Hosts that report to this one, and hosts to which it reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerState>,
    /// The bus over which routers share; `None`: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusState>,
    /// The gateways; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateways: Option<GatewaysState>,
    /// Limits that routers are told by BGP FlowSpec; `None`: they are told none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flowspec: Option<FlowspecState>,
    /// What this router measures of the destinations behind it; `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterState>,
}

/// HTTP proxies that ask before they pass a request on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewaysState {
    /// Each of them, in the order of the configuration.
    pub gateways: Vec<GatewayState>,
    /// What HAProxies are told of services with `agent_check`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentState>,
    /// Reports of what became of requests.
    pub reports: ReportCounts,
    /// Messages at their listeners that were not understood.
    pub misunderstood: u64,
    /// Responses that were reported, of each service that routes lead to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub responses: Vec<ResponseCounts>,
}

/// Responses of a service that gateways have reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseCounts {
    /// Name of the service.
    pub service: String,
    /// By the hundreds of their status; at 0 those whose client left before there was a response.
    pub by_hundreds: [u64; 6],
    /// Of the last minute, in percent: requests that passed and were not reported, or are not yet.
    #[serde(default)]
    pub lost_percent: u8,
    /// How late reports are on average, after the end of the response.
    #[serde(default)]
    pub late: Nanos,
}

/// The agent of one service, which HAProxy asks how many requests it may have in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentState {
    /// Name of the service.
    pub service: String,
    /// Where it is asked.
    pub listen: String,
    /// What it says (`maxconn`); 0: no limit.
    pub maxconn: u32,
    /// What keeps it from being asked, in one sentence; empty if nothing does.
    pub problem: String,
}

/// One gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayState {
    /// Name in the configuration.
    pub name: String,
    /// Which proxy asks: `nginx`, `envoy`, `haproxy`, `caddy`, `traefik` or `proxy`.
    pub adapter: String,
    /// Where it asks.
    pub listen: String,
    /// What keeps it from being served, in one sentence; empty if nothing does.
    pub problem: String,
    /// Why its proxy is not told what to refuse by itself; empty if nothing is in the way.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub untold: String,
    /// What its TLS has refused; `None` where its listener speaks none, and of tidegate's own proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsCounts>,
    /// Of tidegate's own proxy; `None` of any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyCounts>,
}

/// What the TLS of a gateway's listener has refused since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsCounts {
    /// Connections that were closed: no certificate, a wrong one, no TLS at all, or too slow.
    pub handshakes_failed: u64,
    /// Why the last one was, and whose; empty: none was.
    pub last: String,
}

/// What tidegate's own proxy has counted since it was opened, beside what it asked and reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyCounts {
    /// Connections of clients, now.
    pub connections: u64,
    /// Connections that were closed at once, since there were as many as may be.
    pub turned_away: u64,
    /// TLS handshakes that failed.
    pub handshakes_failed: u64,
    /// Requests that were refused for what they are (4xx, 501).
    pub malformed: u64,
    /// Requests for which no server could be connected to (502).
    pub unreachable: u64,
    /// Requests whose response was none, or ended before its end (502).
    pub broken: u64,
    /// Requests whose response took too long (504).
    pub timed_out: u64,
    /// Requests for which all servers had as many connections as may be (503).
    pub full: u64,
    /// Requests in the queue, now.
    pub waiting: u64,
    /// Requests that waited in the queue and passed.
    pub waited: u64,
    /// How long these waited, in nanoseconds, in all.
    pub waited_ns: u64,
    /// Requests that were to wait and found no room (503).
    pub queue_full: u64,
    /// Requests that waited for the longest time and were refused (503).
    pub waited_too_long: u64,
    /// Requests whose client left while they waited.
    pub left_queue: u64,
    /// Connections of clients, summed over time, in milliseconds.
    #[serde(default)]
    pub connections_ms: u64,
    /// Requests in the queue, summed over time, in milliseconds.
    #[serde(default)]
    pub waiting_ms: u64,
}

/// Reports of what became of requests, since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportCounts {
    /// They ended a request in flight.
    pub completed: u64,
    /// They came when their request did not count as in flight any more.
    pub late: u64,
    /// Nothing is known of their request.
    pub unknown: u64,
    /// Requests that passed and found no room to be followed.
    pub untracked: u64,
}

/// A host that reports to this one, or to which it reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerState {
    /// Name in the configuration; `unknown` collects what was refused before anyone was recognised.
    pub name: String,
    /// `reports` to us, or `receives` from us.
    pub role: String,
    /// Its identity, a SPIFFE URI.
    pub identity: String,
    /// Whether a session is up.
    pub up: bool,
    /// The version of the protocol of the last session; 0 before the first.
    #[serde(default)]
    pub version: u8,
    /// Epoch of the session: one more each time.
    pub epoch: u64,
    /// Number of the last report in it.
    pub sequence: u64,
    /// Time since the last report that was accepted (or sent); `None` before the first.
    pub age: Option<Nanos>,
    /// Reports that were accepted (or sent).
    pub reports: u64,
    /// Remote limits that were accepted (or sent).
    #[serde(default)]
    pub limits: u64,
    /// Messages and sessions that were refused, by reason.
    pub refused: Vec<ReasonCount>,
    /// What is wrong now, in one sentence; empty if nothing is.
    #[serde(alias = "trouble")]
    pub problem: String,
}

/// One hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InterfaceState {
    /// Name of the interface.
    pub name: String,
    /// Network namespace, empty for the daemon's own.
    pub namespace: String,
    /// How it is attached: `xdp`, `xdp-generic`, `tcx` or `clsact`.
    pub attached: String,
    /// Why no connection comes where it is attached, and where to attach; empty: nothing says so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub blind: String,
}

/// An interface on the servers' side of a router: whether the way to the servers is congested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkState {
    /// Name of the interface.
    pub interface: String,
    /// Whether it is congested.
    pub congested: bool,
    /// For how long; `None`: it is not.
    pub lasts: Option<Nanos>,
    /// The signs of the last second: `queue`, `drops`, `rate`.
    pub signs: Vec<String>,
    /// How often it has begun.
    pub episodes: u32,
    /// Bytes per second sent in the last second.
    pub sent: Option<f64>,
    /// Bytes per second that it can send; `None`: not known.
    pub capacity: Option<f64>,
    /// Share of the packets that its queue dropped in the last second.
    pub dropped: Option<f64>,
    /// How full its queue is: 1 is full.
    pub filled: Option<f64>,
    /// What it went through since it is watched.
    #[serde(default)]
    pub sums: LinkSums,
    /// Why nothing is known of it; empty: all is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// What an interface went through since it is watched, while it could be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSums {
    /// Bytes sent.
    pub sent: u64,
    /// How long it was congested.
    pub congested: Nanos,
    /// How long each sign was there: `queue`, `drops`, `rate`.
    pub signs: [Nanos; 3],
}

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceState {
    /// Name in the configuration.
    pub name: String,
    /// `shadow` or `enforce`.
    pub mode: String,
    /// A command set that mode; `None`: it is the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_set: Option<ModeSet>,
    /// Name of the policy.
    pub policy: String,
    /// What is done with what is not admitted: `drop` or `reject`.
    pub action: String,
    /// Name of the controller.
    pub controller: String,
    /// What was sensed in the last tick.
    pub signals: Signals,
    /// What was decided in the last tick.
    pub limits: ServiceLimits,
    /// Totals since the dataplane's state was created, by class, verdict and reason.
    pub counts: Vec<VerdictCount>,
    /// Its request rules; `None` where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestsState>,
    /// What it had at the start of the process that ran before; `None`: it started afresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
    /// Connections that its listeners accepted and that no hook saw; `None`: none of late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bypassed: Option<Bypassed>,
    /// Connections whose SYN a hook saw, and no packet of the server; `None`: none of late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreplied: Option<Bypassed>,
    /// Why the network namespace of its server is not looked at, and what to do: it was made after the daemon gave
    /// up its privileges. Empty: it is looked at, or gone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub barred: String,
    /// Remote limits that peers give to it, and that it gives to its control nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<RemoteState>,
    /// These limits, summed over time, by peer and role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote_sums: Vec<RemoteSum>,
    /// The work that waits, where the policy has thresholds on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LevelState>,
    /// Its totals as they were last read; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<ServiceTotals>,
    /// Whether its responses are seen, so that the totals say what completed.
    #[serde(default)]
    pub sees_answers: bool,
    /// What it went through since the process began.
    #[serde(default)]
    pub sums: Sums,
    /// What its time in shadow came to since the process began; `None`: it was not in shadow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowSums>,
}

/// A mode that is not the file's: a command set it, or the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModeSet {
    /// What the file says.
    pub file: String,
    /// Of how many percent of the sources refusals are executed; `None`: of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// How long it holds; `None`: until another is set.
    pub left: Option<Nanos>,
    /// The daemon went back to shadow by itself: refusals rose while the service was calm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guard: bool,
}

/// A remote limit of one service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteState {
    /// The peer: who gave it, or who gets it.
    pub peer: String,
    /// `from`: the peer limits this host; `to`: this host limits the peer.
    pub role: String,
    /// What it is about, as its receiver knows it.
    pub scope: String,
    /// What it counts.
    #[serde(default, skip_serializing_if = "Unit::is_usual")]
    pub unit: Unit,
    /// What its sender said last; `None`: no limit.
    pub restriction: Option<Restriction>,
    /// It refuses classes of this priority and of lower ones; 0: all.
    #[serde(default)]
    pub priority: u8,
    /// Admissions per second that are in force where it is enforced here; sent, where it goes to a peer.
    pub rate: Option<Rate>,
    /// How long it is still valid; `None`: not any more.
    pub left: Option<Nanos>,
    /// Steps by which it has opened since it expired, each a doubling.
    pub steps: u64,
    /// Number of its last message.
    pub sequence: u64,
    /// Time since the last message of its sender, or since the last hit counters; `None` before.
    pub age: Option<Nanos>,
    /// New work for the scope since the first message, with what was refused.
    pub offered: u64,
    /// Of this refused because of the limit.
    pub refused: u64,
    /// What it would have refused while it was only counted.
    #[serde(default)]
    pub would_refuse: u64,
    /// In words, else empty: what found the limit that goes to a peer, where it is none of the service's own limits; why one of a peer
    /// is not in force.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// The remote limits between one service and one peer in one role, summed over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteSum {
    /// The peer.
    pub peer: String,
    /// `from` or `to`, as in [`RemoteState`].
    pub role: String,
    /// What they count.
    #[serde(default, skip_serializing_if = "Unit::is_usual")]
    pub unit: Unit,
    /// Admissions that the tightest limit allowed.
    pub allowed: f64,
    /// How long there was one.
    pub in_force: Nanos,
}

/// How much work waits, and what is done because of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelState {
    /// What is counted, in the word of the configuration.
    pub signal: String,
    /// A number, or microseconds; `None`: not known.
    pub value: Option<u64>,
    /// By priority, as of the last arrival: 0 below its thresholds, then the severity with which it is
    /// throttled, and [`Self::DISCARD`].
    pub rungs: [u8; PRIORITIES],
}

impl LevelState {
    /// The rung on which all are refused.
    pub const DISCARD: u8 = 4;
}

/// What a service took over from a process that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// How old it was at the start.
    pub age: Nanos,
    /// The limits that were in force.
    pub limits: bool,
    /// What the controller had learned.
    pub learned: bool,
}

/// Connections that came to a service past our hooks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypassed {
    /// How many.
    pub connections: u64,
    /// In how long.
    pub span: Nanos,
    /// Who made the last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<std::net::IpAddr>,
    /// The interface by which that client is reached; empty: not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub interface: String,
}

/// The request rules of one service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestsState {
    /// `shadow` or `enforce`.
    pub mode: String,
    /// The buckets, in the order of the configuration.
    pub buckets: Vec<BucketState>,
    /// The rules, in the order of the configuration.
    pub rules: Vec<RuleState>,
    /// Segments with data that passed without being evaluated, by reason, since the state was created.
    #[serde(default, alias = "unjudged")]
    pub unevaluated: Vec<UnevaluatedCount>,
    /// Whether the service's handshakes show TCP_DEFER_ACCEPT (an empty ACK is held back for at least
    /// half of them, or for none), so that a refused request costs the server nothing; `None`: not known.
    pub defer_accept: Option<bool>,
    /// Connections whose requests are followed, and how many have room, of all services together; `None`: not known.
    pub followed: Option<Followed>,
    /// These connections, summed over time, in seconds.
    #[serde(default)]
    pub followed_sum: f64,
}

/// One bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BucketState {
    /// Name in the configuration.
    pub name: String,
    /// What its requests consume.
    pub resource: String,
    /// Name of its controller.
    pub controller: String,
    /// What was decided in the last tick.
    pub limits: BucketLimits,
    /// What was sensed in the last tick.
    pub signals: BucketSignals,
    /// Requests since the state was created, by rank ([`RANKS`]).
    pub offered: [u64; RANKS],
    /// Of them refused (in shadow mode: what would have been), by rank.
    pub refused: [u64; RANKS],
    /// The work that waits, where the policy has thresholds on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<LevelState>,
    /// What it went through since the process began.
    #[serde(default)]
    pub sums: Sums,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleState {
    /// Its name, else what it matches.
    pub name: String,
    /// What it matches, in one line.
    pub rule: String,
    /// Its bucket; `None`: it admits.
    pub bucket: Option<String>,
    /// What becomes of a refused request: `503`, `reset` or `drop`.
    pub action: String,
    /// What became of its requests.
    pub counts: RuleCounts,
    /// What was sensed of its requests in the last second or longer.
    #[serde(default)]
    pub signals: RuleSignals,
    /// Requests in flight, summed over time since the last reload, in seconds.
    #[serde(default)]
    pub in_flight_sum: f64,
}

/// What was sensed of the requests of one rule that were handed to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleSignals {
    /// Requests that the server has and has not responded to yet.
    pub in_flight: Option<Reading<u64>>,
    /// Complete responses per second.
    pub responses: Option<Reading<Rate>>,
    /// Mean time from a request to the first byte of its response; none without responses.
    pub first_byte: Option<Reading<Nanos>>,
    /// Mean time from a request to the last byte of its response; none without responses.
    pub end: Option<Reading<Nanos>>,
}

impl RuleSignals {
    /// Name and age of what is known.
    pub fn ages(&self) -> impl Iterator<Item = (&'static str, Nanos)> {
        let all = [
            ("in_flight", self.in_flight.map(|r| r.age)),
            ("responses", self.responses.map(|r| r.age)),
            ("first_byte", self.first_byte.map(|r| r.age)),
            ("end", self.end.map(|r| r.age)),
        ];
        all.into_iter().filter_map(|(name, age)| Some((name, age?)))
    }
}

/// What became of the requests that met one rule, since the state was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCounts {
    /// Admitted.
    pub admitted: u64,
    /// Refused, and the refusal executed.
    pub refused: u64,
    /// Refused, and only counted.
    pub shadowed: u64,
    /// Refused, but passed because the lease has run out.
    pub lease: u64,
    /// Answers that were sent again.
    pub repeated: u64,
    /// Refused, but the answer could not be sent.
    pub failed: u64,
    /// Of the admitted, those that are followed.
    #[serde(default)]
    pub served: RuleServed,
}

/// What became of the requests of one rule that were handed to the server and followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleServed {
    /// All of them.
    pub begun: u64,
    /// Of these: answered, or their connection ended, or cannot be followed any more.
    pub ended: u64,
    /// Answers whose first byte was seen.
    pub started: u64,
    /// Time from their requests to their first bytes, summed.
    pub started_time: Nanos,
    /// Answers whose last byte was seen.
    pub answered: u64,
    /// Time from their requests to their last bytes, summed.
    pub answered_time: Nanos,
}

impl RuleCounts {
    /// All requests that met the rule.
    #[must_use]
    pub fn met(&self) -> u64 {
        let parts = [self.admitted, self.refused, self.shadowed, self.lease, self.failed];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Each outcome with its name.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("admitted", self.admitted),
            ("refused", self.refused),
            ("shadowed", self.shadowed),
            ("lease", self.lease),
            ("repeated", self.repeated),
            ("failed", self.failed),
        ]
    }
}

/// How many segments were not evaluated for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnevaluatedCount {
    /// Name of the reason (policy/reasons.def).
    pub reason: String,
    /// What an operator reads.
    pub text: String,
    /// How many segments.
    pub count: u64,
}

/// How full the table of followed connections is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// Connections in it.
    pub connections: u64,
    /// How many have room.
    pub limit: u64,
}

/// How often one class got one verdict for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictCount {
    /// Name of the class; `default` for what no class names.
    pub class: String,
    /// `admit`, `drop`, `reject` or `delay`.
    pub verdict: String,
    /// Whether the verdict was only computed, not executed.
    pub shadow: bool,
    /// Name of the reason (policy/reasons.def).
    pub reason: String,
    /// How many SYNs.
    pub count: u64,
}

/// How many packets passed for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonCount {
    /// Name of the reason (policy/reasons.def).
    pub reason: String,
    /// How many packets.
    pub count: u64,
}

/// A verdict that was sampled lately: what `explain` shows of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When (the dataplane's clock).
    pub at: Nanos,
    /// Client's address and port; of a request at a gateway its address, if the proxy tells it.
    pub client: String,
    /// The proxy's id of a request at a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Name of the service.
    pub service: String,
    /// Name of the class.
    pub class: String,
    /// `admit`, `drop`, `reject` or `delay`.
    pub verdict: String,
    /// Whether the verdict was only computed.
    pub shadow: bool,
    /// Name of the reason.
    pub reason: String,
}

/// What is known of refusals of one client in the last minute, without any sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lately {
    /// Services, and limits of this router, that have probably refused it.
    pub refused: Vec<RefusedLately>,
    /// Whether it would be in there if any service had: whoever is not was not refused.
    pub complete: bool,
    /// Services whose proxy refused clients by itself in that minute: it does not say which.
    pub unnamed: Vec<String>,
    /// The share of clients that were not refused and are in there all the same.
    pub wrong: f64,
}

/// A client that a service, or the limit of a router, has probably refused in the last minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedLately {
    /// Name of the service; of a router's limit its destination.
    pub service: String,
    /// Whether a gateway refused its request; else a hook refused a connection or a request.
    #[serde(default)]
    pub gateway: bool,
    /// Whether the limit of a router refused a connection to a destination behind it.
    #[serde(default)]
    pub router: bool,
    /// At a router: the client's class by its address, and how clients of it are refused, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// See `class`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// Whether that was only computed.
    pub shadow: bool,
    /// The last time is so long ago, at least.
    pub ago_min: Nanos,
    /// And at most.
    pub ago_max: Nanos,
}
