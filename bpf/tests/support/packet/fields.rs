// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changing the fields of the header that was added last.

use super::{ACK, Layer, Packet, SYN, Tcp, V4, V6};
use std::net::Ipv4Addr;

macro_rules! set {
    ($self:ident, $pattern:pat => $change:expr) => {{
        let mut packet = $self;
        match packet.layers.last_mut() {
            Some($pattern) => $change,
            other => panic!("the last header has no such field: {other:?}"),
        }
        packet
    }};
}

/// Changing the header that was added last.
impl Packet {
    pub fn mac(self, from: [u8; 6], to: [u8; 6]) -> Self {
        set!(self, Layer::Eth { dst, src, .. } => (*src, *dst) = (from, to))
    }

    pub fn ethertype(self, value: u16) -> Self {
        set!(self, Layer::Eth { ethertype, .. } | Layer::Vlan { ethertype, .. } => *ethertype = Some(value))
    }

    pub fn tpid(self, value: u16) -> Self {
        set!(self, Layer::Vlan { tpid, .. } => *tpid = value)
    }

    pub fn pcp(self, value: u16) -> Self {
        set!(self, Layer::Vlan { tci, .. } => *tci |= value << 13)
    }

    pub fn from4(self, a: [u8; 4]) -> Self {
        set!(self, Layer::V4(ip) => ip.src = Ipv4Addr::from(a))
    }

    pub fn to4(self, a: [u8; 4]) -> Self {
        set!(self, Layer::V4(ip) => ip.dst = Ipv4Addr::from(a))
    }

    pub fn from6(self, a: &str) -> Self {
        set!(self, Layer::V6(ip) => ip.src = a.parse().unwrap())
    }

    pub fn to6(self, a: &str) -> Self {
        set!(self, Layer::V6(ip) => ip.dst = a.parse().unwrap())
    }

    pub fn version(self, value: u8) -> Self {
        set!(self, Layer::V4(V4 { version, .. }) | Layer::V6(V6 { version, .. }) => *version = value)
    }

    pub fn ihl(self, words: u8) -> Self {
        set!(self, Layer::V4(ip) => ip.ihl = Some(words))
    }

    pub fn tot_len(self, bytes: u16) -> Self {
        set!(self, Layer::V4(ip) => ip.tot_len = Some(bytes))
    }

    pub fn payload_len(self, bytes: u16) -> Self {
        set!(self, Layer::V6(ip) => ip.len = Some(bytes))
    }

    pub fn dscp(self, value: u8) -> Self {
        set!(self, Layer::V4(V4 { tos, .. }) | Layer::V6(V6 { tos, .. }) => *tos = value << 2 | *tos & 3)
    }

    pub fn ecn(self, value: u8) -> Self {
        set!(self, Layer::V4(V4 { tos, .. }) | Layer::V6(V6 { tos, .. }) => *tos = *tos & 0xfc | value)
    }

    pub fn ttl(self, value: u8) -> Self {
        set!(self, Layer::V4(V4 { ttl, .. }) | Layer::V6(V6 { hops: ttl, .. }) => *ttl = value)
    }

    pub fn flow(self, label: u32) -> Self {
        set!(self, Layer::V6(ip) => ip.flow = label)
    }

    /// Identification of an IPv4 packet.
    pub fn id(self, value: u16) -> Self {
        set!(self, Layer::V4(ip) => ip.id = value)
    }

    pub fn df(self) -> Self {
        set!(self, Layer::V4(ip) => ip.frag |= 0x4000)
    }

    /// An IPv4 fragment; the offset in bytes, a multiple of 8.
    pub fn frag4(self, offset: u16, more: bool) -> Self {
        set!(self, Layer::V4(ip) => ip.frag = (offset / 8) | if more { 0x2000 } else { 0 })
    }

    /// The reserved ("evil") bit in front of the IPv4 fragment flags.
    pub fn evil(self) -> Self {
        set!(self, Layer::V4(ip) => ip.frag |= 0x8000)
    }

    /// The three reserved bits of a fragment header.
    pub fn reserved(self) -> Self {
        set!(self, Layer::Ext { body, .. } => (body[0], body[1]) = (body[0], body[1] | 6))
    }

    /// Protocol or next header, whatever really follows.
    pub fn next(self, value: u8) -> Self {
        set!(self, Layer::V4(V4 { proto: next, .. }) | Layer::V6(V6 { next, .. }) | Layer::Ext { next, .. } => *next = Some(value))
    }

    /// The length field of an extension header, in its own units.
    pub fn ext_len(self, value: u8) -> Self {
        set!(self, Layer::Ext { len, .. } => *len = Some(value))
    }

    /// IPv4 or TCP options, padded with zeros to a multiple of four.
    pub fn options(self, bytes: &[u8]) -> Self {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4), 0);
        set!(self, Layer::V4(V4 { options, .. }) | Layer::Tcp(Tcp { options, .. }) => *options = padded)
    }

    /// The checksum of the IPv4, TCP or UDP header, right or wrong.
    pub fn sum(self, value: u16) -> Self {
        set!(self, Layer::V4(V4 { sum, .. }) | Layer::Tcp(Tcp { sum, .. }) | Layer::Udp { sum, .. } => *sum = Some(value))
    }

    pub fn flags(self, value: u8) -> Self {
        set!(self, Layer::Tcp(tcp) => tcp.flags |= value)
    }

    pub fn syn(self) -> Self {
        self.flags(SYN)
    }

    pub fn seq(self, value: u32) -> Self {
        set!(self, Layer::Tcp(tcp) => tcp.seq = value)
    }

    pub fn ack(self, value: u32) -> Self {
        set!(self, Layer::Tcp(tcp) => (tcp.ack, tcp.flags) = (value, tcp.flags | ACK))
    }

    /// The acknowledgement number, without its flag.
    pub fn ack_field(self, value: u32) -> Self {
        set!(self, Layer::Tcp(tcp) => tcp.ack = value)
    }

    pub fn doff(self, words: u8) -> Self {
        set!(self, Layer::Tcp(tcp) => tcp.doff = Some(words))
    }

    /// The four bits between TCP's data offset and its flags.
    pub fn nonce(self, value: u8) -> Self {
        set!(self, Layer::Tcp(tcp) => tcp.nonce = value)
    }

    pub fn window(self, value: u16) -> Self {
        set!(self, Layer::Tcp(tcp) => tcp.window = value)
    }

    pub fn urgent(self, value: u16) -> Self {
        set!(self, Layer::Tcp(tcp) => tcp.urgent = value)
    }
}
