// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments of papers/news.txt in virtual time: a flash crowd at an access router.
//!
//! A scenario ([`Scenario`]) names what is varied and what is compared; each point of it is a
//! [`Setting`]. Clients come by one of the [`traces`]; [`run()`] makes runs of the simulator's world
//! `news` of all that, and [`measure`] makes metrics of them. The paper's testbed is in the [`lab`], and what a
//! router costs there is in [`overhead`].

pub mod lab;
pub mod measure;
pub mod overhead;
mod run;
mod scenario;
mod setting;
pub mod traces;

pub use run::run;
pub use scenario::{Course, Scenario};
pub use setting::{Bystanders, Clients, Control, Server, Setting};
pub use traces::Source;
