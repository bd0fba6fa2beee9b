// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What limits cost on the wire: packets of S0's sessions with routers.

use super::{AGENTS, BGP, PEERS, Road, RoadHost};
use crate::error::Result;
use crate::server::nft;
use crate::topology;

/// The table that counts them.
const TABLE: &str = "tgcontrol";
/// Bytes of IP and TCP with a timestamp: what is longer carries data.
const HEADS: u32 = 52;

/// Packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlCounts {
    /// Packets from S0 and to it.
    pub packets: u64,
    /// Their bytes, Ethernet's head not included.
    pub bytes: u64,
    /// Of the packets those from S0 that carry data.
    pub said: u64,
    /// The same to S0.
    pub heard: u64,
}

/// Counts packets of sessions at S0; gone by drop.
#[derive(Debug)]
pub struct ControlMeter {
    net: String,
}

impl ControlMeter {
    /// What it has counted.
    ///
    /// # Errors
    /// When the rules are not there.
    pub fn counts(&self) -> Result<ControlCounts> {
        let counts = nft::counts_of(&self.net, TABLE)?;
        let at = |place: usize| counts.get(place).copied().unwrap_or_default();
        let ((heard, heard_bytes), (said, said_bytes)) = (at(0), at(2));
        Ok(ControlCounts {
            packets: heard + said,
            bytes: heard_bytes + said_bytes,
            said: at(3).0,
            heard: at(1).0,
        })
    }
}

impl Drop for ControlMeter {
    fn drop(&mut self) {
        nft::delete(&self.net, TABLE);
    }
}

impl Road<'_> {
    /// Counts the packets of S0's sessions with routers.
    ///
    /// # Errors
    /// What nft says.
    pub fn count_control(&self) -> Result<ControlMeter> {
        let net = self.net(RoadHost::S0);
        topology::within(&net, &["nft", "-f", "-"], &rules())?;
        let control = ControlMeter { net };
        control.counts()?;
        Ok(control)
    }
}

fn rules() -> String {
    let ports = format!("{{ {BGP}, {PEERS}, {AGENTS} }}");
    let chain = |hook: &str, side: &str| {
        format!(
            " chain {hook} {{\n  type filter hook {hook} priority 0; policy accept;\n  \
             tcp {side} {ports} counter\n  tcp {side} {ports} ip length > {HEADS} counter\n }}\n"
        )
    };
    let (heard, said) = (chain("input", "sport"), chain("output", "dport"));
    format!("table inet {TABLE} {{\n{heard}{said}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S0 begins all of its sessions.
    #[test]
    fn both_directions_are_counted() {
        let rules = rules();
        assert!(rules.contains("tcp sport { 179, 7416, 7417 } counter"), "{rules}");
        assert!(rules.contains("tcp dport { 179, 7416, 7417 } ip length > 52 counter"), "{rules}");
    }
}
