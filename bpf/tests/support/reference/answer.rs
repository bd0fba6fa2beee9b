// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a reject is answered, and with which bytes (RFC 9293, 3.10.7.1; design.md "Answers are
//! no weapon").

use super::Scene;
use super::parse::Segment;
use crate::support::packet::{ACK, RST, raw};
use std::net::{IpAddr, Ipv6Addr};
use tidegate_policy::{Reason, VerdictKind};

/// What is left of a reject: itself, or a drop with the reason why there is no answer.
pub fn settle(segment: &Segment, scene: &Scene<'_>, reason: Reason) -> (VerdictKind, Reason) {
    let setup = scene.setup;
    if !scene.can_answer || !has_peer(segment, scene.loopback) {
        (VerdictKind::Drop, Reason::ReplyImpossible)
    } else if setup.answers == 0 || setup.answers_left == Some(0) {
        (VerdictKind::Drop, Reason::ReplyCap)
    } else {
        (VerdictKind::Reject, reason)
    }
}

fn address(octets: [u8; 16], ipv6: bool) -> IpAddr {
    let v6 = Ipv6Addr::from(octets);
    v6.to_ipv4_mapped().filter(|_| !ipv6).map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Whether both ends are single hosts that can talk to each other over a wire.
fn has_peer(segment: &Segment, loopback: bool) -> bool {
    let src = address(segment.src, segment.ipv6);
    let dst = address(segment.dst, segment.ipv6);
    let host = |addr: IpAddr| match addr {
        // 0/8, and everything from multicast on: reserved, broadcast
        IpAddr::V4(a) => !matches!(a.octets()[0], 0 | 224..),
        IpAddr::V6(a) => !a.is_multicast(),
    };
    let bogus = match src {
        IpAddr::V4(a) => a.is_loopback() && !loopback,
        IpAddr::V6(a) => {
            a.is_unspecified() || a.to_ipv4_mapped().is_some() || (a.is_loopback() && !loopback)
        }
    };
    let itself = src == dst && !loopback;
    !segment.group && host(src) && host(dst) && !bogus && !itself
}

/// The RST: back to where the SYN came from, tags kept, options and payload gone.
pub fn reset(frame: &[u8], syn: &Segment) -> Vec<u8> {
    let mut link = frame[..syn.ip_at].to_vec();
    link[..6].copy_from_slice(&frame[6..12]);
    link[6..12].copy_from_slice(&frame[..6]);
    let (from, to) = (address(syn.dst, syn.ipv6), address(syn.src, syn.ipv6));
    let ip = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            raw(&link).ipv4().id(0).df().from4(from.octets()).to4(to.octets())
        }
        _ => raw(&link).ipv6().flow(0).from6(&from.to_string()).to6(&to.to_string()),
    };
    let acknowledged = syn.seq.wrapping_add(1).wrapping_add(syn.payload);
    let tcp = ip.ttl(64).tcp(syn.dport, syn.sport).seq(0).ack(acknowledged).window(0);
    tcp.flags(RST | ACK).bytes()
}
