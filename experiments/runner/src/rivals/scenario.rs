// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of the comparison with what an operator could do today.

use crate::survival::ServerSpec;
use anyhow::{Result, ensure};
use serde::Deserialize;

/// The arms that a part of the rivals is compared with.
pub(super) const OURS: [&str; 2] = ["reject", "drop"];
/// The unprotected server.
pub(super) const NONE: &str = "none";

/// The whole file. Times in seconds, loads as multiples of the measured capacity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `rivals`.
    pub kind: String,
    /// Which server.
    pub server: ServerSpec,
    /// What is compared.
    pub arms: Vec<String>,
    /// Load before and after.
    pub around: f64,
    /// Loads that are there at once.
    pub steps: Vec<f64>,
    /// A load that rises.
    pub ramp: Ramp,
    /// Burst of nftables and nginx, as the share of a second's capacity.
    pub burst: f64,
    /// How long requests wait in a rival's own queue where that is not swept, in milliseconds.
    pub queue_ms: f64,
    /// The settings that are tried.
    pub sweep: Sweep,
    /// The full run.
    pub full: Extent,
    /// The quick run.
    pub quick: Extent,
}

/// A load that rises at an even pace.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ramp {
    /// From this load.
    pub from: f64,
    /// To this one.
    pub to: f64,
}

/// What is tried for a rival that takes a number, before anything is compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// At this load.
    pub load: f64,
    /// Rates, as multiples of the capacity.
    pub rates: Vec<f64>,
    /// Requests at the server at a time, as multiples of the clients of the closed loop.
    pub places: Vec<u32>,
    /// HAProxy's queue, in milliseconds: below the objective.
    pub queues_ms: Vec<f64>,
}

/// How much of it is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Arms by name; empty for all.
    #[serde(default)]
    pub arms: Vec<String>,
    /// Steps instead of the scenario's; empty for those.
    #[serde(default)]
    pub steps: Vec<f64>,
    /// Rates, places and queues that are tried at most, from the first.
    pub tried: usize,
    /// Rounds.
    pub rounds: u32,
    /// How long the load before lasts.
    pub before_s: f64,
    /// How long a step.
    pub step_s: f64,
    /// How long the ramp; 0 leaves it out.
    pub ramp_s: f64,
    /// How long the load after it.
    pub after_s: f64,
    /// How long the load of a setting that is tried.
    pub try_s: f64,
}

/// How a load comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// At once.
    Step(f64),
    /// From the first to the second.
    Ramp(f64, f64),
}

impl Shape {
    /// Where it stands in the results.
    #[must_use]
    pub const fn x(self) -> (&'static str, f64) {
        match self {
            Self::Step(load) => ("load", load),
            Self::Ramp(_, to) => ("ramp", to),
        }
    }

    /// The share of its length after which it counts: a ramp from where it passes the capacity, so
    /// that only the overload counts.
    #[must_use]
    pub fn counts_from(self) -> f64 {
        match self {
            Self::Ramp(from, to) if from < 1.0 && to > 1.0 => (1.0 - from) / (to - from),
            _ => 0.0,
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Step(load) => write!(f, "{load} x C"),
            Self::Ramp(from, to) => write!(f, "{from} to {to} x C"),
        }
    }
}

impl Scenario {
    /// Looks for contradictions.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self) -> Result<()> {
        let has = |arm: &str| self.arms.iter().any(|a| a == arm);
        ensure!(has(NONE) && OURS.iter().all(|arm| has(arm)), "none, drop and reject are compared");
        ensure!(self.ramp.from < self.ramp.to, "a ramp rises");
        let Sweep { rates, places, queues_ms, .. } = &self.sweep;
        let some = !rates.is_empty() && !places.is_empty() && !queues_ms.is_empty();
        ensure!(some && !places.contains(&0), "the sweep has rates, places and queues");
        let known = |e: &Extent| e.arms.iter().all(|arm| has(arm));
        ensure!(known(&self.full) && known(&self.quick), "an extent names arms that there are");
        Ok(())
    }

    /// The arms of an extent, or ours with those of a name (`*` for anything).
    ///
    /// # Errors
    /// When no arm has the name.
    pub fn chosen(&self, extent: &Extent, filter: Option<&str>) -> Result<Vec<String>> {
        let named = |arm: &String| match filter {
            Some(filter) => crate::judge::fits(filter, arm),
            None => extent.arms.is_empty() || extent.arms.contains(arm),
        };
        let unknown = filter.unwrap_or_default();
        ensure!(self.arms.iter().any(named), "no arm is named {unknown:?}");
        let always = |arm: &String| arm == NONE || OURS.contains(&arm.as_str());
        Ok(self.arms.iter().filter(|arm| named(arm) || always(arm)).cloned().collect())
    }

    /// The loads of an extent.
    #[must_use]
    pub fn shapes(&self, extent: &Extent) -> Vec<Shape> {
        let steps = if extent.steps.is_empty() { &self.steps } else { &extent.steps };
        let ramp = (extent.ramp_s > 0.0).then_some(Shape::Ramp(self.ramp.from, self.ramp.to));
        steps.iter().map(|load| Shape::Step(*load)).chain(ramp).collect()
    }
}

impl Extent {
    /// How long a load lasts.
    #[must_use]
    pub const fn load_s(&self, shape: Shape) -> f64 {
        match shape {
            Shape::Step(_) => self.step_s,
            Shape::Ramp(..) => self.ramp_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sweep::settings;
    use super::*;
    use crate::catalog;
    use crate::survival::arm::Known;

    /// Seconds of a run beyond its load: starting server and rival, the generator's lead.
    const START_S: f64 = 2.5;
    /// Clients who wait on after it: until their patience ends where a refusal is silence, and for
    /// a moment where it is said.
    const WAITING_S: f64 = 8.0;
    const TOLD_S: f64 = 1.0;
    const SILENT: [&str; 5] = [NONE, "drop", "nft", "backlog", "nginx-req"];
    /// The search for the capacity, and a measurement after it.
    const SEARCH_S: f64 = 25.0;
    const CAPACITY_S: f64 = 9.0;

    fn scenario() -> Scenario {
        let experiment = catalog::find("product/rivals").unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    fn minutes(scenario: &Scenario, extent: &Extent) -> f64 {
        let arms = scenario.chosen(extent, None).unwrap();
        let known = Known { capacity: 100.0, clients: 8 };
        let tail = |arm: &String| if SILENT.contains(&&**arm) { WAITING_S } else { TOLD_S };
        let tries = |arm: &String| {
            let each = extent.before_s + extent.try_s + START_S + tail(arm);
            settings(scenario, extent, arm, known).len() as f64 * each
        };
        let choose = |arm: &&String| settings(scenario, extent, arm, known).len() > 1;
        let sweep: f64 = arms.iter().filter(choose).map(tries).sum();
        let run =
            |shape: &Shape| extent.before_s + extent.load_s(*shape) + extent.after_s + START_S;
        let tails: f64 = arms.iter().map(tail).sum();
        let shapes = scenario.shapes(extent);
        let round: f64 =
            shapes.iter().map(|s| run(s) * arms.len() as f64 + tails + CAPACITY_S).sum();
        (SEARCH_S + sweep + round * f64::from(extent.rounds)) / 60.0
    }

    /// All of it takes at most 75 minutes, the quick run at most 5.
    #[test]
    fn all_of_it_fits_in_its_time() {
        let scenario = scenario();
        scenario.check().unwrap();
        let (full, quick) =
            (minutes(&scenario, &scenario.full), minutes(&scenario, &scenario.quick));
        println!("{full} minutes, quick {quick}");
        assert!(full > 30.0 && full <= 75.0, "{full} minutes");
        assert!(quick <= 5.0, "{quick} minutes");
        assert_eq!(scenario.full.rounds, 3);
    }

    #[test]
    fn a_scenario_that_contradicts_itself_is_named() {
        type Break = fn(&mut Scenario);
        let cases: [(Break, &str); 4] = [
            (|s| s.arms.retain(|arm| arm != "drop"), "drop"),
            (|s| s.ramp.to = 0.1, "ramp"),
            (|s| s.sweep.places = vec![0], "sweep"),
            (|s| s.quick.arms = vec!["squid".into()], "extent"),
        ];
        for (change, word) in cases {
            let mut wrong = scenario();
            change(&mut wrong);
            let message = wrong.check().unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    /// Ours and the unprotected server are always there: what is chosen is compared with them.
    #[test]
    fn what_is_chosen_stands_beside_ours() {
        let scenario = scenario();
        let of = |filter| scenario.chosen(&scenario.full, filter);
        assert_eq!(of(Some("haproxy")).unwrap(), ["none", "drop", "reject", "haproxy"]);
        assert_eq!(of(None).unwrap(), scenario.arms);
        assert!(of(Some("no-such")).is_err());
    }

    /// A ramp counts from where it passes the capacity.
    #[test]
    fn a_ramp_counts_from_the_capacity_on() {
        assert!((Shape::Ramp(0.5, 5.5).counts_from() - 0.1).abs() < 1e-9);
        assert!(Shape::Ramp(1.0, 5.0).counts_from().abs() < 1e-9);
        assert!(Shape::Step(3.0).counts_from().abs() < 1e-9);
    }
}
