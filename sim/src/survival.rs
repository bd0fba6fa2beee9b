// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The survival experiment in virtual time: what a protected server does at 0.5 to 10 times its
//! capacity, judged against the same server without protection.

use crate::servers::Row;
use crate::world::gate::GateSpec;
use crate::world::report::{PhaseReport, Report};
use crate::world::{Batches, Change, Phase, Protection, Scenario, run};
use tidegate_control::fleet::Terms;
use tidegate_control::{Controller, DefaultController, DefaultSpec, Mode};
use tidegate_policy::{Action, Policy};
use tidegate_units::Nanos;
use tidegate_workload::{Mixture, MixtureError, Process};

/// The product's default: fresh_first under the default controller.
#[must_use]
pub fn shipped(action: Action, mode: Mode) -> Protection {
    with(Box::new(DefaultController::new(DefaultSpec::default())), action, mode)
}

/// fresh_first under any controller.
#[must_use]
pub fn with(controller: Box<dyn Controller>, action: Action, mode: Mode) -> Protection {
    let gate = GateSpec::new(Policy::FreshFirst, action, mode);
    Protection { controller, terms: Terms::default(), gate }
}

/// A load of pieces: (multiple of the capacity, seconds), Poisson, today's Linux clients (what a
/// lab has), 1 s objective, 10 s time-out, 100 ms period.
///
/// # Errors
/// Never; the name of the schedule is known.
pub fn scenario(row: &Row, load: &[(f64, f64)], seed: u64) -> Result<Scenario, MixtureError> {
    let capacity = row.server.capacity();
    let phase = |(multiple, seconds): &(f64, f64)| Phase {
        rate: multiple * capacity,
        lasts: Nanos::from_secs_f64(*seconds),
    };
    Ok(Scenario {
        server: row.server.clone(),
        phases: load.iter().map(phase).collect(),
        process: Process::Poisson,
        batches: None,
        changes: Vec::new(),
        clients: Mixture::new(&[("linux-6.5", 1.0)])?,
        timeout: Nanos::from_secs(10),
        objective: Nanos::SECOND,
        period: Nanos::from_millis(100),
        control_from: Nanos::ZERO,
        seed,
    })
}

/// Goodput and answers of one phase, over the capacity.
pub type Phased = (f64, f64);

/// How much is run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Arrivals in the run at 0.9 that decides about shares of 1 in 1000.
    pub calm_arrivals: f64,
    /// Departures in each step of the load, at least (and 20 s).
    pub step_departures: f64,
    /// The seed.
    pub seed: u64,
}

impl Effort {
    /// What the judged table takes.
    pub const FULL: Self = Self { calm_arrivals: 100_000.0, step_departures: 20_000.0, seed: 1 };
    /// A quick look.
    pub const QUICK: Self = Self { calm_arrivals: 20_000.0, step_departures: 2000.0, seed: 1 };
}

/// What one server did under one action.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Requests per second that it can complete.
    pub capacity: f64,
    /// 99th percentile of the unprotected server at 0.9, in seconds.
    pub p99_calm_s: f64,
    /// Refused share at 0.5 and at 0.9 load.
    pub refused_calm: [f64; 2],
    /// Of these, share refused whom the unprotected server would have served within
    /// max(1 s, twice the p99 at 0.9): the same clients with the same work.
    pub falsely_calm: [f64; 2],
    /// Goodput over capacity at 2, 3, 10 times the capacity: within 1 s of the intended start.
    pub goodput: [f64; 3],
    /// The same within max(1 s, twice the p99 at 0.9): for servers that are slower than the 1 s.
    pub goodput_scaled: [f64; 3],
    /// Answers over capacity, likewise.
    pub answered: [f64; 3],
    /// p99 of the admitted over p99 of the unprotected server at 0.9, likewise.
    pub p99_ratio: [f64; 3],
    /// Refused at 1.0 times the capacity.
    pub refused_at_one: f64,
    /// Seconds until p99 is normal after the load has fallen, and until the last refusal.
    pub recovery_s: [f64; 2],
    /// What recovery may take: 2 s, or twice the p99 at 0.9.
    pub recovery_max_s: f64,
    /// The whole survival run.
    pub report: Report,
}

/// Length of a step for a server of this capacity, in seconds.
fn step_s(capacity: f64, effort: &Effort) -> f64 {
    (effort.step_departures / capacity).max(60.0)
}

/// 99th percentile at 0.9 load without protection, in seconds.
///
/// # Errors
/// What the checkers found.
pub fn p99_calm_s(row: &Row, effort: &Effort) -> Result<f64, String> {
    let capacity = row.server.capacity();
    let seconds = effort.calm_arrivals / (0.9 * capacity);
    let calm = scenario(row, &[(0.9, seconds)], effort.seed).map_err(|e| e.to_string())?;
    Ok(run(calm, None)?.phases[0].took(0.99))
}

/// Half, then 0.9 of the capacity, protected: (almost) nothing may be refused.
///
/// # Errors
/// What the checkers found.
pub fn calm(row: &Row, action: Action, effort: &Effort) -> Result<Report, String> {
    run(halfway(row, effort)?, Some(shipped(action, Mode::Enforce)))
}

/// The same clients at the unprotected server; within `objective` a response is good.
fn calm_bare(row: &Row, effort: &Effort, objective: Nanos) -> Result<Report, String> {
    run(Scenario { objective, ..halfway(row, effort)? }, None)
}

fn halfway(row: &Row, effort: &Effort) -> Result<Scenario, String> {
    let seconds = effort.calm_arrivals / (0.9 * row.server.capacity());
    let load = [(0.5, seconds / 3.0), (0.9, seconds)];
    scenario(row, &load, effort.seed + 1).map_err(|e| e.to_string())
}

/// Runs everything for one server and one action.
///
/// # Errors
/// What the checkers found.
pub fn survive(row: &Row, action: Action, effort: &Effort) -> Result<Outcome, String> {
    let capacity = row.server.capacity();
    let p99 = p99_calm_s(row, effort)?;
    let step = step_s(capacity, effort);
    let load = [0.5, 0.9, 1.0, 2.0, 3.0, 10.0, 0.5].map(|multiple| (multiple, step));
    let steps = scenario(row, &load, effort.seed + 2).map_err(|e| e.to_string())?;
    let report = run(steps, Some(shipped(action, Mode::Enforce)))?;
    let at =
        |f: &dyn Fn(&PhaseReport) -> f64| [3, 4, 5].map(|index: usize| f(&report.phases[index]));
    let scaled_s = (2.0 * p99).max(1.0);
    let within = |p: &PhaseReport| {
        let good = p.perceived_s.iter().filter(|s| **s <= scaled_s).count();
        good as f64 / p.to.since(p.from).as_secs_f64() / capacity
    };
    let calm = calm(row, action, effort)?;
    let bare = calm_bare(row, effort, Nanos::from_secs_f64(scaled_s))?;
    let falsely = calm.refused_falsely(&bare);
    let falsely = |phase: usize| falsely[phase] as f64 / calm.phases[phase].began.max(1) as f64;
    let last = &report.phases[6];
    // Two seconds in a row, as in the lab; or as long as a hundred answers take.
    let span = Nanos::from_secs_f64((200.0 / capacity).max(2.0));
    let recovery = report.recovery_s(last.from, last.to, span, p99);
    let refusals = report.last_refused[6].since(last.from).as_secs_f64();
    Ok(Outcome {
        capacity,
        p99_calm_s: p99,
        refused_calm: [calm.phases[0].refused_share(), calm.phases[1].refused_share()],
        falsely_calm: [falsely(0), falsely(1)],
        goodput: at(&|p| p.goodput() / capacity),
        goodput_scaled: at(&within),
        answered: at(&|p| p.answers() / capacity),
        p99_ratio: at(&|p| p.took(0.99) / p99),
        refused_at_one: report.phases[2].refused_share(),
        recovery_s: [recovery, refusals],
        recovery_max_s: (2.0 * p99).max(2.0),
        report,
    })
}

/// From an unknown start: the crowd is there before the first tick. Goodput over capacity after
/// `settle_s` seconds, and the whole run.
///
/// # Errors
/// What the checkers found.
pub fn cold(row: &Row, action: Action, multiple: f64, seed: u64) -> Result<Report, String> {
    let seconds = step_s(row.server.capacity(), &Effort::QUICK);
    let load = [(multiple, seconds / 2.0), (multiple, seconds)];
    let scenario = scenario(row, &load, seed).map_err(|e| e.to_string())?;
    run(scenario, Some(shipped(action, Mode::Enforce)))
}

/// Started in mid-crisis: three times the capacity for a while before the controller begins.
///
/// # Errors
/// What the checkers found.
pub fn crisis(row: &Row, action: Action, seed: u64) -> Result<Report, String> {
    let seconds = step_s(row.server.capacity(), &Effort::QUICK);
    let load = [(3.0, 15.0), (3.0, seconds), (3.0, seconds)];
    let mut scenario = scenario(row, &load, seed).map_err(|e| e.to_string())?;
    scenario.control_from = Nanos::from_secs(15);
    run(scenario, Some(shipped(action, Mode::Enforce)))
}

/// Capacity that halves and returns, at a multiple of the full capacity: phases full, half, back.
///
/// # Errors
/// What the checkers found.
pub fn halving(row: &Row, action: Action, multiple: f64, seed: u64) -> Result<Report, String> {
    let seconds = step_s(row.server.capacity(), &Effort::QUICK);
    let load = [(0.5, seconds), (multiple, seconds), (multiple, seconds), (multiple, seconds)];
    let mut scenario = scenario(row, &load, seed).map_err(|e| e.to_string())?;
    let at = |k: f64| Nanos::from_secs_f64(k * seconds);
    scenario.changes = vec![(at(2.0), Change::Speed(0.5)), (at(3.0), Change::Speed(1.0))];
    run(scenario, Some(shipped(action, Mode::Enforce)))
}

/// A healthy server at half its capacity whose dependency becomes `factor` times slower: nothing
/// may be refused.
///
/// # Errors
/// What the checkers found.
pub fn slow_dependency(row: &Row, factor: f64, seed: u64) -> Result<Report, String> {
    let mean = row.server.wait.map_or(0.0, |w| w.mean_s);
    let cpu = row.server.cpu.map_or(1.0, |w| w.mean_s);
    let cpu_rate = f64::from(row.server.cpus) / cpu;
    // Half of what the slower server can do.
    let rate = 0.5 * cpu_rate.min(row.server.workers as f64 / (mean * factor + cpu));
    let multiple = rate / row.server.capacity();
    let load = [(multiple, 60.0), (multiple, 60.0)];
    let mut scenario = scenario(row, &load, seed).map_err(|e| e.to_string())?;
    scenario.changes = vec![(Nanos::from_secs(60), Change::Wait(mean * factor))];
    run(scenario, Some(shipped(Action::Reject, Mode::Enforce)))
}

/// Healthy bursts beside a light load: nothing may be refused.
///
/// # Errors
/// What the checkers found.
pub fn bursts(row: &Row, size: u32, seed: u64) -> Result<Report, String> {
    let mut scenario = scenario(row, &[(0.3, 120.0)], seed).map_err(|e| e.to_string())?;
    scenario.batches = Some(Batches { size, every: Nanos::from_secs(10) });
    run(scenario, Some(shipped(Action::Reject, Mode::Enforce)))
}
