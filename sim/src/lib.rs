// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual time: engine, clients, servers and checkers.
//!
//! [`engine`] orders events; [`world`] is a protected server with its clients, judged by the
//! shipped policies and the shipped controllers; [`servers`] is the table of servers that the
//! default controller must hold for; [`traffic`] is sessions of several requests in front of servers
//! that keep connections; [`web`] is a web server with several bottlenecks behind header
//! rules and SYN policing; [`thresholds`] is one that tells its clients to send less; [`net`] is a
//! network of links, queues and TCP, packet by packet; [`news`] and [`netdraino`] are routers in it. No I/O, no clock, no std transcendental functions: one seed,
//! one result.

mod clients;
pub mod engine;
mod governor;
pub mod net;
pub mod netdraino;
pub mod news;
pub mod servers;
mod sharing;
mod signals;
pub mod survival;
pub mod syn;
pub mod thresholds;
pub mod traffic;
pub mod web;
pub mod whatif;
pub mod world;

/// What policies are made from, for whoever runs them in virtual time without naming the policies.
pub use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, Params, ParamsError,
};

/// From the tick to the limits in the kernel.
const APPLY_DELAY: tidegate_units::Nanos = tidegate_units::Nanos::from_millis(2);
