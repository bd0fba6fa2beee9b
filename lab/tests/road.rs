// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Four routers and two servers with a narrow link on the way.
//!
//! ```text
//!  cl ── R0 ──┐                             ┌── S0: a rule for datagrams
//!             R2 ── 2 Mbit/s, queue 50 ── R3
//!  cl ── R1 ──┘                             └── S1: the small server
//! ```

mod common;

use common::{eventually, lab, one_at_a_time, run, steady};
use tidegate_lab::{Cost, InBandOptions, RoadHost, Shaping, TinyOptions, remains};
use tidegate_units::Nanos;

const NARROW: Shaping = Shaping { bits_per_second: 2_000_000, queue: 50 };

/// Requests of both agents get through and fit; datagrams for twice the link do not, and the rule at S0 counts
/// those that arrive. Nothing is left.
#[test]
fn a_road_carries_what_its_narrow_link_can() {
    let _one = one_at_a_time();
    let lab = lab();
    let road = lab.road(&NARROW, None).unwrap();
    let cost = Cost::wait(Nanos::ZERO);
    let options = TinyOptions { workers: 32, cost, ..TinyOptions::default() };
    let server = road.start_tiny(RoadHost::S1, &options).unwrap();
    let stream = |agent: u8| {
        let name = format!("agent{agent}");
        road.stream((&name, agent), (RoadHost::S1, &server), 300, steady(50.0, 1_000))
    };
    let report = run(&lab, vec![stream(0), stream(1)], 8_000);
    for stream in &report.streams {
        assert_eq!(stream.total.counts.answered, 50, "{}: {:?}", stream.name, stream.total);
    }
    let narrow = road.narrow().unwrap().counts().unwrap();
    assert_eq!(narrow.dropped, 0, "{narrow:?}");
    assert!(narrow.bytes >= 100 * 600 && narrow.packets >= 400, "{narrow:?}");

    let rule = road.limit_datagrams(RoadHost::S0, Some(50)).unwrap();
    let passing = road.limit_datagrams(RoadHost::R3, None).unwrap();
    let sender = road.send_datagrams(1, (500.0, 1_000)).unwrap();
    assert!(eventually(10, || rule.counts().is_ok_and(|counts| counts.refused > 200)));
    drop(sender);
    let (at_s0, at_r3) = (rule.counts().unwrap(), passing.counts().unwrap());
    assert!(at_s0.passed > 30 && at_s0.refused > at_s0.passed, "{at_s0:?}");
    assert!(at_r3.passed >= at_s0.passed + at_s0.refused, "{at_r3:?} {at_s0:?}");
    assert!(road.narrow().unwrap().dropped().unwrap() > 100);

    let id = lab.id().to_owned();
    drop((rule, passing, server));
    drop(road);
    drop(lab);
    assert_eq!(remains(&id), Vec::<String>::new());
}

/// However many workers it has, a serial server spends the cost of one request at a time.
#[test]
fn a_serial_server_serves_one_at_a_time() {
    let _one = one_at_a_time();
    let lab = lab();
    let road = lab.road(&NARROW, Some(&NARROW)).unwrap();
    let cost = Cost::wait(Nanos::from_millis(50));
    let time = |serial: bool| {
        let options = TinyOptions { workers: 32, cost, serial, ..TinyOptions::default() };
        let server = road.start_tiny(RoadHost::S0, &options).unwrap();
        let arrive = steady(100.0, 200);
        let stream = road.stream(("all", 0), (RoadHost::S0, &server), 0, arrive);
        let report = run(&lab, vec![stream], 8_000);
        assert_eq!(report.streams[0].total.counts.answered, 20, "{:?}", report.streams[0].total);
        report.streams[0].total.perceived.p99
    };
    // The last of 20 comes after 0.2 s, and is served after 1 s.
    assert!(time(true) > 0.7);
    assert!(time(false) < 0.7);
}

/// The published mode, in which packets make limits: a flood fills the link, R2 marks, S0 answers on responses to
/// the same agent, R2 adds its address, and S0 limits it. Without the flood that is over.
#[test]
fn marks_and_options_lead_to_limits_as_published() {
    let _one = one_at_a_time();
    let lab = lab();
    let road = lab.road(&NARROW, None).unwrap();
    let cost = Cost::wait(Nanos::ZERO);
    let options = TinyOptions { workers: 32, cost, ..TinyOptions::default() };
    let server = road.start_tiny(RoadHost::S0, &options).unwrap();
    let (queue, append, samples) = (25.0, 0.125, 100.0);
    let told = InBandOptions { rates: (100.0, 50.0), k: 1.2, queue, append, samples };
    let published = road.in_band_unsafe(&told).unwrap();
    let stream = || {
        let arrive = steady(50.0, 8_000);
        road.stream(("agent", 1), (RoadHost::S0, &server), 300, arrive)
    };
    run(&lab, vec![stream()], 12_000);
    let calm = published.seen();
    assert_eq!((calm.marked, calm.option_bytes, calm.limits), (0.0, 0.0, 0.0), "{calm:?}");

    let sender = road.send_datagrams(1, (500.0, 1_000)).unwrap();
    run(&lab, vec![stream()], 12_000);
    let seen = published.seen();
    assert!(seen.marked > 0.0 && seen.option_bytes > 0.0 && seen.limits > 0.0, "{seen:?}");
    assert!(seen.refused_datagrams > 100.0 && seen.refused == 0.0, "{seen:?}");
    let narrow = road.narrow().unwrap().counts().unwrap();
    assert!(seen.option_bytes <= 0.05 * narrow.bytes as f64, "{seen:?} {narrow:?}");

    drop(sender);
    assert!(eventually(20, || {
        let seen = published.seen();
        !seen.congested && seen.datagram_limit.is_none()
    }));
}

/// Without a border forged marks and options come to S0, where they are counted.
#[test]
fn forged_marks_pass_where_nobody_clears_them() {
    let _one = one_at_a_time();
    let lab = lab();
    let road = lab.road(&NARROW, None).unwrap();
    let seen = road.see_marks().unwrap();
    let attacker = road.forge_marks().unwrap();
    assert!(eventually(20, || seen.counts().is_ok_and(|c| c.options > 20 && c.marks > 10)));
    assert!(eventually(5, || attacker.counts().sent > 20));
    let counts = seen.counts().unwrap();
    assert!(counts.marks < counts.options, "of three marks two are a server's: {counts:?}");
}
