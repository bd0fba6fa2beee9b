// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a router measures of the destinations behind it, and what it limits.

use crate::Mode;
use crate::sharing::{PartState, SharingState};
use crate::snapshot::ReasonCount;
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

/// The measurement of a router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouterState {
    /// What keeps it from measuring, in one sentence; empty if nothing does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// Connections that are followed now, and how many can be.
    pub connections: u64,
    /// See `connections`.
    pub connections_max: u64,
    /// One connection in so many is followed. What is counted of connections is multiplied by it.
    pub sample: u32,
    /// Destinations that are known, and how many can be.
    pub known: u64,
    /// See `known`.
    pub known_max: u64,
    /// What was not measured, by reason: `connections`, `handshakes` and `destinations` that found no room,
    /// and SYNs to destinations that are `unknown` as yet.
    pub losses: Vec<ReasonCount>,
    /// All destinations together; its address is `all`.
    pub all: DestinationState,
    /// Why flash crowds may be there that are not found, in one sentence; empty if all are looked for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub crowds_missed: String,
    /// Flash crowds that are there now.
    #[serde(default)]
    pub crowds: Vec<CrowdState>,
    /// How many there were since the measurement began.
    #[serde(default)]
    pub crowds_total: u64,
    /// How long they were, those of all destinations added up.
    #[serde(default)]
    pub crowds_time: Nanos,
    /// How limits hold: in shadow or enforced; `None`: nothing is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_mode: Option<Mode>,
    /// Why limits do not hold now, in one sentence; empty if they do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub limits_open: String,
    /// How long there were limits, those of all destinations added up.
    #[serde(default)]
    pub limits_time: Nanos,
    /// New connections that limits would have let pass, as far as they were there: their rates, added up over time.
    #[serde(default)]
    pub limits_allowed: f64,
    /// Other routers with which this one shares what it measures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sharing: Vec<SharingState>,
    /// The busiest destinations of the last interval: first those to which most was delivered, then others
    /// with the most demand.
    pub destinations: Vec<DestinationState>,
}

/// A destination: an address with a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DestinationState {
    /// Such as `192.0.2.1:80`.
    pub address: String,
    /// What was counted since the measurement began.
    pub counts: DestinationCounts,
    /// How it was in the last interval; `None` until the first one has ended.
    pub last: Option<DestinationFigures>,
}

/// A flash crowd: more comes to a destination than usual, and its responses have become slow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CrowdState {
    /// The destination, such as `192.0.2.1:80`.
    pub destination: String,
    /// For how long.
    pub lasts: Nanos,
    /// Why it is slow: its server, or the link that it shares with its neighbours.
    pub why: String,
    /// Exchanges that begin per second, lately; with a limit also the SYNs that it refused for the first time.
    pub demand: f64,
    /// Share of the exchanges that are slow for their size.
    pub slow: f64,
    /// New connections per second that pass its limit, or would; `None`: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Why it has none, where limits are wanted; empty if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unlimited: String,
    /// SYNs that its limits refused since it began.
    #[serde(default)]
    pub refused: u64,
    /// Of those that this process refused, those that were replied to with a RST.
    #[serde(default)]
    pub reset: u64,
    /// SYNs beyond its limits that passed: in shadow, or as the lease ended.
    #[serde(default)]
    pub would_refuse: u64,
    /// Whether its limit has an Abacus filter; without one clients with the action `abacus` are dropped. `None`: it has
    /// no limit, or no class has that action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abacus: Option<bool>,
    /// What it asks for, the most wanted first, if that is looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot_spots: Vec<HotSpotState>,
    /// What part of the limit of several routers its limit is; `None`: it is not divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartState>,
}

/// A host, or a path of it, that many requests of a flash crowd are for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotSpotState {
    /// The host, such as `shop.example`; empty if the request names none.
    pub host: String,
    /// The path, such as `/live`; empty for all of the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Share of the requests that were looked at lately, at least.
    pub share: f64,
}

/// What was counted of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationCounts {
    /// SYNs that came for the first time.
    pub syns: u64,
    /// SYNs that came again.
    pub syns_repeated: u64,
    /// Connections whose handshake was completed.
    pub admitted: u64,
    /// Exchanges that began: requests.
    pub begun: u64,
    /// Exchanges whose response was acknowledged.
    pub completed: u64,
    /// Exchanges whose connection ended without it.
    pub given_up: u64,
    /// Completed ones whose response went on after a pause of a second: they complete once more.
    #[serde(default)]
    pub resumed: u64,
    /// Bytes of payload that the server sent, each once.
    pub sent_bytes: u64,
    /// Bytes that it sent again.
    pub again_bytes: u64,
    /// Bytes that clients acknowledged.
    pub delivered_bytes: u64,
    /// SYNs that a limit refused, copies of them included.
    #[serde(default)]
    pub refused: u64,
    /// Of these, those that were replied to with a RST.
    #[serde(default)]
    pub reset: u64,
    /// SYNs that it would have refused: in shadow, or as the lease ended.
    #[serde(default)]
    pub would_refuse: u64,
}

/// How a destination was in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DestinationFigures {
    /// First SYNs per second.
    pub syns: f64,
    /// Completed handshakes per second.
    pub admitted: f64,
    /// Completed exchanges per second.
    pub completed: f64,
    /// Delivered bytes per second.
    pub delivered: f64,
    /// Share of the bytes that were sent again; `None`: none was sent.
    pub again: Option<f64>,
    /// Half of the exchanges took no longer; `None`: none was completed.
    pub median: Option<Nanos>,
    /// 99 in 100 took no longer.
    pub p99: Option<Nanos>,
    /// Mean rate of the fastest tenth of the connections, in bytes per second, as far as the buckets of rates
    /// tell; `None`: none was sent anything.
    pub fastest: Option<f64>,
    /// How long exchanges took by the size of their response, small ones first; only sizes of which any was completed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<SizeFigures>,
}

/// How long the exchanges of a size class took in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeFigures {
    /// Their responses had fewer bytes than this, and as many as the class before has here; `None`: the largest.
    pub below_bytes: Option<u64>,
    /// Completed per second.
    pub completed: f64,
    /// Half of them took no longer.
    pub median: Nanos,
    /// 99 in 100 took no longer.
    pub p99: Nanos,
}

impl DestinationCounts {
    /// Each count by an operation with that of another.
    #[must_use]
    pub fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            syns: of(self.syns, other.syns),
            syns_repeated: of(self.syns_repeated, other.syns_repeated),
            admitted: of(self.admitted, other.admitted),
            begun: of(self.begun, other.begun),
            completed: of(self.completed, other.completed),
            given_up: of(self.given_up, other.given_up),
            resumed: of(self.resumed, other.resumed),
            sent_bytes: of(self.sent_bytes, other.sent_bytes),
            again_bytes: of(self.again_bytes, other.again_bytes),
            delivered_bytes: of(self.delivered_bytes, other.delivered_bytes),
            refused: of(self.refused, other.refused),
            reset: of(self.reset, other.reset),
            would_refuse: of(self.would_refuse, other.would_refuse),
        }
    }

    /// Exchanges that are in flight.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.begun.saturating_sub(self.responses()).saturating_sub(self.given_up)
    }

    /// Exchanges that are complete, each once.
    #[must_use]
    pub const fn responses(&self) -> u64 {
        self.completed.saturating_sub(self.resumed)
    }
}
