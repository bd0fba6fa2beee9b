// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments of papers/dual-admission.txt: requests judged by their header, SYNs policed
//! when that is not enough.
//!
//! A scenario ([`Scenario`]) names what is varied and what is compared; each point of it is a
//! [`Setting`], which both worlds understand: [`lab`] on a real server, [`sim`] in virtual time
//! with the server of [`model`]. [`course`] reads a sudden load's course, [`derive`] computes what
//! claims need beside, [`figures`] draws.

pub mod course;
pub mod derive;
pub mod figures;
pub mod lab;
pub mod model;
pub mod refusal;
mod scenario;
mod setting;
pub mod sim;

pub use scenario::{Axis, Onset, Scenario, Sim};
pub use setting::{Control, Rule, Setting, Unit};
