// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What no schema can say of FlowSpec: ranges, references, and services whose limit has no route.

use super::*;
use crate::error::{ConfigError, step};
use crate::name::name_fault;
use crate::shape::Places;
use crate::suggest;
use crate::text::show_span;
use crate::types::Config;
use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path};

pub(crate) fn check(config: &Config, places: &Places) -> Vec<ConfigError> {
    let mut check = Check { config, places, errors: Vec::new() };
    if let Some(flowspec) = &config.flowspec {
        check.flowspec(flowspec);
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

    fn flowspec(&mut self, flowspec: &FlowspecConfig) {
        if let Some(program) = &flowspec.program {
            self.plain("flowspec.program", program);
        }
        let spans = [
            ("between", flowspec.between, BETWEEN_RANGE),
            ("lease", flowspec.lease, LEASE_RANGE),
            ("hold_time", flowspec.hold_time, HOLD_TIME_RANGE),
        ];
        for (key, found, (min, max)) in spans {
            if found < min || found > max {
                let [found, min, max] = [found, min, max].map(show_span);
                let message = format!("found {found}; allowed: {min} to {max}");
                self.fault(&format!("flowspec.{key}"), message);
            }
        }
        if !flowspec.hold_time.0.is_multiple_of(Nanos::SECOND.0) {
            self.fault("flowspec.hold_time", "BGP counts whole seconds");
        }
        let (min, max) = HYSTERESIS_RANGE;
        if !(min..=max).contains(&flowspec.hysteresis.get()) {
            let found = flowspec.hysteresis.get() * 100.0;
            self.fault("flowspec.hysteresis", format!("found {found}%; allowed: 5% to 50%"));
        }
        self.peers(flowspec);
        self.exports(flowspec);
        match &flowspec.import {
            Some(import) => self.import(flowspec, import),
            None if flowspec.export.is_empty() => {
                self.fault("flowspec.export", "neither \"export\" nor \"import\" is there");
            }
            None => {}
        }
    }

    fn import(&mut self, flowspec: &FlowspecConfig, import: &ImportConfig) {
        if flowspec.speaker != SpeakerKind::Gobgp {
            let found = flowspec.speaker.name();
            let message = format!("found {found}; \"import\" needs gobgp");
            self.fault("flowspec.speaker", message);
        }
        if flowspec.shadow {
            let why = "no speaker would run for \"import\", which has its own mode";
            self.fault("flowspec.shadow", format!("found true: {why}"));
        }
        let known: Vec<String> = flowspec.peers.iter().map(|peer| peer.name.clone()).collect();
        if !known.contains(&import.peer) {
            let (found, list) = (&import.peer, known.join(", "));
            let hint = suggest::phrase(found, &known);
            let message = format!("found {found:?}: no such peer{hint}; there are: {list}");
            self.fault("flowspec.import.peer", message);
        }
        if self.config.interfaces.is_empty() {
            let why = "rules hold at interfaces, and \"interfaces\" names none";
            self.fault("flowspec.import", why);
        }
    }

    fn peers(&mut self, flowspec: &FlowspecConfig) {
        let mut seen = BTreeSet::new();
        for peer in &flowspec.peers {
            let path = format!("flowspec.peers.{}", step(&peer.name));
            if let Some(why) = name_fault(&peer.name) {
                self.fault(&path, format!("found the name {:?}: {why}", peer.name));
            }
            if peer.address.is_ipv4() != peer.local.is_ipv4() {
                let why = "both ends of a session have one family";
                self.fault(&format!("{path}.local"), format!("found {}: {why}", peer.local));
            }
            for (key, address) in [("address", peer.address), ("local", peer.local)] {
                if address.is_unspecified() || address.is_multicast() {
                    let message = format!("found {address}, which is no address of a host");
                    self.fault(&format!("{path}.{key}"), message);
                }
            }
            if !seen.insert(peer.address) {
                let message = format!("found {} a second time", peer.address);
                self.fault(&format!("{path}.address"), message);
            }
            if let Some(file) = &peer.password_file {
                self.plain(&format!("{path}.password_file"), file);
            }
        }
    }

    fn exports(&mut self, flowspec: &FlowspecConfig) {
        let config = self.config;
        let known: Vec<String> = config.services.iter().map(|s| s.name.clone()).collect();
        let (mut seen, mut routes, mut whose) = (BTreeSet::new(), 0, HashMap::new());
        for (i, export) in flowspec.export.iter().enumerate() {
            let at = format!("flowspec.export[{i}]");
            let found = &export.service;
            let Some(service) = config.services.iter().find(|s| s.name == *found) else {
                let (hint, list) = (suggest::phrase(found, &known), known.join(", "));
                let message = format!("found {found:?}: no such service{hint}; there are: {list}");
                self.fault(&format!("{at}.service"), message);
                continue;
            };
            if !seen.insert(found) {
                self.fault(&format!("{at}.service"), format!("found {found:?} a second time"));
            }
            if let Some(why) = without_route(config, service) {
                let message = format!("found {found:?}, whose limit has no route: {why}");
                self.fault(&format!("{at}.service"), message);
            }
            for (n, scope) in export.scopes.iter().enumerate() {
                if !matches!(scope, Scope::Destination { .. }) {
                    let name = scope.to_string();
                    let message = format!(
                        "found {name:?}: a router knows no services; allowed here: an address or prefix \
                         with a port, such as \"192.0.2.11:80\""
                    );
                    self.fault(&format!("{at}.scopes[{n}]"), message);
                }
            }
            match export.destinations(service) {
                Some(destinations) => {
                    let of_each = 1 + usize::from(flowspec.tells_datagrams(service));
                    routes += of_each * destinations.len();
                    for scope in destinations {
                        let shown = scope.to_string();
                        let first = *whose.entry(scope).or_insert(found);
                        // A service that stands there twice is told as that.
                        if first != found {
                            let message = format!(
                                "found {shown} a second time: it is a destination of {first:?} as well, and routers \
                                 hold one rate for it"
                            );
                            self.fault(&at, message);
                        }
                    }
                }
                None => {
                    let why = "it listens on every address, which is no destination for a router: name its \
                               addresses with the key \"scopes\"";
                    self.fault(&at, why);
                }
            }
        }
        if routes > usize::from(flowspec.routes) {
            let budget = flowspec.routes;
            let message = format!("found {routes} routes; \"routes\" allows {budget}");
            self.fault("flowspec.export", message);
        }
    }

    fn plain(&mut self, path: &str, file: &Path) {
        let plain =
            file.is_absolute() && file.components().all(|c| !matches!(c, Component::ParentDir));
        if !plain {
            let shown = file.display();
            let message = format!("found \"{shown}\"; allowed: an absolute path without \"..\"");
            self.fault(path, message);
        }
    }
}

/// Why no router can hold the limit of a service.
fn without_route(config: &Config, service: &ServiceConfig) -> Option<&'static str> {
    match () {
        () if config.is_routed(&service.name) => {
            Some("it is limited at a gateway, by requests and not by connections")
        }
        () if service.agent_check.is_some() => {
            Some("HAProxy is told its limit (agent_check), and it is no rate of connections")
        }
        () if service.policy.name == "percent" => {
            Some("its policy refuses a share of what comes, and FlowSpec knows rates only")
        }
        () => None,
    }
}
