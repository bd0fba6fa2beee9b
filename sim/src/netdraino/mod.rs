// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overloaded servers that push their limits into congested routers, as in papers/netdraino.txt, packet
//! by packet.
//!
//! ```text
//!  12 clients ── R0 ══ half of the network ══╗          ┌ S0 overloaded
//!               (hooked)                     C ─────────┼ S1 … S4
//!  13 clients ── R1 ══ half of the network ══╝ (hooked) └ (each hooked)
//! ```
//!
//! Each client has TCP connections with Pareto on/off writes and constant-rate UDP to each server. The
//! two double lines are the bottlenecks, with RED queues. Figure 8, with the paper's topology, is not part
//! of the text that we have; this one has the 25 clients, 5 servers and 900 packets/s that it prints.
//!
//! What routers and servers decide is the C of `policy/router`. Limits are per destination and protocol,
//! as the paper's servers have them.
//!
//! | file | what it knows |
//! | --- | --- |
//! | `spec.rs` | one setting |
//! | `router.rs` | congestion, counts, limits, marks and options at a router |
//! | `server.rs` | its own limit, statistics of marks, tailored limits |
//! | `load.rs` | connections and datagrams |
//! | `world.rs` | topology, messages, what is measured |
//! | `outcome.rs` | what came of it |

mod load;
mod outcome;
mod router;
mod server;
mod spec;
mod world;

pub use outcome::{Bin, Outcome};
pub use spec::{Control, NetdrainoSpec, Shift};
pub use tidegate_policy::CongestionSpec;
pub use world::run;

/// Servers; the first is the overloaded one.
pub const SERVERS: usize = 5;
/// Destinations with a protocol: TCP and UDP of each server.
const CLASSES: usize = 2 * SERVERS;
/// From one look of routers and servers to the next.
const TICK: tidegate_units::Nanos = tidegate_units::Nanos::from_millis(100);
/// Bytes of a packet on the wire.
const PACKET: u32 = 1000;

/// Bits of [`crate::net::Packet::marks`]: a router on the way is congested (RCN), the server that sent
/// this is (SCN), and the client was told so.
const RCN: u8 = 1;
const SCN: u8 = 2;
const RELAYED: u8 = 4;
