// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments on SYNs in virtual time: those of papers/abacus.txt, and ours beside them.
//!
//! A scenario ([`Scenario`]) names what is varied and what is compared; each point of it is a
//! [`setting::Setting`], from which come the new requests ([`arrivals`]), the clients and the
//! filter ([`filters`]). [`run`] plays all of it on common random numbers; [`derive`] computes
//! what claims need beside the metrics; [`course`] keeps SYNs over time.

pub mod arrivals;
mod course;
pub mod derive;
mod figures;
pub mod filters;
pub mod free;
pub mod measure;
mod run;
mod scenario;
pub mod setting;
pub mod stats;

pub use figures::{all as figures, draw};
pub use run::run;
pub use scenario::{Axis, Course, FigureSpec, PanelSpec, Runs, Scenario, Variant};
