// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs an experiment as a stranger does.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]
#![allow(dead_code, reason = "no file of tests uses all of it")]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// What a run left.
pub(crate) struct Ran {
    /// The last line that it printed.
    pub(crate) last: String,
    rows: Vec<Vec<String>>,
    /// What it wrote; gone with drop.
    _directory: tempfile::TempDir,
}

/// Runs it; it succeeds, and leaves no lab.
pub(crate) fn experiment(name: &str, how: &[&str]) -> Ran {
    let before = tidegate_lab::labs();
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"))
        .args(["experiment", "run", name])
        .args(how)
        .arg("--out")
        .arg(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert_eq!(tidegate_lab::labs(), before, "{name} leaves nothing behind");
    let csv = std::fs::read_to_string(directory.path().join("results.csv")).unwrap();
    println!("{csv}");
    let rows = csv.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect());
    let last = out.lines().last().unwrap_or_default().to_owned();
    Ran { last, rows: rows.collect(), _directory: directory }
}

impl Ran {
    /// Values by variant, x and metric.
    pub(crate) fn values(&self) -> BTreeMap<[String; 3], f64> {
        let value = |c: &Vec<String>| ([2, 4, 5].map(|at| c[at].clone()), c[7].parse().unwrap());
        self.rows.iter().map(value).collect()
    }

    /// Values by variant and metric, where x is a load.
    pub(crate) fn at_load(&self) -> BTreeMap<[String; 2], f64> {
        let rows = self.rows.iter().filter(|c| c[3] == "load");
        rows.map(|c| ([2, 5].map(|at| c[at].clone()), c[7].parse().unwrap())).collect()
    }
}
