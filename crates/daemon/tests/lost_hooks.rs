// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's plane when hooks are lost behind its back (needs root).

#![allow(clippy::unwrap_used, reason = "a test may")]

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::path::PathBuf;
use std::process::Command;
use tidegate_bpf::policy::Policy;
use tidegate_config::{Config, Registry};
use tidegate_daemon::kernel::Kernel;
use tidegate_daemon::outlet::Outlet;
use tidegate_daemon::plane::Lifecycle;
use tidegate_model::record::What;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos};

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}

/// A namespace with one end of a veth pair, and pins; gone when it is dropped.
struct World {
    name: String,
    directory: tempfile::TempDir,
}

impl World {
    fn new(number: u32) -> Self {
        let name = format!("tgk{}-{number}", std::process::id());
        let directory = tempfile::tempdir().unwrap();
        let mount = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(directory.path()).status();
        assert!(mount.unwrap().success());
        ip(&format!("netns add {name}"));
        let world = Self { name, directory };
        world.plug();
        world
    }

    /// Makes the interface; anew, where it was deleted.
    fn plug(&self) {
        ip(&format!("-n {} link add s0 type veth peer name c0", self.name));
    }

    /// The same of a kind for which the programs that are loaded do not fit.
    fn plug_another(&self) {
        ip(&format!("-n {} link add s0 type bridge", self.name));
    }

    fn unplug(&self) {
        ip(&format!("-n {} link del s0", self.name));
    }

    fn config(&self) -> Config {
        let pins = self.directory.path().join("tidegate");
        let text = format!(
            "interfaces: [{{name: s0}}]\nservices:\n  shop: {{mode: enforce, listen: ['*:80']}}\n\
             daemon: {{http: off, pins: {}}}\n",
            pins.display()
        );
        let policies: Vec<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
        tidegate_config::parse(&text, &Registry::new(policies, ["default"])).unwrap()
    }

    /// Runs `work` in the namespace.
    fn within(&self, work: impl FnOnce() + Send) {
        let path = PathBuf::from("/run/netns").join(&self.name);
        let done = || {
            work();
            Ok(())
        };
        in_namespace(Some(&path), done).unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
        let _ = Command::new("umount").arg("-l").arg(self.directory.path()).status();
    }
}

/// Ticks until it is so.
fn until(kernel: &mut Kernel, what: &str, done: impl Fn(&Kernel, &[String]) -> bool) -> String {
    let begin = MonotonicClock.now();
    loop {
        kernel.heartbeat().unwrap();
        let lost = kernel.mend();
        if done(kernel, &lost) {
            return lost.join("\n");
        }
        assert!(
            MonotonicClock.now().since(begin) < Nanos::from_secs(10),
            "never: {what}: {lost:?}"
        );
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
}

fn is_attached(kernel: &Kernel) -> bool {
    kernel.hooks().iter().all(|interface| !interface.attached.is_empty())
}

fn give_up_privileges() {
    let (effective, permitted) = (CapabilitySet::empty(), CapabilitySet::empty());
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
}

#[test]
fn without_privileges_hooks_come_back_where_their_programs_fit_and_else_it_is_said_what_to_do() {
    let world = World::new(0);
    world.within(|| {
        let config = world.config();
        let mut kernel = Kernel::start(&config).unwrap();
        assert!(kernel.commit().is_empty() && is_attached(&kernel));
        give_up_privileges();
        assert_eq!(until(&mut kernel, "a first look", |_, _| true), "");
        world.unplug();
        let lost = until(&mut kernel, "gone", |_, lost| !lost.is_empty());
        assert!(lost.contains("interface s0: tcx (in)") && lost.contains("(out)"), "{lost}");
        // What to do is said before anything could be tried.
        assert!(lost.contains("hooks come back with an interface of that name"), "{lost}");
        assert!(lost.contains("gave up its privileges"), "{lost}");
        assert!(!is_attached(&kernel));
        world.plug_another();
        let lost = until(&mut kernel, "back", |kernel, _| kernel.needs_attach(&config));
        assert!(lost.contains("made anew") && lost.contains("gave up its privileges"), "{lost}");
        assert!(!is_attached(&kernel));
        let refused = kernel.examine(&config).unwrap_err();
        assert!(refused.0.contains("gave up its privileges"), "{refused}");
        // One of the kind that it was takes the programs that are loaded.
        world.unplug();
        until(&mut kernel, "gone again", |kernel, _| !kernel.needs_attach(&config));
        world.plug();
        assert_eq!(until(&mut kernel, "attached", |kernel, _| is_attached(kernel)), "");
        let events: Vec<String> = kernel.events().iter().map(What::sentence).collect();
        assert!(events.len() == 2 && events[0].contains("hooks are lost"), "{events:?}");
        assert!(events[1].ends_with("hooks are attached again"), "{events:?}");
        assert_eq!(kernel.events(), []);
    });
}

#[test]
fn with_privileges_they_come_back_with_the_interface() {
    let world = World::new(1);
    world.within(|| {
        let config = world.config();
        let mut kernel = Kernel::start(&config).unwrap();
        kernel.commit();
        for _ in 0..2 {
            world.unplug();
            until(&mut kernel, "gone", |kernel, _| !is_attached(kernel));
            world.plug();
            let lost = until(&mut kernel, "back", |kernel, _| is_attached(kernel));
            assert_eq!(lost, "");
            assert!(!kernel.needs_attach(&config) && kernel.examine(&config).is_ok());
        }
        Box::new(kernel).detach().unwrap();
    });
}
