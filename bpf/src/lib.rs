// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dataplane: loader of the BPF objects, and the only place that names libbpf.
//!
//! A [`Plan`] says what is protected and where; [`Dataplane::start`] loads the hooks, fills the
//! tables, pins and attaches; [`Dataplane::apply`] changes the plan without a gap;
//! [`Core::set_limits`] and [`Core::heartbeat`] are called by the control loop.
//! Hooks, links and tables are pinned: they outlive the process, and a new process adopts them.

// The one crate besides tidegate-policy that talks to the kernel below what libraries wrap; each
// unsafe block states its reason.
#![allow(unsafe_code)]

mod abi;
mod attach;
mod bucket_limits;
mod classification;
mod core;
mod datagrams;
mod dataplane;
mod error;
mod imported;
mod lately;
mod limits;
mod listeners;
mod mapped;
mod maps;
mod marks;
mod mount;
mod namespace;
mod numbers;
mod objects;
mod pins;
mod plan;
mod programs;
mod read;
mod removal;
mod request_read;
mod request_state;
mod requests;
mod router;
mod rules;
mod source_prefixes;
mod sources;
mod swapped;
mod switch;
mod syscall;
mod tables;
mod taps;
#[doc(hidden)]
pub mod testing;
mod text_hash;

pub use self::core::Core;
pub use abi::{ABI_VERSION, GAUGES_EACH};
pub use attach::{Attached, Hook, Presence};
pub use dataplane::Dataplane;
pub use error::Error;
pub use imported::{Imported, ImportedHits, ImportedRule};
pub use lately::Lately;
pub use limits::ServiceParams;
#[doc(hidden)]
pub use marks::MarkHooks;
pub use marks::{HostMarks, MarkObjects, Marks, OptionCounts, RouterEntries};
pub use mount::foreign_program;
pub use namespace::{offload_notes, xdp_costs};
pub use pins::{prepare as prepare_pins, shown as shown_pins};
pub use plan::{Interface, Plan, Settings, action_of, cpus, policy_of};
pub use read::{Count, Passed, Sample};
pub use removal::{InForce, Leftovers, Removal, Whose, leftovers, remove_all};
pub use requests::{BucketParams, RequestReason, RuleCount};
pub use router::{
    ROUTER_SWEEPS, Router, RouterLimited, RouterLosses, RouterObjects, RouterRequest, RouterTimes,
};
#[doc(hidden)]
pub use router::{RouterHooks, RouterLimits, RouterOutcome};
pub use switch::release;
pub use tables::TableLosses;
/// The types that plans and limits are made of.
pub use tidegate_policy as policy;
