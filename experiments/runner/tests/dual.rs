// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments on dual admission control in virtual time: they run, they repeat themselves
//! byte for byte, and what their scenarios say reaches the world.

mod common;

use common::{Quiet, compare, digest};
use tidegate_experiments::dual::{self, Scenario};
use tidegate_experiments::setting::Options;
use tidegate_experiments::{catalog, results, start};

/// Every scenario that runs in virtual time, small: two runs, the middle x, some 20 seconds.
fn small() -> Vec<(&'static str, Scenario)> {
    let mut found = Vec::new();
    for experiment in catalog::all() {
        let scenario = start::scenario(&experiment).expect(experiment.name);
        let start::Scenario::Dual(mut scenario) = scenario else { continue };
        let Some(sim) = &mut scenario.sim else { continue };
        (sim.runs, sim.quick_runs) = (2, 2);
        sim.at.clear();
        let middle = scenario.x.at[scenario.x.at.len() / 2];
        (scenario.x.at, scenario.x.quick) = (vec![middle], Vec::new());
        scenario.figures.clear(); // they name points that are not run here
        if let Some(onset) = &mut scenario.onset {
            (onset.from, onset.to, onset.step) = (0.9, 1.3, 0.2);
        }
        let short: &[(&str, f64)] = &[("ramp_s", 4.0), ("warm_s", 4.0), ("seconds", 12.0)];
        for (key, seconds) in short {
            if scenario.base.contains_key(*key) {
                scenario
                    .base
                    .insert((*key).into(), (*seconds).min(seconds_of(&scenario, key)).into());
            }
        }
        if scenario.base.contains_key("steps") {
            scenario
                .base
                .insert("steps".into(), serde_json::json!([[8, 0.8], [6, 2.267], [9, 0.8]]));
        }
        found.push((experiment.name, *scenario));
    }
    assert!(found.len() >= 6, "{} experiments of this kind", found.len());
    found
}

fn seconds_of(scenario: &Scenario, key: &str) -> f64 {
    scenario.base.get(key).and_then(serde_json::Value::as_f64).unwrap_or(0.0)
}

fn table(name: &str, scenario: &Scenario, threads: usize) -> String {
    let options = Options { experiment: name.into(), quick: true, seed: 1, threads };
    let outcome = dual::sim::run(scenario, &options, &mut Quiet).expect(name);
    results::to_csv(&outcome.rows)
}

/// Every experiment runs; one thread and two give the same bytes, and they are those of the golden
/// table, in debug and in release, our own controllers' included.
#[test]
fn golden_same_seed_same_bytes() {
    let mut digests = String::from("experiment,rows,digest\n");
    for (name, scenario) in small() {
        let (one, two) = (table(name, &scenario, 1), table(name, &scenario, 2));
        assert_eq!(one, two, "{name}: one thread and two");
        if name == "dual-admission/fig4" {
            compare("dual_fig4_small.csv", &one);
        }
        digests += &format!("{name},{},{:016x}\n", one.lines().count() - 1, digest(&one));
    }
    compare("dual_small.csv", &digests);
}

fn value(csv: &str, variant: &str, metric: &str) -> f64 {
    let rows = results::from_csv(csv).expect("what was just written");
    let found = rows.iter().find(|row| row.variant == variant && row.metric == metric);
    found.unwrap_or_else(|| panic!("{metric} of {variant}")).value
}

/// What a scenario says reaches the world: control refuses, its absence does not; another seed
/// gives other requests.
#[test]
fn keys_reach_the_world() {
    let all = small();
    let find = |wanted: &str| all.iter().find(|(name, _)| *name == wanted).unwrap().1.clone();
    let mut fig4 = find("dual-admission/fig4");
    fig4.x.at = vec![2.5];
    let text = table("dual-admission/fig4", &fig4, 0);
    assert!(value(&text, "none", "refused") <= 0.0);
    assert!(value(&text, "control", "refused") > 0.05);
    assert!((value(&text, "none", "capacity") - 375.0).abs() < 1e-6, "the paper's");
    let table2 = table("dual-admission/table2", &find("dual-admission/table2"), 0);
    assert!(value(&table2, "none", "packets_dropped") > 0.01);
    assert!(value(&table2, "alone", "packets_dropped") < 0.01);
    let options = |seed| Options { experiment: "x".into(), quick: true, seed, threads: 1 };
    let run = |seed| {
        let outcome = dual::sim::run(&fig4, &options(seed), &mut Quiet).unwrap();
        results::to_csv(&outcome.rows)
    };
    assert_ne!(run(1), run(2));
}
