// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator could do today, beside tidegate: each peer with the settings that its own
//! documentation advises, its numbers swept for the best, in rounds on every CPU.

mod figures;
mod run;
mod scenario;
mod summary;
mod sweep;

pub use run::run;
pub use scenario::{Extent, Ramp, Scenario, Shape, Sweep};
pub(crate) use summary::times;
pub(crate) use sweep::{Tried, best};
