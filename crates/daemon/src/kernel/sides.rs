// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether every hook is on the side of an interface on which no connection comes: the port of a bridge
//! to a container sees what the container sends, and nothing of what is sent to it.

use crate::preflight::inner_port;
use std::path::Path;
use tidegate_bpf::{Attached, Dataplane};
use tidegate_model::totals::Totals;
use tidegate_sense::links;
use tidegate_units::Nanos;

/// So long no SYN was seen before anything is said.
const UNSEEN_MIN: Nanos = Nanos::from_secs(3);
/// How often interfaces are looked at: for that the kernel takes a lock that who changes them holds.
const LINKS_EVERY: Nanos = Nanos::from_secs(30);

#[derive(Default)]
pub(super) struct Sides {
    /// When a SYN was seen last, or it was begun to look; and how many there were.
    seen: Option<Nanos>,
    offered: u64,
    looked: Option<Nanos>,
    /// The hooks that were looked at, and what is wrong with them; empty unless with all of them.
    hooks: Vec<String>,
    inner: Vec<String>,
    now: Nanos,
}

impl Sides {
    /// About once a second. `services`: how many there are.
    pub(super) fn look(&mut self, now: Nanos, dataplane: &Dataplane, services: usize) {
        self.now = now;
        let all = (0..services).filter_map(|service| dataplane.totals(service).ok());
        let offered = all.map(|totals| totals.offered).sum();
        if self.seen.is_none() || offered != self.offered {
            (self.seen, self.offered) = (Some(now), offered);
        }
        let hooks = dataplane.hooks();
        let names: Vec<String> = hooks.iter().map(|hook| hook.interface.clone()).collect();
        let due = self.looked.is_none_or(|looked| now.since(looked) >= LINKS_EVERY);
        if due || names != self.hooks {
            self.looked = Some(now);
            self.inner = inner(&hooks);
            self.hooks = names;
        }
    }

    /// Why no hook sees any connection, one sentence an interface.
    pub(super) fn blind(&self) -> &[String] {
        let unseen = self.seen.is_some_and(|seen| self.now.since(seen) >= UNSEEN_MIN);
        if unseen { &self.inner } else { &[] }
    }
}

fn inner(hooks: &[Attached]) -> Vec<String> {
    if hooks.iter().any(|hook| hook.namespace.is_some()) {
        return Vec::new();
    }
    let Ok(all) = links(Path::new("/sys")) else { return Vec::new() };
    // One that sees connections is enough: nothing is known of the way of the others.
    let told: Option<Vec<String>> =
        hooks.iter().map(|hook| inner_port(&hook.interface, &all)).collect();
    told.unwrap_or_default()
}
