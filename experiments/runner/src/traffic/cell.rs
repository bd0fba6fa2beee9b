// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One kind of traffic to one kind of server.

use crate::survival::{ServerKind, ServerSpec};
use serde::Deserialize;
use tidegate_lab::{Arrive, Server, Stream, Transport};
use tidegate_units::Nanos;

/// What is varied, in the order of names: the servers …
pub const SERVERS: [ServerKind; 4] = [
    ServerKind::ApachePrefork,
    ServerKind::ApacheEvent,
    ServerKind::NginxUpstream,
    ServerKind::Node,
];
/// … how requests are carried …
pub const TRANSPORTS: [Transport; 3] = [Transport::Clear, Transport::Tls, Transport::H2];
/// … how many requests a connection carries …
pub const REQUESTS: [u32; 3] = [1, 5, 20];
/// … and the seconds from a response to the next request.
pub const THINKS: [f64; 2] = [0.0, 0.5];

/// Streams that a session of [`concurrent`] opens at once after its first request, as browsers do.
const STREAMS: u32 = 10;

/// Up to so many requests a connection, SYN policing is claimed to be enough.
pub(crate) const SHORT_REQUESTS: u32 = 5;

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// The server.
    pub server: ServerKind,
    /// How requests are carried.
    pub transport: Transport,
    /// Requests a connection.
    pub requests: u32,
    /// From a response to the next request, in seconds.
    pub think: f64,
    /// Requests that go out at once after the first, in HTTP/2.
    #[serde(default = "one")]
    pub streams: u32,
}

const fn one() -> u32 {
    1
}

impl Cell {
    /// Whether there is such traffic: prefork has no HTTP/2, and one request has nothing to think
    /// about.
    #[must_use]
    pub fn exists(&self) -> bool {
        let speaks = self.server != ServerKind::ApachePrefork || self.transport != Transport::H2;
        speaks && (self.requests > 1 || self.think <= 0.0)
    }

    /// `prefork-tls-5x0.5`: server, transport, requests and think time; `s10` behind it where ten
    /// requests go out at once.
    #[must_use]
    pub fn name(&self) -> String {
        let server = match self.server {
            ServerKind::ApachePrefork => "prefork",
            ServerKind::ApacheEvent => "event",
            ServerKind::NginxUpstream => "nginx",
            ServerKind::Node => "node",
            ServerKind::Workers => "workers",
        };
        let transport = match self.transport {
            Transport::Clear => "clear",
            Transport::Tls => "tls",
            Transport::H2 => "h2",
        };
        let streams = if self.streams > 1 { format!("s{}", self.streams) } else { String::new() };
        format!("{server}-{transport}-{}x{}{streams}", self.requests, self.think)
    }

    /// Whether refusing SYNs is claimed to be enough.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.requests <= SHORT_REQUESTS
    }

    /// How long a session of an unloaded server lasts: so long a load rises after its step.
    #[must_use]
    pub fn ramp_s(&self) -> f64 {
        f64::from(self.requests - 1) * self.think
    }

    /// The server whose requests cost so much CPU time.
    #[must_use]
    pub const fn spec(&self, busy_ms: f64) -> ServerSpec {
        ServerSpec {
            kind: self.server,
            busy_ms,
            wait_ms: 0.0,
            workers: None,
            exponential: false,
            transport: self.transport,
            keep_alive: false,
            defer_accept: true,
        }
    }

    /// Its sessions as a stream.
    #[must_use]
    pub fn stream(&self, server: &Server, name: &str, arrive: Arrive) -> Stream {
        let think = Nanos::from_secs_f64(self.think);
        let mut stream = server.sessions(name, arrive, self.requests, think);
        if let Some(session) = &mut stream.session {
            session.streams = self.streams;
        }
        stream
    }
}

/// The cells with several requests at once. One covers them: a server whose threads take them side
/// by side, and more requests than go out at once.
#[must_use]
pub fn concurrent() -> Vec<Cell> {
    let (server, transport) = (ServerKind::ApacheEvent, Transport::H2);
    vec![Cell { server, transport, requests: 20, think: 0.0, streams: STREAMS }]
}

/// All cells that exist with one request at a time, in the order of names.
#[must_use]
pub fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for server in SERVERS {
        for transport in TRANSPORTS {
            for requests in REQUESTS {
                let cell = |think| Cell { server, transport, requests, think, streams: 1 };
                cells.extend(THINKS.map(cell).into_iter().filter(Cell::exists));
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4 servers by 3 transports without prefork in HTTP/2, by 1 and 5 and 20 with and without
    /// think time; each name stands once.
    #[test]
    fn there_are_fifty_five_cells() {
        let mut names: Vec<String> = all().iter().map(Cell::name).collect();
        assert_eq!(names.len(), (4 * 3 - 1) * 5);
        assert!(names.contains(&"event-h2-20x0.5".to_owned()), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 55);
        assert!(!names.iter().any(|n| n.starts_with("prefork-h2") || n.ends_with("1x0.5")));
    }

    /// It speaks HTTP/2, has its own name, and sends in two steps at least.
    #[test]
    fn several_requests_at_once_are_cells_of_their_own() {
        for cell in concurrent() {
            assert!(cell.exists() && cell.transport == Transport::H2);
            assert!((5..=20).contains(&cell.streams) && cell.requests > cell.streams);
            assert!(!all().iter().any(|other| other.name() == cell.name()), "{}", cell.name());
        }
        assert_eq!(concurrent()[0].name(), "event-h2-20x0s10");
    }

    /// Four pauses of half a second between five requests.
    #[test]
    fn a_load_rises_as_long_as_a_session_lasts() {
        let cell = |requests, think| Cell { requests, think, ..all()[0] };
        assert!((cell(5, 0.5).ramp_s() - 2.0).abs() < 1e-9);
        assert!(cell(1, 0.0).ramp_s().abs() < 1e-9);
        assert!(cell(5, 0.0).is_short() && !cell(20, 0.0).is_short());
    }
}
