// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints the worlds that a controller must do no harm in, or come back in: `cargo run -p
//! tidegate-sim --example worlds --release -- [--trace] [--seed=N] [drop|reject] [part of a name …]`.
//! By phase of the honest clients: goodput over capacity, share refused, share refused although the
//! unprotected server would have served them well (with the same seed), p99 in ms.

use tidegate_policy::Action;
use tidegate_sim::syn::parallel;
use tidegate_sim::traffic::worlds::{Row, table};
use tidegate_sim::traffic::{Course, run};
use tidegate_sim::world::report::PhaseReport;

fn phases(course: &Course, of: impl Fn(&PhaseReport) -> String) -> String {
    let phases = &course.report.phases;
    phases[..phases.len() - 1].iter().map(of).collect::<Vec<_>>().join(" ")
}

/// Shares of sessions by phase that were refused and would have been served well without protection.
fn falsely(course: &Course, bare: &Course) -> String {
    let phases = &course.report.phases;
    let counts =
        course.report.refused_falsely(&bare.report).into_iter().zip(&phases[..phases.len() - 1]);
    let shares = counts.map(|(n, p)| format!("{:.4}", n as f64 / p.began.max(1) as f64));
    shares.collect::<Vec<_>>().join(" ")
}

fn print(row: &Row, variant: &str, (courses, bare): (&[Course], &[Course])) {
    let Some(course) = courses.first() else { return };
    let traces = &course.report.traces;
    let alarms = traces.windows(2).filter(|w| !w[0].shedding && w[1].shedding).count();
    println!(
        "  {variant:7} good {} | refused {} | falsely {} | p99 {} | alarms {alarms} cut {}",
        phases(course, |p| format!("{:.3}", p.goodput() / row.capacity)),
        phases(course, |p| format!("{:.4}", p.refused_share())),
        falsely(course, &bare[0]),
        phases(course, |p| format!("{:.0}", p.took(0.99) * 1e3)),
        course.cut,
    );
    for (index, other) in courses.iter().enumerate().skip(1) {
        println!(
            "    stream {index}: good/s {} | refused {}",
            phases(other, |p| format!("{:.1}", p.goodput())),
            phases(other, |p| format!("{:.4}", p.refused_share())),
        );
    }
}

fn trace(course: &Course) {
    for t in &course.report.traces {
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
    let mut seed = 1;
    if let Some(given) = args.iter().find_map(|a| a.strip_prefix("--seed=")) {
        seed = given.parse().map_err(|e| format!("--seed={given}: {e}"))?;
    }
    let all = !has("drop") && !has("reject");
    let mut variants = vec![("none", None)];
    if all || has("reject") {
        variants.push(("reject", Some(Action::Reject)));
    }
    if all || has("drop") {
        variants.push(("drop", Some(Action::Drop)));
    }
    let flags = ["--trace", "drop", "reject"];
    let names: Vec<&String> =
        args.iter().filter(|a| !flags.contains(&a.as_str()) && !a.starts_with("--seed=")).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| name.contains(n.as_str()));
    let rows: Vec<Row> = table().into_iter().filter(|row| wanted(row.name)).collect();
    let jobs: Vec<_> =
        rows.iter().flat_map(|row| variants.iter().map(move |variant| (row, *variant))).collect();
    let one = |job: &(&Row, (&str, Option<Action>))| run(job.0.world(job.1.1, seed));
    let courses = parallel::map(&jobs, 0, one, |_| {}).map_err(|e| e.to_string())?;
    let mut bare = Vec::new();
    for ((row, (variant, action)), courses) in jobs.iter().zip(courses) {
        let courses = courses.map_err(|error| format!("{}, {variant}: {error}", row.name))?;
        if action.is_none() {
            println!("{} C {:.0}: {}", row.name, row.capacity, row.asks);
            bare.clone_from(&courses);
        }
        print(row, variant, (&courses, &bare));
        if has("--trace") && action.is_some() {
            courses.first().into_iter().for_each(trace);
        }
    }
    Ok(())
}
