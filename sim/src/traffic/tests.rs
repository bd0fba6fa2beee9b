// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world of sessions against what queueing theory knows.

use super::matrix::{self, prefork, session};
use super::sense::Accounting;
use super::spec::{
    Load, PacketCost, ServerSpec, Service, Session, Spec, Stream, Transport, exponential,
};
use super::{World, run};
use crate::world::Phase;
use tidegate_units::{Clock, Nanos};

/// Nothing was designed or compared with this seed before. It was taken once and not searched.
const SEED: u64 = 331;
const FREE: PacketCost = PacketCost { syn_s: 0.0, accept_s: 0.0, reset_s: 0.0 };

/// One server on so many processors under a constant load of sessions per second.
fn world((server, cpus): (ServerSpec, u32), session: Session, (rate, s): (f64, u64)) -> Spec {
    let phases = vec![Phase { rate, lasts: Nanos::from_secs(s) }];
    Spec {
        cpus,
        packets: FREE,
        services: vec![Service {
            server,
            protection: None,
            successor: None,
            accounting: Accounting::Group,
        }],
        streams: vec![Stream { service: 0, session, load: Load::Open(phases) }],
        changes: Vec::new(),
        patience: Nanos::from_secs(10),
        objective: Nanos::SECOND,
        period: Nanos::from_millis(100),
        control_from: Nanos::ZERO,
        seed: SEED,
    }
}

/// The integral of the exchanges in flight is the sum of their times, whatever the transport: what
/// the dataplane counts obeys Little's law.
#[test]
fn exchanges_in_flight_and_their_times_obey_littles_law() {
    for transport in [Transport::Cleartext, Transport::Tls, Transport::Http2] {
        for requests in [1, 6] {
            let sessions = session(transport, requests, 0.02);
            let mut world = World::new(world((prefork(), 2), sessions, (50.0, 20)));
            let (mut area_ns, mut then) = (0_u128, Nanos::ZERO);
            let mut waiting = 0;
            while let Some(happening) = world.engine.step() {
                let now = world.engine.now();
                area_ns += u128::from(waiting) * u128::from(now.since(then).0);
                then = now;
                world.step(happening).expect("a sound world");
                waiting = world.gates[0].totals().waiting;
            }
            world.check().expect("a sound world");
            let totals = world.gates[0].totals();
            assert_eq!(area_ns, u128::from(totals.first_byte.sum_ns), "{transport:?} {requests}");
            let turns = if transport == Transport::Http2 && requests > 1 { 3 } else { requests };
            let c = totals.connections;
            assert!(c.proved > 500 && c.asked == c.proved && c.ended == c.proved, "{c:?}");
            assert_eq!(c.ended_exchanges, c.proved * u64::from(turns), "{transport:?}");
            assert_eq!(totals.first_byte.count, c.ended_exchanges);
        }
    }
}

/// One thread with exponential times is an M/M/1 queue: 1/(μ − λ) on average.
#[test]
fn one_thread_waits_as_an_m_m_1_queue_does() {
    let server = ServerSpec { accept_s: 0.0, cpu: exponential(4.0), ..matrix::node() };
    let sessions = Session { rtt: Nanos::ZERO, ..session(Transport::Cleartext, 1, 0.0) };
    let courses = run(world((server, 4), sessions, (150.0, 2000))).expect("a sound world");
    let took = &courses[0].report.phases[0].took_s;
    let mean = took.iter().sum::<f64>() / took.len() as f64;
    assert!(took.len() > 290_000 && (mean / 0.01 - 1.0).abs() < 0.03, "mean {mean} s");
}

/// Workers that are held by connections are a queue of their own: with think time, 150 of them
/// complete 150 sessions in the length of one, while the processors are free.
#[test]
fn kept_connections_hold_their_workers() {
    let sessions = session(Transport::Cleartext, 5, 0.5);
    let held_s = 4.0 * 0.5 + 5.0 * 0.014;
    let sessions_s = 150.0 / held_s;
    let spec = world((prefork(), 2), sessions, (1.5 * sessions_s, 60));
    let courses = run(spec).expect("a sound world");
    let answers = courses[0].report.phases[0].answers();
    let share = answers / (5.0 * sessions_s);
    assert!((0.93..=1.0).contains(&share), "{share} of what the workers can do");
}
