// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate behind each proxy, through TLS, beside what the proxies themselves offer: one course of loads
//! up to ten times the capacity and back, in rounds.

mod arm;
mod course;
mod figures;
mod run;
mod scenario;
mod summary;

pub use run::run;
pub use scenario::{Extent, Proxy, Scenario};
