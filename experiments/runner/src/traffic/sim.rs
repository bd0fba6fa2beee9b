// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same claims in virtual time: every cell, the three arms with the same seed.

use super::cell::{Cell, all};
use super::run::Part;
use super::scenario::Scenario;
use super::summary::{self, Ran};
use crate::results::Row;
use crate::survival::{Outcome, Watch};
use anyhow::{Result, anyhow, ensure};
use tidegate_sim::Action;
use tidegate_sim::syn::parallel;
use tidegate_sim::traffic::matrix::{self, At, CALM, Compared, Effort, LOADS, NATURAL};

/// The actions, in the order of the rows.
const ACTIONS: [Action; 2] = [Action::Drop, Action::Reject];

/// Runs the cells on as many threads as there are processors; the result does not depend on them.
///
/// # Errors
/// When no cell has the name, or what the simulator's checkers found.
pub fn run(
    scenario: &Scenario,
    part: &Part,
    (experiment, seed): (&str, u64),
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let same = |a: f64, b: &f64| a.total_cmp(b).is_eq();
    let loads = scenario.loads.iter().zip(&LOADS).all(|(a, b)| same(*a, b));
    ensure!(
        loads && scenario.loads.len() == LOADS.len() && same(scenario.calm, &CALM),
        "the simulator has the loads {LOADS:?} above {CALM}"
    );
    let effort = Effort { seed, ..if part.quick { Effort::QUICK } else { Effort::FULL } };
    let extent = if part.quick { &scenario.quick } else { &scenario.full };
    let mut jobs = Vec::new();
    for sim in matrix::cells(NATURAL) {
        let cell = named(&sim.name)?;
        let wanted = part.filter.as_deref().is_none_or(|f| crate::judge::fits(f, &sim.name));
        let rounds = if cell.is_short() { 1 } else { extent.rounds.max(1) };
        jobs.extend((0..if wanted { rounds } else { 0 }).map(|round| (cell, sim.clone(), round)));
    }
    ensure!(!jobs.is_empty(), "no cell is named {:?}", part.filter.as_deref().unwrap_or_default());
    watch.step(&format!("{} rounds of cells in virtual time", jobs.len()));
    let one = |(_, sim, round): &(Cell, matrix::Cell, u32)| {
        let effort = Effort { seed: effort.seed + u64::from(*round), ..effort };
        matrix::compare(sim, &ACTIONS, &effort)
    };
    let done = parallel::map(&jobs, 0, one, |_| {}).map_err(|error| anyhow!("{error}"))?;
    let mut runs = Vec::new();
    for ((cell, _, round), compared) in jobs.iter().zip(done) {
        let compared = compared.map_err(|found| anyhow!("{found}"))?;
        runs.extend(ran(experiment, (cell, *round), &compared));
    }
    Ok(Outcome { rows: summary::rows(&runs), ..Outcome::default() })
}

/// The cell of the lab that has the name of one of the simulator.
fn named(name: &str) -> Result<Cell> {
    let cell = all().into_iter().find(|cell| cell.name() == name);
    cell.ok_or_else(|| anyhow!("the simulator's cell {name:?} is none of the experiment's"))
}

/// All runs of one round of a cell.
fn ran(experiment: &str, (cell, round): (&Cell, u32), compared: &Compared) -> Vec<Ran> {
    let drop = |action: &Action| if *action == Action::Drop { "drop" } else { "reject" };
    let arms = compared.actions.iter().map(|(action, outcome)| (drop(action), outcome));
    let mut runs = Vec::new();
    for (arm, outcome) in std::iter::once(("none", &compared.none)).chain(arms) {
        let run = |load: f64, connections: (u64, u64), metrics: Vec<Metric>| Ran {
            cell: *cell,
            arm: arm.to_owned(),
            load,
            round,
            rows: metrics.iter().map(|m| row((experiment, cell, arm), load, *m)).collect(),
            connections,
            drift: 0.0,
        };
        let calm = vec![
            ("load", "capacity", "1/s", outcome.capacity),
            ("load", "p99", "s", outcome.p99_calm_s),
            ("load", "refused", "share", outcome.calm.1 as f64 / outcome.calm.0.max(1) as f64),
            ("load", "connections", "connections", outcome.calm.0 as f64),
        ];
        runs.push(run(CALM, outcome.calm, calm));
        for (load, at) in LOADS.iter().zip(&outcome.at) {
            runs.push(run(*load, (0, 0), metrics(at, outcome.capacity)));
        }
    }
    runs
}

/// x_name, metric, unit, value.
type Metric = (&'static str, &'static str, &'static str, f64);

fn metrics(at: &At, capacity: f64) -> Vec<Metric> {
    let mut metrics = vec![
        ("load", "goodput", "1/s", at.goodput * capacity),
        ("load", "capacity", "1/s", capacity),
        ("load", "p99", "s", at.p99_s),
        ("load", "refused", "share", at.refused),
        ("load", "alarms", "alarms", f64::from(at.alarms)),
        ("load", "releases", "releases", f64::from(at.releases)),
        ("load_after", "recovery", "s", at.recovery_s[0].max(at.recovery_s[1])),
        ("load_after", "recovery_p99", "s", at.recovery_s[0]),
    ];
    metrics.extend(at.first_s.map(|s| ("load", "first_refusal", "s", s)));
    metrics
}

fn row(
    (experiment, cell, arm): (&str, &Cell, &str),
    load: f64,
    (x_name, metric, unit, value): Metric,
) -> Row {
    let variant = format!("{}-{arm}", cell.name());
    Row::simulated(experiment, variant, (x_name, load), (metric, unit, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    struct Silent;

    impl Watch for Silent {
        fn step(&mut self, _: &str) {}
        fn second(&mut self, _: &tidegate_lab::Progress) {}
    }

    /// The simulator has the cells of the experiment, neither more nor fewer, by name.
    #[test]
    fn cells_are_those_of_the_lab() {
        let mut ours: Vec<String> =
            matrix::cells(NATURAL).into_iter().map(|cell| cell.name).collect();
        let mut theirs: Vec<String> = all().iter().map(Cell::name).collect();
        ours.sort();
        theirs.sort();
        assert_eq!(ours, theirs);
    }

    /// A cell gives what the claims read: its points, its summary and the pool of refusals.
    #[test]
    fn a_cell_has_all_that_is_judged() {
        let experiment = catalog::find("product/traffic").unwrap();
        let scenario: Scenario = serde_saphyr::from_str(experiment.scenario).unwrap();
        let part = Part { quick: true, filter: Some("nginx-clear-1x0".into()), ..Part::default() };
        let outcome = run(&scenario, &part, (experiment.name, 3), &mut Silent).unwrap();
        let value = |variant: &str, metric: &str, x: f64| {
            let found = outcome
                .rows
                .iter()
                .find(|r| r.variant == variant && r.metric == metric && r.x.total_cmp(&x).is_eq());
            found.map(|row| row.value)
        };
        let share = value("short-nginx-clear-1x0-reject", "goodput_share", 1.0).unwrap();
        let least = [2.0, 3.0, 10.0]
            .map(|load| {
                let of = |metric| value("nginx-clear-1x0-reject", metric, load).unwrap();
                of("goodput") / of("capacity")
            })
            .into_iter()
            .fold(f64::MAX, f64::min);
        assert!((share - least).abs() < 1e-9 && share > 0.5, "{share} of the capacity, {least}");
        let none = value("nginx-clear-1x0-none", "goodput", 10.0).unwrap();
        assert!(none < 0.3 * value("nginx-clear-1x0-none", "capacity", 10.0).unwrap());
        assert!(value("pooled-reject", "connections", 0.9).unwrap() >= 200.0);
        for metric in ["p99_ratio", "recovery", "alarms", "beside_none"] {
            assert!(value("short-nginx-clear-1x0-drop", metric, 1.0).is_some(), "{metric}");
        }
        let missing = Part { filter: Some("nginx-clear-7x0".into()), ..part };
        assert!(run(&scenario, &missing, (experiment.name, 3), &mut Silent).is_err());
    }
}
