// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result as rows of the schema of results.

use super::report::{ClassTotal, Report, Total};
use tidegate_results::Row;

/// All rows of results.csv.
pub(crate) fn rows(report: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    for (variant, pick) in [("none", false), ("tidegate", true)] {
        let total = if pick { &report.with } else { &report.without };
        totals(&mut rows, (variant, report.input.seconds), total);
        for (i, class) in report.classes.iter().enumerate() {
            let counts = if pick { &class.with } else { &class.without };
            of_class(&mut rows, (variant, i), counts);
        }
        for period in &report.periods {
            let total = if pick { &period.with } else { &period.without };
            over_time(&mut rows, (variant, period.at_s, report.period_s), total);
        }
    }
    for period in &report.periods {
        if let Some(limit) = period.limit_per_s {
            rows.push(row(("tidegate", "time_s", period.at_s), "limit", ("1/s", limit)));
        }
    }
    rows
}

fn row((variant, x_name, x): (&str, &str, f64), metric: &str, value: (&str, f64)) -> Row {
    Row {
        experiment: "replay".into(),
        world: "sim".into(),
        variant: variant.into(),
        x_name: x_name.into(),
        x,
        metric: metric.into(),
        unit: value.0.into(),
        value: value.1,
        ci95: None,
        runs: 1,
    }
}

/// Counts of the whole load, at its length.
fn totals(rows: &mut Vec<Row>, (variant, seconds): (&str, f64), total: &Total) {
    for (metric, count) in [
        ("offered", total.offered),
        ("admitted", total.admitted),
        ("refused", total.refused),
        ("answered", total.answered),
        ("good", total.good),
        ("failed", total.failed),
    ] {
        rows.push(row((variant, "length_s", seconds), metric, ("1", count as f64)));
    }
    for (metric, value) in [("p50", total.p50_s), ("p99", total.p99_s)] {
        if let Some(s) = value {
            rows.push(row((variant, "length_s", seconds), metric, ("s", s)));
        }
    }
}

/// Counts of a class, at its place among the classes.
fn of_class(rows: &mut Vec<Row>, (variant, index): (&str, usize), counts: &ClassTotal) {
    for (metric, count) in [
        ("offered", counts.offered),
        ("refused", counts.refused),
        ("answered", counts.answered),
        ("good", counts.good),
        ("failed", counts.failed),
    ] {
        rows.push(row((variant, "class", index as f64), metric, ("1", count as f64)));
    }
}

fn over_time(rows: &mut Vec<Row>, (variant, at_s, width_s): (&str, f64, f64), total: &Total) {
    for (metric, count) in [
        ("offered", total.offered),
        ("admitted", total.admitted),
        ("refused", total.refused),
        ("answered", total.answered),
        ("goodput", total.good),
    ] {
        let rate = count as f64 / width_s;
        rows.push(row((variant, "time_s", at_s), metric, ("1/s", rate)));
    }
    for (metric, value) in [("p50", total.p50_s), ("p99", total.p99_s)] {
        if let Some(s) = value {
            rows.push(row((variant, "time_s", at_s), metric, ("s", s)));
        }
    }
}
