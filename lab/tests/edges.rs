// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proxies at the edge: both versions of HTTP in TLS, their own limits, and clients who keep connections.
//!
//! ```text
//!  cl, load on CPU 1 ── rt ── sv: proxy :443 on CPU 1 ─► server :8080 on CPU 0
//! ```

mod common;

use common::{lab, one_at_a_time, run, steady};
use tidegate_lab::{Cost, EdgeLimit, EdgeOptions, EdgeProxy, LabError, TinyOptions, Transport};
use tidegate_units::Nanos;

const BEHIND: u16 = 8_080;
const EDGE: u16 = 443;

/// Without a limit all pass, by both transports; with one those beyond it are refused by 503, and clients
/// keep their connections all the same.
#[test]
fn proxies_serve_both_versions_of_http_and_limit() {
    let _one = one_at_a_time();
    let lab = lab();
    let cost = Cost::busy(Nanos::from_millis(10));
    let behind = TinyOptions { port: BEHIND, cost, ..TinyOptions::default() };
    let server = lab.start_tiny(&behind).unwrap();
    let queue = Nanos::from_millis(20);
    let places = EdgeLimit::Places { connections: 1, queue };
    let rate = EdgeLimit::Rate { rate: 50, burst: 1 };
    let cases = [
        (EdgeProxy::Nginx, EdgeLimit::None, Transport::Tls),
        (EdgeProxy::Nginx, places, Transport::H2),
        (EdgeProxy::Nginx, rate, Transport::Tls),
        (EdgeProxy::Haproxy, EdgeLimit::None, Transport::H2),
        (EdgeProxy::Haproxy, places, Transport::Tls),
        (EdgeProxy::Caddy, EdgeLimit::None, Transport::Tls),
        (EdgeProxy::Caddy, EdgeLimit::None, Transport::H2),
    ];
    for (proxy, limit, transport) in cases {
        let options = EdgeOptions { proxy, limit, transport };
        let edge = lab.start_edge(&options, &server, EDGE).unwrap();
        let limited = !matches!(limit, EdgeLimit::None);
        let offered = if limited { 300.0 } else { 50.0 };
        let stream = edge.kept("all", steady(offered, 1_000), 0);
        let counts = run(&lab, vec![stream], 8_000).streams[0].total.counts;
        let answers = counts.answered + counts.refused_http;
        assert_eq!(answers, counts.offered, "{options:?}: {counts:?}");
        assert_eq!(counts.refused_http > 50, limited, "{options:?}: {counts:?}");
        assert!(counts.answered > 3, "{options:?}: {counts:?}");
        assert!(counts.reused > counts.offered / 4, "{options:?}: {counts:?}");
    }
}

/// What a proxy does not have, or is not installed, is said.
#[test]
fn a_limit_that_a_proxy_lacks_is_an_error() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_tiny(&TinyOptions { port: BEHIND, ..TinyOptions::default() }).unwrap();
    let program = "/nowhere/proxy".into();
    let missing = EdgeProxy::Envoy { program };
    let cases = [
        (EdgeProxy::Nginx, EdgeLimit::AdaptiveConcurrency, false),
        (EdgeProxy::Haproxy, EdgeLimit::Rate { rate: 1, burst: 1 }, false),
        (EdgeProxy::Caddy, EdgeLimit::Rate { rate: 1, burst: 1 }, false),
        (missing, EdgeLimit::AdaptiveConcurrency, true),
        (EdgeProxy::Failsafe { program: "/nowhere/proxy".into() }, EdgeLimit::None, true),
    ];
    for (proxy, limit, is_missing) in cases {
        let options = EdgeOptions { proxy, limit, transport: Transport::Tls };
        let error = lab.start_edge(&options, &server, EDGE).unwrap_err();
        assert_eq!(matches!(error, LabError::Missing(_)), is_missing, "{options:?}: {error}");
    }
}

/// A server that keeps connections serves as many at a time as it has workers; others wait their turn.
#[test]
fn a_server_that_keeps_connections_serves_them_in_turn() {
    let _one = one_at_a_time();
    let lab = lab();
    let cost = Cost::wait(Nanos::from_millis(20));
    let options = TinyOptions { workers: 2, cost, keep_alive: true, ..TinyOptions::default() };
    let server = lab.start_tiny(&options).unwrap();
    // Twice what it can do: the last one waits for as long as all of them came.
    let report = run(&lab, vec![server.kept("all", steady(200.0, 1_000), 0)], 8_000);
    let totals = &report.streams[0].total;
    assert_eq!((totals.counts.offered, totals.counts.answered), (200, 200), "{totals:?}");
    assert!(totals.counts.reused > 0 && totals.perceived.p99 > 0.5, "{totals:?}");
}

/// Clients hold no more connections than they may: what finds all of them busy is not sent.
#[test]
fn clients_hold_as_many_connections_as_they_may() {
    let _one = one_at_a_time();
    let lab = lab();
    let cost = Cost::wait(Nanos::from_millis(200));
    let behind = TinyOptions { port: BEHIND, cost, workers: 64, ..TinyOptions::default() };
    let server = lab.start_tiny(&behind).unwrap();
    let options =
        EdgeOptions { proxy: EdgeProxy::Nginx, limit: EdgeLimit::None, transport: Transport::Tls };
    let edge = lab.start_edge(&options, &server, EDGE).unwrap();
    // Places for 20 a second, for 100 that come.
    let counts = |connections| {
        let stream = edge.kept("all", steady(100.0, 1_000), connections);
        run(&lab, vec![stream], 8_000).streams[0].total.counts
    };
    let bound = counts(4);
    assert!(bound.no_handshake > 40 && bound.refused == bound.no_handshake, "{bound:?}");
    assert!(bound.answered >= 4 && bound.answered <= 28, "{bound:?}");
    assert!(bound.reused + 4 >= bound.answered, "{bound:?}");
    let free = counts(0);
    assert_eq!((free.answered, free.no_handshake), (100, 0), "{free:?}");
}
