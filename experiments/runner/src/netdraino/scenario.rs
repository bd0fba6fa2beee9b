// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of the experiments on NetDraino.

use super::setting::Setting;
use crate::abacus::{FigureSpec, Variant};
use crate::dual::Axis;
use crate::setting::{Changes, merged};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Points, variants and runs of one experiment, at most.
const EACH_MAX: usize = 1000;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `netdraino`.
    pub kind: String,
    /// What is varied.
    pub x: Axis,
    /// Changes to the defaults, for all.
    #[serde(default)]
    pub base: Changes,
    /// What is compared, in the order of the legend.
    pub variants: Vec<Variant>,
    /// Over which variant the gain of a variant is computed, run by run.
    #[serde(default)]
    pub gains: BTreeMap<String, String>,
    /// Runs a point in a full run.
    pub runs: u32,
    /// In a quick one.
    pub quick_runs: u32,
    /// Changes of a quick run.
    #[serde(default)]
    pub quick: Changes,
    /// Whether the course over time of the first point is kept (x_name `time_s`).
    #[serde(default)]
    pub course: bool,
    /// Figures.
    #[serde(default)]
    pub figures: Vec<FigureSpec>,
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

    /// The place of a variant.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.variants.iter().position(|variant| variant.name == name)
    }

    /// Whether every point of every variant is a valid setting.
    ///
    /// # Errors
    /// For the first that is not, and for sizes beyond the bounds.
    pub fn check(&self) -> Result<()> {
        let sizes = [self.x.at.len(), self.runs as usize, self.variants.len()];
        ensure!(sizes.iter().all(|n| (1..=EACH_MAX).contains(n)), "1 to {EACH_MAX} of each");
        ensure!((1..=self.runs).contains(&self.quick_runs), "quick_runs: 1 to runs");
        for name in self.gains.iter().flat_map(|(own, over)| [own, over]) {
            ensure!(self.place(name).is_some(), "gains: there is no variant {name:?}");
        }
        let sets = self.variants.iter().map(|variant| &variant.set);
        for (set, quick) in sets.flat_map(|set| [(set, false), (set, true)]) {
            for x in self.x.at.iter().chain(&self.x.quick) {
                self.setting(set, *x, quick)?.check().with_context(|| format!("at {x}"))?;
            }
        }
        Ok(())
    }
}
