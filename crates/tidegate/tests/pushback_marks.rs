// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NetDraino in band: a congested router and a server that refuses mark packets, and the router adds options. Marks from
//! outside do not come in, ours do not go out, and none of them makes a limit (needs root). The topology is that of `common/congested.rs`; `r` is the
//! border to `c`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::congested::{World, connections, target};
use common::star::{Daemon, Star, refused};
use common::wait_for;
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::process::Command;
use tidegate_model::snapshot::ServiceState;
use tidegate_sense::in_namespace;

const NET: u8 = 85;
/// Marks as DSCP: bits 1 and 2.
const RCN: u8 = 2;
const SCN: u8 = 4;

/// Counts packets of both marks in a namespace.
fn count(star: &Star, host: &str, hook: &str) {
    let run = |rule: &str| star.inside(host, &["nft", rule]);
    run("add table ip marks");
    run(&format!("add chain ip marks {hook} {{ type filter hook {hook} priority 0; }}"));
    for dscp in [RCN, SCN] {
        run(&format!("add rule ip marks {hook} ip dscp {dscp} counter"));
    }
}

/// Packets that were counted with each mark: RCN, SCN.
fn counted(star: &Star, host: &str) -> [u64; 2] {
    counts(star, host, "marks")
}

/// The counters of a table.
fn counts<const N: usize>(star: &Star, host: &str, table: &str) -> [u64; N] {
    let net = format!("--net={}", star.namespace(host).display());
    let list =
        Command::new("nsenter").arg(net).args(["nft", "list", "table", "ip", table]).output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    let packets = list.lines().filter_map(|line| line.split_once("packets ")?.1.split(' ').next());
    let found: Vec<u64> = packets.map(|number| number.parse().unwrap()).collect();
    found.try_into().unwrap_or_else(|_| panic!("{list}"))
}

fn service(daemon: &Daemon) -> ServiceState {
    daemon.snapshot().unwrap().services.remove(0)
}

/// Sends datagrams with an option of a router.
const OPTIONS: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([158, 12, 0, 0, 203, 0, 113, 9, 32, 0, 0, 1]))
for _ in range(20): s.sendto(b'x', (sys.argv[1], 10))
";

/// Datagrams of the client with both marks, and with options, to a port at which nobody is.
fn forge(world: &World) {
    world.star.inside("c", &["python3", "-c", OPTIONS, &format!("10.{NET}.1.2")]);
    let to: SocketAddr = format!("10.{NET}.1.2:10").parse().unwrap();
    let send = || -> std::io::Result<()> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        for dscp in [RCN, SCN, RCN | SCN] {
            socket.set_tos_v4(u32::from(dscp) << 2)?;
            for _ in 0..20 {
                socket.send_to(b"x", &to.into())?;
            }
        }
        Ok(())
    };
    in_namespace(Some(&world.star.namespace("c")), send).unwrap();
}

#[test]
fn marks_travel_inside_the_border_and_make_no_limit() {
    let world = World::new("tgm", NET, None).marking();
    let star = &world.star;
    for (host, hook) in [("c", "input"), ("r", "forward"), ("s", "input")] {
        count(star, host, hook);
    }
    for rule in [
        "add table ip options",
        "add chain ip options input { type filter hook input priority 0; }",
        "add rule ip options input @nh,4,4 > 5 counter",
    ] {
        star.inside("s", &["nft", rule]);
    }
    let (router, server) = (world.router(), world.server());
    wait_for("the session is up", || server.snapshot()?.peers.remove(0).up.then_some(()));
    forge(&world);
    let _connections = connections(star, &target(NET));
    wait_for("the server refuses", || (refused(&service(&server)) > 100).then_some(()));
    forge(&world);
    for host in ["c", "r", "s"] {
        assert_eq!(counted(star, host), [0, 0], "{host}: from outside, or without congestion");
    }
    wait_for("the border says what it cleared", || router.snapshot()?.cleared.filter(|n| *n > 0));
    let link = router.snapshot().unwrap().links.remove(0);
    assert!(!link.congested && service(&router).remote.is_empty(), "{link:?}");

    let crowd = world.datagrams(9);
    wait_for("the router marks", || (counted(star, "s")[0] > 20).then_some(()));
    wait_for("the server says that it refuses", || (counted(star, "r")[1] > 0).then_some(()));
    let said = wait_for("the server reads the router's options", || {
        server.snapshot()?.in_band?.routers.pop().filter(|said| said.entries > 5)
    });
    assert_eq!(
        counts(star, "s", "options"),
        [40],
        "of the client, cleared; and none of the router"
    );
    let added = || router.snapshot().unwrap().in_band.unwrap();
    assert_eq!((said.router.as_str(), said.packets / said.entries), ("r", 4), "{said:?}");
    wait_for("the router counts as many at least", || {
        (added().added >= said.entries).then_some(())
    });
    assert_eq!(
        server.snapshot().unwrap().in_band.unwrap().unknown_routers,
        0,
        "the border clears others"
    );
    wait_for("a limit that was answered and signed", || service(&router).remote.pop());
    let [at_client, at_router, at_server] = ["c", "r", "s"].map(|host| counted(star, host));
    eprintln!("RCN, SCN: {at_server:?} at the server, {at_router:?} at the router");
    assert_eq!(at_client, [0, 0], "no mark leaves");
    assert_eq!(at_server[1], 0, "the server sends SCN and gets none");

    drop(crowd);
    wait_for("the congestion ends", || {
        (!router.snapshot().unwrap().links[0].congested).then_some(())
    });
    let more = |count: u64| {
        let began = refused(&service(&server));
        wait_for("more connections", || (refused(&service(&server)) > began + count).then_some(()));
    };
    more(150);
    let before = counted(star, "s");
    let options = added().added;
    more(300);
    assert_eq!(counted(star, "s"), before, "nothing is marked any more");
    assert_eq!(added().added, options, "nor gets an option");
}
