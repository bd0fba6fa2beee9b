// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits that servers push into a congested router: clamped, relaxed in steps, gone in time, and none without
//! congestion.

use tidegate_control::fleet::remote::{Flow, Grant, Inbound, NotTaken, Protected, TTL};
use tidegate_model::remote::{Arrived, Pushed, ReceivedLimit, RemoteLimit, Restriction, Scope};
use tidegate_units::{Nanos, Rate};

const TICK: Nanos = Nanos::from_millis(100);
const SCOPE: &str = "192.0.2.1:80";

fn rate(per_second: f64) -> Rate {
    Rate::per_second(per_second)
}

/// A router with one service, which 200/s come for.
struct Router {
    inbound: Inbound,
    now: Nanos,
    sequence: u64,
}

impl Router {
    fn new() -> Self {
        let mut inbound = Inbound::default();
        let when_congested = vec![SCOPE.parse().expect("a scope")];
        let listens = vec![SCOPE.parse().expect("an address")];
        let service = Protected { name: "shop".into(), listens, floor: rate(10.0) };
        let grant = Grant { peer: "b1".into(), when_congested, ..Grant::default() };
        inbound.follow(&[grant], vec![service]);
        inbound.session("b1", Some((7, 1)));
        inbound.congested(true);
        let mut router = Self { inbound, now: Nanos::SECOND, sequence: 0 };
        (0..30).for_each(|_| _ = router.tick());
        router
    }

    fn pushed(&mut self, limit: f64) -> Pushed {
        self.sequence += 1;
        let limit = RemoteLimit {
            scope: SCOPE.parse().expect("a scope"),
            restriction: Restriction::Rate(rate(limit)),
            validity: TTL,
            sequence: self.sequence,
            priority: 0,
        };
        let received =
            ReceivedLimit { peer: "b1".into(), session: 7, epoch: 1, at: self.now, limit };
        Pushed { received, whole: rate(100.0), enforced_from: self.now }
    }

    fn push(&mut self, limit: f64) -> Result<(), NotTaken> {
        let pushed = self.pushed(limit);
        self.inbound.push(pushed)
    }

    fn tick(&mut self) -> Option<f64> {
        self.now += TICK;
        let flow = Flow { offered: 20, passed: 15, refused: 5, shadow: false };
        let decided = self.inbound.tick(self.now, TICK, &[Some(flow)]);
        decided[0].map(|in_force| in_force.rate.get())
    }

    fn seconds(&mut self, seconds: u64) -> Option<f64> {
        (0..10 * seconds).fold(None, |_, _| self.tick())
    }
}

#[test]
fn it_falls_by_half_a_second_relaxes_in_steps_and_is_gone() {
    let mut router = Router::new();
    assert_eq!(router.push(20.0), Ok(()));
    let first = router.tick().expect("a limit");
    assert!((first - 75.0).abs() < 1.0, "half of what passes: {first}");
    // 2 s at 20, then 40, 60, 80 and 100, each for 2 s.
    let course: Vec<_> = (0..10).map(|_| router.seconds(1)).collect();
    let expected = [37.5, 40.0, 40.0, 60.0, 60.0, 80.0, 80.0, 100.0, 100.0]
        .map(Some)
        .into_iter()
        .chain([None]);
    for (second, (seen, expected)) in course.iter().zip(expected).enumerate() {
        let close = match (seen, expected) {
            (Some(seen), Some(expected)) => (seen - expected).abs() < 1.0,
            (seen, expected) => seen.is_none() && expected.is_none(),
        };
        assert!(close, "second {second}: {course:?}");
    }
    assert!(router.inbound.states(router.now, 0).is_empty(), "and forgotten");
    assert!(router.inbound.hits(router.now).is_empty());
}

#[test]
fn refreshed_it_goes_on_and_hit_counters_go_back() {
    let mut router = Router::new();
    for _ in 0..20 {
        assert_eq!(router.push(50.0), Ok(()));
        router.seconds(1);
    }
    assert_eq!(router.tick(), Some(50.0), "one δ has not passed");
    let hits = router.inbound.hits(router.now);
    assert!(hits[0].1.offered > hits[0].1.refused && hits[0].1.refused > 0, "{hits:?}");
    let state = &router.inbound.states(router.now, 0)[0];
    assert!((state.peer.as_str(), state.left) == ("b1", Some(TTL.since(TICK + Nanos::SECOND))));
}

#[test]
fn without_congestion_there_is_none_and_it_ends_with_it() {
    let mut router = Router::new();
    assert_eq!(router.push(50.0), Ok(()));
    assert!(router.tick().is_some());
    router.inbound.congested(false);
    assert_eq!(router.tick(), None);
    assert_eq!(router.push(50.0), Err(NotTaken::Stale));
    let refused = router.inbound.refused("b1");
    assert_eq!((refused[0].reason.as_str(), refused[0].count), ("stale", 1));
    router.inbound.congested(true);
    assert_eq!((router.tick(), router.push(50.0)), (None, Ok(())), "and comes with the next");
}

#[test]
fn a_staged_limit_only_counts_and_what_is_out_of_range_is_refused() {
    let mut router = Router::new();
    let from = router.now + Nanos::from_secs(5);
    for _ in 0..5 {
        let pushed = Pushed { enforced_from: from, ..router.pushed(50.0) };
        assert_eq!(router.inbound.push(pushed), Ok(()));
        let staged = router.seconds(1);
        assert_eq!(staged.is_some(), router.now >= from, "{staged:?}");
    }
    let mut above = router.pushed(150.0);
    assert_eq!(router.inbound.push(above.clone()), Err(NotTaken::OutOfRange), "above the whole");
    (above.whole, above.received.limit.validity) = (rate(200.0), TTL.since(Nanos(1)));
    assert_eq!(router.inbound.push(above.clone()), Err(NotTaken::OutOfRange), "not all steps fit");
    above.received.limit.restriction = Restriction::Gap(Nanos::from_millis(10));
    assert_eq!(router.inbound.push(above), Err(NotTaken::Unsupported));
}

#[test]
fn a_congested_router_tells_each_owner_what_comes_for_it() {
    let router = Router::new();
    let notices = router.inbound.notices(3);
    let [(peer, notice)] = &notices[..] else { panic!("{notices:?}") };
    assert_eq!((peer.as_str(), notice.service.as_str(), notice.episode), ("b1", "shop", 3));
    let close = |rate: Rate, wanted: f64| (rate.get() - wanted).abs() < 1.0;
    assert!(close(notice.offered, 200.0) && close(notice.refused, 50.0), "{notice:?}");
}

fn scope(text: &str) -> Scope {
    text.parse().expect("a scope")
}

/// The second check: a scope takes limits in its own way only.
#[test]
fn a_scope_for_congestion_takes_signed_limits_only_and_another_none() {
    let mut router = Router::new();
    let plain = router.pushed(20.0).received;
    assert_eq!(router.inbound.take(plain), Err(NotTaken::NotGranted));
    assert_eq!(router.tick(), None);
    assert_eq!(router.push(20.0), Ok(()), "what was refused is not used up");
    let grant = Grant { peer: "b1".into(), scopes: vec![scope(SCOPE)], ..Grant::default() };
    let listens = vec![SCOPE.parse().expect("an address")];
    let service = Protected { name: "shop".into(), listens, floor: rate(10.0) };
    router.inbound.follow(&[grant], vec![service]);
    assert_eq!(router.tick(), None, "it is not that kind of scope any more");
    assert_eq!(router.push(20.0), Err(NotTaken::NotGranted));
    let plain = router.pushed(20.0).received;
    assert_eq!(router.inbound.take(plain), Ok(()));
    assert!(router.tick().is_some() && router.inbound.notices(1).is_empty());
}

/// Both kinds come in one order, so neither makes the other look stale.
#[test]
fn limits_of_both_kinds_in_one_round_all_count() {
    let mut router = Router::new();
    let grant = Grant {
        peer: "b1".into(),
        scopes: vec![scope("192.0.2.2:80")],
        when_congested: vec![scope(SCOPE)],
    };
    let service = |name: &str, listen: &str| Protected {
        name: name.into(),
        listens: vec![listen.parse().expect("an address")],
        floor: rate(10.0),
    };
    let services = vec![service("shop", SCOPE), service("api", "192.0.2.2:80")];
    router.inbound.follow(&[grant], services);
    let mut arrived = Vec::new();
    for _ in 0..2 {
        arrived.push(Arrived::Pushed(router.pushed(50.0)));
        let mut plain = router.pushed(50.0).received;
        plain.limit.scope = scope("192.0.2.2:80");
        arrived.push(Arrived::Plain(plain));
    }
    for arrived in arrived {
        assert_eq!(router.inbound.arrived(arrived), Ok(()));
    }
    assert!((0..2).all(|service| router.inbound.states(router.now, service).len() == 1));
    assert_eq!(router.inbound.refused("b1"), []);
}

/// A service without an address, which only its name reaches, has no place in a notice.
#[test]
fn only_services_in_a_scope_for_congestion_are_told_of() {
    let mut inbound = Inbound::default();
    let grants = [Grant {
        peer: "b1".into(),
        scopes: vec![scope("routes"), scope("192.0.2.2:80")],
        when_congested: vec![scope(SCOPE)],
    }];
    let service = |name: &str, listen: &[&str]| Protected {
        name: name.into(),
        listens: listen.iter().map(|at| at.parse().expect("an address")).collect(),
        floor: rate(10.0),
    };
    let services =
        vec![service("routes", &[]), service("shop", &[SCOPE]), service("api", &["192.0.2.2:80"])];
    inbound.follow(&grants, services);
    let flow = Some(Flow { offered: 20, passed: 20, refused: 0, shadow: false });
    inbound.tick(Nanos::SECOND, TICK, &[flow; 3]);
    let told: Vec<_> = inbound.notices(1).into_iter().map(|(_, notice)| notice.service).collect();
    assert_eq!(told, ["shop"]);
}
