// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of `gateways`: routes that lead somewhere and can be met, addresses that are safe and
//! do not collide.

use super::Check;
use crate::LevelSignal;
use crate::error::step;
use crate::gateways::{
    Adapter, Endpoint, GatewayConfig, PROXY_TIME_RANGE, ProxyQueue, QUEUE_WAIT_RANGE, RouteConfig,
    Upstream,
};
use crate::name::name_fault;
use crate::types::{Config, ServiceConfig};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tidegate_units::Nanos;

impl Config {
    /// Whether a route of a gateway leads to this service.
    #[must_use]
    pub fn is_routed(&self, service: &str) -> bool {
        routes(self).any(|route| route.service == service)
    }
}

/// Whether a route of a gateway names this class, or this bucket, of a service.
pub(super) fn names(config: &Config, service: &str, of: impl Fn(&RouteConfig) -> bool) -> bool {
    routes(config).any(|route| route.service == service && of(route))
}

fn routes(config: &Config) -> impl Iterator<Item = &RouteConfig> {
    config.gateways.iter().flat_map(|gateway| &gateway.routes)
}

/// What a socket is bound by: two of a kind collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Stream,
    Datagram,
}

impl Check<'_> {
    pub(super) fn gateways(&mut self) {
        let config = self.config;
        if config.interfaces.is_empty() && config.gateways.is_empty() {
            let what =
                "the keys \"interfaces\" and \"gateways\" are missing; one of them is needed";
            self.fault("", what);
        }
        for gateway in &config.gateways {
            let path = format!("gateways.{}", step(&gateway.name));
            if let Some(why) = name_fault(&gateway.name) {
                self.fault(&path, format!("found the name {:?}: {why}", gateway.name));
            }
            self.endpoints(&path, gateway);
            self.tls(&format!("{path}.tls"), gateway);
            self.proxy(&path, gateway);
            self.retry_after(&path, (gateway.retry_after.min, gateway.retry_after.max));
            for (i, route) in gateway.routes.iter().enumerate() {
                self.route(&format!("{path}.routes[{i}]"), route);
            }
            self.unreachable(&path, &gateway.routes);
        }
        self.collisions();
    }

    /// A service is reached by packets, or by a route.
    pub(super) fn reached(&mut self, path: &str, service: &ServiceConfig) {
        let routed = self.config.is_routed(&service.name);
        if service.listen.is_empty() && !routed {
            let what = "the key \"listen\" is missing; allowed: a list (a service that a route of a \
                        gateway leads to needs none)";
            self.fault(path, what);
        } else if !routed && self.config.interfaces.is_empty() && !self.config.gateways.is_empty() {
            let what =
                "nothing leads to it: there are no interfaces, and no route of a gateway names it";
            self.fault(path, what);
        }
        if routed && service.policy.is_abacus() {
            let name = &service.policy.name;
            let what = format!(
                "found {name:?}, which knows when SYNs come back; a gateway limits requests, by token_bucket"
            );
            self.fault(&format!("{path}.policy.name"), what);
        }
        if routed && service.policy.level_signal() == Some(LevelSignal::AcceptQueue) {
            let what = "found \"accept-queue\": a gateway asks about requests, whose connections wait for \
                        no accept; allowed: in-flight, unfinished-work, waiting-time";
            self.fault(&format!("{path}.policy.level"), what);
        }
    }

    /// One place limits a service, and what HAProxy is told is measured by the hooks.
    pub(super) fn agent_check(&mut self, path: &str, service: &ServiceConfig) {
        let Some(agent) = &service.agent_check else { return };
        let path = format!("{path}.agent_check");
        if !matches!(agent.listen, Endpoint::Ip(_)) {
            let what = format!(
                "found {}; allowed: an address and a port, which HAProxy asks",
                agent.listen
            );
            self.fault(&format!("{path}.listen"), what);
        } else if !agent.insecure && !agent.listen.is_local() {
            let what = format!(
                "found {}, which other hosts reach: whoever reaches it can read the limit; allowed: an address \
                 of this host alone (127.0.0.1, [::1]), or insecure: true",
                agent.listen
            );
            self.fault(&format!("{path}.listen"), what);
        }
        if self.config.is_routed(&service.name) {
            self.fault(
                &path,
                "a route of a gateway leads to the service, which limits it already; leave one out",
            );
        } else if self.config.interfaces.is_empty() {
            self.fault(&path, "nothing is measured without interfaces");
        }
        if service.requests.is_some() {
            self.fault(&path, "requests are refused by HAProxy then; leave \"requests\" out");
        }
        if service.control.name == "fixed" {
            self.fault(&path, "the control \"fixed\" has no limit in flight to tell");
        }
    }

    fn endpoints(&mut self, path: &str, gateway: &GatewayConfig) {
        let adapter = gateway.adapter.name();
        match (&gateway.completions, gateway.adapter.reports_apart()) {
            (None, true) => self.fault(
                path,
                format!(
                    "the key \"completions\" is missing: the adapter {adapter:?} reports there what became of requests"
                ),
            ),
            (Some(_), false) => self.fault(
                &format!("{path}.completions"),
                format!("the adapter {adapter:?} reports where it asks; leave it out"),
            ),
            (Some(Endpoint::Unix(_)), true) if gateway.adapter == Adapter::Caddy => {
                let what = "Caddy does not start while a Unix socket for its log is away; allowed: an address and \
                            a port of this host, by UDP";
                self.fault(&format!("{path}.completions"), what);
            }
            _ => {}
        }
        if gateway.client_hop > 1 && !gateway.adapter.forwards() {
            let what = format!(
                "the adapter {adapter:?} is told the client's address by a field of its own; leave it out"
            );
            self.fault(&format!("{path}.client_hop"), what);
        }
        if gateway.insecure {
            return;
        }
        for (key, endpoint) in gateway.open_endpoints() {
            let (may, tls) = match key {
                "listen" => ("ask and report", "tls with a ca_file, "),
                // Datagrams carry no TLS.
                _ => ("report", ""),
            };
            let what = format!(
                "found {endpoint}, which other hosts reach: whoever reaches it may {may}; allowed: \
                 a Unix socket, an address of this host alone (127.0.0.1, [::1]), {tls}or insecure: true"
            );
            self.fault(&format!("{path}.{key}"), what);
        }
    }

    /// TLS of adapters is mutual: what asks shows who it is. Clients of the own proxy do not.
    fn tls(&mut self, path: &str, gateway: &GatewayConfig) {
        let Some(tls) = &gateway.tls else { return };
        for (key, file) in tls.files() {
            self.absolute(&format!("{path}.{key}"), file);
        }
        match (gateway.adapter, &tls.ca_file) {
            (Adapter::Proxy, Some(_)) => {
                let what = "clients of the adapter \"proxy\" show no certificate; leave it out";
                self.fault(&format!("{path}.ca_file"), what);
            }
            (Adapter::Proxy, None) | (_, Some(_)) => {}
            (_, None) => {
                let what =
                    "the key \"ca_file\" is missing: without it anybody could ask and report";
                self.fault(path, what);
            }
        }
        if let (Endpoint::Unix(_), false) = (&gateway.listen, gateway.adapter == Adapter::Proxy) {
            let what =
                "a Unix socket speaks no TLS: who may enter its directory may ask; leave it out";
            self.fault(path, what);
        }
    }

    /// What only the adapter `proxy` has, and what it needs.
    fn proxy(&mut self, path: &str, gateway: &GatewayConfig) {
        if gateway.adapter != Adapter::Proxy {
            let of_proxy = [
                ("upstream", gateway.upstream.is_some()),
                ("clients", gateway.clients.is_some()),
                ("queue", gateway.queue.is_some()),
            ];
            for (key, _) in of_proxy.into_iter().filter(|(_, there)| *there) {
                let adapter = gateway.adapter.name();
                let what = format!("only the adapter \"proxy\" has it; this one is {adapter:?}");
                self.fault(&format!("{path}.{key}"), what);
            }
            return;
        }
        if gateway.insecure {
            let what = "the adapter \"proxy\" is there for clients on other hosts; leave it out";
            self.fault(&format!("{path}.insecure"), what);
        }
        if let Endpoint::Unix(_) = gateway.listen {
            let what =
                "clients connect to the adapter \"proxy\" by TCP; allowed: an address and a port";
            self.fault(&format!("{path}.listen"), what);
        }
        let clients = gateway.clients.clone().unwrap_or_default();
        for (key, found) in
            [("idle_timeout", clients.idle_timeout), ("body_timeout", clients.body_timeout)]
        {
            self.span(&format!("{path}.clients.{key}"), found, PROXY_TIME_RANGE);
        }
        if let Some(queue) = gateway.queue {
            self.queue(&format!("{path}.queue"), gateway, queue);
        }
        let Some(upstream) = &gateway.upstream else {
            let what = "the key \"upstream\" is missing: the servers to which requests are passed";
            return self.fault(path, what);
        };
        self.upstream(&format!("{path}.upstream"), gateway, upstream);
    }

    /// Only `gap` lets requests wait. All gateways of such a service must be able to: one that cannot would
    /// have to admit at once whom the policy lets wait.
    fn queue(&mut self, path: &str, gateway: &GatewayConfig, queue: ProxyQueue) {
        self.span(&format!("{path}.longest_wait"), queue.longest_wait, QUEUE_WAIT_RANGE);
        let config = self.config;
        let waits = |service: &&ServiceConfig| {
            service.policy.name == "gap" && gateway.waits(&service.name).is_some()
        };
        let mut waiting = config.services.iter().filter(waits).peekable();
        if waiting.peek().is_none() {
            let what = "nothing waits here: no route leads to a service with policy: {name: gap}";
            self.fault(path, what);
        }
        for service in waiting {
            let cannot = |other: &&GatewayConfig| {
                other.waits(&service.name).is_some_and(|wait| wait == Nanos::ZERO)
            };
            if let Some(other) = config.gateways.iter().find(cannot) {
                let (service, other) = (&service.name, &other.name);
                let what = format!(
                    "the service {service:?} has routes of the gateway {other:?}, too, which has no queue"
                );
                self.fault(path, what);
            }
        }
    }

    fn upstream(&mut self, path: &str, gateway: &GatewayConfig, upstream: &Upstream) {
        for (at, server) in upstream.servers.iter().enumerate() {
            let path = format!("{path}.servers[{at}]");
            if *server == gateway.listen {
                self.fault(&path, format!("found {server}, which is the proxy itself"));
            } else if upstream.servers[..at].contains(server) {
                self.fault(&path, format!("found {server} a second time"));
            }
        }
        for (key, found) in [
            ("connect_timeout", upstream.connect_timeout),
            ("response_timeout", upstream.response_timeout),
            ("idle_timeout", upstream.idle_timeout),
        ] {
            self.span(&format!("{path}.{key}"), found, PROXY_TIME_RANGE);
        }
    }

    fn route(&mut self, path: &str, route: &RouteConfig) {
        let config = self.config;
        let names: Vec<String> = config.services.iter().map(|s| s.name.clone()).collect();
        self.known(&format!("{path}.service"), "service", &route.service, &names);
        let Some(service) = config.services.iter().find(|s| s.name == route.service) else {
            return;
        };
        if let Some(class) = &route.class {
            let classes: Vec<String> = service.classes.iter().map(|c| c.name.clone()).collect();
            self.known(&format!("{path}.class"), "class of the service", class, &classes);
        }
        if let Some(bucket) = &route.bucket {
            let requests = service.requests.iter();
            let buckets: Vec<String> =
                requests.flat_map(|r| &r.buckets).map(|b| b.name.clone()).collect();
            self.known(&format!("{path}.bucket"), "bucket of the service", bucket, &buckets);
        }
    }

    fn unreachable(&mut self, path: &str, routes: &[RouteConfig]) {
        for (i, route) in routes.iter().enumerate() {
            let Some(first) = routes[..i].iter().position(|earlier| earlier.covers(route)) else {
                continue;
            };
            let line = self.places.of(&format!("{path}.routes[{first}]")).line;
            let earlier = format!("routes[{first}] (line {line})");
            let message = if route.covers(&routes[first]) {
                format!("it matches exactly what {earlier} matches, which comes first")
            } else {
                format!(
                    "it is never reached: {earlier} comes first and matches all of its requests"
                )
            };
            self.fault(&format!("{path}.routes[{i}]"), message);
        }
    }

    /// Two sockets at one address: the second could not be opened.
    fn collisions(&mut self) {
        let config = self.config;
        let mut taken: Vec<(Kind, Endpoint, String)> = Vec::new();
        let socket = Endpoint::Unix(config.daemon.socket.clone());
        taken.push((Kind::Stream, socket, "daemon.socket".into()));
        if let Some(address) = config.daemon.http.0 {
            taken.push((Kind::Stream, Endpoint::Ip(address), "daemon.http".into()));
        }
        if let Some(address) = config.cluster.as_ref().and_then(|cluster| cluster.listen.as_ref()) {
            let endpoint = Endpoint::Ip(address.0);
            taken.push((Kind::Stream, endpoint, "cluster.listen".into()));
        }
        for service in &config.services {
            let Some(agent) = &service.agent_check else { continue };
            let path = format!("services.{}.agent_check.listen", step(&service.name));
            let listen = (Kind::Stream, &agent.listen);
            let first = taken.iter().find(|(other, at, _)| collide(listen, (*other, at)));
            if let Some((_, shown, of)) = first {
                let line = self.places.of(of).line;
                let what = format!(
                    "found {}, which is in use by {of} ({shown}, line {line})",
                    agent.listen
                );
                self.fault(&path, what);
            }
            taken.push((Kind::Stream, agent.listen.clone(), path));
        }
        let mut wanted = BTreeMap::new();
        for (at, gateway) in config.gateways.iter().enumerate() {
            let path = format!("gateways.{}", step(&gateway.name));
            let listen = Some((Kind::Stream, &gateway.listen));
            let completions = gateway.completions.as_ref().map(|c| (Kind::Datagram, c));
            wanted.insert((at, 0), (listen, format!("{path}.listen")));
            wanted.insert((at, 1), (completions, format!("{path}.completions")));
        }
        for (socket, path) in wanted.into_values() {
            let Some((kind, endpoint)) = socket else { continue };
            let first = taken.iter().find(|(other, at, _)| collide((kind, endpoint), (*other, at)));
            if let Some((_, shown, of)) = first {
                let line = self.places.of(of).line;
                let what =
                    format!("found {endpoint}, which is in use by {of} ({shown}, line {line})");
                self.fault(&path, what);
            } else {
                taken.push((kind, endpoint.clone(), path));
            }
        }
    }
}

fn collide((kind, mine): (Kind, &Endpoint), (other, theirs): (Kind, &Endpoint)) -> bool {
    match (mine, theirs) {
        // One file holds one socket, of whatever kind.
        (Endpoint::Unix(mine), Endpoint::Unix(theirs)) => mine == theirs,
        (Endpoint::Ip(mine), Endpoint::Ip(theirs)) => kind == other && overlap(mine, theirs),
        _ => false,
    }
}

/// Of two addresses with one port: the same, or one of them is every address of the family. An IPv6
/// socket at `[::]` takes IPv4 connections as well.
fn overlap(mine: &SocketAddr, theirs: &SocketAddr) -> bool {
    let both = [mine.ip().to_canonical(), theirs.ip().to_canonical()];
    let any = both.iter().any(|ip| ip.is_unspecified());
    let all = both.iter().any(|ip| ip.is_unspecified() && ip.is_ipv6());
    let family = both[0].is_ipv4() == both[1].is_ipv4();
    mine.port() == theirs.port() && (both[0] == both[1] || all || (any && family))
}
