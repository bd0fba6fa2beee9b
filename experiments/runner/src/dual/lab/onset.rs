// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The smallest load at which SYN policing refuses, for each x: the loads are tried in rising
//! order, at each load all x one after the other, so that a machine that changes in between changes
//! all of them alike.

use super::rows::Table;
use super::run::Runner;
use crate::dual::{Control, Onset, Setting};
use anyhow::Result;
use std::collections::BTreeMap;

/// Most steps of a search.
const STEPS_MAX: usize = 1_000;

/// What is kept of every load of the search, by variant and x.
const KEPT: [&str; 3] = ["refused_syn", "refused_header", "throughput"];

/// One search of all x and protected variants.
pub(super) fn round(
    runner: &mut Runner<'_>,
    search: &Onset,
    round: u32,
    table: &mut Table,
) -> Result<()> {
    let points = runner.points();
    let mut found: BTreeMap<(String, u64), f64> = BTreeMap::new();
    for step in 0..STEPS_MAX {
        let load = search.from + step as f64 * search.step;
        if load > search.to + 1e-9 {
            break;
        }
        for index in 0..points.len() {
            let x = points[(index + round as usize + step) % points.len()];
            let jobs = jobs(runner, x, load, &found)?;
            let what = format!("{} {x}, load {load:.2}", runner.scenario.x.name);
            for made in runner.group(&what, &jobs, round)? {
                let name = format!("{}-{}", made.variant, (x * 100.0).round());
                for metric in made.metrics.iter().filter(|metric| KEPT.contains(&metric.0)) {
                    table.add(&name, ("load", load), *metric);
                }
                let refused = made.metrics.iter().find(|metric| metric.0 == "refused_syn");
                if refused.is_some_and(|metric| metric.2 > search.refused_above) {
                    found.insert((made.variant.clone(), x.to_bits()), load);
                }
            }
        }
        let variants = runner.variants(0).len();
        if found.len() >= points.len() * variants {
            break;
        }
    }
    for ((variant, x), load) in found {
        let at = (runner.scenario.x.name.as_str(), f64::from_bits(x));
        table.add(&variant, at, ("onset", "C0", load));
        table.add(&variant, at, ("onset_coarse", "C0", load));
    }
    Ok(())
}

/// The variants whose onset at `x` is not known yet, at a load. One without control has none.
fn jobs(
    runner: &Runner<'_>,
    x: f64,
    load: f64,
    found: &BTreeMap<(String, u64), f64>,
) -> Result<Vec<(String, Setting)>> {
    let mut jobs = Vec::new();
    for variant in runner.variants(0) {
        let setting = Setting { load, ..runner.scenario.setting(variant, x)? };
        let known = found.contains_key(&(variant.name.clone(), x.to_bits()));
        if !known && setting.control != Control::None {
            jobs.push((variant.name.clone(), setting));
        }
    }
    Ok(jobs)
}
