// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What must never cost a connection: the daemon's death, restarts, upgrades – under load.
//!
//! ```text
//!   cl: 1,000 connections/s ── rt ── sv: nginx, tidegate (dies, restarts, is taken over)
//! ```
//!
//! Real connections are counted by the client; nothing is timed that a busy machine could spoil.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use serde_json::json;
use std::cell::RefCell;
use std::path::Path;
use tidegate_lab::{
    Arrive, Helper, Lab, LabError, LabOptions, LoadPlan, LoadReport, NginxOptions, Product,
    ProductConfig, Script, Server, SlotReport,
};
use tidegate_units::Nanos;
use tidegate_workload::Profile;

const RATE: f64 = 1_000.0;
/// Restarts and take-overs, each.
const TIMES: u64 = 10;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tidegate"))
}

fn lab() -> Lab {
    let helper = Helper::beside(program()).unwrap();
    Lab::new(LabOptions::new(helper)).unwrap()
}

/// What half of the crowd is refused by.
#[derive(Clone, Copy, Debug)]
enum By {
    /// Its SYN, with a RST.
    Syn,
    /// Its request, with a 503.
    Request,
}

fn config(by: By) -> ProductConfig {
    let fixed = |rate: u32, burst: u32| json!({"name": "fixed", "rate": rate, "burst": burst});
    let mut web = json!({
        "mode": "enforce",
        "listen": ["*:80"],
        "policy": {"name": "token_bucket", "action": "reject"},
        "control": fixed(500, 50),
    });
    if let By::Request = by {
        web["control"] = fixed(100_000, 10_000);
        web["requests"] = json!({
            "buckets": {"all": {"resource": "cpu", "burst": 50,
                                "control": {"name": "fixed", "rate": 500}}},
            "rules": [{"path": "/", "bucket": "all"}],
        });
    }
    let services = json!({"web": web});
    let others = json!({"replies": {"rst_per_second": 10_000}});
    ProductConfig { services, others, ..ProductConfig::one("web", &[]) }
}

/// RATE connections a second for a while; the script's events happen meanwhile.
fn crowd(lab: &Lab, server: &Server, seconds: u64, script: &mut Script<'_>) -> LoadReport {
    let arrive = Arrive::constant(Profile::constant(Nanos::from_secs(seconds), RATE));
    let plan = LoadPlan {
        streams: vec![server.stream("crowd", arrive)],
        lag_bound: Nanos::from_secs(5),
        ..LoadPlan::default()
    };
    let report = lab.run_script(&plan, script, &mut |_| {}).unwrap();
    report.sound().unwrap();
    report
}

/// Connections that were admitted (or never evaluated) and yet got no answer.
fn lost(report: &LoadReport) -> u64 {
    let c = report.streams[0].total.counts;
    c.no_handshake + c.no_answer + c.broken + c.other_status + c.errors
}

fn refused(report: &LoadReport, from: f64, to: f64) -> u64 {
    let inside = |slot: &&SlotReport| slot.start >= from && slot.start < to;
    let slots = report.streams[0].slots.iter().filter(inside);
    let both =
        |slot: &SlotReport| slot.started.counts.refused_connect + slot.started.counts.refused_http;
    slots.map(both).sum()
}

#[test]
fn a_killed_daemon_loses_nothing_and_the_lease_opens() {
    killed(By::Syn);
}

/// The same where requests are refused: their lease is the same.
#[test]
fn a_killed_daemon_with_request_rules_loses_nothing_and_the_lease_opens() {
    killed(By::Request);
}

/// `kill -9` while half of 1,000 connections/s are refused: no admitted connection is lost; the
/// limit still holds right after, and ten seconds after the last heartbeat everything passes.
fn killed(by: By) {
    let lab = lab();
    let server = lab.start_nginx(&NginxOptions::default()).unwrap();
    let fixed = config(by);
    let product = RefCell::new(Some(lab.start_product(program(), &fixed).unwrap()));
    let mut script = Script::new().at(Nanos::from_secs(6), "kill -9", || {
        product.borrow_mut().take().map_or(Ok(()), Product::kill9)
    });
    let report = crowd(&lab, &server, 22, &mut script);
    assert_eq!(lost(&report), 0, "{:?}", report.streams[0].total.counts);
    let killed = report.events[0].at;
    let before = refused(&report, 1.0, 6.0) as f64 / 5.0;
    assert!((300.0..700.0).contains(&before), "about half is refused before: {before}/s");
    let held = refused(&report, killed.ceil(), killed.ceil() + 1.0);
    assert!(held > 200, "the lease holds at first: {held} refused");
    let opened = (killed + 10.0).ceil();
    assert_eq!(refused(&report, opened, 22.0), 0, "the lease has opened at {opened} s");
}

#[test]
fn restarts_and_upgrades_lose_nothing() {
    restarted(By::Syn);
}

/// The same where requests are refused: hooks and rules come and go with the daemon.
#[test]
fn restarts_and_upgrades_with_request_rules_lose_nothing() {
    restarted(By::Request);
}

/// Ten restarts and ten take-overs under 1,000 connections/s, a limit in force that refuses half of
/// them: every single one that is admitted is answered, and the limit is there again each time.
fn restarted(by: By) {
    let lab = lab();
    let server = lab.start_nginx(&NginxOptions::default()).unwrap();
    let fixed = config(by);
    let product = RefCell::new(Some(lab.start_product(program(), &fixed).unwrap()));
    let (lab, cell) = (&lab, &product);
    let mut script = Script::new();
    for n in 0..TIMES {
        let restart = || -> Result<(), LabError> {
            let before = cell.borrow_mut().take();
            before.map_or(Ok(()), Product::stop)?;
            *cell.borrow_mut() = Some(lab.start_product(program(), &fixed)?);
            Ok(())
        };
        let take_over = || -> Result<(), LabError> {
            let before = cell.borrow_mut().take();
            let Some(before) = before else { return Ok(()) };
            *cell.borrow_mut() = Some(lab.start_product_like(program(), &before)?);
            before.wait_end(Nanos::from_secs(10))
        };
        let at = Nanos::from_secs(1 + 3 * n);
        script = script.at(at, "restart", restart);
        script = script.at(at + Nanos::from_millis(1500), "take-over", take_over);
    }
    let report = crowd(lab, &server, 3 * TIMES + 2, &mut script);
    assert_eq!(report.events.len(), 2 * TIMES as usize);
    let counts = report.streams[0].total.counts;
    assert_eq!(lost(&report), 0, "{counts:?}");
    let (by_syn, by_request) = (counts.refused_connect, counts.refused_http);
    assert_eq!(counts.answered + by_syn + by_request, counts.offered, "{counts:?}");
    let (wanted, other) = match by {
        By::Syn => (by_syn, by_request),
        By::Request => (by_request, by_syn),
    };
    assert!(wanted > 5_000 && other == 0, "{by:?}: the limit was in force: {counts:?}");
}
