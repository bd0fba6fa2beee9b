// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of a traffic experiment.

use super::cell::{Cell, all, concurrent};
use super::cover::{Choice, subset, whole};
use super::stage::Lengths;
use anyhow::{Result, bail, ensure};
use serde::Deserialize;

/// The whole file. Times in seconds, loads as multiples of the measured capacity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `traffic`.
    pub kind: String,
    /// CPU time of a request in milliseconds.
    pub busy_ms: f64,
    /// The load below capacity that every cell is run at.
    pub calm: f64,
    /// The loads of which each chosen point has one.
    pub loads: Vec<f64>,
    /// The load of the cells with several requests at once, with which the subset begins.
    pub concurrent_load: f64,
    /// Largest drift of the capacity from before to after the runs of a point.
    pub drift_max: f64,
    /// The full run, by default of a covering subset.
    pub full: Extent,
    /// The quick run.
    pub quick: Extent,
}

/// How much of it is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Cells by name instead of the subset, each at the load after it; empty for the subset.
    #[serde(default)]
    pub points: Vec<(String, f64)>,
    /// Load before and after.
    pub around: f64,
    /// How long the load before lasts.
    pub before_s: f64,
    /// How long the load below capacity.
    pub calm_s: f64,
    /// The same with one request a connection: what is counted are connections.
    pub calm_single_s: f64,
    /// How long a load.
    pub load_s: f64,
    /// How long the load after it.
    pub after_s: f64,
    /// Rounds of cells with more requests a connection than SYN policing is claimed for.
    pub rounds: u32,
    /// Runs are kept also when the machine drifted.
    #[serde(default)]
    pub keep_void: bool,
}

/// The arms of a run at a load, and how often.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) load: f64,
    pub(super) arms: &'static [&'static str],
    pub(super) rounds: u32,
}

/// All arms.
const ARMS: [&str; 3] = ["none", "drop", "reject"];

impl Scenario {
    /// The points to run: the extent's own, the subset, or all; `filter` is a cell's name with `*`
    /// for anything.
    ///
    /// # Errors
    /// When a name is of no cell, or nothing is left.
    pub fn choices(
        &self,
        extent: &Extent,
        every: bool,
        filter: Option<&str>,
    ) -> Result<Vec<Choice>> {
        let several = |load: f64| concurrent().into_iter().map(move |cell| Choice { cell, load });
        let chosen: Vec<Choice> = match (every || filter.is_some(), extent.points.is_empty()) {
            (true, _) => {
                let more = self.loads.iter().copied().flat_map(several);
                whole(&self.loads).into_iter().chain(more).collect()
            }
            (false, true) => {
                subset(&self.loads, &several(self.concurrent_load).collect::<Vec<_>>())
            }
            (false, false) => extent.points.iter().map(named).collect::<Result<_>>()?,
        };
        let fits = |c: &Choice| filter.is_none_or(|f| crate::judge::fits(f, &c.cell.name()));
        let chosen: Vec<Choice> = chosen.into_iter().filter(fits).collect();
        ensure!(!chosen.is_empty(), "no cell is named {:?}", filter.unwrap_or_default());
        Ok(chosen)
    }
}

fn named((name, load): &(String, f64)) -> Result<Choice> {
    match all().into_iter().chain(concurrent()).find(|cell| cell.name() == *name) {
        Some(cell) => Ok(Choice { cell, load: *load }),
        None => bail!("there is no cell {name:?}"),
    }
}

impl Extent {
    /// What is run of a cell: below capacity once, then at its loads. Where SYN policing is claimed
    /// to be enough, goodput is compared with C and the unprotected server says only what is normal
    /// below capacity; elsewhere it runs beside, in rounds.
    pub(super) fn steps(&self, cell: &Cell, (calm, loads): (f64, &[f64])) -> Vec<Step> {
        let mut steps = vec![Step { load: calm, arms: &ARMS, rounds: 1 }];
        let short = cell.is_short();
        let arms = if short { &ARMS[1..] } else { &ARMS[..] };
        let rounds = if short { 1 } else { self.rounds.max(1) };
        steps.extend(loads.iter().map(|load| Step { load: *load, arms, rounds }));
        steps
    }

    pub(super) fn lengths(&self, cell: &Cell, calm: bool) -> Lengths {
        let load_s = match (calm, cell.requests) {
            (true, 1) => self.calm_single_s,
            (true, _) => self.calm_s,
            (false, _) => self.load_s,
        };
        let around = self.around;
        let (before_s, after_s) = (self.before_s, self.after_s);
        Lengths { before: around, before_s, load_s, after: around, after_s }
    }

    /// Seconds that the loads of a cell take on a steady machine, without starts and measurements
    /// of the capacity.
    #[cfg(test)]
    fn seconds(&self, cell: &Cell, plan: (f64, &[f64])) -> (f64, u32) {
        let mut runs = 0;
        let mut seconds = 0.0;
        for step in self.steps(cell, plan) {
            let lengths = self.lengths(cell, step.load < 1.0);
            let run = lengths.before_s + 2.0 * cell.ramp_s() + lengths.load_s + lengths.after_s;
            runs += step.arms.len() as u32 * step.rounds;
            seconds += run * step.arms.len() as f64 * f64::from(step.rounds);
        }
        (seconds, runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    /// Seconds of a run beyond its load: starting server and product, the generator's lead.
    const START_S: f64 = 2.5;
    /// The search for the clients of a cell's closed loop, without think time.
    const SEARCH_S: f64 = 20.0;
    /// A measurement of the capacity after the runs of a load.
    const CAPACITY_S: f64 = 9.0;

    fn scenario() -> Scenario {
        let experiment = catalog::find("product/traffic").unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    fn minutes(scenario: &Scenario, extent: &Extent) -> f64 {
        let mut total = 0.0;
        for choice in scenario.choices(extent, false, None).unwrap() {
            let plan = (scenario.calm, [choice.load]);
            let (seconds, runs) = extent.seconds(&choice.cell, (plan.0, &plan.1));
            let steps = extent.steps(&choice.cell, (plan.0, &plan.1));
            let measured: u32 = steps.iter().map(|step| step.rounds).sum();
            total += seconds + START_S * f64::from(runs);
            total += SEARCH_S + CAPACITY_S * f64::from(measured);
        }
        total / 60.0
    }

    /// The default takes at most 75 minutes, the quick one at most 5.
    #[test]
    fn the_subset_fits_in_its_time() {
        let scenario = scenario();
        let (full, quick) =
            (minutes(&scenario, &scenario.full), minutes(&scenario, &scenario.quick));
        println!("{full} minutes, quick {quick}");
        assert!(full > 30.0 && full <= 75.0, "{full} minutes");
        assert!(quick <= 5.0, "{quick} minutes");
    }

    #[test]
    fn choices_are_the_subset_all_or_what_fits() {
        let scenario = scenario();
        let of = |every, filter| scenario.choices(&scenario.full, every, filter);
        assert_eq!(of(true, None).unwrap().len(), 220 + 4);
        assert_eq!(of(false, Some("event-h2-20x0s10")).unwrap().len(), 4);
        let several = of(false, None).unwrap().iter().filter(|c| c.cell.streams > 1).count();
        assert_eq!(several, 1, "one covers them");
        assert_eq!(of(false, Some("node-tls-5x0")).unwrap().len(), 4);
        assert!(of(false, Some("node-tls-7x0")).is_err());
        assert!(of(false, None).unwrap().len() < 25);
    }

    /// The unprotected server runs under overload only where it is what we are compared with.
    #[test]
    fn long_sessions_are_compared_in_rounds() {
        let extent = scenario().full;
        let cell = |requests| Cell { requests, think: 0.0, ..all()[0] };
        let steps = |requests| extent.steps(&cell(requests), (0.9, &[3.0]));
        assert_eq!(steps(5)[1], Step { load: 3.0, arms: &["drop", "reject"], rounds: 1 });
        assert_eq!(steps(20)[1], Step { load: 3.0, arms: &["none", "drop", "reject"], rounds: 3 });
        assert_eq!(steps(20)[0].arms.len(), 3);
    }
}
