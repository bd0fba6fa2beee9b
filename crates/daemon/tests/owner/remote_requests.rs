// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits on requests in the owner's hands: at a gateway, in request buckets, and given to others.

use super::world::*;
use tidegate_daemon::plane::Heard;
use tidegate_model::limits::{RequestLimit, ServiceLimits};
use tidegate_model::remote::{Arrived, Form, Hits, ReceivedLimit, RemoteLimit, Restriction, Unit};
use tidegate_model::snapshot::RemoteState;
use tidegate_peer::OutgoingLimit;
use tidegate_units::{Clock, Nanos, Rate};

const CLUSTER: &str = "
cluster:
  certificate: /c.pem
  key: /k.pem
  ca_file: /a.pem
";

const PEERS: &str = "  listen: 192.0.2.1:7416
  peers:
    b1: {identity: spiffe://example/b1, services: [shop], limits: [shop]}
";

const GATEWAY: &str = "
services:
  shop: {mode: enforce, control: {name: default, min_rate: 5}}
gateways:
  edge: {adapter: nginx, listen: '127.0.0.1:9470', completions: '127.0.0.1:9471', routes: [{service: shop}]}
";

const HOOKS: &str = "
interfaces: [{name: lo}]
services:
  shop:
    mode: enforce
    listen: ['192.0.2.11:80']
    requests:
      buckets: {a: {resource: cpu, burst: 8}, b: {resource: cpu}}
      rules: [{path: /a, bucket: a}, {path: /b, bucket: b}, {unevaluable: true, action: allow}]
";

const TARGETS: &str = "  report_to:
    f1: {address: '192.0.2.1:7416', identity: spiffe://example/f1,
      limits: [{service: shop, bucket: a, scope: shop/a, kind: gap}]}
    f2: {address: '192.0.2.2:7416', identity: spiffe://example/f2,
      limits: [{service: shop, bucket: b, scope: shop, kind: loss, priority: 3}]}
";

fn world(host: &str, role: &str) -> World {
    World::new(&[host, CLUSTER, role].concat())
}

/// The peer b1 limits a scope in its session.
fn says(world: &World, sequence: u64, (scope, restriction): (&str, Restriction), priority: u8) {
    let limit = RemoteLimit {
        scope: scope.parse().unwrap(),
        restriction,
        validity: Nanos::from_secs(5),
        sequence,
        priority,
    };
    let at = world.clock.now();
    let received = ReceivedLimit { peer: "b1".into(), session: 7, epoch: 1, at, limit };
    let mut memory = world.memory.lock().unwrap();
    memory.heard.sessions = vec![("b1".into(), Some((7, 1)))];
    memory.heard.limits.push(Arrived::Plain(received));
}

fn written(world: &World) -> ServiceLimits {
    world.memory.lock().unwrap().written.last().unwrap().services[0].clone()
}

fn hits_said(world: &World) -> Vec<Hits> {
    let memory = world.memory.lock().unwrap();
    memory.said.iter().flat_map(|said| &said.hits).map(|(_, hits)| hits.clone()).collect()
}

#[test]
fn a_gateway_puts_the_limit_beside_its_own() {
    let mut world = world(GATEWAY, PEERS);
    world.tick(Some(0));
    says(&world, 1, ("shop", Restriction::RequestGap(Nanos::from_millis(25))), 3);
    let snapshot = world.tick(Some(0));
    let limits = written(&world);
    let rate = Rate::per_second(40.0);
    let expected = RequestLimit { form: Form::Gap, rate, burst: 1, loss: None, priority: 3 };
    assert_eq!((limits.rate, limits.requests), (None, Some(expected)));
    let service = &snapshot.services[0];
    let why = &service.limits.why.text;
    assert!(why.starts_with("a remote limit of 40.0/s on requests holds"), "{why}");
    let state: &RemoteState = &service.remote[0];
    assert_eq!((state.unit, state.priority, state.role.as_str()), (Unit::Requests, 3, "from"));
    // What the controller decides itself holds beside it: 70/s.
    for _ in 0..5 {
        world.tick(Some(70));
    }
    let limits = written(&world);
    assert_eq!(
        (limits.rate, limits.requests.map(|of| of.form)),
        (Some(Rate::per_second(70.0)), Some(Form::Gap))
    );
    let hits = hits_said(&world);
    assert!(hits.iter().all(|hits| hits.unit == Unit::Requests), "{hits:?}");
    assert!(hits.iter().map(|hits| hits.offered).sum::<u64>() >= 140, "{hits:?}");
    // A limit on connections of the same scope is one of its own.
    says(&world, 2, ("shop", Restriction::Rate(Rate::per_second(30.0))), 0);
    world.tick(Some(70));
    assert!(written(&world).requests.is_some());
    // It ends.
    world.clock.advance(Nanos::from_secs(60));
    let snapshot = world.tick(Some(0));
    assert_eq!(written(&world).requests, None);
    assert!(snapshot.services[0].remote.iter().all(|limit| limit.rate.is_none()));
}

#[test]
fn a_request_bucket_of_hooks_has_the_tighter_rate() {
    let mut world = world(HOOKS, PEERS);
    world.tick(Some(100));
    // What passes says where a limit begins.
    for _ in 0..100 {
        world.tick(Some(0));
    }
    let rates = |world: &World| {
        written(world).buckets.iter().map(|b| b.rate.map(Rate::get)).collect::<Vec<_>>()
    };
    assert_eq!(rates(&world), [Some(100.0), Some(101.0)]);
    says(&world, 1, ("shop/a", Restriction::Requests(Rate::per_second(40.0))), 0);
    let snapshot = world.tick(Some(0));
    assert_eq!(rates(&world), [Some(40.0), Some(101.0)]);
    assert_eq!((written(&world).rate, written(&world).requests), (None, None), "no SYN is limited");
    assert_eq!(snapshot.services[0].remote[0].scope, "shop/a");
    // Of priorities the buckets of hooks know nothing.
    says(&world, 2, ("shop/a", Restriction::Requests(Rate::per_second(20.0))), 3);
    world.tick(Some(0));
    assert_eq!(rates(&world)[0], Some(40.0));
    // Of the whole service both buckets have a part.
    says(&world, 3, ("shop", Restriction::Requests(Rate::per_second(60.0))), 0);
    world.tick(Some(0));
    let both = rates(&world);
    let within = |at: usize, most: f64| both[at].is_some_and(|rate| rate <= most);
    assert!(within(0, 40.0) && within(1, 60.0), "{both:?}");
}

/// The last limit that was said to each of both.
fn told(world: &World) -> [OutgoingLimit; 2] {
    let memory = world.memory.lock().unwrap();
    ["f1", "f2"].map(|name| {
        let mut limits = memory.said.iter().rev().flat_map(|said| &said.limits);
        limits.find(|limit| limit.target == name).unwrap().clone()
    })
}

#[test]
fn a_server_tells_the_limits_of_its_buckets_in_the_form_that_was_asked_for() {
    let mut world = world(HOOKS, TARGETS);
    world.tick(Some(100));
    let rate = Rate::per_second;
    let [gap, loss] = told(&world);
    assert_eq!(gap.limit.restriction, Restriction::RequestGap(Nanos::from_millis(10)));
    assert_eq!((gap.limit.scope.to_string().as_str(), gap.limit.priority), ("shop/a", 0));
    assert_eq!(loss.limit.restriction, Restriction::Requests(rate(101.0)), "of what, is not known");
    assert_eq!(loss.limit.priority, 3);
    let hits = Hits {
        scope: "shop".parse().unwrap(),
        unit: Unit::Requests,
        span: Nanos::from_millis(200),
        offered: 40,
        refused: 20,
        probe: false,
    };
    world.memory.lock().unwrap().heard =
        Heard { hits: vec![("f2".into(), hits)], ..Heard::default() };
    let snapshot = world.tick(Some(100));
    let [_, loss] = told(&world);
    // 200/s come there.
    let Restriction::RequestLoss(share) = loss.limit.restriction else { panic!("{loss:?}") };
    assert!((share.get() - 0.495).abs() < 1e-9, "{share}");
    let state = snapshot.services[0].remote.iter().find(|state| state.peer == "f2").unwrap();
    assert_eq!((state.unit, state.priority, state.offered), (Unit::Requests, 3, 40));
    assert_eq!(state.restriction, Some(loss.limit.restriction));
    world.owner.set_mode("shop", tidegate_model::Mode::Shadow).unwrap();
    for _ in 0..400 {
        world.tick(Some(100));
    }
    let ended = told(&world).map(|limit| limit.limit.validity);
    assert_eq!(ended, [Nanos::ZERO; 2], "in shadow mode nobody else is limited");
}

/// A rate of a bucket is none of all connections of its service, whatever the scope is.
#[test]
fn a_host_of_version_2_is_told_nothing_of_buckets() {
    let targets = "  report_to:
    f1: {address: '192.0.2.1:7416', identity: spiffe://example/f1,
      limits: [{service: shop, bucket: b, scope: shop}]}
    f2: {address: '192.0.2.2:7416', identity: spiffe://example/f2,
      limits: [{service: shop, bucket: a, scope: '192.0.2.11:80'}]}
    f3: {address: '192.0.2.3:7416', identity: spiffe://example/f3,
      limits: [{service: shop, bucket: a, scope: shop/a}]}
    f4: {address: '192.0.2.4:7416', identity: spiffe://example/f4,
      limits: [{service: shop, scope: shop, counts: requests, priority: 3}]}
";
    let mut world = world(HOOKS, targets);
    for _ in 0..50 {
        world.tick(Some(100));
    }
    let memory = world.memory.lock().unwrap();
    let said: Vec<&OutgoingLimit> = memory.said.iter().flat_map(|said| &said.limits).collect();
    for (name, told) in [("f1", false), ("f2", false), ("f3", false), ("f4", true)] {
        let of: Vec<_> = said.iter().filter(|limit| limit.target == name).collect();
        assert!(!of.is_empty(), "{name}");
        for limit in of {
            assert_eq!(limit.within(3).as_ref(), Some(&limit.limit), "{name}");
            let older = limit.within(2);
            assert_eq!(older.is_some(), told, "{name}: {older:?}");
            let plain = |of: &RemoteLimit| (of.restriction.unit(), of.priority);
            assert!(older.iter().all(|of| plain(of) == (Unit::Connections, 0)), "{older:?}");
        }
    }
}
