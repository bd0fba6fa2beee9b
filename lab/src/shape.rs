// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An outgoing interface as a bottleneck: a token bucket in front of a queue that is counted in packets,
//! as the queue of a network card is.
//!
//! The interface must be without segmentation offload ([`NetworkOptions::segmentation`]): else one
//! packet in the queue is up to 64 KB.
//!
//! [`NetworkOptions::segmentation`]: crate::NetworkOptions

use crate::error::{LabError, Result};
use crate::topology;

/// Bytes that go out at once, of the server's interface.
pub(crate) const BURST_BYTES: u64 = 6_000;
/// A packet as the kernel counts it, for the limit in bytes that the token bucket wants besides.
const FRAME_BYTES: u64 = 1_514;

/// How narrow the interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaping {
    /// Bits per second, Ethernet headers included; at least 100,000.
    pub bits_per_second: u64,
    /// Packets that its queue holds, at least 1.
    pub queue: u32,
}

/// What a narrow interface has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapedCounts {
    /// Bytes that went out.
    pub bytes: u64,
    /// Packets that went out.
    pub packets: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
}

/// A narrow interface; wide again by drop.
#[derive(Debug)]
pub struct Shaped {
    net: String,
    device: String,
}

/// Narrows an interface in the namespace that lies at `net`; `burst` bytes go out at once.
pub(crate) fn apply(
    net: String,
    device: &str,
    (shaping, burst): (&Shaping, u64),
) -> Result<Shaped> {
    let Shaping { bits_per_second: rate, queue } = *shaping;
    if rate < 100_000 || queue == 0 {
        return Err(LabError::Plan(format!("an interface of {rate} bit/s with {queue} packets")));
    }
    let limit = u64::from(queue) * FRAME_BYTES;
    // The queue that comes with the bucket counts bytes; one with a handle of its own replaces it.
    let batch = format!(
        "qdisc add dev {device} root handle 1: tbf rate {rate}bit burst {burst} limit {limit}\n\
         qdisc replace dev {device} parent 1:1 handle 10: pfifo limit {queue}\n"
    );
    let shaped = Shaped { net, device: device.to_owned() };
    topology::within(&shaped.net, &["tc", "-batch", "-"], &batch)?;
    // What was silently not taken would measure nothing.
    shaped.dropped()?;
    Ok(shaped)
}

impl Shaped {
    /// Packets that found the queue full.
    ///
    /// # Errors
    /// When the queue is not there.
    pub fn dropped(&self) -> Result<u64> {
        Ok(self.counts()?.dropped)
    }

    /// The same as a share of all packets that came to it.
    ///
    /// # Errors
    /// When the queue is not there.
    pub fn dropped_share(&self) -> Result<f64> {
        let ShapedCounts { packets, dropped, .. } = self.counts()?;
        Ok(dropped as f64 / (packets + dropped).max(1) as f64)
    }

    /// All that it has counted.
    ///
    /// # Errors
    /// When the queue is not there.
    pub fn counts(&self) -> Result<ShapedCounts> {
        let command = ["tc", "-s", "-j", "qdisc", "show", "dev", &self.device];
        let text = topology::within(&self.net, &command, "")?;
        let missing = |what: &str| LabError::Missing(format!("{what} in {text}"));
        let all: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| missing(&e.to_string()))?;
        let rows = all.as_array().into_iter().flatten();
        let queue = rows.into_iter().find(|row| row["kind"] == "pfifo");
        let number = |name: &str| {
            queue.and_then(|row| row[name].as_u64()).ok_or_else(|| missing("a pfifo queue"))
        };
        Ok(ShapedCounts {
            bytes: number("bytes")?,
            packets: number("packets")?,
            dropped: number("drops")?,
        })
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        // Gone with the namespace otherwise.
        let command = ["tc", "qdisc", "del", "dev", &self.device, "root"];
        let _ = topology::within(&self.net, &command, "");
    }
}
