// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of a configuration: what no schema can say. All faults at once.

use super::{cluster, flowspec, in_band, router};
mod abacus;
mod classes;
mod gateways;
mod requests;
mod tables;
mod throttle;

use super::error::{ConfigError, step};
use super::name::name_fault;
use super::presets::Preset;
use super::shape::Places;
use super::text::show_span;
use super::types::*;
use super::{Registry, suggest};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use tidegate_model::{PRIORITIES, RATE_MIN};
use tidegate_units::{Nanos, Rate};

/// The keys of `control` that each controller knows, `name` aside.
const CONTROL_KEYS: [(&str, &[&str]); 3] = [
    ("default", &["min_rate", "ceiling"]),
    (
        "syn",
        &[
            "rate",
            "burst",
            "min_rate",
            "ceiling",
            "accept_queue",
            "cpu",
            "gain",
            "derivative_gain",
            "variant",
        ],
    ),
    ("fixed", &["rate", "burst"]),
];

/// The name of the class of what no class names.
pub const CLASS_DEFAULT: &str = "default";

pub(super) fn check(config: &Config, places: &Places, registry: &Registry) -> Vec<ConfigError> {
    let mut check = Check { config, places, registry, errors: Vec::new() };
    check.interfaces();
    for service in &config.services {
        check.service(service);
    }
    check.gateways();
    check.router_classes();
    check.tables();
    check.listeners();
    check.exempt();
    check.daemon();
    check.errors.extend(cluster::check(config, places));
    check.errors.extend(flowspec::check(config, places));
    check.errors.extend(router::check(config, places));
    check.errors.extend(in_band::check(config, places));
    check.errors
}

struct Check<'a> {
    config: &'a Config,
    places: &'a Places,
    registry: &'a Registry,
    errors: Vec<ConfigError>,
}

impl Check<'_> {
    fn fault(&mut self, path: &str, message: impl Into<String>) {
        self.errors.push(self.places.error(path, message));
    }

    fn interfaces(&mut self) {
        let mut seen = BTreeMap::new();
        for (i, interface) in self.config.interfaces.iter().enumerate() {
            let path = format!("interfaces[{i}].name");
            let name = &interface.name;
            if let Some(why) = interface_name_fault(name) {
                self.fault(&path, format!("found {name:?}: {why}"));
            } else if let Some(first) = seen.insert((name, &interface.namespace), i) {
                self.fault(&path, format!("found {name:?}, which is interfaces[{first}] already"));
            }
            self.link(i, interface);
        }
    }

    /// An interface to the servers is watched, and nothing else.
    fn link(&mut self, i: usize, interface: &InterfaceConfig) {
        if interface.side == Side::Clients {
            return;
        }
        let unhooked = "an interface with side: servers has no hook; leave the key out";
        if interface.namespace.is_some() {
            let why = "the queue of an interface in another namespace is not watched";
            self.fault(&format!("interfaces[{i}].namespace"), why);
        }
        if interface.attach != Attach::Auto {
            self.fault(&format!("interfaces[{i}].attach"), unhooked);
        }
        if interface.trust_dscp {
            self.fault(&format!("interfaces[{i}].trust_dscp"), unhooked);
        }
        if self.config.hooked().next().is_none() {
            let why = "no interface has side: clients, so no packet would be evaluated";
            self.fault(&format!("interfaces[{i}].side"), why);
        }
    }

    fn service(&mut self, service: &ServiceConfig) {
        let path = format!("services.{}", step(&service.name));
        if let Some(why) = name_fault(&service.name) {
            self.fault(&path, format!("found the name {:?}: {why}", service.name));
        }
        self.reached(&path, service);
        self.span(&format!("{path}.objective"), service.objective, OBJECTIVE_RANGE);
        self.policy(&format!("{path}.policy"), &service.policy);
        self.control(&format!("{path}.control"), &service.control);
        self.rate_of_policy(&format!("{path}.control"), &service.policy, &service.control);
        if let Some(cgroup) = &service.process.cgroup {
            self.absolute(&format!("{path}.process.cgroup"), cgroup);
        }
        self.classes(&path, service);
        self.rate(&format!("{path}.datagrams"), service.datagrams);
        self.requests(service);
        self.agent_check(&path, service);
    }

    fn span(&mut self, path: &str, found: Nanos, (min, max): (Nanos, Nanos)) {
        if found < min || found > max {
            let [found, min, max] = [found, min, max].map(show_span);
            self.fault(path, format!("found {found}; allowed: {min} to {max}"));
        }
    }

    fn absolute(&mut self, path: &str, found: &Path) {
        let plain = found.components().all(|c| !matches!(c, std::path::Component::ParentDir));
        if !found.is_absolute() || !plain {
            let shown = found.display();
            self.fault(
                path,
                format!("found \"{shown}\"; allowed: an absolute path without \"..\""),
            );
        }
    }

    fn policy(&mut self, path: &str, policy: &PolicyConfig) {
        let known = &self.registry.policies;
        self.known(&format!("{path}.name"), "policy", &policy.name, known);
        self.policy_keys(path, policy);
        if policy.is_abacus() {
            self.abacus(path, policy);
        }
        self.throttle(path, policy, PRIORITIES - 1);
    }

    fn control(&mut self, path: &str, control: &ControlConfig) {
        self.known(
            &format!("{path}.name"),
            "controller",
            &control.name,
            &self.registry.controllers,
        );
        let given = [
            ("rate", control.rate.is_some()),
            ("burst", control.burst.is_some()),
            ("min_rate", control.min_rate.is_some()),
            ("ceiling", control.ceiling.is_some()),
            ("accept_queue", control.accept_queue.is_some()),
            ("cpu", control.cpu.is_some()),
            ("gain", control.gain.is_some()),
            ("derivative_gain", control.derivative_gain.is_some()),
            ("variant", control.variant.is_some()),
        ];
        if let Some((name, keys)) = CONTROL_KEYS.iter().find(|(name, _)| *name == control.name) {
            for (key, _) in given.iter().filter(|(key, given)| *given && !keys.contains(key)) {
                let allowed = keys.join(", ");
                let message = format!("the controller {name:?} has no {key}; it has: {allowed}");
                self.fault(&format!("{path}.{key}"), message);
            }
        }
        let rates =
            [("rate", control.rate), ("min_rate", control.min_rate), ("ceiling", control.ceiling)];
        for (key, rate) in rates {
            self.rate(&format!("{path}.{key}"), rate);
        }
        let (min_rate, ceiling) = (control.min_rate, control.ceiling);
        if let (Some(min_rate), Some(ceiling)) = (min_rate, ceiling)
            && min_rate > ceiling
        {
            self.fault(
                &format!("{path}.min_rate"),
                format!("found {min_rate}, above the ceiling of {ceiling}"),
            );
        }
    }

    fn rate(&mut self, path: &str, rate: Option<Rate>) {
        let Some(rate) = rate else { return };
        if rate.get() < RATE_MIN || rate.get() > RATE_MAX {
            let found = rate.get();
            self.fault(
                path,
                format!("found {found}/s; allowed: {RATE_MIN}/s to {RATE_MAX}/s (what is refused must be able to try again)"),
            );
        }
    }

    fn known(&mut self, path: &str, what: &str, name: &str, known: &[String]) {
        if !known.iter().any(|k| k == name) {
            let hint = suggest::phrase(name, known);
            let list =
                if known.is_empty() { "none is configured".into() } else { known.join(", ") };
            self.errors.push(
                self.places
                    .error(path, format!("found {name:?}: no such {what}{hint}; allowed: {list}")),
            );
        }
    }

    /// The same entry in two places is a fault. `*` stands for both families, so `*:80` and
    /// `0.0.0.0:80` collide; an exact address beside a wildcard of another service is allowed and
    /// wins, as it does in the kernel's own look-up of listeners.
    fn listeners(&mut self) {
        let mut seen: BTreeMap<(IpAddr, u16), (String, String)> = BTreeMap::new();
        let config = self.config;
        for service in &config.services {
            for (i, listen) in service.listen.iter().enumerate() {
                let path = format!("services.{}.listen[{i}]", step(&service.name));
                let mut collision = None;
                for entry in listen.entries() {
                    let mine = (path.clone(), listen.to_string());
                    if let Some(first) = seen.insert(entry, mine) {
                        collision.get_or_insert(first);
                    }
                }
                if let Some((first, shown)) = collision {
                    let line = self.places.of(&first).line;
                    self.fault(
                        &path,
                        format!("found {listen}, which overlaps {shown} ({first}, line {line})"),
                    );
                }
            }
        }
    }

    fn exempt(&mut self) {
        let sources = &self.config.exempt.sources;
        let v4: Vec<Ipv4Net> = sources
            .iter()
            .filter_map(|n| if let IpNet::V4(n) = n { Some(*n) } else { None })
            .collect();
        let v6: Vec<Ipv6Net> = sources
            .iter()
            .filter_map(|n| if let IpNet::V6(n) = n { Some(*n) } else { None })
            .collect();
        let all4 = Ipv4Net::aggregate(&v4).iter().any(|n| n.prefix_len() == 0);
        let all6 = Ipv6Net::aggregate(&v6).iter().any(|n| n.prefix_len() == 0);
        for (family, _) in [("IPv4", all4), ("IPv6", all6)].iter().filter(|(_, all)| *all) {
            self.fault(
                "exempt.sources",
                format!("together they cover all of {family}, so nothing would ever be refused; use mode: shadow for that"),
            );
        }
        let outside = self.config.hooked().all(|interface| interface.namespace.is_none());
        let node = self.config.exempt.presets.iter().position(|of| *of == Preset::Node);
        if let Some(index) = node.filter(|_| outside) {
            self.fault(
                &format!("exempt.presets[{index}]"),
                "found node, and no interface has `namespace`: the kubelet's probes do not come by the node's own \
                 interfaces, so this would exempt nothing".to_owned(),
            );
        }
        let mut seen = BTreeMap::new();
        for (i, port) in self.config.exempt.ports.iter().enumerate() {
            let path = format!("exempt.ports[{i}]");
            if let Some(first) = seen.insert(port, i) {
                self.fault(&path, format!("found {port}, which is ports[{first}] already"));
            }
            self.port_of_service(&path, *port);
        }
    }

    /// An exempt port cannot be a service's: the service would never be protected.
    fn port_of_service(&mut self, path: &str, port: u16) {
        let config = self.config;
        let owner = config.services.iter().find(|s| s.listen.iter().any(|l| l.port == port));
        if let Some(service) = owner {
            let name = &service.name;
            self.fault(
                path,
                format!(
                    "found {port}, a port of the service {name:?}, which would never be protected"
                ),
            );
        }
    }

    fn daemon(&mut self) {
        let daemon = &self.config.daemon;
        if daemon.tick > TICK_RANGE.1 {
            let [found, min, max] = [daemon.tick, TICK_RANGE.0, TICK_RANGE.1].map(show_span);
            let message = format!(
                "found {found}; allowed: {min} to {max} (each tick renews the lease, and from 3s without one on limits open)"
            );
            self.fault("daemon.tick", message);
        } else {
            self.span("daemon.tick", daemon.tick, TICK_RANGE);
        }
        self.absolute("daemon.socket", &daemon.socket);
        let length = daemon.socket.as_os_str().len();
        if length > SOCKET_PATH_MAX {
            let message = format!(
                "found a path of {length} bytes; a Unix socket's has at most {SOCKET_PATH_MAX}"
            );
            self.fault("daemon.socket", message);
        }
        self.absolute("daemon.pins", &daemon.pins);
    }
}

/// Longest path of a Unix socket, in bytes (sockaddr_un without the final zero).
const SOCKET_PATH_MAX: usize = 107;

/// What is wrong with the name of an interface, if anything (the kernel's dev_valid_name).
fn interface_name_fault(name: &str) -> Option<String> {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    let why: &dyn Display = match () {
        () if name.is_empty() => &"an interface has a name",
        () if name.len() > INTERFACE_NAME_MAX => {
            &format!("a name has at most {INTERFACE_NAME_MAX} bytes")
        }
        () if name == "." || name == ".." || name.contains(bad) => &"no interface can be called so",
        () => return None,
    };
    Some(why.to_string())
}
