// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shop with three priorities and a bucket behind a gate, and who asks for it.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use std::net::IpAddr;
use tidegate_config::{Config, Registry, parse};
use tidegate_gate::{Ask, Gate, NoHeaders};
use tidegate_model::limits::ServiceLimits;
use tidegate_units::Nanos;

pub(crate) const NOW: Nanos = Nanos::from_secs(1000);
pub(crate) const GOLD: &str = "198.51.100.7";
pub(crate) const SILVER: &str = "192.0.2.7";
pub(crate) const BULK: &str = "203.0.113.7";

/// Priorities 0, 6 and 7.
pub(crate) fn config(mode: &str, policy: &str) -> Config {
    let text = format!(
        "services:
  shop:
    mode: {mode}
    policy: {policy}
    classes:
      - {{name: gold, sources: [198.51.100.0/24], priority: 0}}
      - {{name: silver, sources: [192.0.2.0/24], priority: 6}}
    requests:
      buckets: {{search: {{resource: cpu}}}}
      rules: [{{path: /search, bucket: search}}]
gateways:
  edge:
    adapter: nginx
    listen: 127.0.0.1:9470
    completions: 127.0.0.1:9471
    routes: [{{path: /search, service: shop, bucket: search}}, {{service: shop}}]
"
    );
    let names = ["fresh_first", "token_bucket", "threshold", "gap", "percent"];
    parse(&text, &Registry::new(names, ["default"])).unwrap()
}

/// The gate of such a shop, with these limits.
pub(crate) fn gate(config: &Config, limits: ServiceLimits) -> Gate {
    let gate = Gate::new(config, 7);
    gate.tick(NOW);
    assert!(gate.set_limits(config, &[limits]).is_empty());
    gate
}

pub(crate) fn ask<'a>(target: &'a str, client: &str) -> Ask<'a> {
    Ask {
        gateway: "edge",
        method: "GET",
        host: None,
        target,
        client: Some(client.parse::<IpAddr>().unwrap()),
        request_id: None,
        reported_by_id: false,
        share: None,
        turn: None,
        headers: &NoHeaders,
    }
}

pub(crate) fn passed(gate: &Gate, number: usize, ask: &Ask<'_>) -> usize {
    (0..number).filter(|_| gate.ask(NOW, ask).passes()).count()
}
