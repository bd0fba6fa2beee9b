// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a scenario, from its rows alone: of either world.

use super::scenario::Scenario;
use crate::abacus;
use crate::plot::PlotError;
use crate::results::Row;

/// File names and SVG texts of all figures of a scenario.
///
/// # Errors
/// When a figure has nothing to show.
pub fn all(scenario: &Scenario, rows: &[Row]) -> Result<Vec<(String, String)>, PlotError> {
    let variants: Vec<&str> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
    abacus::draw(&scenario.figures, (&scenario.x.name, &variants), rows)
}
