// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints the matrix of traffic: `cargo run -p tidegate-sim --example traffic --release -- [--quick]
//! [--trace] [--exponential] [--asks=MS]
//! [--rtt=MS] [--seed=N] [drop|reject|none] [part of a cell's name …]`.

use tidegate_policy::Action;
use tidegate_sim::syn::parallel;
use tidegate_sim::traffic::matrix::{At, Effort, LOADS, NATURAL, Outcome, cells, compare};
use tidegate_sim::traffic::spec::Work;
use tidegate_units::Nanos;
use tidegate_workload::Shape;

fn each(outcome: &Outcome, of: impl Fn(&At) -> String) -> String {
    outcome.at.iter().map(of).collect::<Vec<_>>().join(" ")
}

fn seconds(s: Option<f64>) -> String {
    s.map_or("-".into(), |s| format!("{s:.1}"))
}

fn print(variant: &str, o: &Outcome, none: &Outcome) {
    let share = |refused: u64| refused as f64 / o.calm.0.max(1) as f64;
    let (refused, falsely) = (share(o.calm.1), share(o.calm_falsely));
    println!(
        "  {variant:7} good {} | refused .9 {refused:.5} | falsely .9 {falsely:.5} {} | p99 {:.0} ms x {} onset {} | first {} | alarms {} ends {} | recovery {} last {}",
        each(o, |at| format!("{:.3}", at.goodput)),
        each(o, |at| format!("{:.4}", at.falsely)),
        none.p99_calm_s * 1e3,
        each(o, |at| format!("{:.1}", at.p99_s / none.p99_calm_s)),
        each(o, |at| format!("{:.1}", at.onset_s / none.p99_calm_s)),
        each(o, |at| seconds(at.first_s)),
        each(o, |at| at.alarms.to_string()),
        each(o, |at| at.releases.to_string()),
        each(o, |at| format!("{:.1}", at.recovery_s[0])),
        each(o, |at| format!("{:.1}", at.recovery_s[1])),
    );
}

fn trace(o: &Outcome) {
    for t in &o.course.report.traces {
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

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let mut effort = if has("--quick") { Effort::QUICK } else { Effort::FULL };
    if let Some(seed) = args.iter().find_map(|a| a.strip_prefix("--seed=")) {
        effort.seed = seed.parse().map_err(|e| format!("--seed={seed}: {e}"))?;
    }
    let mut actions = Vec::new();
    let all = !has("drop") && !has("reject") && !has("none");
    if all || has("reject") {
        actions.push(Action::Reject);
    }
    if all || has("drop") {
        actions.push(Action::Drop);
    }
    let flags = ["--quick", "--trace", "--exponential", "drop", "reject", "none"];
    let names: Vec<&String> =
        args.iter().filter(|a| !flags.contains(&a.as_str()) && !a.contains('=')).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| name.contains(n.as_str()));
    let shape = if has("--exponential") { Shape::Exponential } else { NATURAL };
    let mut cells: Vec<_> = cells(shape).into_iter().filter(|cell| wanted(&cell.name)).collect();
    let seconds = |flag: &str| {
        let ms = args.iter().find_map(|a| a.strip_prefix(flag));
        ms.map(|ms| ms.parse::<f64>().map(|ms| ms / 1e3).map_err(|e| format!("{flag}{ms}: {e}")))
    };
    if let Some(mean_s) = seconds("--asks=").transpose()? {
        let after = Work { mean_s, shape: NATURAL };
        cells.iter_mut().for_each(|cell| cell.session.asks_after = Some(after));
    }
    if let Some(rtt_s) = seconds("--rtt=").transpose()? {
        let rtt = Nanos::from_secs_f64(rtt_s);
        cells.iter_mut().for_each(|cell| cell.session.rtt = rtt);
    }
    println!("loads {LOADS:?}, each after 0.9");
    let run = |cell: &_| compare(cell, &actions, &effort);
    for compared in parallel::map(&cells, 0, run, |_| {}).map_err(|e| e.to_string())? {
        let compared = compared?;
        println!("{} C {:.0}", compared.name, compared.none.capacity);
        print("none", &compared.none, &compared.none);
        for (action, outcome) in &compared.actions {
            print(if *action == Action::Drop { "drop" } else { "reject" }, outcome, &compared.none);
            if has("--trace") {
                trace(outcome);
            }
        }
    }
    Ok(())
}
