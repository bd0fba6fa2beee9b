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

const fn within(subject: &'static str, ns: f64) -> Claim {
    Claim { subject, beside: subject, bound: Bound::AtMost(ns) }
}

/// Random keys over full tables; the worker measures hot keys beside them (`…-hot`), about which
/// nothing is claimed, and the kernel's part of each refusal alone (`socket-lookup`).
pub(super) const PACKETS: &[Claim] = &[
    adds("foreign", 20.0),
    adds("established", 60.0),
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
];
