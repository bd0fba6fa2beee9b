// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tidegate's own proxy needs beside what every gateway has: clients, servers, a queue.

use super::Endpoint;
use crate::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

/// Most servers of one proxy.
pub const UPSTREAM_SERVERS_MAX: usize = 64;
/// Bounds of the proxy's times.
pub const PROXY_TIME_RANGE: (Nanos, Nanos) = (Nanos::from_millis(10), Nanos::from_secs(3600));
/// Bounds of the numbers of connections: of clients, and to each server.
pub const PROXY_CONNECTIONS_RANGE: (u32, u32) = (1, 1 << 17);
/// Most requests that wait in the queue.
pub const QUEUE_LENGTH_MAX: u32 = 1 << 16;
/// Bounds of the time that a request may wait in the queue; the longest is that of the policy `gap`.
pub const QUEUE_WAIT_RANGE: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_secs(60));

/// What the proxy grants to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProxyClients {
    /// Most connections of clients at once. Those without a request are closed first.
    #[serde(default = "ProxyClients::connections_default")]
    #[schemars(range(min = PROXY_CONNECTIONS_RANGE.0, max = PROXY_CONNECTIONS_RANGE.1))]
    pub connections: u32,
    /// A client has so long for its TLS handshake, and for the whole head of its next request.
    #[serde(default = "ProxyClients::idle_timeout_default", with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub idle_timeout: Nanos,
    /// A client may pause for so long while it receives a response. While it sends a body, all of its
    /// pauses together may take so long, and a second more for every 500 bytes of it that have come; none
    /// may be longer.
    #[serde(default = "ProxyClients::body_timeout_default", with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub body_timeout: Nanos,
}

impl Default for ProxyClients {
    fn default() -> Self {
        Self {
            connections: Self::connections_default(),
            idle_timeout: Self::idle_timeout_default(),
            body_timeout: Self::body_timeout_default(),
        }
    }
}

impl ProxyClients {
    const fn connections_default() -> u32 {
        8192
    }

    const fn idle_timeout_default() -> Nanos {
        Nanos::from_secs(15)
    }

    const fn body_timeout_default() -> Nanos {
        Nanos::from_secs(30)
    }
}

/// The servers behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// Their addresses with ports, or `unix:` and absolute paths. They are spoken to in HTTP/1.1,
    /// without TLS. The one with the fewest requests in flight is next.
    #[schemars(length(min = 1, max = UPSTREAM_SERVERS_MAX))]
    pub servers: Vec<Endpoint>,
    /// How long a connection to a server may take; then the next one is tried.
    #[serde(default = "Upstream::connect_timeout_default", with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub connect_timeout: Nanos,
    /// How long the head of a response may take, and each pause in its body.
    #[serde(default = "Upstream::response_timeout_default", with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub response_timeout: Nanos,
    /// How long a connection without a request is kept. Shorter than the server keeps it.
    #[serde(default = "Upstream::idle_timeout_default", with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub idle_timeout: Nanos,
    /// Most connections to each server at once.
    #[serde(default = "Upstream::connections_default")]
    #[schemars(range(min = PROXY_CONNECTIONS_RANGE.0, max = PROXY_CONNECTIONS_RANGE.1))]
    pub connections: u32,
}

impl Upstream {
    const fn connect_timeout_default() -> Nanos {
        Nanos::SECOND
    }

    const fn response_timeout_default() -> Nanos {
        Nanos::from_secs(60)
    }

    /// Apache closes after 5 s.
    const fn idle_timeout_default() -> Nanos {
        Nanos::from_secs(4)
    }

    const fn connections_default() -> u32 {
        1024
    }
}

/// The queue of requests that the policy `gap` delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProxyQueue {
    /// Most requests that wait. One more is refused.
    #[serde(default = "ProxyQueue::length_default")]
    #[schemars(range(min = 1, max = QUEUE_LENGTH_MAX))]
    pub length: u32,
    /// Longest wait of one request. One that would wait longer is refused.
    #[serde(default = "ProxyQueue::longest_wait_default", with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub longest_wait: Nanos,
}

impl Default for ProxyQueue {
    fn default() -> Self {
        Self { length: Self::length_default(), longest_wait: Self::longest_wait_default() }
    }
}

impl ProxyQueue {
    const fn length_default() -> u32 {
        256
    }

    /// Users wait for about so long.
    const fn longest_wait_default() -> Nanos {
        Nanos::SECOND
    }
}
