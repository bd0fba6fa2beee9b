// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A frame in words, header by header, for people who read golden files: `eth … | ipv4 … | tcp …`.
//! Checks checksums. What it does not understand it shows as a number of bytes.

use super::checksum;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The frame in words.
pub fn describe(frame: &[u8]) -> String {
    let mut parts = Vec::new();
    let rest = ethernet(frame, &mut parts);
    if let Some((bytes, what)) = rest.filter(|(bytes, _)| !bytes.is_empty()) {
        parts.push(format!("{what} {} bytes", bytes.len()));
    }
    if parts.is_empty() { "nothing".into() } else { parts.join(" | ") }
}

/// What is left over, and its name.
type Rest<'a> = Option<(&'a [u8], &'static str)>;

fn ethernet<'a>(frame: &'a [u8], parts: &mut Vec<String>) -> Rest<'a> {
    let Some((head, mut rest)) = frame.split_at_checked(14) else {
        return Some((frame, "cut:"));
    };
    parts.push(format!("eth {} > {}", mac(&head[6..12]), mac(&head[..6])));
    let mut kind = word(head, 12);
    while matches!(kind, 0x8100 | 0x88a8) {
        let Some((tag, inner)) = rest.split_at_checked(4) else {
            return Some((rest, "cut:"));
        };
        let tci = word(tag, 0);
        let name = if kind == 0x8100 { "vlan" } else { "svlan" };
        let priority = if tci >> 13 > 0 { format!(" pcp {}", tci >> 13) } else { String::new() };
        parts.push(format!("{name} {}{priority}", tci & 0xfff));
        (kind, rest) = (word(tag, 2), inner);
    }
    match kind {
        0x0800 => ipv4(rest, parts),
        0x86dd => ipv6(rest, parts),
        _ => {
            parts.push(format!("ethertype {kind:#06x}"));
            Some((rest, "with"))
        }
    }
}

fn ipv4<'a>(packet: &'a [u8], parts: &mut Vec<String>) -> Rest<'a> {
    let Some((head, _)) = packet.split_at_checked(20) else {
        return Some((packet, "ipv4, cut:"));
    };
    let (length, header) = (usize::from(word(head, 2)), usize::from(head[0] & 15) * 4);
    let mut text =
        format!("ipv4 {} > {} ttl {} len {length}", v4(&head[12..16]), v4(&head[16..20]), head[8],);
    differs(&mut text, "version", head[0] >> 4, 4);
    differs(&mut text, "ihl", head[0] & 15, 5);
    differs(&mut text, "dscp", head[1] >> 2, 0);
    differs(&mut text, "ecn", head[1] & 3, 0);
    differs(&mut text, "id", word(head, 4), 0);
    let fragment = word(head, 6);
    for (bit, name) in [(0x4000, " df"), (0x2000, " more")] {
        text.push_str(if fragment & bit == 0 { "" } else { name });
    }
    differs(&mut text, "offset", (fragment & 0x1fff) * 8, 0);
    let sum = packet.get(..header).is_some_and(checksum::holds);
    let _ = write!(text, " sum {}", if sum { "ok" } else { "WRONG" });
    parts.push(text);
    if header < 20 || length < header || packet.len() < length {
        return Some((&packet[20..], "then"));
    }
    let (inside, after) = packet.split_at(length);
    let from_to = (&head[12..16], &head[16..20]);
    let next = if fragment & 0x1fff == 0 { head[9] } else { u8::MAX };
    let whole = fragment & 0x3fff == 0;
    payload(next, &inside[header..], (from_to.0, from_to.1, whole), parts);
    Some((after, "after the packet"))
}

fn ipv6<'a>(packet: &'a [u8], parts: &mut Vec<String>) -> Rest<'a> {
    let Some((head, body)) = packet.split_at_checked(40) else {
        return Some((packet, "ipv6, cut:"));
    };
    let length = usize::from(word(head, 4));
    let octets = |at: usize| -> [u8; 16] { head[at..at + 16].try_into().unwrap() };
    let mut text = format!(
        "ipv6 {} > {} hops {} len {length}",
        Ipv6Addr::from(octets(8)),
        Ipv6Addr::from(octets(24)),
        head[7],
    );
    let first = u32::from_be_bytes(head[..4].try_into().unwrap());
    differs(&mut text, "version", first >> 28, 6);
    differs(&mut text, "dscp", first >> 22 & 63, 0);
    differs(&mut text, "ecn", first >> 20 & 3, 0);
    if first & 0xfffff != 0 {
        let _ = write!(text, " flow {:#x}", first & 0xfffff);
    }
    parts.push(text);
    let Some((inside, after)) = body.split_at_checked(length) else {
        return Some((body, "then"));
    };
    let (next, inside, whole) = extensions(head[6], inside, parts);
    payload(next, inside, (&head[8..24], &head[24..40], whole), parts);
    Some((after, "after the packet"))
}

/// Walks the extension headers; what follows them, and whether it is the whole packet.
fn extensions<'a>(
    mut next: u8,
    mut rest: &'a [u8],
    parts: &mut Vec<String>,
) -> (u8, &'a [u8], bool) {
    let mut whole = true;
    while matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140) && rest.len() >= 8 {
        let length = match next {
            44 => 8,
            51 => (usize::from(rest[1]) + 2) * 4,
            _ => (usize::from(rest[1]) + 1) * 8,
        };
        let mut text = format!("ext {next}");
        if next == 44 {
            let field = word(rest, 2);
            let more = if field & 1 == 1 { " more" } else { "" };
            let _ = write!(text, " offset {}{more}", field & 0xfff8);
            whole &= field & 0xfff9 == 0;
            if field & 0xfff8 != 0 {
                parts.push(text);
                return (u8::MAX, &rest[8..], whole);
            }
        }
        parts.push(text);
        if rest.len() < length {
            return (u8::MAX, rest, whole);
        }
        (next, rest) = (rest[0], &rest[length..]);
    }
    (next, rest, whole)
}

/// Source and destination address, and whether the checksum covers no more than what is here.
type Below<'a> = (&'a [u8], &'a [u8], bool);

fn payload(next: u8, segment: &[u8], below: Below<'_>, parts: &mut Vec<String>) {
    match next {
        6 if segment.len() >= 20 => parts.push(tcp(segment, below)),
        17 if segment.len() >= 8 => {
            let (from, to) = (word(segment, 0), word(segment, 2));
            parts.push(format!("udp {from} > {to} +{}", segment.len() - 8));
        }
        1 | 58 if segment.len() >= 4 => {
            parts.push(format!("icmp type {} code {}", segment[0], segment[1]));
        }
        u8::MAX => parts.push(format!("fragment of {} bytes", segment.len())),
        _ => parts.push(format!("protocol {next} {} bytes", segment.len())),
    }
}

fn tcp(segment: &[u8], (src, dst, whole): Below<'_>) -> String {
    const FLAGS: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let long = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
    let mut text = format!("tcp {} > {}", word(segment, 0), word(segment, 2));
    let set = (0..8).filter(|bit| segment[13] >> bit & 1 == 1);
    for bit in set {
        let _ = write!(text, " {}", FLAGS[bit]);
    }
    let _ = write!(text, " seq {:#010x}", long(4));
    if long(8) != 0 {
        let _ = write!(text, " ack {:#010x}", long(8));
    }
    let _ = write!(text, " win {}", word(segment, 14));
    differs(&mut text, "urgent", word(segment, 18), 0);
    let header = usize::from(segment[12] >> 4) * 4;
    differs(&mut text, "doff", header / 4, 5);
    if header >= 20 && segment.len() > header {
        let _ = write!(text, " +{}", segment.len() - header);
    }
    let sum = checksum::transport_holds(src, dst, 6, segment);
    text.push_str(match (whole, sum) {
        (false, _) => "",
        (true, true) => " sum ok",
        (true, false) => " sum WRONG",
    });
    text
}

/// Adds a field that is not as always.
fn differs<T: PartialEq + std::fmt::Display>(text: &mut String, name: &str, is: T, usual: T) {
    if is != usual {
        let _ = write!(text, " {name} {is}");
    }
}

fn v4(octets: &[u8]) -> Ipv4Addr {
    let octets: [u8; 4] = octets.try_into().unwrap();
    octets.into()
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn mac(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    hex.join(":")
}

#[cfg(test)]
mod tests {
    use super::describe;
    use crate::support::packet::*;

    #[test]
    fn a_packet_in_words() {
        let syn = eth().vlan(10).ipv4().dscp(46).tcp(40000, 80).syn().data(b"abc").pad(66).bytes();
        assert_eq!(
            describe(&syn),
            "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 | vlan 10 | \
             ipv4 198.51.100.7 > 192.0.2.10 ttl 61 len 43 dscp 46 id 258 sum ok | \
             tcp 40000 > 80 SYN seq 0x11223344 win 64240 +3 sum ok | after the packet 5 bytes"
        );
        let six = eth().ipv6().ext(AUTH).frag6(0, false).tcp(1, 2).flags(FIN | ACK).bytes();
        assert_eq!(
            describe(&six).split(" | ").skip(2).collect::<Vec<_>>(),
            ["ext 51", "ext 44 offset 0", "tcp 1 > 2 FIN ACK seq 0x11223344 win 64240 sum ok"]
        );
        assert!(describe(&eth().ipv4().sum(1).tcp(1, 2).sum(1).bytes()).contains("sum WRONG"));
        assert_eq!(describe(&[]), "nothing");
    }
}
