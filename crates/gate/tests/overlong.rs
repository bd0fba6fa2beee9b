// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Questions whose head is longer than is read. Who writes one must not pass by a limit that is enforced; where
//! nothing is refused, neither is such a request.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod listening;

use listening::Listening;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use tidegate_config::{Config, Registry, parse};
use tidegate_gate::{Gate, Unbound};
use tidegate_model::{Canary, Mode};
use tidegate_units::{Clock, MonotonicClock};

const SERVICES: &str = "
services: {shop: {mode: enforce}, admin: {mode: enforce}}
gateways:
  a: {adapter: nginx, listen: '127.0.0.1:9470', completions: '127.0.0.1:9470', routes: ROUTES}
  b: {adapter: caddy, listen: '127.0.0.1:9471', completions: '127.0.0.1:9471', routes: ROUTES}
  c: {adapter: traefik, listen: '127.0.0.1:9472', routes: ROUTES}
";
const ROUTES: &str = "[{service: shop}, {path: /admin, service: admin}]";

fn config() -> Config {
    let text = SERVICES.replace("ROUTES", ROUTES);
    parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
}

fn question(lines: &str) -> Vec<u8> {
    format!(
        "GET / HTTP/1.1\r\nHost: gate\r\n{lines}X-Tidegate-Method: GET\r\nX-Tidegate-Uri: /\r\n\
         X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n"
    )
    .into_bytes()
}

/// More bytes than are read (twice as many are at most), and more lines.
fn overlong() -> [Vec<u8>; 2] {
    let long = format!("X-A: {}\r\n", "a".repeat(300 * 1024));
    [question(&long), question(&"X-A: a\r\n".repeat(300))]
}

fn ask(gate: &Arc<Gate>, of: &str, said: &[u8]) -> String {
    let config = config();
    let gateway = config.gateways.iter().find(|gateway| gateway.name == of).unwrap();
    let listener = Unbound::new(Arc::clone(gate), Arc::new(MonotonicClock), gateway).unwrap();
    String::from_utf8(listener.connection(said).unwrap()).unwrap()
}

/// Whether the proxy is told to pass the request.
fn passes(gate: &Arc<Gate>, of: &str, said: &[u8]) -> bool {
    let before = gate.state().misunderstood;
    let answer = ask(gate, of, said);
    assert_eq!(gate.state().misunderstood, before + 1, "it is counted");
    let passes = answer.starts_with("HTTP/1.1 204 ");
    assert!(passes || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    passes
}

#[test]
fn an_overlong_head_passes_where_nothing_is_refused() {
    let gate = Arc::new(Gate::new(&config(), 1));
    let all = |wanted: bool, why: &str| {
        for (of, said) in
            ["a", "b", "c"].into_iter().flat_map(|of| overlong().map(|said| (of, said)))
        {
            gate.tick(MonotonicClock.now());
            assert_eq!(passes(&gate, of, &said), wanted, "{why}: {of}, {} bytes", said.len());
        }
    };
    gate.tick(MonotonicClock.now());
    all(false, "it must not pass by a limit");
    gate.set_mode(0, Mode::Shadow, Canary::ALL);
    all(false, "it may be for the other service");
    gate.set_mode(1, Mode::Shadow, Canary::ALL);
    all(true, "all are in shadow");
    gate.set_mode(1, Mode::Enforce, Canary::of_percent(50.0).unwrap());
    all(true, "whose source is not known is not among the chosen");
    gate.set_mode(1, Mode::Enforce, Canary::ALL);
    all(false, "again");
    gate.release(true);
    all(true, "the kill switch is on");
}

#[test]
fn what_is_not_too_long_is_asked_as_ever() {
    let gate = Arc::new(Gate::new(&config(), 1));
    gate.tick(MonotonicClock.now());
    gate.set_mode(0, Mode::Shadow, Canary::ALL);
    gate.set_mode(1, Mode::Shadow, Canary::ALL);
    for lines in [format!("X-A: {}\r\n", "a".repeat(50 * 1024)), "X-A: a\r\n".repeat(200)] {
        let answer = ask(&gate, "a", &question(&lines));
        assert!(
            answer.starts_with("HTTP/1.1 204 ") && answer.contains("x-tidegate-reason"),
            "{answer}"
        );
    }
    assert_eq!((gate.totals(0).unwrap().offered, gate.state().misunderstood), (2, 0));
}

/// A proxy that is still sending reads the answer to its end: nobody resets its connection.
#[test]
fn whoever_sends_a_long_head_slowly_reads_the_answer() {
    let world = Listening::new();
    world.gate.set_mode(0, Mode::Shadow, Canary::ALL);
    let mut stream = world.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: gate\r\n").unwrap();
    for _ in 0..900 {
        stream.write_all(format!("X-A: {}\r\n", "a".repeat(1000)).as_bytes()).unwrap();
    }
    stream.write_all(b"\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 204 ") && answer.contains("connection: close"),
        "{answer}"
    );
}
