// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The unit of packaging/ from its start to its stop, under a systemd that is the machine's first process, and a clock
//! that is really set: only `cargo xtask guest --systemd` builds and runs this, in a machine of its own (feature
//! `guest`). The dataplane is on the loopback, where nearly every connection to the service is refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::world::STRICT;
use common::{run, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use tidegate_model::snapshot::Snapshot;

const UNIT: &str = include_str!("../../../packaging/tidegate.service");
const USERS: &str = include_str!("../../../packaging/tidegate.sysusers");
const CONFIG: &str = "/etc/tidegate/tidegate.yaml";
const LINKS: &str = "/sys/fs/bpf/tidegate/links";
const STATE: &str = "/run/tidegate/control.sock.state";
const HISTORY: &str = "/var/lib/tidegate/history";
const SHOP: &str = "127.0.0.1:8000";
/// Connections that are made at once.
const CLIENTS: usize = 20;
const DAY_S: u64 = 86_400;

/// Shows what the unit's processes said, if the test fails.
struct Journal;

impl Drop for Journal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let status = Command::new("systemctl").args(["status", "-l", "tidegate"]).output();
            let journal =
                Command::new("journalctl").args(["--no-pager", "-u", "tidegate"]).output();
            for output in [status, journal].into_iter().flatten() {
                eprintln!("{}", String::from_utf8_lossy(&output.stdout));
            }
        }
    }
}

fn systemctl(arguments: &[&str]) -> Output {
    Command::new("systemctl").args(arguments).output().unwrap()
}

fn does(command: &str) {
    let output = systemctl(&[command, "tidegate"]);
    assert!(output.status.success(), "{command}: {output:?}");
}

/// What systemd says of the unit.
fn is(property: &str) -> String {
    let output = systemctl(&["show", "--value", "--property", property, "tidegate"]);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn pid() -> u32 {
    is("MainPID").parse().unwrap()
}

fn tidegate(arguments: &[&str]) -> Value {
    let output = Command::new("/usr/bin/tidegate").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The limits of the process before were taken over.
fn is_restored() -> bool {
    let snapshot: Snapshot = serde_json::from_value(tidegate(&["status", "-o", "json"])).unwrap();
    snapshot.services[0].restored.is_some_and(|restored| restored.limits)
}

/// How many of these clients are refused.
fn refused(clients: usize) -> usize {
    (0..clients).filter(|_| TcpStream::connect(SHOP).is_err()).count()
}

fn protects() {
    wait_for("it refuses", || (refused(CLIENTS) >= CLIENTS / 2).then_some(()));
}

/// Another process than that one runs, with the limits of before, and protects.
fn came_after(before: u32) {
    wait_for("another process", || {
        (is("ActiveState") == "active" && ![0, before].contains(&pid())).then_some(())
    });
    wait_for("the limits of before", || is_restored().then_some(()));
    protects();
}

fn write_config(text: &str) {
    let daemon = "daemon: {user: tidegate}\n";
    fs::write(CONFIG, format!("{text}{daemon}")).unwrap();
}

fn install() {
    let line = fs::read_to_string("/proc/cmdline").unwrap();
    assert!(
        line.split_whitespace().any(|word| word == "tidegate.systemd"),
        "this sets the clock and installs a unit: it is for a guest alone"
    );
    fs::copy(env!("CARGO_BIN_EXE_tidegate"), "/usr/bin/tidegate").unwrap();
    for (file, text) in [
        ("/etc/systemd/system/tidegate.service", UNIT),
        ("/usr/lib/sysusers.d/tidegate.conf", USERS),
    ] {
        fs::create_dir_all(Path::new(file).parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    fs::create_dir_all("/etc/tidegate").unwrap();
    write_config(STRICT);
    run("systemd-sysusers", "");
    assert!(systemctl(&["daemon-reload"]).status.success());
}

/// Everything of the process, and what was given to it, is the user's; it has no capability.
fn is_the_users() {
    let output = Command::new("id").args(["-u", "tidegate"]).output().unwrap();
    let user = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    for task in fs::read_dir(format!("/proc/{}/task", pid())).unwrap() {
        // One that looked at something aside may have ended.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let said = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(said("Uid:"), [&*user; 4], "{status}");
        assert_eq!(said("CapEff:"), ["0000000000000000"], "{status}");
        assert_eq!(said("CapPrm:"), ["0000000000000000"], "{status}");
        assert_eq!(said("Seccomp:"), ["2"], "SystemCallFilter= acts: {status}");
    }
    for place in ["/run/tidegate", "/var/lib/tidegate"] {
        assert_eq!(fs::metadata(place).unwrap().uid().to_string(), user, "{place}");
    }
}

/// The pins of the hooks: those that are made anew have another number.
fn links() -> Vec<(String, u64)> {
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino())
    };
    let mut links: Vec<_> = fs::read_dir(LINKS).unwrap().map(entry).collect();
    links.sort();
    assert!(!links.is_empty());
    links
}

fn starts_and_reloads() {
    does("start");
    assert_eq!(is("ActiveState"), "active", "who is ready said so");
    is_the_users();
    protects();
    let before = pid();
    does("reload");
    assert_eq!(pid(), before);
    // systemd gives the directories to the unit's user before each command.
    is_the_users();
    let written = |kind: &str| {
        let wanted = format!("\"event\":\"{kind}\"");
        wait_for(kind, || fs::read_to_string(HISTORY).ok().filter(|text| text.contains(&wanted)));
    };
    written("started");
    assert!(Command::new("/usr/bin/tidegate").args(["release", "on"]).status().unwrap().success());
    written("release");
    assert!(Command::new("/usr/bin/tidegate").args(["release", "off"]).status().unwrap().success());
    let snapshot: Snapshot = serde_json::from_value(tidegate(&["status", "-o", "json"])).unwrap();
    let amiss = snapshot.warnings.iter().find(|text| text.contains("cannot be written"));
    assert_eq!(amiss, None);
}

/// A crash, a loop that does not go round, and a restart: the hooks stay, and the next process has the limits.
fn ends_and_comes_again() {
    let hooks = links();
    for (signal, result) in [(Signal::KILL, "killed"), (Signal::STOP, "the watchdog")] {
        // It takes away what it read at its start.
        wait_for("what it learned is kept", || Path::new(STATE).exists().then_some(()));
        let before = pid();
        let process = Pid::from_raw(before.try_into().unwrap()).unwrap();
        kill_process(process, signal).unwrap();
        came_after(before);
        assert_eq!(links(), hooks, "{result}");
        is_the_users();
    }
    assert_eq!(is("NRestarts"), "2");
    let before = pid();
    does("restart");
    came_after(before);
    assert_eq!(links(), hooks, "restart");
}

/// A file that only a person can mend is tried once. What was left of the process before opens.
fn gives_up_on_a_wrong_file() {
    write_config(&STRICT.replace("mode: enforce", "mode: enforc"));
    assert!(!systemctl(&["restart", "tidegate"]).status.success());
    wait_for("failed", || (is("ActiveState") == "failed").then_some(()));
    let state = ["SubState", "Result", "ExecMainStatus", "NRestarts"].map(is);
    assert_eq!(state, ["failed", "exit-code", "3", "0"]);
    wait_for("the lease opens", || (refused(CLIENTS) == 0).then_some(()));
    write_config(STRICT);
    does("start");
    protects();
    assert_eq!(is("NRestarts"), "0");
}

fn events() -> Vec<Value> {
    let history = tidegate(&["history", "-o", "json"]);
    history["events"].as_array().unwrap().clone()
}

/// A day ahead, while the daemon runs. It is none the worse for it, and what was before is told of the right day.
fn the_clock_is_set() {
    let ended = |event: &Value| event["event"] == "shedding-ended";
    wait_for("the end of shedding", || events().iter().any(ended).then_some(()));
    let (before, process) = (events(), pid());
    let day = |event: &Value| event["at"]["unix"].as_u64().unwrap() / 1_000_000_000;
    let now = Command::new("date").args(["-u", "+%s"]).output().unwrap().stdout;
    let now: u64 = String::from_utf8(now).unwrap().trim().parse().unwrap();
    run("date", &format!("-u -s @{}", now + DAY_S));
    protects();
    assert_eq!(pid(), process);
    does("restart");
    came_after(process);
    let after = events();
    for event in &before {
        let again = after.iter().find(|again| again["number"] == event["number"]).unwrap();
        let moved = day(again) - day(event);
        assert!(moved.abs_diff(DAY_S) <= 60, "by {moved} s: {event} {again}");
        let body = |event: &Value| {
            let mut event = event.clone();
            event["at"]["unix"] = Value::Null;
            event
        };
        assert_eq!(body(again), body(event));
    }
}

fn stops() {
    does("stop");
    assert_eq!(is("ActiveState"), "inactive");
    assert_eq!(refused(CLIENTS), 0);
    let left = fs::read_dir("/sys/fs/bpf/tidegate").into_iter().flatten().count();
    assert_eq!(left, 0, "pins are left");
    assert!(Path::new(HISTORY).exists());
    let journal = Command::new("journalctl").args(["--no-pager", "-u", "tidegate"]).output();
    let journal = String::from_utf8(journal.unwrap().stdout).unwrap();
    assert!(journal.contains("everything is detached"), "{journal}");
}

#[test]
fn the_unit_protects_from_its_start_to_its_stop() {
    install();
    let _journal = Journal;
    let server = TcpListener::bind(SHOP).unwrap();
    std::thread::spawn(move || server.incoming().count());
    let parts: [(&str, fn()); 5] = [
        ("start, reload", starts_and_reloads),
        ("killed, stopped, restart", ends_and_comes_again),
        ("a wrong file", gives_up_on_a_wrong_file),
        ("the clock a day ahead", the_clock_is_set),
        ("stop", stops),
    ];
    for (what, part) in parts {
        println!("systemd: {what}");
        part();
    }
}
