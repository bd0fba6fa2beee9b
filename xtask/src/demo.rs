// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask demo`: a short version of experiments/product/survival on real servers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{build, process};

const EXPERIMENT: &str = "product/survival";
/// Where the demo writes, relative to the root.
const OUT: &str = "out/demo";

/// Builds and runs; the experiment says in its last line where the figure lies.
pub(crate) fn run() -> Result<()> {
    process::need_root("it makes network namespaces and loads BPF programs")?;
    build::run()?;
    let out = process::root().join(OUT);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("removing the last demo's {OUT}"))?;
    }
    let ran = process::run(process::command(process::root().join(build::LAB_PATH)).args([
        "experiment",
        "run",
        EXPERIMENT,
        "--world",
        "lab",
        "--demo",
        "--out",
        OUT,
    ]));
    let figures = figures(&out.join("figures"));
    ran?;
    if figures.is_empty() {
        bail!("the experiment ended well, but left no figure below {OUT}/figures");
    }
    Ok(())
}

/// Names of the figures in the folder, sorted.
fn figures(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut figures: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()))
        .filter(|name| name.extension().is_some_and(|extension| extension == "svg"))
        .collect();
    figures.sort();
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_figures_are_named_in_order() {
        let folder = std::env::temp_dir().join(format!("tidegate-demo-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        for name in ["b.svg", "a.svg", "results.csv"] {
            fs::write(folder.join(name), "").expect("writable");
        }
        assert_eq!(figures(&folder), [PathBuf::from("a.svg"), PathBuf::from("b.svg")]);
        fs::remove_dir_all(&folder).expect("ours");
        assert!(figures(&folder).is_empty());
    }
}
