// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flood of spoofed SYNs beside honest clients, in virtual time: the same policies, the same chain
//! and the same controllers as in the kernel, in front of a server with a capacity.

use tidegate_control::fleet::Terms;
use tidegate_control::{Controller, DefaultController, DefaultSpec, Fixed, Mode};
use tidegate_policy::{Action, Policy};
use tidegate_sim::servers::{Row, table};
use tidegate_sim::survival::scenario;
use tidegate_sim::world::gate::GateSpec;
use tidegate_sim::world::report::PhaseReport;
use tidegate_sim::world::{Flood, Protection, run_beside};
use tidegate_units::{Nanos, Rate};

/// SYNs a second of senders that nobody has.
const FLOOD: f64 = 5_000.0;
/// Depth of the bucket of a rate set by hand: the product's default.
const BURST: u32 = 20;
/// Calm before the flood, and the flood.
const CALM_S: f64 = 20.0;
const FLOODED_S: f64 = 40.0;
/// Nothing was designed or compared with these seeds before. They were taken once and not searched.
const SEEDS: [u64; 3] = [321, 322, 323];

fn row() -> Row {
    let name = "prefork-cpu-4ms-exponential";
    table().into_iter().find(|row| row.name == name).expect(name)
}

fn controller(name: &str, capacity: f64) -> Box<dyn Controller> {
    match name {
        "fixed" => Box::new(Fixed::new(Rate::per_second(capacity), BURST)),
        _ => Box::new(DefaultController::new(DefaultSpec::default())),
    }
}

/// The phase with this load, beside a flood or not; protected by these or not at all.
fn phase(load: f64, flood: f64, by: Option<(&str, Policy, Action)>, seed: u64) -> PhaseReport {
    let row = row();
    let scenario = scenario(&row, &[(0.3, CALM_S), (load, FLOODED_S)], seed).expect("known names");
    let from = Nanos::from_secs_f64(CALM_S);
    let to = Nanos::from_secs_f64(CALM_S + FLOODED_S);
    let protection = by.map(|(name, policy, action)| Protection {
        controller: controller(name, row.server.capacity()),
        terms: Terms::default(),
        gate: GateSpec::new(policy, action, Mode::Enforce),
    });
    let flood = (flood > 0.0).then_some(Flood { rate: flood, from, to });
    let report = run_beside(scenario, protection, flood).expect("the checkers agree");
    report.phases[1].clone()
}

/// Goodput of three such courses. A rate that is set to the capacity leaves the length of the queue, and so
/// what is good, to chance.
fn goodput(load: f64, flood: f64, by: Option<(&str, Policy, Action)>) -> f64 {
    SEEDS.map(|seed| phase(load, flood, by, seed).goodput()).iter().sum::<f64>()
        / SEEDS.len() as f64
}

const ALL: [(&str, Policy); 4] = [
    ("fixed", Policy::TokenBucket),
    ("fixed", Policy::FreshFirst),
    ("default", Policy::FreshFirst),
    ("default", Policy::TokenBucket),
];

/// At 0.3 of the capacity honest clients get what the server alone gives them.
#[test]
fn below_the_capacity_a_flood_costs_nothing() {
    let alone = goodput(0.3, FLOOD, None);
    for (name, policy) in ALL {
        for action in [Action::Drop, Action::Reject] {
            let beside = goodput(0.3, FLOOD, Some((name, policy, action)));
            println!("{name}, {policy:?}, {action:?}: {beside:.1} of {alone:.1}");
            assert!(beside >= 0.97 * alone, "{name}, {policy:?}, {action:?}: {beside} of {alone}");
        }
    }
}

/// At twice the capacity the server is as busy with honest clients as without the flood.
#[test]
fn in_an_overload_a_flood_takes_nothing_of_the_capacity() {
    for (name, action) in
        [("fixed", Action::Drop), ("default", Action::Drop), ("default", Action::Reject)]
    {
        let by = Some((name, Policy::FreshFirst, action));
        let (alone, beside) = (goodput(2.0, 0.0, by), goodput(2.0, FLOOD, by));
        println!("{name}, {action:?}: {beside:.1}, {alone:.1} without the flood");
        assert!(beside >= 0.95 * alone, "{name}, {action:?}: {beside} of {alone}");
    }
}
