// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose hooks are on an interface: one daemon's, whatever somebody does to its pins, its links, or
//! with another daemon (needs root).
//!
//! ```text
//!  namespace:  v0 ◄── the daemon; a second one with another file, socket and pins wants it, too
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::wait_for;
use common::world::World;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use tidegate_bpf::policy::Policy;
use tidegate_bpf::{InForce, Plan, Settings, leftovers};
use tidegate_config::Registry;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// What has to be noticed is noticed within 3 s; the machine serves other tests, too.
const SOON: Nanos = Nanos::from_secs(15);

/// The hooks that are in force on the interface, whosesoever they are.
fn in_force(world: &World) -> Vec<InForce> {
    let text = "interfaces: [{name: v0}]\nservices: {shop: {mode: enforce, listen: ['*:80']}}\n";
    let registry = Registry::new(Policy::ALL.iter().map(|policy| policy.name()), ["default"]);
    let config = tidegate_config::parse(text, &registry).unwrap();
    let settings = Settings { pins: Some(world.file("bpf/nobody")), ..Settings::default() };
    let plan = Plan { settings, config };
    let look = || leftovers(&plan, MonotonicClock.now(), true).map_err(std::io::Error::other);
    in_namespace(Some(&world.namespace()), look).unwrap().alive
}

/// One at each side, and no second pair.
fn assert_one_pair(world: &World) {
    let hooks = in_force(world);
    assert_eq!(hooks.len(), 2, "{hooks:?}");
}

/// A file of another daemon: everything in it is another, but the interface.
fn another_file(world: &World) -> PathBuf {
    let file = world.file("another");
    let text = format!(
        "interfaces: [{{name: v0}}]\nservices: {{other: {{mode: enforce, listen: [\"*:9000\"]}}}}\n\
         daemon: {{socket: {}, http: off, pins: {}}}\n",
        world.file("socket2").display(),
        world.file("bpf/another").display()
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn within(world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", world.namespace().display()));
    command.arg(env!("CARGO_BIN_EXE_tidegate")).args(arguments).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8(both).unwrap()
}

/// Waits for what is not to be had by a later try, or by a restart.
fn soon(what: &str, mut done: impl FnMut() -> bool) {
    let begin = MonotonicClock.now();
    wait_for(what, || done().then_some(()));
    let took = MonotonicClock.now().since(begin);
    assert!(took < SOON, "{what}: only after {took}");
}

#[test]
fn a_second_daemon_is_told_who_has_the_interface_and_the_first_that_it_came() {
    let mut world = World::new(0);
    world.run(&[]);
    // nsenter replaces itself by the program.
    let pid = format!("pid {}", world.daemon().id());
    let file = another_file(&world);
    let check = within(&world, &["check", "-c", file.to_str().unwrap()]).output().unwrap();
    let told = text(&check);
    assert!(told.contains("another tidegate protects it already") && told.contains(&pid), "{told}");
    assert_eq!(check.status.code(), Some(3), "{told}");
    let own = world.file("config");
    let own = within(&world, &["check", "-c", own.to_str().unwrap()]).output().unwrap();
    assert!(own.status.success(), "a start with its own file succeeds it: {}", text(&own));
    assert!(!world.status().contains("wanted interface"), "nobody wants it yet");

    let second = within(&world, &["run", "-c", file.to_str().unwrap()]).output().unwrap();
    let refused = text(&second);
    assert!(refused.contains(&pid) && refused.contains("ago: "), "{refused}");
    assert_eq!(second.status.code(), Some(1), "{refused}");
    assert!(!world.file("bpf/another").exists(), "it leaves nothing");
    soon("told", || world.status().contains("wanted interface v0, which this one has"));
    assert!(world.log().contains("wanted interface v0"), "{}", world.log());
    world.ready();
    assert_one_pair(&world);
}

#[test]
fn of_two_that_start_at_once_one_runs() {
    let world = World::new(1);
    let files: Vec<PathBuf> = (0..2)
        .map(|number| {
            let text = std::fs::read_to_string(another_file(&world)).unwrap();
            let text = text.replace("socket2", &format!("socket-{number}"));
            let file = world.file(&format!("file{number}"));
            std::fs::write(&file, text.replace("bpf/another", &format!("bpf/an{number}"))).unwrap();
            file
        })
        .collect();
    let start = |file: &PathBuf| {
        let mut command = within(&world, &["run", "-c", file.to_str().unwrap()]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut both: Vec<Child> = files.iter().map(start).collect();
    let ended =
        |both: &mut Vec<Child>| both.iter_mut().position(|c| c.try_wait().unwrap().is_some());
    let loser = wait_for("one gives up", || ended(&mut both));
    assert_eq!(both[loser].wait().unwrap().code(), Some(1));
    let mut winner = both.remove(1 - loser);
    wait_for("the other runs", || (in_force(&world).len() == 2).then_some(()));
    assert_eq!(winner.try_wait().unwrap(), None);
    winner.kill().unwrap();
    winner.wait().unwrap();
}

#[test]
fn removed_pins_are_made_again_and_a_take_over_finds_them() {
    let mut world = World::new(2);
    world.run(&[]);
    let before = in_force(&world);
    let pins = world.file("bpf/tidegate");
    std::fs::remove_dir_all(&pins).unwrap();
    soon("pins", || pins.join("links").read_dir().is_ok_and(|links| links.count() == 2));
    soon("told", || world.history().contains("removed by somebody else and are made again"));
    assert!(world.log().contains("are made again"), "{}", world.log());
    let links = |hooks: &[InForce]| hooks.iter().map(|hook| hook.link).collect::<Vec<_>>();
    assert_eq!(links(&in_force(&world)), links(&before), "the hooks were never lost");
    // Without the lock on what is there now, one with another socket would have them, too.
    soon("locked", || {
        let file = world.file("same-pins");
        let text = std::fs::read_to_string(world.file("config")).unwrap();
        std::fs::write(&file, text.replace("/socket,", "/socket3,")).unwrap();
        let other = within(&world, &["run", "-c", file.to_str().unwrap()]).output().unwrap();
        assert_eq!(other.status.code(), Some(1));
        text_of_lock(&other)
    });

    let mut first = world.replace_daemon();
    world.run(&[]);
    wait_for("succeeded", || first.try_wait().unwrap());
    assert_eq!(links(&in_force(&world)), links(&before), "the second has the links of the first");
    let metrics = world.get("/readyz").unwrap();
    assert!(metrics.contains(" 200 "), "{metrics}");
    soon("the lock", || !world.status().contains("has it, too"));
}

fn text_of_lock(refused: &Output) -> bool {
    text(refused).contains("uses the pins at")
}

#[test]
fn a_link_that_somebody_detaches_is_attached_again() {
    let mut world = World::new(3);
    world.run(&[]);
    let ours = in_force(&world);
    let first = ours[0].link.unwrap().to_string();
    let detach = Command::new("bpftool").args(["link", "detach", "id", &first]).output().unwrap();
    assert!(detach.status.success(), "{}", text(&detach));
    soon("attached", || in_force(&world).len() == 2);
    let anew = in_force(&world);
    assert!(anew.iter().all(|hook| hook.link != ours[0].link), "{anew:?}");
    soon("told", || world.history().contains("hooks are attached again"));
    let log = world.log();
    assert!(
        log.contains("somebody detached its link") && !log.contains("interface is gone"),
        "{log}"
    );
    world.ready();
}

#[test]
fn what_a_killed_daemon_left_gets_no_second_pair_beside_it() {
    let mut world = World::new(4);
    world.run(&[]);
    world.daemon().kill().unwrap();
    world.daemon().wait().unwrap();
    // Its links go with their pins.
    std::fs::remove_dir_all(world.file("bpf/tidegate")).unwrap();
    world.run(&[]);
    assert_one_pair(&world);

    // With pins elsewhere its hooks hold until their lease has ended.
    world.daemon().kill().unwrap();
    world.daemon().wait().unwrap();
    let file = another_file(&world);
    let refused = within(&world, &["run", "-c", file.to_str().unwrap()]).output().unwrap();
    let why = text(&refused);
    assert!(refused.status.code() == Some(1) && why.contains("its last heartbeat is"), "{why}");
    wait_for("the end of the lease", || in_force(&world).is_empty().then_some(()));
    let check = within(&world, &["check", "-c", file.to_str().unwrap()]).output().unwrap();
    let told = text(&check);
    assert!(check.status.success() && told.contains("the start detaches it"), "{told}");
    let log = std::fs::File::create(world.file("log2")).unwrap();
    let mut command = within(&world, &["run", "-c", file.to_str().unwrap()]);
    world.adopt(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    wait_for("it runs", || (in_force(&world).len() == 2).then_some(()));
    let log = std::fs::read_to_string(world.file("log2")).unwrap();
    assert_eq!(log.matches("has left: interface v0: tcx").count(), 2, "{log}");
}

/// Two daemons on the two ends of a pair, which limit the same address: both run, and each hears of the other.
#[test]
fn two_on_different_interfaces_that_limit_the_same_hear_of_each_other() {
    let mut world = World::new(5);
    world.run(&[]);
    let file = another_file(&world);
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("{name: v0}", "{name: v1}").replace("*:9000", "192.0.2.1:8000");
    std::fs::write(&file, text).unwrap();
    let check = within(&world, &["check", "-c", file.to_str().unwrap()]).output().unwrap();
    let told = self::text(&check);
    let pid = format!("pid {}", world.daemon().id());
    assert!(check.status.success() && told.contains("limits *:8000 on another"), "{told}");
    assert!(told.contains(&pid), "{told}");
    assert!(!world.status().contains("on another interface"), "who only looks is no news");

    let log = std::fs::File::create(world.file("log2")).unwrap();
    let mut command = within(&world, &["run", "-c", file.to_str().unwrap()]);
    let mut second = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    soon("the first is told", || world.status().contains("limits *:8000 on another interface"));
    let told = || std::fs::read_to_string(world.file("log2")).unwrap();
    assert!(told().contains("limits *:8000 on another") && told().contains(&pid), "{}", told());
    world.ready();
    second.kill().unwrap();
    second.wait().unwrap();
}
