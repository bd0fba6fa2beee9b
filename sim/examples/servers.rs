// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints the table of servers: `cargo run -p tidegate-sim --example servers --release -- [--quick]
//! [--trace] [--seed=N] [drop|reject] [part of a name …]`.

use tidegate_policy::Action;
use tidegate_sim::servers::{Row, table};
use tidegate_sim::survival::{self, Effort, Outcome};

fn numbers(values: &[f64], digits: usize) -> String {
    values.iter().map(|v| format!("{v:.digits$}")).collect::<Vec<_>>().join(" ")
}

fn print(row: &Row, o: &Outcome) {
    println!(
        "{:32} C {:6.0} p99 {:7.3} | refused .5 {:.5} .9 {:.5} ({:.5}) 1. {:.3} | good {} ({}) answered {} | p99 x {} | recovery {} of {:.1}",
        row.name,
        o.capacity,
        o.p99_calm_s,
        o.refused_calm[0],
        o.refused_calm[1],
        o.falsely_calm[1],
        o.refused_at_one,
        numbers(&o.goodput, 3),
        numbers(&o.goodput_scaled, 3),
        numbers(&o.answered, 3),
        numbers(&o.p99_ratio, 2),
        numbers(&o.recovery_s, 2),
        o.recovery_max_s,
    );
}

fn others(row: &Row, action: Action) -> Result<(), String> {
    let capacity = row.server.capacity();
    let part = |phases: &[survival::Phased]| {
        phases.iter().map(|p| format!("{:.3}/{:.3}", p.0, p.1)).collect::<Vec<_>>().join(" ")
    };
    let phased = |r: &tidegate_sim::world::report::Report| {
        let phases = &r.phases[..r.phases.len() - 1];
        phases
            .iter()
            .map(|p| (p.goodput() / capacity, p.answers() / capacity))
            .collect::<Vec<survival::Phased>>()
    };
    let cold = survival::cold(row, action, 3.0, 5)?;
    let crisis = survival::crisis(row, action, 6)?;
    let half = survival::halving(row, action, 0.9, 7)?;
    let half2 = survival::halving(row, action, 2.0, 8)?;
    println!(
        "    good/answered: cold 3x {} | crisis 3x {} | halving .9 {} | halving 2x {}",
        part(&phased(&cold)),
        part(&phased(&crisis)),
        part(&phased(&half)),
        part(&phased(&half2))
    );
    Ok(())
}

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let action = if has("drop") { Action::Drop } else { Action::Reject };
    let mut effort = if has("--quick") { Effort::QUICK } else { Effort::FULL };
    if let Some(seed) = args.iter().find_map(|a| a.strip_prefix("--seed=")) {
        effort.seed = seed.parse().map_err(|e| format!("--seed={seed}: {e}"))?;
    }
    let flags = [
        "--quick", "--trace", "--others", "drop", "reject", "crisis", "cold", "halving", "slow",
        "calm",
    ];
    let names: Vec<&String> =
        args.iter().filter(|a| !flags.contains(&a.as_str()) && !a.starts_with("--seed=")).collect();
    for row in table() {
        if !names.is_empty() && !names.iter().any(|n| row.name.contains(n.as_str())) {
            continue;
        }
        let outcome = survival::survive(&row, action, &effort)?;
        print(&row, &outcome);
        if has("--others") {
            others(&row, action)?;
        }
        let chosen = if has("crisis") {
            survival::crisis(&row, action, 6)?
        } else if has("cold") {
            survival::cold(&row, action, 3.0, 5)?
        } else if has("halving") {
            survival::halving(&row, action, 0.9, 7)?
        } else if has("bursts") {
            survival::bursts(&row, 200, 10)?
        } else if has("slow") {
            survival::slow_dependency(&row, 10.0, 9)?
        } else if has("calm") {
            survival::calm(&row, action, &effort)?
        } else {
            outcome.report
        };
        if has("--trace") {
            for t in &chosen.traces {
                println!(
                    "{:8.1} offered {:4} ({:4}) refused {:4} completed {:4} waiting {:4} rate {:7.1} max {:5} {}",
                    t.at.as_secs_f64(),
                    t.offered,
                    t.repeated,
                    t.refused,
                    t.completed,
                    t.waiting,
                    t.rate.unwrap_or(0.0),
                    t.waiting_max.unwrap_or(0),
                    t.why
                );
            }
        }
    }
    Ok(())
}
