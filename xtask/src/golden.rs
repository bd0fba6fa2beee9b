// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask golden`: what is written by programs and reviewed by people.
//!
//! Golden tests compare what they compute with a file that is checked in; with
//! `TIDEGATE_BLESS=1` (or, for snapshots, `INSTA_UPDATE=always`) they write it. They are found
//! by what they say: a test file that is called `golden…` or whose source names one of
//! [`MARKS`], in `tests/` or in `src/` of a crate.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{process, registers};

/// What the source of a golden test holds.
const MARKS: [&str; 2] = [concat!("TIDEGATE_", "BLESS"), concat!("insta", "::")];
/// How deep sources lie below `src` and `tests`.
const DEPTH_MAX: usize = 6;

/// Compares everything; with `bless`, writes it; with `pages_only`, no test runs.
pub(crate) fn run(bless: bool, pages_only: bool) -> Result<()> {
    pages(bless)?;
    if pages_only {
        return Ok(());
    }
    let mut failed = Vec::new();
    let tests = golden_tests()?;
    for test in &tests {
        let mut command = process::cargo();
        command.args(["test", "--locked", "--no-fail-fast"]).args(test);
        if bless {
            command.env("TIDEGATE_BLESS", "1").env("INSTA_UPDATE", "always");
            command.env("INSTA_FORCE_PASS", "1").env_remove("CI");
        } else {
            command.env("INSTA_UPDATE", "no").env_remove("TIDEGATE_BLESS");
        }
        if process::run(&mut command).is_err() {
            failed.push(test.join(" "));
        }
    }
    if !failed.is_empty() {
        bail!("golden tests failed: {}", failed.join("; "));
    }
    println!("golden: {} test programs and 2 pages {}", tests.len(), done(bless));
    Ok(())
}

fn done(bless: bool) -> &'static str {
    if bless { "written: look at `git diff`, and explain the numbers" } else { "are as recorded" }
}

/// The documents that are made from the registers.
fn pages(bless: bool) -> Result<()> {
    let root = process::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).context(path.to_owned());
    let policies = registers::policies(&read(registers::POLICIES)?).context(registers::POLICIES)?;
    let reasons = registers::reasons(&read(registers::REASONS)?).context(registers::REASONS)?;
    for (path, page) in [
        (registers::POLICIES_PAGE, registers::policies_page(&policies)),
        (registers::REASONS_PAGE, registers::reasons_page(&reasons)),
    ] {
        if read(path).is_ok_and(|text| text == page) {
            continue;
        }
        if !bless {
            bail!("{path} differs from its register: cargo xtask golden --bless");
        }
        fs::write(root.join(path), page).with_context(|| format!("writing {path}"))?;
        println!("golden: {path} written");
    }
    Ok(())
}

/// The arguments that select each golden test program.
fn golden_tests() -> Result<BTreeSet<Vec<String>>> {
    let json = process::metadata()?;
    let metadata: serde_json::Value = serde_json::from_str(&json).context("cargo metadata")?;
    let mut found = BTreeSet::new();
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    for package in list(&metadata["packages"]) {
        let name = package["name"].as_str().unwrap_or_default();
        if name == "xtask" {
            continue; // the pages above are its golden files
        }
        for target in list(&package["targets"]) {
            let source = Path::new(target["src_path"].as_str().unwrap_or_default());
            if let Some(select) = select(&target, source) {
                let mut words = vec!["--package".to_owned(), name.to_owned()];
                words.extend(select);
                found.insert(words);
            }
        }
    }
    Ok(found)
}

/// How cargo is told to run this target; none if it holds no golden test.
fn select(target: &serde_json::Value, source: &Path) -> Option<Vec<String>> {
    let name = target["name"].as_str()?.to_owned();
    match target["kind"][0].as_str()? {
        "test" => {
            // Helpers of a test live in a folder of its name, or shared in common/.
            let is_golden = name.contains("golden") || marked(source, 0);
            is_golden.then(|| vec!["--test".to_owned(), name])
        }
        "lib" if marked(source.parent()?, 0) => Some(vec!["--lib".to_owned()]),
        "bin" if marked(source.parent()?, 0) => Some(vec!["--bin".to_owned(), name]),
        _ => None,
    }
}

/// True if the file, or one below the folder, holds a mark.
fn marked(path: &Path, depth: usize) -> bool {
    if path.is_dir() {
        let Ok(entries) = fs::read_dir(path) else { return false };
        return depth < DEPTH_MAX && entries.flatten().any(|e| marked(&e.path(), depth + 1));
    }
    path.extension().is_some_and(|extension| extension == "rs")
        && fs::read_to_string(path).is_ok_and(|text| MARKS.iter().any(|mark| text.contains(mark)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_tests_are_found_by_name_and_by_mark() {
        let folder = std::env::temp_dir().join(format!("tidegate-golden-{}", std::process::id()));
        fs::create_dir_all(folder.join("src/deep")).expect("a temporary folder");
        fs::write(folder.join("src/lib.rs"), "").expect("writable");
        fs::write(folder.join("plain.rs"), "").expect("writable");
        fs::write(folder.join("marked.rs"), MARKS[0]).expect("writable");
        let test = |name: &str| serde_json::json!({"name": name, "kind": ["test"]});
        let lib = serde_json::json!({"name": "a", "kind": ["lib"]});
        let file = |name: &str| folder.join(name);
        assert_eq!(select(&test("plain"), &file("plain.rs")), None);
        assert!(select(&test("golden_packets"), &file("plain.rs")).is_some());
        assert!(select(&test("marked"), &file("marked.rs")).is_some());
        assert_eq!(select(&lib, &file("src/lib.rs")), None);
        fs::write(folder.join("src/deep/a.rs"), MARKS[1]).expect("writable");
        assert_eq!(select(&lib, &file("src/lib.rs")), Some(vec!["--lib".to_owned()]));
        fs::remove_dir_all(folder).expect("ours");
    }
}
