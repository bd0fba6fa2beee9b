// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments on SYNs: they run, they repeat themselves byte for byte, and their second
//! implementation of the Abacus filter says what the shipped one says.

mod common;

use common::{Quiet, compare, digest};
use tidegate_experiments::abacus::{self, Scenario, filters};
use tidegate_experiments::setting::{self, Options};
use tidegate_experiments::{catalog, results, start};
use tidegate_sim::syn::Filter;
use tidegate_units::{Nanos, Random};
use tidegate_workload::Rng;

/// Every scenario of this kind, small: two runs, the middle x, 100 seconds.
fn small() -> Vec<(&'static str, Scenario)> {
    let mut found = Vec::new();
    for experiment in catalog::all() {
        let scenario = start::scenario(&experiment).expect(experiment.name);
        let start::Scenario::Syn(mut scenario) = scenario else { continue };
        scenario.runs = abacus::Runs { full: 2, quick: 2 };
        let middle = scenario.x.at[scenario.x.at.len() / 2];
        scenario.x.at = vec![middle];
        scenario.figures.clear(); // they name points that are not run here
        let seconds = scenario.base.get("seconds").and_then(serde_json::Value::as_u64);
        scenario.base.insert("seconds".into(), seconds.unwrap_or(600).min(100).into());
        found.push((experiment.name, *scenario));
    }
    assert!(found.len() >= 10, "{} experiments of this kind", found.len());
    found
}

fn table(name: &str, scenario: &Scenario, threads: usize) -> String {
    let options = Options { experiment: name.into(), quick: true, seed: 1, threads };
    let outcome = abacus::run(scenario, &options, &mut Quiet).expect(name);
    results::to_csv(&outcome.rows)
}

/// Every experiment runs, and gives each of its variants a value of each metric at each point.
/// One thread and two give the same bytes, today and when the golden table was made: on any
/// machine, in debug and in release (`cargo test --release -p tidegate-experiments`).
#[test]
fn golden_same_seed_same_bytes() {
    let mut digests = String::from("experiment,rows,digest\n");
    for (name, scenario) in small() {
        let (one, two) = (table(name, &scenario, 1), table(name, &scenario, 2));
        assert_eq!(one, two, "{name}: one thread and two");
        for variant in &scenario.variants {
            let start = format!("{name},sim,{},{},", variant.name, scenario.x.name);
            let points = one.lines().filter(|line| line.starts_with(&start)).count();
            assert!(points >= scenario.x.at.len(), "{name}: {} has {points} rows", variant.name);
        }
        if name == "abacus/fig8" {
            compare("abacus_fig8_small.csv", &one);
        }
        digests += &format!("{name},{},{:016x}\n", one.lines().count() - 1, digest(&one));
    }
    compare("abacus_small.csv", &digests);
}

/// Another seed, other numbers: the seed reaches the arrivals.
#[test]
fn another_seed_gives_other_bytes() {
    let (name, scenario) = small().into_iter().find(|(name, _)| *name == "abacus/fig8").unwrap();
    let run = |seed| {
        let options = Options { experiment: name.into(), quick: true, seed, threads: 1 };
        results::to_csv(&abacus::run(&scenario, &options, &mut Quiet).unwrap().rows)
    };
    assert_ne!(run(1), run(2));
}

/// The second implementation, with the default choices, gives the shipped filter's verdict on
/// every SYN of a stream with bursts, silences and jumps longer than the ring; with another
/// choice it does not (so the comparison can fail).
#[test]
fn the_second_implementation_agrees_with_the_shipped_filter() {
    let changes = |text: &str| -> setting::Changes { serde_json::from_str(text).unwrap() };
    let filter =
        |text: &str| filters::filter(&setting::merged(&[&changes(text)]).unwrap()).unwrap();
    let differ = |free: &str| {
        let mut differ = 0;
        for window in [0, 3, 21, 50] {
            let common = format!(r#""window_s": {window}, "lambda_start": 30"#);
            let mut shipped = filter(&format!(r#"{{"filter": "abacus", {common}}}"#));
            let mut second = filter(&format!(r#"{{"filter": "free", {common}{free}}}"#));
            let mut rng = Rng::new(11, window);
            let (mut now, mut burst) = (Nanos(5), false);
            for _ in 0..60_000 {
                burst = if rng.next_u64().is_multiple_of(150) { !burst } else { burst };
                now += match rng.next_u64() % 20_000 {
                    0 => Nanos::from_secs(rng.next_u64() % 200),
                    _ if burst => Nanos(rng.next_u64() % 2_000_000),
                    _ => Nanos(rng.next_u64() % 40_000_000),
                };
                let verdict = shipped.evaluate(now, 1, 0);
                differ += u32::from(verdict != second.evaluate(now, 1, 0));
            }
        }
        differ
    };
    assert_eq!(differ(""), 0);
    for other in ["\"leftover\": \"carry\"", "\"walk\": \"latest\"", "\"seen\": \"fixed\""] {
        assert!(differ(&format!(", {other}")) > 0, "{other} changes nothing");
    }
}

/// Worked example of the specification: 20 in every bucket, 100 SYNs at once: with S = 45, 80 are
/// dropped; with 0, 3, 9, 21, 44 as many as there are buckets within S.
#[test]
fn the_worked_example() {
    for (window, dropped) in [(0, 0), (3, 20), (9, 40), (21, 60), (44, 60), (45, 80)] {
        for kind in ["abacus", "free"] {
            let text = format!(
                r#"{{"filter": "{kind}", "window_s": {window}, "lambda_start": 100,
                    "bucket_size": 1, "refill_rate": 120}}"#
            );
            let changes: setting::Changes = serde_json::from_str(&text).unwrap();
            let mut filter = filters::filter(&setting::merged(&[&changes]).unwrap()).unwrap();
            let at = Nanos::SECOND;
            let first = filter.evaluate(at, 0, 0);
            assert_eq!(first, tidegate_sim::syn::Verdict::Admit, "the only token");
            let verdicts: Vec<_> = (0..100).map(|key| filter.evaluate(at, key, 0)).collect();
            let drops = verdicts.iter().filter(|v| **v == tidegate_sim::syn::Verdict::Drop).count();
            assert_eq!(drops, dropped, "{kind}, S = {window}");
        }
    }
}
