// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Spoofed SYNs beside honest clients, with the product as it ships, for each policy: a short form of
//! `product/attacks`, beside the kernel alone and nftables with the same rate.
//!
//! ```text
//!   cl: 1,000 known addresses, as many new ones, 5,000 spoofed SYNs/s ── rt ── sv: small server
//! ```
#![allow(clippy::unwrap_used, reason = "a test may")]

use serde_json::{Value, json};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use tidegate_lab::{
    Arrive, CLIENTS_V4, Cost, Flood, Helper, Lab, LabError, LabOptions, LoadPlan, LoadReport,
    NftHook, NftLimit, Phase, ProductConfig, Script, Server, Sources, Stream, TinyOptions,
};
use tidegate_units::Nanos;
use tidegate_workload::{Profile, Segment};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate");
/// What stands for the capacity: the rate of every limit here. The server could do more.
const RATE: f64 = 700.0;
/// Honest clients come at 0.3 of it.
const HONEST: f64 = 0.3 * RATE;
const FLOOD: f64 = 5_000.0;
/// Before the flood only known clients come; then as many new ones.
const BEFORE_S: f64 = 4.0;
const FLOODED_S: f64 = 4.0;
/// From the flood's beginning until it is known: what comes then is counted as well, but apart.
const ONSET_S: f64 = 1.0;
/// Addresses of the known and of the new clients, each used in turn, and how far apart they begin.
const ADDRESSES: u32 = 1_000;
const RANGE: u64 = 1 << 17;
/// Clients give up after so long; a good response comes within a second.
const PATIENCE_S: f64 = 4.0;
const POLICIES: [&str; 5] =
    ["token_bucket", "fresh_first", "abacus", "abacus_exact", "abacus_learned"];

/// Goodput over what was offered: during all of the flood, and of those known and new once it is known.
struct Got {
    all: f64,
    known: f64,
    new: f64,
}

fn stream(server: &Server, name: &str, rates: [f64; 2], range: u64) -> Stream {
    let lasts = [BEFORE_S, FLOODED_S].map(Nanos::from_secs_f64);
    let pieces = [0, 1].map(|i| Segment::constant(lasts[i], rates[i]));
    let first = Sources { first: CLIENTS_V4, count: u32::MAX }.get(range * RANGE);
    let arrive = Arrive::poisson(Profile::new(&pieces));
    Stream { sources: Sources { first, count: ADDRESSES }, ..server.stream(name, arrive) }
}

/// Honest clients beside a flood, which begins with the new ones.
fn beside_a_flood(lab: &Lab, server: &Server) -> Got {
    let seconds = Nanos::from_secs_f64;
    let phase = |name: &str, start: f64, end: f64| Phase {
        name: name.into(),
        start: seconds(start),
        end: seconds(end),
    };
    let known_from = BEFORE_S + ONSET_S;
    let plan = LoadPlan {
        streams: vec![
            stream(server, "known", [HONEST, HONEST / 2.0], 0),
            stream(server, "new", [0.0, HONEST / 2.0], 1),
        ],
        phases: vec![
            phase("onset", BEFORE_S, known_from),
            phase("later", known_from, BEFORE_S + FLOODED_S),
        ],
        timeout: seconds(PATIENCE_S),
        lag_bound: seconds(5.0),
        ..LoadPlan::default()
    };
    let SocketAddr::V4(target) = server.target() else { panic!("IPv4") };
    let flood = RefCell::new(None);
    let begin = || {
        *flood.borrow_mut() = Some(lab.flood(&Flood { target, rate: FLOOD, seed: 1 })?);
        Ok::<(), LabError>(())
    };
    let mut script = Script::new().at(seconds(BEFORE_S), "flood", begin);
    let report = lab.run_script(&plan, &mut script, &mut |_| {}).unwrap();
    drop(script);
    assert!(flood.into_inner().is_some(), "the flood has begun");
    got(&report)
}

fn got(report: &LoadReport) -> Got {
    let of = |streams: &[&str], phases: &[(&str, f64)]| {
        let (mut good, mut offered) = (0.0, 0.0);
        for stream in streams {
            for (phase, seconds) in phases {
                let totals = &report.stream(stream).unwrap().phase(phase).unwrap().totals;
                good += totals.goodput * seconds;
                offered += totals.counts.offered as f64;
            }
        }
        good / offered
    };
    let later = ("later", FLOODED_S - ONSET_S);
    Got {
        all: of(&["known", "new"], &[("onset", ONSET_S), later]),
        known: of(&["known"], &[later]),
        new: of(&["new"], &[later]),
    }
}

/// What protects the server.
enum By<'a> {
    Nothing,
    Nftables,
    Tidegate(&'a str, Value),
}

fn measure(lab: &Lab, by: &By<'_>) -> Got {
    let cost = Cost::busy(Nanos::from_micros(200));
    let options = TinyOptions { workers: 16, backlog: 4_096, cost, ..TinyOptions::default() };
    let server = lab.start_tiny(&options).unwrap();
    let _rule = matches!(by, By::Nftables).then(|| {
        let limit = NftLimit {
            hook: NftHook::Input,
            port: 80,
            rate: RATE as u32,
            burst: 70,
            reject: false,
        };
        lab.limit_by_nft(&limit).unwrap()
    });
    let By::Tidegate(policy, control) = by else { return beside_a_flood(lab, &server) };
    let mut policy = json!({"name": policy});
    if !policy["name"].as_str().is_some_and(|name| name.starts_with("abacus")) {
        policy["action"] = "drop".into();
    }
    let web = json!({"mode": "enforce", "listen": ["*:80"], "policy": policy, "control": control});
    let config = ProductConfig { services: json!({"web": web}), ..ProductConfig::one("web", &[]) };
    let product = lab.start_product(Path::new(PROGRAM), &config).unwrap();
    let got = beside_a_flood(lab, &server);
    product.stop().unwrap();
    got
}

#[test]
fn honest_clients_are_served_beside_a_flood_whatever_the_policy() {
    let lab = Lab::new(LabOptions::new(Helper::beside(PROGRAM).unwrap())).unwrap();
    let fixed = json!({"name": "fixed", "rate": RATE, "burst": 70});
    let mut arms = vec![
        ("kernel alone".to_owned(), By::Nothing),
        ("nftables".to_owned(), By::Nftables),
        ("default".to_owned(), By::Tidegate("fresh_first", json!({"name": "default"}))),
    ];
    arms.extend(POLICIES.iter().map(|p| (format!("fixed, {p}"), By::Tidegate(p, fixed.clone()))));
    println!("served within 1 s beside {FLOOD} spoofed SYNs/s   all    known  new");
    let mut table = Vec::new();
    for (name, by) in &arms {
        let got = measure(&lab, by);
        println!("{name:46} {:.3}  {:.3}  {:.3}", got.all, got.known, got.new);
        table.push((name.clone(), got));
    }
    let kernel = &table[0].1;
    assert!(kernel.known > 0.9 && kernel.new > 0.9, "the server itself has no room");
    assert!(table[1].1.new < 0.5, "else the flood hurts nobody, and this proves nothing");
    for (name, got) in &table[2..] {
        assert!(got.known >= 0.95 * kernel.known, "{name}: {:.3} of the known", got.known);
        assert!(got.new >= 0.95 * kernel.new, "{name}: {:.3} of the new", got.new);
        assert!(got.all >= 0.85 * kernel.all, "{name}: {:.3} of all", got.all);
    }
}
