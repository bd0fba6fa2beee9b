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

mod common;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// One at a time: they share two CPUs.
static ONE: Mutex<()> = Mutex::new(());

/// Runs an experiment quickly.
fn quick(name: &str) -> BTreeMap<[String; 3], f64> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    common::experiment(name, &["--quick", "--world", "lab"]).values()
}

#[test]
fn traffic_has_a_value_for_every_claim() {
    let values = quick("product/traffic");
    let value = |variant: &str, x: &str, metric: &str| {
        let key = [variant, x, metric].map(str::to_owned);
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
        let key = [variant, "1", metric].map(str::to_owned);
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
