// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What travels: a packet is a value, without contents.

/// A host or a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

/// A link in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub(super) u32);

/// A TCP connection, or a source of UDP packets. The name of a connection is never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl FlowId {
    /// One number for both parts, to sort by or to hash.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }
}

/// Bytes of the headers of IPv4 and TCP.
pub const HEADERS_TCP: u32 = 40;
/// Bytes of the headers of IPv4 and UDP.
pub const HEADERS_UDP: u32 = 28;

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Who sent the SYN.
    Client,
    /// Who listened.
    Server,
}

impl Side {
    /// The other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request for a connection.
    Syn,
    /// The server's answer to it.
    SynAck,
    /// Payload, an acknowledgement, or both; possibly a FIN.
    Segment,
    /// The end of a connection at once.
    Rst,
    /// A datagram.
    Udp,
}

/// A packet. A hook may change [`Packet::bytes`], [`Packet::marks`] and [`Packet::tag`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Connection or source that it belongs to.
    pub flow: FlowId,
    /// The node it comes from.
    pub from: NodeId,
    /// The node it is for.
    pub to: NodeId,
    /// Which client: a node may stand for many. Their address, for policies.
    pub client: u32,
    /// Bytes on the wire, headers included.
    pub bytes: u32,
    /// Bytes of payload.
    pub payload: u32,
    /// A number that hooks give a meaning to, 0 at first: for instance an IP option.
    pub tag: u32,
    /// Port of the service.
    pub port: u16,
    /// What it is.
    pub kind: Kind,
    /// The end of the connection that sent it; a datagram is sent by [`Side::Client`].
    pub sender: Side,
    /// Whether it ends its sender's stream.
    pub fin: bool,
    /// How often this SYN or SYN-ACK was sent before.
    pub attempt: u8,
    /// Bits that hooks give a meaning to, 0 at first: for instance DSCP.
    pub marks: u8,
    /// Links passed so far.
    pub hops: u8,
    /// Position of the payload in its sender's stream; of a datagram, its number.
    pub seq: u64,
    /// Everything before this position has arrived.
    pub ack: u64,
}

const _: () = assert!(size_of::<Packet>() == 56);

impl Packet {
    /// Whether this packet is part of a connection.
    #[must_use]
    pub const fn is_tcp(&self) -> bool {
        !matches!(self.kind, Kind::Udp)
    }

    /// Position after the payload; a FIN takes one position.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.seq + self.payload as u64 + self.fin as u64
    }

    /// The RST that ends the connection of this packet, in the name of the node it was for.
    pub(super) const fn reset(&self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            bytes: HEADERS_TCP,
            payload: 0,
            tag: 0,
            kind: Kind::Rst,
            sender: self.sender.other(),
            fin: false,
            attempt: 0,
            marks: 0,
            hops: 0,
            seq: self.ack,
            ack: self.end(),
            ..*self
        }
    }
}
