// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The section `flowspec`: limits of services as BGP FlowSpec routes for routers.

mod check;
mod import;

pub(super) use check::check;
pub use import::{ImportConfig, PREFIXES_MAX as IMPORT_PREFIXES_MAX};

use super::named::{self, Named};
use super::text as common;
use super::types::ServiceConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use tidegate_model::remote::Scope;
use tidegate_units::{Nanos, Share};

/// Most routers with which the speaker talks.
pub const SPEAKER_PEERS_MAX: usize = 16;
/// Most routes at a time.
pub(crate) const ROUTES_RANGE: (u16, u16) = (1, 100);
/// How long routers keep routes of a speaker that they cannot reach.
pub(crate) const HOLD_TIME_RANGE: (Nanos, Nanos) = (Nanos::from_secs(3), Nanos::from_secs(9));
/// Time between two updates of a route.
pub(crate) const BETWEEN_RANGE: (Nanos, Nanos) = (Nanos::SECOND, Nanos::from_secs(300));
/// How long routes stay that nobody renews.
pub(crate) const LEASE_RANGE: (Nanos, Nanos) = (Nanos::SECOND, Nanos::from_secs(3));
/// By how much a rate has to differ to be told.
pub(crate) const HYSTERESIS_RANGE: (f64, f64) = (0.05, 0.5);

/// Limits of services as routes for routers. Without it there are none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowspecConfig {
    /// The BGP speaker, which runs as a process of tidegate.
    pub speaker: SpeakerKind,
    /// Its program, an absolute path; where nothing is said `gobgpd` or `exabgp` as PATH finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub program: Option<PathBuf>,
    /// The AS of this host.
    #[serde(rename = "as")]
    #[schemars(range(min = 1))]
    pub own_as: u32,
    /// The BGP identifier of this host.
    #[schemars(with = "common::Ipv4Text")]
    pub router_id: Ipv4Addr,
    /// The routers, by a name of your choice. The speaker connects to them.
    #[serde(with = "named")]
    #[schemars(with = "std::collections::BTreeMap<String, SpeakerPeerConfig>")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = SPEAKER_PEERS_MAX))]
    pub peers: Vec<SpeakerPeerConfig>,
    /// The services whose limits may become routes. Needed, unless `import` is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub export: Vec<ExportConfig>,
    /// Routes of a router whose rates are enforced at the interfaces of this host. It needs `speaker: gobgp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ImportConfig")]
    pub import: Option<ImportConfig>,
    /// Plans and says what would be announced, and announces nothing: no speaker is started. Not with `import`,
    /// which has its own mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// What the routers count: packets per second, or bytes where they do not know that.
    #[serde(default)]
    pub unit: RouteUnit,
    /// Most routes at a time.
    #[serde(default = "routes")]
    #[schemars(range(min = ROUTES_RANGE.0, max = ROUTES_RANGE.1))]
    pub routes: u16,
    /// A rate that differs by less is not told again, 5 % to 50 %. A rate that routers do not need any more grows
    /// by such steps.
    #[serde(default = "hysteresis", with = "common::share")]
    #[schemars(with = "common::ShareText")]
    pub hysteresis: Share,
    /// Shortest time from one update of a route to the next, 1 s to 5 min.
    #[serde(default = "between", with = "common::span")]
    #[schemars(with = "common::SpanText")]
    pub between: Nanos,
    /// Routes that the control loop does not renew are withdrawn after this, 1 s to 3 s.
    #[serde(default = "lease", with = "common::span")]
    #[schemars(with = "common::SpanText")]
    pub lease: Nanos,
    /// Routers withdraw the routes of a speaker of which they hear nothing after this, whole seconds from 3 s to
    /// 9 s.
    #[serde(default = "hold_time", with = "common::span")]
    #[schemars(with = "common::SpanText")]
    pub hold_time: Nanos,
}

const fn routes() -> u16 {
    10
}

fn hysteresis() -> Share {
    Share::new(0.2)
}

const fn between() -> Nanos {
    Nanos::from_secs(10)
}

const fn lease() -> Nanos {
    LEASE_RANGE.1
}

const fn hold_time() -> Nanos {
    HOLD_TIME_RANGE.1
}

/// A program that speaks BGP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SpeakerKind {
    /// GoBGP 3, `gobgpd`.
    Gobgp,
    /// ExaBGP 4.2 or later, `exabgp`.
    Exabgp,
}

impl SpeakerKind {
    /// Its program where none is configured.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Gobgp => "gobgpd",
            Self::Exabgp => "exabgp",
        }
    }

    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gobgp => "gobgp",
            Self::Exabgp => "exabgp",
        }
    }
}

/// What routers count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RouteUnit {
    /// Packets per second (traffic-rate-packets).
    #[default]
    Packets,
    /// Bytes per second (traffic-rate-bytes), a SYN taken as 60 bytes, over IPv6 as 80.
    Bytes,
}

/// A router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeakerPeerConfig {
    /// Its name: the key under `peers`.
    #[serde(skip)]
    pub name: String,
    /// Its address.
    #[schemars(with = "common::IpText")]
    pub address: IpAddr,
    /// The address of this host in the session.
    #[schemars(with = "common::IpText")]
    pub local: IpAddr,
    /// Its AS.
    #[serde(rename = "as")]
    #[schemars(range(min = 1))]
    pub peer_as: u32,
    /// A file with the password of the session (TCP MD5): one line, 1 to 80 letters, digits and `+/=._-:@`. An
    /// absolute path; nobody but the daemon's user may read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub password_file: Option<PathBuf>,
    /// The router is one hop away: packets of the session that come from farther are dropped (RFC 5082). The router
    /// needs the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ttl_security: bool,
}

/// A service whose limit may become routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// A service of this host.
    pub service: String,
    /// What routers see of it: addresses or prefixes with a port, such as "192.0.2.11:80". Where nothing is said
    /// the addresses on which it listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub scopes: Vec<Scope>,
}

impl FlowspecConfig {
    /// Whether routers are told of datagrams of a service: it says how many it can take, and the unit is packets. In
    /// bytes there is no rate for what has no usual size.
    #[must_use]
    pub fn tells_datagrams(&self, service: &ServiceConfig) -> bool {
        let exported = self.export.iter().any(|export| export.service == service.name);
        exported && self.unit == RouteUnit::Packets && service.datagrams.is_some()
    }
}

impl ExportConfig {
    /// The destinations of its routes; `None`: it has one without an address.
    #[must_use]
    pub fn destinations(&self, service: &ServiceConfig) -> Option<Vec<Scope>> {
        if !self.scopes.is_empty() {
            return Some(self.scopes.clone());
        }
        let one = |listen: &tidegate_model::Listen| {
            let address = listen.address.filter(|address| !address.is_unspecified())?;
            Some(Scope::Destination { prefix: address.into(), port: Some(listen.port) })
        };
        let all: Option<Vec<Scope>> = service.listen.iter().map(one).collect();
        all.filter(|all| !all.is_empty())
    }
}

impl Named for SpeakerPeerConfig {
    fn name(&self) -> &str {
        &self.name
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Registry, parse};

    /// Connections and datagrams are a route each; in bytes there is none of datagrams, and nobody else is told.
    #[test]
    fn datagrams_are_a_route_of_their_own_in_packets() {
        let wrong = |unit: &str, routes: u32| {
            let text = format!(
                "interfaces: [{{name: lo}}]\nservices: {{shop: {{mode: enforce, listen: ['192.0.2.11:80'], datagrams: 100}}}}\n\
                 flowspec:\n  speaker: gobgp\n  as: 65001\n  router_id: 192.0.2.11\n  unit: {unit}\n  routes: {routes}\n  \
                 export: [{{service: shop}}]\n  peers: {{r1: {{address: 192.0.2.1, local: 192.0.2.11, as: 65002}}}}\n"
            );
            let parsed = parse(&text, &Registry::new(["fresh_first"], ["default"]));
            parsed.err().map(|errors| errors.to_string()).unwrap_or_default()
        };
        assert_eq!(wrong("packets", 2), "");
        assert!(wrong("packets", 1).contains("found 2 routes; \"routes\" allows 1"));
        let bytes = wrong("bytes", 1);
        assert!(bytes.contains("no router is told") && !bytes.contains("2 routes"), "{bytes}");
    }
}
