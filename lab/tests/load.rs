// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the load generator sees and how it counts it.
//!
//! ```text
//!  cl 10.16.0.0/12 ── rt ── sv 10.2.0.2:80  nginx or the small server, nftables where packets are lost
//!  load on CPU 1            server on CPU 0
//! ```

mod common;

use common::{eventually, lab, one_at_a_time, run, steady};
use std::collections::BTreeSet;
use tidegate_lab::{
    Arrive, Cost, KeepAlive, Lab, LoadPlan, NginxOptions, Phase, Role, Script, TinyOptions,
};
use tidegate_units::Nanos;
use tidegate_workload::Profile;

/// Loads nftables rules into the server's namespace: the body of one input chain.
fn input_rules(lab: &Lab, sets: &str, rules: &str) {
    let text = format!(
        "table inet t {{\n{sets}\nchain c {{\ntype filter hook input priority 0;\n{rules}\n}}\n}}\n"
    );
    lab.run_in(Role::Server, &["nft", "-f", "-"], &text).expect("nftables");
}

/// What is counted is what the server logged, each request once, each from an address of its own,
/// with the code point asked for.
#[test]
fn every_arrival_reaches_the_server_exactly_once() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_nginx(&NginxOptions::default()).unwrap();
    input_rules(&lab, "", "tcp dport 80 tcp flags & (syn|ack) == syn ip dscp 46 counter");
    let poisson = Arrive::poisson(Profile::constant(Nanos::from_secs(3), 400.0));
    let mut marked = server.stream("marked", steady(50.0, 2_000));
    marked.dscp = 46;
    marked.sources.first = "10.31.0.0".parse().unwrap();
    let report = run(&lab, vec![server.stream("poisson", poisson), marked], 5_000);
    let offered: u64 = report.streams.iter().map(|s| s.total.counts.offered).sum();
    let answered: u64 = report.streams.iter().map(|s| s.total.counts.answered).sum();
    assert_eq!(offered, answered);
    // 1,200 expected: within five standard deviations.
    let poisson = report.streams[0].total.counts.offered as f64;
    assert!((poisson - 1_200.0).abs() < 5.0 * 1_200_f64.sqrt(), "{poisson} arrivals");
    assert_eq!(report.streams[1].total.counts.offered, 100);
    // nginx writes its line after the answer.
    assert!(eventually(5, || server.requests_logged().unwrap() == offered));
    let log = server.process().log().parent().unwrap().join("nginx-0/access.log");
    let log = std::fs::read_to_string(log).unwrap();
    let clients: BTreeSet<&str> = log.lines().filter_map(|l| l.split(' ').next()).collect();
    assert_eq!(clients.len() as u64, offered, "each arrival has a source address of its own");
    let rules = lab.run_in(Role::Server, &["nft", "list", "table", "inet", "t"], "").unwrap();
    assert!(rules.contains("counter packets 100 "), "{rules}");
    let slots = &report.streams[1].slots;
    let started: u64 = slots.iter().map(|s| s.started.counts.offered).sum();
    let ended: u64 = slots.iter().map(|s| s.ended.counts.answered).sum();
    assert_eq!((started, ended), (100, 100), "the time series adds up");
}

/// The first SYN of every client is lost: the client's own wait is in the perceived time and not in
/// the service time.
#[test]
fn latency_counts_from_the_intended_start_with_the_lost_syn() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_tiny(&TinyOptions::default()).unwrap();
    input_rules(
        &lab,
        "set seen { type ipv4_addr; flags dynamic; size 1000; }",
        "tcp dport 80 tcp flags & (syn|ack) == syn ip saddr != @seen add @seen { ip saddr } counter drop",
    );
    let report = run(&lab, vec![server.stream("all", steady(20.0, 1_000))], 5_000);
    let total = &report.streams[0].total;
    assert_eq!((total.counts.answered, total.counts.syn_repeated), (20, 20), "{total:?}");
    assert_eq!((total.counts.refused, total.counts.good), (20, 0), "{total:?}");
    assert!(total.perceived.p50 >= 1.0 && total.perceived.p50 < 1.5, "{:?}", total.perceived);
    assert!(total.handshake.p50 >= 0.95, "{:?}", total.handshake);
    assert!(total.service.p50 < 0.5, "{:?}", total.service);
}

#[test]
fn a_reset_is_a_refusal_and_silence_a_failure() {
    let _one = one_at_a_time();
    let lab = lab();
    let slow = TinyOptions {
        workers: 100,
        cost: Cost::wait(Nanos::from_secs(30)),
        ..TinyOptions::default()
    };
    let server = lab.start_tiny(&slow).unwrap();
    input_rules(&lab, "", "tcp dport 82 drop");
    let stream = |name: &str, port: u16| {
        let mut stream = server.stream(name, steady(30.0, 1_000));
        stream.target.set_port(port);
        stream
    };
    let streams = vec![stream("closed", 81), stream("black hole", 82), stream("slow", 80)];
    let report = run(&lab, streams, 1_500);
    let [closed, hole, slow] = [0, 1, 2].map(|i| report.streams[i].total.counts);
    assert_eq!((closed.refused_connect, closed.refused, closed.failed), (30, 30, 30), "{closed:?}");
    assert_eq!((hole.no_handshake, hole.syn_repeated, hole.refused), (30, 30, 30), "{hole:?}");
    assert_eq!((slow.no_answer, slow.refused, slow.failed), (30, 0, 30), "{slow:?}");
}

/// Phases, scripted events, kept connections and several processes, in one run.
#[test]
fn phases_scripts_and_kept_connections_add_up() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_nginx(&NginxOptions::default()).unwrap();
    let mut kept = server.stream("kept", steady(100.0, 3_000));
    kept.keep_alive = Some(KeepAlive::of(10));
    let phase = |name: &str, start, end| Phase {
        name: name.to_owned(),
        start: Nanos::from_secs(start),
        end: Nanos::from_secs(end),
    };
    let plan = LoadPlan {
        streams: vec![kept],
        phases: vec![phase("one", 0, 1), phase("two", 1, 2)],
        timeout: Nanos::from_secs(3),
        lag_bound: Nanos::from_secs(5),
        shards: 2,
        ..LoadPlan::default()
    };
    let mut seconds = Vec::new();
    let mut ran = 0;
    let mut script = Script::new()
        .at(Nanos::from_millis(1_500), "second", || Err("on purpose"))
        .at(Nanos::from_millis(500), "first", || {
            ran += 1;
            Ok::<(), String>(())
        });
    let report = lab.run_script(&plan, &mut script, &mut |p| seconds.push(p.second)).unwrap();
    drop(script);
    assert_eq!(ran, 1);
    let names: Vec<&str> = report.events.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
    assert!(report.events[0].at >= 0.5 && report.events[0].at < 1.5, "{:?}", report.events);
    assert_eq!(report.void, ["event second: on purpose"]);
    assert_eq!(report.shards, 2);
    let stream = &report.streams[0];
    // The arrival at exactly 1 s belongs to the second phase; so 99 and 100.
    let offered = |name| stream.phase(name).unwrap().totals.counts.offered;
    assert_eq!((offered("one"), offered("two")), (99, 100));
    assert_eq!(stream.total.counts.answered, 300, "{:?}", stream.total);
    assert!(stream.total.counts.reused >= 250, "{:?}", stream.total.counts);
    assert!(seconds.len() >= 3 && seconds[0] == 0, "{seconds:?}");
}
