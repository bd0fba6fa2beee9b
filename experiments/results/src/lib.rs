// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of a result: results.csv, run.json, figures/.
//!
//! `tidegate replay` writes them, too. So they stand apart from what runs and draws experiments, which
//! the product does not link.

mod rows;

pub use rows::{CsvError, HEADER, Row, from_csv, number, to_csv, trimmed};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// How a folder came about.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name of the experiment.
    pub experiment: String,
    /// `sim` or `lab`.
    pub world: String,
    /// Whether it was a quick run: claims that need the full one are not judged.
    pub quick: bool,
    /// Seed.
    pub seed: u64,
    /// Kernel, CPUs and the like.
    pub machine: String,
    /// Version and revision of the program, see [`PROGRAM`]; empty where it was not noted.
    #[serde(default)]
    pub program: String,
    /// How long it took, in minutes; `None` where it was not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minutes: Option<f64>,
    /// Where its arrivals come from, of an experiment that takes traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// Remarks: runs repeated, data that was a stand-in.
    pub notes: Vec<String>,
}

/// Where the arrivals of an experiment come from that takes traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// Every trace that it takes is real: the files that were read.
    Real(Vec<String>),
    /// Stand-ins ran for some of them or all.
    Synthetic,
}

/// Writes a folder: rows, and figures by name and SVG text; gives the paths of the figures.
///
/// # Errors
/// When it cannot be written.
pub fn write(
    dir: &Path,
    run: &Run,
    rows: &[Row],
    figures: &[(String, String)],
) -> Result<Vec<PathBuf>> {
    let figures_dir = dir.join("figures");
    let made = if figures.is_empty() { dir } else { &figures_dir };
    fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    let put = |path: &Path, text: &str| {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    };
    put(&dir.join("results.csv"), &to_csv(rows))?;
    put(&dir.join("run.json"), &(serde_json::to_string_pretty(run)? + "\n"))?;
    let mut paths = Vec::new();
    for (name, svg) in figures {
        let path = figures_dir.join(name);
        put(&path, svg)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Version of the program and the commit that it was built on, for run.json and `--version`.
pub const PROGRAM: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("TIDEGATE_REVISION"), ")");

/// Kernel and CPU count, for run.json.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|text| text.trim_start_matches(['\t', ' ', ':'])).unwrap_or("CPU");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!("Linux {}, {cpus} x {model}", kernel.trim())
}
