// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of servers in virtual time.

use crate::results::Row;
use crate::survival::{Outcome, Watch};
use anyhow::{Result, anyhow};
use serde::Deserialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_sim::Action;
use tidegate_sim::servers::{Row as Server, table};
use tidegate_sim::survival::{self, Effort, Outcome as Survived};

/// The loads at which a survival run is told.
const LOADS: [f64; 3] = [2.0, 3.0, 10.0];
/// Threads, at most.
const THREADS_MAX: usize = 8;

/// scenario.yaml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `servers`.
    pub kind: String,
    /// `drop`, `reject`.
    pub actions: Vec<ActionName>,
}

/// What is done with the refused.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionName {
    /// Silently.
    Drop,
    /// With an answer.
    Reject,
}

impl ActionName {
    const fn action(self) -> (Action, &'static str) {
        match self {
            Self::Drop => (Action::Drop, "drop"),
            Self::Reject => (Action::Reject, "reject"),
        }
    }
}

/// Runs the whole table, on as many threads as there are CPUs; the result does not depend on them.
///
/// # Errors
/// What the simulator's checkers found.
pub fn run(
    scenario: &Scenario,
    experiment: &str,
    (quick, seed): (bool, u64),
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let effort = Effort { seed, ..if quick { Effort::QUICK } else { Effort::FULL } };
    let servers = table();
    let jobs: Vec<(&Server, ActionName)> = servers
        .iter()
        .flat_map(|server| scenario.actions.iter().map(move |action| (server, *action)))
        .collect();
    watch.step(&format!("{} runs in virtual time", jobs.len()));
    let done = Mutex::new(vec![None; jobs.len()]);
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((server, action)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = survival::survive(server, action.action().0, &effort);
                    let index = jobs.iter().position(|job| {
                        job.0.name == server.name && job.1.action() == action.action()
                    });
                    if let (Some(index), Ok(mut done)) = (index, done.lock()) {
                        done[index] = Some(result);
                    }
                }
            });
        }
    });
    let done = done.into_inner().map_err(|_| anyhow!("a run panicked"))?;
    let mut outcome = Outcome::default();
    for ((server, action), result) in jobs.iter().zip(done) {
        let result = result.ok_or_else(|| anyhow!("{}: not run", server.name))?;
        let survived = result.map_err(|found| anyhow!("{}: {found}", server.name))?;
        outcome.rows.extend(rows(experiment, &server.name, *action, &survived));
    }
    Ok(outcome)
}

fn rows(experiment: &str, server: &str, action: ActionName, s: &Survived) -> Vec<Row> {
    let row = |x_name: &str, x: f64, measured: (&str, &str, f64)| {
        let variant = format!("{server}-{}", action.action().1);
        Row::simulated(experiment, variant, (x_name, x), measured)
    };
    // Servers that need more than 1 s by themselves are measured by twice what they need.
    let good = if 2.0 * s.p99_calm_s > 1.0 { s.goodput_scaled } else { s.goodput };
    let mut rows = Vec::new();
    for (i, load) in LOADS.into_iter().enumerate() {
        rows.push(row("load", load, ("capacity", "1/s", s.capacity)));
        rows.push(row("load", load, ("goodput", "1/s", good[i] * s.capacity)));
        rows.push(row("load", load, ("goodput_1s", "1/s", s.goodput[i] * s.capacity)));
        rows.push(row("load", load, ("answered", "1/s", s.answered[i] * s.capacity)));
        rows.push(row("load", load, ("p99", "s", s.p99_ratio[i] * s.p99_calm_s)));
        rows.push(row("load", load, ("p99_ratio", "ratio", s.p99_ratio[i])));
    }
    rows.push(row("load", 0.5, ("refused", "share", s.refused_calm[0])));
    rows.push(row("load", 0.9, ("refused", "share", s.refused_calm[1])));
    rows.push(row("load", 0.5, ("refused_falsely", "share", s.falsely_calm[0])));
    rows.push(row("load", 0.9, ("refused_falsely", "share", s.falsely_calm[1])));
    rows.push(row("load", 0.9, ("p99_none", "s", s.p99_calm_s)));
    rows.push(row("load", 1.0, ("refused", "share", s.refused_at_one)));
    let longest = s.recovery_s[0].max(s.recovery_s[1]);
    rows.push(row("load_after", 10.0, ("recovery", "s", longest)));
    rows.push(row("load_after", 10.0, ("recovery_ratio", "ratio", longest / s.recovery_max_s)));
    rows.push(row("load_after", 10.0, ("recovery_p99", "s", s.recovery_s[0])));
    let times = s.recovery_s[0] / s.recovery_max_s;
    rows.push(row("load_after", 10.0, ("recovery_p99_ratio", "ratio", times)));
    rows
}
