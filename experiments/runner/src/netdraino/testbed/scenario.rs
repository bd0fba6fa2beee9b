// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of the experiments on the testbed.

use super::setting::Setting;
use crate::abacus::{FigureSpec, Variant};
use crate::dual::Axis;
use crate::setting::{Changes, merged, within};
use crate::testbed;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Points and variants of one experiment, at most.
const EACH_MAX: usize = 100;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `testbed`.
    pub kind: String,
    /// What is varied.
    pub x: Axis,
    /// Where S0 is quiet, so that no more comes than it takes: one of the values of x, in quick runs as well. None
    /// where that is not compared.
    #[serde(default)]
    pub quiet: Option<f64>,
    /// At which x the course over time is kept (x_name `time_s`).
    pub course: f64,
    /// Changes to the defaults, for all.
    #[serde(default)]
    pub base: Changes,
    /// What is compared, in the order of the legend.
    pub variants: Vec<Variant>,
    /// Over which variant the gain of the others is computed, round by round.
    pub gain_over: String,
    /// The full run.
    pub full: Extent,
    /// The quick run.
    pub quick: Extent,
    /// Figures.
    #[serde(default)]
    pub figures: Vec<FigureSpec>,
}

/// How much is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Rounds: each runs every variant at every x once.
    pub rounds: u32,
    /// Minutes after which no other run begins.
    pub minutes: f64,
    /// Load before the measured part.
    pub warm_s: f64,
    /// The measured part.
    pub seconds: f64,
    /// Variants by name, `*` standing for anything; empty for all.
    #[serde(default)]
    pub variants: Vec<String>,
}

impl Extent {
    fn check(&self, scenario: &Scenario) -> Result<()> {
        within("rounds", f64::from(self.rounds), (1.0, 100.0))?;
        within("minutes", self.minutes, (1.0, 600.0))?;
        within("warm_s", self.warm_s, (1.0, 600.0))?;
        within("seconds", self.seconds, (5.0, 3600.0))?;
        let names: Vec<&str> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
        testbed::all_known(&self.variants, &names)
    }

    /// Whether it has a variant.
    #[must_use]
    pub fn has(&self, variant: &str) -> bool {
        testbed::listed(&self.variants, variant)
    }
}

impl Scenario {
    /// The setting of a variant at a point. Where both name a key, the variant's value counts.
    ///
    /// # Errors
    /// For keys that there are not and values that do not fit.
    pub fn setting(&self, variant: &Variant, x: f64) -> Result<Setting> {
        merged(&[&self.base, &self.x.changes(x)?, &variant.set])
            .with_context(|| format!("{} at {x}", variant.name))
    }

    /// The full run or the quick one.
    #[must_use]
    pub const fn extent(&self, quick: bool) -> &Extent {
        if quick { &self.quick } else { &self.full }
    }

    /// Whether every point of every variant is a valid setting.
    ///
    /// # Errors
    /// For the first that is not, and for what contradicts itself.
    pub fn check(&self) -> Result<()> {
        let sizes = [self.x.at.len(), self.variants.len()];
        ensure!(sizes.iter().all(|n| (1..=EACH_MAX).contains(n)), "1 to {EACH_MAX} of each");
        let named = self.variants.iter().any(|variant| variant.name == self.gain_over);
        ensure!(named, "gain_over: there is no variant {:?}", self.gain_over);
        for quick in [false, true] {
            self.extent(quick).check(self)?;
            let points = self.x.points(quick);
            let quiet = self.quiet.is_none_or(|quiet| points.contains(&quiet));
            ensure!(quiet, "S0 is never quiet, quick: {quick}");
        }
        let first = self.setting(&self.variants[0], self.x.at[0])?;
        for variant in &self.variants {
            for x in self.x.at.iter().chain(&self.x.quick) {
                let setting = self.setting(variant, *x)?;
                let what = || format!("{} at {x}", variant.name);
                setting.check().with_context(what)?;
                let one = setting.links() == first.links();
                ensure!(one, "{}: all runs have the same links", what());
                let quiet = setting.s0_requests <= setting.s0_rate
                    && setting.datagrams() <= setting.s0_datagrams;
                ensure!(quiet || Some(*x) != self.quiet, "{}: S0 is not quiet", what());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::setting::Control;
    use super::*;

    fn scenario(name: &str) -> Scenario {
        serde_saphyr::from_str(crate::catalog::find(name).unwrap().scenario).unwrap()
    }

    /// What the paper prints, and what the task of reproducing it adds.
    #[test]
    fn figure_17_is_the_testbed_of_the_paper() {
        let scenario = scenario("netdraino/fig17");
        scenario.check().unwrap();
        let of = |name: &str, x: f64| {
            let variant = scenario.variants.iter().find(|variant| variant.name == name).unwrap();
            scenario.setting(variant, x).unwrap()
        };
        let setting = of("out-of-band", 400.0);
        let wanted = Setting {
            control: Control::OutOfBand,
            link_mbit: 2.0,
            queue: 50.0,
            access_mbit: 2.0,
            s0_rate: 100.0,
            s0_requests: 400.0,
            s1_requests: 200.0,
            udp_mbit: 0.0,
            ..Setting::default()
        };
        assert_eq!(setting, wanted);
        let quiet = scenario.quiet.unwrap();
        assert_eq!(of("naive", quiet).s0_requests, 0.0);
        assert_eq!(scenario.full.seconds, 60.0);
        assert_eq!(scenario.x.at.iter().filter(|x| **x != quiet).count(), 5);
    }

    #[test]
    fn what_contradicts_itself_is_named() {
        type Break = fn(&mut Scenario);
        let cases: [(Break, &str); 4] = [
            (|s| s.gain_over = "nobody".into(), "gain_over"),
            (|s| s.quiet = Some(7.0), "never quiet"),
            (|s| s.quick.variants = vec!["no-such".into()], "no-such"),
            (|s| drop(s.variants[0].set.insert("queue".into(), 20.into())), "the same links"),
        ];
        for (change, word) in cases {
            let mut wrong = scenario("netdraino/fig17");
            change(&mut wrong);
            let error = format!("{:#}", wrong.check().unwrap_err());
            assert!(error.contains(word), "{word}: {error}");
        }
        let mut loud = scenario("netdraino/fig17");
        loud.base.insert("s0_requests".into(), 500.into());
        loud.check().unwrap();
        loud.x.sets.clear();
        assert!(format!("{:#}", loud.check().unwrap_err()).contains("not quiet"));
    }

    #[test]
    fn a_quick_run_has_fewer_variants() {
        let quick = scenario("netdraino/fig17").quick;
        assert!(quick.has("out-of-band") && quick.has("server-only") && !quick.has("none"));
    }
}
