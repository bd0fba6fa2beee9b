// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How labs begin and end.
//!
//! ```text
//!  owner (this test, or `hold` as a child) ── pipe ── guard
//!     └─ lab: cl ── rt ── sv with the small server in it
//! ```

mod common;

use common::{eventually, helper, lab, one_at_a_time, run, steady};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidegate_lab::{TinyOptions, owner_alive, remains, sweep};

fn runs(pid: u32) -> bool {
    // A zombie waits only for its parent.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// What kind of thing still exists of a lab, including its processes.
fn left(id: &str, processes: &[u32]) -> Vec<String> {
    let mut left = remains(id);
    left.extend(processes.iter().filter(|p| runs(**p)).map(|p| format!("process {p}")));
    left
}

#[test]
fn a_lab_leaves_nothing_behind() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_tiny(&TinyOptions::default()).unwrap();
    let id = lab.id().to_owned();
    let mut processes = server.group().processes();
    processes.push(lab.guard_pid());
    assert!(Path::new(&lab.dir().join("bpf")).exists());
    // Namespaces, directory, mount, cgroups: all there, or the check below would prove nothing.
    assert!(left(&id, &processes).len() >= 3 + 1 + 1 + 1 + 2, "{:?}", left(&id, &processes));
    // The lab goes first: even then nothing survives.
    drop(lab);
    drop(server);
    assert_eq!(left(&id, &processes), Vec::<String>::new());
}

#[test]
fn a_panic_leaves_nothing_behind() {
    let _one = one_at_a_time();
    let mut id = String::new();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let lab = lab();
        id = lab.id().to_owned();
        let _server = lab.start_tiny(&TinyOptions::default()).unwrap();
        panic!("as a failing test would");
    }));
    assert!(ended.is_err() && !id.is_empty());
    assert_eq!(remains(&id), Vec::<String>::new());
}

/// Starts an owner that holds a lab; gives it, the lab's id and the guard's pid.
fn owner() -> (Child, String, u32) {
    let mut command = Command::new(helper().program);
    command.arg("hold").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the helper starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let (id, guard) = line.trim().split_once(' ').expect("id and guard");
    (child, id.to_owned(), guard.parse().expect("a pid"))
}

fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a pid");
    kill_process(pid, signal).expect("the process is ours");
}

#[test]
fn whatever_kills_the_owner_the_guard_removes_the_lab() {
    let _one = one_at_a_time();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let (mut child, id, guard) = owner();
        assert!(owner_alive(&id) && !remains(&id).is_empty());
        kill(child.id(), signal);
        child.wait().unwrap();
        let gone = eventually(20, || left(&id, &[guard]).is_empty());
        assert!(gone, "{signal:?}: {:?}", left(&id, &[guard]));
    }
}

#[test]
fn without_a_guard_the_next_sweep_removes_the_lab_and_only_that() {
    let _one = one_at_a_time();
    let mine = lab();
    let (mut child, id, guard) = owner();
    kill(guard, Signal::KILL);
    let _ = sweep();
    assert!(!remains(&id).is_empty(), "the owner lives: its lab must stay");
    kill(child.id(), Signal::KILL);
    child.wait().unwrap();
    assert!(!remains(&id).is_empty(), "without its guard the lab stays until swept");
    let (_, problems) = sweep();
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(remains(&id), Vec::<String>::new());
    assert!(!remains(mine.id()).is_empty(), "the lab of a living owner is not touched");
}

/// Same addresses, same ports, two labs: each load meets its own server only.
#[test]
fn two_labs_never_meet() {
    let _one = one_at_a_time();
    let (a, b) = std::thread::scope(|scope| {
        let both = [scope.spawn(lab), scope.spawn(lab)];
        let mut made = both.map(|t| t.join().unwrap()).into_iter();
        (made.next().unwrap(), made.next().unwrap())
    });
    assert_ne!(a.id(), b.id());
    let server = a.start_tiny(&TinyOptions::default()).unwrap();
    let stream = server.stream("both", steady(50.0, 1_000));
    // Lab b has no server: all of its clients are refused, none reaches the server of lab a.
    let (in_a, in_b) = std::thread::scope(|scope| {
        let ta = scope.spawn(|| run(&a, vec![stream.clone()], 5_000));
        let tb = scope.spawn(|| run(&b, vec![stream.clone()], 5_000));
        (ta.join().unwrap(), tb.join().unwrap())
    });
    assert_eq!(in_a.streams[0].total.counts.answered, 50);
    assert_eq!(in_b.streams[0].total.counts.refused_connect, 50);
    let id = b.id().to_owned();
    drop(b);
    assert_eq!(remains(&id), Vec::<String>::new());
    assert_eq!(run(&a, vec![stream], 5_000).streams[0].total.counts.answered, 50);
}
