// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which test programs there are, from `cargo metadata`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process;

/// A test program: its crate, and the name of its file in `tests/`, `lib`, or its kind and a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) package: String,
    pub(crate) name: String,
}

impl Test {
    pub(super) fn new(package: &str, name: &str) -> Self {
        Self { package: package.to_owned(), name: name.to_owned() }
    }
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

/// What cargo builds, as all its messages describe it.
#[derive(Deserialize)]
pub(super) struct Target {
    name: String,
    pub(super) src_path: PathBuf,
    kind: Vec<String>,
    /// What it is built with only where that is asked for: by `cargo xtask guest`.
    #[serde(default, rename = "required-features")]
    needs: Vec<String>,
    /// Whether `cargo test` runs it.
    #[serde(default)]
    test: bool,
}

impl Target {
    /// The name of its test program, as [`Test`] has it.
    pub(super) fn program(&self) -> String {
        let is = |kind: &str| self.kind.iter().any(|one| one == kind);
        match () {
            () if is("test") => self.name.clone(),
            () if is("bin") => format!("bin {}", self.name),
            () if is("example") || is("bench") => format!("{} {}", self.kind[0], self.name),
            () => "lib".to_owned(),
        }
    }
}

/// Those of the workspace that `cargo test` runs.
pub(super) fn all() -> Result<BTreeSet<Test>> {
    of(&process::metadata()?)
}

fn of(json: &str) -> Result<BTreeSet<Test>> {
    let metadata: Metadata = serde_json::from_str(json).context("what cargo metadata printed")?;
    let mut tests = BTreeSet::new();
    for package in metadata.packages {
        let runs = package.targets.iter().filter(|target| target.test && target.needs.is_empty());
        tests.extend(runs.map(|target| Test::new(&package.name, &target.program())));
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_for_other_kernels_are_not_run_on_this_one() {
        let json = r#"{"packages": [
            {"name": "pure", "targets": [
                {"name": "x", "kind": ["test"], "test": true, "src_path": "/p/tests/x.rs"},
                {"name": "build-script-build", "kind": ["custom-build"], "test": false, "src_path": "/p/build.rs"}
            ]},
            {"name": "tidegate", "targets": [
                {"name": "tidegate", "kind": ["bin"], "test": true, "src_path": "/t/src/main.rs"},
                {"name": "tidegate", "kind": ["lib"], "test": true, "src_path": "/t/src/lib.rs"},
                {"name": "places", "kind": ["test"], "test": true, "src_path": "/t/tests/places.rs"},
                {"name": "guest_links", "kind": ["test"], "test": true, "required-features": ["guest"],
                 "src_path": "/t/tests/guest_links.rs"}
            ]}
        ]}"#;
        let tests = of(json).expect("good metadata");
        let named = [
            ("pure", "x"),
            ("tidegate", "bin tidegate"),
            ("tidegate", "lib"),
            ("tidegate", "places"),
        ];
        assert_eq!(Vec::from_iter(tests), named.map(|(package, name)| Test::new(package, name)));
    }
}
