// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is run for each change of a number: short courses of `product/servers`, the cells of
//! `product/traffic`, the worlds of `product/worlds` (the simulated `product/attacks`, with start, stop
//! and take-over), and what the tests of the default controller promise.

use tidegate_control::Mode;
use tidegate_policy::Action;
use tidegate_sim::servers::{self, Row as Server};
use tidegate_sim::survival::{self, Effort as Steps, shipped};
use tidegate_sim::traffic::matrix::{self, Cell, Effort};
use tidegate_sim::traffic::worlds::{self, Asks, Row as World};
use tidegate_sim::traffic::{Course, run as play};
use tidegate_sim::world::report::Report;
use tidegate_sim::world::{Scenario, run};
use tidegate_units::Nanos;

/// Loads of a course at a server: multiples of its capacity, seconds.
const STEPS: [(f64, f64); 5] = [(0.5, 20.0), (0.9, 20.0), (2.0, 15.0), (10.0, 10.0), (0.5, 15.0)];
/// Responses per second above which a course takes too long for a screening.
const QUICK_RATE_MAX: f64 = 350.0;
/// Worlds that take too long for a screening.
const SLOW_WORLDS: [&str; 14] = [
    "100000-a-second",
    "idle-event-640",
    "capacity-event",
    "capacity-nginx",
    "kill-prefork",
    "kill-nginx",
    "old-prefork",
    "old-nginx",
    "stop-prefork",
    "stop-nginx",
    "capacity-event-tls-5",
    "kill-node",
    "two-services",
    "one-a-second",
];

/// One measured value.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) metric: String,
    /// The larger, the worse.
    pub(crate) bad: f64,
    /// A change below this does not count, whatever the seeds show.
    pub(crate) floor: f64,
}

fn value(metric: impl Into<String>, bad: f64, floor: f64) -> Value {
    Value { metric: metric.into(), bad, floor }
}

fn goodput(metric: impl Into<String>, share: f64) -> Value {
    value(metric, -share, 0.02)
}

fn refused(metric: impl Into<String>, share: f64) -> Value {
    value(metric, share, 0.002)
}

fn seconds(metric: impl Into<String>, seconds: f64) -> Value {
    value(metric, seconds, 0.5)
}

fn ratio(metric: impl Into<String>, ratio: f64) -> Value {
    value(metric, ratio, 0.3)
}

/// What is played.
#[derive(Clone)]
pub(crate) enum Kind {
    Server(Server),
    Cell(Cell),
    World(World),
    /// The load is there before the first tick.
    Cold(Server),
    /// It has been there for 15 s.
    Crisis(Server),
    /// Half the capacity for a while, at twice the whole.
    Halving(Server),
    /// A dependency becomes so many times slower.
    Slow(Server, f64),
    /// Healthy bursts of so many.
    Bursts(Server, u32),
}

/// A run of the suite.
#[derive(Clone)]
pub(crate) struct Unit {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) action: Action,
}

/// What the unprotected server does with the same seed.
pub(crate) enum Bare {
    Nothing,
    P99(f64),
    Cell(f64, Box<matrix::Outcome>),
    World(Box<Course>),
}

fn servers_named(names: &[&str]) -> Vec<Server> {
    servers::table().into_iter().filter(|row| names.contains(&row.name.as_str())).collect()
}

/// The whole suite, or what a screening takes. Each is run with one of the actions in turn, or with
/// both.
pub(crate) fn units(quick: bool) -> Vec<Unit> {
    let mut kinds: Vec<(String, Kind)> = Vec::new();
    for row in worlds::table() {
        if !(quick && SLOW_WORLDS.contains(&row.name)) {
            kinds.push((row.name.to_owned(), Kind::World(row)));
        }
    }
    for (n, cell) in matrix::cells(matrix::NATURAL).into_iter().enumerate() {
        if !quick || n % 6 == 1 {
            kinds.push((cell.name.clone(), Kind::Cell(cell)));
        }
    }
    for row in servers::table() {
        if !quick || row.server.capacity() <= QUICK_RATE_MAX {
            kinds.push((row.name.clone(), Kind::Server(row)));
        }
    }
    let both: Vec<(String, Kind, Action)> = kinds
        .into_iter()
        .enumerate()
        .flat_map(|(n, (name, kind))| {
            let actions = [Action::Drop, Action::Reject];
            let chosen = if quick { &actions[n % 2..=n % 2] } else { &actions[..] };
            let all = chosen.iter().map(move |action| (name.clone(), kind.clone(), *action));
            all.collect::<Vec<_>>()
        })
        .collect();
    let mut units: Vec<Unit> = both
        .into_iter()
        .map(|(name, kind, action)| {
            let word = if action == Action::Drop { "drop" } else { "reject" };
            Unit { name: format!("{name}-{word}"), kind, action }
        })
        .collect();
    units.extend(promised(quick));
    units
}

/// What sim/tests/servers.rs asks for.
fn promised(quick: bool) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut add = |word: &str, row: Server, kind: fn(Server) -> Kind| {
        let name = format!("{word}-{}", row.name);
        units.push(Unit { name, kind: kind(row), action: Action::Reject });
    };
    for row in servers_named(&["prefork-cpu-4ms-exponential", "nginx-16x50ms-constant"]) {
        add("cold", row.clone(), Kind::Cold);
        if !quick {
            add("crisis", row.clone(), Kind::Crisis);
            add("halving", row, Kind::Halving);
        }
    }
    for row in servers_named(&["prefork-mixed-100ms-exponential"]) {
        if !quick {
            add("slow5", row.clone(), |row| Kind::Slow(row, 5.0));
        }
        add("slow10", row, |row| Kind::Slow(row, 10.0));
    }
    for row in servers_named(&["prefork-cpu-4ms-constant"]) {
        add("bursts100", row, |row| Kind::Bursts(row, 100));
    }
    for row in servers_named(&["nginx-16x50ms-constant"]) {
        add("bursts200", row, |row| Kind::Bursts(row, 200));
    }
    units
}

impl Unit {
    /// The unprotected server, which no number changes.
    pub(crate) fn bare(&self, seed: u64) -> Result<Bare, String> {
        Ok(match &self.kind {
            Kind::Server(row) => {
                Bare::P99(survival::p99_calm_s(row, &Steps { seed, ..Steps::QUICK })?)
            }
            Kind::Cell(cell) => {
                let effort = Effort { seed, ..Effort::QUICK };
                let capacity = cell.capacity(&effort)?;
                let none = matrix::judge(cell, (capacity, None), None, &effort)?;
                Bare::Cell(capacity, Box::new(none))
            }
            Kind::World(row) => Bare::World(Box::new(first(play(row.world(None, seed))?))),
            _ => Bare::Nothing,
        })
    }

    /// What the protected one does.
    pub(crate) fn run(&self, bare: &Bare, seed: u64) -> Result<Vec<Value>, String> {
        let action = self.action;
        Ok(match (&self.kind, bare) {
            (Kind::Server(row), Bare::P99(p99_s)) => server(row, action, (*p99_s, seed))?,
            (Kind::Cell(of), Bare::Cell(capacity, none)) => {
                let effort = Effort { seed, ..Effort::QUICK };
                let outcome = matrix::judge(of, (*capacity, Some(none)), Some(action), &effort)?;
                cell(&outcome, none.p99_calm_s)
            }
            (Kind::World(row), Bare::World(bare)) => {
                world(row, &first(play(row.world(Some(action), seed))?), bare)
            }
            (Kind::Cold(row), _) => {
                phases(row, &survival::cold(row, action, 3.0, seed)?, &[(1, 1.0)])
            }
            (Kind::Crisis(row), _) => {
                phases(row, &survival::crisis(row, action, seed)?, &[(2, 1.0)])
            }
            (Kind::Halving(row), _) => {
                let report = survival::halving(row, action, 2.0, seed)?;
                phases(row, &report, &[(1, 1.0), (2, 0.5), (3, 1.0)])
            }
            (Kind::Slow(row, factor), _) => {
                let report = survival::slow_dependency(row, *factor, seed)?;
                vec![refused("refused", report.phases[1].refused_share())]
            }
            (Kind::Bursts(row, size), _) => {
                let report = survival::bursts(row, *size, seed)?;
                vec![refused("refused", report.phases[0].refused_share())]
            }
            _ => Err(format!("{}: another's bare run", self.name))?,
        })
    }
}

fn first(courses: Vec<Course>) -> Course {
    courses.into_iter().next().unwrap_or_default()
}

fn phases(row: &Server, report: &Report, wanted: &[(usize, f64)]) -> Vec<Value> {
    let capacity = row.server.capacity();
    let one = |(phase, multiple): &(usize, f64)| {
        goodput(
            format!("goodput in {phase}"),
            report.phases[*phase].goodput() / multiple / capacity,
        )
    };
    wanted.iter().map(one).collect()
}

fn server(row: &Server, action: Action, (p99_s, seed): (f64, u64)) -> Result<Vec<Value>, String> {
    let capacity = row.server.capacity();
    let objective = Nanos::from_secs_f64((2.0 * p99_s).max(1.0));
    let steps = survival::scenario(row, &STEPS, seed + 2).map_err(|e| e.to_string())?;
    let scenario = Scenario { objective, ..steps };
    let report = run(scenario, Some(shipped(action, Mode::Enforce)))?;
    let mut values = vec![
        refused("refused at 0.5 C", report.phases[0].refused_share()),
        refused("refused at 0.9 C", report.phases[1].refused_share()),
    ];
    for (phase, load) in [(2, 2), (3, 10)] {
        let phase = &report.phases[phase];
        values.push(goodput(format!("goodput at {load} C"), phase.goodput() / capacity));
        values.push(ratio(format!("p99 at {load} C"), phase.took(0.99) / p99_s));
    }
    let last = &report.phases[4];
    let span = Nanos::from_secs_f64((200.0 / capacity).max(2.0));
    values.push(seconds("normal again", report.recovery_s(last.from, last.to, span, p99_s)));
    Ok(values)
}

fn cell(outcome: &matrix::Outcome, p99_s: f64) -> Vec<Value> {
    let calm = outcome.calm.1 as f64 / outcome.calm.0.max(1) as f64;
    let mut values = vec![refused("refused at 0.9 C", calm)];
    for (load, at) in matrix::LOADS.iter().zip(&outcome.at).skip(1) {
        values.push(goodput(format!("goodput at {load} C"), at.goodput));
        values.push(ratio(format!("p99 at {load} C"), at.p99_s / p99_s.max(1e-3)));
        values.push(ratio(
            format!("p99 of the first 10 s at {load} C"),
            at.onset_s / p99_s.max(1e-3),
        ));
        values.push(seconds(format!("normal again after {load} C"), at.recovery_s[0]));
        values.push(value(format!("alarms at {load} C"), f64::from(at.alarms), 1.0));
    }
    values
}

fn world(row: &World, own: &Course, bare: &Course) -> Vec<Value> {
    let sum = |course: &Course, of: &dyn Fn(usize) -> u64| {
        (0..course.report.phases.len()).map(of).sum::<u64>() as f64
    };
    let began = sum(own, &|n| own.report.phases[n].began).max(1.0);
    let good = |course: &Course| sum(course, &|n| course.report.phases[n].good);
    let falsely: u64 = own.report.refused_falsely(&bare.report).into_iter().sum();
    let beside = goodput("beside none", good(own) / good(bare).max(1.0));
    match row.asks {
        Asks::AsGood => vec![beside],
        Asks::NoHarm => vec![
            refused("refused", sum(own, &|n| own.report.phases[n].refused) / began),
            refused("refused falsely", falsely as f64 / began),
            beside,
        ],
        Asks::Good(asked) => {
            let share = |(phase, multiple): &(usize, f64)| {
                let share = own.report.phases[*phase].goodput() / (multiple * row.capacity);
                goodput(format!("goodput in {phase}"), share)
            };
            asked.iter().map(share).collect()
        }
    }
}
