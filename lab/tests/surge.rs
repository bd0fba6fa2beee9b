// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paper's server in the lab: SURGE's files and dynamic requests, sessions, a narrow interface.
//!
//! ```text
//!  cl, load on CPU 1 ── rt ── sv, CPU 0: Apache prefork :80, /small/ /islarge/ /cgi-bin/, [tbf + pfifo]
//! ```

#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{lab, one_at_a_time, run, steady};
use std::process::Command;
use tidegate_lab::{
    ApacheOptions, CapacityOptions, Cgi, Cost, KeepAlive, Lab, LabOptions, LoadPlan,
    NetworkOptions, NginxOptions, Role, Session, Shaping,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::SurgeSpec;

fn files(dynamic: f64) -> SurgeSpec {
    SurgeSpec { dynamic, files: 200, ..SurgeSpec::default() }
}

/// Every kind of request is answered, by either way of starting CGI programs, with and without
/// TCP_DEFER_ACCEPT; what is told by kind adds up to the whole.
#[test]
fn apache_serves_what_surge_asks_for() {
    let _one = one_at_a_time();
    let lab = lab();
    for (start, defer_accept) in [(Cgi::ByMpm, true), (Cgi::Daemon, false)] {
        let options = ApacheOptions { start, defer_accept, ..ApacheOptions::surge(files(0.3)) };
        let server = lab.start_apache(&options).unwrap();
        let report = run(&lab, vec![server.stream("all", steady(60.0, 2_000))], 8_000);
        let all = &report.streams[0];
        assert_eq!(all.total.counts.answered, 120, "{:?}", all.total);
        let names: Vec<&str> = all.kinds.iter().map(|kind| kind.name.as_str()).collect();
        assert_eq!(names, ["small", "large", "dynamic"]);
        let offered = |name: &str| all.kind(name).unwrap().total.counts.offered;
        assert!(offered("dynamic") > 10 && offered("small") > 50, "{:?}", all.kinds);
        assert_eq!(offered("small") + offered("large") + offered("dynamic"), 120);
        // Programs take longer than files, or the CGI was not run.
        let p50 = |name: &str| all.kind(name).unwrap().total.service.p50;
        assert!(p50("dynamic") > p50("small"), "{:?}", all.kinds);
    }
}

/// A catalogue of which nothing is dynamic is faster, and Apache's own 503 is one.
#[test]
fn the_mix_has_a_capacity() {
    let _one = one_at_a_time();
    let lab = lab();
    let quick = CapacityOptions {
        clients_from: 8,
        clients_max: 8,
        probe: Nanos::from_millis(600),
        window: Nanos::from_millis(400),
        windows: 5,
        warm_up: Nanos::from_millis(300),
        ..CapacityOptions::default()
    };
    let capacity = |dynamic: f64| {
        let cost = Cost::busy(Nanos::from_millis(5));
        let options = ApacheOptions { cgi: Some(cost), ..ApacheOptions::surge(files(dynamic)) };
        let server = lab.start_apache(&options).unwrap();
        lab.capacity(&server, &quick).unwrap().rate.get()
    };
    let (mixed, fixed) = (capacity(0.5), capacity(0.0));
    assert!(fixed > 1.5 * mixed, "{fixed} without programs, {mixed} with them");
    // 5 ms of CPU time for each request, by the clock: no more than 200/s on the server's CPU, where
    // bare files are served many times as often.
    let work = Nanos::from_millis(5);
    let options = ApacheOptions { work, ..ApacheOptions::surge(files(0.0)) };
    let longer = CapacityOptions { window: Nanos::from_secs(1), ..quick };
    let worked = lab.capacity(&lab.start_apache(&options).unwrap(), &longer).unwrap().rate.get();
    assert!((110.0..=210.0).contains(&worked), "{worked}/s where each takes 5 ms");
    assert!(fixed > 1.5 * worked, "{fixed} without that work, {worked} with it");
    let busy = ApacheOptions { busy: true, ..ApacheOptions::surge(files(0.2)) };
    let server = lab.start_apache(&busy).unwrap();
    let report = run(&lab, vec![server.stream("all", steady(50.0, 1_000))], 8_000);
    assert_eq!(report.streams[0].total.counts.refused_http, 50, "{:?}", report.streams[0].total);
}

/// Sessions on kept and on new connections: all requests of each are made, one after the other,
/// after its client's pause.
#[test]
fn sessions_make_all_their_requests() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_nginx(&NginxOptions::default()).unwrap();
    for keep_alive in [None, Some(KeepAlive::of(3))] {
        let mut stream = server.stream("sessions", steady(20.0, 1_000));
        let think = Nanos::from_millis(100);
        stream.session = Some(Session { requests: 5, think, streams: 1, cookie: "session".into() });
        stream.keep_alive = keep_alive;
        let mut strangers = server.stream("strangers", steady(20.0, 1_000));
        strangers.path = "/nothing".into();
        strangers.session = stream.session.clone();
        let report = run(&lab, vec![stream, strangers], 3_000);
        let [all, none] = [0, 1].map(|i| report.streams[i].total.clone());
        assert_eq!((all.sessions.ended, all.sessions.completed), (20, 20), "{all:?}");
        assert_eq!(all.counts.answered, 100, "{:?}", all.counts);
        // Of five requests on connections of three, the second, third and fifth are on an old one.
        assert_eq!(all.counts.reused, if keep_alive.is_some() { 60 } else { 0 });
        assert_eq!((none.sessions.ended, none.sessions.completed), (20, 0), "{none:?}");
        assert_eq!(none.counts.offered, 20, "a session ends with its first failure");
    }
}

/// A client that is not connected in time gives up then, long before its time-out.
#[test]
fn a_client_gives_up_connecting() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_nginx(&NginxOptions::default()).unwrap();
    let rules = "table inet t {\nchain c {\ntype filter hook input priority 0;\n\
                 tcp dport 80 tcp flags & (syn|ack) == syn drop\n}\n}\n";
    lab.run_in(Role::Server, &["nft", "-f", "-"], rules).unwrap();
    let plan = LoadPlan {
        streams: vec![server.stream("all", steady(20.0, 1_000))],
        connect_timeout: Nanos::from_millis(300),
        timeout: Nanos::from_secs(60),
        lag_bound: Nanos::from_secs(5),
        ..LoadPlan::default()
    };
    let mut seconds = 0;
    let report = lab.run_load(&plan, &mut |p| seconds = p.second).unwrap();
    let counts = report.streams[0].total.counts;
    assert_eq!((counts.no_handshake, counts.refused), (20, 20), "{counts:?}");
    assert!(seconds < 30, "it took {seconds} s");
}

/// A narrow interface carries what it should and drops what its queue does not hold.
#[test]
fn a_narrow_interface_is_a_bottleneck() {
    let _one = one_at_a_time();
    let network = NetworkOptions { segmentation: false, ..NetworkOptions::default() };
    let lab = Lab::new(LabOptions { network, ..LabOptions::new(common::helper()) }).unwrap();
    let server = lab.start_apache(&ApacheOptions::surge(files(0.0))).unwrap();
    let mut stream = server.stream("large", steady(20.0, 3_000));
    let large = stream.mix.take().map(|mix| tidegate_workload::Surge::new(&mix.files)).unwrap();
    let file = large.files().iter().find(|file| file.size > 140_000).unwrap();
    stream.path = file.path();
    let wide = run(&lab, vec![stream.clone()], 20_000);
    // Half of what is asked for.
    let bits_per_second = file.size * 8 * 10;
    let shaped = lab.shape(&Shaping { bits_per_second, queue: 15 }).unwrap();
    let narrow = run(&lab, vec![stream], 20_000);
    let [before, after] = [&wide, &narrow].map(|report| &report.streams[0].total);
    assert_eq!(before.counts.answered, 60, "{before:?}");
    assert!(after.perceived.p50 > 3.0 * before.perceived.p50, "{before:?} {after:?}");
    assert!(shaped.dropped().unwrap() > 0, "{after:?}");
    drop(shaped);
    let rules = lab.run_in(Role::Server, &["tc", "qdisc", "show", "dev", "s0"], "").unwrap();
    assert!(!rules.contains("tbf"), "{rules}");
    assert!(lab.shape(&Shaping { bits_per_second: 1, queue: 1 }).is_err());
}

/// Non-idle time of all CPUs by clock ticks (100 a second): user, nice, system, irq, softirq.
fn ticks() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().next().unwrap();
    let numbers: Vec<f64> = line.split_whitespace().skip(1).map(|n| n.parse().unwrap()).collect();
    (numbers[0] + numbers[1] + numbers[2] + numbers[5] + numbers[6]) / 100.0
}

/// The idle loops see a known load on either CPU, to a tenth of the CPUs' time: the one that the
/// test makes, and whatever else runs meanwhile, by clock ticks, which see all of a load that is no
/// network's. What else runs on the same core, here or in another machine, makes a loop slower in
/// the time that is left, and nothing makes it faster: the least of several tries is the meter's.
#[test]
fn idle_loops_see_a_known_load() {
    let _one = one_at_a_time();
    let lab = lab();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for cpu in 0..cpus {
        let mut over: Vec<f64> = (0..8).map(|_| seen_beyond_known(&lab, cpu)).collect();
        over.sort_by(f64::total_cmp);
        println!("CPU {cpu}: {over:.3?} of the CPUs' time too much");
        assert!(over[0].abs() < 0.1, "CPU {cpu}: {over:.3?}");
    }
}

/// What the loops see of a load on `cpu` beyond what clock ticks do, as a part of the time of all
/// CPUs, of which the load is half or so.
fn seen_beyond_known(lab: &Lab, cpu: usize) -> f64 {
    let meter = lab.idle_meter(Nanos::from_millis(500)).unwrap();
    let now = || (meter.mark().unwrap(), ticks() - meter.own().unwrap().as_secs_f64());
    let (began, from) = (MonotonicClock.now(), now());
    let burn = [env!("CARGO_BIN_EXE_tidegate-load"), "burn", "800000"];
    let status = Command::new("taskset").args(["-c", &cpu.to_string()]).args(burn).status();
    assert!(status.unwrap().success());
    let (to, took) = (now(), (MonotonicClock.now() - began).as_secs_f64());
    let (busy, known) = (meter.busy(&from.0, &to.0).as_secs_f64(), to.1 - from.1);
    assert!(known > 0.75, "{known} s were used, 0.8 s by the test");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (busy - known) / (took * cpus as f64)
}
