// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What no schema can say of a cluster: references, duplicates, sides that lack their other half.

use super::{
    ClusterConfig, GrantsConfig, HOLD_RANGE, PeerConfig, SentLimitConfig, TargetConfig,
    VALIDITY_RANGE, When, bus, routers,
};
use crate::error::{ConfigError, step};
use crate::name::name_fault;
use crate::shape::Places;
use crate::suggest;
use crate::text::show_span;
use crate::types::{Config, ServiceConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use tidegate_model::remote::{REMOTE_VALIDITY_MAX, Scope, Unit};
use tidegate_units::Nanos;

pub(crate) fn check(config: &Config, places: &Places) -> Vec<ConfigError> {
    let mut check = Check { config, places, errors: Vec::new() };
    if let Some(cluster) = &config.cluster {
        check.cluster(cluster);
    }
    for service in &config.services {
        check.backends(service);
        check.datagrams(service);
    }
    check.errors
}

struct Check<'a> {
    config: &'a Config,
    places: &'a Places,
    errors: Vec<ConfigError>,
}

impl Check<'_> {
    fn fault(&mut self, path: &str, message: impl Into<String>) {
        self.errors.push(self.places.error(path, message));
    }

    fn cluster(&mut self, cluster: &ClusterConfig) {
        let files = [
            ("certificate", &cluster.certificate),
            ("key", &cluster.key),
            ("ca_file", &cluster.ca_file),
        ];
        for (key, file) in files {
            self.plain(&format!("cluster.{key}"), file);
        }
        self.delegation(cluster);
        let heard =
            !cluster.peers.is_empty() || (cluster.bus.is_none() && !cluster.routers.is_empty());
        match (cluster.listen.is_some(), !heard) {
            (true, true) => {
                self.fault("cluster.listen", "nobody may report here: name them under \"peers\"");
            }
            (false, false) => {
                let why = "they cannot report: the key \"listen\" is missing";
                let key = if cluster.peers.is_empty() { "routers" } else { "peers" };
                self.fault(&format!("cluster.{key}"), why);
            }
            (false, true) if cluster.report_to.is_empty() && cluster.bus.is_none() => {
                let why = "it neither takes reports (listen, peers) nor sends any (report_to)";
                self.fault("cluster", why);
            }
            _ => {}
        }
        self.peers(cluster);
        self.targets(cluster);
        let faults = routers::faults(self.config, cluster);
        faults.into_iter().for_each(|(path, why)| self.fault(&path, why));
        self.bus(cluster);
    }

    fn bus(&mut self, cluster: &ClusterConfig) {
        bus::faults(cluster).into_iter().for_each(|(path, why)| self.fault(&path, why));
        for (key, file) in cluster.bus.iter().flat_map(|bus| bus.files()) {
            self.plain(&format!("cluster.bus.{key}"), file);
        }
    }

    fn plain(&mut self, path: &str, file: &Path) {
        if !plain(file) {
            let shown = file.display();
            let message = format!("found \"{shown}\"; allowed: an absolute path without \"..\"");
            self.fault(path, message);
        }
    }

    /// All steps lie within the longest validity of a remote limit.
    fn relaxation(&mut self, grants: &GrantsConfig) {
        let (min, max) = HOLD_RANGE;
        if let Some(found) = grants.hold.filter(|hold| *hold < min || *hold > max) {
            let [found, min, max] = [found, min, max].map(show_span);
            let message = format!("found {found}; allowed: {min} to {max}");
            return self.fault("cluster.grants.hold", message);
        }
        let (hold, steps) = grants.relaxation();
        let all = Nanos(hold.0.saturating_mul(u64::from(steps) + 1));
        if all > REMOTE_VALIDITY_MAX {
            let [hold, all, most] = [hold, all, REMOTE_VALIDITY_MAX].map(show_span);
            let message = format!(
                "hold and {steps} steps, each of {hold}, are {all}; allowed: at most {most}"
            );
            self.fault("cluster.grants", message);
        }
    }

    /// Who may limit this host while it is congested, and what it needs to limit others.
    fn delegation(&mut self, cluster: &ClusterConfig) {
        if let Some(grants) = &cluster.grants {
            self.plain("cluster.grants.operator", &grants.operator);
            for (i, file) in grants.files.iter().enumerate() {
                self.plain(&format!("cluster.grants.files[{i}]"), file);
            }
            if let Some(file) = &grants.revoked {
                self.plain("cluster.grants.revoked", file);
            }
            self.relaxation(grants);
            if self.config.links().next().is_none() {
                let why = "no interface has side: servers, so this host is never congested";
                self.fault("cluster.grants", why);
            }
            if cluster.peers.iter().all(|peer| peer.limits_when_congested.is_empty()) {
                let why =
                    "no peer has the key \"limits_when_congested\", so nobody may use a grant";
                self.fault("cluster.grants", why);
            }
        }
        if let Some(signing) = &cluster.signing {
            self.plain("cluster.signing.key", &signing.key);
            self.plain("cluster.signing.grant", &signing.grant);
        }
    }

    fn peers(&mut self, cluster: &ClusterConfig) {
        let mut identities = BTreeMap::new();
        for peer in &cluster.peers {
            let path = format!("cluster.peers.{}", step(&peer.name));
            self.name(&path, &peer.name);
            if let Some(first) = identities.insert(&peer.identity, &peer.name) {
                let message =
                    format!("found {}, which is the peer {first:?} already", peer.identity);
                self.fault(&format!("{path}.identity"), message);
            }
            let mut seen = BTreeSet::new();
            for (i, service) in peer.services.iter().enumerate() {
                let at = format!("{path}.services[{i}]");
                self.name(&at, service);
                if !seen.insert(service) {
                    self.fault(&at, format!("found {service:?} a second time"));
                }
            }
            self.scopes(&format!("{path}.limits"), &peer.limits);
            self.scopes(&format!("{path}.limits_when_congested"), &peer.limits_when_congested);
            self.when_congested(&format!("{path}.limits_when_congested"), cluster, peer);
        }
    }

    /// What a peer may limit while this host is congested, it may not limit otherwise.
    fn when_congested(&mut self, path: &str, cluster: &ClusterConfig, peer: &PeerConfig) {
        for (i, scope) in peer.limits_when_congested.iter().enumerate() {
            let at = format!("{path}[{i}]");
            if is_named(scope) {
                self.fault(&at, no_destination(scope));
                continue;
            }
            let reached = |scope: &Scope, s: &ServiceConfig| scope.reaches(&s.name, &s.listen);
            let both = self.config.services.iter().find_map(|service| {
                let mut plain = peer.limits.iter().filter(|_| reached(scope, service));
                plain.find(|plain| reached(plain, service)).map(|plain| (service, plain))
            });
            if let Some((service, plain)) = both {
                let why = format!(
                    "{plain} of \"limits\" reaches the service {:?} as well, so that limits of it need neither congestion nor a signature",
                    service.name
                );
                self.fault(&at, format!("found {scope}: {why}"));
            }
        }
        if !peer.limits_when_congested.is_empty() && cluster.grants.is_none() {
            self.fault(path, "such limits need a grant: cluster.grants is missing");
        }
    }

    /// Each scope of a peer has services here, or its limits would have no effect.
    fn scopes(&mut self, path: &str, scopes: &[Scope]) {
        let known: Vec<String> = self.config.services.iter().map(|s| s.name.clone()).collect();
        let mut seen = BTreeSet::new();
        for (i, scope) in scopes.iter().enumerate() {
            let at = format!("{path}[{i}]");
            let reached = |service: &ServiceConfig| scope.reaches(&service.name, &service.listen);
            let reaches = self.config.services.iter().any(reached);
            match scope {
                _ if !seen.insert(scope) => self.fault(&at, format!("found {scope} a second time")),
                _ if reaches => self.takes_a_rate(&at, reached),
                Scope::Service(name) => {
                    let hint = suggest::phrase(name, &known);
                    let list = known.join(", ");
                    let message =
                        format!("found {name:?}: no such service{hint}; there are: {list}");
                    self.fault(&at, message);
                }
                Scope::Bucket { service, bucket } => self.bucket(&at, service, bucket),
                Scope::Destination { .. } => {
                    let why = "no service listens on addresses of this scope only";
                    self.fault(&at, format!("found {scope}: {why}"));
                }
            }
        }
    }

    /// A request bucket that there is, and whose policy takes a rate.
    fn bucket(&mut self, path: &str, service: &str, name: &str) {
        let of = self.config.services.iter().find(|known| known.name == service);
        let buckets = of.and_then(|of| of.requests.as_ref()).map(|requests| &requests.buckets[..]);
        let buckets = buckets.unwrap_or_default();
        let known: Vec<String> = buckets.iter().map(|bucket| bucket.name.clone()).collect();
        match buckets.iter().find(|bucket| bucket.name == name) {
            Some(bucket) if bucket.takes_rate() => {}
            Some(bucket) => {
                let policy = bucket.policy_name();
                let why = format!("found {name:?}, whose policy {policy:?} takes no rate");
                self.fault(path, why);
            }
            None => {
                let hint = suggest::phrase(name, &known);
                let list = if known.is_empty() { "none".into() } else { known.join(", ") };
                let why = format!(
                    "found {name:?}: the service {service:?} has no such bucket{hint}; there are: {list}"
                );
                self.fault(path, why);
            }
        }
    }

    /// A policy that takes no rate would not know of the limit.
    fn takes_a_rate(&mut self, path: &str, reached: impl Fn(&ServiceConfig) -> bool) {
        let mut services = self.config.services.iter().filter(|service| reached(service));
        if let Some(service) = services.find(|service| !service.policy.takes_rate()) {
            let (name, policy) = (&service.name, &service.policy.name);
            let what = format!(
                "it reaches the service {name:?}, whose policy {policy:?} takes no rate, so that a limit would do nothing"
            );
            self.fault(path, what);
        }
    }

    fn targets(&mut self, cluster: &ClusterConfig) {
        let mut identities = BTreeMap::new();
        for target in &cluster.report_to {
            let path = format!("cluster.report_to.{}", step(&target.name));
            self.name(&path, &target.name);
            if let Some(first) = identities.insert(&target.identity, &target.name) {
                let message =
                    format!("found {}, to which {first:?} reports already", target.identity);
                self.fault(&format!("{path}.identity"), message);
            }
            self.target(&path, target);
            self.way(&path, cluster, target);
        }
    }

    /// What is only sent to congested routers, and which router is behind which.
    fn way(&mut self, path: &str, cluster: &ClusterConfig, target: &TargetConfig) {
        let pushed = target.limits.iter().position(|limit| limit.when == When::Congested);
        if let Some(i) = pushed.filter(|_| cluster.signing.is_none()) {
            let why = "such limits are signed: cluster.signing is missing";
            self.fault(&format!("{path}.limits[{i}].when"), why);
        }
        let next = |name: &str| cluster.report_to.iter().find(|other| other.name == name);
        let (mut at, mut hops) = (target, 0);
        while let Some(behind) = &at.behind {
            let Some(other) = next(behind).filter(|_| hops < cluster.report_to.len()) else {
                let known = next(behind).is_some();
                let why =
                    if known { "it is behind itself" } else { "no such name under report_to" };
                self.fault(&format!("{path}.behind"), format!("found {behind:?}: {why}"));
                return;
            };
            (at, hops) = (other, hops + 1);
        }
    }

    fn target(&mut self, path: &str, target: &TargetConfig) {
        let (min, max) = VALIDITY_RANGE;
        let tick = self.config.daemon.tick;
        let min = min.max(tick + tick);
        if let Some(found) = target.validity.filter(|v| *v < min || *v > max) {
            let [found, min, max] = [found, min, max].map(show_span);
            let message = format!("found {found}; allowed: {min} (two ticks at least) to {max}");
            self.fault(&format!("{path}.validity"), message);
        }
        let known: Vec<String> = self.config.services.iter().map(|s| s.name.clone()).collect();
        let mut seen = BTreeSet::new();
        for (i, service) in target.services.iter().enumerate() {
            let at = format!("{path}.services[{i}]");
            if !known.contains(service) {
                let hint = suggest::phrase(service, &known);
                let list = known.join(", ");
                let message =
                    format!("found {service:?}: no such service{hint}; there are: {list}");
                self.fault(&at, message);
            } else if !seen.insert(service) {
                self.fault(&at, format!("found {service:?} a second time"));
            }
        }
        let mut seen = BTreeSet::new();
        for (i, limit) in target.limits.iter().enumerate() {
            let (at, service) = (format!("{path}.limits[{i}]"), &limit.service);
            if !known.contains(service) {
                let hint = suggest::phrase(service, &known);
                let list = known.join(", ");
                let message =
                    format!("found {service:?}: no such service{hint}; there are: {list}");
                self.fault(&format!("{at}.service"), message);
            }
            if limit.when == When::Congested && is_named(&limit.scope) {
                self.fault(&format!("{at}.scope"), no_destination(&limit.scope));
            }
            self.form(&at, limit);
            if !seen.insert(&limit.scope) {
                self.fault(&format!("{at}.scope"), format!("found {} a second time", limit.scope));
            }
        }
    }

    /// What of the keys of a limit that is sent has no meaning beside the others.
    fn form(&mut self, path: &str, limit: &SentLimitConfig) {
        if let Some(bucket) = &limit.bucket {
            self.bucket(&format!("{path}.bucket"), &limit.service, bucket);
        }
        if limit.when == When::Congested && limit.is_fine() {
            let why = "a limit for congested routers is a rate of connections: leave out \"counts\", \"bucket\", \"kind\" and \"priority\"";
            self.fault(&format!("{path}.when"), why);
            return;
        }
        let requests = limit.unit() == Unit::Requests;
        if limit.priority > 0 && !requests {
            let why = "only limits on requests are about priorities: write counts: requests";
            self.fault(&format!("{path}.priority"), why);
        }
        if matches!(limit.scope, Scope::Bucket { .. }) && !requests {
            let why =
                format!("found {}, a bucket of requests: write counts: requests", limit.scope);
            self.fault(&format!("{path}.scope"), why);
        }
    }

    fn backends(&mut self, service: &ServiceConfig) {
        let path = format!("services.{}.backends", step(&service.name));
        let none: &[PeerConfig] = &[];
        let peers = self.config.cluster.as_ref().map_or(none, |cluster| &cluster.peers);
        let names: Vec<String> = peers.iter().map(|peer| peer.name.clone()).collect();
        let mut seen = BTreeSet::new();
        for (i, backend) in service.backends.iter().enumerate() {
            let at = format!("{path}[{i}]");
            let Some(peer) = peers.iter().find(|peer| peer.name == backend.peer) else {
                let found = &backend.peer;
                let hint = suggest::phrase(found, &names);
                let list = if names.is_empty() { "none".into() } else { names.join(", ") };
                let message = format!(
                    "found {found:?}: no such peer{hint}; under cluster.peers there are: {list}"
                );
                self.fault(&format!("{at}.peer"), message);
                continue;
            };
            if !peer.services.contains(&backend.service) {
                let (found, list) = (&backend.service, peer.services.join(", "));
                let hint = suggest::phrase(found, &peer.services);
                let message = format!(
                    "found {found:?}, which {:?} may not report{hint}; it may report: {list}",
                    peer.name
                );
                self.fault(&format!("{at}.service"), message);
            }
            if !seen.insert((&backend.peer, &backend.service)) {
                self.fault(&at, "found a second time");
            }
        }
        let process = &service.process;
        if !service.backends.is_empty() && (process.cgroup.is_some() || process.cpus.is_some()) {
            let why =
                "the service runs on its back-ends, which report its resources; leave the key out";
            self.fault(&format!("services.{}.process", step(&service.name)), why);
        }
    }

    /// What a service can take is told to congested routers, or by FlowSpec, and to nobody else.
    fn datagrams(&mut self, service: &ServiceConfig) {
        let targets = self.config.cluster.iter().flat_map(|cluster| &cluster.report_to);
        let told = |target: &TargetConfig| {
            let mut limits = target.limits.iter().filter(|limit| limit.when == When::Congested);
            limits.any(|limit| limit.service == service.name)
        };
        let flowspec = self.config.flowspec.as_ref();
        let by_route = flowspec.is_some_and(|flowspec| flowspec.tells_datagrams(service));
        if service.datagrams.is_some() && !by_route && !targets.into_iter().any(told) {
            let why = "no router is told: no limit of cluster.report_to with when: congested is of this service, and no \
                       flowspec.export in packets";
            self.fault(&format!("services.{}.datagrams", step(&service.name)), why);
        }
    }

    fn name(&mut self, path: &str, name: &str) {
        if let Some(why) = name_fault(name) {
            self.fault(path, format!("found the name {name:?}: {why}"));
        }
    }
}

/// Whether it names something of its receiver.
fn is_named(scope: &Scope) -> bool {
    !matches!(scope, Scope::Destination { .. })
}

/// Grants are of prefixes.
fn no_destination(scope: &Scope) -> String {
    let name = scope.to_string();
    format!(
        "found {name:?}, a service's name; allowed here: an address or prefix with a port, such as \"192.0.2.11:80\", because grants are of these"
    )
}

fn plain(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|c| !matches!(c, Component::ParentDir))
}
