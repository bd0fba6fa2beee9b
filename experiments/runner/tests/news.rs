// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments on flash crowds in virtual time: all run in small, one thread and two give the same
//! bytes, and what their scenarios say reaches the world.

mod common;

use common::Quiet;
use tidegate_experiments::folder::Data;
use tidegate_experiments::news::{self, Scenario};
use tidegate_experiments::setting::Options;
use tidegate_experiments::{catalog, results, start};

/// Every scenario of this kind, small: one run, the first x, a crowd of 90 s.
fn small() -> Vec<(&'static str, Scenario)> {
    let mut found = Vec::new();
    for experiment in catalog::all() {
        let scenario = start::scenario(&experiment).expect(experiment.name);
        let start::Scenario::News(mut scenario) = scenario else { continue };
        (scenario.runs, scenario.quick_runs) = (1, 1);
        let first = scenario.x.at[0];
        // Days and windows are long: the crowd stands in for them.
        let x = if scenario.x.name == "trace" { 0.0 } else { first };
        (scenario.x.at, scenario.x.quick) = (vec![x], Vec::new());
        scenario.sweep.truncate(2);
        scenario.detectors.truncate(2);
        scenario.figures.clear();
        for key in ["from_s", "to_s"] {
            scenario.base.remove(key);
            scenario.variants.iter_mut().for_each(|variant| _ = variant.set.remove(key));
        }
        let crowd = [("at_s", 80.0), ("ramp_s", 10.0), ("until_s", 160.0), ("lasts_s", 170.0)];
        for (key, seconds) in crowd.into_iter().chain([("from_s", 100.0), ("to_s", 160.0)]) {
            scenario.quick.insert(key.into(), seconds.into());
        }
        found.push((experiment.name, *scenario));
    }
    assert!(found.len() >= 8, "{} experiments of this kind", found.len());
    found
}

fn table(name: &str, scenario: &Scenario, threads: usize) -> String {
    let options = Options { experiment: name.into(), quick: true, seed: 1, threads };
    let outcome = news::run(scenario, &options, None, &mut Quiet).expect(name);
    assert!(outcome.notes.iter().any(|note| note.contains("synthetic")), "{:?}", outcome.notes);
    assert_eq!(outcome.data, Some(Data::Synthetic), "{name}");
    results::to_csv(&outcome.rows)
}

fn value(csv: &str, variant: &str, metric: &str) -> f64 {
    let rows = results::from_csv(csv).expect("what was just written");
    let found = rows.iter().find(|row| row.variant == variant && row.metric == metric);
    found.unwrap_or_else(|| panic!("{metric} of {variant}")).value
}

#[test]
fn every_experiment_runs_and_threads_change_nothing() {
    for (name, scenario) in small() {
        let one = table(name, &scenario, 1);
        if name == "news/network-limited" {
            assert_eq!(one, table(name, &scenario, 2), "one thread and two");
            assert!(value(&one, "static-best", "best_rate") > 30.0);
            assert!(value(&one, "news-fast", "goodput") > value(&one, "none", "goodput"));
            assert!(value(&one, "none", "loss") > 0.3);
        }
        if name == "news/detection" {
            assert!(value(&one, "ours", "overloads") > 0.9);
            assert!(value(&one, "ours", "delay") <= 10.0);
            assert!(value(&one, "ours", "false_alarms_sum") < 1.0);
        }
        assert!(one.lines().count() > 10, "{name}");
    }
}

/// A folder without the traces that a scenario takes is an error that names the file.
#[test]
fn a_trace_that_is_missing_is_named() {
    let (name, mut scenario) =
        small().into_iter().find(|(name, _)| *name == "news/detection").expect("it is there");
    let options = Options { experiment: name.into(), quick: true, seed: 1, threads: 1 };
    let folder = news::Source::named(empty_folder());
    for (trace, file) in [(1.0, "wc98_semifinal"), (101.0, "wc98_per_minute"), (201.0, "nasa")] {
        scenario.x.at = vec![trace];
        let error = news::run(&scenario, &options, Some(&folder), &mut Quiet).expect_err("missing");
        assert!(format!("{error:#}").contains(file), "{error:#}");
    }
}

/// An empty folder below the build's own.
fn empty_folder() -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-traces");
    std::fs::create_dir_all(&folder).expect("the test's folder is writable");
    folder
}
