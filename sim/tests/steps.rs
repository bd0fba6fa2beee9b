// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the default controller answers a step of the load: it settles, does not overshoot, and does
//! not swing, also where the load lies at the capacity itself.

use tidegate_control::Mode;
use tidegate_policy::Action;
use tidegate_sim::servers::{Row, table};
use tidegate_sim::survival::{scenario, shipped};
use tidegate_sim::world::report::{Report, Trace};
use tidegate_sim::world::run;

const ROWS: [&str; 4] = [
    "prefork-cpu-4ms-exponential",
    "prefork-mixed-100ms-exponential",
    "nginx-16x50ms-constant",
    "single-2ms-exponential",
];
/// Nothing was designed or compared with this seed before. It was taken once and not searched.
const SEED: u64 = 361;
/// Ticks a second.
const TICKS: usize = 10;

fn row(name: &str) -> Row {
    table().into_iter().find(|row| row.name == name).expect(name)
}

/// Half the capacity for 20 s, then `multiple` for `seconds`.
fn step(row: &Row, multiple: f64, seconds: f64) -> Report {
    let scenario = scenario(row, &[(0.5, 20.0), (multiple, seconds)], SEED).expect("known names");
    run(scenario, Some(shipped(Action::Reject, Mode::Enforce))).expect("the checkers agree")
}

fn after(report: &Report, phase: usize) -> Vec<&Trace> {
    let phase = &report.phases[phase];
    report.traces.iter().filter(|t| t.at > phase.from && t.at <= phase.to).collect()
}

/// From the first tick that sheds: within 20 periods the rate lies within a fifth of the capacity
/// (mean of a second), and it never leaves that again.
#[test]
fn a_step_to_three_times_the_capacity_settles_in_twenty_periods() {
    for name in ROWS {
        let row = row(name);
        let capacity = row.server.capacity();
        let report = step(&row, 3.0, 60.0);
        let traces = after(&report, 1);
        let begin = traces.iter().position(|t| t.shedding).expect("it sheds");
        assert!(begin <= TICKS, "{name}: shedding only after {begin} periods");
        let rates: Vec<f64> = traces[begin..].iter().filter_map(|t| t.rate).collect();
        for (n, second) in rates[2 * TICKS..].chunks_exact(TICKS).enumerate() {
            let share = second.iter().sum::<f64>() / TICKS as f64 / capacity;
            assert!((0.8..=1.2).contains(&share), "{name}: {share:.2} of C, {n} s after settling");
        }
    }
}

/// At and just above the capacity the limit comes and goes by chance, not in a cycle: few changes
/// a minute, and the server stays at work.
#[test]
fn around_the_capacity_nothing_swings() {
    for name in ROWS {
        let row = row(name);
        for multiple in [1.0, 1.1] {
            let report = step(&row, multiple, 300.0);
            let traces = after(&report, 1);
            let changes = traces.windows(2).filter(|w| w[0].shedding != w[1].shedding).count();
            let a_minute = changes as f64 / 5.0;
            assert!(a_minute <= 12.0, "{name} at {multiple}: {a_minute} changes a minute");
            let served = report.phases[1].answers() / row.server.capacity();
            assert!(served >= 0.95, "{name} at {multiple}: serves {served:.3} of its capacity");
        }
    }
}
