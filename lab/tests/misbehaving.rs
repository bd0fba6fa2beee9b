// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that do not behave do what they are said to do, as the server sees it.
//!
//! ```text
//!  cl: load, flood ── rt ── sv: Apache prefork, event, Node
//! ```

mod common;

use common::{eventually, lab, one_at_a_time, run, steady};
use std::net::SocketAddrV4;
use tidegate_lab::{
    ApacheOptions, Cost, Flood, Lab, Manner, Mpm, NodeOptions, Role, Server, Sources, Stream,
};
use tidegate_units::Nanos;

fn apache(lab: &Lab, mpm: Mpm) -> Server {
    let cost = Cost::busy(Nanos::from_millis(1));
    let options = ApacheOptions { defer_accept: false, ..ApacheOptions::cgi(mpm, cost) };
    lab.start_apache(&options).expect("Apache")
}

fn manner(server: &Server, manner: Manner) -> Stream {
    Stream { manner, ..server.stream("all", steady(10.0, 1_000)) }
}

/// Split, pipelined and old requests are served; silent ones and slow uploads wait until the client
/// gives up, and hold a connection meanwhile.
#[test]
fn manners_are_served_or_wait() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = apache(&lab, Mpm::Event);
    for (kind, served) in [
        (Manner::Split, true),
        (Manner::Pipelined, true),
        (Manner::Http09, true),
        (Manner::Silent, false),
        (Manner::SlowUpload, false),
    ] {
        let report = run(&lab, vec![manner(&server, kind)], 3_000);
        let counts = report.streams[0].total.counts;
        let want = if served { (10, 0) } else { (0, 10) };
        assert_eq!((counts.answered, counts.no_answer), want, "{kind:?}: {counts:?}");
    }
}

/// Sockets of a state in the server's namespace.
fn sockets(lab: &Lab, state: &str) -> usize {
    let command = ["ss", "-Htn", "state", state];
    lab.run_in(Role::Server, &command, "").map_or(0, |text| text.lines().count())
}

/// Nobody answers the server's SYN-ACKs to spoofed senders: half-open connections pile up.
#[test]
fn a_flood_leaves_half_open_connections() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = apache(&lab, Mpm::Prefork);
    let target: SocketAddrV4 = server.target().to_string().parse().expect("IPv4");
    let flood = lab.flood(&Flood { target, rate: 500.0, seed: 1 }).expect("a flood");
    assert!(eventually(5, || sockets(&lab, "syn-recv") > 100), "{}", sockets(&lab, "syn-recv"));
    let report = run(&lab, vec![server.stream("all", steady(20.0, 1_000))], 8_000);
    assert_eq!(report.streams[0].total.counts.answered, 20, "honest clients get through");
    drop(flood);
}

/// One address with few ports meets its own TIME_WAIT, and is served all the same.
#[test]
fn few_ports_are_used_again_and_again() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = apache(&lab, Mpm::Event);
    let all = server.stream("all", steady(50.0, 2_000));
    let sources = Sources { count: 1, ..all.sources };
    let stream = Stream { sources, ports: Some((20_000, 20)), ..all };
    let report = run(&lab, vec![stream], 8_000);
    let counts = report.streams[0].total.counts;
    assert!(counts.answered >= 95 && counts.errors == 0, "{counts:?}");
    let left = sockets(&lab, "time-wait");
    assert!(left <= 20, "{left} tuples in TIME_WAIT of 20 ports");
}

/// A server of long polls holds them all while others are served.
#[test]
fn long_polls_stay_open_beside_others() {
    let _one = one_at_a_time();
    let lab = lab();
    let cost = Cost::busy(Nanos::from_millis(1));
    let options = NodeOptions { cost, poll: Nanos::from_secs(2), ..NodeOptions::default() };
    let server = lab.start_node(&options).expect("Node");
    let polls = Stream { path: "/poll".into(), ..server.stream("polls", steady(300.0, 1_000)) };
    let report = run(&lab, vec![polls, server.stream("pages", steady(50.0, 2_000))], 8_000);
    let total = |name: &str| &report.stream(name).expect("a stream").total;
    assert_eq!((total("polls").counts.answered, total("pages").counts.answered), (300, 100));
    assert!(total("polls").service.p50 >= 1.9 && total("pages").service.p50 < 0.5);
}
