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
use tidegate_lab::{Cost, RoadHost, Shaping, TinyOptions, remains};
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
