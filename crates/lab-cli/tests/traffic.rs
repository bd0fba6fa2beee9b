// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `product/traffic` and `product/attacks` in their quick form: each ends, leaves nothing, and has a
//! value for whatever its claims are about.
//!
//! ```text
//!   cl: sessions, HTTP/2 in TLS 1.3, attacks ── rt ── sv: Node, Apache prefork; tidegate or not
//! ```
//!
//! What they show is judged by `tidegate-lab experiment judge`, not here: a busy machine must not fail
//! a test.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// (variant, x, metric) → value.
type Values = BTreeMap<(String, String, String), f64>;

/// One at a time: they share two CPUs.
static ONE: Mutex<()> = Mutex::new(());

/// Runs an experiment quickly.
fn quick(name: &str) -> Values {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = tidegate_lab::labs();
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"))
        .args(["experiment", "run", name, "--quick", "--world", "lab", "--out"])
        .arg(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert_eq!(tidegate_lab::labs(), before, "{name} leaves nothing behind");
    let csv = fs::read_to_string(dir.path().join("results.csv")).unwrap();
    let rows = csv.lines().skip(1).map(|line| line.split(',').map(str::to_owned));
    rows.map(|row| {
        let c: Vec<String> = row.collect();
        ((c[2].clone(), c[4].clone(), c[5].clone()), c[7].parse().unwrap())
    })
    .collect()
}

#[test]
fn traffic_has_a_value_for_every_claim() {
    let values = quick("product/traffic");
    let value = |variant: &str, x: &str, metric: &str| {
        let key = (variant.to_owned(), x.to_owned(), metric.to_owned());
        *values.get(&key).unwrap_or_else(|| panic!("{key:?} in {values:?}"))
    };
    let cell = "node-h2-5x0";
    for arm in ["none", "drop", "reject"] {
        let variant = format!("{cell}-{arm}");
        assert!(value(&variant, "0.9", "goodput") > 0.0, "{variant}");
        assert!(value(&variant, "0.9", "connections") > 10.0, "{variant}");
        assert!(value(&variant, "0.9", "generator_cpu") < 1.0, "{variant}");
    }
    for arm in ["drop", "reject"] {
        for metric in ["goodput_share", "p99_ratio", "recovery", "recovery_p99", "alarms"] {
            let value = value(&format!("short-{cell}-{arm}"), "1", metric);
            assert!(value.is_finite(), "{arm}: {metric} is {value}");
        }
        let offered = value(&format!("{cell}-{arm}"), "3", "connections");
        assert!(offered > value(&format!("{cell}-{arm}"), "0.9", "connections"), "{arm}");
    }
    assert!(value("pooled-reject", "0.9", "connections") > 20.0);
}

#[test]
fn attacks_have_a_value_for_every_claim() {
    let values = quick("product/attacks");
    let value = |variant: &str, metric: &str| {
        let key = (variant.to_owned(), "1".to_owned(), metric.to_owned());
        *values.get(&key).unwrap_or_else(|| panic!("{key:?} in {values:?}"))
    };
    assert!(value("flood-none", "goodput") > 0.0);
    for arm in ["drop", "reject"] {
        for metric in ["beside_none", "refused_more", "refused_new", "alarms"] {
            let value = value(&format!("flood-{arm}"), metric);
            assert!(value.is_finite(), "flood, {arm}: {metric} is {value}");
        }
        for metric in ["goodput_share", "back"] {
            let value = value(&format!("kill-{arm}"), metric);
            assert!(value.is_finite(), "kill, {arm}: {metric} is {value}");
        }
    }
}
