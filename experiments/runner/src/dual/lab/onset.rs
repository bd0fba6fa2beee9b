// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The smallest load at which SYN policing refuses, for each x: the loads are tried in rising
//! order, at each load all x one after the other, so that a machine that changes in between changes
//! all of them alike.
//!
//! As in the simulator an onset is the load from which on it refuses, so the next load must refuse,
//! too: a lone hiccup of the machine or of the arrivals is none. A load that stays void ends the
//! search of its variant and x for the round: an onset at the load after it could be a step late. A
//! search that ends without an onset is counted, not forgotten.
//!
//! Where the machine was at the last load without refusals, at the onset and at the load that confirms
//! it decides a search, so the largest drift of the capacity beside these is the search's. Each onset
//! is also related to that of the x before it in the same round: the pair saw the same machine.

use super::rows::{Table, of_share};
use super::run::Runner;
use crate::dual::{Control, Onset, Setting};
use anyhow::Result;
use std::collections::BTreeMap;

/// Most steps of a search.
const STEPS_MAX: usize = 1_000;

/// What is kept of every load of the search, by variant and x.
const KEPT: [&str; 6] =
    ["refused_syn", "refused_header", "throughput", "response_time", "capacity", "drift"];

/// How a search ended, in multiples of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// At this load.
    Found(f64),
    /// This load is void.
    Void(f64),
}

/// Loads that decide a search: the one before the onset, the onset, the one that confirms it.
const DECISIVE: usize = 3;

/// The searches of one round, by variant and bits of x.
#[derive(Debug, Default)]
struct Searches {
    ended: BTreeMap<(String, u64), End>,
    /// The last load, where it refused and the one before it did not.
    first: BTreeMap<(String, u64), f64>,
    /// The drifts beside the loads of the search, in their order.
    drifts: BTreeMap<(String, u64), Vec<f64>>,
}

impl Searches {
    fn end(&self, variant: &str, x: f64) -> Option<End> {
        self.ended.get(&key(variant, x)).copied()
    }

    fn drift(&mut self, (variant, x): (&str, f64), drift: f64) {
        self.drifts.entry(key(variant, x)).or_default().push(drift);
    }

    /// The largest drift beside the loads that decide a search; of one without an onset, the largest
    /// of all.
    fn decisive(&self, variant: &str, x: f64) -> Option<f64> {
        let drifts = self.drifts.get(&key(variant, x))?;
        let found = matches!(self.end(variant, x), Some(End::Found(_)));
        let from = if found { drifts.len().saturating_sub(DECISIVE) } else { 0 };
        drifts[from..].iter().copied().reduce(f64::max)
    }

    /// What a load gave: the share of the requests whose SYN was refused, nothing if it is void.
    fn load(&mut self, (variant, x): (&str, f64), load: f64, refused: Option<f64>, above: f64) {
        let key = key(variant, x);
        let end = match (refused, self.first.get(&key)) {
            (None, _) => End::Void(load),
            (Some(share), Some(first)) if share > above => End::Found(*first),
            (Some(share), None) if share > above => {
                self.first.insert(key, load);
                return;
            }
            (Some(_), _) => {
                self.first.remove(&key);
                return;
            }
        };
        self.ended.entry(key).or_insert(end);
    }

    /// No load is left: one that refuses at the last is an onset.
    fn close(&mut self) {
        for (key, first) in std::mem::take(&mut self.first) {
            self.ended.entry(key).or_insert(End::Found(first));
        }
    }

    /// Rows of one search after the last load, and what is to be said of it.
    fn finish(
        &self,
        (variant, x_name, x): (&str, &str, f64),
        to: f64,
        table: &mut Table,
    ) -> Option<String> {
        let at = (x_name, x);
        let missing = match self.end(variant, x) {
            Some(End::Void(load)) => {
                return Some(format!("{x_name} {x}, {variant}: no onset, load {load:.2} is void"));
            }
            Some(End::Found(load)) => {
                table.add(variant, at, ("onset", "C0", load));
                table.add(variant, at, ("onset_coarse", "C0", load));
                0.0
            }
            None => 1.0,
        };
        table.add(variant, at, ("onset_missing", "share", missing));
        if let Some(drift) = self.decisive(variant, x) {
            table.add(variant, at, ("drift", "share", drift));
        }
        (missing > 0.0).then(|| format!("{x_name} {x}, {variant}: no onset up to {to:.2}"))
    }

    /// By how much the onset at `x` is later than that at `before`, as a ratio, with the larger
    /// drift of the two searches.
    fn later(&self, variant: &str, (x_name, x): (&str, f64), before: f64, table: &mut Table) {
        let (own, other) = (self.end(variant, x), self.end(variant, before));
        let (Some(End::Found(own)), Some(End::Found(other))) = (own, other) else { return };
        table.add(variant, (x_name, x), ("onset_later", "ratio", own / other));
        let drifts = [x, before].map(|x| self.decisive(variant, x));
        if let Some(drift) = drifts.into_iter().flatten().reduce(f64::max) {
            table.add(variant, (x_name, x), ("onset_later_drift", "share", drift));
        }
    }
}

fn key(variant: &str, x: f64) -> (String, u64) {
    (variant.to_owned(), x.to_bits())
}

/// One search of all x and protected variants.
pub(super) fn round(
    runner: &mut Runner<'_>,
    search: &Onset,
    round: u32,
    table: &mut Table,
) -> Result<()> {
    let points = runner.points();
    let x_name = runner.scenario.x.name.clone();
    let mut searches = Searches::default();
    for step in 0..STEPS_MAX {
        let load = search.from + step as f64 * search.step;
        if load > search.to + 1e-9 {
            break;
        }
        for index in 0..points.len() {
            let x = points[(index + round as usize + step) % points.len()];
            let jobs = jobs(runner, x, load, &searches)?;
            let what = format!("{x_name} {x}, load {load:.2}");
            let all = runner.group(&what, &jobs, round)?;
            for (variant, _) in &jobs {
                let made = all.iter().find(|made| made.variant == *variant);
                let metrics = made.map_or(&[][..], |made| &made.metrics);
                let name = of_share(variant, x);
                for metric in metrics.iter().filter(|metric| KEPT.contains(&metric.0)) {
                    table.add(&name, ("load", load), *metric);
                }
                let of = |name: &str| metrics.iter().find(|metric| metric.0 == name).map(|m| m.2);
                if let Some(drift) = of("drift") {
                    searches.drift((variant, x), drift);
                }
                let refused = of("refused_syn");
                searches.load((variant, x), load, refused, search.refused_above);
            }
        }
    }
    searches.close();
    let mut before = None;
    for x in points {
        // At the last load all are looked for; those that ended are not in it any more.
        for (variant, _) in jobs(runner, x, search.to, &Searches::default())? {
            let said = searches.finish((&variant, &x_name, x), search.to, table);
            runner.notes.extend(said.map(|said| format!("round {}: {said}", round + 1)));
            if let Some(before) = before {
                searches.later(&variant, (&x_name, x), before, table);
            }
        }
        before = Some(x);
    }
    Ok(())
}

/// The variants whose search at `x` goes on, at a load. One without control has no onset.
fn jobs(
    runner: &Runner<'_>,
    x: f64,
    load: f64,
    searches: &Searches,
) -> Result<Vec<(String, Setting)>> {
    let mut jobs = Vec::new();
    for variant in runner.variants(0) {
        let setting = Setting { load, ..runner.scenario.setting(variant, x)? };
        if searches.end(&variant.name, x).is_none() && setting.control != Control::None {
            jobs.push((variant.name.clone(), setting));
        }
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(searches: &Searches, x: f64, table: &mut Table) -> Option<String> {
        searches.finish(("control", "dynamic_share", x), 1.6, table)
    }

    /// A load that is void ends its search without an onset, also if a later one refuses; a search
    /// without an onset is said and counted; both are not the case where one was found.
    #[test]
    fn a_void_load_and_no_onset_are_no_onset() {
        let mut searches = Searches::default();
        for (load, refused) in [(1.0, Some(0.0)), (1.05, None), (1.1, Some(0.2))] {
            searches.load(("control", 0.1), load, refused, 0.001);
        }
        // The refusals at 0.95 are a hiccup.
        for (load, share) in [(0.95, 0.1), (1.0, 0.001), (1.05, 0.002), (1.1, 0.2)] {
            searches.load(("control", 0.2), load, Some(share), 0.001);
            searches.drift(("control", 0.2), load / 100.0);
        }
        let mut table = Table::default();
        let void = said(&searches, 0.1, &mut table).unwrap();
        assert!(void.ends_with("no onset, load 1.05 is void"), "{void}");
        assert!(table.rows("x").is_empty());
        let none = said(&searches, 0.0, &mut table).unwrap();
        assert!(none.ends_with("no onset up to 1.60"), "{none}");
        assert_eq!(said(&searches, 0.2, &mut table), None);
        let rows: Vec<(String, f64, f64)> =
            table.rows("x").into_iter().map(|row| (row.metric, row.x, row.value)).collect();
        let row = |metric: &str, x, value| (metric.to_owned(), x, value);
        let missing = [row("onset_missing", 0.0, 1.0), row("onset_missing", 0.2, 0.0)];
        assert!(missing.iter().all(|row| rows.contains(row)), "{rows:?}");
        assert!(rows.contains(&row("onset", 0.2, 1.05)) && rows.len() == 5, "{rows:?}");
        assert!(rows.contains(&row("drift", 0.2, 1.1 / 100.0)), "{rows:?}");
    }

    /// A drift long before the onset says nothing of it; a pair is as steady as its worse search.
    #[test]
    fn an_onset_is_as_steady_as_the_loads_that_decide_it() {
        let mut searches = Searches::default();
        let at_0 = [(0.95, 0.0, 0.18), (1.0, 0.0, 0.02), (1.05, 0.2, 0.01), (1.1, 0.2, 0.01)];
        let at_10 = [(1.0, 0.0, 0.05), (1.05, 0.0, 0.03), (1.1, 0.2, 0.04)];
        for (x, loads) in [(0.0, &at_0[..]), (0.1, &at_10[..])] {
            for (load, refused, drift) in loads {
                searches.drift(("control", x), *drift);
                searches.load(("control", x), *load, Some(*refused), 0.001);
            }
        }
        searches.close();
        assert_eq!(searches.decisive("control", 0.0), Some(0.02));
        assert_eq!(searches.decisive("control", 0.1), Some(0.05));
        let mut table = Table::default();
        searches.later("control", ("dynamic_share", 0.1), 0.0, &mut table);
        searches.later("control", ("dynamic_share", 0.2), 0.1, &mut table);
        let rows: Vec<(String, f64, f64)> =
            table.rows("x").into_iter().map(|row| (row.metric, row.x, row.value)).collect();
        let later = ("onset_later".to_owned(), 0.1, 1.1 / 1.05);
        assert_eq!(rows, [later, ("onset_later_drift".to_owned(), 0.1, 0.05)]);
        searches.ended.clear();
        assert_eq!(searches.decisive("control", 0.0), Some(0.18));
    }
}
