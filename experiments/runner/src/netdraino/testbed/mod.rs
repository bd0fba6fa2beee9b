// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The testbed of papers/netdraino.txt (section 7) in the lab: a real kernel, real connections, and the product
//! as a process on each router and on the overloaded server. Also with attackers, with FlowSpec, and as published.
//!
//! ```text
//!  agent 0 ── R0 ──┐                        ┌── S0: takes 100 connections/s
//!                  R2 ── 2 Mbit/s ── R3 ────┤
//!  agent 1 ── R1 ──┘     queue 50           └── S1: takes all
//! ```
//!
//! A [`Scenario`] names what is varied and what is compared; each point of it is a [`Setting`].

mod cost;
mod host;
mod load;
mod measure;
mod run;
mod scenario;
mod setting;
mod stand;

pub use run::run;
pub use scenario::{Extent, Scenario};
pub use setting::{Attack, Control, Setting, Speaker};
