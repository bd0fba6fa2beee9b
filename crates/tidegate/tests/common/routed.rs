// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router between clients and two servers (needs root).
//!
//! ```text
//!   clients ── v1, v0 ── the router, with a daemon ── r0, s0 ── 10.84.0.2: 50 requests/s
//!                                                              10.84.0.3: as many as come
//! ```

use super::flash::{Runs, Scene};
use super::ip;
use super::space::{Space, client};
use super::world::World;

pub(crate) const HOT: &str = "10.84.0.2:80";
pub(crate) const BYSTANDER: &str = "10.84.0.3:80";

/// The file with or without limits.
pub(crate) fn intent(limit: &str) -> String {
    format!(
        "interfaces: [{{name: v0}}, {{name: r0, side: servers}}]\n\
         services:\n  web: {{mode: shadow, listen: [\"{HOT}\"]}}\n\
         router: {{destinations: [\"10.84.0.0/24:80\"]{limit}}}\n"
    )
}

/// A router between clients and a server.
fn routed(world: &World) -> (Space, Space) {
    let (clients, server, router) = (client(world), Space::new(world, "s"), world.name());
    ip(&format!("-n {router} link add r0 type veth peer name s0 netns {}", server.0));
    for (namespace, link, address) in [
        (router, "r0", "10.84.0.1"),
        (&server.0, "s0", "10.84.0.2"),
        (&server.0, "s0", "10.84.0.3"),
    ] {
        ip(&format!("-n {namespace} address add {address}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    ip(&format!("-n {} route add default via 10.83.0.1", clients.0));
    ip(&format!("-n {} route add default via 10.84.0.1", server.0));
    ip(&format!("netns exec {router} sysctl -qw net.ipv4.ip_forward=1"));
    (clients, server)
}

/// A router with both servers, their usual clients, and another file of those that come in time.
pub(crate) fn scene(number: u32, limit: &str) -> Scene {
    let mut world = World::new(number);
    let (clients, server) = routed(&world);
    let log = std::fs::File::create(world.file("log")).unwrap();
    world.run_intent(&intent(limit), &[], log.into());
    world.ready();
    let runs = [(HOT, "2"), (BYSTANDER, "64")];
    let runs = runs.map(|(at, workers)| Runs::server(&server.path(), at, workers)).into();
    let mut scene = Scene { world, clients, servers: vec![server], hot: HOT, runs };
    for (at, rate) in [(HOT, "20"), (BYSTANDER, "10")] {
        scene.usual(at, rate);
    }
    scene
}
