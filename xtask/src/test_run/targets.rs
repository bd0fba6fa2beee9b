// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which test programs there are, from `cargo metadata`.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Test {
    pub(super) package: String,
    pub(super) name: String,
}

impl Test {
    pub(super) fn new(package: &str, name: &str) -> Self {
        Self { package: package.to_owned(), name: name.to_owned() }
    }
}

/// Test programs.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) tests: BTreeSet<Test>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    /// What it is built with only where that is asked for: by `cargo xtask guest`.
    #[serde(default, rename = "required-features")]
    needs: Vec<String>,
}

/// Those of all crates but these.
pub(super) fn names(without: &[&str]) -> Result<Names> {
    of(&process::metadata()?, without)
}

fn of(json: &str, without: &[&str]) -> Result<Names> {
    let metadata: Metadata = serde_json::from_str(json).context("what cargo metadata printed")?;
    let others = metadata.packages.into_iter();
    let others = others.filter(|package| !without.contains(&package.name.as_str()));
    let runs =
        |target: &&Target| target.needs.is_empty() && target.kind.iter().any(|kind| kind == "test");
    let tests = others.flat_map(|Package { name, targets }| {
        let tests = targets.iter().filter(runs).map(|target| Test::new(&name, &target.name));
        Vec::from_iter(tests)
    });
    Ok(Names { tests: tests.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_for_other_kernels_are_not_run_on_this_one() {
        let json = r#"{"packages": [
            {"name": "pure", "targets": [{"name": "x", "kind": ["test"]}]},
            {"name": "tidegate", "targets": [
                {"name": "tidegate", "kind": ["bin"]},
                {"name": "places", "kind": ["test"]},
                {"name": "guest_links", "kind": ["test"], "required-features": ["guest"]}
            ]}
        ]}"#;
        let names = of(json, &["pure"]).expect("good metadata");
        assert_eq!(Vec::from_iter(names.tests), [Test::new("tidegate", "places")]);
    }
}
