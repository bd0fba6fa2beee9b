// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Datagrams of one size at a steady mean rate, their distances uniformly distributed (papers/netdraino.txt,
//! section 7.1).

use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use tidegate_units::{Clock, MonotonicClock, Nanos, Random};
use tidegate_workload::Rng;

/// Bytes of the heads of IPv4 and UDP.
const HEADS: usize = 28;
/// A packet on Ethernet.
const BYTES_MAX: usize = 1_500;
/// Most per second: beyond it the sender would be the bottleneck.
const RATE_MAX: f64 = 20_000.0;

/// A stream of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Datagrams {
    /// From which address.
    pub(crate) from: Ipv4Addr,
    /// To whom.
    pub(crate) to: SocketAddrV4,
    /// How many per second on average.
    pub(crate) rate: f64,
    /// Bytes of each IP packet.
    pub(crate) bytes: usize,
    /// Seed of the distances.
    pub(crate) seed: u64,
}

impl Datagrams {
    /// As an argument of the helper.
    pub(crate) fn json(&self) -> Result<String> {
        let Self { rate, bytes, .. } = self;
        let fits = *rate > 0.0 && *rate <= RATE_MAX && (HEADS..=BYTES_MAX).contains(bytes);
        if !fits {
            return Err(LabError::Plan(format!("{rate} datagrams/s of {bytes} bytes")));
        }
        serde_json::to_string(self).map_err(|e| LabError::Plan(e.to_string()))
    }
}

/// Sends until killed.
pub(crate) fn main(datagrams: &Datagrams) -> std::io::Result<()> {
    let socket = UdpSocket::bind(SocketAddrV4::new(datagrams.from, 0))?;
    let payload = vec![0; datagrams.bytes.saturating_sub(HEADS)];
    let mut rng = Rng::new(datagrams.seed, 0);
    let mut due = MonotonicClock.now();
    // Ends with the process: the lab kills it.
    loop {
        due += distance(datagrams.rate, &mut rng);
        std::thread::sleep((due - MonotonicClock.now()).into());
        // A full queue of the device loses a packet, as a wire does.
        let _ = socket.send_to(&payload, datagrams.to);
    }
}

/// Uniform between nothing and twice the mean.
fn distance(rate: f64, rng: &mut Rng) -> Nanos {
    Nanos::from_secs_f64(2.0 * rng.next_f64() / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagrams(rate: f64, bytes: usize) -> Datagrams {
        let to = "10.64.5.2:80".parse().unwrap();
        Datagrams { from: Ipv4Addr::new(10, 16, 255, 255), to, rate, bytes, seed: 1 }
    }

    #[test]
    fn a_stream_has_a_rate_and_a_size_that_can_be_sent() {
        assert!(datagrams(250.0, 1_000).json().is_ok());
        for (rate, bytes) in
            [(0.0, 1_000), (f64::NAN, 1_000), (1e6, 1_000), (250.0, 27), (250.0, 1_501)]
        {
            assert!(datagrams(rate, bytes).json().is_err(), "{rate} {bytes}");
        }
    }

    #[test]
    fn distances_have_the_mean_that_is_wanted() {
        let mut rng = Rng::new(7, 0);
        let all: Vec<f64> = (0..10_000).map(|_| distance(250.0, &mut rng).as_secs_f64()).collect();
        assert!(all.iter().all(|gap| (0.0..=0.008).contains(gap)));
        let mean = all.iter().sum::<f64>() / 1e4;
        assert!((mean - 0.004).abs() < 1e-4, "{mean}");
    }
}
