// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP: handshake, streams, close. Both ends of a connection are one record; they know of each
//! other only by packets.
//!
//! ```text
//! client: Syn ─SYN-ACK─► Open ─both streams ended─► Done        server: Idle ─SYN─► SynGot ─ACK─► Open ─► Done
//!          └─ RST, gives up ─► Dead ◄─ RST, time-out, abort ─┘            (SYN-ACKs unheard ─► Dead)
//! ```
//!
//! Done is TIME_WAIT for as long as the other end needs it. A dead end answers packets by a RST.

mod conn;
mod listen;
mod receive;
mod rto;
mod send;
mod spec;
mod table;
mod verbs;

pub use conn::ConnFacts;
pub(super) use conn::Which;
pub(super) use listen::Listeners;
pub use listen::{ListenerCounts, ListenerId, ListenerSpec};
pub use spec::TcpSpec;
pub(super) use table::Table;
pub use verbs::Connect;
