// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A graph of hosts, with a link that delays or loses, one that is narrow, and a server with little memory.
//!
//! ```text
//!  cl ── l0: 30 ms ────┐
//!                      r ── l2: 2 Mbit/s, 50 packets, to the clients ── s
//!  cl ── l1: 10 % lost ┘
//! ```

#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{eventually, lab, one_at_a_time, run, steady};
use tidegate_lab::{
    Arrive, Body, Bulk, CapacityOptions, Cost, Graph, GraphSpec, HostSpec, LinkSpec, PagesOptions,
    RelayCounts, Shaping, TinyOptions, Way, remains,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::Shape;

const ROUTER: usize = 0;
const SERVER: usize = 1;
/// Of the narrow link towards the clients.
const DOWN: (usize, bool) = (2, false);

fn spec() -> GraphSpec {
    let host = |name, forwards| HostSpec { name, forwards };
    let door = |way| LinkSpec { way: Some(way), ..LinkSpec::plain(None, ROUTER) };
    let late = door(Way::of(Nanos::from_millis(30)));
    let lossy = door(Way { loss: 0.1, ..Way::of(Nanos::ZERO) });
    let down = Some(Shaping { bits_per_second: 2_000_000, queue: 50 });
    let narrow = LinkSpec { down, ..LinkSpec::plain(Some(ROUTER), SERVER) };
    GraphSpec { hosts: vec![host("r", true), host("s", false)], links: vec![late, lossy, narrow] }
}

fn quick_server() -> TinyOptions {
    let body = Body { mean: 4_000.0, shape: Shape::Constant, range: (200.0, 500_000.0) };
    let cost = Cost::wait(Nanos::ZERO);
    TinyOptions { workers: 64, cost, body: Some(body), ..TinyOptions::default() }
}

/// What it has passed and lost since it had passed so many; a kernel with netem has none.
fn the_relay_tells(graph: &Graph<'_>, before: u64) {
    if graph.relayed().unwrap().is_none() {
        return;
    }
    let seen = || graph.relayed().unwrap().unwrap();
    // It tells once a second.
    assert!(eventually(5, || seen().passed >= before + 40 * 6), "{:?}", seen());
    let RelayCounts { passed, lost, overflowed, late_p50, .. } = seen();
    assert!(overflowed == 0 && late_p50 < 0.02, "{:?}", seen());
    let share = lost as f64 / (lost + passed - before) as f64;
    let wanted = if before == 0 { 0.0..f64::MIN_POSITIVE } else { 0.02..0.25 };
    assert!(wanted.contains(&share), "{lost} lost of {passed}, {before} before");
}

/// A request takes two round trips; all its packets pass the relay, a tenth of those of the other link is lost, and
/// what clients get has passed the narrow link. Nothing is left.
#[test]
fn links_delay_lose_and_are_narrow() {
    let _one = one_at_a_time();
    let lab = lab();
    let graph = lab.graph(&spec()).unwrap();
    let server = graph.start_tiny(SERVER, &quick_server()).unwrap();
    let stream = |door: usize| {
        let name = format!("door{door}");
        graph.stream((&name, door), (SERVER, &server), steady(20.0, 2_000))
    };
    let report = run(&lab, vec![stream(0)], 8_000);
    let total = &report.stream("door0").unwrap().total;
    assert_eq!(total.counts.answered, 40, "{total:?}");
    assert!((0.115..0.25).contains(&total.perceived.p50), "{total:?}");
    let down = graph.shaped(DOWN).unwrap().counts().unwrap();
    assert!(down.bytes > 40 * 4_000 && down.dropped == 0, "{down:?}");
    assert!(graph.shaped((0, true)).is_err());
    the_relay_tells(&graph, 0);
    let before = graph.relayed().unwrap();

    let report = run(&lab, vec![stream(1)], 8_000);
    let total = &report.stream("door1").unwrap().total;
    assert!(total.counts.answered > 20, "{total:?}");
    the_relay_tells(&graph, before.map_or(0, |before| before.passed));

    let id = lab.id().to_owned();
    drop(server);
    drop(graph);
    drop(lab);
    assert_eq!(remains(&id), Vec::<String>::new());
}

/// Each run of an experiment has a graph of its own, in one lab.
#[test]
fn one_graph_comes_after_another() {
    let _one = one_at_a_time();
    let lab = lab();
    for _ in 0..3 {
        let graph = lab.graph(&spec()).unwrap();
        let server = graph.start_tiny(SERVER, &quick_server()).unwrap();
        let stream = graph.stream(("door0", 0), (SERVER, &server), steady(20.0, 500));
        let report = run(&lab, vec![stream], 3_000);
        assert_eq!(report.stream("door0").unwrap().total.counts.answered, 10);
    }
}

/// Bulk comes at its pace: 400 kbit/s, a fifth of the link.
#[test]
fn bulk_comes_at_its_pace() {
    let _one = one_at_a_time();
    let lab = lab();
    let graph = lab.graph(&spec()).unwrap();
    let bulk = graph.bulk((0, SERVER), &Bulk { bits_per_second: 4e5, chunk: 8_192 }).unwrap();
    let bytes = || graph.shaped(DOWN).unwrap().counts().unwrap().bytes;
    assert!(eventually(10, || bytes() > 20_000));
    let (begun, before) = (MonotonicClock.now(), bytes());
    assert!(eventually(20, || bytes() - before > 150_000));
    let rate = 150_000.0 * 8.0 / (MonotonicClock.now() - begun).as_secs_f64();
    assert!((2e5..6e5).contains(&rate), "{rate} bit/s");
    drop(bulk);
}

/// A server whose requests need more memory than there is keeps to it, and answers.
#[test]
fn a_server_keeps_to_its_memory() {
    let _one = one_at_a_time();
    let lab = lab();
    let graph = lab.graph(&spec()).unwrap();
    let memory = 24 << 20;
    let folder = "/var/tmp".into();
    let pages = Some(PagesOptions { folder, bytes: 1 << 20, rounds: 4, memory });
    let cost = Cost::wait(Nanos::from_millis(40));
    let options = TinyOptions { workers: 48, cost, pages, ..TinyOptions::default() };
    let server = graph.start_tiny(SERVER, &options).unwrap();
    let stream = graph.stream(("all", 0), (SERVER, &server), Arrive::Closed { clients: 1 });
    let options = CapacityOptions {
        clients_from: 40,
        clients_max: 40,
        probe: Nanos::from_secs(2),
        windows: 2,
        objective: Nanos::from_secs(5),
        ..CapacityOptions::default()
    };
    let capacity = lab.capacity_of(&stream, &options).unwrap();
    assert!(capacity.rate.get() > 1.0, "{capacity:?}");
    let used = server.group().memory_used().unwrap();
    // A limit of version 2 is passed by what is being reclaimed.
    assert!(used > memory / 4 && used < memory * 5 / 4, "{used} of {memory}");
}
