// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What goes wrong around a daemon, and what clients do to it: it protects, and says within a second that it
//! lives (needs root). What is behind the log: log.rs.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::world::{STRICT, World};
use common::{ip, wait_for};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use tidegate_api::client::{Client, TIMEOUT_DEFAULT};
use tidegate_api::protocol::{Reply, Request};
use tidegate_sense::in_namespace;

const INTENT: &str = "interfaces: [{name: v0}]\n\
                      services:\n  shop: {mode: enforce, listen: [\"*:8000\"]}\n";

/// Its lease is fresh, its hooks are on, it says so in time, and it refuses.
fn assert_calm(world: &World) {
    world.assert_healthy_soon();
    world.ready();
    world.assert_protects();
}

/// Runs a daemon that refuses.
fn run(world: &mut World) {
    let log = std::fs::File::create(world.file("log")).unwrap();
    world.run_intent(STRICT, &[], log.into());
    world.ready();
}

#[test]
fn a_thousand_control_connections_keep_nobody_from_protection() {
    let mut world = World::new(10);
    run(&mut world);
    let socket = world.file("socket");
    // Most are told that there is no place, and closed; who is in the queue of the socket waits.
    let silent: Vec<_> = (0..1000).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    assert!(silent.len() > 500, "{} connections", silent.len());
    assert_calm(&world);
    let pins = world.file("bpf/tidegate");
    let released = world.tidegate(&["release", "on", "--pins", pins.to_str().unwrap()]);
    assert!(released.status.success(), "the kill switch always works: {released:?}");
    drop(silent);
    wait_for("the switch is seen", || world.status().contains("released").then_some(()));
    wait_for("an operator is served again", || {
        world.tidegate(&["release", "off"]).status.success().then_some(())
    });
}

/// What the hooks count in shadow is what the report says: all are admitted, and what would have been refused has
/// its reason.
#[test]
fn the_shadow_report_has_what_hooks_would_have_refused() {
    const CLIENTS: u64 = 40;
    let mut world = World::new(19);
    let log = std::fs::File::create(world.file("log")).unwrap();
    world.run_intent(&STRICT.replace("mode: enforce", "mode: shadow"), &[], log.into());
    world.ready();
    let come = || {
        let _server = TcpListener::bind("127.0.0.1:8000")?;
        (0..CLIENTS).map(|_| TcpStream::connect("127.0.0.1:8000")).collect::<io::Result<Vec<_>>>()
    };
    in_namespace(Some(&world.namespace()), come).unwrap();
    let report = wait_for("all are counted", || {
        let said = world.tidegate(&["shadow", "report", "-o", "json"]);
        let all: serde_json::Value = serde_json::from_slice(&said.stdout).ok()?;
        let report = all["services"][0].clone();
        (report["all"]["offered"] == CLIENTS).then_some(report)
    });
    let refused = report["all"]["refused"].as_u64().unwrap();
    // A token a second, and the one that was there.
    assert!((CLIENTS / 2..CLIENTS).contains(&refused), "{report}");
    let lines = report["refused_by"].as_array().unwrap();
    let line = &lines[0];
    assert_eq!(
        (lines.len(), &line["reason"], &line["refused"]),
        (1, &"rate".into(), &refused.into())
    );
}

#[test]
fn half_open_requests_keep_no_probe_out() {
    let mut world = World::new(11);
    run(&mut world);
    let open = |_| {
        let mut stream = TcpStream::connect("127.0.0.1:9911")?;
        stream.write_all(b"GET /metr")?;
        Ok(stream)
    };
    let connections: std::io::Result<Vec<_>> =
        in_namespace(Some(&world.namespace()), || (0..64).map(open).collect());
    let connections = connections.unwrap();
    assert_calm(&world);
    assert_eq!(connections.len(), 64);
}

#[test]
fn a_full_disk_behind_what_is_kept_ends_nothing_and_is_told() {
    let mut world = World::new(12);
    let disk = world.file("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=4k", "tidegate-test"];
    assert!(Command::new("mount").args(mount).arg(&disk).status().unwrap().success());
    std::fs::write(disk.join("full"), [0; 4096]).unwrap();
    let daemon = world.command(STRICT, &[]).env("STATE_DIRECTORY", &disk).spawn().unwrap();
    world.adopt(daemon);
    world.ready();
    assert!(world.tidegate(&["mode", "shop", "shadow"]).status.success());
    wait_for("a warning", || world.status().contains("history: ").then_some(()));
    assert!(world.tidegate(&["mode", "shop", "file"]).status.success());
    assert_calm(&world);
    let told = world.tidegate(&["history"]);
    assert!(String::from_utf8_lossy(&told.stdout).contains("shop: shadow"), "{told:?}");
    world.daemon().kill().unwrap();
    world.daemon().wait().unwrap();
    assert!(Command::new("umount").arg(&disk).status().unwrap().success());
}

/// The process of a supervisor that is killed leaves its child, and what read the child's log is gone.
#[test]
fn a_killed_supervisor_ends_nothing() {
    let world = World::new(13);
    let daemon = world.command(STRICT, &[]);
    let mut supervisor = Command::new("sh")
        .args(["-c", "\"$0\" \"$@\" 2>&1 | while read -r line; do :; done"])
        .arg(daemon.get_program())
        .args(daemon.get_args())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    world.ready();
    let mut client = Client::connect(&world.file("socket"), TIMEOUT_DEFAULT).unwrap();
    let Ok(Reply::Pong { pid, .. }) = client.ask(&Request::Ping {}) else { panic!("no daemon") };
    // All of its group but the daemon: the shell, and the reader of the log.
    let group = supervisor.id().to_string();
    let members = Command::new("pgrep").args(["-g", &group]).output().unwrap();
    let members = String::from_utf8(members.stdout).unwrap();
    for member in members.split_whitespace().filter(|member| *member != pid.to_string()) {
        Command::new("kill").args(["-9", member]).status().unwrap();
    }
    supervisor.wait().unwrap();
    assert!(members.split_whitespace().count() >= 3, "{members}");
    let config = world.file("config");
    assert!(world.tidegate(&["reload", "-c", config.to_str().unwrap()]).status.success());
    assert_calm(&world);
    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
}

/// systemd hears when the daemon is in charge, and that its loop goes round. It may stop to listen.
#[test]
fn a_supervisor_is_told_and_may_stop_to_listen() {
    let mut world = World::new(14);
    let path = world.file("notify");
    let notify = UnixDatagram::bind(&path).unwrap();
    notify.set_read_timeout(Some(std::time::Duration::from_secs(40))).unwrap();
    let mut command = world.command(STRICT, &[]);
    let daemon = command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000").spawn();
    world.adopt(daemon.unwrap());
    let hear = || {
        let mut text = [0; 256];
        let length = notify.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    };
    assert!(hear().starts_with("READY=1"));
    world.ready();
    assert_eq!(hear(), "WATCHDOG=1");
    // Its queue of messages is full in a few seconds; nobody waits for that.
    assert_calm(&world);
    drop(notify);
    assert_calm(&world);
}

/// Members of the group look; root changes. Others do not even look.
#[test]
fn a_group_may_look_and_change_nothing() {
    let mut world = World::new(15);
    // "users" in the base system of each distribution.
    const USERS: u32 = 100;
    const NOBODY: u32 = 65534;
    let command = world.command(INTENT, &[]);
    let config = world.file("config");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("daemon: {", "daemon: {socket_group: users, ")).unwrap();
    let directory = config.parent().unwrap();
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = command;
    world.adopt(command.spawn().unwrap());
    world.ready();
    let program = directory.join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_tidegate"), &program).unwrap();
    let as_member = |group: u32, arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(group).args(arguments).arg("--socket").arg(world.file("socket"));
        command.output().unwrap().status.code()
    };
    for (arguments, code) in [
        (&["status"][..], 0),
        (&["history"], 0),
        (&["explain", "192.0.2.1"], 0),
        (&["mode", "shop", "shadow"], 5),
        (&["release", "on"], 5),
        (&["reload"], 5),
    ] {
        assert_eq!(as_member(USERS, arguments), Some(code), "{arguments:?}");
        assert_eq!(as_member(NOBODY, arguments), Some(5), "no member: {arguments:?}");
    }
    let status = world.status();
    assert!(status.contains("enforce") && !status.contains("released"), "{status}");
}

/// What the kernel says of a process: `Uid` and the like.
fn said_of(pid: u32, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
    line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn assert_unprivileged(pid: u32) {
    for key in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(said_of(pid, key).trim_start_matches('0'), "", "{key}");
    }
    assert_eq!(said_of(pid, "Uid"), "65534 65534 65534 65534");
    assert_eq!(said_of(pid, "Gid"), "65534 65534 65534 65534");
    assert_eq!(said_of(pid, "NoNewPrivs"), "1");
}

/// What `check` says of a file with other services, pins and sockets, and this user.
fn check_of_another(world: &World, user: &str) -> String {
    let text = format!(
        "interfaces: [{{name: v0}}]\nservices: {{other: {{mode: enforce, listen: [\"*:9000\"]}}}}\n\
         daemon: {{user: {user}, socket: {}, http: off, pins: {}}}\n",
        world.file("socket2").display(),
        world.file("bpf/another").display()
    );
    let (code, told) = world.check_file(&text);
    assert_eq!(code, Some(3), "{told}");
    told
}

/// The directory of the BPF filesystem is closed to everybody but root, as it is on a host. All that an
/// operator does works all the same, and a stop leaves no hook and no pin.
#[test]
fn a_daemon_of_a_user_protects_reloads_is_succeeded_and_detaches() {
    let mut world = World::new(16);
    let mut command = world.command(INTENT, &[]);
    let config = world.file("config");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("daemon: {", "daemon: {user: nobody, ")).unwrap();
    std::fs::set_permissions(world.file("bpf"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(config.parent().unwrap(), Some(65_534), Some(65_534)).unwrap();
    let log = std::fs::File::create(world.file("log")).unwrap();
    command.stderr(log.try_clone().unwrap());
    world.adopt(command.spawn().unwrap());
    world.ready();
    wait_for("it is the user's", || {
        (said_of(world.daemon().id(), "Uid") != "0 0 0 0").then_some(())
    });
    assert_unprivileged(world.daemon().id());
    let done = |arguments: &[&str]| {
        let output = world.tidegate(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    done(&["mode", "shop", "shadow"]);
    done(&["reload"]);
    done(&["release", "on"]);
    done(&["release", "off"]);
    done(&["mode", "shop", "file"]);

    let mut succeeded = world.replace_daemon();
    let mut command = world.command(INTENT, &[]);
    std::fs::write(&config, text.replace("daemon: {", "daemon: {user: nobody, ")).unwrap();
    world.adopt(command.stderr(log.try_clone().unwrap()).spawn().unwrap());
    assert!(succeeded.wait().unwrap().success(), "{}", world.log());
    world.ready();
    assert_unprivileged(world.daemon().id());
    // Its lock is that user's now; whoever does not know the user finds the hooks.
    wait_for("its lock", || {
        check_of_another(&world, "nobody").contains("protects it already").then_some(())
    });
    let told = check_of_another(&world, "daemon");
    assert!(told.contains("with other pins, are in force there"), "{told}");

    // An interface that is made anew gets its hooks without privileges, and they are handed over.
    ip(&format!("-n {} link del v0", world.name()));
    world.plug();
    wait_for("the new one", || world.log().contains("hooks are attached again").then_some(()));
    let mut succeeded = world.replace_daemon();
    world.adopt(command.stderr(log).spawn().unwrap());
    assert!(succeeded.wait().unwrap().success(), "{}", world.log());
    world.ready();
    assert_unprivileged(world.daemon().id());

    let pid = world.daemon().id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(world.daemon().wait().unwrap().success());
    let log = world.log();
    assert!(log.contains("everything is detached"), "{log}");
    let left = std::fs::read_dir(world.file("bpf/tidegate")).into_iter().flatten().count();
    assert_eq!(left, 0, "pins are left");
    assert!(!world.file("socket").exists());
    assert!(world.file("socket.history").exists(), "what happened is kept: {log}");
}

/// A name that nobody has leaves the host protected, by root without capabilities; `check` says so.
#[test]
fn a_user_that_is_not_there_is_told() {
    let mut world = World::new(17);
    let mut command = world.command(INTENT, &[]);
    let config = world.file("config");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("daemon: {", "daemon: {user: tide-gate, ")).unwrap();
    // As a unit with `User=` gives it.
    std::os::unix::fs::chown(config.parent().unwrap(), Some(65_534), Some(65_534)).unwrap();
    world.adopt(command.stderr(std::fs::File::create(world.file("log")).unwrap()).spawn().unwrap());
    world.ready();
    wait_for("no capability is left", || {
        (said_of(world.daemon().id(), "CapEff").trim_start_matches('0').is_empty()).then_some(())
    });
    assert!(world.log().contains("no such user"), "{}", world.log());
    let kept = format!("{} belongs to another user", config.parent().unwrap().display());
    wait_for("nothing is kept", || world.status().contains(&kept).then_some(()));
    let checked =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["check", "-c"]).arg(&config).output();
    let said = String::from_utf8(checked.unwrap().stderr).unwrap();
    assert!(said.contains("daemon.user: found \"tide-gate\": no such user"), "{said}");
}

/// Whoever has lost the file of a daemon that was killed does not know where its pins are. (What another test
/// left is subtracted as well: this program runs by itself. It is no part of what is compared.)
#[test]
fn what_a_killed_daemon_left_goes_without_its_file() {
    let mut world = World::new(18);
    world.run(&[]);
    world.daemon().kill().unwrap();
    world.daemon().wait().unwrap();
    std::fs::remove_file(world.file("config")).unwrap();
    let none = world.file("none");
    let detach = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["detach", "--pins"]).arg(&none).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let pins = world.file("bpf/tidegate");
    let (hook, pins_shown) = (world.namespace().display().to_string(), pins.display().to_string());
    let ours = |told: &str| -> Vec<String> {
        let (ours, others): (Vec<&str>, Vec<&str>) =
            told.lines().partition(|line| line.contains(&hook) || line.contains(&pins_shown));
        eprintln!("of others: {others:?}"); // shown if this test fails
        ours.into_iter().map(str::to_owned).collect()
    };
    let look = || ours(&detach(&["--orphans", "--dry-run"]));
    assert!(look().is_empty(), "its lease holds");
    // As if it had been killed long ago.
    let version = pins.read_dir().unwrap().find_map(|entry| {
        let path = entry.unwrap().path().join("tg_lease");
        path.exists().then_some(path)
    });
    let long_ago = ["key", "0", "0", "0", "0", "value", "1", "0", "0", "0", "0", "0", "0", "0"];
    let mut update = Command::new("bpftool");
    update.args(["map", "update", "pinned"]).arg(version.unwrap()).args(long_ago);
    assert!(update.status().unwrap().success());
    let told = detach(&[]);
    assert!(told.contains("`tidegate detach --orphans` detaches them"), "{told}");
    let told: Vec<String> =
        look().iter().map(|line| line.replace("would detach", "detached")).collect();
    let done = ours(&detach(&["--orphans"]));
    assert_eq!(done, told);
    assert_eq!(done.iter().filter(|line| line.contains(&hook)).count(), 2, "{done:?}");
    assert!(!pins.exists(), "{done:?}");
    assert!(ours(&detach(&["--orphans"])).is_empty(), "it was found again");
}
