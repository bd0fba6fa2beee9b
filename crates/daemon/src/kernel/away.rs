// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services that nobody serves here, while containers listen behind bridges of this host. Connections that are
//! passed on to a container (DNAT) are opened in its namespace, so nothing is seen of them here if the hooks are
//! on another uplink. Until the first SYN of such a service nobody can say that its hooks are at the right place.
//!
//! A service with `namespace` and `target` is none of these: its connections are looked at where they are opened.

use crate::preflight::{behind_bridges, listens_here, routed, serves_here};
use std::path::Path;
use tidegate_config::{Config, ServiceConfig};
use tidegate_model::Listen;
use tidegate_sense::{Aside, Elsewhere, Others, SockDiag, is_of_host, links};
use tidegate_units::Nanos;

/// So long no SYN was seen before anything is said.
const UNSEEN_MIN: Nanos = Nanos::from_secs(3);
/// How often it is looked whether somebody listens here by now.
const LISTENS_EVERY: Nanos = Nanos::from_secs(5);
const PROC: &str = "/proc";

/// A service of which no SYN was seen yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unseen {
    service: usize,
    name: String,
    listens: Vec<Listen>,
}

#[derive(Default)]
pub(super) struct Away {
    unseen: Vec<Unseen>,
    /// Who listens behind bridges, what to write for a service of theirs, and where to attach. Found at the start:
    /// later there are no privileges to look into namespaces.
    remedy: String,
    since: Option<Nanos>,
    now: Nanos,
    looked: Nanos,
    /// The names of services that somebody serves here by now.
    aside: Aside<Vec<String>>,
}

impl Away {
    /// Looks at the machine, with the privileges of the start.
    pub(super) fn start(config: &Config) -> Self {
        let mut unseen = candidates(config);
        if unseen.is_empty() {
            return Self::default();
        }
        let mut others = Others::new(Path::new(PROC));
        let there = others.behind_bridges();
        let Some(text) = behind_bridges(there) else { return Self::default() };
        unseen.retain(|of| of.listens.iter().any(|listen| may_lead_to(listen, there)));
        unseen.retain(|of| !is_served(&of.listens));
        let all = links(Path::new("/sys")).unwrap_or_default();
        let remedy = format!("{text}. Uplinks of this host: {}", routed(&all));
        Self { unseen, remedy, ..Self::default() }
    }

    /// Other services, perhaps at other places: what was seen stays seen.
    pub(super) fn follow(&mut self, config: &Config) {
        let now = candidates(config);
        let same = |a: &Unseen, b: &Unseen| (&a.name, &a.listens) == (&b.name, &b.listens);
        let known = |of: &Unseen| self.unseen.iter().any(|before| same(before, of));
        self.unseen = now.into_iter().filter(known).collect();
    }

    /// About once a second. `offered`: the SYNs of a service that hooks have seen, where that is known.
    pub(super) fn look(&mut self, now: Nanos, offered: impl Fn(usize) -> Option<u64>) {
        if self.unseen.is_empty() {
            return;
        }
        self.now = now;
        self.since.get_or_insert(now);
        self.unseen.retain(|of| offered(of.service).is_none_or(|offered| offered == 0));
        if let Some(served) = self.aside.answer() {
            self.unseen.retain(|of| !served.contains(&of.name));
        }
        if now.since(self.looked) >= LISTENS_EVERY {
            self.looked = now;
            let asked = self.unseen.clone();
            self.aside.begin(move || {
                let served = asked.into_iter().filter(|of| is_served(&of.listens));
                served.map(|of| of.name).collect()
            });
        }
    }

    /// Why nobody knows whether these services are protected.
    pub(super) fn doubt(&self) -> Option<String> {
        let unseen = self.since.is_some_and(|since| self.now.since(since) >= UNSEEN_MIN);
        let names: Vec<&str> = self.unseen.iter().map(|of| of.name.as_str()).collect();
        (unseen && !names.is_empty()).then(|| {
            format!("no hook has seen a SYN of {} yet, and {}", names.join(", "), self.remedy)
        })
    }
}

/// Services that somebody in our namespace should serve; none if a hook is in another one, where connections to a
/// container come.
fn candidates(config: &Config) -> Vec<Unseen> {
    if config.hooked().any(|interface| interface.namespace.is_some()) {
        return Vec::new();
    }
    let services = config.services.iter().enumerate();
    let of = |(service, of): (usize, &ServiceConfig)| Unseen {
        service,
        name: of.name.clone(),
        listens: of.target().to_vec(),
    };
    let here = services.filter(|(_, service)| serves_here(service));
    here.map(of).filter(|of| !of.listens.is_empty()).collect()
}

/// Whether connections to there may be passed on to one of these: they are to every address, to one of this host,
/// or to the container's own.
fn may_lead_to(listen: &Listen, there: &[Elsewhere]) -> bool {
    listen.address.is_none_or(|address| {
        address.is_unspecified()
            || is_of_host(address)
            || there.iter().any(|of| of.address == address)
    })
}

/// What cannot be looked at is no reason to doubt.
fn is_served(listens: &[Listen]) -> bool {
    let here = SockDiag::open(None)
        .and_then(|mut listeners| listens_here(listens, &mut listeners, Path::new(PROC)));
    here.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away(names: &[&str]) -> Away {
        let of = |(service, name): (usize, &&str)| Unseen {
            service,
            name: (*name).to_owned(),
            listens: vec!["*:80".parse().unwrap()],
        };
        let unseen = names.iter().enumerate().map(of).collect();
        let looked = Nanos::from_secs(9999);
        Away { unseen, remedy: "nobody listens here".into(), looked, ..Away::default() }
    }

    /// Of each service by itself: that others are reached says nothing of its way.
    #[test]
    fn a_service_is_told_until_its_first_syn() {
        let mut away = away(&["shop", "api"]);
        let mut doubt = |second: u64, offered: [u64; 2]| {
            away.look(Nanos::from_secs(second), |service| Some(offered[service]));
            away.doubt().unwrap_or_default()
        };
        assert_eq!(doubt(10, [0, 0]), "");
        assert_eq!(doubt(12, [0, 0]), "");
        let told = doubt(13, [0, 0]);
        assert!(told.contains("a SYN of shop, api yet, and nobody listens here"), "{told}");
        let told = doubt(14, [1, 0]);
        assert!(told.contains("a SYN of api yet"), "{told}");
        assert!(!doubt(15, [1, 0]).is_empty(), "what is not known changes nothing");
        assert_eq!(doubt(16, [1, 1]), "");
        assert_eq!(doubt(3600, [0, 0]), "", "a total that begins anew is none of a new service");
    }

    #[test]
    fn what_leads_elsewhere_is_no_reason_to_doubt() {
        let there = [Elsewhere {
            pid: 1,
            name: "web".into(),
            namespace: "pid:1".into(),
            address: [192, 0, 2, 7].into(),
            port: 80,
            interfaces: Vec::new(),
        }];
        for (listen, may) in [
            ("*:8080", true),
            ("0.0.0.0:8080", true),
            ("127.0.0.1:8080", true),
            ("192.0.2.7:80", true),
            ("192.0.2.8:80", false),
        ] {
            assert_eq!(may_lead_to(&listen.parse().unwrap(), &there), may, "{listen}");
        }
    }
}
