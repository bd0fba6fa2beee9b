// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder of results: results.csv, run.json, figures/.

use crate::catalog::{self, Experiment};
use crate::judge::{self, Expect, Line};
use crate::results::{self, Row};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Largest results.csv that is read, in bytes.
const CSV_BYTES_MAX: u64 = 256 << 20;

/// Where an experiment can run, in the order in which they are shown.
pub const WORLDS: [&str; 2] = ["sim", "lab"];

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
    /// Version and revision of the program, see [`program`]; empty where it was not noted.
    #[serde(default)]
    pub program: String,
    /// Remarks: runs repeated, data that was a stand-in.
    pub notes: Vec<String>,
}

/// Writes a folder; gives the paths of the figures.
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
    fs::create_dir_all(&figures_dir).with_context(|| format!("make {}", figures_dir.display()))?;
    let put = |path: &Path, text: &str| {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    };
    put(&dir.join("results.csv"), &results::to_csv(rows))?;
    put(&dir.join("run.json"), &(serde_json::to_string_pretty(run)? + "\n"))?;
    let mut paths = Vec::new();
    for (name, svg) in figures {
        let path = figures_dir.join(name);
        put(&path, svg)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Judges a folder by the expectation of its experiment.
///
/// # Errors
/// When the folder cannot be read, or names an experiment that there is not.
pub fn judge(dir: &Path) -> Result<(Run, Vec<Line>)> {
    let read = read(dir)?;
    let lines = judge::judge(&read.expect, &read.rows, read.run.quick);
    Ok((read.run, lines))
}

/// A folder with the experiment that it came from.
#[derive(Debug)]
pub struct Read {
    /// How it came about.
    pub run: Run,
    /// The experiment.
    pub experiment: Experiment,
    /// What is expected of it.
    pub expect: Expect,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// Reads a folder.
///
/// # Errors
/// When it cannot be read, or names an experiment that there is not.
pub fn read(dir: &Path) -> Result<Read> {
    let read = |name: &str| {
        let path = dir.join(name);
        let size = fs::metadata(&path).map(|m| m.len()).unwrap_or(0);
        anyhow::ensure!(size <= CSV_BYTES_MAX, "{}: {size} bytes are too many", path.display());
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let run: Run = serde_json::from_str(&read("run.json")?).context("run.json")?;
    let experiment = catalog::find(&run.experiment)?;
    let world = &run.world;
    anyhow::ensure!(
        WORLDS.contains(&world.as_str()),
        "run.json: world is {world:?}, sim or lab expected"
    );
    let expect: Expect = serde_saphyr::from_str(experiment.expect)
        .with_context(|| format!("expect.yaml of {}", run.experiment))?;
    let rows = results::from_csv(&read("results.csv")?)?;
    Ok(Read { run, experiment, expect, rows })
}

/// Version of the program and the commit that it was built on, for run.json.
#[must_use]
pub fn program() -> String {
    format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("TIDEGATE_REVISION"))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every expect.yaml and scenario.yaml in the catalogue is readable; every claim has a band or
    /// is reported, and every experiment has a title.
    #[test]
    fn the_catalogue_is_sound() {
        assert!(catalog::all().count() > 0);
        for experiment in catalog::all() {
            let expect: Expect = serde_saphyr::from_str(experiment.expect)
                .unwrap_or_else(|error| panic!("{}: {error}", experiment.name));
            assert!(!expect.claims.is_empty(), "{} claims nothing", experiment.name);
            let judged = expect.claims.iter().any(|c| c.at_least.is_some() || c.at_most.is_some());
            assert!(judged, "{} cannot fail", experiment.name);
            for claim in expect.claims.iter().filter(|claim| claim.with_interval) {
                let banded = claim.at_least.is_some() || claim.at_most.is_some();
                let measured = claim.over.is_none() && claim.per.is_none();
                assert!(banded && measured, "{}: {} has no interval", experiment.name, claim.id);
            }
            assert!(!experiment.title().is_empty(), "{} has no title", experiment.name);
            crate::start::scenario(&experiment).unwrap();
        }
    }
}
