// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what was seen in a place to its rows.

use crate::results::{Row, median};

/// One place's run.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) place: String,
    /// Responses per second of a closed loop there; `None`: not measured there.
    pub(super) capacity: Option<f64>,
    /// Of the capacity, from before to after.
    pub(super) drift: Option<f64>,
    /// Arrivals that count, per second, good responses per second, share of arrivals refused.
    pub(super) offered: f64,
    pub(super) goodput: f64,
    pub(super) refused: f64,
    pub(super) p99: f64,
    /// The accept queue's share of its limit at each look while arrivals counted.
    pub(super) queue: Vec<f64>,
    /// SYNs that the product refused; `None`: there is none.
    pub(super) refusals: Option<u64>,
    /// Seconds until status, /readyz and `check` said that it is not protected (NaN: never), and
    /// whether the first and the last said what to do.
    pub(super) told: Option<([f64; 3], [bool; 2])>,
}

/// All rows.
pub(super) fn rows(experiment: &str, runs: &[Ran], load: f64) -> Vec<Row> {
    let of = |ran: &Ran| {
        let row = |(metric, unit, value): (&str, &str, f64)| Row {
            experiment: experiment.into(),
            world: "lab".into(),
            variant: ran.place.clone(),
            x_name: "load".into(),
            x: load,
            metric: metric.into(),
            unit: unit.into(),
            value,
            ci95: None,
            runs: 1,
        };
        metrics(ran).into_iter().map(row).collect::<Vec<_>>()
    };
    runs.iter().flat_map(of).collect()
}

fn metrics(ran: &Ran) -> Vec<(&'static str, &'static str, f64)> {
    let mut metrics = vec![
        ("offered", "1/s", ran.offered),
        ("goodput", "1/s", ran.goodput),
        ("refused", "share", ran.refused),
        ("p99", "s", ran.p99),
    ];
    metrics.extend(ran.capacity.map(|rate| ("capacity", "1/s", rate)));
    metrics.extend(ran.drift.map(|share| ("drift", "share", share)));
    metrics.extend(ran.refusals.map(|count| ("refusals", "SYNs", count as f64)));
    if !ran.queue.is_empty() {
        metrics.push(("queue", "share", median(ran.queue.clone())));
    }
    if let Some(([status, readyz, check], remedy)) = ran.told {
        metrics.extend([
            ("told_status", "s", status),
            ("told_readyz", "s", readyz),
            ("told_check", "s", check),
            ("remedy", "of 2", f64::from(u8::from(remedy[0]) + u8::from(remedy[1]))),
        ]);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_said_is_no_time_that_holds() {
        let ran = Ran {
            place: "deleted".into(),
            capacity: None,
            drift: None,
            offered: 300.0,
            goodput: 1.0,
            refused: 0.0,
            p99: 0.1,
            queue: vec![0.1, 0.3, 0.2],
            refusals: Some(3),
            told: Some(([1.5, f64::NAN, 2.0], [true, false])),
        };
        let rows = rows("product/places", &[ran], 3.0);
        let value = |metric: &str| rows.iter().find(|row| row.metric == metric).map(|r| r.value);
        assert_eq!((value("told_status"), value("remedy")), (Some(1.5), Some(1.0)));
        assert!(value("told_readyz").unwrap().is_nan());
        assert_eq!((value("queue"), value("capacity")), (Some(0.2), None));
    }
}
