// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NetDraino in the owner's hands: a congested router tells, an overloaded server answers, and without both
//! nothing travels.

use super::world::*;
use std::sync::Arc;
use tidegate_api::protocol::Reply;
use tidegate_daemon::plane::Heard;
use tidegate_model::record::What;
use tidegate_model::remote::{
    Arrived, Notice, Pushed, ReceivedLimit, RemoteLimit, Restriction, Unit,
};
use tidegate_model::signals::LinkUse;
use tidegate_model::snapshot::Snapshot;
use tidegate_model::totals::{DatagramTotals, ServiceTotals};
use tidegate_units::{Clock, Nanos, Rate};

const ROUTER: &str = "
interfaces: [{name: lo}, {name: v1, side: servers}]
services:
  shop: {mode: enforce, listen: ['192.0.2.11:80'], control: {name: default, min_rate: 5}}
  api: {mode: enforce, listen: ['192.0.2.12:80']}
cluster:
  certificate: /c.pem
  key: /k.pem
  ca_file: /a.pem
  listen: 192.0.2.1:7416
  grants: {operator: /o.pem, files: [/b1.grant]}
  peers:
    b1: {identity: spiffe://example/b1, services: [shop], limits_when_congested: ['192.0.2.11:80']}
";

const SERVER: &str = "
interfaces: [{name: lo}]
services:
  shop: {mode: enforce, listen: ['*:80']}
cluster:
  certificate: /c.pem
  key: /k.pem
  ca_file: /a.pem
  signing: {key: /limits.key, grant: /grant}
  report_to:
    r1: {address: '192.0.2.1:7416', identity: spiffe://example/r1,
      limits: [{service: shop, scope: '192.0.2.11:80', when: congested}]}
    r2: {address: '192.0.2.2:7416', identity: spiffe://example/r2,
      limits: [{service: shop, scope: '192.0.2.8/29:80', when: congested}]}
";

/// A router, the rate that it is given, and what that answers.
type Told = (String, f64, Option<(Rate, u64)>);

/// A tick in which v1, of 250,000 bytes per second, sent so many packets of 1,000 bytes.
fn sends(world: &mut World, packets: u32) -> Arc<Snapshot> {
    let mut memory = world.memory.lock().unwrap();
    let link = memory.links.pop().unwrap_or_default();
    let identity = if link.identity.0 == 0 { (3, 1) } else { link.identity };
    memory.links.push(LinkUse {
        interface: "v1".into(),
        identity,
        sent_bytes: link.sent_bytes + 1000 * u64::from(packets),
        sent_packets: link.sent_packets + packets,
        capacity: Some(250_000.0),
        ..link
    });
    drop(memory);
    world.tick(Some(70))
}

fn notices(world: &World) -> Vec<(String, Notice)> {
    let mut memory = world.memory.lock().unwrap();
    memory.said.drain(..).flat_map(|said| said.notices).collect()
}

#[test]
fn a_router_says_so_once_a_second_while_it_is_congested() {
    let mut world = World::new(ROUTER);
    for _ in 0..30 {
        assert!(!sends(&mut world, 10).links[0].congested);
    }
    assert!(notices(&world).is_empty());
    let snapshot = (0..35).fold(None, |_, _| Some(sends(&mut world, 25))).unwrap();
    let link = &snapshot.links[0];
    assert_eq!((link.congested, link.signs.as_slice()), (true, &["rate".to_owned()][..]));
    let told = notices(&world);
    assert!((3..=4).contains(&told.len()), "{told:?}");
    for (peer, notice) in &told {
        assert_eq!((peer.as_str(), notice.service.as_str(), notice.episode), ("b1", "shop", 1));
        assert!((notice.offered.get() - 700.0).abs() < 10.0, "{notice:?}");
    }
    for _ in 0..40 {
        sends(&mut world, 10);
    }
    notices(&world);
    (0..20).for_each(|_| _ = sends(&mut world, 10));
    assert!(notices(&world).is_empty(), "over");
    let silent = world.tick(Some(70));
    assert!(silent.links[0].problem.is_empty());
    assert_eq!(turns(&world), (1, 1));
}

#[test]
fn marks_of_a_known_server_bring_a_notice_sooner_and_nothing_else() {
    let mut world = World::new(ROUTER);
    let mark = |world: &World, server: [u8; 4]| {
        world.memory.lock().unwrap().marked.push(server.into());
    };
    (0..20).for_each(|_| _ = sends(&mut world, 10));
    mark(&world, [192, 0, 2, 11]);
    (0..20).for_each(|_| _ = sends(&mut world, 10));
    assert!(notices(&world).is_empty(), "no congestion, no notice");
    assert!(world.memory.lock().unwrap().says.congested.is_empty());
    (0..35).for_each(|_| _ = sends(&mut world, 25));
    assert_eq!(world.memory.lock().unwrap().says.congested, [3], "its number");
    notices(&world);
    let last = (0..12).position(|_| {
        sends(&mut world, 25);
        !notices(&world).is_empty()
    });
    assert!(last.is_some(), "once a second");
    (0..2).for_each(|_| _ = sends(&mut world, 25));
    mark(&world, [203, 0, 113, 1]);
    sends(&mut world, 25);
    assert!(notices(&world).is_empty(), "nobody's address here");
    mark(&world, [192, 0, 2, 11]);
    sends(&mut world, 25);
    let told = notices(&world);
    assert_eq!(told.len(), 1, "{told:?}");
    mark(&world, [192, 0, 2, 11]);
    (0..5).for_each(|_| _ = sends(&mut world, 25));
    assert!(notices(&world).is_empty(), "they go on");
    assert!(world.snapshot().services[0].remote.is_empty(), "no limit came of it");
}

/// How often congestion began and ended, as it was told.
fn turns(world: &World) -> (usize, usize) {
    let Reply::History { events, .. } = world.owner.history() else { panic!() };
    let told = |is: fn(&What) -> bool| events.iter().filter(|event| is(&event.what)).count();
    let began = told(|what| matches!(what, What::CongestionBegan { .. }));
    (began, told(|what| matches!(what, What::CongestionEnded { .. })))
}

/// Whatever happens to the interface, each begin has one end, and nobody is told of congestion any more.
#[test]
fn congestion_ends_once_also_where_its_interface_is_gone() {
    let congested = || {
        let mut world = World::new(ROUTER);
        (0..30).for_each(|_| _ = sends(&mut world, 25));
        assert_eq!((world.snapshot().links[0].congested, turns(&world)), (true, (1, 0)));
        world
    };
    // Deleted or renamed.
    let mut world = congested();
    let mut link = world.memory.lock().unwrap().links.pop().unwrap();
    let gone = world.tick(Some(70));
    assert!(gone.links[0].problem.contains("no such interface") && world.warns("interface v1"));
    (0..25).for_each(|_| _ = world.tick(Some(70)));
    assert_eq!((world.snapshot().links[0].congested, turns(&world)), (false, (1, 1)));
    notices(&world);
    (0..25).for_each(|_| _ = world.tick(Some(70)));
    assert!(notices(&world).is_empty() && turns(&world) == (1, 1));
    // It comes back with other counters: what begins is another time.
    link.identity = (9, 1);
    world.memory.lock().unwrap().links.push(link);
    (0..10).for_each(|_| _ = sends(&mut world, 25));
    assert_eq!((world.snapshot().links[0].episodes, turns(&world)), (2, (2, 1)));
    // Nobody can be asked.
    let mut world = congested();
    world.memory.lock().unwrap().unreadable = true;
    (0..25).for_each(|_| _ = world.tick(Some(70)));
    let link = world.snapshot().links[0].clone();
    assert!(!link.congested && link.problem.contains("on purpose"), "{link:?}");
    assert_eq!(turns(&world), (1, 1));
    // It is not watched any more.
    let mut world = congested();
    let dir = tempfile::tempdir().unwrap();
    world.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap();
    world.tick(Some(70));
    assert!(world.snapshot().links.is_empty() && turns(&world) == (1, 1));
}

/// Whether the kernel is told to end what came then so many seconds later: after the daemon, and within a second.
fn ends(until: Option<Nanos>, came: Nanos, seconds: u64) -> bool {
    let late = until.map(|until| until.since(came + Nanos::from_secs(seconds)));
    late.is_some_and(|late| (Nanos::from_millis(500)..=Nanos::from_millis(900)).contains(&late))
}

fn datagrams_end(world: &World, came: Nanos, seconds: u64) -> bool {
    let memory = world.memory.lock().unwrap();
    ends(memory.written.last().unwrap().services[0].datagrams.unwrap().until, came, seconds)
}

#[test]
fn a_limit_counts_at_a_congested_router_and_not_at_another() {
    let mut world = World::new(ROUTER);
    let push = |world: &mut World, sequence| {
        let limit = RemoteLimit {
            scope: "192.0.2.11:80".parse().unwrap(),
            restriction: Restriction::Rate(Rate::per_second(400.0)),
            validity: Nanos::from_secs(10),
            sequence,
            priority: 0,
        };
        let at = world.clock.now();
        let received = ReceivedLimit { peer: "b1".into(), session: 7, epoch: 1, at, limit };
        let pushed = Pushed { received, whole: Rate::per_second(500.0), enforced_from: at };
        world.memory.lock().unwrap().heard = Heard {
            sessions: vec![("b1".into(), Some((7, 1)))],
            limits: vec![Arrived::Pushed(pushed)],
            ..Heard::default()
        };
    };
    (0..30).for_each(|_| _ = sends(&mut world, 10));
    push(&mut world, 1);
    assert!(sends(&mut world, 10).services[0].remote.is_empty(), "it is not congested");
    (0..30).for_each(|_| _ = sends(&mut world, 25));
    push(&mut world, 2);
    let at = world.clock.now();
    let snapshot = sends(&mut world, 25);
    let rate = snapshot.services[0].remote.first().and_then(|limit| limit.rate);
    assert_eq!(rate, Some(Rate::per_second(400.0)));
    let copies = |world: &World| -> Vec<bool> {
        let memory = world.memory.lock().unwrap();
        memory.written.last().unwrap().services.iter().map(|limits| limits.copies).collect()
    };
    assert_eq!(copies(&world), [false, false], "its own limit is lower");
    world.tick(Some(700));
    assert_eq!(copies(&world), [true, false], "copies of SYNs count where a remote limit holds");
    let until = world.memory.lock().unwrap().written.last().unwrap().services[0].until;
    assert!(ends(until, at, 10), "{until:?}");
    assert!(snapshot.services[1].remote.is_empty());
}

#[test]
fn an_overloaded_server_answers_each_notice_by_shares() {
    let mut world = World::new(SERVER);
    let notice = |offered: f64| Notice {
        service: "shop-1".into(),
        listens: vec!["192.0.2.11:80".parse().unwrap()],
        offered: Rate::per_second(offered),
        ..Notice::default()
    };
    let answers = |world: &World| -> Vec<Told> {
        let said = world.memory.lock().unwrap().said.pop().unwrap_or_default();
        let limits = said.limits.into_iter().map(|out| {
            let Restriction::Rate(rate) = out.limit.restriction else { panic!() };
            (out.target, (rate.get() * 10.0).round() / 10.0, out.answers)
        });
        limits.collect()
    };
    // 100 a tick come, and it takes 100 a second.
    for _ in 0..5 {
        world.tick(Some(100));
        assert_eq!(answers(&world), [], "nobody is congested");
    }
    let hear = |world: &World, notices: &[(&str, u64, f64)]| {
        let notices = notices.iter().map(|(to, number, of)| ((*to).into(), *number, notice(*of)));
        world.memory.lock().unwrap().heard =
            Heard { notices: notices.collect(), ..Heard::default() };
    };
    hear(&world, &[("r1", 4, 750.0), ("r2", 9, 250.0), ("r3", 1, 50.0)]);
    let snapshot = world.tick(Some(100));
    let whole = Rate::per_second(100.0);
    let expected = [("r1", 90.0, Some((whole, 4))), ("r2", 30.0, Some((whole, 9)))];
    let expected = expected.map(|(to, rate, answers)| (to.to_owned(), rate, answers));
    assert_eq!(answers(&world), expected);
    let given: Vec<_> =
        snapshot.services[0].remote.iter().map(|limit| limit.peer.as_str()).collect();
    assert_eq!(given, ["r1", "r2"]);
    world.tick(Some(100));
    assert_eq!(answers(&world), [], "answered");
    world.owner.set_mode("shop", tidegate_model::Mode::Shadow).unwrap();
    hear(&world, &[("r1", 5, 750.0)]);
    world.tick(Some(100));
    assert_eq!(answers(&world), [], "in shadow mode nobody else is limited");
}

/// So many datagrams come for each service in the next tick, of which so many are refused.
fn datagrams(world: &World, offered: u64, refused: u64) {
    let mut memory = world.memory.lock().unwrap();
    let before = memory.totals.take().and_then(|totals| totals.datagrams).unwrap_or_default();
    let datagrams = DatagramTotals {
        offered: before.offered + offered,
        refused: before.refused + refused,
        refused_bytes: before.refused_bytes + 1000 * refused,
        ..before
    };
    let datagrams = Some(datagrams);
    memory.totals = Some(ServiceTotals { datagrams, ..ServiceTotals::default() });
}

/// Datagrams and connections have notices and limits of their own; a limit that works does not end the congestion.
#[test]
fn a_congested_router_tells_of_datagrams_and_limits_them() {
    let mut world = World::new(ROUTER);
    for _ in 0..40 {
        datagrams(&world, 50, 0);
        sends(&mut world, 25);
    }
    let told = notices(&world);
    let of = |unit| told.iter().filter(move |(_, notice)| notice.unit == unit);
    assert_eq!(of(Unit::Datagrams).count(), of(Unit::Connections).count());
    let (peer, notice) = of(Unit::Datagrams).next_back().unwrap();
    assert_eq!((peer.as_str(), notice.service.as_str()), ("b1", "shop"), "and not of the other");
    assert!((notice.offered.get() - 500.0).abs() < 10.0, "{notice:?}");
    let push = |world: &mut World, sequence| {
        let limit = RemoteLimit {
            scope: "192.0.2.11:80".parse().unwrap(),
            restriction: Restriction::Datagrams(Rate::per_second(300.0)),
            validity: Nanos::from_secs(10),
            sequence,
            priority: 0,
        };
        let at = world.clock.now();
        let received = ReceivedLimit { peer: "b1".into(), session: 7, epoch: 1, at, limit };
        let pushed = Pushed { received, whole: Rate::per_second(300.0), enforced_from: at };
        world.memory.lock().unwrap().heard = Heard {
            sessions: vec![("b1".into(), Some((7, 1)))],
            limits: vec![Arrived::Pushed(pushed)],
            ..Heard::default()
        };
    };
    let written = |world: &World| {
        let memory = world.memory.lock().unwrap();
        let limits = &memory.written.last().unwrap().services;
        let datagrams: Vec<_> = limits.iter().map(|of| of.datagrams.map(|of| of.rate)).collect();
        (datagrams, limits[0].copies)
    };
    push(&mut world, 1);
    let at = world.clock.now();
    datagrams(&world, 50, 0);
    let snapshot = sends(&mut world, 25);
    let limit = &snapshot.services[0].remote[0];
    let rate = Some(Rate::per_second(300.0));
    assert_eq!((limit.unit, limit.rate, limit.peer.as_str()), (Unit::Datagrams, rate, "b1"));
    assert_eq!(written(&world), (vec![rate, None], false), "and no limit on connections");
    assert!(datagrams_end(&world, at, 10));
    // What is refused would have filled the link.
    for n in 0..60 {
        if n % 10 == 0 {
            push(&mut world, 2 + n);
        }
        datagrams(&world, 50, 20);
        sends(&mut world, 10);
    }
    assert!(world.snapshot().links[0].congested);
    let refused: u64 = world.snapshot().services[0].remote[0].refused;
    assert_eq!(refused, 60 * 20);
    // Nothing more comes: the congestion ends, and the limit with it.
    for _ in 0..40 {
        datagrams(&world, 10, 0);
        sends(&mut world, 10);
    }
    assert!(!world.snapshot().links[0].congested);
    assert_eq!(written(&world).0, [None, None]);
    let Reply::History { events, .. } = world.owner.history() else { panic!() };
    let told = events.iter().filter_map(|event| match &event.what {
        What::DatagramsLimited { rate, .. } => Some((*rate, 0)),
        What::DatagramsUnlimited { refused, .. } => Some((0.0, *refused)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(300.0, 0), (0.0, 60 * 20)], "one begin, one end");
}

/// To whom, which limit, and the notice that it answers.
type Answered = (String, Restriction, Option<(Rate, u64)>);

/// What the server takes stands in its configuration.
#[test]
fn a_server_answers_notices_of_datagrams_by_what_it_takes() {
    let config = SERVER.replace("listen: ['*:80']", "listen: ['*:80'], datagrams: 100/s");
    let mut world = World::new(&config);
    let answers = |world: &World| -> Vec<Answered> {
        let said = world.memory.lock().unwrap().said.pop().unwrap_or_default();
        let limit =
            |out: tidegate_peer::OutgoingLimit| (out.target, out.limit.restriction, out.answers);
        said.limits.into_iter().map(limit).collect()
    };
    let hear = |world: &World, offered: f64, number| {
        let notice = Notice {
            service: "shop-1".into(),
            listens: vec!["192.0.2.11:80".parse().unwrap()],
            unit: Unit::Datagrams,
            offered: Rate::per_second(offered),
            ..Notice::default()
        };
        let notices = vec![("r1".into(), number, notice)];
        world.memory.lock().unwrap().heard = Heard { notices, ..Heard::default() };
    };
    for _ in 0..30 {
        datagrams(&world, 40, 0);
        world.tick(None);
    }
    hear(&world, 300.0, 4);
    datagrams(&world, 40, 0);
    let snapshot = world.tick(None);
    // 400/s come, 300/s of them by r1: 1.2 · 100 · 300 / 400.
    let whole = Rate::per_second(100.0);
    let told = answers(&world);
    let [(router, Restriction::Datagrams(rate), Some(answered))] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((router.as_str(), *answered), ("r1", (whole, 4)));
    assert!((rate.get() - 90.0).abs() < 1.0, "{rate}");
    let units: Vec<Unit> = snapshot.services[0].remote.iter().map(|limit| limit.unit).collect();
    let (connections, datagram) = (Unit::Connections, Unit::Datagrams);
    assert_eq!(units, [connections, connections, datagram, datagram]);
    // All fit: nobody is told anything.
    for _ in 0..80 {
        datagrams(&world, 9, 0);
        world.tick(None);
    }
    hear(&world, 90.0, 5);
    datagrams(&world, 9, 0);
    world.tick(None);
    assert!(answers(&world).is_empty());
    world.owner.set_mode("shop", tidegate_model::Mode::Shadow).unwrap();
    hear(&world, 300.0, 6);
    datagrams(&world, 400, 0);
    world.tick(None);
    assert!(answers(&world).is_empty(), "in shadow mode nobody else is limited");
}

const ROUTED: &str = "
interfaces: [{name: lo}]
services:
  shop: {mode: enforce, listen: ['192.0.2.11:80']}
flowspec:
  speaker: gobgp
  as: 65001
  router_id: 192.0.2.11
  shadow: true
  peers: {r1: {address: 192.0.2.1, local: 192.0.2.11, as: 65002}}
  export: [{service: shop}]
";

/// What routers would be told in shadow: planned, shown, remembered, and withdrawn where nobody is refused.
#[test]
fn routes_are_planned_in_shadow_and_withdrawn_with_the_kill_switch() {
    let mut world = World::new(ROUTED);
    world.owner.join_peers();
    // 1,000/s come, and it takes 100/s.
    let routes = |world: &mut World, ticks: u32| {
        (0..ticks).for_each(|_| _ = world.tick(Some(100)));
        world.snapshot().flowspec.clone().unwrap().routes
    };
    assert!(routes(&mut world, 15).is_empty(), "it may be a moment only");
    let all = routes(&mut world, 10);
    let [route] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((route.service.as_str(), route.unit.as_str()), ("shop", "packets"));
    assert_eq!((route.wanted, route.told, route.withheld.as_str()), (Some(120.0), Some(120.0), ""));
    world.owner.release(true).unwrap();
    assert!(routes(&mut world, 1).is_empty(), "at once");
    world.owner.release(false).unwrap();
    let back = routes(&mut world, 30).remove(0);
    assert_eq!((back.wanted, back.told, back.withheld.as_str()), (Some(120.0), None, "between"));
    assert_eq!(routes(&mut world, 100)[0].told, Some(120.0));
    world.owner.set_mode("shop", tidegate_model::Mode::Shadow).unwrap();
    assert!(routes(&mut world, 1).is_empty(), "nobody is refused");
    let Reply::History { events, .. } = world.owner.history() else { panic!() };
    let said: Vec<String> = events
        .iter()
        .filter(|event| {
            matches!(event.what, What::RouteAnnounced { .. } | What::RouteWithdrawn { .. })
        })
        .map(|event| event.what.sentence())
        .collect();
    let route = "to 192.0.2.11/32 protocol 6 port 80 syn";
    let told = format!(
        "shop: routers would be told 120 packets/s {route}: the service limits itself to 100.0/s"
    );
    let why = "this host refuses nobody (shadow mode, a canary, or the kill switch)";
    let gone = format!("shop: the route {route} would be withdrawn: {why}");
    assert_eq!(said, [told.clone(), gone.clone(), told, gone]);
    let dir = tempfile::tempdir().unwrap();
    world.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap();
    assert_eq!(world.tick(Some(100)).flowspec, None);
}

/// The same of datagrams, while more come than the service says that it can take. Its connections have no route then.
#[test]
fn routes_of_datagrams_follow_what_the_service_can_take() {
    let takes = "listen: ['192.0.2.11:80'], datagrams: 100";
    let mut world = World::new(&ROUTED.replace("listen: ['192.0.2.11:80']", takes));
    world.owner.join_peers();
    let routes = |world: &mut World, ticks: u32, came: u64| {
        for _ in 0..ticks {
            datagrams(world, came, 0);
            world.tick(None);
        }
        world.snapshot().flowspec.clone().unwrap().routes
    };
    assert!(routes(&mut world, 100, 9).is_empty(), "90/s fit");
    let all = routes(&mut world, 80, 40);
    let [route] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(route.rule, "to 192.0.2.11/32 protocol 17 port 80");
    assert_eq!(
        (route.wanted, route.told, route.unit.as_str()),
        (Some(120.0), Some(120.0), "packets")
    );
    // The router passes its rate: the flood is not over.
    assert_eq!(routes(&mut world, 300, 12)[0].wanted, Some(120.0));
    world.owner.release(true).unwrap();
    assert!(routes(&mut world, 1, 12).is_empty(), "nobody is to be refused");
    world.owner.release(false).unwrap();
    assert_eq!(routes(&mut world, 150, 40)[0].told, Some(120.0));
    assert!(routes(&mut world, 400, 2).is_empty(), "and it ends");
}
