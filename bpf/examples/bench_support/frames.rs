// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames of 54 bytes: Ethernet, IPv4, TCP, no options, no payload.

use std::net::Ipv4Addr;

/// Bytes of a frame.
pub const FRAME: usize = 54;
/// A frame.
pub type Frame = [u8; FRAME];
/// Address of the receiving interface in every topology.
pub const MAC_SERVER: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Nobody's address: an answer to it ends where it first arrives.
pub const MAC_NOBODY: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// TCP flags.
pub const SYN: u8 = 0x02;
/// TCP flags.
pub const ACK: u8 = 0x10;

const IP: usize = 14;
const TCP: usize = 34;
const PROTO_TCP: u8 = 6;

/// Who talks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
    pub sport: u16,
    pub dport: u16,
}

impl Tuple {
    /// The way back.
    pub const fn reverse(self) -> Self {
        Self { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport }
    }
}

/// A segment without payload, both checksums right.
pub fn segment(tuple: &Tuple, flags: u8, seq: u32, ack: u32) -> Frame {
    let mut frame = bare(tuple, flags, seq, ack);
    let (ip, tcp) = sums(&frame);
    frame[IP + 10..IP + 12].copy_from_slice(&finish(ip).to_ne_bytes());
    frame[TCP + 16..TCP + 18].copy_from_slice(&finish(tcp).to_ne_bytes());
    frame
}

/// The same with zero for both checksums.
pub fn bare(tuple: &Tuple, flags: u8, seq: u32, ack: u32) -> Frame {
    let mut frame = [0; FRAME];
    let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAC_SERVER);
    put(6, &MAC_NOBODY);
    put(12, &[8, 0]);
    put(IP, &[0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, PROTO_TCP]);
    put(IP + 12, &tuple.src.octets());
    put(IP + 16, &tuple.dst.octets());
    put(TCP, &tuple.sport.to_be_bytes());
    put(TCP + 2, &tuple.dport.to_be_bytes());
    put(TCP + 4, &seq.to_be_bytes());
    put(TCP + 8, &ack.to_be_bytes());
    put(TCP + 12, &[0x50, flags, 0xff, 0xff]);
    frame
}

/// A datagram as long as a segment, without a checksum.
pub fn datagram(tuple: &Tuple) -> Frame {
    let mut frame = bare(tuple, 0, 0, 0);
    frame[IP + 9] = 17;
    frame[TCP + 4..].fill(0);
    frame[TCP + 5] = (FRAME - TCP) as u8;
    let (ip, _) = sums(&frame);
    frame[IP + 10..IP + 12].copy_from_slice(&finish(ip).to_ne_bytes());
    frame
}

/// Sums of the IP header, and of the TCP header with its pseudo header, in the order of the
/// machine, not folded.
pub fn sums(frame: &Frame) -> (u32, u32) {
    let ip = halves(&frame[IP..TCP]);
    let length = (FRAME - TCP) as u16;
    let pseudo = halves(&frame[IP + 12..TCP])
        + u32::from(u16::from(PROTO_TCP).to_be())
        + u32::from(length.to_be());
    (ip, pseudo + halves(&frame[TCP..]))
}

fn halves(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_ne_bytes([pair[0], pair[1]]))).sum()
}

fn finish(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}
