// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole connections to HAProxy's agent-check, of any bytes.

use tidegate_config::{Config, Registry, parse};
use tidegate_gate::UnboundAgents;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::{Canary, Mode};
use tidegate_units::Nanos;

const CONFIG: &str = "interfaces: [{name: lo}]
services:
  shop:
    mode: enforce
    listen: ['*:80']
    agent_check: {listen: '127.0.0.1:9490', balancers: 2, maxconn: 500}
";
/// What is told without a limit.
const MAXCONN: u64 = 500;
const BALANCERS: u64 = 2;
/// Seconds for which a limit holds that is not renewed.
const LEASE: u64 = 3;

/// The agent of one service, without its socket.
pub(crate) struct Harness {
    config: Config,
    unbound: UnboundAgents,
    now: u64,
}

impl Default for Harness {
    fn default() -> Self {
        let config = parse(CONFIG, &Registry::new(["fresh_first"], ["default"]));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let unbound = UnboundAgents::new(&config).unwrap_or_else(|error| panic!("{error}"));
        Self { config, unbound, now: 1000 }
    }
}

impl Harness {
    /// The first three bytes say what holds: shadow, the kill switch, a limit, its age. The rest is all that
    /// is said. Whatever it is, the one line is told that follows from what holds, and the connection is
    /// closed. Returns the line.
    pub(crate) fn run(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Some(([how, limit, age], said)) = bytes.split_first_chunk() else { return Vec::new() };
        let (shadow, released, limited) = (how & 1 > 0, how & 2 > 0, how & 4 > 0);
        let (limit, age) = (u64::from(*limit) * 8, u64::from(*age % 6));
        let agents = self.unbound.agents();
        let waiting_max = limited.then_some(limit);
        let limits = ServiceLimits { waiting_max, ..ServiceLimits::default() };
        agents.set_limits(&self.config, &[limits]);
        agents.set_mode(0, if shadow { Mode::Shadow } else { Mode::Enforce }, Canary::ALL);
        agents.release(released);
        agents.renew(Nanos::from_secs(self.now));
        self.now += age;
        let holds = limited && !shadow && !released && age <= LEASE;
        let told = if holds { (limit / BALANCERS).clamp(1, MAXCONN) } else { MAXCONN };
        let line = format!("maxconn:{told}\n").into_bytes();
        for _ in 0..2 {
            let found = self.unbound.connection(0, Nanos::from_secs(self.now), said);
            let found = found.unwrap_or_else(|| panic!("the connection is not closed"));
            assert_eq!(found, line, "what HAProxy says changes nothing");
        }
        line
    }
}
