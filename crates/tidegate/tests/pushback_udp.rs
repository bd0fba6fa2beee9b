// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NetDraino and UDP: a server that is flooded with datagrams limits what a congested router lets through (needs
//! root). The topology is that of `common/congested.rs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::congested::{DATAGRAMS, World, target};
use common::star::{Daemon, refused};
use common::wait_for;
use std::net::TcpStream;
use std::time::Duration;
use tidegate_control::fleet::remote::K;
use tidegate_model::remote::{REMOTE_VALIDITY_MAX, Unit};
use tidegate_model::snapshot::{RemoteState, ServiceState};
use tidegate_model::totals::DatagramTotals;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

const NET: u8 = 83;
/// Datagrams per second that the server takes; ten times as many come.
const TAKES: u64 = DATAGRAMS / 10;
/// Seconds for which arrivals are counted, and connections made.
const MEASURED: u64 = 6;
/// A connection through a link that is not full takes less.
const SOON: Duration = Duration::from_millis(900);

fn service(daemon: &Daemon) -> ServiceState {
    daemon.snapshot().unwrap().services.remove(0)
}

fn came(daemon: &Daemon) -> DatagramTotals {
    service(daemon).totals.unwrap().datagrams.unwrap()
}

/// The limit on datagrams.
fn limit(daemon: &Daemon) -> Option<RemoteState> {
    let mut limits = service(daemon).remote.into_iter();
    limits.find(|limit| limit.unit == Unit::Datagrams && limit.rate.is_some())
}

/// Connections that come up soon, of so many.
fn connected(world: &World, tries: u64) -> u64 {
    let to = target(NET).parse().unwrap();
    let once = || Ok(TcpStream::connect_timeout(&to, SOON).is_ok());
    let up = |_: &u64| in_namespace(Some(&world.star.namespace("c")), once).unwrap();
    (0..tries).filter(up).count() as u64
}

#[test]
fn a_flood_of_datagrams_is_refused_at_the_congested_router() {
    let world = World::new("tgu", NET, Some(TAKES));
    let (router, server) = (world.router(), world.server());
    wait_for("the session is up", || server.snapshot()?.peers.remove(0).up.then_some(()));
    assert_eq!(connected(&world, 5), 5, "a quiet link");
    assert_eq!((came(&router), limit(&router)), (DatagramTotals::default(), None));

    let flood = world.datagrams(8000);
    let whole = Rate::per_second(TAKES as f64);
    let began = MonotonicClock.now();
    let held = wait_for("the limit is down to what the server takes", || {
        limit(&router).filter(|limit| limit.rate.is_some_and(|rate| rate <= whole))
    });
    eprintln!("down to {:?} after {}", held.rate, MonotonicClock.now().since(began));
    assert_eq!((held.peer.as_str(), held.role.as_str()), ("s", "from"));
    assert_eq!(held.restriction.unwrap().kind(), "datagrams");
    let given = limit(&server).unwrap();
    assert_eq!((given.peer.as_str(), given.role.as_str()), ("r", "to"));

    // No new limit, and no connection is touched: the link has room for them again.
    let (before, at) = (came(&server), MonotonicClock.now());
    let each_second = |second: u64| {
        let up = connected(&world, 1);
        let over = Nanos::from_secs(second);
        wait_for("a second is over", || (MonotonicClock.now().since(at) >= over).then_some(up))
    };
    let up: u64 = (1..=MEASURED).map(each_second).sum();
    let (now, seconds) = (came(&server), MonotonicClock.now().since(at).as_secs_f64());
    let arrive = (now.offered - before.offered) as f64 / seconds;
    eprintln!("{arrive:.1} datagrams a second arrive of {DATAGRAMS}; {up} of {MEASURED} connect");
    assert!(arrive <= 1.1 * K * TAKES as f64, "{arrive} a second arrive at the server");
    assert_eq!(up, MEASURED, "connections of others");
    assert_eq!((refused(&service(&router)), service(&router).limits.rate), (0, None));
    assert!(router.snapshot().unwrap().links[0].congested, "the limit does not end its reason");
    let counts = came(&router);
    assert!(counts.refused > counts.offered / 2 && counts.refused <= counts.offered, "{counts:?}");
    wait_for("hit counters come back", || limit(&server).filter(|limit| limit.refused > 100));

    drop(server);
    let killed = MonotonicClock.now();
    wait_for("the limit is gone", || limit(&router).is_none().then_some(()));
    let took = MonotonicClock.now().since(killed);
    eprintln!("gone {took} after the server's daemon was killed");
    assert!(took <= REMOTE_VALIDITY_MAX + Nanos::SECOND, "{took}");
    // What was refused in the limit's last tick is counted in the next one.
    let gone = came(&router);
    let before = wait_for("the next tick", || {
        Some(came(&router)).filter(|counts| counts.offered > gone.offered)
    });
    wait_for("all pass", || (came(&router).offered > before.offered + 100).then_some(()));
    assert_eq!(came(&router).refused, before.refused);
    drop(flood);
}
