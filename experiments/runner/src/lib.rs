// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs, judges and draws the experiments.

pub mod catalog;
pub mod judge;
pub mod plot;
pub mod results;
