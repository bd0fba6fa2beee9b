// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server with a bounded queue, its monitor, and clients who are told to throttle.
//!
//! ```text
//!  cl, load ── rt ── sv: Apache :80, so many places; monitor ── UDP ──► load
//! ```

mod common;

use common::{eventually, lab, one_at_a_time, run, steady};
use std::net::{Ipv4Addr, SocketAddrV4};
use tidegate_lab::{LoadPlan, QueuedOptions, Rungs, Throttle};
use tidegate_units::Nanos;

const TOLD: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 2), 7_000);

fn options(places: u32) -> QueuedOptions {
    let (work, busy) = (Nanos::from_millis(15), Nanos::from_millis(1));
    QueuedOptions { port: 80, places, work, busy }
}

/// Who finds no place is told so and nobody is lost; the monitor counts what clients count. Without
/// places all are told so.
#[test]
fn who_finds_no_place_is_told_too_busy() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_queued(&options(4)).unwrap();
    let watch = lab.watch_queue(&server, (&[], Nanos::SECOND), TOLD).unwrap();
    let counts =
        run(&lab, vec![server.stream("all", steady(150.0, 1_000))], 4_000).streams[0].total.counts;
    assert_eq!(counts.answered + counts.refused_http, 150, "{counts:?}");
    assert!(counts.answered >= 4 && counts.refused_http >= 20, "{counts:?}");
    let seen = watch.seen();
    assert!(seen.iter().all(|seen| seen.waiting <= 3), "one of four is served: {seen:?}");
    assert!(seen.iter().any(|seen| seen.waiting == 3), "{seen:?}");
    let same = || {
        watch.seen().last().is_some_and(|last| {
            let both = (u64::from(last.served), u64::from(last.busy));
            both == (counts.answered, counts.refused_http)
        })
    };
    assert!(eventually(5, same), "{:?}", watch.seen().last());
    assert!(watch.changes(&mut 0).is_empty(), "no ladder");
    drop(server);
    let none = lab.start_queued(&options(0)).unwrap();
    let counts =
        run(&lab, vec![none.stream("all", steady(50.0, 500))], 4_000).streams[0].total.counts;
    assert_eq!(counts.refused_http, 25, "{counts:?}");
    assert!(lab.start_queued(&options(1_000)).is_err(), "each place is a process");
}

/// Clients of a ladder that is throttled come later; those of another one come as they would.
#[test]
fn clients_are_told_to_throttle() {
    let _one = one_at_a_time();
    let lab = lab();
    let server = lab.start_queued(&options(100)).unwrap();
    let rungs = [Rungs { abatement: 5, onset: 10 }, Rungs { abatement: 500, onset: 1_000 }];
    let watch = lab.watch_queue(&server, (&rungs, Nanos::SECOND), TOLD).unwrap();
    let streams = [0, 1].map(|ladder| {
        let throttle = Throttle { ladder, gap: Nanos::from_millis(40) };
        let name = format!("client{ladder}");
        tidegate_lab::Stream {
            throttle: Some(throttle),
            ..server.stream(&name, steady(60.0, 2_000))
        }
    });
    let lag_bound = Nanos::from_secs(5);
    let told_at = Some(TOLD);
    let plan = LoadPlan { streams: streams.into(), told_at, lag_bound, ..LoadPlan::default() };
    let report = lab.run_load(&plan, &mut |_| {}).unwrap();
    assert!(report.void.is_empty(), "{:?}", report.void);
    let offered = [0, 1].map(|place: usize| report.streams[place].total.counts.offered);
    assert_eq!(offered[1], 120, "its ladder is never throttled");
    assert!((30..100).contains(&offered[0]), "an interval of 17 ms becomes one of 57: {offered:?}");
    let changes = watch.changes(&mut 0);
    assert!(changes.first().is_some_and(|(_, on)| *on == [true, false]), "{changes:?}");
    let deaf = LoadPlan { told_at: None, ..plan };
    assert!(deaf.check().is_err(), "nobody could tell them");
}
