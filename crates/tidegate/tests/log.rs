// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is behind the log may fail: a full disk, a pipe whose reader leaves or stops to read. None of
//! it ends the daemon or keeps it from its work (needs root).
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::wait_for;
use common::world::{STRICT, World};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Makes the daemon log a line for each: a configuration that it refuses.
const LINES: usize = 20;

fn provoke_lines(world: &World) {
    let wrong = world.file("wrong");
    std::fs::write(&wrong, "services: {}\n").unwrap();
    for _ in 0..LINES {
        let refused = world.tidegate(&["reload", "-c", wrong.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(3), "{refused:?}");
        let config = world.file("config");
        assert!(world.tidegate(&["reload", "-c", config.to_str().unwrap()]).status.success());
    }
}

/// It serves, its lease is fresh, and it is the same process.
fn assert_lives(world: &mut World) {
    provoke_lines(world);
    world.ready();
    world.assert_healthy_soon();
    world.assert_protects();
    assert_eq!(world.daemon().try_wait().unwrap(), None, "it ended");
}

#[test]
fn a_full_disk_behind_the_log_ends_nothing_and_is_told() {
    let mut world = World::new(0);
    world.run_intent(STRICT, &[], OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    world.ready();
    assert_lives(&mut world);
    wait_for("a warning", || world.status().contains("log: cannot be written").then_some(()));
}

#[test]
fn a_reader_of_the_log_that_leaves_ends_nothing() {
    let mut world = World::new(1);
    world.run_intent(STRICT, &[], Stdio::piped());
    // As `tidegate run 2>&1 | head -n 1` does.
    let mut log = BufReader::new(world.daemon().stderr.take().unwrap());
    let mut first = String::new();
    log.read_line(&mut first).unwrap();
    assert!(!first.is_empty());
    drop(log);
    world.ready();
    assert_lives(&mut world);
    let status = world.status();
    assert!(status.contains("log: cannot be written"), "{status}");
}

/// A pipe holds 64 KiB and then makes its writers wait: the loop that renews the lease must not.
#[test]
fn a_reader_of_the_log_that_stops_to_read_stops_nothing() {
    let mut world = World::new(2);
    world.run_intent(STRICT, &[], Stdio::piped());
    let log = world.daemon().stderr.take().unwrap();
    rustix::pipe::fcntl_setpipe_size(&log, 4096).unwrap();
    world.ready();
    for _ in 0..5 {
        provoke_lines(&world);
    }
    assert_lives(&mut world);
    wait_for("a warning", || world.status().contains("log: cannot be written").then_some(()));
    drop(log);
}

/// An object a line; the journal learns the priority of each.
#[test]
fn a_log_in_json_is_an_object_a_line_behind_its_priority_in_the_journal() {
    for (number, journal) in [(4, false), (5, true)] {
        let mut world = World::new(number);
        world.run_logged(&["--log-format", "json"], journal);
        provoke_lines(&world);
        let text = std::fs::read_to_string(world.file("log")).unwrap();
        let mut levels = Vec::new();
        for line in text.lines() {
            let (priority, object) = match line.strip_prefix('<') {
                Some(rest) => rest.split_once('>').unwrap(),
                None => ("", line),
            };
            let object: serde_json::Value = serde_json::from_str(object).unwrap();
            assert!(object["message"].is_string() && object["timestamp"].is_string(), "{line}");
            let level = object["level"].as_str().unwrap().to_owned();
            let wanted = match level.as_str() {
                "ERROR" => "3",
                "WARN" => "4",
                other => ["7", "6"][usize::from(other == "INFO")],
            };
            assert_eq!(priority, if journal { wanted } else { "" }, "{line}");
            levels.push(level);
        }
        assert!(levels.len() > LINES && levels.contains(&"INFO".to_owned()), "{text}");
    }
}

/// In the journal text has no time of its own.
#[test]
fn a_log_for_people_has_priorities_in_the_journal() {
    let mut world = World::new(6);
    world.run_logged(&[], true);
    let text = std::fs::read_to_string(world.file("log")).unwrap();
    assert!(text.lines().count() > 0);
    for line in text.lines() {
        let rest = line.strip_prefix("<6> INFO ").or_else(|| line.strip_prefix("<4> WARN "));
        assert!(rest.is_some_and(|rest| rest.starts_with("tidegate")), "{line}");
    }
}

/// The largest size of a file is a signal whose default ends the process.
#[test]
fn a_log_at_its_largest_size_ends_nothing() {
    let mut world = World::new(3);
    let log = std::fs::File::create(world.file("log")).unwrap();
    world.run_intent(STRICT, &[], log.into());
    world.ready();
    let pid = world.daemon().id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, "--fsize=1:1"]).status().unwrap();
    assert!(limited.success());
    assert_lives(&mut world);
}
