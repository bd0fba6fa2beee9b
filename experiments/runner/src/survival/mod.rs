// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The survival experiment in the lab: a real server under loads below, at and far above its
//! capacity, without tidegate and with it.

pub(crate) mod arm;
pub(crate) mod bracket;
mod figures;
pub(crate) mod measure;
mod run;
mod scenario;

pub(crate) use run::plan;
pub use run::{Options, Outcome, Watch, run};
pub use scenario::{Beside, Extent, Scenario, ServerKind, ServerSpec};
