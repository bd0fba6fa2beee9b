// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A packet, header by header, as a person would say it:
//!
//! ```text
//! eth().vlan(10).ipv4().ttl(3).tcp(40000, 80).syn().bytes()
//! ```
//!
//! Lengths, next-protocol fields and checksums are filled in unless they are set by hand, so that a
//! wrong one is always written on purpose. Knows nothing of the product's code.

#[path = "packet/fields.rs"] // said, so that fuzz/ finds it, too
mod fields;

use super::checksum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
pub const SERVER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];
pub const CLIENT4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
pub const SERVER4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 7);
pub const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);
/// Sequence number of every segment that does not set its own.
pub const SEQ: u32 = 0x1122_3344;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const ESP: u8 = 50;
pub const AUTH: u8 = 51;
pub const NO_NEXT: u8 = 59;
pub const DEST_OPTIONS: u8 = 60;
pub const MOBILITY: u8 = 135;

/// One header; `None` in a field means: what follows from the rest.
#[derive(Clone, Debug)]
enum Layer {
    Eth { dst: [u8; 6], src: [u8; 6], ethertype: Option<u16> },
    Vlan { tpid: u16, tci: u16, ethertype: Option<u16> },
    V4(V4),
    V6(V6),
    Ext { kind: u8, body: Vec<u8>, next: Option<u8>, len: Option<u8> },
    Tcp(Tcp),
    Udp { ports: (u16, u16), sum: Option<u16> },
    Proto { number: u8, bytes: Vec<u8> },
    Data { ethertype: Option<u16>, bytes: Vec<u8> },
}

#[derive(Clone, Debug)]
struct V4 {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    version: u8,
    ihl: Option<u8>,
    tos: u8,
    tot_len: Option<u16>,
    id: u16,
    frag: u16,
    ttl: u8,
    proto: Option<u8>,
    sum: Option<u16>,
    options: Vec<u8>,
}

#[derive(Clone, Debug)]
struct V6 {
    src: Ipv6Addr,
    dst: Ipv6Addr,
    version: u8,
    tos: u8,
    flow: u32,
    len: Option<u16>,
    next: Option<u8>,
    hops: u8,
}

#[derive(Clone, Debug)]
struct Tcp {
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    doff: Option<u8>,
    nonce: u8,
    flags: u8,
    window: u16,
    sum: Option<u16>,
    urgent: u16,
    options: Vec<u8>,
}

/// A packet under construction: the methods change the header that was added last.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    layers: Vec<Layer>,
    pad_to: usize,
    cut_to: Option<usize>,
}

/// An Ethernet frame from the client to the server.
pub fn eth() -> Packet {
    let eth = Layer::Eth { dst: SERVER_MAC, src: CLIENT_MAC, ethertype: None };
    Packet { layers: vec![eth], ..Packet::default() }
}

/// A segment between a client of any address and the server, from port to port; to the client at egress.
pub fn between(client: IpAddr, (from, to): (u16, u16), egress: bool) -> Packet {
    let packet = match client {
        IpAddr::V4(client) => {
            let (client, server) = (client.octets(), SERVER4.octets());
            let (from, to) = if egress { (server, client) } else { (client, server) };
            eth().ipv4().from4(from).to4(to)
        }
        IpAddr::V6(client) => {
            let (client, server) = (client.to_string(), SERVER6.to_string());
            let (from, to) = if egress { (server, client) } else { (client, server) };
            eth().ipv6().from6(&from).to6(&to)
        }
    };
    packet.tcp(from, to)
}

/// A SYN over IPv4 from the client to port 80 of the server, nothing special about it.
pub fn syn4() -> Packet {
    eth().ipv4().tcp(40000, 80).syn()
}

/// The same over IPv6.
pub fn syn6() -> Packet {
    eth().ipv6().tcp(40000, 80).syn()
}

/// Bytes, used as they are.
pub fn raw(bytes: &[u8]) -> Packet {
    let data = Layer::Data { ethertype: None, bytes: bytes.to_vec() };
    Packet { layers: vec![data], ..Packet::default() }
}

/// Adding headers.
impl Packet {
    fn with(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    pub fn vlan(self, id: u16) -> Self {
        self.with(Layer::Vlan { tpid: 0x8100, tci: id, ethertype: None })
    }

    /// A service tag (802.1ad).
    pub fn svlan(self, id: u16) -> Self {
        self.with(Layer::Vlan { tpid: 0x88a8, tci: id, ethertype: None })
    }

    pub fn ipv4(self) -> Self {
        let (src, dst) = (CLIENT4, SERVER4);
        self.with(Layer::V4(V4 {
            src,
            dst,
            version: 4,
            ihl: None,
            tos: 0,
            tot_len: None,
            id: 0x0102,
            frag: 0,
            ttl: 61,
            proto: None,
            sum: None,
            options: Vec::new(),
        }))
    }

    pub fn ipv6(self) -> Self {
        let (src, dst) = (CLIENT6, SERVER6);
        self.with(Layer::V6(V6 {
            src,
            dst,
            version: 6,
            tos: 0,
            flow: 0x12345,
            len: None,
            next: None,
            hops: 61,
        }))
    }

    /// An IPv6 extension header of this kind with 8 bytes in all (16 for AUTH: 4-byte units); of
    /// options one that pads, of a route none that is left.
    pub fn ext(self, kind: u8) -> Self {
        let body = match kind {
            AUTH => vec![0; 14],
            ROUTING => vec![0; 6],
            _ => vec![1, 4, 0, 0, 0, 0],
        };
        self.with(Layer::Ext { kind, body, next: None, len: None })
    }

    /// An extension header with this body: all that follows its first two bytes.
    pub fn ext_with(self, kind: u8, body: &[u8]) -> Self {
        self.with(Layer::Ext { kind, body: body.to_vec(), next: None, len: None })
    }

    /// An IPv6 fragment header; the offset in bytes, a multiple of 8.
    pub fn frag6(self, offset: u16, more: bool) -> Self {
        let field = (offset & 0xfff8) | u16::from(more);
        let mut body = field.to_be_bytes().to_vec();
        body.extend_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        self.with(Layer::Ext { kind: FRAGMENT, body, next: None, len: Some(0) })
    }

    pub fn tcp(self, sport: u16, dport: u16) -> Self {
        self.with(Layer::Tcp(Tcp {
            ports: (sport, dport),
            seq: SEQ,
            ack: 0,
            doff: None,
            nonce: 0,
            flags: 0,
            window: 64240,
            sum: None,
            urgent: 0,
            options: Vec::new(),
        }))
    }

    pub fn udp(self, sport: u16, dport: u16) -> Self {
        self.with(Layer::Udp { ports: (sport, dport), sum: None })
    }

    pub fn icmp(self, kind: u8, code: u8) -> Self {
        self.with(Layer::Proto { number: 1, bytes: checksum::icmp(kind, code) })
    }

    /// ICMPv6; its checksum is left zero: nothing here decides on it.
    pub fn icmp6(self, kind: u8, code: u8) -> Self {
        let mut bytes = vec![0; 24];
        (bytes[0], bytes[1]) = (kind, code);
        self.with(Layer::Proto { number: 58, bytes })
    }

    /// Any other protocol above IP.
    pub fn proto(self, number: u8, bytes: &[u8]) -> Self {
        self.with(Layer::Proto { number, bytes: bytes.to_vec() })
    }

    /// Something that is no IP, under this ethertype.
    pub fn other(self, ethertype: u16, bytes: &[u8]) -> Self {
        self.with(Layer::Data { ethertype: Some(ethertype), bytes: bytes.to_vec() })
    }

    pub fn arp(self) -> Self {
        let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, 1];
        bytes.extend_from_slice(&CLIENT_MAC);
        bytes.extend_from_slice(&CLIENT4.octets());
        bytes.extend_from_slice(&[0; 6]);
        bytes.extend_from_slice(&SERVER4.octets());
        self.other(0x0806, &bytes)
    }

    pub fn data(self, bytes: &[u8]) -> Self {
        self.with(Layer::Data { ethertype: None, bytes: bytes.to_vec() })
    }

    /// Zeros after the packet up to this frame length, as a switch pads short frames.
    pub fn pad(mut self, length: usize) -> Self {
        self.pad_to = length;
        self
    }

    /// Nothing after this many bytes.
    pub fn cut(mut self, length: usize) -> Self {
        self.cut_to = Some(length);
        self
    }
}

/// What the checksum of a transport header is made of besides its own bytes.
#[derive(Clone, Copy)]
enum Pseudo {
    None,
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// Building.
impl Packet {
    /// The frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut inner = Vec::new();
        for at in (0..self.layers.len()).rev() {
            inner = self.layer(at, &inner);
        }
        if inner.len() < self.pad_to {
            inner.resize(self.pad_to, 0);
        }
        if let Some(length) = self.cut_to {
            inner.truncate(length);
        }
        inner
    }

    fn layer(&self, at: usize, inner: &[u8]) -> Vec<u8> {
        let mut out = match &self.layers[at] {
            Layer::Eth { dst, src, ethertype } => {
                let next = ethertype.unwrap_or_else(|| self.ethertype_after(at));
                [&dst[..], &src[..], &next.to_be_bytes()].concat()
            }
            Layer::Vlan { tci, ethertype, .. } => {
                let next = ethertype.unwrap_or_else(|| self.ethertype_after(at));
                [tci.to_be_bytes(), next.to_be_bytes()].concat()
            }
            Layer::V4(ip) => ip.bytes(self.proto_after(at), inner.len()),
            Layer::V6(ip) => ip.bytes(self.proto_after(at), inner.len()),
            Layer::Ext { kind, body, next, len } => {
                let units = if *kind == AUTH { (body.len() + 2) / 4 - 2 } else { body.len() / 8 };
                let head = [next.unwrap_or(self.proto_after(at)), len.unwrap_or(units as u8)];
                [&head[..], body].concat()
            }
            Layer::Tcp(tcp) => tcp.bytes(self.pseudo_before(at), inner),
            Layer::Udp { ports, sum } => udp(*ports, *sum, self.pseudo_before(at), inner),
            Layer::Proto { bytes, .. } | Layer::Data { bytes, .. } => bytes.clone(),
        };
        out.extend_from_slice(inner);
        out
    }

    fn ethertype_after(&self, at: usize) -> u16 {
        match self.layers.get(at + 1) {
            Some(Layer::V4(_)) => 0x0800,
            Some(Layer::V6(_)) => 0x86dd,
            Some(Layer::Vlan { tpid, .. }) => *tpid,
            Some(Layer::Data { ethertype, .. }) => ethertype.unwrap_or(0x88b5),
            _ => 0x88b5, // IEEE 802 local experimental: nothing follows
        }
    }

    fn proto_after(&self, at: usize) -> u8 {
        match self.layers.get(at + 1) {
            Some(Layer::Tcp(_)) => 6,
            Some(Layer::Udp { .. }) => 17,
            Some(Layer::Proto { number, .. }) => *number,
            Some(Layer::Ext { kind, .. }) => *kind,
            Some(Layer::V4(_)) => 4,
            Some(Layer::V6(_)) => 41,
            _ => NO_NEXT,
        }
    }

    fn pseudo_before(&self, at: usize) -> Pseudo {
        let ip = self.layers[..at].iter().rev().find_map(|layer| match layer {
            Layer::V4(ip) => Some(Pseudo::V4(ip.src, ip.dst)),
            Layer::V6(ip) => Some(Pseudo::V6(ip.src, ip.dst)),
            _ => None,
        });
        ip.unwrap_or(Pseudo::None)
    }
}

impl Pseudo {
    fn sum(self, proto: u8, segment: &[u8]) -> u16 {
        match self {
            Self::None => 0,
            Self::V4(src, dst) => checksum::transport(&src.octets(), &dst.octets(), proto, segment),
            Self::V6(src, dst) => checksum::transport(&src.octets(), &dst.octets(), proto, segment),
        }
    }
}

impl V4 {
    fn bytes(&self, next: u8, inner: usize) -> Vec<u8> {
        let header = 20 + self.options.len();
        let ihl = self.ihl.unwrap_or((header / 4) as u8);
        let tot_len = self.tot_len.unwrap_or((header + inner) as u16);
        let mut b = vec![self.version << 4 | ihl, self.tos];
        for word in [tot_len, self.id, self.frag] {
            b.extend_from_slice(&word.to_be_bytes());
        }
        b.extend_from_slice(&[self.ttl, self.proto.unwrap_or(next), 0, 0]);
        b.extend_from_slice(&self.src.octets());
        b.extend_from_slice(&self.dst.octets());
        b.extend_from_slice(&self.options);
        let sum = self.sum.unwrap_or_else(|| checksum::of(&b));
        b[10..12].copy_from_slice(&sum.to_be_bytes());
        b
    }
}

impl V6 {
    fn bytes(&self, next: u8, inner: usize) -> Vec<u8> {
        let first = u32::from(self.version) << 28 | u32::from(self.tos) << 20 | self.flow;
        let mut b = first.to_be_bytes().to_vec();
        b.extend_from_slice(&self.len.unwrap_or(inner as u16).to_be_bytes());
        b.extend_from_slice(&[self.next.unwrap_or(next), self.hops]);
        b.extend_from_slice(&self.src.octets());
        b.extend_from_slice(&self.dst.octets());
        b
    }
}

impl Tcp {
    fn bytes(&self, pseudo: Pseudo, payload: &[u8]) -> Vec<u8> {
        let doff = self.doff.unwrap_or((5 + self.options.len() / 4) as u8);
        let mut b = Vec::new();
        b.extend_from_slice(&self.ports.0.to_be_bytes());
        b.extend_from_slice(&self.ports.1.to_be_bytes());
        b.extend_from_slice(&self.seq.to_be_bytes());
        b.extend_from_slice(&self.ack.to_be_bytes());
        b.extend_from_slice(&[doff << 4 | self.nonce, self.flags]);
        for word in [self.window, 0, self.urgent] {
            b.extend_from_slice(&word.to_be_bytes());
        }
        b.extend_from_slice(&self.options);
        let sum = self.sum.unwrap_or_else(|| pseudo.sum(6, &[&b, payload].concat()));
        b[16..18].copy_from_slice(&sum.to_be_bytes());
        b
    }
}

fn udp(ports: (u16, u16), sum: Option<u16>, pseudo: Pseudo, payload: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    for word in [ports.0, ports.1, 8 + payload.len() as u16, 0] {
        b.extend_from_slice(&word.to_be_bytes());
    }
    let sum = sum.unwrap_or_else(|| pseudo.sum(17, &[&b, payload].concat()));
    b[6..8].copy_from_slice(&sum.to_be_bytes());
    b
}
