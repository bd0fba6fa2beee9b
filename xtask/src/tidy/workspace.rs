// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The crates and what they depend on, from `cargo metadata`.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process;

/// One crate of the workspace.
#[derive(Debug, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) dependencies: Vec<Dependency>,
    /// Absolute as cargo gives it; relative to the root after [`read`].
    pub(super) manifest_path: String,
}

/// One line of a manifest.
#[derive(Debug, Deserialize)]
pub(super) struct Dependency {
    pub(super) name: String,
    /// None: a normal one; else `dev` or `build`.
    pub(super) kind: Option<String>,
    /// Only for crates of the workspace.
    pub(super) path: Option<String>,
}

impl Dependency {
    pub(super) fn is_dev(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }

    pub(super) fn is_ours(&self) -> bool {
        self.path.is_some()
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: String,
}

pub(super) fn read() -> Result<Vec<Package>> {
    parse(&process::metadata()?)
}

pub(super) fn parse(json: &str) -> Result<Vec<Package>> {
    let metadata: Metadata = serde_json::from_str(json).context("what cargo metadata printed")?;
    let root = format!("{}/", metadata.workspace_root);
    let mut packages = metadata.packages;
    for package in &mut packages {
        if let Some(relative) = package.manifest_path.strip_prefix(&root) {
            package.manifest_path = relative.to_owned();
        }
    }
    Ok(packages)
}

/// A crate that a test makes up: name, and what it uses as (name, kind, ours).
#[cfg(test)]
pub(super) fn package(name: &str, uses: &[(&str, &str, bool)]) -> Package {
    Package {
        name: name.to_owned(),
        manifest_path: format!("{name}/Cargo.toml"),
        dependencies: uses
            .iter()
            .map(|(name, kind, ours)| Dependency {
                name: (*name).to_owned(),
                kind: (*kind != "normal").then(|| (*kind).to_owned()),
                path: ours.then(String::new),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_become_relative_and_kinds_are_told_apart() {
        let json = r#"{"workspace_root": "/r", "packages": [{"name": "a",
            "manifest_path": "/r/crates/a/Cargo.toml", "dependencies": [
            {"name": "b", "kind": null, "path": "/r/b"}, {"name": "insta", "kind": "dev"}]}]}"#;
        let packages = parse(json).expect("well-formed");
        assert_eq!(packages[0].manifest_path, "crates/a/Cargo.toml");
        assert!(packages[0].dependencies[0].is_ours() && !packages[0].dependencies[0].is_dev());
        assert!(!packages[0].dependencies[1].is_ours() && packages[0].dependencies[1].is_dev());
    }
}
