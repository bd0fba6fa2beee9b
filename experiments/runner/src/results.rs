// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of results, and what is computed over several of them.

use crate::abacus::stats::mean_ci95;
pub use tidegate_results::{CsvError, HEADER, Row, from_csv, number, to_csv, trimmed};

/// The median; NaN of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// The median over rounds in the lab, and its interval.
pub(crate) fn of_rounds(
    experiment: &str,
    variant: &str,
    (x_name, x): (&str, f64),
    (metric, unit, values): (&str, &str, &[f64]),
) -> Row {
    Row {
        experiment: experiment.into(),
        world: "lab".into(),
        variant: variant.into(),
        x_name: x_name.into(),
        x,
        metric: metric.into(),
        unit: unit.into(),
        value: median(values.to_vec()),
        ci95: mean_ci95(values).1,
        runs: values.len() as u32,
    }
}

/// A value over the capacity of the same variant at the same x, if that is among these.
pub(crate) fn over_capacity(row: &Row, among: &[&Row]) -> Option<f64> {
    let same = |other: &&&Row| other.variant == row.variant && other.x.total_cmp(&row.x).is_eq();
    let capacity = among.iter().filter(same).find(|other| other.metric == "capacity");
    capacity.map(|capacity| row.value / capacity.value)
}
