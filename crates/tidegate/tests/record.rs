// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What may go wrong with the file of the record while hooks are in place (needs root).
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::wait_for;
use common::world::World;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const INTENT: &str = "interfaces: [{name: v0}]\n\
                      services:\n  shop: {mode: enforce, listen: [\"*:8000\"]}\n";

/// A directory for what the daemon keeps, on a disk of its own; unmounted when it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(world: &World) -> Self {
        let path = world.file("disk");
        std::fs::create_dir(&path).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=64k", "tidegate-test"];
        assert!(Command::new("mount").args(mount).arg(&path).status().unwrap().success());
        std::fs::create_dir(path.join("state")).unwrap();
        Self(path)
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    fn history(&self) -> PathBuf {
        self.state().join("history")
    }

    fn remount(&self, how: &str) {
        let how = format!("remount,{how}");
        assert!(Command::new("mount").args(["-o", &how]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Runs the daemon with its history on that disk, and standard output in a pipe that nobody reads.
fn run(world: &mut World, disk: &Disk) {
    let mut command = world.command(INTENT, &[]);
    command.env("STATE_DIRECTORY", disk.state()).stdout(Stdio::piped());
    world.adopt(command.stderr(std::fs::File::create(world.file("log")).unwrap()).spawn().unwrap());
    world.ready();
}

/// Something to remember; and the mode that is set is in force, whatever the disk does.
fn act(world: &World, mode: &str) {
    let done = world.tidegate(&["mode", "shop", mode]);
    assert!(done.status.success(), "{done:?}");
    let history = world.history();
    assert!(history.lines().last().unwrap().contains(&format!("shop: {mode}")), "{history}");
}

fn kept(disk: &Disk) -> String {
    std::fs::read_to_string(disk.history()).unwrap_or_default()
}

fn is_kept(disk: &Disk, mode: &str) -> bool {
    kept(disk).lines().last().is_some_and(|line| line.contains(&format!("\"mode\":\"{mode}\"")))
}

/// A disk that takes nothing, in three ways: each is told, and neither hooks nor events are lost.
#[test]
fn a_disk_that_takes_nothing_costs_no_event_and_no_protection() {
    let mut world = World::new(0);
    let disk = Disk::new(&world);
    run(&mut world, &disk);
    let warned = || world.status().contains("history: cannot be written");
    let holds = |mode: &str| {
        wait_for("a warning", || warned().then_some(()));
        assert!(!is_kept(&disk, mode));
        world.ready();
        world.assert_healthy_soon();
    };
    let recovers = |mode: &str| {
        wait_for("it is written", || is_kept(&disk, mode).then_some(()));
        wait_for("no warning", || (!warned()).then_some(()));
    };
    let filler = disk.0.join("filler");
    let _ = std::fs::File::create(&filler).unwrap().write_all(&[1; 128 << 10]);
    act(&world, "shadow");
    holds("shadow");
    std::fs::remove_file(&filler).unwrap();
    recovers("shadow");

    disk.remount("ro");
    act(&world, "enforce");
    holds("enforce");
    disk.remount("rw");
    recovers("enforce");

    std::fs::remove_dir_all(disk.state()).unwrap();
    act(&world, "shadow");
    holds("shadow");
    std::fs::create_dir(disk.state()).unwrap();
    recovers("shadow");
}

/// What a restart finds: a file that is cut in half, damaged, or of another version.
#[test]
fn a_file_that_cannot_be_read_costs_what_is_damaged_and_is_told() {
    let mut world = World::new(1);
    let disk = Disk::new(&world);
    run(&mut world, &disk);
    for _ in 0..4 {
        act(&world, "shadow");
        act(&world, "enforce");
    }
    wait_for("it is written", || (kept(&disk).lines().count() == 10).then_some(()));
    let whole = kept(&disk);
    let again = |world: &mut World, text: &str| {
        world.daemon().kill().unwrap();
        world.daemon().wait().unwrap();
        std::fs::write(disk.history(), text).unwrap();
        run(world, &disk);
        world.history()
    };
    let half = again(&mut world, &whole[..whole.len() / 2]);
    assert!(world.log().contains("lines of it are damaged"), "{}", world.log());
    assert!((3..9).contains(&half.lines().count()), "{half}");
    let one = again(&mut world, &whole.replacen("\"event\":\"mode\"", "\"event\":\"mo", 1));
    assert_eq!(one.lines().count(), 10 - 2 + 1, "one less, and a start more: {one}");

    let newer = whole.replacen("tidegate-history 1", "tidegate-history 2", 1);
    let begun = again(&mut world, &newer);
    assert_eq!(begun.lines().count(), 1, "{begun}");
    assert!(world.log().contains("another version"), "{}", world.log());
    let aside = disk.state().join("history.other");
    assert_eq!(std::fs::read_to_string(aside).unwrap(), newer, "who goes back to it finds it");
    world.ready();
}
