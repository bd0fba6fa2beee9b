// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real servers, today's rivals in front of them, and their capacity.
//!
//! ```text
//!  cl, load on CPU 1 ── rt ── sv, CPU 0: [nftables] ─► [HAProxy | nginx :80] ─► server :80 or :8080
//! ```

mod common;

use common::{answers, lab, one_at_a_time, run, steady};
use tidegate_lab::{
    ApacheOptions, CapacityOptions, Cost, CpuCut, FailsafePolicy, FrontKind, LabError, Mpm,
    NftHook, NftLimit, NginxOptions, TinyOptions,
};
use tidegate_units::{Nanos, Share};
use tidegate_workload::Shape;

fn millis(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// A quick measurement, enough for a band of 10 %.
fn quick() -> CapacityOptions {
    CapacityOptions {
        clients_from: 8,
        clients_max: 8,
        probe: millis(600),
        window: millis(400),
        windows: 5,
        warm_up: millis(300),
        ..CapacityOptions::default()
    }
}

#[test]
fn every_server_answers_over_both_families() {
    let _one = one_at_a_time();
    let lab = lab();
    let upstream = TinyOptions {
        port: 9_000,
        workers: 4,
        cost: Cost::wait(millis(5)).shaped(Shape::Exponential),
        ..TinyOptions::default()
    };
    let heavy = Shape::Pareto { alpha: 1.5, ratio: 100.0 };
    let apache = |mpm, cost| lab.start_apache(&ApacheOptions::cgi(mpm, cost));
    answers(&lab, &apache(Mpm::Prefork, Cost::busy(millis(2))).unwrap());
    answers(&lab, &apache(Mpm::Event, Cost::wait(millis(2)).shaped(heavy)).unwrap());
    let file = ApacheOptions { cgi: None, ..ApacheOptions::cgi(Mpm::Event, Cost::busy(millis(1))) };
    answers(&lab, &lab.start_apache(&file).unwrap());
    answers(&lab, &lab.start_nginx(&NginxOptions::default()).unwrap());
    let proxy = NginxOptions { upstream: Some(upstream), ..NginxOptions::default() };
    answers(&lab, &lab.start_nginx(&proxy).unwrap());
    answers(&lab, &lab.start_tiny(&TinyOptions::default()).unwrap());
}

/// Each rival refuses by its own counter and as the clients see it.
#[test]
fn every_rival_refuses_and_tells_how_often() {
    let _one = one_at_a_time();
    let lab = lab();
    let cost = Cost::busy(millis(10));
    let behind = TinyOptions { port: 8_080, cost, ..TinyOptions::default() };
    let server = lab.start_tiny(&behind).unwrap();
    let fronts = [
        FrontKind::Haproxy { maxconn: 1, queue: millis(50) },
        FrontKind::NginxLimitConn { connections: 2 },
        FrontKind::NginxLimitReq { rate: 60, burst: 0 },
        FrontKind::NginxLimitReq { rate: 60, burst: 6 },
    ];
    for kind in fronts {
        let front = lab.start_front(&kind, &server, 80).unwrap();
        let report = run(&lab, vec![front.server.stream("all", steady(300.0, 1_000))], 8_000);
        let counts = report.streams[0].total.counts;
        assert!(counts.refused_http > 50 && counts.answered > 30, "{kind:?}: {counts:?}");
        assert_eq!(front.refused().unwrap(), counts.refused_http, "{kind:?}");
    }
    let deny = lab.start_front(&FrontKind::HaproxyDeny, &server, 80).unwrap();
    let report = run(&lab, vec![deny.server.stream("all", steady(50.0, 1_000))], 8_000);
    assert_eq!(report.streams[0].total.counts.refused_http, 50, "{:?}", report.streams[0].total);
    assert_eq!(deny.refused().unwrap(), 50);
    drop(deny);
    let envoy = FrontKind::Envoy { program: "/nowhere/envoy".into() };
    let failsafe = FrontKind::Failsafe {
        program: "/nowhere/failsafe".into(),
        policy: FailsafePolicy::Limiter,
        wait: millis(50),
    };
    for kind in [envoy, failsafe] {
        let missing = lab.start_front(&kind, &server, 80).unwrap_err();
        assert!(matches!(missing, LabError::Missing(_)), "{missing}");
    }
    for (hook, reject) in [(NftHook::Input, true), (NftHook::Netdev, true), (NftHook::Input, false)]
    {
        let limit = NftLimit { hook, port: 8_080, rate: 20, burst: 5, reject };
        let rule = lab.limit_by_nft(&limit).unwrap();
        let report = run(&lab, vec![server.stream("all", steady(100.0, 1_000))], 2_500);
        let counts = report.streams[0].total.counts;
        assert!(counts.refused >= 50 && counts.answered >= 20, "{limit:?}: {counts:?}");
        let refused = rule.refused().unwrap();
        assert!(refused >= counts.refused, "{limit:?}: {refused}, {counts:?}");
        if reject {
            assert_eq!(counts.refused_connect, refused, "{limit:?}: {counts:?}");
        }
    }
}

/// Two measurements of the same server agree, and half of its CPU gives half of its answers, either
/// way of taking it.
#[test]
fn capacity_repeats_and_follows_the_cpu() {
    let _one = one_at_a_time();
    let lab = lab();
    let options = ApacheOptions::cgi(Mpm::Prefork, Cost::busy(millis(10)));
    let server = lab.start_apache(&options).unwrap();
    // A machine that is busy with something else for a moment is no failure of the lab.
    let agree = (0..3).any(|_| {
        let first = lab.capacity(&server, &quick()).unwrap();
        let second = lab.capacity(&server, &quick()).unwrap();
        println!("capacity {} and {}", first.rate, second.rate);
        first.drift(&second) <= 0.1
    });
    assert!(agree, "no two of six measurements in a row agree within 10 %");
    // With the search for the number of clients: more than one is needed, and few are enough.
    let search = CapacityOptions { clients_from: 1, clients_max: 64, ..quick() };
    let found = lab.capacity(&server, &search).unwrap();
    assert!(found.probes.len() >= 3 && found.probes.len() <= 7, "{found:?}");
    for cut in [CpuCut::Quota(Share::new(0.5)), CpuCut::Competitor] {
        let halves = (0..3).any(|_| {
            let whole = lab.capacity(&server, &quick()).unwrap().rate.get();
            let guard = lab.cut_cpu(&server, cut).unwrap();
            let half = lab.capacity(&server, &quick()).unwrap().rate.get();
            drop(guard);
            let again = lab.capacity(&server, &quick()).unwrap().rate.get();
            println!("{cut:?}: {half:.1} of {whole:.1}, then {again:.1}");
            (0.3..0.7).contains(&(half / whole)) && again / whole > 0.8
        });
        assert!(halves, "{cut:?}: in none of three tries half, and then the whole again");
    }
}
