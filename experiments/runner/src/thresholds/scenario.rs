// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of the experiments on thresholds.

use super::lab::{Lab, LabVariant};
use super::setting::Setting;
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
    /// Always `thresholds`.
    pub kind: String,
    /// What is varied.
    pub x: Axis,
    /// Changes to the defaults, for all.
    #[serde(default)]
    pub base: Changes,
    /// What is compared, in the order of the legend.
    pub variants: Vec<Variant>,
    /// Runs a point in a full run.
    pub runs: u32,
    /// In a quick one.
    pub quick_runs: u32,
    /// Seconds that are measured in a quick run.
    pub quick_seconds: f64,
    /// Whether the distribution of response times is kept.
    #[serde(default)]
    pub within: Option<Course>,
    /// On a real server.
    #[serde(default)]
    pub lab: Option<Lab>,
    /// Figures.
    #[serde(default)]
    pub figures: Vec<FigureSpec>,
}

/// Response times at which the distribution is read, in seconds (x_name `within_s`).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Course {
    /// The last one.
    pub to_s: f64,
    /// Distance of two; the first is one step.
    pub step_s: f64,
}

impl Course {
    /// All of them.
    #[must_use]
    pub fn points(self) -> Vec<f64> {
        let steps = (self.to_s / self.step_s).round().clamp(1.0, EACH_MAX as f64) as u32;
        (1..=steps).map(|step| self.step_s * f64::from(step)).collect()
    }
}

impl Scenario {
    /// The setting of a variant at a point. Where both name a key, the variant's value counts.
    ///
    /// # Errors
    /// For keys that there are not and values that do not fit.
    pub fn setting(&self, variant: &Variant, x: f64) -> Result<Setting> {
        merged(&[&self.base, &self.x.changes(x)?, &variant.set])
            .with_context(|| format!("variant {} at {}", variant.name, x))
    }

    /// The same of a variant of the lab.
    ///
    /// # Errors
    /// As [`Scenario::setting`].
    pub fn lab_setting(&self, variant: &LabVariant, x: f64) -> Result<Setting> {
        merged(&[&self.base, &self.x.changes(x)?, &variant.set])
            .with_context(|| format!("the lab's variant {} at {}", variant.name, x))
    }

    /// Where it runs; the first is where it runs if nobody says where.
    #[must_use]
    pub const fn worlds(&self) -> &'static [&'static str] {
        if self.lab.is_some() { &["sim", "lab"] } else { &["sim"] }
    }

    /// The values of x.
    #[must_use]
    pub fn points(&self, quick: bool) -> &[f64] {
        self.x.points(quick)
    }

    /// Whether every point of every variant is a valid setting.
    ///
    /// # Errors
    /// For the first that is not, and for sizes beyond the bounds.
    pub fn check(&self) -> Result<()> {
        let sizes = [self.x.at.len(), self.variants.len(), self.runs as usize];
        ensure!(sizes.iter().all(|n| (1..=EACH_MAX).contains(n)), "1 to {EACH_MAX} of each");
        ensure!((1..=self.runs).contains(&self.quick_runs), "quick_runs: 1 to runs");
        let seconds = self.quick_seconds;
        ensure!((1.0..=1e5).contains(&seconds), "quick_seconds: 1 to 100,000");
        if let Some(within) = self.within {
            let steps = within.to_s / within.step_s;
            ensure!((1.0..=EACH_MAX as f64).contains(&steps), "within: 1 to {EACH_MAX} steps");
        }
        let all: Vec<f64> = self.x.at.iter().chain(&self.x.quick).copied().collect();
        for (variant, x) in self.variants.iter().flat_map(|v| all.iter().map(move |x| (v, *x))) {
            self.setting(variant, x)?
                .check()
                .with_context(|| format!("variant {} at {x}", variant.name))?;
        }
        self.lab.as_ref().map_or(Ok(()), |lab| self.check_lab(lab))
    }

    fn check_lab(&self, lab: &Lab) -> Result<()> {
        lab.check()?;
        let all: Vec<f64> =
            [false, true].iter().flat_map(|q| lab.points(&self.x.at, *q)).copied().collect();
        for (variant, x) in lab.variants.iter().flat_map(|v| all.iter().map(move |x| (v, *x))) {
            let setting = self.lab_setting(variant, x)?;
            let checked = setting.check().and_then(|()| variant.check(&setting));
            checked.with_context(|| format!("the lab's variant {} at {x}", variant.name))?;
        }
        Ok(())
    }
}
