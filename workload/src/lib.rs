// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrival processes, service times and client schedules, for the simulator and the lab.
//!
//! All draws come from one pinned generator ([`Rng`]) and use `libm` only, so that the same seed
//! gives the same numbers on any machine.
//!
//! Arrivals, as rising times: [`Arrivals`] (regular or Poisson under a [`Profile`] of rates),
//! [`Poisson`] (one rate, for billions),
//! [`Trace`] (counts per period, from [`mwm`], [`Sessions`] or a file), [`Weibull`], [`OnOff`],
//! [`burst`], [`batches`], and [`merge`] of two. Amounts of mean 1: [`Shape`].
//!
//! What is asked for: [`Surge`], a catalogue of files and requests with heavy tails.
//!
//! Clients: [`Schedule`] says when SYNs are sent again and how a client takes a refusal,
//! [`Jitter`] how precisely, [`Mixture`] which clients there are.
//!
//! Traces of others come in through [`readers`], and [`Refine`] fills their long periods;
//! [`estimate`] measures a series.

mod arrivals;
pub mod estimate;
mod fgn;
mod jitter;
mod mixture;
pub mod mwm;
mod pareto;
mod poisson;
mod profile;
pub mod readers;
mod refine;
mod renewal;
mod rng;
mod service;
mod sessions;
mod surge;
mod syn;

pub use arrivals::{Arrivals, Process, Trace, batches, merge};
pub use fgn::FractionalNoise;
pub use jitter::Jitter;
pub use mixture::{Mixture, MixtureError};
pub use poisson::{Exponential, Poisson};
pub use profile::{Profile, Segment};
pub use refine::Refine;
pub use renewal::{OnOff, OnOffArrivals, Spread, Weibull, burst};
pub use rng::{Rng, exponential, normal, symmetric_beta};
pub use service::Shape;
pub use sessions::Sessions;
pub use surge::{
    DYNAMIC_PREFIX, DYNAMIC_PROGRAM, LARGE_PREFIX, RequestKind, SMALL_PREFIX, Surge, SurgeFile,
    SurgeRequest, SurgeSpec,
};
pub use syn::{Answer, BACKUP_CONNECTION, OnIcmp, OnReset, Reaction, SCHEDULES, Schedule};
