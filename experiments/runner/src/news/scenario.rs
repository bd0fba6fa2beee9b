// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of the experiments on flash crowds.

use super::lab::Lab;
use super::setting::{Control, Setting};
use crate::abacus::{FigureSpec, Variant};
use crate::dual::Axis;
use crate::setting::{Changes, merged};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Points, variants and runs of one experiment, at most.
const EACH_MAX: usize = 1000;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `news`.
    pub kind: String,
    /// What is varied.
    pub x: Axis,
    /// Changes to the defaults, for all.
    #[serde(default)]
    pub base: Changes,
    /// What is compared, in the order of the legend.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// Rates of a limit by hand of which the best is shown, for variants `static` without a rate.
    #[serde(default)]
    pub sweep: Vec<f64>,
    /// Intervals of published detectors that watch one uncontrolled run, beside ours: then these are
    /// the variants.
    #[serde(default)]
    pub detectors: Vec<f64>,
    /// Whether each such run is made once more with ours in force, to count whom it refuses wrongly.
    #[serde(default)]
    pub enforced: bool,
    /// Runs a point in a full run.
    pub runs: u32,
    /// In a quick one.
    pub quick_runs: u32,
    /// Changes of a quick run.
    #[serde(default)]
    pub quick: Changes,
    /// Whether the course over time is kept.
    #[serde(default)]
    pub course: Option<Course>,
    /// On the paper's testbed.
    #[serde(default)]
    pub lab: Option<Lab>,
    /// Figures.
    #[serde(default)]
    pub figures: Vec<FigureSpec>,
}

/// The course over time (x_name `time_s`) of the first point.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Course {
    /// Distance of two points, seconds.
    pub step_s: usize,
}

impl Scenario {
    /// The setting of a variant at a point. Where both name a key, the variant's value counts.
    ///
    /// # Errors
    /// For keys that there are not and values that do not fit.
    pub fn setting(&self, set: &Changes, x: f64, quick: bool) -> Result<Setting> {
        let none = Changes::new();
        let quick = if quick { &self.quick } else { &none };
        merged(&[&self.base, &self.x.changes(x)?, set, quick]).with_context(|| format!("at {x}"))
    }

    /// Whether every point of every variant is a valid setting.
    ///
    /// # Errors
    /// For the first that is not, and for sizes beyond the bounds.
    pub fn check(&self) -> Result<()> {
        let sizes = [self.x.at.len(), self.runs as usize];
        ensure!(sizes.iter().all(|n| (1..=EACH_MAX).contains(n)), "1 to {EACH_MAX} of each");
        ensure!((1..=self.runs).contains(&self.quick_runs), "quick_runs: 1 to runs");
        ensure!(
            self.variants.is_empty() != self.detectors.is_empty(),
            "either variants or detectors"
        );
        ensure!(!self.enforced || !self.detectors.is_empty(), "enforced: only beside detectors");
        ensure!(self.detectors.iter().all(|s| (0.5..=3600.0).contains(s)), "detectors: seconds");
        ensure!(self.course.is_none_or(|course| course.step_s > 0), "course: a step");
        let none = Changes::new();
        let sets = self.variants.iter().map(|v| &v.set).chain([&none]);
        for (set, quick) in sets.flat_map(|set| [(set, false), (set, true)]) {
            for x in self.x.at.iter().chain(&self.x.quick) {
                let setting = self.setting(set, *x, quick)?;
                setting.check().with_context(|| format!("at {x}"))?;
                let swept = setting.control == Control::Static && setting.rate <= 0.0;
                ensure!(!swept || !self.sweep.is_empty(), "a limit without a rate needs a sweep");
            }
        }
        self.lab.as_ref().map_or(Ok(()), |lab| lab.check(self))
    }

    /// Where it runs; the first is where it runs if nobody says where.
    #[must_use]
    pub const fn worlds(&self) -> &'static [&'static str] {
        if self.lab.is_some() { &["sim", "lab"] } else { &["sim"] }
    }
}
