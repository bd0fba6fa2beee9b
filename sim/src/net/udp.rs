// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sources of datagrams that do not react to anything.

use super::link::Count;
use super::packet::{FlowId, HEADERS_UDP, Kind, NodeId, Packet, Side};
use tidegate_units::Nanos;
use tidegate_workload::{OnOff, OnOffArrivals, Poisson, Rng};

/// No connection has a name of this generation, so names of flows are all different.
const OF_SOURCES: u32 = u32::MAX;

/// Who sends datagrams to whom, and of what size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpSpec {
    /// The sender's node.
    pub from: NodeId,
    /// The receiver's node.
    pub to: NodeId,
    /// Which client ([`Packet::client`]).
    pub client: u32,
    /// Port of the service.
    pub port: u16,
    /// Bytes of payload in each.
    pub payload: u32,
}

/// When a source sends.
#[derive(Debug)]
pub enum Times {
    /// At equal distances.
    Constant {
        /// When the first datagram leaves.
        first: Nanos,
        /// From one to the next; at least 1 ns.
        gap: Nanos,
        /// None leaves then or later.
        until: Nanos,
    },
    /// Pareto times on and off.
    OnOff(Box<OnOffArrivals>),
    /// Independent times.
    Poisson(Box<Poisson>),
}

impl Times {
    /// So many bits of payload per second, in datagrams of `payload` bytes at equal distances;
    /// none for a rate of 0.
    #[must_use]
    pub fn rate(bits: u64, payload: u32, first: Nanos, until: Nanos) -> Option<Self> {
        let gap = (u64::from(payload) * 8_000_000_000).checked_div(bits)?;
        Some(Self::Constant { first, gap: Nanos(gap.max(1)), until })
    }

    /// Pareto on/off; none if a value is out of range.
    #[must_use]
    pub fn on_off(spec: OnOff, until: Nanos, random: Rng) -> Option<Self> {
        Some(Self::OnOff(Box::new(spec.arrivals(until, random)?)))
    }

    /// The next time to send.
    pub(super) fn next(&mut self) -> Option<Nanos> {
        match self {
            Self::Constant { first, gap, until } => {
                let at = *first;
                *first += Nanos(gap.0.max(1));
                (at < *until).then_some(at)
            }
            Self::OnOff(times) => times.next(),
            Self::Poisson(times) => times.next(),
        }
    }
}

/// What a source has sent, and what of it arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounts {
    /// Sent.
    pub sent: Count,
    /// Arrived.
    pub arrived: Count,
}

#[derive(Debug)]
pub(super) struct Source {
    spec: UdpSpec,
    pub(super) times: Times,
    pub(super) counts: UdpCounts,
}

impl Source {
    pub(super) fn new(spec: UdpSpec, times: Times) -> Self {
        Self { spec, times, counts: UdpCounts::default() }
    }

    /// The next datagram, and the node that sends it.
    pub(super) fn send(&mut self, slot: u32) -> Packet {
        let UdpSpec { from, to, client, port, payload } = self.spec;
        let packet = Packet {
            flow: FlowId { slot, generation: OF_SOURCES },
            from,
            to,
            client,
            bytes: payload.saturating_add(HEADERS_UDP),
            payload,
            tag: 0,
            port,
            kind: Kind::Udp,
            sender: Side::Client,
            fin: false,
            attempt: 0,
            marks: 0,
            hops: 0,
            seq: self.counts.sent.packets,
            ack: 0,
        };
        self.counts.sent.add(&packet);
        packet
    }
}
