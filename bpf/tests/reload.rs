// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes while packets flow: plans, limits, classes, and what is forgotten when.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_bpf::ServiceParams;
use tidegate_bpf::testing::plans::{self, plan};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane};
use tidegate_config::{ClassConfig, Exempt, InterfaceConfig, ServiceConfig};
use tidegate_policy::{
    Action, BucketSpec, InFlight, Level, MinRate, Params, Policy, Reason, ThresholdSpec,
    VerdictKind,
};
use tidegate_units::{Nanos, Rate};

const CLIENT: [u8; 4] = [198, 51, 100, 7];

fn service(name: &str, port: u16) -> ServiceConfig {
    plans::service(name, &[&format!("0.0.0.0:{port}")])
}

fn limits(service: usize, burst: u32, reserve: [u32; 8]) -> ServiceParams {
    let mut spec = BucketSpec::new(Rate::per_second(0.001), burst, Action::Drop);
    spec.reserve = reserve;
    ServiceParams::new(service, Params::token_bucket(&spec).unwrap())
}

/// A TCP segment to or from 192.0.2.10.
struct Segment {
    client: [u8; 4],
    ports: (u16, u16),
    tos: u8,
    flags: u8,
    numbers: (u32, u32),
    payload: usize,
}

fn segment(s: &Segment, from_server: bool) -> Vec<u8> {
    let server = [192, 0, 2, 10];
    let (src, dst) = if from_server { (server, s.client) } else { (s.client, server) };
    let ports = if from_server { (s.ports.1, s.ports.0) } else { s.ports };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, s.tos];
    frame.extend((40 + s.payload as u16).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(src.into_iter().chain(dst));
    frame.extend(ports.0.to_be_bytes().into_iter().chain(ports.1.to_be_bytes()));
    frame.extend(s.numbers.0.to_be_bytes().into_iter().chain(s.numbers.1.to_be_bytes()));
    frame.extend([0x50, s.flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.resize(frame.len() + s.payload, b'x');
    frame
}

fn syn(client: [u8; 4], port: u16, tos: u8) -> Vec<u8> {
    let (ports, numbers) = ((40_000, port), (1, 0));
    segment(&Segment { client, ports, tos, flags: 2, numbers, payload: 0 }, false)
}

fn outcome(plane: &TestPlane, packet: &[u8]) -> Outcome {
    plane.run(TestHook::Xdp, packet).unwrap().outcome
}

#[test]
fn a_reload_keeps_state_by_name_and_forgets_it_where_an_index_changes_hands() {
    let mut plane = TestPlane::load(&plan(vec![service("a", 80), service("b", 81)])).unwrap();
    plane.set_limits(&[limits(0, 1, [0; 8]), limits(1, 1, [0; 8])], &[], 9).unwrap();
    for port in [80, 81] {
        assert_eq!(outcome(&plane, &syn(CLIENT, port, 0)), Outcome::Pass);
        assert_eq!(outcome(&plane, &syn(CLIENT, port, 0)), Outcome::Drop);
    }
    // "a" listens elsewhere, too; "b" gives way to "c".
    let mut a = service("a", 80);
    a.listen.push("0.0.0.0:8080".parse().unwrap());
    plane.apply(&plan(vec![a, service("c", 82)])).unwrap();
    for port in [80, 8080] {
        assert_eq!(outcome(&plane, &syn(CLIENT, port, 0)), Outcome::Drop, "a: {port}");
    }
    assert_eq!(outcome(&plane, &syn(CLIENT, 81, 0)), Outcome::Pass, "no service any more");
    assert_eq!(outcome(&plane, &syn(CLIENT, 82, 0)), Outcome::Pass, "c has no limit yet");
    let totals = (plane.totals(0).unwrap(), plane.totals(1).unwrap());
    assert_eq!((totals.0.offered, totals.0.refused), (4, 3), "a counts on");
    assert_eq!((totals.1.offered, totals.1.refused), (1, 0), "c begins at zero");
    let counts = plane.counts().unwrap();
    assert!(counts.iter().all(|c| c.service == 0 || c.reason == Reason::NoLimit), "{counts:?}");
    let seen = plane.passed().unwrap();
    assert!(seen.iter().any(|p| p.reason == Reason::NotService && p.count == 1), "{seen:?}");
}

#[test]
fn another_policy_starts_with_a_fresh_memory_and_limits_must_be_its_own() {
    let mut plane = TestPlane::load(&plan(vec![service("a", 80)])).unwrap();
    plane.set_limits(&[limits(0, 1, [0; 8])], &[], 2).unwrap();
    outcome(&plane, &syn(CLIENT, 80, 0));
    assert!(plane.state(0).unwrap().iter().any(|byte| *byte != 0));
    let mut other = service("a", 80);
    other.policy = plans::policy(Policy::FreshFirst, Action::Drop);
    plane.apply(&plan(vec![other])).unwrap();
    assert!(plane.state(0).unwrap().iter().all(|byte| *byte == 0));
    let error = plane.set_limits(&[limits(0, 1, [0; 8])], &[], 3).unwrap_err().to_string();
    assert!(error.contains("token_bucket") && error.contains("fresh_first"), "{error}");
    assert_eq!(outcome(&plane, &syn(CLIENT, 80, 0)), Outcome::Pass, "no limit");
}

#[test]
fn the_longest_prefix_gives_the_class_and_dscp_only_where_it_is_trusted() {
    let class = |name: &str, sources: &[&str], dscp, priority| ClassConfig {
        name: name.into(),
        sources: sources.iter().map(|s| s.parse().unwrap()).collect(),
        dscp,
        priority,
        weight: 1,
    };
    let mut a = service("a", 80);
    a.classes = vec![
        class("wide", &["198.51.0.0/16"], None, 5),
        class("narrow", &["198.51.100.0/24"], None, 0),
        class("voice", &[], Some(46), 1),
    ];
    for (trust_dscp, voice) in [(false, 0), (true, 3)] {
        let mut plan = plan(vec![a.clone()]);
        plan.config.interfaces = vec![InterfaceConfig { trust_dscp, ..InterfaceConfig::default() }];
        let plane = TestPlane::load(&plan).unwrap();
        let cases = [
            ([198, 51, 100, 7], 0, 2),
            ([198, 51, 7, 7], 0, 1),
            ([203, 0, 113, 1], 46 << 2, voice),
        ];
        for (client, tos, class) in cases {
            let before = plane.counts().unwrap();
            outcome(&plane, &syn(client, 80, tos));
            let after = plane.counts().unwrap();
            let new: Vec<_> = after.iter().filter(|c| !before.contains(c)).collect();
            assert_eq!(new.len(), 1);
            assert_eq!(new[0].class, class, "{client:?} trust {trust_dscp}");
        }
    }
}

#[test]
fn tokens_are_kept_for_the_classes_above() {
    let mut a = service("a", 80);
    a.classes = vec![ClassConfig {
        name: "partners".into(),
        sources: vec!["198.51.100.0/24".parse().unwrap()],
        dscp: None,
        priority: 0,
        weight: 1,
    }];
    let mut plane = TestPlane::load(&plan(vec![a])).unwrap();
    plane.set_limits(&[limits(0, 3, [0, 2, 2, 2, 2, 2, 2, 2])], &[], 2).unwrap();
    let other = [203, 0, 113, 1];
    assert_eq!(outcome(&plane, &syn(other, 80, 0)), Outcome::Pass);
    assert_eq!(outcome(&plane, &syn(other, 80, 0)), Outcome::Drop);
    assert_eq!(outcome(&plane, &syn(CLIENT, 80, 0)), Outcome::Pass);
    assert_eq!(outcome(&plane, &syn(CLIENT, 80, 0)), Outcome::Pass);
    assert_eq!(outcome(&plane, &syn(CLIENT, 80, 0)), Outcome::Drop);
    let counts = plane.counts().unwrap();
    let reasons: Vec<_> = counts
        .iter()
        .filter(|c| c.verdict == VerdictKind::Drop)
        .map(|c| (c.class, c.reason))
        .collect();
    assert_eq!(reasons, [(0, Reason::Reserved), (1, Reason::Rate)]);
}

#[test]
fn exempt_sources_and_ports_pass_whatever_the_limit() {
    let mut plan = plan(vec![service("a", 80), service("ssh", 22)]);
    plan.config.exempt = Exempt {
        sources: vec!["198.51.100.0/24".parse().unwrap()],
        ports: vec![22],
        ..Exempt::default()
    };
    let mut plane = TestPlane::load(&plan).unwrap();
    plane.set_limits(&[limits(0, 1, [0; 8]), limits(1, 1, [0; 8])], &[], 2).unwrap();
    let other = [203, 0, 113, 1];
    for _ in 0..3 {
        assert_eq!(outcome(&plane, &syn(CLIENT, 80, 0)), Outcome::Pass);
        assert_eq!(outcome(&plane, &syn(other, 22, 0)), Outcome::Pass);
    }
    assert_eq!(outcome(&plane, &syn(other, 80, 0)), Outcome::Pass, "the token is still there");
    assert_eq!(outcome(&plane, &syn(other, 80, 0)), Outcome::Drop);
}

/// Opens a connection that waits for a response: handshake, request, and the server's ACK of it.
fn open(plane: &TestPlane, client_port: u16) {
    let at = |flags, numbers, payload| Segment {
        client: CLIENT,
        ports: (client_port, 80),
        tos: 0,
        flags,
        numbers,
        payload,
    };
    plane.run(TestHook::Xdp, &segment(&at(0x02, (10, 0), 0), false)).unwrap();
    plane.run(TestHook::Egress, &segment(&at(0x12, (77, 11), 0), true)).unwrap();
    plane.run(TestHook::Xdp, &segment(&at(0x18, (11, 78), 100), false)).unwrap();
    plane.run(TestHook::Egress, &segment(&at(0x10, (78, 111), 0), true)).unwrap();
}

#[test]
fn only_an_ack_that_names_the_servers_isn_opens_a_connection() {
    let plane = TestPlane::load(&plan(vec![service("a", 80)])).unwrap();
    let at = |flags, numbers, payload| Segment {
        client: CLIENT,
        ports: (40_000, 80),
        tos: 0,
        flags,
        numbers,
        payload,
    };
    plane.run(TestHook::Xdp, &segment(&at(0x02, (10, 0), 0), false)).unwrap();
    plane.run(TestHook::Xdp, &segment(&at(0x10, (11, 78), 0), false)).unwrap();
    assert_eq!(plane.totals(0).unwrap().open, 0, "no SYN-ACK was seen");
    plane.run(TestHook::Egress, &segment(&at(0x12, (77, 11), 0), true)).unwrap();
    plane.run(TestHook::Xdp, &segment(&at(0x10, (11, 79), 0), false)).unwrap();
    assert_eq!(plane.totals(0).unwrap().open, 0, "a guess");
    plane.run(TestHook::Xdp, &segment(&at(0x10, (11, 78), 0), false)).unwrap();
    plane.run(TestHook::Xdp, &segment(&at(0x10, (11, 78), 0), false)).unwrap();
    let totals = plane.totals(0).unwrap();
    assert_eq!((totals.open, totals.silent, totals.waiting), (1, 1, 0), "once");
    plane.run(TestHook::Xdp, &segment(&at(0x18, (11, 78), 100), false)).unwrap();
    let totals = plane.totals(0).unwrap();
    assert_eq!((totals.open, totals.silent, totals.waiting), (1, 0, 0), "a request");
    plane.run(TestHook::Egress, &segment(&at(0x10, (78, 111), 0), true)).unwrap();
    assert_eq!(plane.totals(0).unwrap().waiting, 1, "and the server has it");
    // A reset in between ends it, and its wait.
    plane.run(TestHook::Tc, &segment(&at(0x04, (111, 0), 0), false)).unwrap();
    let totals = plane.totals(0).unwrap();
    assert_eq!((totals.open, totals.waiting, totals.end.count), (0, 0, 1));
}

#[test]
fn waiting_connections_bound_what_is_admitted() {
    let mut plane = TestPlane::load(&plan(vec![service("a", 80)])).unwrap();
    let mut limit = limits(0, 1, [0; 8]);
    limit.params = Params::no_limit(Policy::TokenBucket);
    limit.waiting_max = Some(InFlight::up_to(3));
    plane.set_limits(&[limit], &[], 2).unwrap();
    for port in 1..=5 {
        open(&plane, port);
    }
    let totals = plane.totals(0).unwrap();
    assert_eq!((totals.waiting, totals.admitted, totals.refused), (3, 3, 2));
    let counts = plane.counts().unwrap();
    assert!(counts.iter().any(|c| c.reason == Reason::Waiting && c.count == 2), "{counts:?}");
}

/// It never comes back: from here on the limit is full. One an interval is admitted all the same, and
/// the policy is asked about it.
#[test]
fn a_full_limit_admits_at_the_least_rate() {
    let mut plane = TestPlane::load(&plan(vec![service("a", 80)])).unwrap();
    let mut limit = limits(0, 3, [0; 8]);
    limit.waiting_max = Some(InFlight::up_to(1));
    let every = |seconds: f64| Some(MinRate::per(Rate::per_second(1.0 / seconds)));
    plane.set_limits(&[limit.clone()], &[], 2).unwrap();
    let admitted = |plane: &TestPlane| plane.totals(0).unwrap().admitted;
    (1..=5).for_each(|port| open(&plane, port));
    assert_eq!(admitted(&plane), 1, "no least rate");
    // an interval since the machine has started
    limit.min_rate = every(1e-3);
    plane.set_limits(&[limit.clone()], &[], 3).unwrap();
    open(&plane, 6);
    assert_eq!(admitted(&plane), 2);
    // other limits do not change when that was
    limit.min_rate = every(3600.0);
    plane.set_limits(&[limit.clone()], &[], 4).unwrap();
    (7..=11).for_each(|port| open(&plane, port));
    assert_eq!(admitted(&plane), 2, "once an interval");
    limit.min_rate = every(1e-6);
    plane.set_limits(&[limit], &[], 5).unwrap();
    (12..=16).for_each(|port| open(&plane, port));
    let totals = plane.totals(0).unwrap();
    assert_eq!((totals.waiting, totals.admitted), (3, 3), "as many as there are tokens");
    let refused = |reason| {
        let counts = plane.counts().unwrap();
        counts.iter().filter(|count| count.reason == reason).map(|count| count.count).sum::<u64>()
    };
    assert_eq!((refused(Reason::Waiting), refused(Reason::Rate)), (9, 4));
}

/// A RST of the client ends its connection.
fn reset(plane: &TestPlane, port: u16) {
    let rst = Segment {
        client: CLIENT,
        ports: (port, 80),
        tos: 0,
        flags: 0x04,
        numbers: (111, 0),
        payload: 0,
    };
    plane.run(TestHook::Xdp, &segment(&rst, false)).unwrap();
}

/// The level is read with each SYN, and moves its verdict: nothing is written in between.
#[test]
fn thresholds_follow_what_is_in_flight() {
    let service = ServiceConfig {
        policy: plans::policy(Policy::Threshold, Action::Drop),
        ..service("a", 80)
    };
    let mut plane = TestPlane::load(&plan(vec![service])).unwrap();
    let spec = ThresholdSpec::dropping(2, 4, Action::Drop);
    let mut limit = ServiceParams::new(0, Params::threshold(&spec).unwrap());
    plane.set_limits(&[limit.clone()], &[], 2).unwrap();
    let waits = |plane: &TestPlane| plane.totals(0).unwrap().waiting;
    (1..=6).for_each(|port| open(&plane, port));
    assert_eq!(waits(&plane), 6, "nothing is counted: the level is 0");
    (3..=6).for_each(|port| reset(&plane, port));
    limit.level = Level::IN_FLIGHT;
    plane.set_limits(&[limit.clone()], &[], 3).unwrap();
    (7..=12).for_each(|port| open(&plane, port));
    assert_eq!((waits(&plane), plane.rungs(0).unwrap()), (4, Some([4; 8])), "up to the discard");
    (1..=2).for_each(|port| reset(&plane, port));
    open(&plane, 13);
    assert_eq!(waits(&plane), 2, "below it, and not below the abatement");
    reset(&plane, 7);
    open(&plane, 14);
    assert_eq!((waits(&plane), plane.rungs(0).unwrap()), (2, Some([0; 8])), "below");
    let refused = |reason| {
        let counts = plane.counts().unwrap();
        counts.iter().filter(|count| count.reason == reason).map(|count| count.count).sum::<u64>()
    };
    assert_eq!((refused(Reason::Discard), refused(Reason::Waiting)), (5, 0));
    // 2 requests of 20 ms each
    let spec = ThresholdSpec::dropping(1, 40_000, Action::Drop);
    limit.params = Params::threshold(&spec).unwrap();
    for (per_request, passes) in [(19, 3), (20, 3), (21, 3)] {
        limit.level = Level::waiting_time(Nanos::from_millis(per_request));
        plane.set_limits(&[limit.clone()], &[], 4).unwrap();
        let syn = syn([203, 0, 113, per_request as u8], 80, 0);
        let passed = (0..passes).filter(|_| outcome(&plane, &syn) == Outcome::Pass).count();
        assert_eq!(passed == 3, per_request < 20, "{per_request} ms: {passed} passed");
    }
}

#[test]
fn a_limit_that_has_refused_is_tighter_until_few_are_left() {
    let mut plane = TestPlane::load(&plan(vec![service("a", 80)])).unwrap();
    let mut limit = limits(0, 1, [0; 8]);
    limit.params = Params::no_limit(Policy::TokenBucket);
    limit.waiting_max = Some(InFlight::up_to(4).tight((2, 1)));
    plane.set_limits(&[limit.clone()], &[], 2).unwrap();
    let waits = |plane: &TestPlane| plane.totals(0).unwrap().waiting;
    (1..=5).for_each(|port| open(&plane, port));
    assert_eq!(waits(&plane), 4, "the fifth is refused");
    (1..=2).for_each(|port| reset(&plane, port));
    open(&plane, 6);
    assert_eq!(waits(&plane), 2, "below the limit, and not below the tighter one");
    // other limits do not change that
    limit.waiting_max = Some(InFlight::up_to(5).tight((2, 1)));
    plane.set_limits(&[limit], &[], 3).unwrap();
    open(&plane, 7);
    assert_eq!(waits(&plane), 2);
    reset(&plane, 3);
    (8..=12).for_each(|port| open(&plane, port));
    assert_eq!(waits(&plane), 5, "the whole limit again");
}

#[test]
fn an_idle_connection_is_forgotten_by_the_heartbeat() {
    let mut plan = plan(vec![service("a", 80)]);
    plan.settings.flow_timeout = Nanos::from_millis(300);
    plan.config.tables.connections = 1024;
    let mut plane = TestPlane::load(&plan).unwrap();
    for port in 1..=20 {
        open(&plane, port);
    }
    assert_eq!(plane.totals(0).unwrap().waiting, 20);
    let start = plane.heartbeat().unwrap();
    assert_eq!(plane.totals(0).unwrap().waiting, 20, "too early");
    while plane.totals(0).unwrap().open > 0 {
        let now = plane.heartbeat().unwrap();
        assert!(now.since(start) < Nanos::from_secs(5), "never forgotten");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    assert_eq!(plane.totals(0).unwrap().waiting, 0);
    assert_eq!(plane.totals(0).unwrap().unseen, 20, "they waited, and will not be seen to end");
}

/// A large table takes no more heartbeats than a small one.
#[test]
fn thirty_two_heartbeats_look_at_a_large_table() {
    let mut plan = plan(vec![service("a", 80)]);
    plan.settings.flow_timeout = Nanos::from_millis(300);
    plan.config.tables.connections = 1 << 20;
    let mut plane = TestPlane::load(&plan).unwrap();
    for port in 1..=20 {
        open(&plane, port);
    }
    assert_eq!(plane.totals(0).unwrap().open, 20);
    std::thread::sleep(std::time::Duration::from_millis(800));
    for _ in 0..32 {
        plane.heartbeat().unwrap();
    }
    assert_eq!(plane.totals(0).unwrap().open, 0);
}

#[test]
fn a_full_table_leaves_the_rest_untracked_and_the_gauges_exact() {
    let mut plan = plan(vec![service("a", 80)]);
    plan.config.tables.connections = 1024;
    let plane = TestPlane::load(&plan).unwrap();
    for port in 1..=4000 {
        open(&plane, port);
    }
    let totals = plane.totals(0).unwrap();
    assert_eq!(totals.open, totals.waiting);
    assert!((900..=1024).contains(&totals.open), "{}", totals.open);
    assert_eq!(totals.open + totals.unseen, 4000);
}
