// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reload while a proxy asks, on a connection that it keeps: what does not concern a listener closes none.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod port;

use port::free_port;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_config::{Config, Registry, parse};
use tidegate_gate::{Adapters, Gate};
use tidegate_units::{Clock, MonotonicClock};

const PATIENCE: Duration = Duration::from_secs(20);

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = MonotonicClock.now();
    while !happened() {
        assert!(MonotonicClock.now().since(begin) < PATIENCE.into(), "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Gateways with these keys beside the adapter.
fn config(gateways: &[(&str, SocketAddr, &str)]) -> Config {
    let gateway = |(name, listen, rest): &(&str, SocketAddr, &str)| {
        format!("  {name}: {{adapter: traefik, listen: '{listen}', {rest}}}\n")
    };
    let gateways: String = gateways.iter().map(gateway).collect();
    let text = format!(
        "services: {{shop: {{mode: enforce}}, mail: {{mode: enforce}}}}\ngateways:\n{gateways}"
    );
    parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
}

/// A proxy that asks on one connection. `None`: it was closed.
struct Proxy(BufReader<TcpStream>);

impl Proxy {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn ask(&mut self, target: &str) -> Option<String> {
        let question = format!(
            "GET / HTTP/1.1\r\nHost: tidegate\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: {target}\r\n\
             X-Forwarded-Host: shop.example\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n"
        );
        self.0.get_mut().write_all(question.as_bytes()).ok()?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            self.0.read_line(&mut head).ok().filter(|n| *n > 0)?;
        }
        head.split(' ').nth(1).map(str::to_owned)
    }
}

/// Asks until it is told to end: how often it was told to pass, and how often anything else happened.
fn asking(address: SocketAddr, ends: &Arc<AtomicBool>, asked: &Arc<AtomicU64>) -> JoinHandle<u64> {
    let (ends, asked) = (Arc::clone(ends), Arc::clone(asked));
    std::thread::spawn(move || {
        let mut proxy = Proxy::connect(address);
        let mut failed = 0;
        while !ends.load(Relaxed) {
            asked.fetch_add(1, Relaxed);
            if proxy.ask("/").as_deref() != Some("204") {
                failed += 1;
                proxy = Proxy::connect(address);
            }
        }
        failed
    })
}

#[test]
fn a_reload_of_routes_closes_no_connection_and_leads_no_request_astray() {
    let (edge, other) = (free_port(), free_port());
    let all = "routes: [{path: /post/, service: mail}, {service: shop}]";
    let before = config(&[("edge", edge, all)]);
    let gate = Arc::new(Gate::new(&before, 7));
    gate.tick(MonotonicClock.now());
    let adapters = Adapters::start(Arc::clone(&gate), Arc::new(MonotonicClock)).unwrap();
    adapters.follow(&before.gateways);
    wait_for("it listens", || TcpStream::connect(edge).is_ok());
    let (ends, asked) = (Arc::default(), Arc::default());
    let asks = asking(edge, &ends, &asked);
    let goes_on = || {
        let so_far = asked.load(Relaxed);
        wait_for("it asks", || asked.load(Relaxed) > so_far + 100);
    };
    goes_on();
    let with_route = "rate_limit_fields: true, retry_after: {min: 2s, max: 9s}, \
                      routes: [{path: /post/, service: mail}, {path: /mail/, service: mail}, {service: shop}]";
    // Another one stands before it, and goes again.
    let first = ("a", other, "routes: [{service: mail}]");
    for gateways in [
        vec![("edge", edge, with_route)],
        vec![first, ("edge", edge, with_route)],
        vec![("edge", edge, all), first],
        vec![("edge", edge, with_route)],
    ] {
        let config = config(&gateways);
        gate.reconfigure(&config);
        // The gate knows before its adapters do.
        goes_on();
        adapters.follow(&config.gateways);
        let open = vec![None; gateways.len()];
        wait_for("all are open", || adapters.problems() == open);
        goes_on();
    }
    ends.store(true, Relaxed);
    assert_eq!(asks.join().unwrap(), 0, "failed");
    assert_eq!(gate.totals(0).unwrap().offered, asked.load(Relaxed), "all were asked about");
    assert_eq!(gate.totals(1).unwrap().offered, 0);
    let mut proxy = Proxy::connect(edge);
    assert_eq!(proxy.ask("/mail/").as_deref(), Some("204"));
    assert_eq!(gate.totals(1).unwrap().offered, 1, "the new route leads there");
    assert!(TcpStream::connect(other).is_err(), "what is not in the file any more is closed");

    // Who is the client changes: that is another listener.
    let hop = config(&[(
        "edge",
        edge,
        "client_hop: 2, routes: [{path: /post/, service: mail}, {service: shop}]",
    )]);
    gate.reconfigure(&hop);
    adapters.follow(&hop.gateways);
    wait_for("the connection is closed", || proxy.ask("/").is_none());
    wait_for("it listens", || TcpStream::connect(edge).is_ok());
    let moved = free_port();
    let elsewhere = config(&[("edge", moved, all)]);
    gate.reconfigure(&elsewhere);
    adapters.follow(&elsewhere.gateways);
    wait_for("it listens", || TcpStream::connect(moved).is_ok());
    assert!(TcpStream::connect(edge).is_err());
}
