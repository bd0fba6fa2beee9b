// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds test programs, and says which there are, from the messages of cargo.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::targets::{Target, Test};
use crate::process;

/// A test program that is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) test: Test,
    /// Of its crate, where cargo would start it.
    pub(crate) folder: PathBuf,
    pub(crate) source: PathBuf,
    pub(crate) executable: PathBuf,
}

/// A line of `cargo --message-format=json`, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    manifest_path: PathBuf,
    executable: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Program {
    /// Its source, as a person finds it in the repository, and whether it is a release build.
    pub(crate) fn name(&self) -> String {
        let source = self.source.strip_prefix(process::root()).unwrap_or(&self.source).display();
        let is_release = self.executable.components().any(|part| part.as_os_str() == "release");
        if is_release { format!("{source} (release)") } else { source.to_string() }
    }

    /// Starts it as `cargo test` would.
    pub(super) fn command(&self) -> Command {
        let mut command = process::command(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Runs `cargo test --no-run`, with what its caller has added, and reads which programs that has built.
pub(crate) fn build(cargo: &mut Command) -> Result<Vec<Program>> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    parse(&process::output(cargo)?)
}

fn parse(messages: &str) -> Result<Vec<Program>> {
    let lines = messages.lines().filter(|line| line.starts_with('{'));
    let programs = lines.map(|line| program(line).with_context(|| format!("cargo said: {line}")));
    programs.filter_map(Result::transpose).collect()
}

/// None if the message is about something else than a test program.
fn program(line: &str) -> Result<Option<Program>> {
    let message: Message = serde_json::from_str(line)?;
    let (Some(executable), Some(target)) = (message.executable, message.target) else {
        return Ok(None);
    };
    let is_test = message.profile.is_some_and(|profile| profile.test);
    if message.reason != "compiler-artifact" || !is_test {
        return Ok(None);
    }
    let package = package(&message.package_id).context("a package id without a name")?;
    let folder = message.manifest_path.parent().context("a manifest without a folder")?;
    Ok(Some(Program {
        test: Test::new(package, &target.program()),
        folder: folder.to_path_buf(),
        source: target.src_path,
        executable,
    }))
}

/// The name in a package id: after `#`, or, where only a version stands there, the last folder.
fn package(id: &str) -> Option<&str> {
    let (url, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _version)) => Some(name),
        None => url.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn artifact(kind: &str, name: &str, test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": "path+file:///r/crates/places#tidegate-places@0.1.0",
            "manifest_path": "/r/crates/places/Cargo.toml",
            "executable": format!("/r/target/debug/deps/{name}-0123"),
            "target": {"name": name, "src_path": format!("/r/crates/{name}.rs"), "kind": [kind]},
            "profile": {"test": test},
        })
        .to_string()
    }

    #[test]
    fn programs_of_all_kinds_are_found_and_products_are_not() {
        let lines = [
            r#"{"reason": "build-script-executed", "package_id": "x"}"#.to_owned(),
            artifact("test", "places", true),
            artifact("lib", "tidegate_places", true),
            artifact("bin", "tidegate", true),
            artifact("bin", "tidegate", false),
            artifact("example", "packets", false),
            r#"{"reason": "build-finished", "success": true}"#.to_owned(),
        ];
        let found = parse(&lines.join("\n")).expect("messages of cargo");
        let named = ["places", "lib", "bin tidegate"];
        let named = named.map(|name| Test::new("tidegate-places", name));
        assert_eq!(Vec::from_iter(found.iter().map(|program| program.test.clone())), named);
        assert_eq!(found[0].folder, Path::new("/r/crates/places"));
        assert_eq!(found[0].executable, Path::new("/r/target/debug/deps/places-0123"));
        assert_eq!(found[0].name(), "/r/crates/places.rs");
        let release = PathBuf::from("/r/target/release/deps/places-0123");
        let release = Program { executable: release, ..found[0].clone() };
        assert_eq!(release.name(), "/r/crates/places.rs (release)");
    }

    #[test]
    fn both_forms_of_a_package_id_have_the_name() {
        assert_eq!(
            package("path+file:///r/crates/places#tidegate-places@0.1.0"),
            Some("tidegate-places")
        );
        assert_eq!(package("path+file:///r/xtask#0.1.0"), Some("xtask"));
        assert_eq!(package("garbage"), None);
    }

    #[test]
    fn a_message_that_is_not_understood_is_an_error() {
        assert!(parse("{\"reason\": 1}").is_err());
    }
}
