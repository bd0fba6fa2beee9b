// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the figures must reach: two subjects, how they are compared, and the bound.
//!
//! Names of subjects are the contract with the worker. A claim whose subjects were not measured
//! is reported as such.

/// How two subjects are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    /// `subject − beside` is at most this, ns.
    AddsAtMost(f64),
    /// `beside / subject` is at least this: so many times cheaper.
    CheaperAtLeast(f64),
    /// `subject` alone is at most this, ns; `beside` is itself.
    AtMost(f64),
}

/// One line of the table of claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) subject: &'static str,
    pub(super) beside: &'static str,
    pub(super) bound: Bound,
}

const fn adds(subject: &'static str, ns: f64) -> Claim {
    Claim { subject, beside: "empty", bound: Bound::AddsAtMost(ns) }
}

const fn cheaper(subject: &'static str, beside: &'static str, times: f64) -> Claim {
    Claim { subject, beside, bound: Bound::CheaperAtLeast(times) }
}

/// What a hundred limits may add to a packet.
const LIMITS_NS: f64 = 20.0;

const fn limits_add(subject: &'static str, beside: &'static str) -> Claim {
    Claim { subject, beside, bound: Bound::AddsAtMost(LIMITS_NS) }
}

const fn within(subject: &'static str, ns: f64) -> Claim {
    Claim { subject, beside: subject, bound: Bound::AtMost(ns) }
}

/// Random keys over full tables; the worker measures hot keys beside them (`…-hot`), about which
/// nothing is claimed, and the kernel's part of each refusal alone (`socket-lookup`).
pub(super) const PACKETS: &[Claim] = &[
    adds("foreign", 20.0),
    adds("established", 60.0),
    Claim { subject: "imported-100", beside: "foreign", bound: Bound::AddsAtMost(20.0) },
    Claim { subject: "imported-100-hit", beside: "foreign", bound: Bound::AddsAtMost(20.0) },
    adds("refused-token-bucket", 200.0),
    adds("refused-fresh-first", 200.0),
    adds("refused-abacus", 200.0),
    adds("refused-abacus-exact", 200.0),
    adds("refused-abacus-learned", 200.0),
    adds("admitted-token-bucket", 400.0),
    adds("admitted-fresh-first", 400.0),
    adds("admitted-abacus", 400.0),
    adds("admitted-abacus-exact", 400.0),
    adds("admitted-abacus-learned", 400.0),
];

/// Nothing is promised about them but what a refusal costs in all, which the lab measures
/// (`dual-admission/refusal-cost`).
pub(super) const REQUESTS: &[Claim] = &[];

/// Budgets of decision 5: what the first payload of a turn may add to a packet without payload of a
/// connection that is as far, and a ClientHello, whose extensions are walked.
const FIRST_PAYLOAD_NS: f64 = 400.0;
const HELLO_NS: f64 = 1500.0;

const fn first_payload(subject: &'static str, beside: &'static str) -> Claim {
    Claim { subject, beside, bound: Bound::AddsAtMost(FIRST_PAYLOAD_NS) }
}

const fn hello(subject: &'static str) -> Claim {
    Claim { subject, beside: "silent-ack", bound: Bound::AddsAtMost(HELLO_NS) }
}

/// Of the client's side and of the server's, each beside a packet without payload of the same hook.
pub(super) const TURNS: &[Claim] = &[
    first_payload("http1-request", "silent-ack"),
    first_payload("http1-next-request", "idle-ack"),
    first_payload("http1-response", "waiting-ack"),
    hello("tls-hello"),
    hello("tls-hello-long"),
    first_payload("tls13-flight", "waiting-ack"),
    first_payload("tls13-request", "idle-ack"),
    first_payload("tls13-tickets", "waiting-ack"),
    first_payload("tls13-response", "waiting-ack"),
    first_payload("tls13-window", "idle-ack"),
    first_payload("tls13-next-request", "idle-ack"),
    first_payload("h2-request", "silent-ack"),
    first_payload("h2-control", "waiting-ack"),
    first_payload("h2-response", "waiting-ack"),
];

/// Of a table that is full beside one that is nearly empty, so much may be left of the speed.
const FULL: f64 = 1.0 / 1.2;
/// With a million connections a sweep of a thirty-second of them, ten times a second, takes 5 % of a core then.
const SWEEP_NS: f64 = 160.0;

/// A million connections, keys at random. Limits of the router's own (`own-…`) are looked at by the hook that measures
/// connections; those that servers push (`pushed-…`) are limits of services, in the hook that protects these. The
/// number says how many limits there are.
pub(super) const ROUTER: &[Claim] = &[
    adds("client-request", 100.0),
    adds("client-ack", 100.0),
    adds("server-reply", 150.0),
    adds("syn-refused", 250.0),
    cheaper("stranger-full", "stranger", FULL),
    cheaper("opens-full", "opens", FULL),
    within("sweep", SWEEP_NS),
    limits_add("own-100-syn", "own-0-syn"),
    limits_add("own-100-syn-others", "own-0-syn-others"),
    limits_add("pushed-1-syn", "pushed-0-syn-one"),
    limits_add("pushed-100-syn", "pushed-0-syn"),
    limits_add("pushed-100-syn-refused", "pushed-0-syn"),
    limits_add("pushed-1-syn-others", "pushed-0-syn-others"),
    limits_add("pushed-100-syn-others", "pushed-0-syn-others"),
    limits_add("pushed-100-syn-transit", "pushed-0-syn-transit"),
    limits_add("pushed-1-udp", "pushed-0-udp-one"),
    limits_add("pushed-100-udp", "pushed-0-udp"),
    limits_add("pushed-100-udp-refused", "pushed-0-udp"),
    limits_add("pushed-1-udp-others", "pushed-0-udp-others"),
    limits_add("pushed-100-udp-others", "pushed-0-udp-others"),
    limits_add("pushed-100-udp-transit", "pushed-0-udp-transit"),
];

/// `socket-floor` is measured beside them: no program that asks the kernel for the socket of a SYN,
/// as ours must, can do better.
pub(super) const REFUSALS: &[Claim] = &[
    cheaper("drop", "nft-input-limit", 5.0),
    cheaper("drop", "accept-queue-overflow", 1.0),
    cheaper("reset", "nft-input-reject", 5.0),
    cheaper("reset", "nft-netdev-reject", 3.0),
    cheaper("drop", "haproxy", 50.0),
    cheaper("reset", "haproxy", 50.0),
];

/// 30 million SYNs a second are 33.3 ns each.
const NS_PER_SYN: f64 = 1e9 / 30e6;

pub(super) const SIMULATOR: &[Claim] = &[
    within("token-bucket", NS_PER_SYN),
    within("abacus", NS_PER_SYN),
    within("abacus-exact", NS_PER_SYN),
    cheaper("token-bucket", "ns3", 5.0),
    cheaper("abacus", "ns3", 5.0),
    cheaper("abacus-exact", "ns3", 5.0),
    cheaper("token-bucket", "ns3-calendar", 5.0),
    cheaper("token-bucket", "simpy", 5.0),
    within("figure-8-point", 0.2e9),
    within("figure-8-54-days", 30e9),
    within("network-hour", 10e9),
];
