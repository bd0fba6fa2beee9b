// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paper's testbed (figure 8) in the lab: a real kernel, real connections, and the product as a process on R0.
//!
//! ```text
//!  clients, four distances ── R1 ══ 2 Mbit/s, 50 packets each way ══ R0, tidegate ──┬── S1: fast
//!  B1 ────────────────────────┘                                                     ├── S2: memory, or CPU
//!                                                                                   └── S3: B1's
//! ```
//!
//! The product has no published mode, so the variants are nothing, a limit by hand, and the product. Clients are today's.

mod load;
mod measure;
mod run;
mod stand;

pub use run::run;

use super::scenario::Scenario;
use super::setting::{Control, Setting};
use crate::setting::{Changes, merged, within};
use crate::testbed;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The `lab` section of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lab {
    /// Changes to the scenario's base: above all when the crowd begins and ends.
    #[serde(default)]
    pub base: Changes,
    /// What is compared.
    pub variants: Vec<LabVariant>,
    /// What differs where rates are tried for a limit by hand, which needs no calm before the crowd.
    #[serde(default)]
    pub trial: Changes,
    /// The variant with which others are paired, round by round.
    pub pairs_over: String,
    /// The full run.
    pub full: Extent,
    /// The quick one.
    pub quick: Extent,
}

/// A variant in the lab.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabVariant {
    /// Its name in the rows.
    pub name: String,
    /// Values of x; empty for all.
    #[serde(default)]
    pub at: Vec<f64>,
    /// Changes to the base.
    pub set: Changes,
}

/// How much is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Values of x.
    pub at: Vec<f64>,
    /// Rounds: each runs every variant at every x once.
    pub rounds: u32,
    /// Minutes after which no other run begins.
    pub minutes: f64,
    /// Variants by name, `*` standing for anything; empty for all.
    #[serde(default)]
    pub variants: Vec<String>,
    /// Rates that are tried for a limit by hand.
    #[serde(default)]
    pub sweep: Vec<f64>,
    /// What differs besides.
    #[serde(default)]
    pub set: Changes,
}

impl LabVariant {
    fn is_at(&self, x: f64) -> bool {
        self.at.is_empty() || self.at.contains(&x)
    }
}

impl Lab {
    /// The full run or the quick one.
    #[must_use]
    pub const fn extent(&self, quick: bool) -> &Extent {
        if quick { &self.quick } else { &self.full }
    }

    /// Names of the variants.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.variants.iter().map(|variant| variant.name.as_str()).collect()
    }

    /// The setting of a variant at a point. What is named later counts: base, x, base of the lab, variant, extent.
    ///
    /// # Errors
    /// For keys that there are not and values that do not fit.
    pub fn setting(
        &self,
        scenario: &Scenario,
        (variant, x): (&LabVariant, f64),
        quick: bool,
    ) -> Result<Setting> {
        let (x, extent) = (scenario.x.changes(x)?, self.extent(quick));
        merged(&[&scenario.base, &x, &self.base, &variant.set, &extent.set])
            .with_context(|| format!("the lab's variant {}", variant.name))
    }

    /// The same where a rate is tried.
    ///
    /// # Errors
    /// As [`Lab::setting`].
    pub fn trial(
        &self,
        scenario: &Scenario,
        (variant, x): (&LabVariant, f64),
        quick: bool,
    ) -> Result<Setting> {
        let (x, extent) = (scenario.x.changes(x)?, self.extent(quick));
        merged(&[&scenario.base, &x, &self.base, &variant.set, &extent.set, &self.trial])
            .with_context(|| format!("the lab's trial of {}", variant.name))
    }

    /// Whether the section can be run.
    ///
    /// # Errors
    /// Names what contradicts itself, and what the lab has not.
    pub fn check(&self, scenario: &Scenario) -> Result<()> {
        let names = self.names();
        ensure!(names.contains(&self.pairs_over.as_str()), "lab.pairs_over: no such variant");
        for quick in [false, true] {
            let extent = self.extent(quick);
            within("lab: rounds", f64::from(extent.rounds), (1.0, 100.0))?;
            within("lab: minutes", extent.minutes, (1.0, 600.0))?;
            testbed::all_known(&extent.variants, &names).context("lab")?;
            ensure!(!extent.at.is_empty(), "lab: no values of x");
            let all = self.variants.iter().flat_map(|v| extent.at.iter().map(move |x| (v, *x)));
            for (variant, x) in all {
                let setting = self.setting(scenario, (variant, x), quick)?;
                let what = || format!("the lab's variant {} at {x}", variant.name);
                setting.check().and_then(|()| runs(&setting)).with_context(what)?;
                let tried = setting.control == Control::Static && setting.rate <= 0.0;
                let used = testbed::listed(&extent.variants, &variant.name);
                ensure!(!tried || !used || !extent.sweep.is_empty(), "{}: no rates to try", what());
                self.trial(scenario, (variant, x), quick)?.check().with_context(what)?;
            }
        }
        Ok(())
    }
}

/// Whether the lab has what a setting wants.
fn runs(setting: &Setting) -> Result<()> {
    let has = matches!(setting.control, Control::None | Control::Static | Control::NewsFast);
    ensure!(has, "the product has no published mode");
    ensure!(setting.from_s > 0.0 && setting.to_s > setting.from_s, "from_s and to_s are wanted");
    within("compress", setting.compress, (1.0, 4.0))
}

#[cfg(test)]
mod tests {
    use super::super::setting::{Bystanders, Server};
    use super::*;
    use crate::judge::{Claim, Expect};
    use crate::start;

    fn scenario(name: &str) -> Scenario {
        serde_saphyr::from_str(crate::catalog::find(name).unwrap().scenario).unwrap()
    }

    /// The crowd of the paper comes at most four times as fast as there.
    #[test]
    fn the_lab_has_the_crowd_of_the_paper() {
        for name in ["news/network-limited", "news/server-limited", "news/bystander"] {
            let scenario = scenario(name);
            scenario.check().unwrap();
            let lab = scenario.lab.clone().unwrap();
            for (variant, quick) in lab.variants.iter().flat_map(|v| [(v, false), (v, true)]) {
                for x in &lab.extent(quick).at {
                    let setting = lab.setting(&scenario, (variant, *x), quick).unwrap();
                    assert!(setting.ramp_s >= 30.0, "{name} {}", variant.name);
                    assert_eq!((setting.calm, setting.link_mbit.min(2.0)), (22.0, 2.0));
                    let whole = setting.from_s >= setting.at_s + setting.ramp_s;
                    assert!(whole || setting.bystanders != Bystanders::None);
                }
            }
        }
        let servers = scenario("news/server-limited");
        let lab = servers.lab.clone().unwrap();
        let of = |name: &str| {
            let variant = lab.variants.iter().find(|variant| variant.name == name).unwrap();
            lab.setting(&servers, (variant, 2.0), false).unwrap().server
        };
        assert_eq!([of("news-fast"), of("cpu-news-fast")], [Server::Memory, Server::Cpu]);
    }

    /// A claim about a variant or a point that the lab has not would be missing only in a full run.
    #[test]
    fn claims_are_about_what_the_lab_runs() {
        for experiment in crate::catalog::all() {
            let Ok(start::Scenario::News(scenario)) = start::scenario(&experiment) else {
                continue;
            };
            let Some(lab) = &scenario.lab else { continue };
            let expect: Expect = serde_saphyr::from_str(experiment.expect).unwrap();
            let has = |extent: &Extent, variant: &String, x: f64| {
                let is = |own: &LabVariant| own.name == *variant && own.is_at(x);
                let listed = testbed::listed(&extent.variants, variant);
                extent.at.contains(&x) && listed && lab.variants.iter().any(is)
            };
            let of_lab = |claim: &&Claim| claim.world.as_deref() != Some("sim");
            for claim in expect.claims.iter().filter(of_lab) {
                let of = &claim.of;
                let points = if of.lab.is_empty() { &of.at } else { &of.lab };
                let over = claim.over.iter().flat_map(|over| &over.variants);
                for variant in of.variants.iter().chain(over) {
                    for x in points {
                        let what = format!("{} {}: {variant} at {x}", experiment.name, claim.id);
                        assert!(has(&lab.full, variant, *x), "{what}");
                        assert!(claim.full_only || has(&lab.quick, variant, *x), "{what}, quick");
                    }
                }
            }
        }
    }

    #[test]
    fn what_the_lab_has_not_is_named() {
        type Break = fn(&mut Lab);
        let cases: [(Break, &str); 4] = [
            (|l| drop(l.variants[0].set.insert("control".into(), "news".into())), "published"),
            (|l| l.quick.variants = vec!["nobody".into()], "nobody"),
            (|l| l.pairs_over = "nobody".into(), "pairs_over"),
            (|l| l.full.sweep.clear(), "no rates"),
        ];
        for (change, word) in cases {
            let mut wrong = scenario("news/network-limited");
            change(wrong.lab.as_mut().unwrap());
            let error = format!("{:#}", wrong.check().unwrap_err());
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
