// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The workers of `cargo xtask bench` live: every subject can be set up, asked, measured once over
//! small tables, and its own counters confirm what it says. Nothing is claimed about times.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../examples/bench_support/mod.rs"]
mod bench_support;

use bench_support::worker::{Subjects, serve};
use bench_support::{idle::IdleLoops, packets, pushed, refusals, requests, router, tables, turns};
use serde_json::Value;
use std::collections::BTreeMap;

/// What a subject says that measures CPU time of the whole machine while others use it all: its
/// counter was checked before.
const BUSY: &str = "the machine is too busy";
/// A subject that counts what arrives may lose frames to whatever else runs on this machine.
const ATTEMPTS: usize = 10;

/// Asks for every subject over the worker's protocol; the last answer of each. What gave an error
/// is asked again.
fn measure_all(subjects: Subjects) -> BTreeMap<String, Value> {
    let names: Vec<String> = subjects.iter().map(|subject| subject.name().to_owned()).collect();
    let mut answers = BTreeMap::new();
    let mut subjects = subjects;
    for name in &names {
        for _ in 0..ATTEMPTS {
            let (back, answer) = ask(subjects, name);
            subjects = back;
            let good = answer.get("ns").is_some();
            answers.insert(name.clone(), answer);
            if good {
                break;
            }
        }
    }
    answers
}

/// One question to a worker of its own.
fn ask(mut subjects: Subjects, name: &str) -> (Subjects, Value) {
    let mut output = Vec::new();
    serve(&mut subjects, format!("\"{name}\"\n").as_bytes(), &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [offer, answer] = lines.as_slice() else { panic!("an offer and an answer: {text}") };
    let offered = offer["subjects"].as_array().unwrap();
    assert!(offered.iter().any(|s| s["name"] == name && s["about"].is_string()), "{offer}");
    (subjects, answer.clone())
}

fn assert_measured(answers: &BTreeMap<String, Value>, claimed: &[&str]) {
    for name in claimed {
        assert!(answers.contains_key(*name), "`{name}` is claimed about and not offered");
    }
    for (name, answer) in answers {
        let ns = answer["ns"].as_f64();
        let busy = answer["error"].as_str().is_some_and(|why| why.starts_with(BUSY));
        assert!(ns.is_some_and(|ns| ns >= 0.0 && ns.is_finite()) || busy, "{name}: {answer}");
    }
}

#[test]
fn every_path_of_a_packet_is_measured_and_counted_as_what_it_is() {
    let answers = measure_all(packets::subjects(&tables::Scale::SMOKE).unwrap());
    let claimed = [
        "empty",
        "foreign",
        "established",
        "refused-token-bucket",
        "refused-fresh-first",
        "refused-abacus",
        "refused-abacus-exact",
        "admitted-token-bucket",
        "admitted-fresh-first",
        "admitted-abacus",
        "admitted-abacus-exact",
    ];
    assert_measured(&answers, &claimed);
}

#[test]
fn every_packet_of_a_request_is_measured_and_counted_as_what_it_is() {
    assert_measured(&measure_all(requests::subjects(&requests::Scale::SMOKE)), &[]);
}

#[test]
fn every_packet_of_an_exchange_is_measured_and_moves_what_it_should() {
    let answers = measure_all(turns::subjects(&turns::Scale::SMOKE));
    let claimed = [
        "silent-ack",
        "waiting-ack",
        "idle-ack",
        "http1-request",
        "http1-response",
        "tls-hello",
        "tls-hello-long",
        "tls13-request",
        "tls13-response",
        "h2-request",
        "h2-response",
    ];
    assert_measured(&answers, &claimed);
}

#[test]
fn every_packet_of_a_router_is_measured_and_counted_as_what_it_is() {
    let answers = measure_all(router::subjects(&router::Scale::SMOKE));
    let claimed = [
        "empty",
        "client-request",
        "server-reply",
        "client-ack",
        "syn-refused",
        "own-100-syn",
        "own-100-syn-others",
        "sweep",
        "stranger",
        "stranger-full",
        "opens",
        "opens-full",
    ];
    assert_measured(&answers, &claimed);
}

#[test]
fn what_limits_of_servers_do_to_packets_at_a_router_is_measured_and_counted() {
    let answers = measure_all(pushed::subjects(&tables::Scale::SMOKE).unwrap());
    let mut claimed = Vec::new();
    for kind in ["syn", "udp"] {
        for limits in ["0", "100"] {
            claimed.extend(
                ["", "-others", "-transit"].map(|to| format!("pushed-{limits}-{kind}{to}")),
            );
        }
        claimed.push(format!("pushed-100-{kind}-refused"));
    }
    assert_measured(&answers, &claimed.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn every_way_to_refuse_is_measured_and_its_counter_moves() {
    let answers = measure_all(refusals::subjects(&refusals::Scale::SMOKE).unwrap());
    let claimed = [
        "drop",
        "reset",
        "nft-input-limit",
        "nft-input-reject",
        "nft-netdev-reject",
        "accept-queue-overflow",
        "haproxy",
    ];
    assert_measured(&answers, &claimed);
}

#[test]
fn a_subject_that_is_not_offered_is_an_error_and_not_the_end() {
    let mut output = Vec::new();
    serve(&mut Subjects::new(), "\"nothing\"\n\"nobody\"\n".as_bytes(), &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    assert_eq!(text.matches("no such subject").count(), 2, "{text}");
}

/// What is missing of the idle loops is about what ran. On a machine that is busy all the time
/// nothing is left for them, and the measurement says so by failing.
#[test]
fn idle_loops_see_work_or_say_that_they_cannot() {
    let loops = IdleLoops::start();
    let (sum, spent) = loops
        .spent(&mut Vec::new(), || (0..1_000_000_u64).map(std::hint::black_box).sum::<u64>())
        .unwrap();
    assert_eq!(sum, 499_999_500_000);
    assert!(spent.is_finite() && spent >= 0.0, "{spent}");
}
