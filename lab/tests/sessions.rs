// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open-loop sessions over each transport against each server, and what the servers say of them.
//!
//! ```text
//!  cl, load on CPU 1 ── rt ── sv, CPU 0: Apache prefork | event | nginx ─► upstream | Node
//!     one connection: request ─► response ─ think ─► request ─► …        cleartext | TLS 1.3 | HTTP/2
//! ```

mod common;

use common::{lab, one_at_a_time, run, steady};
use tidegate_lab::{
    ApacheOptions, Arrive, CapacityOptions, Cost, Lab, LoadPlan, Mpm, NginxOptions, NodeOptions,
    Server, TinyOptions, Transport,
};
use tidegate_units::Nanos;

const TRANSPORTS: [Transport; 3] = [Transport::Clear, Transport::Tls, Transport::H2];
/// Think time of the sessions.
const THINK: Nanos = Nanos::from_millis(50);

/// Every server that speaks the transport, by name.
fn servers(lab: &Lab, transport: Transport) -> Vec<(&'static str, Server)> {
    let cost = Cost::busy(Nanos::from_millis(1));
    let apache = |mpm, port| {
        let options = ApacheOptions { transport, port, ..ApacheOptions::cgi(mpm, cost) };
        lab.start_apache(&options).expect("Apache")
    };
    let upstream = Some(TinyOptions { port: 9_000, cost, ..TinyOptions::default() });
    let nginx = NginxOptions { port: 82, upstream, transport, ..NginxOptions::default() };
    let node = NodeOptions { port: 83, cost, transport, ..NodeOptions::default() };
    let mut all = vec![
        ("event", apache(Mpm::Event, 81)),
        ("nginx", lab.start_nginx(&nginx).expect("nginx")),
        ("node", lab.start_node(&node).expect("Node")),
    ];
    if transport != Transport::H2 {
        all.push(("prefork", apache(Mpm::Prefork, 80)));
    }
    all
}

/// Sessions of three requests and of one: all are answered, on one connection each, and a later
/// request starts one think time after the response before it.
#[test]
fn sessions_are_served_over_every_transport_by_every_server() {
    let _one = one_at_a_time();
    let lab = lab();
    for transport in TRANSPORTS {
        let servers = servers(&lab, transport);
        let mut streams = Vec::new();
        for (name, server) in &servers {
            streams.push(server.sessions(name, steady(10.0, 1_000), 3, THINK));
            streams.push(server.sessions(&format!("{name}-1"), steady(10.0, 1_000), 1, THINK));
        }
        let report = run(&lab, streams, 8_000);
        for stream in &report.streams {
            let (counts, of) = (stream.total.counts, stream.total.sessions);
            let requests = if stream.name.ends_with("-1") { 1 } else { 3 };
            let name = format!("{transport:?}, {}", stream.name);
            assert_eq!((of.ended, of.completed), (10, 10), "{name}: {counts:?}");
            assert_eq!(counts.answered, 10 * requests, "{name}: {counts:?}");
            assert_eq!(counts.reused, 10 * (requests - 1), "{name}: one connection each");
        }
    }
}

/// Sessions that open eight streams at once after their first request: every server answers all of
/// them on one connection.
#[test]
fn streams_at_once_are_served_by_every_server() {
    let _one = one_at_a_time();
    let lab = lab();
    let servers = servers(&lab, Transport::H2);
    let several = |(name, server): &(&str, Server)| {
        let mut stream = server.sessions(name, steady(5.0, 1_000), 20, Nanos::ZERO);
        stream.session.as_mut().expect("sessions").streams = 8;
        stream
    };
    let report = run(&lab, servers.iter().map(several).collect(), 8_000);
    for stream in &report.streams {
        let (counts, of) = (stream.total.counts, stream.total.sessions);
        assert_eq!((of.ended, of.completed), (5, 5), "{}: {counts:?}", stream.name);
        assert_eq!((counts.answered, counts.reused), (100, 95), "{}: {counts:?}", stream.name);
    }
}

/// They are really at once: one client gets more than it could one after the other, and what a
/// server refuses of them ends the session.
#[test]
fn streams_at_once_overlap() {
    let _one = one_at_a_time();
    let lab = lab();
    let wait = Nanos::from_millis(50);
    let upstream = TinyOptions { workers: 32, cost: Cost::wait(wait), ..TinyOptions::default() };
    let upstream = Some(TinyOptions { port: 9_000, ..upstream });
    let options = NginxOptions { upstream, transport: Transport::H2, ..NginxOptions::default() };
    let server = lab.start_nginx(&options).unwrap();
    let answered = |streams: u32, path: Option<&str>| {
        let closed = Arrive::Closed { clients: 1 };
        let mut stream = server.sessions("all", closed, 17, Nanos::ZERO);
        stream.session.as_mut().expect("sessions").streams = streams;
        stream.path = path.map_or(stream.path.clone(), str::to_owned);
        let plan = LoadPlan {
            streams: vec![stream],
            closed_until: Nanos::from_secs(2),
            lag_bound: Nanos::from_secs(5),
            ..LoadPlan::default()
        };
        lab.run_load(&plan, &mut |_| {}).unwrap().streams[0].total.clone()
    };
    let (alone, together) = (answered(1, None), answered(16, None));
    // 2 s hold 40 waits of 50 ms.
    assert!((10..=42).contains(&alone.counts.answered), "{:?}", alone.counts);
    assert!(together.counts.answered > 84, "{:?}", together.counts);
    assert_eq!(together.counts.failed, 0, "{:?}", together.counts);
}

/// A client that expects another protocol than the server speaks is told as broken, not as served.
#[test]
fn a_wrong_transport_is_no_success() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_node(&NodeOptions::default()).unwrap();
    let mut stream = server.sessions("all", steady(10.0, 500), 2, THINK);
    stream.transport = Transport::H2;
    let report = run(&lab, vec![stream], 3_000);
    let counts = report.streams[0].total.counts;
    assert_eq!((counts.answered, counts.broken), (0, 5), "{counts:?}");
}

/// A closed loop of sessions keeps a server at its capacity, and each client is in one session at a
/// time: with think time, few clients do not saturate it.
#[test]
fn a_closed_loop_of_sessions_measures_a_capacity() {
    let _one = one_at_a_time();
    let lab = lab();
    let cost = Cost::busy(Nanos::from_millis(4));
    let options = NodeOptions { cost, transport: Transport::Tls, ..NodeOptions::default() };
    let server = lab.start_node(&options).unwrap();
    let closed = Arrive::Closed { clients: 4 };
    let thinks = server.sessions("thinks", closed.clone(), 5, Nanos::from_millis(100));
    let plan = LoadPlan {
        streams: vec![thinks],
        closed_until: Nanos::from_secs(2),
        lag_bound: Nanos::from_secs(5),
        ..LoadPlan::default()
    };
    let report = lab.run_load(&plan, &mut |_| {}).unwrap();
    let total = &report.streams[0].total;
    // Four clients, each at most every 100 ms in a session, and 4 of 5 requests are after a pause.
    let most = 4.0 * 2.0 / 0.08 * 1.3;
    assert!(total.counts.reused > 0 && (total.counts.answered as f64) < most, "{total:?}");
    let capacity = lab
        .capacity_of(
            &server.sessions("all", closed, 5, Nanos::ZERO),
            &CapacityOptions {
                clients_max: 8,
                probe: Nanos::from_millis(600),
                window: Nanos::from_millis(400),
                windows: 3,
                ..CapacityOptions::default()
            },
        )
        .unwrap();
    // 4 ms a request and a fifth of a handshake: at most 250 a second.
    let rate = capacity.rate.get();
    assert!((80.0..260.0).contains(&rate), "{capacity:?}");
}
