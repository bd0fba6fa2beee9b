// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of classes of clients: of a service, and of the limit of a router. Each source and each DSCP belongs to
//! one class of a list.

use super::{CLASS_DEFAULT, Check, gateways};
use crate::gateways::RouteConfig;
use crate::name::name_fault;
use crate::router::RouterClassConfig;
use crate::types::{ClassConfig, ServiceConfig};
use ipnet::IpNet;
use std::collections::BTreeMap;

/// What tells the clients of a class from others.
struct Clients<'a> {
    name: &'a String,
    sources: &'a [IpNet],
    dscp: Option<u8>,
    /// Routes of gateways can name it, and whether one does.
    by_route: Option<bool>,
}

impl<'a> Clients<'a> {
    fn of_service(class: &'a ClassConfig, by_route: bool) -> Self {
        let ClassConfig { name, sources, dscp, .. } = class;
        Self { name, sources, dscp: *dscp, by_route: Some(by_route) }
    }

    fn of_router(class: &'a RouterClassConfig) -> Self {
        let RouterClassConfig { name, sources, dscp, .. } = class;
        Self { name, sources, dscp: *dscp, by_route: None }
    }
}

impl Check<'_> {
    pub(super) fn classes(&mut self, service: &str, of: &ServiceConfig) {
        let config = self.config;
        let classes = of.classes.iter().map(|class| {
            let by_route = |route: &RouteConfig| route.class.as_ref() == Some(&class.name);
            Clients::of_service(class, gateways::names(config, &of.name, by_route))
        });
        self.clients(&format!("{service}.classes"), classes);
    }

    pub(super) fn router_classes(&mut self) {
        let config = self.config;
        let limit = config.router.as_ref().and_then(|router| router.limit.as_ref());
        let classes = limit.map_or(&[][..], |limit| &limit.classes[..]);
        self.clients("router.limit.classes", classes.iter().map(Clients::of_router));
    }

    fn clients<'a>(&mut self, list: &str, classes: impl Iterator<Item = Clients<'a>>) {
        let mut names = BTreeMap::new();
        let mut sources: BTreeMap<IpNet, usize> = BTreeMap::new();
        let mut marks = BTreeMap::new();
        for (i, class) in classes.enumerate() {
            let path = format!("{list}[{i}]");
            self.class(&path, &class);
            if let Some(first) = names.insert(class.name, i) {
                let message = format!("found {:?}, which is classes[{first}] already", class.name);
                self.fault(&format!("{path}.name"), message);
            }
            for (j, source) in class.sources.iter().enumerate() {
                if let Some(first) = sources.insert(*source, i) {
                    let message =
                        format!("found {source}, which belongs to classes[{first}] already");
                    self.fault(&format!("{path}.sources[{j}]"), message);
                }
            }
            if let Some(dscp) = class.dscp
                && let Some(first) = marks.insert(dscp, i)
            {
                let message = format!("found {dscp}, which belongs to classes[{first}] already");
                self.fault(&format!("{path}.dscp"), message);
            }
        }
    }

    fn class(&mut self, path: &str, class: &Clients<'_>) {
        let at = format!("{path}.name");
        if let Some(why) = name_fault(class.name) {
            self.fault(&at, format!("found the name {:?}: {why}", class.name));
        }
        if class.name == CLASS_DEFAULT {
            self.fault(&at, "found \"default\", which is the class of what no class names");
        }
        if class.sources.is_empty() && class.dscp.is_none() && class.by_route != Some(true) {
            let route = if class.by_route.is_some() {
                ", or a route of a gateway that names it"
            } else {
                ""
            };
            let why = format!("the class matches nothing; it needs sources or dscp{route}");
            self.fault(path, why);
        }
        let trusted = self.config.interfaces.iter().any(|i| i.trust_dscp);
        if class.dscp.is_some() && !trusted {
            let why = "no interface trusts the DSCP; set trust_dscp: true on one whose packets your own network marks";
            self.fault(&format!("{path}.dscp"), why);
        }
    }
}
