// SPDX-License-Identifier: Apache-2.0 OR MIT
//! tidegate's own proxy, for those who have none: `adapter: proxy` of a gateway.
//!
//! HTTP/1.1 and HTTP/2 to clients, with TLS or without; HTTP/1.1 to one pool of servers. It asks the
//! [`Gate`](tidegate_gate::Gate) in process, and reports to it exactly: when a request began and ended,
//! what became of it, whether its client left.
//!
//! ```text
//! client ─► listener ─► connection ─► exchange ─► head: 400? ─► gate: 503? ─► queue ─► pool ─► server
//!           seats       TLS, time-outs              │                          gap       │
//!                                                   └─ X-Forwarded-…,                    └─ kept connections,
//!                                                      X-Request-Id                         502, 504
//! ```
//!
//! Bodies stream in both directions: nothing is held but what is under way. hyper parses; what two
//! programs could read differently is refused with 400 ([`head`](crate)). The gate is asked once a part of the body
//! has come; for a request with `Expect`, before. A server gets it then, and another one only while nothing of it
//! was sent.

mod body;
mod connection;
mod counters;
mod downloads;
mod exchange;
mod expected;
mod front;
mod head;
mod io;
mod listener;
mod pool;
mod proxies;
mod queue;
mod response;
mod uploads;

pub use proxies::Proxies;
