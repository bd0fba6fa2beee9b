// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's outgoing interface as a bottleneck: a token bucket in front of a queue that is
//! counted in packets, as the queue of a network card is.
//!
//! The lab must be made without segmentation offload ([`NetworkOptions::segmentation`]): else one
//! packet in the queue is up to 64 KB.
//!
//! [`NetworkOptions::segmentation`]: crate::NetworkOptions

use crate::error::{LabError, Result};
use crate::topology::{self, Role, SERVER_INTERFACE};

/// Bytes that go out at once.
const BURST_BYTES: u64 = 6_000;
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

/// A narrow interface; wide again by drop.
#[derive(Debug)]
pub struct Shaped {
    id: String,
}

pub(crate) fn apply(id: &str, shaping: &Shaping) -> Result<Shaped> {
    let Shaping { bits_per_second: rate, queue } = *shaping;
    if rate < 100_000 || queue == 0 {
        return Err(LabError::Plan(format!("an interface of {rate} bit/s with {queue} packets")));
    }
    let limit = u64::from(queue) * FRAME_BYTES;
    // The queue that comes with the bucket counts bytes; one with a handle of its own replaces it.
    let batch = format!(
        "qdisc add dev {SERVER_INTERFACE} root handle 1: tbf rate {rate}bit burst {BURST_BYTES} \
         limit {limit}\n\
         qdisc replace dev {SERVER_INTERFACE} parent 1:1 handle 10: pfifo limit {queue}\n"
    );
    let shaped = Shaped { id: id.to_owned() };
    topology::inside(id, Role::Server, &["tc", "-batch", "-"], &batch)?;
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
        Ok(self.counts()?.1)
    }

    /// The same as a share of all packets that came to it.
    ///
    /// # Errors
    /// When the queue is not there.
    pub fn dropped_share(&self) -> Result<f64> {
        let (sent, dropped) = self.counts()?;
        Ok(dropped as f64 / (sent + dropped).max(1) as f64)
    }

    /// Packets that went out, and that found the queue full.
    fn counts(&self) -> Result<(u64, u64)> {
        let command = ["tc", "-s", "-j", "qdisc", "show", "dev", SERVER_INTERFACE];
        let text = topology::inside(&self.id, Role::Server, &command, "")?;
        let missing = |what: &str| LabError::Missing(format!("{what} in {text}"));
        let all: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| missing(&e.to_string()))?;
        let rows = all.as_array().into_iter().flatten();
        let queue = rows.into_iter().find(|row| row["kind"] == "pfifo");
        let number = |name: &str| queue.and_then(|row| row[name].as_u64());
        let both = number("packets").zip(number("drops"));
        both.ok_or_else(|| missing("a pfifo queue"))
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        // Gone with the namespace otherwise.
        let command = ["tc", "qdisc", "del", "dev", SERVER_INTERFACE, "root"];
        let _ = topology::inside(&self.id, Role::Server, &command, "");
    }
}
