// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments in words.

use super::super::decode::describe;
use super::{CLIENT_ISN, SERVER_ISN, Seq};
use std::fmt::Write as _;

/// A segment as it was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub ports: (u16, u16),
    pub seq: Seq,
    pub ack: Seq,
    pub flags: u8,
    /// Bytes of the TCP header.
    pub header: usize,
    pub stamps: Option<(u32, u32)>,
    pub data: Vec<u8>,
}

/// Reads a frame that the tests made, or that must be as regular as theirs.
pub fn read(frame: &[u8]) -> Said {
    let ip = 14 + tags(frame).len();
    let short = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let (mut tcp, end) = if frame[ip] >> 4 == 4 {
        (ip + usize::from(frame[ip] & 15) * 4, ip + short(ip + 2))
    } else {
        (ip + 40, ip + 40 + short(ip + 4))
    };
    if frame[ip] >> 4 == 6 && frame[ip + 6] != 6 {
        tcp += 8;
    }
    let long = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let header = usize::from(frame[tcp + 12] >> 4) * 4;
    let stamped = header == 32 && frame[tcp + 20..tcp + 24] == [1, 1, 8, 10];
    Said {
        ports: (short(tcp) as u16, short(tcp + 2) as u16),
        seq: Seq(long(tcp + 4)),
        ack: Seq(long(tcp + 8)),
        flags: frame[tcp + 13],
        header,
        stamps: stamped.then(|| (long(tcp + 24), long(tcp + 28))),
        data: frame[tcp + header..end].to_vec(),
    }
}

/// The VLAN tags of a frame.
pub fn tags(frame: &[u8]) -> &[u8] {
    let at = 12;
    let is_tag = |tag: &&[u8]| matches!(tag[..2], [0x81, 0] | [0x88, 0xa8]);
    let count = frame[at..].chunks_exact(4).take_while(is_tag).count();
    &frame[at..at + 4 * count]
}

fn flags(flags: u8) -> String {
    const FLAGS: [&str; 6] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
    let set: Vec<&str> = (0..6).filter(|bit| flags >> bit & 1 == 1).map(|bit| FLAGS[bit]).collect();
    set.join(" ")
}

/// A number as a distance from where its side began.
fn distance(number: Seq, from_client: bool) -> String {
    let (name, base) = if from_client { ('c', CLIENT_ISN) } else { ('s', SERVER_ISN) };
    format!("{name}{:+}", number.0.wrapping_sub(base.0) as i32)
}

/// The segment of a frame.
pub fn segment(frame: &[u8]) -> String {
    let said = read(frame);
    let client = said.ports.1 == 80;
    let tags = tags(frame).chunks_exact(4);
    let mut text: String = tags.map(|tag| format!("vlan {} ", tag[3])).collect();
    let _ = write!(text, "{} {}", flags(said.flags), distance(said.seq, client));
    if said.flags & 0x10 != 0 {
        let _ = write!(text, " ack {}", distance(said.ack, !client));
    }
    if let Some((value, echo)) = said.stamps {
        let _ = write!(text, " stamps {value} {echo}");
    }
    if !said.data.is_empty() {
        let line = String::from_utf8_lossy(&said.data);
        let line: String = line.lines().next().unwrap_or_default().chars().take(60).collect();
        let _ = write!(text, " +{} {line:?}", said.data.len());
    }
    text
}

/// A segment that we made: that its checksums add up, too.
pub fn answer(frame: &[u8], partial: bool) -> String {
    let words = describe(frame);
    let sums = words.matches("sum ok").count() + usize::from(words.contains("ipv6"));
    let text = segment(frame);
    match (partial, sums) {
        (false, 2) => text,
        (true, 1) if words.contains("sum WRONG") => format!("{text} (sum left to the device)"),
        _ => format!("{text} SUMS: {words}"),
    }
}
