// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers and hooks in other places: each is protected, or everybody is told that it is not.

mod look;
mod run;
mod scenario;
mod summary;

pub use run::run;
pub use scenario::{Change, Extent, Place, Scenario, Told, read};
