// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of the experiments on dual admission control. Everything but the two sections
//! `sim` and `lab` holds for both worlds.

use super::setting::Setting;
use crate::abacus::{FigureSpec, Variant};
use crate::setting::{Changes, merged};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Number;
use std::collections::BTreeMap;

/// Points, variants and runs of one experiment, at most.
const EACH_MAX: usize = 1000;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `dual`.
    pub kind: String,
    /// What is varied.
    pub x: Axis,
    /// Changes to the defaults, for all.
    #[serde(default)]
    pub base: Changes,
    /// What is compared, in the order of the legend.
    pub variants: Vec<Variant>,
    /// What is found by a search instead of measured at a point.
    #[serde(default)]
    pub onset: Option<Onset>,
    /// Whether rows over time are kept (x_name `time_s`): one run, tick by tick.
    #[serde(default)]
    pub course: bool,
    /// In virtual time.
    #[serde(default)]
    pub sim: Option<Sim>,
    /// On a real server.
    #[serde(default)]
    pub lab: Option<super::lab::Lab>,
    /// Figures.
    #[serde(default)]
    pub figures: Vec<FigureSpec>,
}

/// The x axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// x_name of the rows: `load`, `dynamic_share`, `large_load`, `time_s` …
    pub name: String,
    /// Keys of the setting, each with the factor of x that it is set to.
    #[serde(default)]
    pub sets: BTreeMap<String, f64>,
    /// Its values.
    pub at: Vec<f64>,
    /// Its values in a quick run; empty: the same.
    #[serde(default)]
    pub quick: Vec<f64>,
}

impl Axis {
    /// What a point sets.
    ///
    /// # Errors
    /// When its value is not finite.
    pub fn changes(&self, x: f64) -> Result<Changes> {
        let number = |factor: &f64| Number::from_f64(factor * x).context("x is not finite");
        self.sets.iter().map(|(key, factor)| Ok((key.clone(), number(factor)?.into()))).collect()
    }

    /// Its values.
    #[must_use]
    pub fn points(&self, quick: bool) -> &[f64] {
        if quick && !self.quick.is_empty() { &self.quick } else { &self.at }
    }
}

/// The search for the smallest load from which on SYN policing refuses.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Onset {
    /// First load that is tried.
    pub from: f64,
    /// Last one.
    pub to: f64,
    /// Distance of two.
    pub step: f64,
    /// More than this share of the requests refused by SYN policing counts as active.
    pub refused_above: f64,
}

/// How much is run in virtual time, and the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sim {
    /// Runs a point in a full run.
    pub runs: u32,
    /// Runs a point in a quick one.
    pub quick_runs: u32,
    /// Values of x of a full run instead of the scenario's; empty for those.
    #[serde(default)]
    pub at: Vec<f64>,
    /// Keys of the server's model that differ from the defaults (crate::dual::model).
    #[serde(default)]
    pub server: Changes,
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

    /// Where it runs; the first is where it runs if nobody says where.
    #[must_use]
    pub fn worlds(&self) -> &'static [&'static str] {
        match (&self.sim, &self.lab) {
            (Some(_), Some(_)) => &["sim", "lab"],
            (Some(_), None) => &["sim"],
            (None, _) => &["lab"],
        }
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
        ensure!(self.sim.is_some() || self.lab.is_some(), "neither sim nor lab: nobody runs it");
        let sizes = [self.x.at.len(), self.variants.len()];
        ensure!(sizes.iter().all(|n| (1..=EACH_MAX).contains(n)), "1 to {EACH_MAX} of each");
        if let Some(Sim { runs, quick_runs, .. }) = self.sim {
            ensure!((1..=EACH_MAX as u32).contains(&runs), "sim.runs: 1 to {EACH_MAX}");
            ensure!((1..=runs).contains(&quick_runs), "sim.quick_runs: 1 to runs");
        }
        if let Some(onset) = &self.onset {
            let steps = (onset.to - onset.from) / onset.step;
            ensure!((1.0..=EACH_MAX as f64).contains(&steps), "onset: 1 to {EACH_MAX} steps");
        }
        if let Some(lab) = &self.lab {
            super::lab::check(&self.of_lab(), lab)?;
        }
        let more = self.sim.iter().flat_map(|sim| &sim.at);
        let all: Vec<f64> = self.x.at.iter().chain(&self.x.quick).chain(more).copied().collect();
        for (variant, x) in self.variants.iter().flat_map(|v| all.iter().map(move |x| (v, *x))) {
            self.setting(variant, x)?.check()?;
            self.of_lab().setting(variant, x)?.check()?;
        }
        Ok(())
    }

    /// As the lab runs it, with the changes that only the lab makes.
    #[must_use]
    pub fn of_lab(&self) -> Self {
        let mut own = self.clone();
        let changes = self.lab.iter().flat_map(|lab| lab.set.clone());
        own.base.extend(changes);
        own
    }
}
