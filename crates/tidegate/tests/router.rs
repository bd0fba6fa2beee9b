// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flash crowd at a server behind a router: the daemon there tells when it begins and when it is over, and
//! refuses nobody (needs root).
//!
//! ```text
//!   clients ── v1, v0 ── the router, with a daemon ── r0, s0 ── server: 100 requests/s
//! ```

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::ip;
use common::space::{Space, client};
use common::wait_for;
use common::world::World;
use std::process::{Child, Command, Stdio};

const INTENT: &str = "interfaces: [{name: v0}, {name: r0, side: servers}]\n\
    services:\n  web: {mode: shadow, listen: [\"10.84.0.2:80\"]}\n\
    router: {destinations: [\"10.84.0.0/24:80\"]}\n";

/// Two workers, each with 20 ms a request.
const SERVER: &str = r"
import socket, threading, time
s = socket.create_server(('10.84.0.2', 80), backlog=512)
workers = threading.Semaphore(2)
def serve(c):
    try:
        c.recv(4096)
        with workers: time.sleep(0.02)
        c.sendall(b'x' * 3000)
    except OSError: pass
    c.close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";

/// So many clients a second, each with one request.
const CLIENTS: &str = r"
import random, socket, sys, threading, time
def come():
    try:
        c = socket.create_connection(('10.84.0.2', 80), timeout=10)
        c.sendall(b'q' * 100)
        while c.recv(65536): pass
        c.close()
    except OSError: pass
while True:
    threading.Thread(target=come, daemon=True).start()
    time.sleep(random.expovariate(float(sys.argv[1])))
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
    for (namespace, link, address) in [(router, "r0", "10.84.0.1"), (&server.0, "s0", "10.84.0.2")]
    {
        ip(&format!("-n {namespace} address add {address}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    ip(&format!("-n {} route add default via 10.83.0.1", clients.0));
    ip(&format!("-n {} route add default via 10.84.0.1", server.0));
    ip(&format!("netns exec {router} sysctl -qw net.ipv4.ip_forward=1"));
    (clients, server)
}

/// Exchanges that the router has seen to their end.
fn completed(world: &World) -> f64 {
    let page = world.get("/metrics").unwrap_or_default();
    let name = "tidegate_router_exchanges_total{destination=\"10.84.0.2:80\",state=\"completed\"} ";
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    value.map_or(0.0, |value| value.parse().unwrap())
}

#[test]
fn a_flash_crowd_is_told_when_it_begins_and_when_it_is_over() {
    let mut world = World::new(31);
    let (clients, server) = routed(&world);
    let log = std::fs::File::create(world.file("log")).unwrap();
    world.run_intent(INTENT, &[], log.into());
    world.ready();
    let _server = Runs::start(&server, SERVER, &[]);
    let usual = Runs::start(&clients, CLIENTS, &["40"]);
    // 45 seconds.
    for enough in [900.0, 1800.0] {
        wait_for("what is usual is known", || (completed(&world) >= enough).then_some(()));
    }
    assert!(!world.history().contains("flash crowd"), "{}", world.history());
    let crowd = Runs::start(&clients, CLIENTS, &["150"]);
    let told = wait_for("its begin", || {
        Some(world.history()).filter(|told| told.contains("10.84.0.2:80: flash crowd began: "))
    });
    assert!(told.contains(" % slow for their size"), "{told}");
    // What is shown is a picture that is taken a few times a second: it may be older than the event.
    wait_for("the status to show it", || {
        world.status().contains("flash crowd at 10.84.0.2:80 for ").then_some(())
    });
    let metrics = world.get("/metrics").unwrap();
    let gauge = "tidegate_router_flash_crowd{destination=\"10.84.0.2:80\"} 1";
    assert!(metrics.contains(gauge), "{metrics}");
    drop(crowd);
    wait_for("its end", || {
        world.history().contains("10.84.0.2:80: flash crowd ended after ").then_some(())
    });
    wait_for("the status without it", || {
        (!world.status().contains("flash crowd at")).then_some(())
    });
    drop(usual);
}
