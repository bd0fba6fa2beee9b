// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits in the owner's hands: joined with what controllers decide, and given to others.

use super::world::*;
use std::sync::Arc;
use tidegate_api::protocol::Reply;
use tidegate_daemon::plane::Heard;
use tidegate_model::record::What;
use tidegate_model::remote::{Arrived, Hits, ReceivedLimit, RemoteLimit, Restriction, Unit};
use tidegate_model::snapshot::{RemoteState, Snapshot};
use tidegate_units::{Nanos, Rate};

const CONTROL_NODE: &str = "
interfaces: [{name: lo}]
services:
  shop: {mode: enforce, listen: ['192.0.2.11:80'], control: {name: default, min_rate: 5}}
  api: {mode: shadow, listen: ['192.0.2.12:80']}
cluster:
  certificate: /c.pem
  key: /k.pem
  ca_file: /a.pem
  listen: 192.0.2.1:7416
  peers:
    b1: {identity: spiffe://example/b1, services: [shop], limits: ['192.0.2.11:80', api]}
";

const SERVER: &str = "
interfaces: [{name: lo}]
services:
  shop: {mode: enforce, listen: ['*:80']}
cluster:
  certificate: /c.pem
  key: /k.pem
  ca_file: /a.pem
  report_to:
    f1: {address: '192.0.2.1:7416', identity: spiffe://example/f1,
      limits: [{service: shop, scope: '192.0.2.11:80'}]}
    f2: {address: '192.0.2.2:7416', identity: spiffe://example/f2,
      limits: [{service: shop, scope: shop-1}]}
";

/// The peer b1 limits a scope in its session.
fn says(world: &World, sequence: u64, scope: &str, rate: f64) {
    let limit = RemoteLimit {
        scope: scope.parse().unwrap(),
        restriction: Restriction::Rate(Rate::per_second(rate)),
        validity: Nanos::from_millis(500),
        sequence,
        priority: 0,
    };
    let at = Nanos::from_secs(1000);
    let received = ReceivedLimit { peer: "b1".into(), session: 7, epoch: 1, at, limit };
    let mut memory = world.memory.lock().unwrap();
    memory.heard.sessions = vec![("b1".into(), Some((7, 1)))];
    memory.heard.limits.push(Arrived::Plain(received));
}

fn written(world: &World) -> [Option<f64>; 2] {
    let memory = world.memory.lock().unwrap();
    let last = memory.written.last().unwrap();
    [0, 1].map(|at| last.services[at].rate.map(Rate::get))
}

fn remote(snapshot: &Snapshot, service: usize) -> RemoteState {
    snapshot.services[service].remote.first().cloned().unwrap_or_default()
}

#[test]
fn the_tighter_limit_holds_and_says_whose_it_is() {
    let mut world = World::new(CONTROL_NODE);
    world.tick(Some(0));
    assert_eq!(written(&world), [None, None]);
    says(&world, 1, "192.0.2.11:80", 40.0);
    let snapshot = world.tick(Some(0));
    assert_eq!(written(&world), [Some(40.0), None]);
    // If every daemon dies by then, the kernel ends it when it would have been gone: after eight validities, and a moment.
    let until = world.memory.lock().unwrap().written.last().unwrap().services[0].until;
    assert_eq!(until, Some(Nanos::from_secs(1004) + Nanos::from_millis(800)));
    let why = &snapshot.services[0].limits.why.text;
    assert!(why.starts_with("a remote limit of 40.0/s holds"), "{why}");
    let state = remote(&snapshot, 0);
    assert_eq!((state.peer.as_str(), state.role.as_str(), state.sequence), ("b1", "from", 1));
    // What the controller decides itself is 30/s, then 70/s.
    for (offered, rate) in [(30, 30.0), (70, 40.0)] {
        world.tick(Some(offered));
        assert_eq!(written(&world)[0], Some(rate));
    }
    // The last message came 1 s ago: it has opened by two steps, and goes.
    world.clock.advance(Nanos::from_millis(600));
    let state = remote(&world.tick(Some(0)), 0);
    assert_eq!((state.steps, state.left, state.rate.map(Rate::get)), (2, None, Some(160.0)));
    world.clock.advance(Nanos::from_secs(4));
    assert!(remote(&world.tick(Some(0)), 0).rate.is_none());
    assert_eq!(written(&world), [None, None]);
    let Reply::History { events, .. } = world.owner.history() else { panic!() };
    let told = events.iter().filter_map(|event| match &event.what {
        What::ConnectionsLimited { rate, .. } => Some((*rate, 0)),
        What::ConnectionsUnlimited { offered, .. } => Some((0.0, *offered)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(40.0, 0), (0.0, 100)], "one begin, one end");
}

#[test]
fn a_remote_limit_stops_at_the_floor_and_ends_with_its_grant() {
    let mut world = World::new(CONTROL_NODE);
    // A limit begins where what passes is known.
    world.tick(Some(0));
    says(&world, 1, "192.0.2.11:80", 0.5);
    says(&world, 2, "api", 40.0);
    world.tick(Some(0));
    assert_eq!(written(&world), [Some(5.0), Some(40.0)]);
    let revoked = CONTROL_NODE.split("cluster:").next().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), revoked).unwrap();
    world.owner.reload(file.path(), &registry(), &|config| Ok(config)).unwrap();
    says(&world, 3, "192.0.2.11:80", 0.5);
    let snapshot = world.tick(Some(0));
    assert_eq!(written(&world), [None, None]);
    assert!(snapshot.services.iter().all(|service| service.remote.is_empty()));
}

#[test]
fn hit_counters_go_back_and_shadow_tells_of_no_refusal() {
    let mut world = World::new(CONTROL_NODE);
    says(&world, 1, "192.0.2.11:80", 40.0);
    says(&world, 2, "api", 40.0);
    for _ in 0..5 {
        world.tick(Some(70));
    }
    let memory = world.memory.lock().unwrap();
    let hits: Vec<&Hits> = memory.said.iter().flat_map(|said| &said.hits).map(|(_, h)| h).collect();
    let offered = |scope: &str| {
        let of = hits.iter().filter(|hits| hits.scope.to_string() == scope);
        of.map(|hits| hits.offered).sum::<u64>()
    };
    assert!(offered("192.0.2.11:80") >= 140 && offered("api") >= 140, "{hits:?}");
    assert!(hits.iter().all(|hits| hits.refused == 0), "nothing was refused: {hits:?}");
}

#[test]
fn a_server_divides_its_limit_among_its_control_nodes() {
    let mut world = World::new(SERVER);
    let told = |world: &World| -> Vec<(String, String, Option<f64>)> {
        let said = world.memory.lock().unwrap().said.pop().unwrap_or_default();
        let limits = said.limits.into_iter().map(|out| {
            let Restriction::Rate(rate) = out.limit.restriction else { panic!() };
            let valid = out.limit.validity > Nanos::ZERO;
            (out.target, out.limit.scope.to_string(), valid.then_some(rate.get()))
        });
        limits.collect()
    };
    let to = |rates: [Option<f64>; 2]| {
        [("f1", "192.0.2.11:80"), ("f2", "shop-1")]
            .into_iter()
            .zip(rates)
            .map(|((target, scope), rate)| (target.to_owned(), scope.to_owned(), rate))
            .collect::<Vec<_>>()
    };
    world.tick(Some(0));
    assert_eq!(told(&world), to([None; 2]), "so that they count for the scope");
    world.tick(Some(0));
    assert_eq!(told(&world), [], "once a second");
    // 100/s of its own, and nothing is known of demand.
    world.tick(Some(100));
    assert_eq!(told(&world), to([Some(50.0); 2]));
    let span = Nanos::from_millis(200);
    let hits = |scope: &str, offered| Hits {
        scope: scope.parse().unwrap(),
        unit: Unit::Connections,
        span,
        offered,
        refused: 9,
        probe: false,
    };
    world.memory.lock().unwrap().heard = Heard {
        hits: vec![("f1".into(), hits("192.0.2.11:80", 30)), ("f2".into(), hits("shop-1", 10))],
        ..Heard::default()
    };
    let snapshot: Arc<Snapshot> = world.tick(Some(100));
    let rates = told(&world);
    world.tick(Some(100));
    let rates = [rates, told(&world)].concat();
    assert_eq!(rates[..2], to([Some(74.5), Some(25.5)]), "a floor of 1/s each, the rest by demand");
    assert_eq!(rates[2..], rates[..2]);
    let states = &snapshot.services[0].remote;
    let counted = states.iter().map(|s| (s.role.as_str(), s.offered, s.refused));
    assert_eq!(counted.collect::<Vec<_>>(), [("to", 30, 9), ("to", 10, 9)]);
    world.owner.set_mode("shop", tidegate_model::Mode::Shadow).unwrap();
    for _ in 0..400 {
        world.tick(Some(100));
    }
    let said = world.memory.lock().unwrap().said.split_off(1);
    let last = said.iter().rev().find_map(|said| said.limits.first()).unwrap();
    assert_eq!(last.limit.validity, Nanos::ZERO, "in shadow mode nobody else is limited");
}
