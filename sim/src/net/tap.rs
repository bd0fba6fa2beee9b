// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Taps: count some of the packets that a link delivers.

use super::link::Count;
use super::packet::{Kind, LinkId, NodeId, Packet};

/// Which packets a tap counts; what is not said is any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// For this node.
    pub to: Option<NodeId>,
    /// From this node.
    pub from: Option<NodeId>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// Of this service.
    pub port: Option<u16>,
}

impl Filter {
    fn takes(&self, packet: &Packet) -> bool {
        self.to.is_none_or(|to| to == packet.to)
            && self.from.is_none_or(|from| from == packet.from)
            && self.kind.is_none_or(|kind| kind == packet.kind)
            && self.port.is_none_or(|port| port == packet.port)
    }
}

/// A tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapId(usize);

/// What a tap has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tapped {
    /// Packets and bytes.
    pub all: Count,
    /// Bytes of payload.
    pub payload: u64,
    /// Of the packets, SYNs that were sent for the first time.
    pub first_syns: u64,
}

#[derive(Debug)]
pub(super) struct Taps {
    taps: Vec<(Filter, Tapped)>,
    by_link: Vec<Vec<usize>>,
}

impl Taps {
    pub(super) fn new(links: usize) -> Self {
        Self { taps: Vec::new(), by_link: vec![Vec::new(); links] }
    }

    pub(super) fn add(&mut self, link: LinkId, filter: Filter) -> TapId {
        self.taps.push((filter, Tapped::default()));
        self.by_link[link.0 as usize].push(self.taps.len() - 1);
        TapId(self.taps.len() - 1)
    }

    pub(super) fn see(&mut self, link: LinkId, packet: &Packet) {
        for tap in &self.by_link[link.0 as usize] {
            let (filter, tapped) = &mut self.taps[*tap];
            if filter.takes(packet) {
                tapped.all.add(packet);
                tapped.payload += u64::from(packet.payload);
                let is_first = packet.kind == Kind::Syn && packet.attempt == 0;
                tapped.first_syns += u64::from(is_first);
            }
        }
    }

    pub(super) fn get(&self, tap: TapId) -> Tapped {
        self.taps.get(tap.0).map_or_else(Tapped::default, |(_, tapped)| *tapped)
    }
}
