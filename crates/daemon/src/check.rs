// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `tidegate check` says of a configuration on this system: what [`preflight`] finds, and who has its
//! interfaces.

use crate::interface_lock::{held_by_others, sentence, unlocked};
use crate::kernel::plan;
use crate::neighbours;
use crate::others::{Holder, at};
use crate::preflight::{self, Preflight, Trees};
use std::io;
use tidegate_bpf::Leftovers;
use tidegate_config::{Config, SystemFault};
use tidegate_sense::SockDiag;
use tidegate_units::{Clock, MonotonicClock};

/// The faults of a configuration on this system and what would be attached.
///
/// # Errors
/// When the system cannot be looked at.
pub fn examine(config: &Config) -> io::Result<Preflight> {
    let mut listeners = SockDiag::open(None)?;
    let mut found = preflight::examine(config, &mut listeners, &Trees::default());
    for (interface, holder) in held_by_others(config) {
        let by = sentence(&holder);
        found.faults.push(SystemFault::InterfaceHeld { interface, by });
    }
    let runs = at(&config.daemon.socket);
    let succeeds = |by: &Holder| runs.as_ref().is_some_and(|runs| runs.pid == by.pid);
    for one in neighbours::beside(config, false, succeeds) {
        let (service, index, by) = (one.service.clone(), one.index, one.sentence());
        found.faults.push(SystemFault::LimitedBeside { service, index, by });
    }
    // Without privileges the kernel does not say.
    if let Ok(left) = tidegate_bpf::leftovers(&plan(config), MonotonicClock.now(), true) {
        add(&left, &mut found);
    }
    Ok(found)
}

/// Hooks that are in force end the start; the others it detaches.
fn add(left: &Leftovers, found: &mut Preflight) {
    for alive in &left.alive {
        let interface = alive.interface.split(' ').next().unwrap_or_default().to_owned();
        let is = |fault: &SystemFault| matches!(fault, SystemFault::InterfaceHeld { interface: known, .. } if *known == interface);
        // One that holds its lock is told by its process; and of two hooks once.
        if !found.faults.iter().any(is) {
            found.faults.push(SystemFault::InterfaceHeld { interface, by: unlocked(alive) });
        }
    }
    let removes = |what| format!("{what}: left by an earlier tidegate; the start detaches it");
    found.notes.extend(left.removed.iter().map(removes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_bpf::InForce;
    use tidegate_units::Nanos;

    #[test]
    fn hooks_in_force_of_nobody_known_are_one_fault_an_interface() {
        let alive = |name: &str, link| {
            let interface = name.to_owned();
            InForce { interface, link, age: Nanos::from_millis(300) }
        };
        let left = Leftovers {
            alive: vec![
                alive("eth0 in pid:7", Some(1)),
                alive("eth0 in pid:7", Some(2)),
                alive("eth1", None),
            ],
            removed: vec!["interface eth2: tcx ingress (link 3)".into()],
            ..Leftovers::default()
        };
        let held = SystemFault::InterfaceHeld { interface: "eth1".into(), by: "pid 9".into() };
        let mut found = Preflight { faults: vec![held.clone()], ..Preflight::default() };
        add(&left, &mut found);
        let [first, SystemFault::InterfaceHeld { interface, by }] = &found.faults[..] else {
            panic!("{found:?}")
        };
        assert_eq!((first, &**interface), (&held, "eth0"));
        assert!(by.contains("last heartbeat is") && found.faults.iter().all(SystemFault::fatal));
        assert_eq!(found.notes.len(), 1);
    }
}
