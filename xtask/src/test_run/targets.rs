// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which test programs there are, from `cargo metadata`.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process;

/// The names of test programs.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) tests: BTreeSet<String>,
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
}

/// Those of all crates but these.
pub(super) fn names(without: &[&str]) -> Result<Names> {
    let json = process::metadata()?;
    let metadata: Metadata = serde_json::from_str(&json).context("what cargo metadata printed")?;
    let others = metadata.packages.into_iter();
    let others = others.filter(|package| !without.contains(&package.name.as_str()));
    let targets = others.flat_map(|package| package.targets);
    let tests = targets.filter(|target| target.kind.iter().any(|kind| kind == "test"));
    Ok(Names { tests: tests.map(|target| target.name).collect() })
}
