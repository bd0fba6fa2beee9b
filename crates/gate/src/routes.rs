// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A configuration as the gate asks it: routes, services, classes, exemptions.

use crate::asked::{Asked, alike};
use crate::classes::Prefixes;
use crate::counters::Tally;
use crate::service::{Bucket, Service};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_config::{ClassConfig, Config, GatewayConfig, RouteConfig, Router, ServiceConfig};
use tidegate_model::PRIORITY_DEFAULT;
use tidegate_units::Nanos;

/// What a configuration makes of requests.
#[derive(Default)]
pub(crate) struct Routing {
    pub(crate) gateways: Vec<Gateway>,
    /// In the order of the configuration; `None`: no route leads there.
    pub(crate) services: Vec<Option<Served>>,
    /// Whose requests are never refused.
    pub(crate) exempt: Prefixes<()>,
}

/// One gateway.
pub(crate) struct Gateway {
    name: String,
    /// What its proxies ask about.
    pub(crate) asked: Arc<Asked>,
    /// The service of all its requests, where they are alike.
    pub(crate) alike: Option<usize>,
    pub(crate) router: Router,
    /// By the place of the route.
    pub(crate) targets: Vec<Option<Target>>,
    /// Whether a route looks at cookies.
    pub(crate) cookies: bool,
    /// Shortest and longest Retry-After.
    pub(crate) retry_after: (Nanos, Nanos),
    pub(crate) rate_limit_fields: bool,
}

/// What a route leads to.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) service: usize,
    class: Option<usize>,
    priority: Option<u8>,
    pub(crate) bucket: Option<usize>,
}

impl Target {
    /// The same for requests of this priority.
    pub(crate) const fn of_priority(self, priority: u8) -> Self {
        Self { priority: Some(priority), ..self }
    }
}

/// A service that routes lead to.
pub(crate) struct Served {
    pub(crate) service: Arc<Service>,
    pub(crate) buckets: Vec<Arc<Bucket>>,
    /// What a peer allows it.
    pub(crate) told: Arc<Bucket>,
    /// By number of the class, so it begins anew when the classes change.
    pub(crate) tally: Arc<Tally>,
    class_names: Vec<String>,
    by_source: Prefixes<usize>,
    /// By class.
    priorities: Vec<u8>,
    bucket_names: Vec<String>,
    /// Classes that stand for the priorities that routes give: with these, what is reserved is right.
    more: Vec<ClassConfig>,
}

impl Served {
    /// Number and priority of the class of a request.
    pub(crate) fn class(&self, target: &Target, client: Option<IpAddr>) -> (usize, u8) {
        let by_source = || client.and_then(|client| self.by_source.get(client));
        let class = target.class.or_else(by_source).unwrap_or_default();
        let of_class = self.priorities.get(class).copied().unwrap_or(PRIORITY_DEFAULT);
        (class, target.priority.unwrap_or(of_class))
    }

    /// The service with a class for each priority that a route gives.
    pub(crate) fn reserving(&self, config: &ServiceConfig) -> ServiceConfig {
        let mut config = config.clone();
        config.classes.extend(self.more.iter().cloned());
        config
    }
}

impl Routing {
    /// Of a configuration. Services and buckets of the same name go on from what they were.
    pub(crate) fn new(config: &Config, before: &Self) -> Self {
        let routes: Vec<&RouteConfig> =
            config.gateways.iter().flat_map(|gateway| &gateway.routes).collect();
        let service = |service: &ServiceConfig| {
            let here: Vec<&RouteConfig> =
                routes.iter().filter(|route| route.service == service.name).copied().collect();
            (!here.is_empty()).then(|| served(service, &here, before))
        };
        let services: Vec<_> = config.services.iter().map(service).collect();
        let gateways = config.gateways.iter().map(|g| gateway(g, config, before)).collect();
        let exempt = Prefixes::new(config.exempt.sources.iter().map(|net| (*net, ())));
        Self { gateways, services, exempt }
    }

    pub(crate) fn gateway(&self, name: &str) -> Option<&Gateway> {
        self.gateways.iter().find(|gateway| gateway.name == name)
    }

    pub(crate) fn served(&self, service: usize) -> Option<&Served> {
        self.services.get(service).and_then(Option::as_ref)
    }
}

fn gateway(gateway: &GatewayConfig, config: &Config, before: &Routing) -> Gateway {
    let old = before.gateways.iter().find(|old| old.name == gateway.name);
    let target = |route: &RouteConfig| {
        let service = config.services.iter().position(|s| s.name == route.service)?;
        let of = &config.services[service];
        let class = route.class.as_ref().and_then(|name| {
            // The default class is 0, the others follow.
            of.classes.iter().position(|class| class.name == *name).map(|at| at + 1)
        });
        let requests = of.requests.as_ref();
        let bucket = route.bucket.as_ref().and_then(|name| requests?.bucket(name));
        Some(Target { service, class, priority: route.priority, bucket })
    };
    Gateway {
        name: gateway.name.clone(),
        asked: old.map_or_else(Arc::default, |old| Arc::clone(&old.asked)),
        alike: alike(gateway, config),
        router: Router::new(&gateway.routes),
        targets: gateway.routes.iter().map(target).collect(),
        cookies: gateway.routes.iter().any(|route| route.cookie.is_some()),
        retry_after: (gateway.retry_after.min, gateway.retry_after.max),
        rate_limit_fields: gateway.rate_limit_fields,
    }
}

fn served(config: &ServiceConfig, routes: &[&RouteConfig], before: &Routing) -> Served {
    let mut old = before.services.iter().flatten();
    let old = old.find(|served| *served.service.name == *config.name);
    let known: HashMap<&str, &Arc<Bucket>> = old
        .map(|old| old.bucket_names.iter().map(String::as_str).zip(&old.buckets).collect())
        .unwrap_or_default();
    let bucket_names: Vec<String> = config
        .requests
        .iter()
        .flat_map(|requests| &requests.buckets)
        .map(|bucket| bucket.name.clone())
        .collect();
    let bucket =
        |name: &String| known.get(name.as_str()).map_or_else(Arc::default, |b| Arc::clone(b));
    let class_names: Vec<String> = config.classes.iter().map(|c| c.name.clone()).collect();
    let same = old.filter(|old| old.class_names == class_names);
    let tally = same.map_or_else(Arc::default, |old| Arc::clone(&old.tally));
    let sources = config.classes.iter().enumerate();
    let sources = sources.flat_map(|(at, c)| c.sources.iter().map(move |net| (*net, at + 1)));
    let class = |(at, priority): (usize, u8)| ClassConfig {
        name: format!("route-{at}"),
        sources: Vec::new(),
        dscp: None,
        priority,
        weight: 1,
    };
    let mut priorities: Vec<u8> = routes.iter().filter_map(|route| route.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    Served {
        service: old
            .map_or_else(|| Arc::new(Service::new(&config.name)), |old| Arc::clone(&old.service)),
        buckets: bucket_names.iter().map(bucket).collect(),
        told: old.map_or_else(Arc::default, |old| Arc::clone(&old.told)),
        tally,
        class_names,
        by_source: Prefixes::new(sources),
        priorities: std::iter::once(PRIORITY_DEFAULT)
            .chain(config.classes.iter().map(|class| class.priority))
            .collect(),
        bucket_names,
        more: priorities.into_iter().enumerate().map(class).collect(),
    }
}
