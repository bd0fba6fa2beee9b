// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decisions per second on one core. In process: match, chain, record, and the report of each that
//! passes, without sockets. `cargo run --release -p tidegate-gate --example decisions`
//!
//! With `-- sockets`: the same through each adapter, over Unix sockets, and how long a question takes at
//! 5,000/s.

mod grpc;
mod http;
mod sockets;
mod spop;

use tidegate_config::{Registry, parse};
use tidegate_gate::{Ask, Completion, Gate, Id, NoHeaders};
use tidegate_model::limits::ServiceLimits;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate, ThreadCpuClock};

/// Requests of a run.
const REQUESTS: usize = 1_000_000;
/// Requests in flight meanwhile.
const IN_FLIGHT: usize = 1000;

fn main() {
    match std::env::args().nth(1).as_deref() {
        None => in_process(),
        Some("sockets") => sockets::run(),
        Some(other) => println!("{other:?}: there is `sockets`"),
    }
}

fn in_process() {
    let routes: String =
        (0..30).map(|n| format!("      - {{path: /part-{n}/, service: shop}}\n")).collect();
    let text = format!(
        "services:\n  shop: {{mode: enforce, classes: [{{name: gold, sources: [198.51.100.0/24], \
         priority: 0}}]}}\ngateways:\n  edge:\n    adapter: envoy\n    listen: 127.0.0.1:9470\n    \
         routes:\n{routes}      - {{path: /, service: shop}}\n"
    );
    let config = match parse(&text, &Registry::new(["fresh_first"], ["default"])) {
        Ok(config) => config,
        Err(errors) => return println!("{errors}"),
    };
    let ids: Vec<String> = (0..4096).map(|n| format!("{n:032x}")).collect();
    for (name, rate) in [("all are admitted", 1e9), ("nine in ten are refused", 20_000.0)] {
        let gate = Gate::new(&config, 1);
        let limits = ServiceLimits {
            rate: Some(Rate::per_second(rate)),
            burst: 1000,
            waiting_max: Some(1 << 20),
            ..ServiceLimits::default()
        };
        gate.set_limits(&config, &[limits]);
        let (start, mut now) = (ThreadCpuClock.now(), MonotonicClock.now());
        gate.tick(now);
        let mut in_flight = std::collections::VecDeque::with_capacity(IN_FLIGHT + 1);
        let mut admitted = 0_u64;
        for n in 0..REQUESTS {
            // 200,000/s of the gate's own time
            now += Nanos::from_micros(5);
            if n % 20_000 == 0 {
                gate.tick(now);
            }
            let ask = Ask {
                gateway: "edge",
                method: "GET",
                host: Some("shop.example"),
                target: if n % 2 == 0 { "/part-7/item?id=1" } else { "/other/page.html" },
                client: Some([192, 0, 2, (n % 251) as u8].into()),
                request_id: Some(&ids[n % ids.len()]),
                reported_by_id: false,
                share: None,
                turn: None,
                headers: &NoHeaders,
            };
            if let Some(token) = gate.ask(now, &ask).token {
                admitted += 1;
                in_flight.push_back(token);
            }
            if in_flight.len() > IN_FLIGHT
                && let Some(token) = in_flight.pop_front()
            {
                let done = Completion { status: 200, ..Completion::default() };
                gate.complete(now, Id::Token(token), &done);
            }
        }
        let seconds = ThreadCpuClock.now().since(start).as_secs_f64();
        let rate = REQUESTS as f64 / seconds;
        let ns = 1e9 * seconds / REQUESTS as f64;
        println!("{name}: {rate:.0} decisions/s on one core, {ns:.0} ns each, {admitted} admitted");
    }
}
