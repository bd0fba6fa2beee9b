// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments on thresholds in virtual time: they run, they repeat themselves byte for byte, and
//! what their scenarios say reaches the world.

mod common;

use common::{Quiet, compare, digest};
use tidegate_experiments::setting::Options;
use tidegate_experiments::thresholds::{self, Scenario};
use tidegate_experiments::{catalog, results, start};

/// Every scenario of this kind, small: two runs, the middle x, some 20 seconds.
fn small() -> Vec<(&'static str, Scenario)> {
    let mut found = Vec::new();
    for experiment in catalog::all() {
        let scenario = start::scenario(&experiment).expect(experiment.name);
        let start::Scenario::Thresholds(mut scenario) = scenario else { continue };
        (scenario.runs, scenario.quick_runs) = (2, 2);
        let middle = scenario.x.at[scenario.x.at.len() / 2];
        (scenario.x.at, scenario.x.quick) = (vec![middle], Vec::new());
        scenario.figures.clear(); // they name points that are not run here
        for (key, seconds) in [("lead_s", 2.0), ("warm_s", 6.0), ("seconds", 20.0)] {
            scenario.base.insert(key.into(), seconds.into());
        }
        found.push((experiment.name, *scenario));
    }
    assert!(found.len() >= 10, "{} experiments of this kind", found.len());
    found
}

fn table(name: &str, scenario: &Scenario, (seed, threads): (u64, usize)) -> String {
    let options = Options { experiment: name.into(), quick: true, seed, threads };
    let outcome = thresholds::run(scenario, &options, &mut Quiet).expect(name);
    results::to_csv(&outcome.rows)
}

fn value(csv: &str, variant: &str, metric: &str) -> f64 {
    let rows = results::from_csv(csv).expect("what was just written");
    let found = rows.iter().find(|row| row.variant == variant && row.metric == metric);
    found.unwrap_or_else(|| panic!("{metric} of {variant}")).value
}

/// Every experiment runs; one thread and two give the same bytes, and they are those of the golden
/// table, in debug and in release.
#[test]
fn golden_same_seed_same_bytes() {
    let mut digests = String::from("experiment,rows,digest\n");
    for (name, scenario) in small() {
        let (one, two) = (table(name, &scenario, (1, 1)), table(name, &scenario, (1, 2)));
        assert_eq!(one, two, "{name}: one thread and two");
        if name == "thresholds/fig3" {
            compare("thresholds_fig3_small.csv", &one);
        }
        digests += &format!("{name},{},{:016x}\n", one.lines().count() - 1, digest(&one));
    }
    compare("thresholds_small.csv", &digests);
}

/// What a scenario says reaches the world; another seed gives other arrivals.
#[test]
fn keys_reach_the_world() {
    let all = small();
    let find = |wanted: &str| all.iter().find(|(name, _)| *name == wanted).expect(wanted).1.clone();
    let fig9 = find("thresholds/fig9");
    let text = table("thresholds/fig9", &fig9, (1, 0));
    assert!(value(&text, "none", "busy") > 30.0, "overloaded");
    assert!(value(&text, "gap-added", "offered") < value(&text, "none", "offered") - 20.0);
    assert!(value(&text, "gap-minimum", "node_busy") > 1.0);
    assert!(value(&text, "gap-added-200", "queue") > value(&text, "gap-added", "queue") + 20.0);
    assert_ne!(text, table("thresholds/fig9", &fig9, (2, 0)));
    let mut fig7 = find("thresholds/fig7");
    fig7.x.at = vec![0.0];
    let text = table("thresholds/fig7", &fig7, (1, 0));
    assert!(value(&text, "none", "syns_dropped") <= 0.0);
    assert!(value(&text, "drop", "syns_dropped") > 1.0);
    let text = table("thresholds/fig17", &find("thresholds/fig17"), (1, 0));
    let low = value(&text, "priorities-150", "offered_low");
    assert!(low < value(&text, "priorities-150", "offered_high"), "{low}");
    let text = table("thresholds/sweep", &find("thresholds/sweep"), (1, 0));
    assert!(value(&text, "tau-0.1", "messages") > value(&text, "base", "messages"));
}

/// A scenario that no policy takes is refused when it is read.
#[test]
fn a_scenario_is_checked_as_it_is_read() {
    let text = catalog::find("thresholds/fig15").expect("it is there").scenario;
    for (key, wrong) in [("discard: 200", "discard: 149"), ("gap_ms: 1}", "gap_ms: 0}")] {
        let text = text.replacen(key, wrong, 1);
        let scenario: Scenario = serde_saphyr::from_str(&text).expect("well-formed");
        assert!(scenario.check().is_err(), "{wrong}");
    }
}
