// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of an overload, against what its clients saw (needs root). It takes a minute and looks at
//! times, so it has the machine to itself.
//!
//! ```text
//!  cl: 100/s, for 60 s 400/s, 100/s ── rt ── sv: a limit of 200/s, a server that waits about 20 ms
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use tidegate_lab::{
    Arrive, Cost, CostKind, Helper, Lab, LabError, LabOptions, LoadPlan, LoadReport, Phase,
    Product, ProductConfig, Scrape, Script, TinyOptions,
};
use tidegate_units::{Clock, DayClock, Nanos};
use tidegate_workload::{Profile, Segment, Shape};

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tidegate"))
}

const TIMES: &str = "tidegate_service_first_byte_time_seconds_bucket";
/// What is told is within 15 % of what was (issue 23).
const WITHIN: f64 = 0.15;
/// Admissions per second.
const LIMIT: f64 = 200.0;
const CALM: u64 = 5;
const OVERLOAD: u64 = 60;
const AFTER: u64 = 9;

fn load(lab: &Lab, target: &tidegate_lab::Server, script: &mut Script<'_>) -> LoadReport {
    let span = |seconds, rate| Segment::constant(Nanos::from_secs(seconds), rate);
    let profile = Profile::new(&[span(CALM, 100.0), span(OVERLOAD, 400.0), span(AFTER, 100.0)]);
    let (start, end) = (Nanos::from_secs(CALM), Nanos::from_secs(CALM + OVERLOAD));
    let plan = LoadPlan {
        streams: vec![target.stream("all", Arrive::constant(profile))],
        phases: vec![Phase { name: "overload".into(), start, end }],
        lag_bound: Nanos::from_secs(5),
        ..LoadPlan::default()
    };
    let report = lab.run_script(&plan, script, &mut |_| {}).unwrap();
    report.sound().unwrap();
    report
}

fn history(product: &Product) -> Value {
    let mut command = Command::new(program());
    command.args(["history", "-o", "json", "--socket"]).arg(product.socket());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn seconds(nanos: &Value) -> f64 {
    nanos.as_u64().unwrap() as f64 / 1e9
}

/// The only event of a kind.
fn only<'v>(history: &'v Value, kind: &str) -> &'v Value {
    let all = history["events"].as_array().unwrap();
    let mut of = all.iter().filter(|event| event["event"] == kind);
    let one = of.next().unwrap_or_else(|| panic!("no {kind}: {history}"));
    assert!(of.next().is_none(), "{kind} twice: {history}");
    one
}

/// A service that admits 200/s and rejects the rest.
fn at_most_200() -> ProductConfig {
    let web = json!({
        "mode": "enforce",
        "listen": ["*:80"],
        "policy": {"name": "token_bucket", "action": "reject"},
        "control": {"name": "fixed", "rate": LIMIT, "burst": 20},
    });
    let others = json!({"replies": {"rst_per_second": 10_000}});
    ProductConfig { services: json!({"web": web}), others, ..ProductConfig::one("web", &[]) }
}

/// Begin, end, cause, and who was refused why, as the first and the last scrape have it; `overload` is its begin.
fn told_by_metrics((first, last): (&Scrape, &Scrape), overload: f64, refused: f64) {
    let web = "service=\"web\"";
    let gauge =
        |what| last.sum(&format!("tidegate_service_shedding_{what}_timestamp_seconds"), &[web]);
    let (begin, end) = (gauge("began") - overload, gauge("ended") - overload - OVERLOAD as f64);
    assert!((-0.5..3.0).contains(&begin), "began {begin} s after the overload did");
    assert!((-3.0..3.0).contains(&end), "ended {end} s after the overload did");
    let shed = |cause: &str| last.sum("tidegate_service_shedding_seconds_total", &[web, cause]);
    let shedding = shed("cause=\"limit\"");
    assert!((shedding - OVERLOAD as f64).abs() < 6.0 && shed("") == shedding, "{shedding} s");
    let by_rate = ["reason=\"rate\"", "verdict=\"reject\"", "shadow=\"false\""];
    let counted = |labels: &[&str]| {
        let name = "tidegate_service_verdicts_syns_total";
        last.sum(name, labels) - first.sum(name, labels)
    };
    assert_eq!(counted(&by_rate), refused);
    assert_eq!(counted(&["verdict=\"reject\""]), refused, "for no other reason");
}

/// The same as `tidegate history` has it, with the times to first byte; `clients`: who was refused, p50 and p99.
fn told_by_history(history: &Value, overload: f64, (refused, p50, p99): (f64, f64, f64)) {
    let (begun, ended) = (only(history, "shedding-began"), only(history, "shedding-ended"));
    assert_eq!((&begun["cause"], &ended["cause"]), (&json!("limit"), &json!("limit")));
    let begin = seconds(&begun["at"]["unix"]) - overload;
    let end = seconds(&ended["at"]["unix"]) - overload - OVERLOAD as f64;
    assert!((-0.5..3.0).contains(&begin), "began {begin} s after the overload did");
    assert!((-3.0..3.0).contains(&end), "ended {end} s after the overload did");
    let lasted = seconds(&ended["lasted"]) / OVERLOAD as f64;
    assert!((lasted - 1.0).abs() <= WITHIN, "lasted {lasted} times as long");
    let outcome = &ended["outcome"];
    assert_eq!(outcome["refused"].as_f64(), Some(refused));
    assert_eq!(outcome["refused_by"], json!([{"reason": "rate", "count": refused as u64}]));
    for (name, of_clients) in [("p50", p50), ("p99", p99)] {
        let of_history = seconds(&outcome[name]);
        println!("{name}: {of_history:.4} s by the history, {of_clients:.4} s by clients");
        assert!((of_history / of_clients - 1.0).abs() <= WITHIN, "{name} by the history");
    }
}

/// The mean of the limit between the first and the last of these scrapes.
fn mean_limit(scrapes: &[Scrape]) -> f64 {
    let (first, last) = (&scrapes[0], &scrapes[scrapes.len() - 1]);
    let grown = |name: &str, labels: &[&str]| last.sum(name, labels) - first.sum(name, labels);
    let in_force = grown("tidegate_service_level_known_seconds_total", &["level=\"limit_rate\""]);
    grown("tidegate_service_limit_allowed_syns_total", &[]) / in_force
}

/// A history as it would be, had the clock been a day late while it was written.
fn a_day_early(text: &str) -> String {
    let mut lines = text.lines();
    let mut stepped = lines.next().unwrap().to_owned();
    for line in lines {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let unix = event["at"]["unix"].as_u64().unwrap();
        event["at"]["unix"] = json!(unix - 86_400_000_000_000);
        stepped += &format!("\n{event}");
    }
    stepped + "\n"
}

/// From scrapes every 15 s alone, and from the history before and after a restart under a clock that was wrong
/// by a day: begin, end, cause, who was refused and why, p50 and p99. The clients' own counts are the measure.
#[test]
fn an_overload_between_scrapes_is_told_by_metrics_and_history() {
    let lab = Lab::new(LabOptions::new(Helper::beside(program()).unwrap())).unwrap();
    let cost =
        Cost { mean: Nanos::from_millis(20), shape: Shape::Exponential, kind: CostKind::Wait };
    let tiny = TinyOptions { workers: 64, cost, ..TinyOptions::default() };
    let server = lab.start_tiny(&tiny).unwrap();
    let config = at_most_200();
    let mut product = lab.start_product(program(), &config).unwrap();
    let (scrapes, began) = (RefCell::new(Vec::new()), RefCell::new(0.0));
    let mut script = Script::new().at(Nanos::ZERO, "begin", || {
        *began.borrow_mut() = DayClock.now().as_secs_f64();
        Ok::<(), LabError>(())
    });
    // Every 15 s, of which one is at the begin of the overload, and so one at its end; and one before anything.
    for at in std::iter::once(0).chain((CALM..=CALM + OVERLOAD + AFTER).step_by(15)) {
        script = script.at(Nanos::from_secs(at), "scrape", || {
            scrapes.borrow_mut().push(Scrape::take(&lab)?);
            Ok::<(), LabError>(())
        });
    }
    let report = load(&lab, &server, &mut script);
    let last = Scrape::take(&lab).unwrap();
    let (first, clients) = (&scrapes.borrow()[0], &report.streams[0].total);
    let refused = clients.counts.refused_connect as f64;
    let overload = *began.borrow() + CALM as f64;
    told_by_metrics((first, &last), overload, refused);
    // Both of the overload alone.
    let (begin, end) = (&scrapes.borrow()[1], &scrapes.borrow()[1 + (OVERLOAD / 15) as usize]);
    let of_clients = report.streams[0].phase("overload").unwrap().totals.first_byte;
    for (name, share, of_clients) in [("p50", 0.5, of_clients.p50), ("p99", 0.99, of_clients.p99)] {
        let of_metrics = end.quantile(begin, TIMES, share).unwrap();
        println!("{name}: {of_metrics:.4} s by metrics, {of_clients:.4} s by clients");
        assert!((of_metrics / of_clients - 1.0).abs() <= WITHIN, "{name}");
    }
    let mean = mean_limit(&scrapes.borrow());
    println!("mean limit: {mean:.2}/s by metrics, {LIMIT}/s by the file");
    assert!((mean / LIMIT - 1.0).abs() <= WITHIN, "a mean limit of {mean}/s");

    let clients = (refused, of_clients.p50, of_clients.p99);
    let told = history(&product);
    told_by_history(&told, overload, clients);

    // The file as it would be, had the clock been a day late while it was written.
    product.end_for_restart().unwrap();
    let mut file = product.socket().as_os_str().to_owned();
    file.push(".history");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, a_day_early(&text)).unwrap();
    let product = lab.start_product_like(program(), &product).unwrap();
    let later = history(&product);
    told_by_history(&later, overload, clients);
    for kind in ["shedding-began", "shedding-ended"] {
        let (before, after) = (only(&told, kind), only(&later, kind));
        let moved = seconds(&after["at"]["unix"]) - seconds(&before["at"]["unix"]);
        assert!(moved.abs() < 0.5, "{kind} moved by {moved} s");
        let body = |event: &Value| {
            let mut event = event.clone();
            event["at"] = Value::Null;
            event
        };
        assert_eq!(body(after), body(before));
    }
}
