// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports of back-ends to a front-end, which polices for them, and remote limits.
//!
//! ```text
//!  back-end                                   front-end
//!  signals ─► Report ─► Sender ─► frames ═TLS 1.3═► Session ─► Table ─► Backend readings, with age
//!  RemoteLimit ───────────▲ Welcome, Refused, Hits, Notice, Bye ◄═╝          └─► ReceivedLimit, PeerState
//! ```
//!
//! The protocol is pure: [`frame`] (bytes), [`report`] (what is said, and its bounds), [`session`]
//! (both roles), [`table`] (what is known, soft state). It does no I/O and reads no clock. Around it
//! [`tls`] knows certificates and [`node`] sockets. What a report may do to a limit is no matter of
//! peers: `tidegate_control::fleet` knows it, and what becomes of a remote limit.
//!
//! # Rules
//! - Identity is the one URI name of a verified certificate, compared letter by letter with the
//!   receiver's own table; no common name, no DNS name, no wildcard.
//! - A peer may report only the services that the table grants it, and limit only its own scopes.
//! - Freshness without wall clocks: the receiver gives each session a random number and an epoch;
//!   `(epoch, sequence)` strictly increases. What is stale or repeated does not extend validity.
//! - Age is counted by the receiver's monotonic clock, from arrival. Past its validity a report is
//!   none: lost reports age out and never tighten.
//! - Every peer has its own small quota. What exceeds it is refused and counted; whoever does not
//!   stop loses the session, and nobody else notices.

mod arrivals;
pub mod authority;
pub mod bus;
mod delegation;
pub mod destinations;
mod dial;
pub mod frame;
mod inbox;
mod io;
pub mod limit;
mod listen;
pub mod node;
pub mod notice;
mod quota;
mod refusal;
pub mod report;
mod said;
pub mod session;
pub mod table;
pub mod tls;

pub use bus::BusConfig;
pub use delegation::{Delegation, DelegationFiles};
pub use node::{Node, NodeConfig, Outgoing, OutgoingLimit, Plain, Target};
pub use refusal::{Code, Refusal};
pub use report::Report;
pub use table::{Grant, Table};
