// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments of papers/netdraino.txt in virtual time: an overloaded server behind congested routers.
//!
//! A scenario ([`Scenario`]) names what is varied and what is compared; each point of it is a
//! [`Setting`]. [`run()`] makes runs of the simulator's world `netdraino` of all that, and [`measure`]
//! makes metrics of them. The paper's testbed is in the lab: [`testbed`].

pub mod measure;
mod run;
mod scenario;
mod setting;
pub mod testbed;

pub use run::run;
pub use scenario::Scenario;
pub use setting::{Control, Setting};
