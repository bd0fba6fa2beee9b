// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two routers to one server, each with a daemon and clients of its own (needs root).
//!
//! ```text
//!   clients 1 ── v1, v0 ── router 1, with a daemon ── r0 ──┐ bridge in the namespace of the server:
//!                              │ p0 10.85.0.1              ├ 10.84.0.2: 50 requests/s
//!                              │ p0 10.85.0.2              │ 10.84.0.3: as many as come
//!   clients 2 ── v1, v0 ── router 2, with a daemon ── r0 ──┘
//! ```
//!
//! Replies leave by the router that the client came by: the networks of the clients differ.

use super::authority::Authority;
use super::flash::{Runs, Scene};
use super::ip;
use super::space::Space;
use super::wait_for;
use super::world::World;
use std::path::{Path, PathBuf};

/// The destination with a crowd.
pub(crate) const HOT: &str = "10.84.0.2:80";
/// A router: its number, and the second byte of its clients' network.
const ROUTERS: [(usize, u8); 2] = [(1, 86), (2, 87)];

/// The clients of a router, in a namespace of their own.
fn clients(router: &World, net: u8) -> Space {
    let space = Space::new(router, "c");
    ip(&format!("-n {} link set v1 netns {}", router.name(), space.0));
    for (namespace, link, last) in [(router.name(), "v0", 1), (&*space.0, "v1", 2)] {
        ip(&format!("-n {namespace} address add 10.{net}.0.{last}/24 dev {link}"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    ip(&format!("-n {} route add default via 10.{net}.0.1", space.0));
    space
}

/// Both routers to the server, and each to the other.
fn wire(routers: &[World; 2], server: &Space) {
    let s = &server.0;
    ip(&format!("-n {s} link add b0 type bridge"));
    for address in ["10.84.0.2", "10.84.0.3"] {
        ip(&format!("-n {s} address add {address}/24 dev b0"));
    }
    ip(&format!("-n {s} link set b0 up"));
    for (router, (number, net)) in routers.iter().zip(ROUTERS) {
        let name = router.name();
        ip(&format!("-n {name} link add r0 type veth peer name s{number} netns {s}"));
        ip(&format!("-n {s} link set s{number} master b0 up"));
        ip(&format!("-n {name} address add 10.84.0.{}/24 dev r0", 250 + number));
        ip(&format!("-n {name} link set r0 up"));
        ip(&format!("-n {s} route add 10.{net}.0.0/24 via 10.84.0.{}", 250 + number));
        ip(&format!("netns exec {name} sysctl -qw net.ipv4.ip_forward=1"));
    }
    let [first, second] = routers;
    ip(&format!("-n {} link add p0 type veth peer name p0 netns {}", first.name(), second.name()));
    for (router, (number, _)) in routers.iter().zip(ROUTERS) {
        ip(&format!("-n {} address add 10.85.0.{number}/24 dev p0", router.name()));
        ip(&format!("-n {} link set p0 up", router.name()));
    }
}

/// Two routers without daemons.
pub(crate) struct Domain {
    routers: [World; 2],
    server: Space,
}

impl Domain {
    /// Numbers of the worlds: no other test of the same program has them.
    pub(crate) fn new(numbers: [u32; 2]) -> Self {
        let routers = numbers.map(World::new);
        let server = Space::new(&routers[0], "s");
        let authority = Authority::new(&routers[0].file("certificates"));
        let folder = routers[0].file("certificates");
        ["r1", "r2"].iter().for_each(|host| authority.sign(&folder, host, host));
        wire(&routers, &server);
        Self { routers, server }
    }

    /// The namespace of the first router.
    pub(crate) fn first(&self) -> PathBuf {
        self.routers[0].namespace()
    }

    /// With daemons of these files, which are made of the router's number, and the folder of the certificates. Two
    /// scenes: the second has no server of its own.
    pub(crate) fn run(self, intent: impl Fn(usize, &Path) -> String) -> [Scene; 2] {
        let Self { mut routers, server } = self;
        let folder = routers[0].file("certificates");
        let spaces = [0, 1].map(|at| clients(&routers[at], ROUTERS[at].1));
        for (router, (number, _)) in routers.iter_mut().zip(ROUTERS) {
            let log = std::fs::File::create(router.file("log")).unwrap();
            router.run_intent(&intent(number, &folder), &[], log.into());
        }
        routers.iter().for_each(World::ready);
        let mut runs = vec![Runs::server(&server.path(), HOT, "2")];
        let mut servers = vec![server];
        let scenes = routers.into_iter().zip(spaces).map(|(world, clients)| Scene {
            world,
            clients,
            servers: std::mem::take(&mut servers),
            hot: HOT,
            runs: std::mem::take(&mut runs),
        });
        scenes.collect::<Vec<_>>().try_into().unwrap_or_else(|_| unreachable!("two routers"))
    }
}

/// The file of a router, with what stands in `cluster` beside its certificates.
pub(crate) fn intent(number: usize, folder: &Path, cluster: &str) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    format!(
        "interfaces: [{{name: v0}}, {{name: r0, side: servers}}]\n\
         services:\n  page: {{mode: shadow, listen: [\"127.0.0.1:9911\"]}}\n\
         router: {{destinations: [\"10.84.0.0/24:80\"], limit: {{mode: enforce}}}}\n\
         cluster:\n  certificate: {}\n  key: {}\n  ca_file: {}\n{cluster}",
        file(&format!("r{number}.pem")),
        file(&format!("r{number}.key")),
        file("authority.pem"),
    )
}

/// Connections a second that a router lets pass.
pub(crate) fn limit(scene: &Scene) -> f64 {
    scene.metric(&format!("limit_rate_per_second{{destination=\"{HOT}\"}}"))
}

/// Its part of the demand.
pub(crate) fn share(scene: &Scene) -> f64 {
    scene.metric(&format!("limit_share_ratio{{destination=\"{HOT}\"}}"))
}

/// Clients of both, and each has heard the other.
pub(crate) fn usual(first: &mut Scene, second: &mut Scene) {
    first.usual(HOT, "14");
    second.usual(HOT, "6");
    first.told("the router r2 shares what it measures");
    second.told("the router r1 shares what it measures");
}

/// A crowd at both, until it is dropped: its limit is divided.
pub(crate) fn crowd(first: &Scene, second: &Scene) -> [Runs; 2] {
    first.shows("shares with r2: 1 destinations");
    learn(first);
    let crowds = [first.come(HOT, "70"), second.come(HOT, "30")];
    for scene in [first, second] {
        scene.told("10.84.0.2:80: flash crowd began: ");
        scene.told("10.84.0.2:80: new connections are limited to ");
    }
    divide(first, second);
    first.shows("% of the demand at 2 routers, ");
    crowds
}

/// What is usual is known: 40 seconds.
fn learn(first: &Scene) {
    let completed = format!("exchanges_total{{destination=\"{HOT}\",state=\"completed\"}}");
    for enough in [280.0, 560.0] {
        wait_for("what is usual is known", || (first.metric(&completed) >= enough).then_some(()));
    }
}

/// Of a demand of 70 to 30 each has its part, and the server, which carries about fifty, is at its work.
pub(crate) fn divide(first: &Scene, second: &Scene) {
    wait_for("each has its part", || {
        let (one, two) = (share(first), share(second));
        ((0.55..=0.85).contains(&one) && (0.15..=0.45).contains(&two)).then_some(())
    });
    wait_for("a server at its work", || {
        let limits = limit(first) + limit(second);
        let good = first.goodput(HOT) + second.goodput(HOT);
        (good > 25.0 && (15.0..=75.0).contains(&limits)).then_some(())
    });
}
