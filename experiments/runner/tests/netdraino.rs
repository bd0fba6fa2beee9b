// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments on NetDraino in virtual time: all run in small, one thread and two give the same bytes,
//! and what their scenarios say reaches the world.

mod common;

use common::Quiet;
use tidegate_experiments::netdraino::{self, Scenario};
use tidegate_experiments::setting::Options;
use tidegate_experiments::{catalog, judge, results, start};

/// Every scenario of this kind, small: one run of 30 s, the first x.
fn small() -> Vec<(&'static str, Scenario)> {
    let mut found = Vec::new();
    for experiment in catalog::all() {
        let scenario = start::scenario(&experiment).expect(experiment.name);
        let start::Scenario::Netdraino(mut scenario) = scenario else { continue };
        (scenario.runs, scenario.quick_runs) = (1, 1);
        scenario.x.at.truncate(1);
        scenario.x.quick.clear();
        scenario.figures.clear();
        scenario.quick.insert("lasts_s".into(), 20.0.into());
        scenario.quick.insert("from_s".into(), 10.0.into());
        found.push((experiment.name, *scenario));
    }
    assert!(found.len() >= 9, "{} experiments of this kind", found.len());
    found
}

fn table(name: &str, scenario: &Scenario, threads: usize) -> String {
    let options = Options { experiment: name.into(), quick: true, seed: 1, threads };
    let outcome = netdraino::run(scenario, &options, &mut Quiet).expect(name);
    assert!(outcome.notes.iter().any(|note| note.contains("synthetic")), "{:?}", outcome.notes);
    results::to_csv(&outcome.rows)
}

/// A claim about a metric that nobody measures would be "missing" only in a full run.
fn claims_name_what_there_is(name: &str, scenario: &Scenario, rows: &[results::Row]) {
    let experiment = catalog::find(name).expect(name);
    let expect: judge::Expect = serde_saphyr::from_str(experiment.expect).expect(name);
    // Of a limit that there never was, and of minutes in a run of 20 s, nothing is told.
    let sometimes = ["within", "first_limit", "kept"];
    for claim in expect.claims {
        let metric = claim.of.metric.as_str();
        for variant in &claim.of.variants {
            assert!(scenario.place(variant).is_some(), "{name}: {variant}");
            let there = rows.iter().any(|row| row.variant == *variant && row.metric == metric);
            assert!(there || sometimes.contains(&metric), "{name}: {metric} of {variant}");
        }
    }
}

#[test]
fn every_experiment_runs_and_threads_change_nothing() {
    for (name, scenario) in small() {
        let csv = table(name, &scenario, 2);
        if name == "netdraino/fig9" {
            assert_eq!(csv, table(name, &scenario, 1), "{name}: other threads, other bytes");
        }
        let rows = results::from_csv(&csv).expect("what was just written");
        claims_name_what_there_is(name, &scenario, &rows);
        for variant in &scenario.variants {
            let of = |metric: &str| {
                let is = |row: &&results::Row| row.variant == variant.name && row.metric == metric;
                rows.iter().find(is).map(|row| row.value)
            };
            assert!(of("throughput").is_some_and(|all| all > 100.0), "{name} {}", variant.name);
            let gains = scenario.gains.contains_key(&variant.name);
            assert_eq!(of("gain").is_some(), gains, "{name} {}", variant.name);
        }
    }
}
