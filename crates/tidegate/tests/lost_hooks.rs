// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon whose interface is made anew (needs root): nothing is protected any more, and whoever
//! asks is told so.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::world::World;
use common::{ip, wait_for};
use tidegate_units::{Clock, DayClock};

/// What is promised, in seconds.
const TOLD_MAX_S: f64 = 5.0;

#[test]
fn a_daemon_without_its_hooks_is_not_ready_and_refuses_to_call_a_reload_done() {
    let mut world = World::new(0);
    world.run(&[]);
    let config = world.file("config");
    let reload = || world.tidegate(&["reload", "-c", config.to_str().unwrap()]);
    assert!(reload().status.success());
    let attached = || {
        let page = world.get("/metrics").unwrap();
        let line = page.lines().find(|line| line.starts_with("tidegate_dataplane_attached{"));
        line.unwrap().to_owned()
    };
    assert!(attached().ends_with("layer=\"tcx\"} 1"), "{}", attached());

    let plug_another = || ip(&format!("-n {} link add v0 type bridge", world.name()));
    let begin = DayClock.now();
    ip(&format!("-n {} link del v0", world.name()));
    plug_another();
    let page = wait_for("not ready", || world.get("/readyz").filter(|page| page.contains(" 503 ")));
    assert!(page.contains("interface v0 is not attached"), "{page}");
    assert!(attached().ends_with(" 0"), "{}", attached());
    let took = world.seconds_since(begin, "interface v0: hooks are lost");
    assert!(took <= TOLD_MAX_S, "{took} s: {}", world.log());
    // the look may have come while there was no interface at all
    wait_for("the new one", || world.status().contains("was made anew").then_some(()));
    let refused = reload();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("start it anew"), "{text}");
    let status = world.status();
    let warning =
        "hooks: interface v0: tcx (in) is not there any more: the interface was made anew";
    assert!(status.contains(warning) && status.contains("gave up its privileges"), "{status}");

    // The programs that are loaded fit an interface of the kind that it was.
    ip(&format!("-n {} link del v0", world.name()));
    world.plug();
    world.ready();
    wait_for("no warning", || (!world.status().contains("hooks: ")).then_some(()));
    let log = world.log();
    for line in ["interface v0: hooks are lost", "interface v0: hooks are attached again"] {
        assert!(log.contains(line), "{log}");
        assert!(world.history().contains(line), "{}", world.history());
    }
}

#[test]
fn a_daemon_that_keeps_its_privileges_puts_its_hooks_on_again() {
    let mut world = World::new(1);
    world.run(&["--keep-privileges"]);
    let ready = |word: &'static str| {
        wait_for(word, || world.get("/readyz").filter(|page| page.contains(word)));
    };
    ip(&format!("-n {} link del v0", world.name()));
    ready(" 503 ");
    assert!(world.status().contains("the interface is gone"), "{}", world.status());
    world.plug();
    ready(" 200 ");
    wait_for("no warning", || (!world.status().contains("hooks: ")).then_some(()));
}
