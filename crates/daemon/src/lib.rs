// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon: one process, one owner task, messages in, snapshots out.
//!
//! [`run()`] is the process: preflight, take-over, runtime, signals. [`owner::Owner`] is the state
//! machine inside it: once a tick it renews the lease, senses, decides and writes; commands come in
//! between; after each a snapshot is published. It writes limits to an [`outlet::Outlet`], reads
//! [`plane::Senses`], and follows the configuration by the rest of a [`plane::Plane`], so that its
//! logic is tested with neither kernel nor clock.

mod account;
mod backends;
mod bus;
mod check;
mod cluster;
mod commands;
pub mod controllers;
mod datagrams;
mod detach;
mod effect;
mod exempt;
mod flowspec;
mod gateways;
mod given;
mod governed;
mod handover;
mod http;
mod interface_lock;
mod keep_alive;
pub mod kernel;
mod kill_switch;
mod lately;
mod levels;
mod limited;
mod links;
mod lock;
mod log;
mod neighbours;
mod others;
pub mod outlet;
mod overrides;
pub mod owner;
mod past;
mod places;
pub mod plane;
mod planes;
mod pooled;
pub mod preflight;
mod privileges;
mod pushback;
pub mod record;
mod remote;
mod remote_requests;
mod remote_sums;
mod request_watch;
mod rule_signals;
mod run;
mod server;
mod shared;
mod silent;
mod sources;
pub mod state;
mod supervisor;
mod told;
mod warnings;

pub use check::examine;
pub use detach::{DetachError, detach};
pub use governed::Makers;
pub use handover::HandoverError;
pub use interface_lock::Held;
pub use kernel::{release_pinned, table_memory};
pub use log::{Log, lines_lost};
pub use overrides::modes_of;
pub use run::{Options, RunError, run};
