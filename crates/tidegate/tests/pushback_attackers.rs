// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attackers of limits, against real daemons on the testbed of NetDraino (needs root). The experiment
//! `netdraino/attackers` has all of them, with a load; here are those that speak as a server.
//!
//! ```text
//!  cl: datagrams ── R0, R1 ── R2: tidegate ── 2 Mbit/s, full ── R3: tidegate ──┬── S0: tidegate
//!                                                                             └── S1: the attacker
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use serde_json::{Value, json};
use std::path::Path;
use tidegate_lab::{
    AttackCounts, AttackKind, Helper, Lab, LabOptions, NetworkOptions, Product, Pushback, Road,
    RoadHost, Sections, Shaping,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// How long anything may take here.
const PATIENCE: Nanos = Nanos::from_secs(60);
const NARROW: Shaping = Shaping { bits_per_second: 2_000_000, queue: 50 };
/// Of both agents together twice what the link carries.
const DATAGRAMS: (f64, usize) = (250.0, 1_000);
const DAEMONS: [RoadHost; 2] = [RoadHost::R2, RoadHost::R3];

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tidegate"))
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = MonotonicClock.now() + PATIENCE;
    while !condition() {
        assert!(MonotonicClock.now() < end, "{what}: not within {PATIENCE}");
        std::thread::sleep(Nanos::from_millis(100).into());
    }
}

fn list(status: &Value, place: &str) -> Vec<Value> {
    status.pointer(place).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// A service at each server.
fn services(hosts: &[RoadHost]) -> Value {
    let one = |host: &RoadHost| {
        let service = json!({
            "mode": "enforce",
            "listen": [host.target().to_string()],
            "control": {"name": "fixed", "rate": 1_000.0},
        });
        (host.name().to_owned(), service)
    };
    Value::Object(hosts.iter().map(one).collect())
}

fn daemon(road: &Road<'_>, host: RoadHost, pushback: &Pushback) -> Product {
    let mut sections = Sections::default();
    let cluster = pushback.router(host).unwrap_or(&pushback.server).clone();
    sections.others.insert("cluster".into(), cluster);
    let at: &[RoadHost] =
        if host == RoadHost::S0 { &[RoadHost::S0] } else { &[RoadHost::S0, RoadHost::S1] };
    road.start_product(program(), host, (&services(at), &sections)).unwrap()
}

/// Limits of S1 that a router has taken, and messages that it has refused.
fn of_neighbour(router: &Product) -> (u64, u64) {
    let status = router.status().unwrap();
    let peers = list(&status, "/peers");
    let own = peers.iter().find(|peer| peer["name"] == json!("s1")).cloned().unwrap_or_default();
    let refused = list(&own, "/refused");
    let counts = refused.iter().filter_map(|count| count["count"].as_u64()).sum();
    (own["limits"].as_u64().unwrap_or(0), counts)
}

/// Whether anybody but S0 limits S0 there.
fn is_foreign(router: &Product) -> bool {
    let status = router.status().unwrap();
    let foreign = |limit: &Value| limit["role"] == json!("from") && limit["peer"] != json!("s0");
    list(&status, "/services/0/remote").iter().any(foreign)
}

#[test]
fn nobody_limits_a_server_but_itself() {
    let network = NetworkOptions { segmentation: false, ..NetworkOptions::default() };
    let usual = LabOptions::new(Helper::beside(program()).unwrap());
    let lab = Lab::new(LabOptions { network, ..usual }).unwrap();
    let road = lab.road(&NARROW, None).unwrap();
    let granted = [(RoadHost::S0, "s0"), (RoadHost::S1, "s1")];
    let pushback = road.pushback(program(), &granted, &DAEMONS).unwrap();
    let [first, other] = DAEMONS.map(|host| daemon(&road, host, &pushback));
    let server = daemon(&road, RoadHost::S0, &pushback);
    let _datagrams = [0, 1].map(|agent| road.send_datagrams(agent, DATAGRAMS).unwrap());
    wait_for("the link is congested", || {
        let links = list(&first.status().unwrap(), "/links");
        links.iter().any(|link| link["congested"] == json!(true))
    });

    // What S1 may not give.
    let attacker = road.attack(AttackKind::Forged, RoadHost::S1, &pushback).unwrap();
    wait_for("many limits are forged, and refused", || {
        attacker.counts().sent > 40 && of_neighbour(&first).1 > 30
    });
    assert_eq!(of_neighbour(&first).0, 0, "{:?}", attacker.counts());
    assert!(!is_foreign(&first) && attacker.counts().taken == 0);
    drop(attacker);

    // What it may give, and nobody takes twice or elsewhere.
    let attacker = road.attack(AttackKind::Replays, RoadHost::S1, &pushback).unwrap();
    wait_for("its own limits are taken, and their repetitions refused", || {
        let AttackCounts { sent, allowed, .. } = attacker.counts();
        sent > 60 && allowed > 4 && of_neighbour(&first).0 > 0 && of_neighbour(&other).1 > 0
    });
    let taken = of_neighbour(&first).0;
    // Its own count may be a second old.
    wait_for("its own count", || attacker.counts().allowed >= taken);
    assert_eq!(of_neighbour(&other).0, 0, "a limit for R2 counts at R3");
    assert!(!is_foreign(&first) && !is_foreign(&other));
    drop(attacker);

    // Who has no certificate of the authority.
    let attacker = road.attack(AttackKind::Strangers, RoadHost::S1, &pushback).unwrap();
    wait_for("strangers come", || attacker.counts().sent > 8);
    assert_eq!(attacker.counts().taken, 0);
    drop(attacker);
    server.stop().unwrap();
}
