// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where each service is limited: at the kernel or at the gate.
//!
//! A service with a route is limited at the gate. While none of its gateways is open nobody asks there; then
//! the kernel limits its connections, if it has addresses and there are interfaces: a socket that cannot be
//! opened must not leave it without any limit. A service that the kernel limits stays there until a gateway
//! of it is open.

use std::collections::BTreeSet;
use tidegate_config::{Config, Endpoint};
use tidegate_units::Nanos;

/// For so long a gateway may take to open: a predecessor that leaves holds its socket for less.
const OPENS_WITHIN: Nanos = Nanos::from_secs(3);

/// A service.
#[derive(Debug)]
struct Place {
    name: String,
    /// The places of the gateways that lead to it.
    gateways: Vec<usize>,
    /// Whether the kernel can limit it.
    has_kernel: bool,
    at_gate: bool,
    /// It has come here just now: what was counted before is not comparable.
    changed: bool,
    /// Since when no gateway of it is open.
    closed: Option<Nanos>,
}

/// Where each service is limited, in the order of the configuration.
#[derive(Debug, Default)]
pub(crate) struct Places {
    services: Vec<Place>,
    gateways: Vec<(String, Endpoint)>,
    /// Gateways that were open since they are where they are. One that has a problem with its certificate
    /// later is still served.
    opened: BTreeSet<(String, Endpoint)>,
}

impl Places {
    /// Follows a configuration. `kernel`: there are interfaces.
    pub(crate) fn follow(&mut self, config: &Config, kernel: bool) {
        let gateways = config.gateways.iter();
        self.gateways = gateways.map(|of| (of.name.clone(), of.listen.clone())).collect();
        self.opened.retain(|opened| self.gateways.contains(opened));
        let before = std::mem::take(&mut self.services);
        for service in &config.services {
            let leads = |at: &usize| config.gateways[*at].waits(&service.name).is_some();
            let gateways: Vec<usize> = (0..config.gateways.len()).filter(leads).collect();
            let has_kernel = kernel && !service.listen.is_empty();
            let known = before.iter().find(|place| place.name == service.name);
            let stays = known.is_some_and(|place| !place.at_gate) && has_kernel;
            let (at_gate, closed) = (!gateways.is_empty() && !stays, known.and_then(|p| p.closed));
            let changed = known.is_some_and(|place| place.at_gate != at_gate);
            let name = service.name.clone();
            self.services.push(Place { name, gateways, has_kernel, at_gate, changed, closed });
        }
    }

    /// Once a tick: what keeps each gateway from being served.
    pub(crate) fn look(&mut self, now: Nanos, problems: &[Option<String>]) {
        for (gateway, problem) in self.gateways.iter().zip(problems) {
            if problem.is_none() {
                self.opened.insert(gateway.clone());
            }
        }
        for place in &mut self.services {
            let before = place.at_gate;
            let open = place.gateways.iter().any(|at| self.opened.contains(&self.gateways[*at]));
            if open || place.gateways.is_empty() {
                place.closed = None;
                place.at_gate = open;
            } else {
                let closed = *place.closed.get_or_insert(now);
                place.at_gate &= !place.has_kernel || now.since(closed) < OPENS_WITHIN;
            }
            place.changed = place.at_gate != before;
        }
    }

    /// Whether the gate limits the service with this place in the configuration.
    pub(crate) fn at_gate(&self, service: usize) -> bool {
        self.services.get(service).is_some_and(|place| place.at_gate)
    }

    /// Whether it has come to where it is with this tick.
    pub(crate) fn changed(&self, service: usize) -> bool {
        self.services.get(service).is_some_and(|place| place.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers;
    use tidegate_config::{Registry, parse};

    fn config(routes: &str, port: u16) -> Config {
        let gateways = match routes {
            "" => String::new(),
            routes => format!(
                "gateways:\n  edge: {{adapter: envoy, listen: '127.0.0.1:{port}', routes: [{routes}]}}\n"
            ),
        };
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  shop: {{mode: enforce, listen: ['*:80']}}\n  \
             api: {{mode: enforce{}}}\n{gateways}",
            if routes.contains("api") { "" } else { ", listen: ['*:81']" },
        );
        let config = parse(&text, &Registry::new(["fresh_first"], controllers::NAMES));
        config.unwrap_or_else(|error| panic!("{error}"))
    }

    const BOTH: &str = "{path: /api/, service: api}, {service: shop}";

    fn places(of: &Places) -> [bool; 2] {
        [of.at_gate(0), of.at_gate(1)]
    }

    #[test]
    fn the_kernel_limits_a_service_none_of_whose_gateways_opens() {
        let problem = [Some("in use".to_owned())];
        let (second, tick) = (Nanos::SECOND, Nanos::from_millis(100));
        let mut of = Places::default();
        of.follow(&config(BOTH, 9470), true);
        of.look(second, &problem);
        of.look(second + OPENS_WITHIN - Nanos(1), &problem);
        assert_eq!((places(&of), of.changed(0)), ([true, true], false), "it may take a while");
        of.look(second + OPENS_WITHIN, &problem);
        assert_eq!(places(&of), [false, true], "api has no address that the kernel could limit");
        assert!(of.changed(0) && !of.changed(1));
        of.look(second + OPENS_WITHIN + tick, &problem);
        assert!(!of.changed(0));
        of.look(second + OPENS_WITHIN + tick + tick, &[None]);
        assert_eq!((places(&of), of.changed(0)), ([true, true], true));
        // A certificate that cannot be renewed closes nothing.
        of.look(Nanos::from_secs(60), &problem);
        of.look(Nanos::from_secs(70), &problem);
        assert_eq!(places(&of), [true, true]);
        // At another address it has to open again.
        of.follow(&config(BOTH, 9471), true);
        of.look(Nanos::from_secs(80), &problem);
        assert_eq!(places(&of), [true, true]);
        of.look(Nanos::from_secs(83), &problem);
        assert_eq!(places(&of), [false, true]);
        of.follow(&config("", 0), true);
        of.look(Nanos::from_secs(84), &[]);
        assert_eq!(places(&of), [false, false]);
    }

    #[test]
    fn what_the_kernel_limits_stays_there_until_the_gate_is_open() {
        let mut of = Places::default();
        of.follow(&config("", 0), true);
        of.look(Nanos::SECOND, &[]);
        of.follow(&config("{service: shop}", 9470), true);
        of.look(Nanos::from_secs(2), &[Some("in use".to_owned())]);
        assert_eq!((places(&of), of.changed(0)), ([false, false], false));
        of.look(Nanos::from_secs(3), &[None]);
        assert_eq!((places(&of), of.changed(0)), ([true, false], true));
    }

    #[test]
    fn without_a_kernel_everything_is_at_the_gate() {
        let mut of = Places::default();
        of.follow(&config(BOTH, 9470), false);
        of.look(Nanos::SECOND, &[Some("in use".to_owned())]);
        of.look(Nanos::from_secs(60), &[Some("in use".to_owned())]);
        assert_eq!(places(&of), [true, true]);
    }
}
