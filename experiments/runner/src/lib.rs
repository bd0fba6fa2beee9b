// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs, judges and draws the experiments.

pub mod abacus;
pub mod attacks;
pub mod catalog;
pub mod dual;
pub mod folder;
pub mod gateways;
pub mod judge;
pub mod netdraino;
pub mod news;
pub mod places;
pub mod plot;
mod product;
pub mod record;
pub mod replay;
pub mod report;
pub mod results;
pub mod rivals;
mod schedule;
pub mod servers;
pub mod setting;
pub mod start;
pub mod summary;
pub mod survival;
mod testbed;
pub mod thresholds;
pub mod traffic;
pub mod worlds;
