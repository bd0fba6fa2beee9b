// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder of results, read and judged; the files are those of [`tidegate_results`].

use crate::catalog::{self, Experiment};
use crate::judge::{self, Expect, Line};
use crate::results::{self, Row};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
pub use tidegate_results::{Data, PROGRAM, Run, machine, write};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Largest results.csv that is read, in bytes.
const CSV_BYTES_MAX: u64 = 256 << 20;

/// Where an experiment can run, in the order in which they are shown.
pub const WORLDS: [&str; 2] = ["sim", "lab"];

/// How long a run takes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Nanos);

impl Stopwatch {
    /// From now on.
    #[must_use]
    pub fn start() -> Self {
        Self(MonotonicClock.now())
    }

    /// Up to now, in tenths of a minute.
    #[must_use]
    pub fn minutes(self) -> f64 {
        let minutes = MonotonicClock.now().since(self.0).as_secs_f64() / 60.0;
        (10.0 * minutes).round() / 10.0
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

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
            for claim in &expect.claims {
                let points = !claim.of.at.is_empty() || !claim.of.lab.is_empty();
                let named = !claim.of.variants.is_empty() && points;
                assert!(named, "{}: {} names no variant or no point", experiment.name, claim.id);
            }
            for claim in expect.claims.iter().filter(|claim| claim.with_interval) {
                let banded = claim.at_least.is_some() || claim.at_most.is_some();
                let measured = claim.over.is_none() && claim.per.is_none();
                assert!(banded && measured, "{}: {} has no interval", experiment.name, claim.id);
            }
            assert!(!experiment.title().is_empty(), "{} has no title", experiment.name);
            crate::start::scenario(&experiment).unwrap();
        }
    }

    /// Kept results whose commit nobody recorded; their page says so. There will be no more of them.
    const UNRECORDED: [&str; 2] = ["dual-admission/fig6-lab", "dual-admission/table1-lab"];

    #[test]
    fn kept_results_name_the_program_that_measured_them() {
        let reports = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reports"));
        let mut kept = 0;
        for page in folders(reports) {
            for dir in folders(&page).filter(|dir| dir.join("run.json").exists()) {
                let text = fs::read_to_string(dir.join("run.json")).unwrap();
                let run: Run = serde_json::from_str(&text).unwrap();
                let unrecorded = UNRECORDED.iter().any(|name| dir.ends_with(name));
                assert_eq!(!run.program.contains('('), unrecorded, "{}: no commit", dir.display());
                kept += 1;
            }
        }
        assert!(kept > UNRECORDED.len(), "none were found");
    }

    fn folders(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    }
}
