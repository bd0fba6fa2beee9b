// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is measured at a point, run by run, and how it becomes rows.

use super::stats::mean_ci95;
use crate::results::Row;
use std::collections::BTreeMap;
use tidegate_sim::syn::{Bound, Outcome};

/// Name and unit of what every run gives, in the order of [`of`].
pub const METRICS: [(&str, &str); 7] = [
    ("throughput", "share"),
    ("delay", "s"),
    ("cost", "cost"),
    ("retransmissions", "1/request"),
    ("timed_out", "share"),
    ("rejected", "share"),
    ("plan_cost", "cost"),
];

/// The metrics of one run of one variant; those that it does not have are absent.
pub type Measured = [Option<f64>; METRICS.len()];

/// The metrics of a run: over all requests, as the paper has them (section 6).
#[must_use]
pub fn of(outcome: &Outcome) -> Measured {
    [
        Some(outcome.throughput()),
        Some(outcome.delay()),
        Some(outcome.cost()),
        Some(outcome.retransmissions()),
        Some(outcome.timed_out()),
        Some(outcome.rejected()),
        None,
    ]
}

/// What a bound has: the cost that no filter is below, and throughput and cost of the best plan
/// that was found (the distance of the two costs is what is not known of the optimum).
#[must_use]
pub fn of_bound(bound: &Bound) -> Measured {
    let (throughput, rejected) = (bound.throughput(), 1.0 - bound.throughput());
    [Some(throughput), None, Some(bound.cost), None, None, Some(rejected), Some(bound.plan)]
}

/// Where values belong: variant, x_name, the number of x, metric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Variant.
    pub variant: String,
    /// x_name.
    pub x_name: String,
    /// Index into the values of x; 0 where the x is of its own.
    pub x: usize,
    /// Metric.
    pub metric: String,
}

/// The values of one place.
#[derive(Clone, Debug)]
pub struct Values {
    /// x itself.
    pub x: f64,
    /// Unit.
    pub unit: &'static str,
    /// One value a run.
    pub runs: Vec<f64>,
}

/// All values of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Table(BTreeMap<Place, Values>);

impl Table {
    /// Adds the value of the next run.
    pub fn add(&mut self, place: Place, x: f64, unit: &'static str, value: f64) {
        let fresh = || Values { x, unit, runs: Vec::new() };
        self.0.entry(place).or_insert_with(fresh).runs.push(value);
    }

    /// The runs of a metric.
    #[must_use]
    pub fn runs(&self, variant: &str, (x_name, x): (&str, usize), metric: &str) -> Option<&[f64]> {
        let (variant, x_name, metric) = (variant.into(), x_name.into(), metric.into());
        self.0.get(&Place { variant, x_name, x, metric }).map(|values| values.runs.as_slice())
    }

    /// Rows: the mean over runs with its 95 % interval.
    #[must_use]
    pub fn rows(&self, experiment: &str) -> Vec<Row> {
        let row = |(place, values): (&Place, &Values)| {
            let (value, ci95) = mean_ci95(&values.runs);
            Row {
                experiment: experiment.into(),
                world: "sim".into(),
                variant: place.variant.clone(),
                x_name: place.x_name.clone(),
                x: values.x,
                metric: place.metric.clone(),
                unit: values.unit.into(),
                value,
                ci95,
                runs: values.runs.len() as u32,
            }
        };
        self.0.iter().map(row).collect()
    }
}
