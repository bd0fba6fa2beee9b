// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service that is reached past the hooks is not protected, and whoever asks is told so (needs
//! root).
//!
//! ```text
//!  client namespace          the daemon's and the server's
//!  v1 10.79.0.2 ──────────── v0 10.79.0.1:8000     at tcx: a stranger that ends the chain, then ours
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::world::World;
use common::{ip, wait_for};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidegate_bpf::Interface;
use tidegate_bpf::testing::{Foreign, ForeignVerdict};
use tidegate_sense::in_namespace;

const SERVER: &str = "10.79.0.1:8000";
/// Between two connections of a client.
const PAUSE: Duration = Duration::from_millis(100);

struct Client(String);

impl Client {
    fn new(world: &World) -> Self {
        let (name, server) = (format!("{}c", world.name()), world.name());
        ip(&format!("netns add {name}"));
        ip(&format!("-n {server} link set v1 netns {name}"));
        ip(&format!("-n {server} address add 10.79.0.1/24 dev v0"));
        ip(&format!("-n {server} link set v0 up"));
        ip(&format!("-n {name} address add 10.79.0.2/24 dev v1"));
        ip(&format!("-n {name} link set v1 up"));
        Self(name)
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }

    /// One connection, which the server keeps open.
    fn connect(&self) -> TcpStream {
        let server: SocketAddr = SERVER.parse().unwrap();
        let patience = Duration::from_secs(5);
        in_namespace(Some(&self.path()), || TcpStream::connect_timeout(&server, patience)).unwrap()
    }
}

/// A server that accepts all and says nothing; it ends with the test's process.
fn serve(world: &World) {
    let listener =
        in_namespace(Some(&world.namespace()), || TcpListener::bind("0.0.0.0:8000")).unwrap();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn a_hook_that_sees_nothing_of_a_busy_service_is_warned_of_and_not_ready() {
    let mut world = World::new(0);
    let client = Client::new(&world);
    serve(&world);
    world.run(&[]);
    let mut held = vec![client.connect()];
    let interface = Interface::named("v0", Some(world.namespace()));
    let foreign = Foreign { verdict: ForeignVerdict::Pass, egress: false, first: true };
    let stranger = foreign.attach(&interface).unwrap();
    let page = wait_for("not ready", || {
        std::thread::sleep(PAUSE);
        held.push(client.connect());
        world.get("/readyz").filter(|page| page.contains(" 503 "))
    });
    assert!(page.contains("service shop: ") && page.contains("the hooks saw none"), "{page}");
    let status = world.status();
    assert!(status.contains("shop: hooks: ") && status.contains("not protected"), "{status}");
    let metrics = world.get("/metrics").unwrap();
    let metric = "tidegate_service_bypassed_connections{service=\"shop\"} ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(metric)).unwrap();
    assert!(value.parse::<f64>().unwrap() >= 5.0, "{value}");

    drop(stranger);
    held.push(client.connect());
    wait_for("ready", || world.get("/readyz").filter(|page| page.contains(" 200 ")));
    drop(held);
}

/// What the host says to itself goes by no hook, and is no reason to warn.
#[test]
fn connections_of_the_host_to_itself_are_no_reason_to_warn() {
    /// Longer than it takes until a hook that sees nothing is warned of.
    const CONNECTIONS: usize = 160;
    let mut world = World::new(1);
    let _client = Client::new(&world);
    serve(&world);
    world.run(&[]);
    let held: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|i| {
            std::thread::sleep(PAUSE);
            let address = if i % 2 == 0 { SERVER } else { "127.0.0.1:8000" };
            in_namespace(Some(&world.namespace()), || TcpStream::connect(address)).unwrap()
        })
        .collect();
    let page = world.get("/readyz").unwrap();
    assert!(page.contains(" 200 "), "{page}");
    assert!(!world.status().contains("shop: hooks: "), "{}", world.status());
    drop(held);
}
