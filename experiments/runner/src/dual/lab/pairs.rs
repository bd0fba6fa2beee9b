// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of two x has more SYNs refused at one load: runs of all x one right after the other, at the
//! same rate and with the same requests, round by round in turned order.
//!
//! A search for the onset (`onset`) finds each x's own load, from runs that are half an hour apart
//! where its steps are small; where two onsets differ by less than the machine does in that time, it
//! cannot tell which is later. Runs of a pair are three minutes apart, their rates differ by nothing,
//! and there are as many pairs as the rounds make: their mean has an interval.
//!
//! `refused_syn_less` is by how much of the requests fewer had their SYN refused at this x than at the
//! x before it; `begun_less` is 1 where SYN policing had begun at the x before and not at this one,
//! -1 where it was the other way round, and 0 otherwise.

use super::rows::{Metric, Table};
use super::run::{Made, Runner, turned};
use crate::dual::{Control, Setting};
use anyhow::{Context, Result};

/// What is kept of every run.
const KEPT: [&str; 7] = [
    "refused_syn",
    "refused_header",
    "throughput",
    "response_time",
    "offered",
    "capacity",
    "drift",
];

/// One pair at each of the loads.
pub(super) fn round(
    runner: &mut Runner<'_>,
    loads: &[f64],
    round: u32,
    table: &mut Table,
) -> Result<()> {
    let x_name = runner.scenario.x.name.clone();
    let above = runner.scenario.onset.as_ref().context("pairs need an onset")?.refused_above;
    let points = runner.points();
    let wanted = if runner.quick() { 1 } else { loads.len() };
    let loads: Vec<(usize, f64)> = loads.iter().copied().enumerate().take(wanted).collect();
    for (index, load) in turned(loads, round as usize) {
        let mut jobs = Vec::new();
        for x in turned(points.clone(), round as usize + index) {
            for variant in runner.variants(0) {
                let setting = Setting { load, ..runner.scenario.setting(variant, x)? };
                if setting.control != Control::None {
                    jobs.push((name(&variant.name, x), setting));
                }
            }
        }
        let made = runner.group(&format!("load {load:.2}"), &jobs, round)?;
        for one in &made {
            for metric in one.metrics.iter().filter(|metric| KEPT.contains(&metric.0)) {
                table.add(&one.variant, ("load", load), *metric);
            }
        }
        for variant in runner.variants(0) {
            for pair in points.windows(2) {
                let of = |x| made.iter().find(|made| made.variant == name(&variant.name, x));
                let (Some(before), Some(own)) = (of(pair[0]), of(pair[1])) else { continue };
                for metric in compared(before, own, above) {
                    table.add(&variant.name, (&x_name, pair[1]), metric);
                }
            }
        }
    }
    Ok(())
}

fn name(variant: &str, x: f64) -> String {
    format!("{variant}-{}", (x * 100.0).round())
}

/// What a pair says of its second run; nothing where one of the two was not measured.
fn compared(before: &Made, own: &Made, above: f64) -> Vec<Metric> {
    let of = |made: &Made, name: &str| {
        made.metrics.iter().find(|metric| metric.0 == name).map(|metric| metric.2)
    };
    let refused = [before, own].map(|made| of(made, "refused_syn"));
    let [Some(before_refused), Some(own_refused)] = refused else { return Vec::new() };
    let begun = [before_refused, own_refused].map(|share| f64::from(u8::from(share > above)));
    let mut found = vec![
        ("refused_syn_less", "share", before_refused - own_refused),
        ("begun_less", "pairs", begun[0] - begun[1]),
    ];
    let drifts = [before, own].into_iter().filter_map(|made| of(made, "drift"));
    if let Some(drift) = drifts.reduce(f64::max) {
        found.push(("refused_syn_less_drift", "share", drift));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(refused: Option<f64>, drift: f64) -> Made {
        let mut metrics: Vec<Metric> = vec![("drift", "share", drift)];
        metrics.extend(refused.map(|share| ("refused_syn", "share", share)));
        Made::of("control-10", metrics)
    }

    /// The pair's order has a sign, and a pair is as steady as the less steady of its runs.
    #[test]
    fn a_pair_says_which_of_its_runs_refuses_less() {
        let said = |before, own| compared(&made(Some(before), 0.01), &made(Some(own), 0.02), 0.001);
        let drift = ("refused_syn_less_drift", "share", 0.02);
        let later = [("refused_syn_less", "share", 0.0625), ("begun_less", "pairs", 1.0), drift];
        assert_eq!(said(0.0625, 0.0), later);
        assert_eq!(said(0.0, 0.0625)[..2].iter().map(|m| m.2).collect::<Vec<_>>(), [-0.0625, -1.0]);
        assert_eq!(said(0.5, 0.25)[..2].iter().map(|m| m.2).collect::<Vec<_>>(), [0.25, 0.0]);
        assert_eq!(said(0.001, 0.0)[1].2, 0.0, "one in a thousand is none");
        assert!(compared(&made(None, 0.0), &made(Some(0.1), 0.0), 0.001).is_empty());
    }
}
