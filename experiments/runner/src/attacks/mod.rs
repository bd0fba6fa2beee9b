// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attacks on a server below its capacity, and faults in a crowd: what honest clients get with
//! tidegate, beside what the kernel alone gives them.

mod fault;
mod run;
mod scenario;
mod summary;

pub use run::run;
pub use scenario::{Attack, Extent, Fault, FaultKind, Hostile, Scenario};
