// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the rounds to rows: the median of each metric, and our goodput over that of a rival in the
//! same round.

use super::scenario::{NONE, OURS, Shape};
use crate::results::{Row, of_rounds};
use crate::survival::measure::Metric;

/// More than so many times a rival's goodput says no more.
const OVER_MAX: f64 = 100.0;

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) arm: String,
    pub(super) shape: Shape,
    pub(super) round: u32,
    pub(super) metrics: Vec<Metric>,
    /// Of the capacity, over the runs of this load and round.
    pub(super) drift: f64,
}

impl Ran {
    fn value(&self, metric: &str) -> Option<f64> {
        self.metrics.iter().find(|m| m.0 == metric).map(|m| m.2)
    }
}

/// All rows.
pub(super) fn rows(experiment: &str, runs: &[Ran]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut seen: Vec<(&str, Shape)> = Vec::new();
    for ran in runs {
        let key = (ran.arm.as_str(), ran.shape);
        if !seen.contains(&key) {
            seen.push(key);
            rows.extend(of_point(experiment, runs, key));
        }
    }
    rows
}

fn of_point(experiment: &str, runs: &[Ran], (arm, shape): (&str, Shape)) -> Vec<Row> {
    let of = |arm: &str| -> Vec<&Ran> {
        runs.iter().filter(|ran| ran.arm == arm && ran.shape == shape).collect()
    };
    let mine = of(arm);
    let row = |metric: &str, unit: &str, values: &[f64]| {
        of_rounds(experiment, arm, shape.x(), (metric, unit, values))
    };
    let mut rows = Vec::new();
    for (metric, unit, _) in mine.first().map(|ran| ran.metrics.clone()).unwrap_or_default() {
        let values: Vec<f64> = mine.iter().filter_map(|ran| ran.value(metric)).collect();
        rows.push(row(metric, unit, &values));
    }
    for ours in OURS.into_iter().filter(|_| arm != NONE && !OURS.contains(&arm)) {
        let over = pairs(&of(ours), &mine);
        if !over.is_empty() {
            rows.push(row(&format!("{ours}_over"), "ratio", &over));
        }
    }
    let largest = mine.iter().map(|ran| ran.drift).fold(0.0, f64::max);
    rows.push(Row { value: largest, ci95: None, ..row("drift", "share", &[largest]) });
    rows
}

/// Our goodput over theirs, round by round.
fn pairs(ours: &[&Ran], theirs: &[&Ran]) -> Vec<f64> {
    let of = |ran: &Ran| {
        let partner = ours.iter().find(|own| own.round == ran.round)?;
        Some(times(partner.value("goodput")?, ran.value("goodput")?))
    };
    theirs.iter().filter_map(|ran| of(ran)).collect()
}

/// How many times a goodput that may be nothing at all.
pub(crate) fn times(ours: f64, theirs: f64) -> f64 {
    match (ours > 0.0, theirs > 0.0) {
        (_, true) => (ours / theirs).min(OVER_MAX),
        (true, false) => OVER_MAX,
        // Neither serves anybody: nothing holds by that.
        (false, false) => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(arm: &str, round: u32, goodput: f64) -> Ran {
        let metrics = vec![("goodput", "1/s", goodput), ("p99_perceived", "s", 0.1)];
        let drift = 0.01 * f64::from(round);
        Ran { arm: arm.into(), shape: Shape::Step(3.0), round, metrics, drift }
    }

    fn value(rows: &[Row], variant: &str, metric: &str) -> Option<f64> {
        rows.iter().find(|r| r.variant == variant && r.metric == metric).map(|r| r.value)
    }

    /// Rounds are pairs; the median of three counts, and the largest drift.
    #[test]
    fn rounds_are_pairs_and_the_median_counts() {
        let runs = [
            ran("reject", 0, 90.0),
            ran("nft", 0, 100.0),
            ran("nft", 1, 50.0),
            ran("reject", 1, 100.0),
            ran("reject", 2, 100.0),
            ran("nft", 2, 100.0),
            ran("none", 0, 1.0),
        ];
        let rows = rows("product/rivals", &runs);
        assert!((value(&rows, "nft", "reject_over").unwrap() - 1.0).abs() < 1e-9);
        assert!((value(&rows, "nft", "drift").unwrap() - 0.02).abs() < 1e-9);
        assert!((value(&rows, "reject", "goodput").unwrap() - 100.0).abs() < 1e-9);
        assert!(value(&rows, "nft", "drop_over").is_none(), "drop was not run");
        assert!(value(&rows, "none", "reject_over").is_none());
        let over = rows.iter().find(|r| r.metric == "reject_over").unwrap();
        assert_eq!((over.runs, over.ci95.is_some(), over.x_name.as_str()), (3, true, "load"));
    }

    /// A rival that serves nobody is surpassed by whoever serves anybody, and by nobody else.
    #[test]
    fn nothing_is_surpassed_by_something() {
        assert!((times(10.0, 0.0) - OVER_MAX).abs() < 1e-9);
        assert!((times(10.0, 20.0) - 0.5).abs() < 1e-9);
        assert!(times(0.0, 0.0).is_nan());
    }
}
