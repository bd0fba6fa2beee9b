// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The section `router`: what a router measures of the destinations behind it, and whether it limits new
//! connections to one with a flash crowd.

use super::error::ConfigError;
use super::shape::Places;
use super::text;
use super::types::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_model::remote::Scope;
use tidegate_model::{Mode, RATE_FLOOR};
use tidegate_units::Rate;

/// Most prefixes in which a router looks for destinations: each SYN is compared with all of them.
pub const ROUTER_DESTINATIONS_MAX: usize = 64;
/// Fewest and most connections that a router follows at once.
pub const ROUTER_CONNECTIONS_RANGE: (u32, u32) = (1024, 1 << 22);
/// Fewest and most destinations: each takes 4.5 KiB.
pub const ROUTER_KNOWN_RANGE: (u32, u32) = (16, 1 << 16);
/// The highest `limit.min_rate`: no bucket of the kernel is faster.
const MIN_RATE_MAX: f64 = 1e6;
/// Largest part that `sample` may leave out.
const SAMPLE_RANGE: (u32, u32) = (1, 1024);

/// What a router measures of the servers behind it. Without it nothing is loaded for that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouterConfig {
    /// Where destinations are looked for: prefixes with a port, or `*` for every port, such as
    /// "192.0.2.0/24:80". Each address and port that completes a handshake is a destination.
    #[schemars(length(min = 1, max = ROUTER_DESTINATIONS_MAX))]
    pub destinations: Vec<Scope>,
    /// Connections that are followed at once, a power of two; 64 bytes each. Changes by a restart only.
    #[serde(default = "connections")]
    #[schemars(range(min = ROUTER_CONNECTIONS_RANGE.0, max = ROUTER_CONNECTIONS_RANGE.1))]
    pub connections: u32,
    /// Destinations that are measured at once; 4.5 KiB each. Changes by a restart only.
    #[serde(default = "destinations_max")]
    #[schemars(range(min = ROUTER_KNOWN_RANGE.0, max = ROUTER_KNOWN_RANGE.1))]
    pub destinations_max: u32,
    /// One connection in so many is followed, chosen by its hash; SYNs are all counted. Changes by a
    /// restart only.
    #[serde(default = "sample")]
    #[schemars(range(min = SAMPLE_RANGE.0, max = SAMPLE_RANGE.1))]
    pub sample: u32,
    /// Limits new connections to a destination while it has a flash crowd. Without it nothing is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RouterLimitConfig>,
}

/// The limit of a router on new connections to a destination with a flash crowd. What is above it is dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouterLimitConfig {
    /// `shadow` counts what would be refused, and lets everything pass.
    pub mode: Mode,
    /// New connections that a destination gets in any case (1/s, which is the least allowed).
    #[serde(default, with = "text::rate_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::RateText")]
    pub min_rate: Option<Rate>,
}

impl RouterLimitConfig {
    /// New connections that a destination gets in any case.
    #[must_use]
    pub fn least(&self) -> Rate {
        self.min_rate.unwrap_or(Rate::per_second(RATE_FLOOR))
    }
}

const fn connections() -> u32 {
    1 << 16
}

const fn destinations_max() -> u32 {
    1 << 12
}

const fn sample() -> u32 {
    1
}

pub(super) fn check(config: &Config, places: &Places) -> Vec<ConfigError> {
    let Some(router) = &config.router else { return Vec::new() };
    let mut errors = Vec::new();
    let mut fault = |path: &str, message: String| errors.push(places.error(path, message));
    for (i, scope) in router.destinations.iter().enumerate() {
        if !matches!(scope, Scope::Destination { .. }) {
            let name = scope.to_string();
            let why = format!("found {name:?}; allowed: a prefix with a port, or with *");
            fault(&format!("router.destinations[{i}]"), why);
        }
    }
    if !router.connections.is_power_of_two() {
        let above = router.connections.next_power_of_two();
        let (found, below) = (router.connections, above / 2);
        let why = format!("found {found}; allowed: a power of two, such as {below} or {above}");
        fault("router.connections", why);
    }
    if let Some(limit) = &router.limit
        && !(RATE_FLOOR..=MIN_RATE_MAX).contains(&limit.least().get())
    {
        let found = limit.least().get();
        let why = format!("found {found}/s; allowed: {RATE_FLOOR}/s to {MIN_RATE_MAX}/s");
        fault("router.limit.min_rate", why);
    }
    if config.hooked().next().is_none() {
        fault("router", "no interface has side: clients, so nothing can be measured".into());
    }
    errors
}

#[cfg(test)]
mod tests {
    use crate::{Registry, parse};

    fn faults(router: &str) -> String {
        let text = format!(
            "interfaces: [{{name: eth0}}]\nservices:\n  web: {{mode: shadow, listen: ['*:80']}}\n\
             router: {router}\n"
        );
        let registry = Registry::new(["fresh_first"], ["default"]);
        parse(&text, &registry).map_or_else(|errors| errors.to_string(), |_| String::new())
    }

    #[test]
    fn a_section_router_has_prefixes_and_sizes_within_their_bounds() {
        assert_eq!(faults("{destinations: ['192.0.2.0/24:80', '[2001:db8::/64]:*']}"), "");
        let all = "{destinations: ['192.0.2.1:443'], connections: 1024, destinations_max: 16, sample: 1024}";
        assert_eq!(faults(all), "");
        for limit in [
            "{mode: shadow}",
            "{mode: enforce, min_rate: 1/s}",
            "{mode: enforce, min_rate: 1000000/s}",
        ] {
            let router = format!("{{destinations: ['192.0.2.1:80'], limit: {limit}}}");
            assert_eq!(faults(&router), "");
        }
        for (router, said) in [
            ("{}", "destinations"),
            ("{destinations: []}", "router.destinations"),
            ("{destinations: [web]}", "a prefix with a port"),
            ("{destinations: ['192.0.2.0/24']}", "router.destinations[0]"),
            ("{destinations: ['192.0.2.1:80'], connections: 1000}", "router.connections"),
            ("{destinations: ['192.0.2.1:80'], connections: 3000}", "such as 2048 or 4096"),
            ("{destinations: ['192.0.2.1:80'], destinations_max: 15}", "16"),
            ("{destinations: ['192.0.2.1:80'], destinations_max: 65537}", "65536"),
            ("{destinations: ['192.0.2.1:80'], sample: 0}", "router.sample"),
            ("{destinations: ['192.0.2.1:80'], sample: 1025}", "1024"),
            ("{destinations: ['192.0.2.1:80'], flows: 3}", "flows"),
            ("{destinations: ['192.0.2.1:80'], limit: {}}", "router.limit"),
            ("{destinations: ['192.0.2.1:80'], limit: {mode: off}}", "router.limit.mode"),
            ("{destinations: ['192.0.2.1:80'], limit: {mode: shadow, min_rate: 0.9/s}}", "1/s to"),
            (
                "{destinations: ['192.0.2.1:80'], limit: {mode: shadow, min_rate: 1000001/s}}",
                "router.limit.min_rate",
            ),
        ] {
            let found = faults(router);
            assert!(found.contains(said), "{router}: {found:?} does not say {said:?}");
        }
    }

    #[test]
    fn a_router_without_an_interface_to_clients_measures_nothing() {
        let text = "services:\n  web: {mode: shadow, listen: ['*:80']}\n\
                    router: {destinations: ['192.0.2.1:80']}\n";
        let registry = Registry::new(["fresh_first"], ["default"]);
        let found = parse(text, &registry).unwrap_err().to_string();
        assert!(found.contains("no interface has side: clients"), "{found}");
    }
}
