// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worlds in which a controller must do no harm, and those in which it must come back, in virtual
//! time.

use crate::results::Row;
use crate::survival::{Outcome, Watch};
use anyhow::{Result, anyhow, ensure};
use serde::Deserialize;
use tidegate_sim::Action;
use tidegate_sim::syn::parallel;
use tidegate_sim::traffic::worlds::{Asks, Row as World, table};
use tidegate_sim::traffic::{Course, run as play};

/// The unprotected server, and what is done with the refused.
const ARMS: [Option<Action>; 3] = [None, Some(Action::Drop), Some(Action::Reject)];

/// scenario.yaml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `worlds`.
    pub kind: String,
    /// Rounds, each with a seed of its own.
    pub full: Extent,
    /// See `full`.
    pub quick: Extent,
}

/// How much is run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Rounds.
    pub rounds: u32,
}

/// Runs the worlds whose name fits, on as many threads as there are processors; the result does not
/// depend on them.
///
/// # Errors
/// When no world has the name, or what the simulator's checkers found.
pub fn run(
    scenario: &Scenario,
    experiment: &str,
    (quick, seed, filter): (bool, u64, Option<&str>),
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let extent = if quick { scenario.quick } else { scenario.full };
    let wanted = |world: &World| filter.is_none_or(|f| crate::judge::fits(f, world.name));
    let worlds: Vec<World> = table().into_iter().filter(wanted).collect();
    ensure!(!worlds.is_empty(), "no world is named {:?}", filter.unwrap_or_default());
    let mut jobs = Vec::new();
    for world in &worlds {
        for round in 0..extent.rounds.max(1) {
            jobs.extend(ARMS.map(|arm| (world, seed + u64::from(round), arm)));
        }
    }
    watch.step(&format!("{} runs in virtual time", jobs.len()));
    let one = |(world, seed, arm): &(&World, u64, Option<Action>)| {
        let courses = play(world.world(*arm, *seed)).map_err(|e| format!("{}: {e}", world.name))?;
        Ok(courses.into_iter().next().unwrap_or_default())
    };
    let done = parallel::map(&jobs, 0, one, |_| {}).map_err(|error| anyhow!("{error}"))?;
    let courses = done.into_iter().collect::<Result<Vec<Course>, String>>();
    let courses = courses.map_err(|found| anyhow!("{found}"))?;
    let mut outcome = Outcome::default();
    let rounds = extent.rounds.max(1) as usize;
    for (world, runs) in worlds.iter().zip(courses.chunks(rounds * ARMS.len())) {
        let arm = |of: usize| runs.iter().skip(of).step_by(ARMS.len()).collect::<Vec<_>>();
        for (index, name) in [(1, "drop"), (2, "reject")] {
            for measured in metrics(world, &arm(index), &arm(0)) {
                let variant = format!("{}-{name}", world.name);
                let row = Row::simulated(experiment, variant, ("world", 1.0), measured);
                outcome.rows.push(Row { runs: rounds as u32, ..row });
            }
        }
    }
    Ok(outcome)
}

/// Of the honest clients of all rounds: metric, unit, value.
fn metrics(
    world: &World,
    own: &[&Course],
    bare: &[&Course],
) -> Vec<(&'static str, &'static str, f64)> {
    let phases = |courses: &[&Course], of: &dyn Fn(&Course) -> f64| {
        courses.iter().map(|course| of(course)).sum::<f64>()
    };
    let good = |courses: &[&Course]| {
        phases(courses, &|c| c.report.phases.iter().map(|p| p.good as f64).sum())
    };
    let began = phases(own, &|c| c.report.phases.iter().map(|p| p.began as f64).sum()).max(1.0);
    let refused = phases(own, &|c| c.report.phases.iter().map(|p| p.refused as f64).sum());
    let falsely = own.iter().zip(bare).map(|(own, bare)| {
        own.report.refused_falsely(&bare.report).into_iter().sum::<u64>() as f64
    });
    let falsely: f64 = falsely.sum();
    let mut all = vec![
        ("refused", "share", refused / began),
        ("refused_falsely", "share", falsely / began),
        ("beside_none", "ratio", good(own) / good(bare)),
    ];
    if let Asks::Good(asked) = world.asks {
        let share = |(phase, multiple): &(usize, f64)| {
            let goodput = phases(own, &|c| c.report.phases[*phase].goodput()) / own.len() as f64;
            goodput / (multiple * world.capacity)
        };
        let least = asked.iter().map(share).fold(f64::INFINITY, f64::min);
        all.push(("goodput_share", "ratio", least));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalog, judge};

    struct Silent;

    impl Watch for Silent {
        fn step(&mut self, _: &str) {}
        fn second(&mut self, _: &tidegate_lab::Progress) {}
    }

    /// Every world is named by the claim about what it asks.
    #[test]
    fn each_world_is_judged_by_what_it_asks() {
        let experiment = catalog::find("product/worlds").unwrap();
        let expect: judge::Expect = serde_saphyr::from_str(experiment.expect).unwrap();
        for world in table() {
            let asked = match world.asks {
                Asks::NoHarm => &["refused_falsely", "beside_none"][..],
                Asks::AsGood => &["beside_none"],
                Asks::Good(_) => &["goodput_share"],
            };
            for (metric, arm) in asked.iter().flat_map(|m| ["drop", "reject"].map(|arm| (m, arm))) {
                let name = format!("{}-{arm}", world.name);
                let judges = |claim: &judge::Claim| {
                    let bands = claim.at_least.is_some() || claim.at_most.is_some();
                    let named = claim.of.variants.iter().any(|v| judge::fits(v, &name));
                    bands && named && claim.of.metric == **metric
                };
                assert!(expect.claims.iter().any(judges), "{name}: {metric}");
            }
        }
    }

    #[test]
    fn a_world_gives_what_the_claims_read() {
        let experiment = catalog::find("product/worlds").unwrap();
        let scenario: Scenario = serde_saphyr::from_str(experiment.scenario).unwrap();
        let one = |name| run(&scenario, experiment.name, (true, 3, Some(name)), &mut Silent);
        let rows = one("stop-node").unwrap().rows;
        let value = |variant: &str, metric: &str| {
            let is = |r: &&Row| r.variant == variant && r.metric == metric;
            rows.iter().find(is).map(|row| row.value)
        };
        let share = value("stop-node-reject", "goodput_share").unwrap();
        assert!((0.5..1.1).contains(&share), "{share} of the capacity");
        assert!(value("stop-node-drop", "beside_none").unwrap() > 2.0, "none is lost");
        let [all, falsely] =
            ["refused", "refused_falsely"].map(|m| value("stop-node-reject", m).unwrap());
        assert!(all > 0.3 && falsely < 0.1 * all, "{all}, {falsely}");
        assert!(one("stop-nothing").is_err());
    }
}
