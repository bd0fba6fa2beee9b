// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SYNs from addresses that nobody has: raw packets in the client's namespace, at a steady rate.

use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos, Random};
use tidegate_workload::Rng;

/// The prefix of the spoofed senders, which leads to the client's namespace and ends there in
/// silence: nobody answers the server's SYN-ACKs, not even by RST.
pub(crate) const SPOOFED: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 32, 0, 0), 11);
/// Most SYNs per second: beyond it the sender would be the bottleneck.
const RATE_MAX: f64 = 100_000.0;
/// SYNs are sent in batches, one each so often.
const BATCH: Duration = Duration::from_millis(1);
/// IPv4's protocol number of TCP, and the lengths of both heads.
const TCP: u8 = 6;
const IP_BYTES: usize = 20;
const SYN_BYTES: usize = IP_BYTES + 24;
/// The MSS option of the SYN.
const MSS: [u8; 4] = [2, 4, 5, 0xb4];

/// A flood.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flood {
    /// Whom it meets.
    pub target: SocketAddrV4,
    /// SYNs per second, at most 100,000.
    pub rate: f64,
    /// Seed of senders, ports and sequence numbers.
    pub seed: u64,
}

impl Flood {
    /// As an argument of the helper.
    pub(crate) fn json(&self) -> Result<String> {
        if !(0.0..=RATE_MAX).contains(&self.rate) {
            return Err(LabError::Plan(format!("a flood of {}/s, not 0 to {RATE_MAX}", self.rate)));
        }
        serde_json::to_string(self).map_err(|e| LabError::Plan(e.to_string()))
    }
}

/// Sends until killed.
pub(crate) fn main(flood: &Flood) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP))?;
    socket.set_header_included_v4(true)?;
    let to = SocketAddr::V4(flood.target).into();
    let mut rng = Rng::new(flood.seed, 0);
    let start = MonotonicClock.now();
    let mut sent = 0_u64;
    // Ends with the process: the lab kills it.
    loop {
        let elapsed: Nanos = MonotonicClock.now() - start;
        let due = (elapsed.as_secs_f64() * flood.rate) as u64;
        while sent < due {
            // A full queue of the device loses a packet, as a wire does.
            let _ = socket.send_to(&syn(flood.target, &mut rng), &to);
            sent += 1;
        }
        std::thread::sleep(BATCH);
    }
}

/// A SYN from a sender drawn from the prefix.
fn syn(target: SocketAddrV4, rng: &mut Rng) -> [u8; SYN_BYTES] {
    let draw = rng.next_u64();
    let host = (draw as u32) & (u32::MAX >> SPOOFED.1);
    let from = (SPOOFED.0.to_bits() | host).to_be_bytes();
    let to = target.ip().octets();
    let port = 1_024 + ((draw >> 32) as u16 % 64_000);
    let mut packet = [0; SYN_BYTES];
    let (ip, tcp) = packet.split_at_mut(IP_BYTES);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(SYN_BYTES as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = TCP;
    ip[12..16].copy_from_slice(&from);
    ip[16..20].copy_from_slice(&to);
    let sum = checksum(&[ip]);
    ip[10..12].copy_from_slice(&sum);
    tcp[0..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&target.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&(rng.next_u64() as u32).to_be_bytes());
    tcp[12] = 0x60;
    tcp[13] = 2;
    tcp[14..16].copy_from_slice(&0xfaf0_u16.to_be_bytes());
    tcp[20..24].copy_from_slice(&MSS);
    let length = [0, TCP, 0, (SYN_BYTES - IP_BYTES) as u8];
    let sum = checksum(&[&from, &to, &length, tcp]);
    tcp[16..18].copy_from_slice(&sum);
    packet
}

/// The Internet's checksum (RFC 1071) over parts of even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    // Two rounds carry everything: the sum is below 2^22.
    for _ in 0..2 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, and a packet whose checksums hold: over it with them comes 0.
    #[test]
    fn checksums_hold() {
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), [0x22, 0x0d]);
        let target: SocketAddrV4 = "10.2.0.2:80".parse().unwrap();
        let mut rng = Rng::new(1, 0);
        for _ in 0..100 {
            let packet = syn(target, &mut rng);
            let (ip, tcp) = packet.split_at(IP_BYTES);
            assert_eq!(checksum(&[ip]), [0, 0]);
            assert_eq!(checksum(&[&ip[12..20], &[0, TCP, 0, 24], tcp]), [0, 0]);
            assert_eq!((ip[12], ip[13] & 0xe0, tcp[13]), (10, 32, 2));
            assert_eq!(tcp[2..4], [0, 80]);
        }
    }

    #[test]
    fn a_flood_has_a_rate_that_can_be_sent() {
        let flood = |rate| Flood { target: "10.2.0.2:80".parse().unwrap(), rate, seed: 1 };
        assert!(flood(5_000.0).json().is_ok());
        assert!(flood(1e6).json().is_err() && flood(f64::NAN).json().is_err());
    }
}
