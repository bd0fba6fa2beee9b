// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments of papers/thresholds.txt in virtual time: thresholds on a queue, dropping at the
//! interface, and feedback to those who send.
//!
//! A scenario ([`Scenario`]) names what is varied and what is compared; each point of it is a
//! [`Setting`], of which [`run()`] makes a run of the simulator's world.

pub mod lab;
mod run;
mod scenario;
mod setting;

pub use run::run;
pub use scenario::{Course, Scenario};
pub use setting::{Arrivals, Clients, Control, Setting, Throttle};
