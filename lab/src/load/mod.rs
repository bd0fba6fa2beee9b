// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Load from real kernel TCP connections, open loop: arrivals come when the plan says, whatever the
//! server does, and latency counts from the *intended* start, SYN retransmissions included.
//!
//! ```text
//!  run_load (coordinator)                    shard process × n, in the client namespace, pinned
//!   plan ── JSON on stdin ─────────────────►  engine: arrivals ─► connect ─► request ─► answer
//!   merge ◄─ JSON lines: progress, tallies ─        one thread, one epoll, one timer
//! ```
//!
//! Several processes share a load because each may hold only some 20,000 descriptors. Every shard
//! generates all arrivals from the same seed and takes every n-th, so the sum is the same process
//! whatever the number of shards.

mod ask;
mod capacity;
mod conn;
mod coordinate;
mod engine;
mod h2;
mod hist;
mod http;
mod manner;
mod plan;
mod report;
mod shard;
mod source;
mod table;
mod tally;
mod told;
mod wire;

pub use ask::{Mix, Session};
pub use capacity::{Capacity, CapacityOptions, Probe};
pub use coordinate::{Script, run_here};
pub use hist::{Hist, Percentiles};
pub use manner::Manner;
pub use plan::{Arrive, KeepAlive, LoadPlan, Phase, Sources, Stream, Throttle};
pub use report::{
    Counts, EventDone, LoadReport, PhaseReport, Progress, Sessions, SlotPart, SlotReport,
    StreamProgress, StreamReport, Totals,
};
pub use wire::Transport;

pub(crate) use capacity::measure;
pub(crate) use coordinate::{Place, run};
pub(crate) use shard::main as shard_main;
