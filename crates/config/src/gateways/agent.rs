// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The key `agent_check` of a service: HAProxy in front of it asks how many requests it may send at once.

use super::Endpoint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most balancers that share a limit.
pub const BALANCERS_MAX: u16 = 1024;

/// Where HAProxy's agent-check asks, and how the limit is divided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentCheckConfig {
    /// Address and port: `agent-addr` and `agent-port` of the server line.
    pub listen: Endpoint,
    /// How many HAProxies, or backends of them, ask: each is told its part of the limit.
    #[serde(default = "AgentCheckConfig::balancers_default")]
    #[schemars(range(min = 1, max = BALANCERS_MAX))]
    pub balancers: u16,
    /// The `maxconn` of the server line. It is told while there is no limit, and is never exceeded; 0:
    /// the line has none.
    #[serde(default)]
    pub maxconn: u32,
    /// Accepts an address that other hosts reach. Whoever reaches it can read the limit, and nothing else.
    #[serde(default)]
    pub insecure: bool,
}

impl AgentCheckConfig {
    const fn balancers_default() -> u16 {
        1
    }

    /// The `maxconn` that one of the balancers is told, with this limit for all of them together.
    #[must_use]
    pub fn told(&self, limit: Option<u64>) -> u32 {
        let Some(limit) = limit else { return self.maxconn };
        // 0 would be no limit at all.
        let part =
            u32::try_from(limit / u64::from(self.balancers.max(1))).unwrap_or(u32::MAX).max(1);
        if self.maxconn == 0 { part } else { part.min(self.maxconn) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_balancer_is_told_its_part_and_never_no_limit() {
        for (balancers, maxconn, limit, told) in [
            (1, 0, None, 0),
            (1, 500, None, 500),
            (1, 0, Some(40), 40),
            (3, 0, Some(40), 13),
            (3, 0, Some(2), 1),
            (1, 0, Some(0), 1),
            (1, 30, Some(40), 30),
            (1, 0, Some(u64::MAX), u32::MAX),
        ] {
            let listen = "127.0.0.1:9490".parse().unwrap();
            let config = AgentCheckConfig { listen, balancers, maxconn, insecure: false };
            assert_eq!(config.told(limit), told, "{limit:?} by {balancers}, at most {maxconn}");
        }
    }
}
