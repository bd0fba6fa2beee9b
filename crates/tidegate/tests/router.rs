// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flash crowd at a server behind a router: the daemon there tells when it begins and when it is over, refuses nobody
//! in shadow, and keeps the server at its work when limits are enforced (needs root).
//!
//! ```text
//!   clients ── v1, v0 ── the router, with a daemon ── r0, s0 ── 10.84.0.2: 50 requests/s
//!                                                              10.84.0.3: as many as come
//! ```

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::flash::Scene;
use common::routed::{BYSTANDER, HOT, intent, scene};
use common::wait_for;
use std::process::Command;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// The daemon hangs, and an operator says that everything is to pass. The lease alone lets hardly any forty pass
/// within eight seconds.
fn a_release_opens_it_while_the_daemon_hangs(scene: &Scene, daemon: u32) {
    let (clock, pins) = (MonotonicClock, scene.world.file("bpf/tidegate"));
    let release = |on: &str| {
        let output = scene.world.tidegate(&["release", on, "--pins", pins.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
    };
    signal(daemon, "-STOP");
    let begun = clock.now();
    release("on");
    let passes = scene.all_pass(HOT);
    assert!(passes || clock.now().since(begun) >= Nanos::from_secs(8));
    // In this order: a daemon that hangs longer than the lease finds its limits open anyway.
    signal(daemon, "-CONT");
    release("off");
    wait_for("it holds again", || scene.refuses().then_some(()));
}

/// Who was refused is told, with the destination, and of nobody else.
fn it_is_explained(scene: &Scene) {
    let explain = |address: &str| {
        let output = scene.world.tidegate(&["explain", address]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let refused = "10.84.0.2:80: its limit at this router probably has refused this address";
    let told = explain("10.83.0.2");
    assert!(told.contains(refused) && !told.contains("10.84.0.3:80: its limit"), "{told}");
    let told = explain("10.83.0.77");
    assert!(!told.contains("its limit at this router"), "{told}");
}

/// The next daemon would take the crowd for usual, if it did not know what the one before had learned.
fn it_is_killed_and_goes_on(scene: &mut Scene) {
    let daemon = scene.world.daemon();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let log = std::fs::OpenOptions::new().append(true).open(scene.world.file("log")).unwrap();
    scene.world.run_intent(&intent(", limit: {mode: enforce}"), &[], log.into());
    scene.world.ready();
    wait_for("the limit holds in the next process", || scene.refuses().then_some(()));
    scene.shows("flash crowd at 10.84.0.2:80 for ");
    let history = scene.world.history();
    assert_eq!(history.matches("flash crowd began").count(), 1, "{history}");
    assert!(scene.all_pass(BYSTANDER));
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_flash_crowd_is_told_and_limited_and_over() {
    let mut scene = scene(31, ", limit: {mode: shadow}");
    scene.learn();
    let crowd = scene.come(HOT, "100");
    let told = scene.told("10.84.0.2:80: flash crowd began: ");
    assert!(told.contains(" % slow for their size"), "{told}");
    scene.shows("flash crowd at 10.84.0.2:80 for ");
    assert_eq!(scene.metric("flash_crowd{destination=\"10.84.0.2:80\"}"), 1.0);
    // In shadow it is counted, and the server collapses.
    scene.told("10.84.0.2:80: new connections would be limited to ");
    scene.shows("    shadow: limit of ");
    wait_for("a collapse", || (scene.goodput(HOT) < 10.0).then_some(()));
    wait_for("would refuse", || (scene.limited(HOT, "would-refuse") > 0.0).then_some(()));
    assert_eq!(scene.limited(HOT, "refused"), 0.0);
    // Enforced it works again, and its neighbour notices nothing.
    scene.reload(&intent(", limit: {mode: enforce}"));
    wait_for("a server at its work", || (scene.goodput(HOT) > 25.0).then_some(()));
    scene.shows("    limited to ");
    wait_for("refusals", || (scene.limited(HOT, "refused") > 100.0).then_some(()));
    wait_for("who is refused", || scene.refuses().then_some(()));
    it_is_explained(&scene);
    assert!(scene.all_pass(BYSTANDER));
    let daemon = scene.world.daemon().id();
    a_release_opens_it_while_the_daemon_hangs(&scene, daemon);
    // A daemon that hangs opens it by itself.
    signal(daemon, "-STOP");
    wait_for("the lease ends", || scene.all_pass(HOT).then_some(()));
    signal(daemon, "-CONT");
    wait_for("it holds again", || scene.refuses().then_some(()));
    scene.assert_spared(BYSTANDER);
    it_is_killed_and_goes_on(&mut scene);
    drop(crowd);
    let told = scene.told("10.84.0.2:80: flash crowd ended after ");
    assert!(told.contains(" SYNs refused"), "{told}");
    assert!(told.contains("10.84.0.2:80: new connections are limited no longer, after "), "{told}");
    wait_for("the status without it", || {
        (!scene.world.status().contains("flash crowd at")).then_some(())
    });
    wait_for("no limit", || scene.all_pass(HOT).then_some(()));
}
