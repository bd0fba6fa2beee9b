// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The nouns that flow through tidegate.
//!
//! [`signals`]: what was sensed in one tick. [`limits`]: what the control loop decided.
//! [`remote`]: a limit that one host gives to another. [`snapshot`]: what anyone may look at.
//! [`sharing`]: what routers of one domain tell each other.
//! [`record`]: what happened, summed up and event by event. (Event and Verdict live with the policies in
//! `tidegate-policy`, Report in `tidegate-peer`, Intent and the configuration in `tidegate-config`.)

mod change;
mod clients;
mod cpus;
mod identity;
pub mod in_band;
pub mod limits;
mod listen;
mod mode;
mod namespace;
pub mod record;
pub mod remote;
pub mod router;
pub mod shadow;
pub mod sharing;
pub mod signals;
pub mod snapshot;
pub mod sources;
mod spiffe;
mod text;
pub mod totals;

pub use change::Change;
pub use clients::ClientClass;
pub use cpus::CpuList;
pub use identity::{Fnv, service_identity};
pub use listen::{Listen, Protocol};
pub use mode::{Canary, Mode};
pub use namespace::Namespace;
pub use remote::RemoteLimit;
pub use spiffe::{SPIFFE_MAX, SpiffeId};

/// Most services that one dataplane protects (the dataplane's tables have this size).
pub const SERVICES_MAX: usize = 32;
/// Most classes of one service, the default class 0 included.
pub const CLASSES_MAX: usize = 16;
/// Longest name of a service, a class, a bucket, a rule or a peer, in characters (all ASCII).
pub const NAME_MAX: usize = 63;
/// Most hosts that may report to one front-end.
pub const PEERS_MAX: usize = 64;
/// Most listen addresses of all services together, a table of the dataplane. An address stands for
/// itself, `*` for two: every address of either family.
pub const LISTENS_MAX: usize = 1024;
/// Most source prefixes of all classes and of `exempt` together, a table of the dataplane.
pub const PREFIXES_MAX: usize = 8192;
/// Priorities: 0 is the highest, 7 the lowest and the default.
pub const PRIORITIES: usize = 8;
/// The priority of what no class names.
pub const PRIORITY_DEFAULT: u8 = 7;
/// Kinds of request that share a bucket, in the order of who is refused last: 0 protected (a cookie
/// that the rule names), 1 every other, 2 of the others those that are not the first of their
/// connection, where the rule says `close_persistent`.
pub const RANKS: usize = 3;
/// No limit may be set below this many admissions per second: what is refused must keep trying.
pub const RATE_MIN: f64 = 1.0;
