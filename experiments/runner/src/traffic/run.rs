// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the scenario: cell by cell, each load between two measurements of the cell's capacity.

use super::cell::Cell;
use super::cover::Choice;
use super::scenario::{Extent, Scenario, Step};
use super::stage::{Run, Stage, StageOptions};
use super::summary::{self, Ran};
use crate::schedule::{LIMIT, Schedule};
use crate::survival::{Options, Outcome, Watch};
use anyhow::Result;

/// A load whose machine drifted, or whose generator was late, is run so often.
const TRIES: u32 = 2;
/// What the p99 of a recovery is compared with until `none` has run below capacity, in seconds.
const NORMAL_P99: f64 = 0.25;

/// What is run of all that there is.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Fewer points and shorter ones.
    pub quick: bool,
    /// Every cell at every load.
    pub all: bool,
    /// Cells by name, `*` standing for anything.
    pub filter: Option<String>,
}

struct Traffic<'a> {
    scenario: &'a Scenario,
    extent: &'a Extent,
    stage: Stage<'a>,
    runs: Vec<Ran>,
    notes: Vec<String>,
    /// The steps of all cells.
    schedule: Schedule,
}

/// A cell while its points are run.
struct Now<'a> {
    cell: &'a Cell,
    /// Clients of the closed loop.
    clients: u32,
    /// The capacity measured last, in exchanges per second.
    capacity: f64,
    normal_p99: f64,
}

/// Runs it.
///
/// # Errors
/// When lab, server, product or load fail, or what is done cannot be kept.
pub fn run(
    scenario: &Scenario,
    part: &Part,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let extent = if part.quick { &scenario.quick } else { &scenario.full };
    let choices = scenario.choices(extent, part.all, part.filter.as_deref())?;
    let stage = StageOptions {
        experiment: options.experiment.clone(),
        program: options.program.clone(),
        helper: options.helper.clone(),
        seed: options.seed,
        busy_ms: scenario.busy_ms,
    };
    let stage = Stage::new(stage, watch)?;
    let (runs, notes) = (Vec::new(), Vec::new());
    let cells = by_cell(&choices);
    let steps = |(cell, loads): &(Cell, Vec<f64>)| {
        let steps = extent.steps(cell, (scenario.calm, loads));
        steps.iter().map(|step| step.rounds as usize).sum::<usize>()
    };
    let limit = (!part.all).then_some(LIMIT);
    let schedule = Schedule::begin(limit, cells.iter().map(steps).sum());
    let mut traffic = Traffic { scenario, extent, stage, runs, notes, schedule };
    for (cell, loads) in cells {
        if traffic.schedule.is_over() {
            traffic.notes.push(format!("{}: no time was left", cell.name()));
            continue;
        }
        traffic.cell(&cell, &loads)?;
        let so_far = traffic.outcome();
        traffic.stage.keep(&so_far)?;
    }
    Ok(traffic.outcome())
}

/// Choices with the same cell are its loads.
fn by_cell(choices: &[Choice]) -> Vec<(Cell, Vec<f64>)> {
    let mut cells: Vec<(Cell, Vec<f64>)> = Vec::new();
    for choice in choices {
        match cells.iter_mut().find(|(cell, _)| *cell == choice.cell) {
            Some((_, loads)) => loads.push(choice.load),
            None => cells.push((choice.cell, vec![choice.load])),
        }
    }
    cells
}

impl Traffic<'_> {
    fn outcome(&self) -> Outcome {
        let (rows, notes) = (summary::rows(&self.runs), self.notes.clone());
        Outcome { rows, notes, ..Outcome::default() }
    }

    fn cell(&mut self, cell: &Cell, loads: &[f64]) -> Result<()> {
        let capacity = self.stage.capacity(cell, 0)?;
        let (clients, capacity) = (capacity.clients, capacity.rate.get());
        let mut now = Now { cell, clients, capacity, normal_p99: NORMAL_P99 };
        for step in self.extent.steps(cell, (self.scenario.calm, loads)) {
            for round in 0..step.rounds {
                self.step(&mut now, &step, round)?;
                self.schedule.step();
            }
        }
        Ok(())
    }

    /// All arms at one load, next to each other, between two measurements of the capacity.
    fn step(&mut self, now: &mut Now<'_>, step: &Step, round: u32) -> Result<()> {
        let what = format!("{} at {} x C, round {}", now.cell.name(), step.load, round + 1);
        for attempt in 1..=TRIES {
            let before = now.capacity;
            let (mut made, void) = self.arms(now, step, round)?;
            now.capacity = self.stage.capacity(now.cell, now.clients)?.rate.get();
            let (capacity, drift) =
                (f64::midpoint(before, now.capacity), (now.capacity / before - 1.0).abs());
            for ran in &mut made {
                ran.drift = drift;
                let beside = |row: &mut crate::results::Row| row.value = capacity;
                ran.rows.iter_mut().filter(|row| row.metric == "capacity").for_each(beside);
            }
            let steady = drift <= self.scenario.drift_max && void.is_empty();
            if !steady {
                let went = format!("C went from {before:.1} to {:.1}/s", now.capacity);
                let why = void.iter().chain([&went]).cloned().collect::<Vec<_>>().join("; ");
                self.notes.push(format!("{what}, try {attempt}: {why}"));
            }
            let last = attempt == TRIES || !self.schedule.may_repeat();
            // The judge sees the drift of what is kept; a generator that was late is not kept.
            if steady || self.extent.keep_void || last && void.is_empty() {
                self.runs.extend(made);
                return Ok(());
            }
            if last {
                break;
            }
        }
        self.notes.push(format!("{what}: void, left out"));
        Ok(())
    }

    /// One run of each arm, and why any of them must not be judged.
    fn arms(
        &mut self,
        now: &mut Now<'_>,
        step: &Step,
        round: u32,
    ) -> Result<(Vec<Ran>, Vec<String>)> {
        let calm = step.load < 1.0;
        let lengths = self.extent.lengths(now.cell, calm);
        let (mut made, mut void) = (Vec::new(), Vec::new());
        for arm in step.arms {
            let Now { cell, capacity, normal_p99, .. } = *now;
            let load = step.load;
            let seen = self.stage.run(&Run { cell, arm, load, capacity, lengths, normal_p99 })?;
            if calm && *arm == "none" {
                now.normal_p99 = seen.p99;
            }
            void.extend(seen.void.iter().map(|why| format!("{arm}: {why}")));
            made.push(Ran {
                cell: *now.cell,
                arm: (*arm).to_owned(),
                load,
                round,
                rows: seen.rows,
                connections: seen.connections,
                drift: 0.0,
            });
        }
        Ok((made, void))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::cover;

    #[test]
    fn a_cell_is_run_once_with_all_its_loads() {
        let cells = by_cell(&cover::whole(&[1.0, 2.0]));
        assert_eq!(cells.len(), 55);
        assert!(cells.iter().all(|(_, loads)| loads.len() == 2));
    }
}
