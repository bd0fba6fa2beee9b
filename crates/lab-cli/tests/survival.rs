// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The demo as a stranger runs it: real Apache, real crowd, a table and a figure.
//!
//! ```text
//!   cl: 0.5, 3, 0.5 times the capacity ── rt ── sv: Apache prefork with a CGI, tidegate or not
//! ```
//!
//! What it shows is judged by `tidegate-lab experiment judge`, not here: a busy machine must not fail a
//! test. Here: it ends, it leaves nothing, its files are whole, its last line names the figure, and
//! the difference is there at all (a factor of ten in the numbers, so any sign of it will do).
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

fn labs() -> Vec<String> {
    tidegate_lab::labs()
}

/// (variant, metric) → value at the demo's load.
fn values(csv: &str) -> BTreeMap<(String, String), f64> {
    let rows = csv.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.filter(|c| c[3] == "load")
        .map(|c| ((c[2].to_owned(), c[5].to_owned()), c[7].parse().unwrap()))
        .collect()
}

#[test]
fn the_demo_shows_the_difference() {
    let before = labs();
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"))
        .args(["experiment", "run", "product/survival", "--demo", "--out"])
        .arg(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let last = out.lines().last().unwrap_or("");
    let figure = last.strip_prefix("figure: ").unwrap_or_else(|| panic!("last line: {last}"));
    let svg = fs::read_to_string(figure).unwrap();
    assert!(svg.contains("without tidegate") && svg.contains("with tidegate, reject"), "{figure}");
    let values = values(&fs::read_to_string(dir.path().join("results.csv")).unwrap());
    let value = |variant: &str, metric: &str| values[&(variant.to_owned(), metric.to_owned())];
    for variant in ["none", "drop", "reject"] {
        assert!(value(variant, "capacity") > 0.0);
        assert!(value(variant, "offered") > value(variant, "goodput"), "{variant}: overloaded");
    }
    assert!(value("reject", "refused") > 0.2, "{values:?}");
    assert!(value("reject", "goodput") > value("none", "goodput"), "{values:?}");
    assert!(value("drop", "goodput") > value("none", "goodput"), "{values:?}");
    assert_eq!(labs(), before, "the demo leaves nothing behind");
}
