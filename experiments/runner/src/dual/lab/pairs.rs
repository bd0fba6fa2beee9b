// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of two x has more SYNs refused at one load: a run of each, one right after the other at the
//! same rate, the requests for the same files in the same order; round by round in turned order.
//!
//! A search for the onset (`onset`) measures the capacity anew before each load, and each round of it
//! gives one value. Where two onsets differ by less than the capacity is known to, it cannot tell which
//! is later. The runs of a pair have one capacity and with it one rate.
//!
//! `refused_syn_less` is the share of the requests whose SYN was refused at the first x, less that at
//! the second. `begun_less` is 1 where SYN policing had begun at the first x and not at the second, -1
//! where it was the other way round, 0 where it had begun at both or at neither. What a round says is
//! the mean of its pairs: they saw one machine. A pair of which a run stayed void says nothing, and is
//! counted in `pair_missing`.

use super::Lab;
use super::rows::{Metric, Table, of_share};
use super::run::{Made, Runner, turned};
use crate::abacus::Variant;
use crate::dual::{Control, Scenario, Setting, Unit};
use anyhow::{Context, Result, ensure};

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

/// Whether a scenario can be run in pairs, if it is to be.
///
/// # Errors
/// For what makes no pairs.
pub(crate) fn check(scenario: &Scenario, lab: &Lab) -> Result<()> {
    if lab.pairs.is_empty() {
        return Ok(());
    }
    ensure!(scenario.onset.is_some(), "lab.pairs: an onset says what has begun, and there is none");
    let other = lab.onset.is_some() || lab.quick_onset.is_some();
    ensure!(!other, "lab.pairs: pairs are instead of lab.onset and lab.quick_onset");
    let fits = |load: &f64| load.is_finite() && *load > 0.0;
    ensure!(lab.pairs.iter().all(fits), "lab.pairs: loads above 0");
    let mut loads = lab.pairs.clone();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    ensure!(loads.len() == lab.pairs.len(), "lab.pairs: a load is there twice");
    for (own, quick) in [(&lab.at, false), (&lab.quick, true)] {
        let points = if own.is_empty() { scenario.points(quick) } else { own };
        let names: Vec<String> = points.iter().map(|x| of_share("", *x)).collect();
        let differ = names.len() == 2 && names[0] != names[1];
        ensure!(differ, "lab.pairs: x needs two values, in steps of 0.01");
    }
    let mut protected = 0;
    for variant in scenario.variants.iter().filter(|variant| lab.runs(variant)) {
        let setting = scenario.setting(variant, scenario.x.at[0])?;
        ensure!(setting.unit == Unit::Static, "lab.pairs: unit: static, or the rates differ");
        protected += usize::from(setting.control != Control::None);
    }
    ensure!(protected == 1, "lab.pairs: one variant with control, or a pair is not together");
    Ok(())
}

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
    let variant = controlled(runner)?;
    let mut said = Vec::new();
    for (index, load) in turned(loads.iter().copied().enumerate().collect(), round as usize) {
        let mut jobs = Vec::new();
        for x in turned(points.clone(), round as usize + index) {
            let setting = Setting { load, ..runner.scenario.setting(&variant, x)? };
            jobs.push((of_share(&variant.name, x), setting));
        }
        let made = runner.group(&format!("load {load:.2}"), &jobs, round)?;
        for one in &made {
            for metric in one.metrics.iter().filter(|metric| KEPT.contains(&metric.0)) {
                table.add(&one.variant, ("load", load), *metric);
            }
        }
        let of = |x: f64| made.iter().find(|made| made.variant == of_share(&variant.name, x));
        said.push(of(points[0]).zip(of(points[1])).map(|(a, b)| compared(a, b, above)));
    }
    for metric in summed(&said) {
        table.add(&variant.name, (&x_name, points[1]), metric);
    }
    Ok(())
}

/// The variant that is run.
fn controlled(runner: &Runner<'_>) -> Result<Variant> {
    let x = runner.points()[0];
    let with = |v: &&Variant| {
        let setting = runner.scenario.setting(v, x);
        setting.is_ok_and(|setting| setting.control != Control::None)
    };
    runner.variants(0).into_iter().find(with).cloned().context("pairs need a variant with control")
}

/// What a pair says: by how much less is refused at its second x, whether that is only begun at its
/// first, and the larger drift of the capacity beside the two runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Pair {
    less: f64,
    begun: f64,
    drift: f64,
}

fn compared(first: &Made, second: &Made, above: f64) -> Pair {
    let of = |made: &Made, name: &str| {
        let found = made.metrics.iter().find(|metric| metric.0 == name);
        found.map_or(0.0, |metric| metric.2)
    };
    let [a, b] = [first, second].map(|made| of(made, "refused_syn"));
    let begun = |share: f64| f64::from(u8::from(share > above));
    Pair {
        less: a - b,
        begun: begun(a) - begun(b),
        drift: of(first, "drift").max(of(second, "drift")),
    }
}

/// What the pairs of a round say together.
fn summed(pairs: &[Option<Pair>]) -> Vec<Metric> {
    let there: Vec<Pair> = pairs.iter().copied().flatten().collect();
    let missing = 1.0 - there.len() as f64 / pairs.len().max(1) as f64;
    let mut found = vec![("pair_missing", "share", missing)];
    if !there.is_empty() {
        let mean = |of: fn(&Pair) -> f64| there.iter().map(of).sum::<f64>() / there.len() as f64;
        let drift = there.iter().map(|pair| pair.drift).fold(0.0, f64::max);
        found.extend([
            ("refused_syn_less", "share", mean(|pair| pair.less)),
            ("refused_syn_less_drift", "share", drift),
            ("begun_less", "share", mean(|pair| pair.begun)),
            ("begun_less_drift", "share", drift),
        ]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn made(refused: f64, drift: f64) -> Made {
        Made::of("control-10", vec![("drift", "share", drift), ("refused_syn", "share", refused)])
    }

    fn pair(first: f64, second: f64) -> Pair {
        compared(&made(first, 0.01), &made(second, 0.02), 0.001)
    }

    /// The pair's order has a sign, and a pair is as steady as the less steady of its runs.
    #[test]
    fn a_pair_says_which_of_its_runs_refuses_less() {
        let said = |less, begun| Pair { less, begun, drift: 0.02 };
        assert_eq!(pair(0.0625, 0.0), said(0.0625, 1.0));
        assert_eq!(pair(0.0, 0.0625), said(-0.0625, -1.0));
        assert_eq!(pair(0.5, 0.25), said(0.25, 0.0));
        assert_eq!(pair(0.001, 0.0), said(0.001, 0.0), "one in a thousand has not begun");
    }

    /// A round is one value, however many pairs it has; what is missing is counted and is not 0.
    #[test]
    fn a_round_is_the_mean_of_the_pairs_that_are_there() {
        let of = |pairs: &[Option<Pair>], name: &str| {
            summed(pairs).into_iter().find(|metric| metric.0 == name).map(|metric| metric.2)
        };
        let pairs = [Some(pair(0.5, 0.0)), Some(pair(0.0, 0.25)), None, None];
        assert_eq!(of(&pairs, "refused_syn_less"), Some(0.125));
        assert_eq!(of(&pairs, "begun_less"), Some(0.0));
        assert_eq!(of(&pairs, "pair_missing"), Some(0.5));
        assert_eq!(of(&pairs, "begun_less_drift"), Some(0.02));
        assert_eq!(of(&[None], "refused_syn_less"), None);
        assert_eq!(of(&[None], "pair_missing"), Some(1.0));
    }

    /// What makes no pairs is said before a run that takes an hour.
    #[test]
    fn what_makes_no_pairs_is_refused() {
        let experiment = catalog::find("dual-admission/table1-fine").unwrap();
        let good: Scenario = serde_saphyr::from_str(experiment.scenario).unwrap();
        let said = |change: &dyn Fn(&mut Scenario)| {
            let mut scenario = good.clone();
            change(&mut scenario);
            scenario.check().map_err(|error| error.to_string())
        };
        assert_eq!(said(&|_| ()), Ok(()));
        let lab = |change: fn(&mut Lab)| said(&|s| change(s.lab.as_mut().unwrap())).unwrap_err();
        assert!(lab(|lab| lab.pairs = vec![1.0, 1.0]).contains("twice"));
        assert!(lab(|lab| lab.pairs = vec![0.0]).contains("above 0"));
        assert!(lab(|lab| lab.at = vec![0.0, 0.1, 0.2]).contains("two values"));
        assert!(lab(|lab| lab.quick = vec![0.101, 0.104]).contains("two values"));
        assert!(lab(|lab| lab.variants = vec!["other".into()]).contains("one variant"));
        assert!(said(&|s| s.onset = None).unwrap_err().contains("an onset says"));
        let mix = |s: &mut Scenario| drop(s.base.insert("unit".into(), "mix".into()));
        assert!(said(&mix).unwrap_err().contains("unit: static"));
        let both = |s: &mut Scenario| s.lab.as_mut().unwrap().quick_onset.clone_from(&good.onset);
        assert!(said(&both).unwrap_err().contains("instead of"));
    }
}
