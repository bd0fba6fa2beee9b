// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrival processes, service times and client schedules, for the simulator and the lab.
//!
//! All draws come from one pinned generator ([`Rng`]) and use `libm` only, so that the same seed
//! gives the same numbers on any machine.
//!
//! [`Arrivals`] (regular or Poisson under a [`Profile`] of rates), [`Trace`] (counts per period),
//! [`batches`] and [`merge`] give times; [`Shape`] gives amounts of mean 1; [`Schedule`] and
//! [`Mixture`] say when clients send their SYNs again.

mod arrivals;
mod profile;
mod rng;
mod service;
mod syn;

pub use arrivals::{Arrivals, Process, Trace, batches, merge};
pub use profile::{Profile, Segment};
pub use rng::{Rng, exponential, normal};
pub use service::Shape;
pub use syn::{Mixture, MixtureError, OnReset, SCHEDULES, Schedule};
