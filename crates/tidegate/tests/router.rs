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

use common::ip;
use common::space::{Space, client};
use common::wait_for;
use common::world::World;
use std::process::{Child, Command, Stdio};
use tidegate_units::{Clock, MonotonicClock, Nanos};

const HOT: &str = "10.84.0.2";
const BYSTANDER: &str = "10.84.0.3";

/// The file with or without limits.
fn intent(limit: &str) -> String {
    format!(
        "interfaces: [{{name: v0}}, {{name: r0, side: servers}}]\n\
         services:\n  web: {{mode: shadow, listen: [\"10.84.0.2:80\"]}}\n\
         router: {{destinations: [\"10.84.0.0/24:80\"]{limit}}}\n"
    )
}

/// So many workers, each with 40 ms a request. Who has gone meanwhile is not worked for: what a collapse has left behind
/// is over in a moment.
const SERVER: &str = r"
import socket, sys, threading, time
s = socket.create_server((sys.argv[1], 80), backlog=512)
workers = threading.Semaphore(int(sys.argv[2]))
def gone(c):
    try: return not c.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError: return False
def serve(c):
    try:
        c.recv(4096)
        with workers:
            here = not gone(c)
            if here: time.sleep(0.04)
        if here: c.sendall(b'x' * 3000)
    except OSError: pass
    c.close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";

/// So many clients a second, each with one request. Each that has its response within two seconds adds a byte to a file.
const CLIENTS: &str = r"
import random, socket, sys, threading, time
good = open(sys.argv[3], 'ab', buffering=0)
def come():
    began = time.monotonic()
    try:
        c = socket.create_connection((sys.argv[1], 80), timeout=4)
        c.sendall(b'q' * 100)
        while c.recv(65536): pass
        c.close()
        if time.monotonic() - began < 2: good.write(b'.')
    except OSError: pass
while True:
    threading.Thread(target=come, daemon=True).start()
    time.sleep(random.expovariate(float(sys.argv[2])))
";

/// Forty connections at once: it fails unless the SYN of each passes.
const PROBE: &str = r"
import socket, sys
for n in range(40): socket.create_connection((sys.argv[1], 80), timeout=0.8).close()
";

/// A program in a namespace; killed when it is dropped.
struct Runs(Child);

impl Runs {
    fn start(space: &Space, program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", space.path().display())).args(["python3", "-c", program]);
        Self(command.args(arguments).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A router between clients and a server.
fn routed(world: &World) -> (Space, Space) {
    let (clients, server, router) = (client(world), Space::new(world, "s"), world.name());
    ip(&format!("-n {router} link add r0 type veth peer name s0 netns {}", server.0));
    for (namespace, link, address) in
        [(router, "r0", "10.84.0.1"), (&server.0, "s0", HOT), (&server.0, "s0", BYSTANDER)]
    {
        ip(&format!("-n {namespace} address add {address}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    ip(&format!("-n {} route add default via 10.83.0.1", clients.0));
    ip(&format!("-n {} route add default via 10.84.0.1", server.0));
    ip(&format!("netns exec {router} sysctl -qw net.ipv4.ip_forward=1"));
    (clients, server)
}

/// A counter or gauge of the router; zero as long as there is none.
fn metric(world: &World, name: &str) -> f64 {
    let page = world.get("/metrics").unwrap_or_default();
    let name = format!("tidegate_router_{name} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(0.0, |value| value.parse().unwrap())
}

/// Exchanges that the router has seen to their end.
fn completed(world: &World) -> f64 {
    metric(world, &format!("exchanges_total{{destination=\"{HOT}:80\",state=\"completed\"}}"))
}

/// SYNs of a destination beyond its limit.
fn limited(world: &World, server: &str, state: &str) -> f64 {
    metric(world, &format!("limited_syns_total{{destination=\"{server}:80\",state=\"{state}\"}}"))
}

/// A router with both servers, their usual clients, and another file of those that come in time.
struct Scene {
    world: World,
    clients: Space,
    _server: Space,
    _runs: Vec<Runs>,
}

impl Scene {
    fn new(number: u32, limit: &str) -> Self {
        let mut world = World::new(number);
        let (clients, server) = routed(&world);
        let log = std::fs::File::create(world.file("log")).unwrap();
        world.run_intent(&intent(limit), &[], log.into());
        world.ready();
        let runs = [(HOT, "2"), (BYSTANDER, "64")];
        let runs = runs.map(|(at, workers)| Runs::start(&server, SERVER, &[at, workers]));
        let mut scene = Self { world, clients, _server: server, _runs: runs.into() };
        for (at, rate) in [(HOT, "20"), (BYSTANDER, "10")] {
            let usual = scene.come(at, rate);
            scene._runs.push(usual);
        }
        scene
    }

    fn come(&self, at: &str, rate: &str) -> Runs {
        let file = self.world.file(at);
        Runs::start(&self.clients, CLIENTS, &[at, rate, file.to_str().unwrap()])
    }

    /// What is usual is known: 45 seconds.
    fn learn(&self) {
        for enough in [450.0, 900.0] {
            wait_for("what is usual is known", || (completed(&self.world) >= enough).then_some(()));
        }
        assert!(!self.world.history().contains("flash crowd"), "{}", self.world.history());
    }

    /// Clients of the hot server that came in time, a second, over the next three seconds.
    fn goodput(&self) -> f64 {
        let clock = MonotonicClock;
        let good = || std::fs::metadata(self.world.file(HOT)).unwrap().len();
        let (begun, before) = (clock.now(), good());
        wait_for("three seconds", || {
            (clock.now().since(begun) >= Nanos::from_secs(3)).then_some(())
        });
        (good() - before) as f64 / clock.now().since(begun).as_secs_f64()
    }

    /// Whether every SYN of forty passes.
    fn all_pass(&self, at: &str) -> bool {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.clients.path().display()));
        command.args(["python3", "-c", PROBE, at]).stderr(Stdio::null());
        command.status().unwrap().success()
    }

    /// Whether a limit refuses at the hot server: some SYN of forty does not pass, and it is counted.
    fn refuses(&self) -> bool {
        let before = limited(&self.world, HOT, "refused");
        let refuses = !self.all_pass(HOT);
        if refuses {
            let more = || limited(&self.world, HOT, "refused") > before;
            wait_for("refusals are counted", || more().then_some(()));
        }
        refuses
    }

    /// The daemon hangs, and an operator says that everything is to pass. The lease alone lets hardly any forty pass
    /// within eight seconds.
    fn a_release_opens_it_while_the_daemon_hangs(&self, daemon: u32) {
        let (clock, pins) = (MonotonicClock, self.world.file("bpf/tidegate"));
        let release = |on: &str| {
            let output = self.world.tidegate(&["release", on, "--pins", pins.to_str().unwrap()]);
            assert!(output.status.success(), "{output:?}");
        };
        signal(daemon, "-STOP");
        let begun = clock.now();
        release("on");
        let passes = self.all_pass(HOT);
        assert!(passes || clock.now().since(begun) >= Nanos::from_secs(8));
        // In this order: a daemon that hangs longer than the lease finds its limits open anyway.
        signal(daemon, "-CONT");
        release("off");
        wait_for("it holds again", || self.refuses().then_some(()));
    }

    /// The next daemon would take the crowd for usual, if it did not know what the one before had learned.
    fn is_killed_and_goes_on(&mut self) {
        let daemon = self.world.daemon();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        let log = std::fs::OpenOptions::new().append(true).open(self.world.file("log"));
        self.world.run_intent(&intent(", limit: {mode: enforce}"), &[], log.unwrap().into());
        self.world.ready();
        wait_for("the limit holds in the next process", || self.refuses().then_some(()));
        self.shows("flash crowd at 10.84.0.2:80 for ");
        assert!(self.all_pass(BYSTANDER));
    }

    fn reload(&self, limit: &str) {
        let file = self.world.file("config");
        let text = std::fs::read_to_string(&file).unwrap();
        let rest = text.split("daemon:").nth(1).unwrap();
        std::fs::write(&file, format!("{}daemon:{rest}", intent(limit))).unwrap();
        let output = self.world.tidegate(&["reload"]);
        assert!(output.status.success(), "{output:?}");
    }

    fn told(&self, part: &str) -> String {
        wait_for(part, || Some(self.world.history()).filter(|told| told.contains(part)))
    }

    /// What is shown is a picture that is taken a few times a second: it may be older than an event.
    fn shows(&self, part: &str) {
        wait_for(part, || self.world.status().contains(part).then_some(()));
    }
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_flash_crowd_is_told_and_limited_and_over() {
    let mut scene = Scene::new(31, ", limit: {mode: shadow}");
    scene.learn();
    let crowd = scene.come(HOT, "100");
    let told = scene.told("10.84.0.2:80: flash crowd began: ");
    assert!(told.contains(" % slow for their size"), "{told}");
    scene.shows("flash crowd at 10.84.0.2:80 for ");
    assert_eq!(metric(&scene.world, "flash_crowd{destination=\"10.84.0.2:80\"}"), 1.0);
    // In shadow it is counted, and the server collapses.
    scene.told("10.84.0.2:80: new connections would be limited to ");
    scene.shows("    shadow: limit of ");
    wait_for("a collapse", || (scene.goodput() < 10.0).then_some(()));
    wait_for("would refuse", || (limited(&scene.world, HOT, "would-refuse") > 0.0).then_some(()));
    assert_eq!(limited(&scene.world, HOT, "refused"), 0.0);
    // Enforced it works again, and its neighbour notices nothing.
    scene.reload(", limit: {mode: enforce}");
    wait_for("a server at its work", || (scene.goodput() > 25.0).then_some(()));
    scene.shows("    limited to ");
    wait_for("refusals", || (limited(&scene.world, HOT, "refused") > 100.0).then_some(()));
    wait_for("who is refused", || scene.refuses().then_some(()));
    assert!(scene.all_pass(BYSTANDER));
    let daemon = scene.world.daemon().id();
    scene.a_release_opens_it_while_the_daemon_hangs(daemon);
    // A daemon that hangs opens it by itself.
    signal(daemon, "-STOP");
    wait_for("the lease ends", || scene.all_pass(HOT).then_some(()));
    signal(daemon, "-CONT");
    wait_for("it holds again", || scene.refuses().then_some(()));
    let bystander =
        format!("limited_syns_total{{destination=\"{BYSTANDER}:80\",state=\"refused\"}} 0");
    assert!(scene.world.get("/metrics").unwrap().contains(&bystander), "{bystander}");
    scene.is_killed_and_goes_on();
    drop(crowd);
    let told = scene.told("10.84.0.2:80: flash crowd ended after ");
    assert!(told.contains(" SYNs refused"), "{told}");
    assert!(told.contains("10.84.0.2:80: new connections are limited no longer, after "), "{told}");
    wait_for("the status without it", || {
        (!scene.world.status().contains("flash crowd at")).then_some(())
    });
    wait_for("no limit", || scene.all_pass(HOT).then_some(()));
}
