// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether every hook is on the side of an interface on which no connection comes: the port of a bridge
//! to a container sees what the container sends, and nothing of what is sent to it. The same holds of a bridge
//! that leads to containers alone, where no service runs on this host.
//!
//! The first look is at the start, with the privileges of then. Later ones are made aside: to list interfaces
//! takes a lock that who changes them holds, and to find proxies all of /proc is looked through. No lease waits
//! for that.

use crate::preflight::{inner_bridge, inner_port, listens_here};
use std::path::Path;
use tidegate_bpf::{Attached, Dataplane};
use tidegate_model::Listen;
use tidegate_model::totals::Totals;
use tidegate_sense::{Aside, LinkFacts, SockDiag, links};
use tidegate_units::Nanos;

/// So long no SYN was seen before anything is said.
const UNSEEN_MIN: Nanos = Nanos::from_secs(3);
/// How often interfaces are looked at.
const LINKS_EVERY: Nanos = Nanos::from_secs(30);

#[derive(Default)]
pub(super) struct Sides {
    /// Since when it is looked at these hooks, and how many SYNs there were then.
    since: Option<(Nanos, u64)>,
    /// They have seen a SYN: whatever their links look like, connections come by them. Connections that come
    /// past them later are found by what the kernel opened.
    proved: bool,
    looked: Option<Nanos>,
    /// The hooks that were looked at, and what is wrong with them; empty unless with all of them.
    hooks: Vec<String>,
    inner: Vec<String>,
    /// The hooks that are looked at aside, and what is wrong with them.
    aside: Aside<(Vec<String>, Vec<String>)>,
    now: Nanos,
}

impl Sides {
    /// About once a second. `services`: how many there are, and where those listen that run here.
    pub(super) fn look(
        &mut self,
        now: Nanos,
        dataplane: &Dataplane,
        (services, listens): (usize, &[Listen]),
    ) {
        self.now = now;
        let all = (0..services).filter_map(|service| dataplane.totals(service).ok());
        let offered = all.map(|totals| totals.offered).sum();
        let hooks = dataplane.hooks();
        let names: Vec<String> = hooks.iter().map(|hook| hook.interface.clone()).collect();
        let due = self.looked.is_none_or(|looked| now.since(looked) >= LINKS_EVERY);
        let others = names != self.hooks;
        self.count(now, offered, others);
        self.take();
        let first = self.looked.is_none();
        if others {
            self.inner.clear();
            self.hooks.clone_from(&names);
        }
        // Whoever is proved is asked for nothing more.
        if (due && !self.proved) || others {
            self.looked = Some(now);
            if first {
                self.inner = inner(&hooks, listens);
            } else {
                let listens = listens.to_vec();
                self.aside.begin(move || (names, inner(&hooks, &listens)));
            }
        }
    }

    /// What was found aside, if the hooks are still the same.
    fn take(&mut self) {
        if let Some((hooks, inner)) = self.aside.answer() {
            if hooks == self.hooks {
                self.inner = inner;
            } else {
                // These were not looked at.
                self.looked = Some(Nanos::ZERO);
            }
        }
    }

    /// `offered`: SYNs of all services; `others`: the hooks are others than at the last look.
    fn count(&mut self, now: Nanos, offered: u64, others: bool) {
        match self.since {
            // A total that went back is one that begins anew.
            Some((_, before)) if !others && offered >= before => self.proved |= offered > before,
            _ => (self.since, self.proved) = (Some((now, offered)), false),
        }
    }

    /// Why no hook sees any connection, one sentence an interface.
    pub(super) fn blind(&self) -> &[String] {
        let unseen = self.since.is_some_and(|(since, _)| self.now.since(since) >= UNSEEN_MIN);
        if unseen && !self.proved { &self.inner } else { &[] }
    }
}

fn inner(hooks: &[Attached], listens: &[Listen]) -> Vec<String> {
    if hooks.iter().any(|hook| hook.namespace.is_some()) {
        return Vec::new();
    }
    let Ok(all) = links(Path::new("/sys")) else { return Vec::new() };
    // One that sees connections is enough: nothing is known of the way of the others.
    let told = |hook: &Attached| {
        inner_port(&hook.interface, &all).or_else(|| empty_bridge(&hook.interface, &all, listens))
    };
    let told: Option<Vec<String>> = hooks.iter().map(told).collect();
    told.unwrap_or_default()
}

/// The same of a bridge, unless somebody listens here: what containers ask of this host comes by it.
fn empty_bridge(name: &str, all: &[LinkFacts], listens: &[Listen]) -> Option<String> {
    let told = inner_bridge(name, all)?;
    let mut listeners = SockDiag::open(None).ok()?;
    let here = listens_here(listens, &mut listeners, Path::new("/proc")).ok()?;
    (!here).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An uplink may be a tap or a veth in a bridge. After its first SYN a quiet hour is no doubt.
    #[test]
    fn hooks_that_saw_a_syn_are_never_called_blind() {
        let at = Nanos::from_secs;
        let mut sides = Sides { inner: vec!["tap0 is a port".into()], ..Sides::default() };
        let mut blind = |second: u64, offered: u64, others: bool| {
            sides.now = at(second);
            sides.count(at(second), offered, others);
            !sides.blind().is_empty()
        };
        assert!(!blind(10, 7, false) && !blind(12, 7, false));
        assert!(blind(13, 7, false), "nothing was seen since it was begun to look");
        assert!(!blind(14, 8, false), "a SYN");
        assert!(!blind(3600, 8, false), "quiet");
        assert!(!blind(3601, 8, true) && blind(3604, 8, false), "other hooks");
        assert!(!blind(3605, 0, false) && !blind(3606, 1, false) && !blind(9000, 1, false));
    }

    /// Hooks that are others by then were not looked at, and are.
    #[test]
    fn what_was_found_aside_is_said_of_the_hooks_that_were_looked_at() {
        let found = |of: &str| {
            let looked = Some(Nanos::from_secs(40));
            let mut sides = Sides { hooks: vec!["tap0".into()], looked, ..Sides::default() };
            let answer = (vec![of.to_owned()], vec![format!("{of} is a port")]);
            sides.aside.begin(move || answer);
            let mut tries = 0..10_000;
            while sides.inner.is_empty() && sides.looked == looked {
                assert!(tries.next().is_some(), "no answer within 10 s");
                sides.take();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            (sides.inner, sides.looked)
        };
        assert_eq!(found("tap0"), (vec!["tap0 is a port".into()], Some(Nanos::from_secs(40))));
        assert_eq!(found("tap1"), (vec![], Some(Nanos::ZERO)));
    }
}
