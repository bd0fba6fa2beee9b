// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of the experiments on SYNs in virtual time.

use super::derive::Derive;
use super::setting::Setting;
use crate::setting::{Changes, merged};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Points, variants and runs of one experiment, at most.
const EACH_MAX: usize = 1000;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `syn`.
    pub kind: String,
    /// What is varied.
    pub x: Axis,
    /// Changes to the defaults, for all.
    #[serde(default)]
    pub base: Changes,
    /// What is compared, in the order of the legend.
    pub variants: Vec<Variant>,
    /// Runs a point.
    #[serde(default)]
    pub runs: Runs,
    /// What is computed from the metrics, run by run.
    #[serde(default)]
    pub derive: Vec<Derive>,
    /// The course of single runs instead of, or beside, points.
    #[serde(default)]
    pub course: Option<Course>,
    /// Figures.
    #[serde(default)]
    pub figures: Vec<FigureSpec>,
}

/// The x axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// x_name of the rows.
    pub name: String,
    /// Keys of the setting, each with what it is set to.
    pub sets: BTreeMap<String, Line>,
    /// Its values.
    pub at: Vec<f64>,
}

/// A straight line in x; a single number is the factor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// times · x.
    Times(f64),
    /// times · x + plus.
    Affine {
        /// The factor.
        times: f64,
        /// What is added.
        plus: f64,
    },
}

impl Line {
    fn at(self, x: f64) -> f64 {
        match self {
            Self::Times(times) => times * x,
            Self::Affine { times, plus } => times * x + plus,
        }
    }
}

/// One thing to compare.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name in the rows.
    pub name: String,
    /// Changes to the base.
    pub set: Changes,
}

/// Runs a point.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// In a full run: 30, as in the paper.
    pub full: u32,
    /// In a quick one.
    pub quick: u32,
}

impl Default for Runs {
    fn default() -> Self {
        Self { full: 30, quick: 5 }
    }
}

/// SYNs over time.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Course {
    /// Width of a bin in seconds.
    pub bin_s: f64,
    /// Bins up to here.
    pub until_s: f64,
    /// Whether x is part of the variants' names: `tbf-51`.
    #[serde(default)]
    pub by_x: bool,
}

/// A figure that can be laid beside the paper's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureSpec {
    /// Name of the file without `.svg`.
    pub file: String,
    /// Title above all.
    pub title: String,
    /// Label of the x axis.
    pub x_label: String,
    /// Whether x is logarithmic.
    #[serde(default)]
    pub x_log: bool,
    /// x_name of the rows shown; absent: the axis of the experiment.
    #[serde(default)]
    pub x_name: Option<String>,
    /// Variants shown, in this order; empty: all.
    #[serde(default)]
    pub variants: Vec<String>,
    /// One panel a metric, from left to right; or one a variant where `each` says so.
    pub panels: Vec<PanelSpec>,
    /// Every variant has a panel of its own, one above the other.
    #[serde(default)]
    pub each: bool,
}

/// One panel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PanelSpec {
    /// Metric.
    pub metric: String,
    /// Label of the y axis.
    pub label: String,
    /// The values are multiplied with this (100 for per cent).
    #[serde(default = "one")]
    pub times: f64,
    /// Range of y.
    #[serde(default)]
    pub range: Option<(f64, f64)>,
    /// Variants shown in this panel; empty: those of the figure.
    #[serde(default)]
    pub variants: Vec<String>,
}

const fn one() -> f64 {
    1.0
}

impl Scenario {
    /// The setting of a variant at a point. Where both name a key, the variant's value counts.
    ///
    /// # Errors
    /// For keys that there are not and values that do not fit.
    pub fn setting(&self, variant: &Variant, x: f64) -> Result<Setting> {
        let mut point = Changes::new();
        for (key, line) in &self.x.sets {
            point.insert(key.clone(), number(line.at(x)).context("x is not finite")?);
        }
        merged(&[&self.base, &point, &variant.set])
            .with_context(|| format!("variant {} at {}", variant.name, x))
    }

    /// Whether every point of every variant is a valid setting.
    ///
    /// # Errors
    /// For the first that is not, and for sizes beyond the bounds.
    pub fn check(&self) -> Result<()> {
        let Runs { full, quick } = self.runs;
        ensure!(quick >= 1 && full >= quick, "runs: quick at least 1, full at least as many");
        let sizes = [self.x.at.len(), self.variants.len(), full as usize];
        ensure!(sizes.iter().all(|n| (1..=EACH_MAX).contains(n)), "1 to {EACH_MAX} of each");
        for variant in &self.variants {
            for x in &self.x.at {
                self.setting(variant, *x)?;
            }
        }
        for derive in &self.derive {
            derive.check(self)?;
        }
        Ok(())
    }
}

/// Whole numbers as such: keys that count take no fractions.
fn number(value: f64) -> Option<Value> {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return Some(Value::from(value as i64));
    }
    serde_json::Number::from_f64(value).map(Value::Number)
}
