// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Services that nobody serves here, while containers listen behind bridges of this host. Connections that are
//! passed on to a container (DNAT) are opened in its namespace, so nothing is seen of them here if the hooks are
//! on another uplink. Until the first SYN of such a service nobody can say that its hooks are at the right place.
//!
//! A service with `namespace` and `target` is none of these: its connections are looked at where they are opened.
//! Nor is one behind a gateway, whose clients the gateway sees.

use crate::preflight::{behind_bridges, is_own_page, serves_here, uplinks};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tidegate_config::{Config, ServiceConfig};
use tidegate_model::Listen;
use tidegate_sense::{
    Aside, Elsewhere, LISTENERS_MAX, Listener, ListenerSource, Others, SockDiag, is_of_host, links,
    proxy_sockets,
};
use tidegate_units::Nanos;

/// So long no SYN was seen before anything is said.
const UNSEEN_MIN: Nanos = Nanos::from_secs(3);
/// So long it is a reason not to be ready. A balancer that asks for nothing else would never send the first client.
const GRAVE_MAX: Nanos = Nanos::from_secs(600);
/// How often it is looked whether somebody listens here by now.
const LOOK_EVERY: Nanos = Nanos::from_secs(5);
const PROC: &str = "/proc";

/// What the hooks have counted, as far as that is known.
pub(super) struct Counted<'c> {
    /// The SYNs of a service by its index.
    pub(super) offered: &'c dyn Fn(usize) -> Option<u64>,
    /// The SYNs that are exempt, whosever they are: no service counts them.
    pub(super) exempt: u64,
    /// The kill switch is on: nothing is counted.
    pub(super) released: bool,
}

/// A service that should be served in our own namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    service: usize,
    name: String,
    listens: Vec<Listen>,
    /// Nobody serves it here, and its connections may be passed on to a container.
    away: bool,
    /// It is reached: a SYN was seen, or somebody serves it here. That holds.
    proved: bool,
    /// Since when no SYN was seen of it.
    since: Option<Nanos>,
}

/// What was found at the start: later there are no privileges to look into namespaces, or at what proxies hold.
#[derive(Debug, Default)]
struct Found {
    there: Vec<Elsewhere>,
    /// The sockets of userland proxies, by their inodes.
    proxies: BTreeSet<u32>,
    /// Who listens behind bridges, and what to write for a service of theirs.
    remedy: String,
    /// The interfaces by which clients may come.
    uplinks: Vec<String>,
}

#[derive(Default)]
pub(super) struct Away {
    found: Arc<Found>,
    services: Vec<Candidate>,
    /// The hooks.
    hooks: Vec<String>,
    /// There are sources of which no service counts SYNs.
    exempts: bool,
    /// Such SYNs when they were counted first, and whether there were more since.
    exempt: Option<u64>,
    exempt_seen: bool,
    now: Nanos,
    looked: Option<Nanos>,
    /// Where services listen, and whether they are away.
    aside: Aside<Vec<(Vec<Listen>, bool)>>,
}

impl Away {
    /// Looks at the machine, with the privileges of the start.
    pub(super) fn start(config: &Config) -> Self {
        let mut services = candidates(config);
        let Some(listed) = listed() else { return Self::default() };
        let proxies = proxy_sockets(Path::new(PROC), &listed);
        services.retain(|of| !is_served(&of.listens, &listed, &proxies));
        if services.is_empty() {
            // The rest takes its time where there are many containers.
            return Self::default();
        }
        let mut others = Others::new(Path::new(PROC));
        let there = others.behind_bridges().to_vec();
        let Some(remedy) = behind_bridges(&there) else { return Self::default() };
        let uplinks = uplinks(&links(Path::new("/sys")).unwrap_or_default());
        let found = Arc::new(Found { there, proxies, remedy, uplinks });
        // Those that are served here are proved from now on.
        let mut away = Self { found, ..Self::default() };
        away.follow(config);
        for service in &mut away.services {
            service.away = services.iter().any(|of| of.name == service.name)
                && may_lead_to(&service.listens, &away.found.there);
            service.proved = !service.away;
        }
        away
    }

    /// Whether anything is to be looked at.
    pub(super) fn is_open(&self) -> bool {
        self.services.iter().any(|service| !service.proved)
    }

    /// Other services, perhaps with other names: what was known of where they listen holds. What is new is looked at,
    /// aside.
    pub(super) fn follow(&mut self, config: &Config) {
        self.hooks = config.hooked().map(|interface| interface.name.clone()).collect();
        self.exempts = !config.exempt.sources.is_empty();
        if self.found.there.is_empty() {
            return;
        }
        let known = std::mem::replace(&mut self.services, candidates(config));
        let proved = known.iter().filter(|of| of.proved);
        let proved: Vec<&Listen> = proved.flat_map(|of| &of.listens).collect();
        for service in &mut self.services {
            service.proved = service.listens.iter().all(|listen| proved.contains(&listen));
            if let Some(before) = known.iter().find(|before| before.listens == service.listens) {
                (service.away, service.since) = (before.away, before.since);
            }
        }
        self.looked = self.looked.map(|_| Nanos::ZERO);
    }

    /// About once a second.
    pub(super) fn look(&mut self, now: Nanos, counted: &Counted<'_>) {
        self.now = now;
        let before = *self.exempt.get_or_insert(counted.exempt);
        self.exempt_seen |= self.exempts && counted.exempt > before;
        let answer = self.aside.answer().unwrap_or_default();
        let first = self.looked.is_none();
        for service in self.services.iter_mut().filter(|service| !service.proved) {
            let answered = answer.iter().find(|(listens, _)| *listens == service.listens);
            if let Some((_, away)) = answered {
                (service.away, service.proved) = (*away, !*away);
            }
            service.proved |= (counted.offered)(service.service).is_some_and(|syns| syns > 0);
            service.since = service.since.or(Some(now)).filter(|_| !counted.released);
        }
        // A thread has the privileges of when it began: there are none to be given away at the first look.
        if first {
            self.looked = Some(now);
        } else if self.looked.is_some_and(|looked| now.since(looked) >= LOOK_EVERY) {
            self.begin(now);
        }
    }

    /// Looks again whether somebody serves them here.
    fn begin(&mut self, now: Nanos) {
        let open = self.services.iter().filter(|service| !service.proved);
        let asked: Vec<_> = open.map(|of| of.listens.clone()).collect();
        if asked.is_empty() || self.aside.is_busy() {
            return;
        }
        self.looked = Some(now);
        let found = Arc::clone(&self.found);
        self.aside.begin(move || {
            let Some(listed) = listed() else { return Vec::new() };
            let mut proxies = proxy_sockets(Path::new(PROC), &listed);
            proxies.extend(&found.proxies);
            let answer = |listens: Vec<Listen>| {
                let served = is_served(&listens, &listed, &proxies);
                let away = !served && may_lead_to(&listens, &found.there);
                (listens, away)
            };
            asked.into_iter().map(answer).collect()
        });
    }

    /// Why nobody knows whether these services are protected.
    pub(super) fn doubt(&self) -> Option<String> {
        let names: Vec<&str> = self.unseen().map(|of| of.name.as_str()).collect();
        if names.is_empty() {
            return None;
        }
        let Found { remedy, uplinks, .. } = &*self.found;
        let other = uplinks.iter().filter(|name| !self.hooks.contains(name));
        let other: Vec<&str> = other.map(String::as_str).collect();
        let other = match other.is_empty() {
            true => String::new(),
            false => format!("; other uplinks of this host: {}", other.join(", ")),
        };
        let (names, hooks) = (names.join(", "), self.hooks.join(", "));
        Some(format!(
            "no hook has seen a SYN of {names} yet, and no server listens there in this namespace; {remedy}. \
             Hooks are on {hooks}{other}"
        ))
    }

    /// Whether that is a reason not to be ready: not for ever, and not where exempt sources came. Theirs is counted for
    /// no service, so it may be what has come of these.
    pub(super) fn is_grave(&self) -> bool {
        let fresh = |since: Nanos| self.now.since(since) < GRAVE_MAX;
        !self.exempt_seen && self.unseen().any(|of| of.since.is_some_and(fresh))
    }

    /// The services that are in doubt.
    fn unseen(&self) -> impl Iterator<Item = &Candidate> {
        let long = |since: Nanos| self.now.since(since) >= UNSEEN_MIN;
        let services = self.services.iter();
        services.filter(move |of| of.away && !of.proved && of.since.is_some_and(long))
    }
}

/// Services that somebody in our namespace should serve; none if a hook is in another one, where connections to a
/// container come.
fn candidates(config: &Config) -> Vec<Candidate> {
    if config.hooked().any(|interface| interface.namespace.is_some()) {
        return Vec::new();
    }
    let services = config.services.iter().enumerate();
    let of = |(service, of): (usize, &ServiceConfig)| Candidate {
        service,
        name: of.name.clone(),
        listens: of.target().to_vec(),
        away: false,
        proved: false,
        since: None,
    };
    let seen_by_hooks = |of: &ServiceConfig| {
        serves_here(of) && !config.is_routed(&of.name) && !is_own_page(config, of)
    };
    let here = services.filter(|(_, service)| seen_by_hooks(service));
    here.map(of).filter(|of| !of.listens.is_empty()).collect()
}

/// Whether connections to one of these may be passed on to a container: they are to every address, to one of this
/// host, or to the container's own.
fn may_lead_to(listens: &[Listen], there: &[Elsewhere]) -> bool {
    listens.iter().any(|listen| {
        listen.address.is_none_or(|address| {
            address.is_unspecified()
                || is_of_host(address)
                || there.iter().any(|of| of.address == address)
        })
    })
}

/// Who listens here, if all can be listed: what cannot be looked at is no reason to doubt.
fn listed() -> Option<Vec<Listener>> {
    let mut listed = Vec::new();
    SockDiag::open(None).and_then(|mut diag| diag.list(&mut listed)).ok()?;
    (listed.len() < LISTENERS_MAX).then_some(listed)
}

/// Whether a server listens here, and not only a proxy.
fn is_served(listens: &[Listen], listed: &[Listener], proxies: &BTreeSet<u32>) -> bool {
    let serves = |listener: &&Listener| listens.iter().any(|of| listener.serves(of).is_some());
    listed.iter().filter(serves).any(|listener| !proxies.contains(&listener.inode))
}

#[cfg(test)]
#[path = "away_tests.rs"]
mod tests;
