// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments of papers/dual-admission.txt: requests judged by their header, SYNs policed
//! when that is not enough.
//!
//! A scenario ([`Scenario`]) names what is varied and what is compared; each point of it is a
//! [`Setting`], which both worlds understand: [`lab`] on a real server, `sim` in virtual time.

pub mod lab;
mod scenario;
mod setting;

pub use scenario::{Axis, Onset, Scenario, Sim};
pub use setting::{Changes, Control, Rule, Setting, Unit, merged};
