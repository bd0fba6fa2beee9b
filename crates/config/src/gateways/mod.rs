// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The section `gateways`: HTTP proxies that ask before they pass a request on.

mod agent;
mod endpoint;
mod overlap;
mod proxy;
mod select;
mod tls;

pub use agent::{AgentCheckConfig, BALANCERS_MAX};
pub use endpoint::Endpoint;
pub use overlap::doubts;
pub use proxy::{
    PROXY_CONNECTIONS_RANGE, PROXY_TIME_RANGE, ProxyClients, ProxyQueue, QUEUE_LENGTH_MAX,
    QUEUE_WAIT_RANGE, UPSTREAM_SERVERS_MAX, Upstream,
};
pub use select::{Routed, Router};
pub use tls::GatewayTls;

use super::named::Named;
use super::requests::{
    CookieMatch, CookieNameText, HostPattern, HostText, Method, PathPrefix, PathText, RuleConfig,
};
use super::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_model::PRIORITIES;
use tidegate_units::Nanos;

/// Most gateways of one daemon.
pub const GATEWAYS_MAX: usize = 16;
/// Most routes of one gateway.
pub const ROUTES_MAX: usize = 256;
/// Most proxies that X-Forwarded-For may name.
pub const CLIENT_HOP_MAX: u8 = 16;
/// Longest name of a header, in bytes.
pub const HEADER_NAME_MAX: usize = 64;
/// Longest value of a header that a route asks for, in bytes.
pub const HEADER_VALUE_MAX: usize = 256;

/// One proxy, or several that are configured alike: where it asks, and which of its requests belong to
/// which service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// Its name: the key under `gateways`.
    #[serde(skip)]
    pub name: String,
    /// Which proxy asks, and by which protocol.
    pub adapter: Adapter,
    /// Where the proxy asks: `unix:` and an absolute path, or an address and a port. With the adapter
    /// `proxy`, where clients connect.
    pub listen: Endpoint,
    /// Where the proxy reports what became of requests, one access log line a datagram. Envoy and Traefik
    /// report where they ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Endpoint")]
    pub completions: Option<Endpoint>,
    /// Accepts an address that other hosts reach, without TLS. Whoever reaches it may ask and report in the
    /// proxy's name: only where the network keeps everybody else out.
    #[serde(default)]
    pub insecure: bool,
    /// Only with the adapter `proxy`: the servers behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Upstream>,
    /// TLS at `listen`, 1.2 and 1.3. Whoever asks must show a certificate of `ca_file`. With the adapter
    /// `proxy` it is TLS to clients, with HTTP/1.1 and HTTP/2; without it they speak HTTP/1.1 in the clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<GatewayTls>,
    /// Only with the adapter `proxy`: what is granted to clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<ProxyClients>,
    /// Only with the adapter `proxy`: requests that the policy `gap` of their service would refuse wait
    /// for their turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<ProxyQueue>,
    /// How long a refused client is asked to stay away. Between the two, the time follows the backlog.
    #[serde(default)]
    pub retry_after: StayAway,
    /// Whether a refusal carries the fields RateLimit and RateLimit-Policy
    /// (draft-ietf-httpapi-ratelimit-headers).
    #[serde(default)]
    pub rate_limit_fields: bool,
    /// Which element of X-Forwarded-For is the client, counted from the end. 1 is what Caddy or Traefik
    /// has written itself: who has connected to it. One more for each proxy before it.
    #[serde(default = "GatewayConfig::client_hop_default")]
    #[schemars(range(min = 1, max = CLIENT_HOP_MAX))]
    pub client_hop: u8,
    /// Which requests belong to which service. The longest path that begins the request's wins; among
    /// routes of one path the first that matches; what no route matches passes.
    #[schemars(length(min = 1, max = ROUTES_MAX))]
    pub routes: Vec<RouteConfig>,
}

impl Named for GatewayConfig {
    fn name(&self) -> &str {
        &self.name
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

impl GatewayConfig {
    /// How long a request of this service may wait here; `None`: routes lead elsewhere.
    #[must_use]
    pub fn waits(&self, service: &str) -> Option<Nanos> {
        let leads = self.routes.iter().any(|route| route.service == service);
        leads.then(|| self.queue.map_or(Nanos::ZERO, |queue| queue.longest_wait))
    }

    /// Its addresses, with their keys.
    pub fn endpoints(&self) -> impl Iterator<Item = (&'static str, &Endpoint)> {
        let completions = self.completions.as_ref().map(|endpoint| ("completions", endpoint));
        std::iter::once(("listen", &self.listen)).chain(completions)
    }

    /// Of its addresses those, with their keys, where anybody on another host may ask or report. Clients
    /// connect to the adapter `proxy`, and nobody asks or reports there.
    pub fn open_endpoints(&self) -> impl Iterator<Item = (&'static str, &Endpoint)> {
        let secured = |key| key == "listen" && self.tls.is_some();
        let asked = self.endpoints().filter(|_| self.adapter != Adapter::Proxy);
        asked.filter(move |(key, endpoint)| !endpoint.is_local() && !secured(*key))
    }

    const fn client_hop_default() -> u8 {
        1
    }
}

/// How long a refused client is asked to stay away: whole seconds. A gateway spreads them over the time
/// that its backlog needs, so the longest is far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StayAway {
    /// The shortest, at least 1s.
    #[serde(with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub min: Nanos,
    /// The longest, at most 24h.
    #[serde(with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub max: Nanos,
}

impl Default for StayAway {
    fn default() -> Self {
        Self { min: Nanos::SECOND, max: Nanos::from_secs(60) }
    }
}

/// The protocols by which proxies ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Adapter {
    /// nginx: `auth_request` by HTTP, completions by its syslog access log.
    Nginx,
    /// Envoy: `ext_authz` or the rate limit service by gRPC, completions by its access log service.
    Envoy,
    /// HAProxy: SPOE, completions by its log.
    Haproxy,
    /// Caddy: `forward_auth` by HTTP, completions by its access log over UDP.
    Caddy,
    /// Traefik: `forwardAuth` by HTTP, completions by its access log over OTLP.
    Traefik,
    /// tidegate's own proxy: clients connect to tidegate, which passes their requests on.
    Proxy,
}

impl Adapter {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
            Self::Haproxy => "haproxy",
            Self::Caddy => "caddy",
            Self::Traefik => "traefik",
            Self::Proxy => "proxy",
        }
    }

    /// Whether completions come by datagrams at an address of their own.
    #[must_use]
    pub const fn reports_apart(self) -> bool {
        matches!(self, Self::Nginx | Self::Haproxy | Self::Caddy)
    }

    /// Whether the client's address comes from X-Forwarded-For, as the proxy writes it.
    #[must_use]
    pub const fn forwards(self) -> bool {
        matches!(self, Self::Caddy | Self::Traefik)
    }
}

/// Which requests belong to a service, and what they are in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Requests whose path begins with this; `/` is all of them.
    #[serde(default = "RouteConfig::path_default")]
    #[schemars(with = "PathText")]
    pub path: Option<PathPrefix>,
    /// Only requests to this host, or `*.` and a name for all with one label more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HostText")]
    pub host: Option<HostPattern>,
    /// Only these methods; none given: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = Method::ALL.len()))]
    pub methods: Vec<Method>,
    /// Only requests with this cookie, or without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<CookieMatch>,
    /// Only requests with this header. What a client says about itself is its own word: a header that
    /// chooses a class has to be set, or removed, by the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderMatch>,
    /// Name of the service.
    pub service: String,
    /// Name of a class of the service; where none is given, the client's address chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Priority of these requests, whatever that of their class is; 0 is the highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = PRIORITIES - 1))]
    pub priority: Option<u8>,
    /// A bucket of the service (`requests.buckets`) that these requests go through as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
}

impl RouteConfig {
    fn path_default() -> Option<PathPrefix> {
        "/".parse().ok()
    }

    /// What it matches, as a request rule: one matcher serves both.
    #[must_use]
    pub(crate) fn as_rule(&self) -> RuleConfig {
        RuleConfig {
            path: self.path.clone(),
            host: self.host.clone(),
            methods: self.methods.clone(),
            cookie: self.cookie.clone(),
            ..RuleConfig::default()
        }
    }

    /// Whether every request that the other matches is matched by this one; of one path only, for
    /// else the longer path decides.
    #[must_use]
    pub(crate) fn covers(&self, other: &Self) -> bool {
        covers_header(self.header.as_ref(), other.header.as_ref())
            && self.as_rule().covers(&other.as_rule())
    }
}

/// Whether the second's condition implies the first's.
fn covers_header(mine: Option<&HeaderMatch>, theirs: Option<&HeaderMatch>) -> bool {
    match (mine, theirs) {
        (None, _) => true,
        (Some(mine), Some(theirs)) => {
            mine.name.eq_ignore_ascii_case(&theirs.name)
                && (mine.value.is_none() || mine.value == theirs.value)
        }
        (Some(_), None) => false,
    }
}

/// A header that must be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeaderMatch {
    /// Its name, in any case.
    #[schemars(with = "CookieNameText")]
    pub name: String,
    /// Its value, exactly; any where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = HEADER_VALUE_MAX))]
    pub value: Option<String>,
}

impl HeaderMatch {
    /// Whether a request with this value of the header, if it has one, meets it.
    #[must_use]
    pub fn matches(&self, found: Option<&str>) -> bool {
        found.is_some_and(|found| self.value.as_ref().is_none_or(|value| value == found))
    }
}
