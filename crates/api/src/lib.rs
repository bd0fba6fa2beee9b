// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The contract of the control socket and of HTTP.
//!
//! Control socket: a Unix stream, one JSON object a line in each direction, requests answered in
//! their order ([`protocol`]). [`server`] carries it for the daemon over a [`server::Handler`];
//! [`client`] is the other side, blocking. HTTP is a pure function from a snapshot to a response
//! ([`http`]); the daemon only mounts it.

pub mod client;
pub mod exit;
pub mod explain;
pub mod http;
pub mod protocol;
pub mod server;
