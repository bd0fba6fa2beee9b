// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In each place that docs/places.md calls protected an overload is shed, and clients are served: on
//! the host, in containers (bridge with DNAT, routed, macvlan; hooks outside and inside), behind a tun
//! device, behind a foreign program that lets others see, after the link was down and after another MTU.
//!
//! The wiring is drawn in lab/src/site.rs. How much is served is judged by `product/places`, not here: a
//! busy machine must not fail a test. All places run at once, on servers that only wait.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

#[test]
fn in_each_place_an_overload_is_shed_and_clients_are_served() {
    let before = tidegate_lab::labs();
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"))
        .args(["experiment", "run", "product/places", "--demo", "--out"])
        .arg(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let csv = fs::read_to_string(dir.path().join("results.csv")).unwrap();
    println!("{csv}");
    let rows = csv.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let values: BTreeMap<(&str, &str), f64> =
        rows.map(|c| ((c[2], c[5]), c[7].parse().unwrap())).collect();
    let places: BTreeSet<&str> = values.keys().map(|(place, _)| *place).collect();
    assert_eq!(places.len(), 10, "{places:?}");
    for place in places {
        let value = |metric: &'static str| values[&(place, metric)];
        assert!(value("refusals") > 0.0, "{place}: nothing is shed");
        assert!(value("goodput") > 0.0, "{place}: nobody is served");
        assert!(value("queue") < 0.5, "{place}: the accept queue is full");
    }
    assert_eq!(tidegate_lab::labs(), before, "nothing is left");
}
