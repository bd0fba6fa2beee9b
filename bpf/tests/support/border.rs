// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets that come from outside, and what they are behind a border; a second implementation of that.

use super::packet::{Packet, eth, raw, syn4, syn6};

/// Bits of DSCP that are marks in these cases: 2, 4 and 6 say something.
pub const MARKS: u8 = 6;
/// The option of IPv4 that is cleared.
const OPTION: u8 = 158;
const NOP: u8 = 1;
const OPTIONS_MAX: usize = 40;

/// A datagram with these options.
fn with(options: &[u8]) -> Packet {
    eth().ipv4().options(options).udp(9, 80).data(b"abc")
}

/// An option of this kind and of so many bytes in all.
fn option(kind: u8, length: u8) -> Vec<u8> {
    let mut option = vec![kind, length];
    option.extend((2..length).map(|n| 0xf0 | n));
    option
}

/// What a packet is, before and after.
pub type Case = (&'static str, Packet, Packet);

fn marks() -> Vec<Case> {
    let v4 = || eth().ipv4();
    let on = |packet: Packet, dscp: u8| packet.dscp(dscp).ecn(1).tcp(40_000, 80).syn();
    let same = |what, packet: Packet| (what, packet.clone(), packet);
    vec![
        ("a router is congested", on(v4(), 2), on(v4(), 0)),
        ("a server is overloaded", on(v4(), 4), on(v4(), 0)),
        ("both", on(v4(), 6), on(v4(), 0)),
        ("behind a VLAN tag", on(eth().vlan(7).ipv4(), 2), on(eth().vlan(7).ipv4(), 0)),
        ("behind two", on(eth().svlan(7).vlan(8).ipv4(), 4), on(eth().svlan(7).vlan(8).ipv4(), 0)),
        (
            "a fragment",
            v4().dscp(2).frag4(64, true).udp(9, 80),
            v4().dscp(0).frag4(64, true).udp(9, 80),
        ),
        ("no protocol that is known", v4().dscp(2).proto(132, &[0; 9]), v4().proto(132, &[0; 9])),
        same("nothing", on(v4(), 0)),
        same("a class with the bit of a mark", on(v4(), 46)),
        same("a class beside a mark", on(v4(), 3)),
        same("ECN alone", v4().ecn(3).udp(9, 80)),
        same("IPv6", eth().ipv6().dscp(2).udp(9, 80)),
        same("behind three tags", on(eth().svlan(6).svlan(7).vlan(8).ipv4(), 2)),
        same("another version", on(v4().version(5), 2)),
        same("ARP", eth().arp()),
        same("a frame that ends in the header", on(v4(), 2).cut(33)),
        same("a frame that ends in its tag", on(eth().vlan(7).ipv4(), 2).cut(15)),
        same("bytes", raw(&[0x45; 60])),
    ]
}

fn options() -> Vec<Case> {
    let nops = |count: usize| vec![NOP; count];
    let cleared = |before: Vec<u8>, after: Vec<u8>| (with(&before), with(&after));
    let same = |options: Vec<u8>| cleared(options.clone(), options);
    let timestamp = option(68, 12);
    let cases = [
        ("one entry", cleared(option(OPTION, 12), nops(12))),
        ("an odd length", cleared(option(OPTION, 3), vec![NOP, NOP, NOP, 0])),
        ("no more than its head", cleared(option(OPTION, 2), vec![NOP, NOP, 0, 0])),
        ("all that there is room for", cleared(option(OPTION, 40), nops(40))),
        (
            "behind another one",
            cleared(
                [&timestamp[..], &option(OPTION, 8)].concat(),
                [&timestamp[..], &nops(8)].concat(),
            ),
        ),
        (
            "behind NOPs, at an odd place",
            cleared([&nops(3)[..], &option(OPTION, 5)].concat(), nops(8)),
        ),
        ("two", cleared([option(OPTION, 7), option(OPTION, 9)].concat(), nops(16))),
        (
            "before another one",
            cleared(
                [&option(OPTION, 8)[..], &timestamp].concat(),
                [&nops(8)[..], &timestamp].concat(),
            ),
        ),
        ("a length beyond the header", cleared(vec![OPTION, 200, 9, 9], nops(4))),
        ("another one", same(option(159, 12))),
        ("one whose content looks like it", same([68, 8, OPTION, 4, OPTION, 4, OPTION, 4].into())),
        ("behind the end", same([0, 0, 0, 0, OPTION, 4, 9, 9].into())),
        ("behind a length of 1", same([7, 1, OPTION, 4, 9, 9, 9, 9].into())),
        ("a length of 0", same([OPTION, 0, 9, 9].into())),
        ("as the last byte", same([NOP, NOP, NOP, OPTION].into())),
    ];
    let mut cases: Vec<Case> =
        cases.into_iter().map(|(what, (before, after))| (what, before, after)).collect();
    let both = |dscp, options: &[u8]| eth().ipv4().dscp(dscp).options(options).tcp(9, 80).syn();
    cases.push(("a mark and an option", both(2, &option(OPTION, 12)), both(0, &nops(12))));
    cases.push(("an option beside a class", both(46, &option(OPTION, 12)), both(46, &nops(12))));
    cases.push((
        "options of TCP",
        syn4().options(&[158, 4, 9, 9]),
        syn4().options(&[158, 4, 9, 9]),
    ));
    cases.push(("a header of IPv6", syn6(), syn6()));
    let cut = with(&option(OPTION, 12)).cut(40);
    cases.push(("a frame that ends in its options", cut.clone(), cut));
    cases
}

/// All of them.
pub fn cases() -> Vec<Case> {
    [marks(), options()].concat()
}

/// Where a header of IPv4 begins, at most two tags behind that of Ethernet.
fn begins(frame: &[u8]) -> Option<usize> {
    let kind = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let mut at = 12;
    for _ in 0..3 {
        match kind(at)? {
            0x8100 | 0x88a8 => at += 4,
            0x0800 => return Some(at + 2),
            _ => return None,
        }
    }
    None
}

/// The bytes of options, by the length of each.
fn without_option(options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        if kind == NOP {
            at += 1;
            continue;
        }
        let length = options.get(at + 1).copied().unwrap_or(0);
        if kind == 0 || length < 2 {
            return;
        }
        let end = (at + usize::from(length)).min(options.len());
        if kind == OPTION {
            options[at..end].fill(NOP);
        }
        at = end;
    }
}

/// What a frame is behind the border.
pub fn behind(frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    let Some(at) = begins(frame) else { return out };
    let Some(fixed) = frame.get(at..at + 20).filter(|ip| ip[0] >> 4 == 4) else { return out };
    let options = (usize::from(fixed[0] & 15) * 4).saturating_sub(20);
    assert!(options <= OPTIONS_MAX);
    if frame.len() < at + 20 + options {
        return out;
    }
    let header = &mut out[at..at + 20 + options];
    let dscp = header[1] >> 2;
    if dscp & !MARKS == 0 {
        header[1] &= 3;
    }
    without_option(&mut header[20..]);
    let before = &frame[at..at + 20 + options];
    if before == header {
        return out;
    }
    // RFC 1624, equation 3.
    let word = |bytes: &[u8]| u64::from(bytes[0]) << 8 | u64::from(bytes[1]);
    let changes = before.chunks(2).zip(header.chunks(2));
    let changes: u64 = changes.map(|(old, new)| (0xffff ^ word(old)) + word(new)).sum();
    let mut sum = (0xffff ^ word(&before[10..])) + changes;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(0xffff ^ sum as u16).to_be_bytes());
    out
}
