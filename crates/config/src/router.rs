// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The section `router`: what a router measures of the destinations behind it, and whether it limits new
//! connections to one with a flash crowd.

use super::check::CLASS_DEFAULT;
use super::error::ConfigError;
use super::shape::Places;
use super::text;
use super::types::{AbacusConfig, CLASS_SOURCES_MAX, Config, PolicyConfig};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_model::remote::Scope;
use tidegate_model::{CLASSES_MAX, Mode, RATE_MIN};
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
    /// Shows which hosts and paths a flash crowd asks for, where a packet shows them: HTTP/1 in cleartext, and server
    /// names of TLS. For that the begin of requests is read meanwhile, of a connection at most one a second. Off by default.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hot_spots: bool,
    /// Limits new connections to a destination while it has a flash crowd. Without it nothing is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RouterLimitConfig>,
}

/// The limit of a router on new connections to a destination with a flash crowd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouterLimitConfig {
    /// `shadow` counts what would be refused, and lets everything pass.
    pub mode: Mode,
    /// New connections that a destination gets in any case (1/s, which is the least allowed).
    #[serde(default, with = "text::rate_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::RateText")]
    pub min_rate: Option<Rate>,
    /// How new connections beyond the limit are refused, of clients that no class names (drop).
    #[serde(default, skip_serializing_if = "RouterAction::is_default")]
    pub action: RouterAction,
    /// Classes of clients that are refused in another way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CLASSES_MAX - 1))]
    pub classes: Vec<RouterClassConfig>,
}

/// How a router refuses a new connection.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum RouterAction {
    /// Nothing is sent: the client tries again by itself.
    #[default]
    Drop,
    /// A RST is sent: most clients fail at once. A proxy may take its server for dead.
    Reset,
    /// Dropped if there will be room when it comes back, else a RST (the Abacus filter that recognises
    /// retransmissions).
    Abacus,
}

impl RouterAction {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reset => "reset",
            Self::Abacus => "abacus",
        }
    }

    /// What becomes of a client's SYN that the limit refuses.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Drop => "dropped",
            Self::Reset => "replied to with a RST",
            Self::Abacus => {
                "dropped if there will be room when it comes again, else replied to with a RST"
            }
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A class of clients of a router. A client belongs to the class with the longest of the source prefixes that
/// match it, else to the one of its DSCP, else to `default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouterClassConfig {
    /// Its name, unique here; `default` is taken.
    pub name: String,
    /// Source prefixes, such as `198.51.100.0/24`; a bare address is one host.
    #[serde(default, with = "text::prefixes", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<text::PrefixText>", length(max = CLASS_SOURCES_MAX))]
    pub sources: Vec<IpNet>,
    /// DSCP, on interfaces with `trust_dscp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u8", range(max = 63))]
    pub dscp: Option<u8>,
    /// How its new connections beyond the limit are refused.
    pub action: RouterAction,
}

impl RouterLimitConfig {
    /// A limit that drops what is above it.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self { mode, min_rate: None, action: RouterAction::Drop, classes: Vec::new() }
    }

    /// What is done with clients, by the name of their class; first that of clients that no class names.
    pub fn actions(&self) -> impl Iterator<Item = (&str, RouterAction)> {
        let named = self.classes.iter().map(|class| (class.name.as_str(), class.action));
        std::iter::once((CLASS_DEFAULT, self.action)).chain(named)
    }

    /// Whether a class has Abacus.
    #[must_use]
    pub fn wants_abacus(&self) -> bool {
        self.actions().any(|(_, action)| action == RouterAction::Abacus)
    }

    /// When dropped clients come back, and how far ahead room is given away: as for services.
    #[must_use]
    pub fn abacus(&self) -> AbacusConfig {
        PolicyConfig::default().abacus()
    }

    /// New connections that a destination gets in any case.
    #[must_use]
    pub fn least(&self) -> Rate {
        self.min_rate.unwrap_or(Rate::per_second(RATE_MIN))
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
        && !(RATE_MIN..=MIN_RATE_MAX).contains(&limit.least().get())
    {
        let found = limit.least().get();
        let why = format!("found {found}/s; allowed: {RATE_MIN}/s to {MIN_RATE_MAX}/s");
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
            "{mode: enforce, action: reset}",
            "{mode: enforce, action: abacus, classes: [{name: shops, sources: [192.0.2.7], action: drop}]}",
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
            ("{destinations: ['192.0.2.1:80'], limit: {mode: shadow, action: reject}}", "action"),
            (
                "{destinations: ['192.0.2.1:80'], limit: {mode: shadow, min_rate: 1000001/s}}",
                "router.limit.min_rate",
            ),
        ] {
            let found = faults(router);
            assert!(found.contains(said), "{router}: {found:?} does not say {said:?}");
        }
    }

    /// Classes are checked as those of services are.
    #[test]
    fn a_source_belongs_to_one_class_of_a_router() {
        for (classes, said) in [
            ("[{name: a, sources: [10.0.0.0/8], action: reset}]", ""),
            ("[{name: a, sources: [10.0.0.0/8]}]", "action"),
            ("[{name: a, action: reset}]", "needs sources or dscp"),
            ("[{name: default, sources: [10.0.0.0/8], action: reset}]", "what no class names"),
            ("[{name: a, dscp: 46, action: reset}]", "no interface trusts the DSCP"),
            (
                "[{name: a, sources: [10.0.0.1], action: reset}, {name: b, sources: [10.0.0.1], action: drop}]",
                "classes[0] already",
            ),
            (
                "[{name: a, sources: [10.0.0.1], action: reset}, {name: a, sources: [10.0.0.2], action: drop}]",
                "router.limit.classes[1].name",
            ),
        ] {
            let limit = format!("{{mode: enforce, classes: {classes}}}");
            let found = faults(&format!("{{destinations: ['192.0.2.1:80'], limit: {limit}}}"));
            assert!(found.contains(said), "{classes}: {found:?} does not say {said:?}");
            assert_eq!(found.is_empty(), said.is_empty(), "{classes}: {found:?}");
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
