// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FlowSpec: what is announced and imported.

use serde::{Deserialize, Serialize};

/// The BGP speaker, and what it announces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowspecState {
    /// `gobgp` or `exabgp`.
    pub speaker: String,
    /// Nothing is announced: it is only planned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Whether the speaker runs and answers.
    pub up: bool,
    /// How often it was started.
    pub started: u64,
    /// How often it did not take a route.
    pub refused: u64,
    /// What keeps it from running, in one sentence; empty if nothing does.
    pub problem: String,
    /// The routers, in the order of the configuration.
    pub peers: Vec<SessionState>,
    /// Most routes at a time.
    pub budget: usize,
    /// Routes that are wanted or announced.
    pub routes: Vec<RouteState>,
    /// Rules of a router that hold at this host; `None`: nothing is imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<ImportState>,
}

/// The rules of a router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImportState {
    /// Name of the router in the configuration.
    pub peer: String,
    /// Nothing is dropped, only counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Whether the router has a session and the speaker lists what it sends.
    pub heard: bool,
    /// What is wrong, in a sentence; empty: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// In the order in which a packet meets them.
    pub rules: Vec<ImportedState>,
    /// How many routes did not become rules.
    pub refused: Vec<RefusedRoutes>,
}

/// A rule of a router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImportedState {
    /// Which packets.
    pub rule: String,
    /// How many of them pass in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_rate: Option<f64>,
    /// How many of their bytes pass in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_rate: Option<f64>,
    /// Packets that it matched first.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets above its rates; in shadow mode they passed.
    pub refused: u64,
}

/// Routes that did not become rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRoutes {
    /// Why.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// A session of the BGP speaker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    /// Name of the router in the configuration.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Whether the session is established; `None`: the speaker does not tell.
    pub up: Option<bool>,
}

/// A route for routers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteState {
    /// Name of the service.
    pub service: String,
    /// Which packets.
    pub rule: String,
    /// `packets` or `bytes`.
    pub unit: String,
    /// How many a second shall pass; `None`: it is to end.
    pub wanted: Option<f64>,
    /// How many pass as routers were told; `None`: it is not announced.
    pub told: Option<f64>,
    /// Why the two differ: `budget`, `hysteresis`, `between`, `refused`, `speaker`; empty: they do not.
    pub withheld: String,
}
