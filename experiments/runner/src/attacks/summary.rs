// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the rounds of an attack to its rows: pairs of one round, and refusals over all rounds.

use crate::results::{Row, median};

/// What honest clients, and all, got in one run.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) attack: String,
    pub(super) arm: String,
    pub(super) round: u32,
    /// Honest arrivals that count, those refused, and good responses per second.
    pub(super) offered: u64,
    pub(super) refused: u64,
    pub(super) goodput: f64,
    /// Of those who had not been here before: arrivals, refused.
    pub(super) fresh: (u64, u64),
    pub(super) p99: f64,
    /// Good responses per second of hostile clients.
    pub(super) hostile: f64,
    pub(super) capacity: f64,
    pub(super) alarms: u32,
    /// Seconds from a fault until the product answers again.
    pub(super) back_s: Option<f64>,
    /// Of the capacity, over all rounds, where it was measured after them.
    pub(super) drift: Option<f64>,
}

/// All rows.
pub(super) fn rows(experiment: &str, runs: &[Ran]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for ran in runs {
        let key = (ran.attack.as_str(), ran.arm.as_str());
        if !seen.contains(&key) {
            seen.push(key);
            rows.extend(of_arm(experiment, runs, key));
        }
    }
    rows
}

fn of_arm(experiment: &str, runs: &[Ran], (attack, arm): (&str, &str)) -> Vec<Row> {
    let of = |arm: &str| {
        let mine = |ran: &&Ran| ran.attack == attack && ran.arm == arm;
        runs.iter().filter(mine).collect::<Vec<_>>()
    };
    let (mine, kernel) = (of(arm), of("none"));
    let each = |value: &dyn Fn(&Ran) -> f64| median(mine.iter().map(|ran| value(ran)).collect());
    let share = |runs: &[&Ran]| {
        let sum = |part: fn(&Ran) -> u64| runs.iter().map(|ran| part(ran)).sum::<u64>() as f64;
        sum(|ran| ran.refused) / sum(|ran| ran.offered).max(1.0)
    };
    let fresh = mine.iter().fold((0, 0), |sum, r| (sum.0 + r.fresh.0, sum.1 + r.fresh.1));
    let mut metrics: Vec<(&str, &str, f64)> = vec![
        ("goodput", "1/s", each(&|ran| ran.goodput)),
        ("capacity", "1/s", each(&|ran| ran.capacity)),
        ("goodput_share", "share", each(&|ran| (ran.goodput + ran.hostile) / ran.capacity)),
        ("hostile", "1/s", each(&|ran| ran.hostile)),
        ("p99", "s", each(&|ran| ran.p99)),
        ("alarms", "alarms", each(&|ran| f64::from(ran.alarms))),
        ("refused", "share", share(&mine)),
        ("refused_new", "share", fresh.1 as f64 / (fresh.0 as f64).max(1.0)),
    ];
    // The supervisor's promise is of each time, not of the usual one.
    let back = mine.iter().filter_map(|ran| ran.back_s).reduce(f64::max);
    metrics.extend(back.map(|seconds| ("back", "s", seconds)));
    let drift = mine.iter().filter_map(|ran| ran.drift).reduce(f64::max);
    metrics.extend(drift.map(|share| ("drift", "share", share)));
    let pairs: Vec<f64> = mine
        .iter()
        .filter_map(|ran| {
            let none = kernel.iter().find(|none| none.round == ran.round)?;
            Some(ran.goodput / none.goodput)
        })
        .collect();
    if arm != "none" && !pairs.is_empty() {
        metrics.push(("beside_none", "ratio", median(pairs)));
        // A full accept queue refuses, too: what counts against us is what comes on top.
        metrics.push(("refused_more", "share", (share(&mine) - share(&kernel)).max(0.0)));
    }
    let row = |(metric, unit, value): (&str, &str, f64)| Row {
        experiment: experiment.into(),
        world: "lab".into(),
        variant: format!("{attack}-{arm}"),
        x_name: "attack".into(),
        x: 1.0,
        metric: metric.into(),
        unit: unit.into(),
        value,
        ci95: None,
        runs: mine.len() as u32,
    };
    metrics.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(arm: &str, round: u32, (goodput, refused): (f64, u64)) -> Ran {
        Ran {
            attack: "idle".into(),
            arm: arm.into(),
            round,
            offered: 1_000,
            refused,
            goodput,
            fresh: (500, refused),
            p99: 0.1,
            hostile: 10.0,
            capacity: 100.0,
            alarms: 1,
            back_s: (arm == "drop").then_some(f64::from(round)),
            drift: (arm == "drop").then_some(0.02),
        }
    }

    fn value(rows: &[Row], variant: &str, metric: &str) -> Option<f64> {
        rows.iter().find(|r| r.variant == variant && r.metric == metric).map(|r| r.value)
    }

    /// Rounds are compared with their own; refusals of the kernel are not ours.
    #[test]
    fn rounds_are_pairs_and_the_kernel_s_refusals_are_not_ours() {
        let runs = [
            ran("none", 0, (30.0, 10)),
            ran("none", 1, (20.0, 10)),
            ran("none", 2, (10.0, 10)),
            ran("drop", 0, (15.0, 16)),
            ran("drop", 1, (20.0, 10)),
            ran("drop", 2, (30.0, 10)),
        ];
        let rows = rows("product/attacks", &runs);
        assert!((value(&rows, "idle-drop", "beside_none").unwrap() - 1.0).abs() < 1e-9);
        assert!((value(&rows, "idle-drop", "refused_more").unwrap() - 0.002).abs() < 1e-9);
        assert!((value(&rows, "idle-drop", "refused_new").unwrap() - 36.0 / 1_500.0).abs() < 1e-9);
        assert!((value(&rows, "idle-drop", "goodput_share").unwrap() - 0.3).abs() < 1e-9);
        assert!(value(&rows, "idle-none", "beside_none").is_none());
        assert!((value(&rows, "idle-drop", "back").unwrap() - 2.0).abs() < 1e-9, "the longest");
        assert!(value(&rows, "idle-none", "back").is_none());
        assert!((value(&rows, "idle-drop", "drift").unwrap() - 0.02).abs() < 1e-9);
    }

    /// Where the kernel alone serves nobody, a ratio says nothing, and no claim holds by it.
    #[test]
    fn a_ratio_to_nothing_is_no_number_that_holds() {
        let rows = rows("x", &[ran("none", 0, (0.0, 0)), ran("drop", 0, (0.0, 0))]);
        assert!(value(&rows, "idle-drop", "beside_none").unwrap().is_nan());
    }
}
