// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What packets say of congested routers (NetDraino's option 158). Whoever is inside the border can write one, so it is
//! shown, and nothing is decided by it.

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use tidegate_units::Nanos;

/// Options as this host adds and reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InBandState {
    /// As a router: packets to which its address was added.
    pub added: u64,
    /// As a router: packets that should have got it and had no room.
    pub no_room: u64,
    /// As a server: what routers have said while it refused.
    pub routers: Vec<RouterSaid>,
    /// As a server: entries with the address of no router under `report_to`.
    pub unknown_routers: u64,
}

impl InBandState {
    /// Whether nothing was added or read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added == 0 && self.no_room == 0 && self.routers.is_empty() && self.unknown_routers == 0
    }
}

/// What one router has said in options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterSaid {
    /// Its name under `report_to`.
    pub router: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Packets with it that were read since it began last, while this host refused.
    pub entries: u64,
    /// About so many packets have passed it for these: each stands for others that could have got an option. A lower bound
    /// of all: long ones get none, and what is dropped before it is read is missing.
    pub packets: u64,
    /// The same since the daemon has started.
    #[serde(default)]
    pub packets_ever: u64,
    /// When the last was read (monotonic clock).
    pub at: Nanos,
}
