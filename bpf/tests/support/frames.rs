// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames at random: put together header by header with a liking for what is at the edge, then
//! often damaged.

use super::packet::*;
use super::random::Dice;

/// Longest payload that is put behind a header, in bytes.
const PAYLOAD_MAX: usize = 80;
/// Most bytes that one damage changes.
const DAMAGE_MAX: usize = 4;

const V4: [[u8; 4]; 12] = [
    [198, 51, 100, 7],
    [198, 51, 100, 200],
    [203, 0, 113, 77],
    [10, 1, 2, 3],
    [192, 0, 2, 10],
    [192, 0, 2, 11],
    [127, 0, 0, 1],
    [0, 0, 0, 0],
    [224, 0, 0, 1],
    [255, 255, 255, 255],
    [223, 255, 255, 255],
    [1, 0, 0, 0],
];
const V6: [&str; 10] = [
    "2001:db8:c::7",
    "2001:db8:c::200",
    "2001:db8:aaaa::1",
    "2001:db8::10",
    "2001:db8::11",
    "::1",
    "::",
    "ff02::1",
    "fe80::1",
    "::ffff:192.0.2.10",
];
const PORTS: [u16; 7] = [80, 81, 443, 8080, 22, 9999, 0];
const FLAGS: [u8; 12] = [
    SYN,
    SYN | ECE | CWR,
    SYN | PSH | URG,
    SYN | ACK,
    SYN | FIN,
    SYN | RST,
    ACK,
    PSH | ACK,
    FIN | ACK,
    RST,
    0,
    0xff,
];
const EXTENSIONS: [u8; 9] =
    [HOP_BY_HOP, ROUTING, DEST_OPTIONS, DEST_OPTIONS, AUTH, FRAGMENT, MOBILITY, ESP, NO_NEXT];

/// A frame: well made, or made and then damaged, or noise.
pub fn frame(dice: &mut Dice) -> Vec<u8> {
    if dice.one_in(50) {
        return noise(dice);
    }
    if dice.one_in(3000) {
        return merged(dice);
    }
    let mut frame = made(dice).bytes();
    match dice.below(3) {
        0 => damage(&mut frame, dice),
        1 if dice.one_in(4) => frame.truncate(dice.below(frame.len() + 1)),
        _ => {}
    }
    frame
}

/// Random bytes behind the addresses and a likely ethertype.
fn noise(dice: &mut Dice) -> Vec<u8> {
    let length = dice.below(120);
    let mut frame = dice.bytes(length);
    if let Some(ethertype) = frame.get_mut(12..14) {
        let known: [u16; 4] = [0x0800, 0x86dd, 0x8100, 0x88a8];
        ethertype.copy_from_slice(&dice.pick(&known).to_be_bytes());
    }
    if let Some(first) = frame.get_mut(14) {
        *first = *dice.pick(&[0x45, 0x46, 0x60, 0x4f]);
    }
    frame
}

/// What the kernel merges beyond 64 KiB has a length of zero – and what is no longer must not.
fn merged(dice: &mut Dice) -> Vec<u8> {
    let payload = vec![0; 65_460 + dice.below(120)];
    let packet = if dice.one_in(2) { eth().ipv4().tot_len(0) } else { eth().ipv6().payload_len(0) };
    packet.tcp(40_000, 80).flags(*dice.pick(&[SYN, ACK])).data(&payload).bytes()
}

fn made(dice: &mut Dice) -> Packet {
    let mut packet = eth();
    if dice.one_in(40) {
        packet = packet.mac(CLIENT_MAC, [0xff; 6]);
    }
    for _ in 0..*dice.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3]) {
        let id = dice.u32() as u16;
        packet = if dice.one_in(3) { packet.svlan(id) } else { packet.vlan(id) };
    }
    packet = if dice.one_in(2) { ipv4(packet, dice) } else { ipv6(packet, dice) };
    packet = if dice.one_in(20) { other(packet, dice) } else { tcp(packet, dice) };
    let payload = if dice.one_in(3) { dice.below(PAYLOAD_MAX) } else { 0 };
    packet = packet.data(&dice.bytes(payload));
    if dice.one_in(4) { packet.pad(54 + dice.below(40)) } else { packet }
}

fn ipv4(packet: Packet, dice: &mut Dice) -> Packet {
    let to = if dice.one_in(4) { *dice.pick(&V4) } else { SERVER4.octets() };
    let mut packet = packet.ipv4().to4(to).dscp(*dice.pick(&[0, 0, 46, 63]));
    packet = match dice.below(3) {
        0 => packet.from4(dice.u32().to_be_bytes()),
        1 => packet.from4(*dice.pick(&V4)),
        _ => packet,
    };
    if dice.one_in(5) {
        let length = 1 + dice.below(40);
        packet = packet.options(&dice.bytes(length));
    }
    match dice.below(24) {
        0 => packet.frag4(0, true),
        1 => packet.frag4(8 * (1 + dice.below(8191)) as u16, dice.one_in(2)),
        2 => packet.ihl(dice.u8() & 15),
        3 => packet.tot_len(dice.below(120) as u16),
        4 => packet.df().id(dice.u32() as u16),
        5 => packet.version(dice.u8() & 15),
        _ => packet,
    }
}

fn ipv6(packet: Packet, dice: &mut Dice) -> Packet {
    let server = SERVER6.to_string();
    let to = if dice.one_in(4) { *dice.pick(&V6) } else { &server };
    let mut packet = packet.ipv6().to6(to).dscp(*dice.pick(&[0, 0, 46, 63]));
    if dice.one_in(2) {
        packet = packet.from6(V6[dice.below(V6.len())]);
    }
    packet = match dice.below(24) {
        0 => packet.payload_len(dice.below(120) as u16),
        1 => packet.version(dice.u8() & 15),
        2 => packet.next(dice.u8()),
        _ => packet,
    };
    let count = *dice.pick(&[0, 0, 0, 0, 1, 2, 3, 8, 9]);
    for _ in 0..count {
        // long rows of what can be followed, or hardly any would reach its end
        let kinds = if count < 8 { &EXTENSIONS[..] } else { &EXTENSIONS[..5] };
        packet = extension(packet, *dice.pick(kinds), dice);
    }
    packet
}

fn extension(packet: Packet, kind: u8, dice: &mut Dice) -> Packet {
    let packet = match kind {
        FRAGMENT => {
            let offset = if dice.one_in(2) { 0 } else { dice.u32() as u16 };
            packet.frag6(offset, dice.one_in(2))
        }
        AUTH => {
            let words = dice.below(6);
            packet.ext_with(AUTH, &vec![0; 6 + 4 * words])
        }
        _ => {
            let mut body = vec![0; 6 + 8 * dice.below(4)];
            // of a routing header: the segments that are left
            body[1] = if dice.one_in(4) { dice.u8() } else { 0 };
            packet.ext_with(kind, &body)
        }
    };
    match dice.below(40) {
        0 => packet.ext_len(dice.u8()),
        1 => packet.next(dice.u8()),
        _ => packet,
    }
}

fn tcp(packet: Packet, dice: &mut Dice) -> Packet {
    let to = if dice.one_in(3) { *dice.pick(&PORTS) } else { 80 };
    // few sequence numbers: some SYNs come again
    let seq = if dice.one_in(2) { SEQ } else { dice.u32() };
    let from = if dice.one_in(2) { 40_000 } else { 42_000 + (dice.u32() & 0x3fff) as u16 };
    let flags = if dice.one_in(3) { *dice.pick(&FLAGS) } else { SYN };
    let mut packet = packet.tcp(from, to).flags(flags).seq(seq);
    if dice.one_in(4) {
        packet = packet.options(&tcp_options(dice));
    }
    match dice.below(20) {
        0 => packet.doff(dice.u8() & 15),
        1 => packet.ack_field(dice.u32()),
        2 => packet.nonce(dice.u8() & 15),
        _ => packet,
    }
}

/// Noise, or a time stamp behind some options, sometimes cut.
fn tcp_options(dice: &mut Dice) -> Vec<u8> {
    let length = 1 + dice.below(40);
    if dice.one_in(2) {
        return dice.bytes(length);
    }
    let mut options = Vec::new();
    for _ in 0..dice.below(4) {
        let known: [&[u8]; 4] = [&[1], &[2, 4, 5, 180], &[4, 2], &[3, 3, 7]];
        let option: &&[u8] = dice.pick(&known);
        options.extend_from_slice(option);
    }
    options.extend_from_slice(&[8, if dice.one_in(8) { dice.u8() } else { 10 }]);
    options.extend(dice.bytes(8));
    let kept = if dice.one_in(8) { dice.below(options.len()) + 1 } else { options.len() };
    options.truncate(kept);
    options
}

fn other(packet: Packet, dice: &mut Dice) -> Packet {
    match dice.below(4) {
        0 => packet.udp(40_000, 80),
        1 => packet.icmp(8, 0),
        2 => packet.icmp6(135, 0),
        _ => {
            let number = dice.u8();
            packet.proto(number, &[0; 24])
        }
    }
}

/// Changes some bytes, most of them in the headers.
fn damage(frame: &mut [u8], dice: &mut Dice) {
    if frame.is_empty() {
        return;
    }
    for _ in 0..1 + dice.below(DAMAGE_MAX) {
        let reach = if dice.one_in(3) { frame.len() } else { frame.len().min(60) };
        let at = dice.below(reach);
        frame[at] = match dice.below(4) {
            0 => dice.u8(),
            1 => *dice.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => frame[at].wrapping_add(*dice.pick(&[1, 0xff])),
            _ => frame[at] ^ (1 << dice.below(8)),
        };
    }
}
