// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What outlives the process: a daemon that is killed, restarted or taken over in the middle of its
//! work goes on where it was (needs root).
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::wait_for;
use common::world::World;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tidegate_model::snapshot::{Restored, Snapshot};

fn state(world: &World) -> PathBuf {
    world.file("socket.state")
}

fn snapshot(world: &World) -> Snapshot {
    let output = world.tidegate(&["status", "-o", "json"]);
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(reply).unwrap()
}

fn restored(world: &World) -> Option<Restored> {
    snapshot(world).services[0].restored
}

fn signal(world: &mut World, signal: Signal) {
    let pid = Pid::from_child(world.daemon());
    kill_process(pid, signal).unwrap();
    world.daemon().wait().unwrap();
}

fn wait_for_state(world: &World) {
    wait_for("a state", || state(world).exists().then_some(()));
}

#[test]
fn a_daemon_that_is_killed_goes_on_and_one_with_a_damaged_state_begins_afresh() {
    let mut world = World::new(0);
    world.run(&[]);
    assert_eq!(restored(&world), None, "the first one");
    wait_for_state(&world);
    let mode = std::fs::metadata(state(&world)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);

    signal(&mut world, Signal::KILL);
    world.run(&[]);
    let got = restored(&world).unwrap();
    assert!(got.limits && got.age.as_secs_f64() < 30.0, "{got:?}");
    let status = world.status();
    assert!(status.contains("shop: started with ") && status.contains(" old"), "{status}");

    wait_for_state(&world);
    signal(&mut world, Signal::KILL);
    let mut bytes = std::fs::read(state(&world)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(state(&world), bytes).unwrap();
    world.run(&[]);
    assert_eq!(restored(&world), None);
    let warnings = snapshot(&world).warnings;
    let of_state = warnings.iter().filter(|text| text.starts_with("state: "));
    assert_eq!(of_state.count(), 1, "{warnings:?}");
    assert!(warnings.iter().any(|text| text.contains("it is damaged")), "{warnings:?}");
    wait_for_state(&world);
}

/// As systemd ends it before a restart (packaging/tidegate.service).
#[test]
fn a_restart_keeps_everything_and_a_stop_forgets_it() {
    let mut world = World::new(1);
    world.run(&[]);
    signal(&mut world, Signal::USR2);
    assert!(state(&world).exists(), "written at the end, however short it ran");
    let links = world.file("bpf/tidegate/links");
    assert!(links.read_dir().unwrap().count() > 0, "everything stays attached");
    world.run(&[]);
    assert!(restored(&world).is_some_and(|restored| restored.limits));

    wait_for_state(&world);
    signal(&mut world, Signal::TERM);
    assert!(!state(&world).exists() && !links.exists());
    world.run(&[]);
    assert_eq!(restored(&world), None, "whoever stops it on purpose begins anew");
}

#[test]
fn a_take_over_hands_it_over() {
    let mut world = World::new(2);
    world.run(&[]);
    let mut old = world.replace_daemon();
    world.run(&[]);
    old.wait().unwrap();
    wait_for("the other process", || restored(&world).filter(|restored| restored.limits));
}
