// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits that servers push into a congested router: clamped, relaxed in steps, gone in time, and none without
//! congestion. And those for routers that give no hit counters back, against a server and its controller.

mod world;

use tidegate_control::fleet::remote::{
    Answer, BEGIN_AFTER, CALM_AFTER, Flow, Grant, Inbound, NotTaken, PUSHBACK, Protected,
    PushbackSpec, Steps, TTL, Uncounted,
};
use tidegate_control::{DefaultController, DefaultSpec};
use tidegate_flowspec::{Action, Bounds, Change, Plan, Route, Rule};
use tidegate_model::remote::{
    Arrived, Pushed, ReceivedLimit, RemoteLimit, Restriction, Scope, Unit,
};
use tidegate_units::{Nanos, Rate, Share};

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
        let service = Protected {
            name: "shop".into(),
            listens,
            min_rate: rate(10.0),
            ..Protected::default()
        };
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
        let flow = Flow { offered: 20, passed: 15, refused: 5, ..Flow::default() };
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

/// The operator wants it held longer, and fewer steps.
#[test]
fn how_it_ages_is_configured() {
    let mut router = Router::new();
    router.inbound.age(PushbackSpec { delta: Nanos::from_secs(3), steps: 1, ..PUSHBACK });
    assert_eq!(router.push(20.0), Ok(()));
    let course: Vec<_> = (0..7).map(|_| router.seconds(1)).collect();
    let near = |at: usize, rate: f64| course[at].is_some_and(|seen| (seen - rate).abs() < 1.0);
    // The clamp lets it fall to 37 within 2 s; after 3 s it is at the whole, where four steps would be at 40.
    assert!(near(1, 37.5) && near(3, 100.0) && near(4, 100.0), "{course:?}");
    assert_eq!(course[6], None, "{course:?}");
}

/// Clients that are refused send their SYN again: copies are no demand, and move no share. Of real demands of 100 and 300 a second each
/// has its part, although each client comes up to four times.
#[test]
fn copies_of_refused_syns_change_no_share() {
    let told = |first: u64, passes: u64, copies: u64| {
        let mut router = Router::new();
        let flow = Flow {
            offered: first + copies,
            repeated: copies,
            passed: passes,
            refused: first + copies - passes,
            shadow: false,
        };
        for _ in 0..300 {
            router.now += TICK;
            router.inbound.tick(router.now, TICK, &[Some(flow)]);
        }
        let (_, notice) = router.inbound.notices(1).remove(0);
        notice
    };
    // A tick is 100 ms.
    let (few, many) = (told(10, 3, 21), told(30, 9, 63));
    for (notice, offered, refused) in [(&few, 100.0, 70.0), (&many, 300.0, 210.0)] {
        assert!((notice.offered.get() - offered).abs() < 0.5, "{notice:?}");
        assert!((notice.refused.get() - refused).abs() < 0.5, "{notice:?}");
    }
    let mut answer = Answer::new(&[None, None], rate(1.0));
    answer.notice(Nanos::SECOND, 0, (1, &few));
    answer.notice(Nanos::SECOND, 1, (1, &many));
    let replies = answer.tick((Nanos::SECOND, TICK), Some(rate(100.0)), Some((12, 12)));
    let rates: Vec<f64> = replies.iter().map(|reply| reply.rate.get()).collect();
    // k times 100 times a quarter, and three of them.
    assert!((rates[0] - 30.0).abs() < 0.5 && (rates[1] - 90.0).abs() < 0.5, "{rates:?}");
}

/// Where two may limit a service, one alone does not, and is told apart from a limit in force. Both together allow the sum, and the kernel
/// ends it with the first of them.
#[test]
fn of_two_owners_both_have_to_limit() {
    let mut router = Router::new();
    let grant = |peer: &str| Grant {
        peer: peer.into(),
        when_congested: vec![scope(SCOPE)],
        ..Grant::default()
    };
    let listens = vec![SCOPE.parse().expect("an address")];
    let service =
        Protected { name: "shop".into(), listens, min_rate: rate(10.0), ..Protected::default() };
    router.inbound.follow(&[grant("b1"), grant("b2")], vec![service]);
    router.inbound.session("b2", Some((7, 1)));
    let flow = [Some(Flow { offered: 20, passed: 15, refused: 5, ..Flow::default() })];
    let tick = |router: &mut Router| {
        router.now += TICK;
        router.inbound.tick(router.now, TICK, &flow)[0]
    };
    assert_eq!(router.push(80.0), Ok(()));
    let first = router.now;
    assert_eq!(tick(&mut router), None);
    let state = &router.inbound.states(router.now, 0)[0];
    assert_eq!(state.why, "it is not in force: b2 may limit this as well, and has no limit");
    (0..10).for_each(|_| _ = tick(&mut router));
    let mut other = router.pushed(90.0);
    other.received.peer = "b2".into();
    assert_eq!(router.inbound.push(other), Ok(()));
    let both = tick(&mut router).expect("a limit");
    assert_eq!(
        (both.rate.get(), both.until),
        (170.0, Some(first + TTL)),
        "the sum, until the first ends"
    );
    assert!(router.inbound.states(router.now, 0).iter().all(|state| state.why.is_empty()));
}

/// Of two services in a scope one has another owner, who has no limit: the other one is limited all the same, and each is told so.
#[test]
fn a_limit_holds_where_nobody_else_has_to_limit() {
    let mut router = Router::new();
    let grant = |peer: &str, of: &str| Grant {
        peer: peer.into(),
        when_congested: vec![scope(of)],
        ..Grant::default()
    };
    let service = |name: &str, listen: &str| Protected {
        name: name.into(),
        listens: vec![listen.parse().expect("an address")],
        min_rate: rate(10.0),
        ..Protected::default()
    };
    let (wide, other) = ("192.0.2.0/30:80", "192.0.2.2:80");
    router.inbound.follow(
        &[grant("b1", wide), grant("b2", other)],
        vec![service("shop", SCOPE), service("api", other)],
    );
    let flow = [Some(Flow { offered: 20, passed: 20, ..Flow::default() }); 2];
    let mut pushed = router.pushed(80.0);
    pushed.received.limit.scope = scope(wide);
    assert_eq!(router.inbound.push(pushed), Ok(()));
    router.now += TICK;
    let decided = router.inbound.tick(router.now, TICK, &flow);
    assert!(decided[0].is_some() && decided[1].is_none(), "{decided:?}");
    let state = |service| router.inbound.states(router.now, service).remove(0);
    assert_eq!((state(0).why.as_str(), state(0).rate.is_some()), ("", true));
    assert!(state(1).why.contains("b2 may limit this as well") && state(1).rate.is_none());
}

/// What would not be refused is not counted: as much passes in a tick as the limit gives, however small its bucket.
#[test]
fn a_staged_limit_above_what_comes_would_refuse_nothing() {
    let mut router = Router::new();
    let mut pushed = router.pushed(1000.0);
    (pushed.enforced_from, pushed.whole) = (router.now + Nanos::from_secs(5), rate(1000.0));
    assert_eq!(router.inbound.push(pushed), Ok(()));
    let flow = [Some(Flow { offered: 90, passed: 90, ..Flow::default() })];
    for _ in 0..20 {
        router.now += TICK;
        assert_eq!(router.inbound.tick(router.now, TICK, &flow), [None]);
    }
    assert_eq!(router.inbound.states(router.now, 0)[0].would_refuse, 0);
}

/// The second check: of signed limits that are wrong in one thing none is taken, and what holds stays as it is.
#[test]
fn of_wrong_pushed_limits_none_is_taken() {
    let mut router = Router::new();
    assert_eq!(router.push(50.0), Ok(()));
    let holds = |router: &Router| {
        let state = router.inbound.states(router.now, 0).remove(0);
        (state.restriction, state.sequence, state.peer)
    };
    let before = holds(&router);
    for n in 0..70_000_u64 {
        let mut wrong = router.pushed(10.0);
        let limit = &mut wrong.received.limit;
        let why = match n % 7 {
            0 => {
                wrong.received.peer = format!("b{}", 2 + n % 5);
                NotTaken::UnknownPeer
            }
            1 => {
                wrong.received.session = 8 + n;
                NotTaken::OtherSession
            }
            2 => {
                limit.scope = scope(&format!("192.0.2.{}:80", 2 + n % 200));
                NotTaken::NotGranted
            }
            3 => {
                limit.sequence = 1;
                NotTaken::Stale
            }
            4 => {
                wrong.whole = rate(9.0);
                NotTaken::OutOfRange
            }
            5 => {
                limit.validity = TTL.since(Nanos(1 + n));
                NotTaken::OutOfRange
            }
            _ => {
                limit.restriction = Restriction::Datagrams(rate(1.0));
                NotTaken::Unsupported
            }
        };
        assert_eq!(router.inbound.push(wrong), Err(why), "{n}");
    }
    assert_eq!(holds(&router), before);
}

/// Copies are no first attempts, whether they pass or not, and copies of other services are not this one's.
#[test]
fn what_is_turned_away_are_first_attempts() {
    let flow = |offered, repeated, passed, refused| Flow {
        offered,
        repeated,
        passed,
        refused,
        shadow: false,
    };
    assert_eq!(flow(100, 80, 15, 85).turned_away(), 5);
    assert_eq!(flow(100, 80, 30, 70).turned_away(), 0, "copies took the places");
    assert_eq!(flow(60, 60, 0, 0).turned_away(), 0, "its own limit refuses");
    assert_eq!(flow(100, 0, 40, 20).turned_away(), 20, "others refuse as well");
    assert_eq!(Flow { shadow: true, ..flow(100, 0, 50, 50) }.turned_away(), 0);
}

/// Its grant has ended: nothing holds, and nothing relaxes.
#[test]
fn revoked_it_is_gone_at_once() {
    let mut router = Router::new();
    assert_eq!(router.push(50.0), Ok(()));
    assert!(router.tick().is_some());
    let scope = router.pushed(50.0).received.limit.scope;
    assert!(!router.inbound.revoke("b2", &scope), "of another");
    assert!(router.tick().is_some());
    assert!(router.inbound.revoke("b1", &scope));
    assert_eq!(router.tick(), None);
    assert!(!router.inbound.revoke("b1", &scope), "once");
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
    for second in 0..5 {
        let pushed = Pushed { enforced_from: from, ..router.pushed(50.0) };
        assert_eq!(router.inbound.push(pushed), Ok(()));
        let staged = router.seconds(1);
        assert_eq!(staged.is_some(), router.now >= from, "{staged:?}");
        // 200/s come, and 20 fit into a full bucket. At first half of the 150/s that pass would pass, then the 50/s that are wanted.
        let state = &router.inbound.states(router.now, 0)[0];
        if router.now < from {
            let seconds = f64::from(second);
            let would = 105.0 + 150.0 * seconds;
            assert!((state.would_refuse as f64 - would).abs() < 6.0, "{would}: {state:?}");
            assert!(state.why.contains("only counted"), "{state:?}");
        } else {
            assert_eq!((state.why.as_str(), state.would_refuse >= 650), ("", true), "{state:?}");
        }
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
    let service =
        Protected { name: "shop".into(), listens, min_rate: rate(10.0), ..Protected::default() };
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
        min_rate: rate(10.0),
        ..Protected::default()
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
        min_rate: rate(10.0),
        ..Protected::default()
    };
    let services =
        vec![service("routes", &[]), service("shop", &[SCOPE]), service("api", &["192.0.2.2:80"])];
    inbound.follow(&grants, services);
    let flow = Some(Flow { offered: 20, passed: 20, refused: 0, ..Flow::default() });
    inbound.tick(Nanos::SECOND, TICK, &[flow; 3]);
    let told: Vec<_> = inbound.notices(1).into_iter().map(|(_, notice)| notice.service).collect();
    assert_eq!(told, ["shop"]);
}

/// Routers without hit counters before a server with the default controller, in steps of a second.
struct Counterless {
    world: world::World,
    controller: DefaultController,
    law: Uncounted,
    plan: Plan,
    /// Packets per second that the routers let pass of what they are told; `None`: they are told nothing.
    told: Option<f64>,
    /// What of it they really let pass.
    passes: f64,
    /// Updates: the second, and the rate.
    updates: Vec<(u64, Option<f64>)>,
    second: u64,
}

impl Counterless {
    fn new(passes: f64) -> Self {
        let bounds = Bounds::default();
        let steps = Steps { by: bounds.hysteresis, between: bounds.between };
        Self {
            world: world::World::new(world::Spec::default(), 7),
            controller: DefaultController::new(DefaultSpec::default()),
            law: Uncounted::new(steps),
            plan: Plan::new(bounds),
            told: None,
            passes,
            updates: Vec::new(),
            second: 0,
        }
    }

    fn seconds(&mut self, seconds: u64, demand: f64) {
        for _ in 0..seconds {
            self.second += 1;
            let rate = self.told.map_or(demand, |told| demand.min(told * self.passes));
            let (law, mut now, mut wanted) = (&mut self.law, Nanos::ZERO, None);
            self.world.run(&mut self.controller, (rate, 0.0, 1), |signals, limits| {
                let came = signals.balance.counts.map(|counts| counts.value.offered);
                now = signals.now;
                wanted = law.tick((now, signals.period), limits.rate, came);
            });
            let rule = Rule::to("192.0.2.1/32".parse().expect("a prefix"));
            let route = |rate| Route { rule: rule.clone(), action: Action::Packets(rate) };
            let routes: Vec<Route> = wanted.map(route).into_iter().collect();
            assert_eq!(self.plan.want(now, &routes), Ok(0));
            for change in self.plan.changes(now) {
                self.plan.done(now, &change);
                self.told = match change {
                    Change::Announce(Route { action: Action::Packets(rate), .. }) => {
                        Some(rate.get())
                    }
                    _ => None,
                };
                self.updates.push((self.second, self.told));
            }
        }
    }

    /// The share of these seconds in which the server completed at least nine tenths of what it can.
    fn good(&self, from: usize, to: usize) -> f64 {
        let enough = 0.9 * CAPACITY;
        let good = self.world.seconds[from..to].iter().filter(|s| s.done() as f64 >= enough);
        good.count() as f64 / (to - from) as f64
    }
}

/// Responses per second of the world's server.
const CAPACITY: f64 = 640.0;

/// An overload of five minutes: a handful of updates, no swing, and the route is gone in time.
#[test]
fn routers_without_hit_counters_are_told_rarely_and_let_go() {
    // Such as they are told, and routers that let pass less, or more.
    for passes in [1.0, 0.7, 1.5] {
        let mut routers = Counterless::new(passes);
        routers.seconds(30, 0.5 * CAPACITY);
        assert!(routers.updates.is_empty(), "{:?}", routers.updates);
        routers.seconds(300, 3.0 * CAPACITY);
        let during = routers.updates.len();
        let good = routers.good(35, 330);
        println!("{passes}: {good:.3} of the seconds; {:.0?}", routers.updates);
        assert!(during >= 1, "a route");
        assert!(good >= 0.95, "{passes}: {good}");
        assert!(during <= 5, "{passes}: {:?}", routers.updates);
        let ends = routers.updates.iter().filter(|(_, told)| told.is_none()).count();
        assert_eq!(ends, 0, "{passes}: never lifted in the overload: {:?}", routers.updates);
        routers.seconds(60, 0.5 * CAPACITY);
        let (last, told) = *routers.updates.last().expect("an update");
        assert!(told.is_none() && last <= 330 + 30, "{passes}: {:?}", routers.updates);
        routers.seconds(120, 0.5 * CAPACITY);
        assert_eq!(routers.updates.last(), Some(&(last, None)), "{passes}: it stays so");
    }
}

/// The crowd goes down to just below what the server can take: the route ends after some steps.
#[test]
fn a_route_ends_also_where_nearly_all_of_the_capacity_is_needed() {
    let mut routers = Counterless::new(1.0);
    routers.seconds(30, 0.5 * CAPACITY);
    routers.seconds(60, 3.0 * CAPACITY);
    assert!(routers.told.is_some());
    routers.seconds(90, 0.85 * CAPACITY);
    println!("{:?}", routers.updates);
    assert_eq!(routers.told, None, "{:?}", routers.updates);
    assert!(routers.good(92, 180) < 0.5, "nothing is overloaded any more");
}

/// Rounds of a tick with what the service limits itself to and how much comes, per second.
fn rounds(law: &mut Uncounted, now: &mut Nanos, seconds: u64, own: Option<f64>, came: Option<f64>) {
    for _ in 0..10 * seconds {
        *now += TICK;
        let came = came.map(|came| (came * TICK.as_secs_f64()) as u64);
        law.tick((*now, TICK), own.map(rate), came);
    }
}

#[test]
fn each_bound_of_the_rate_for_routers_without_hit_counters() {
    let (mut law, mut now) = (Uncounted::new(Steps::default()), Nanos::SECOND);
    let is = |law: &Uncounted| law.rate().map(|rate| rate.get().round());
    // Not above K times the own limit: a router would refuse nothing.
    rounds(&mut law, &mut now, 20, Some(100.0), Some(120.0));
    assert_eq!(is(&law), None);
    rounds(&mut law, &mut now, BEGIN_AFTER.0 / Nanos::SECOND.0, Some(100.0), Some(300.0));
    assert_eq!(is(&law), None, "not long enough");
    rounds(&mut law, &mut now, 1, Some(100.0), Some(300.0));
    assert_eq!(is(&law), Some(120.0));
    // It stays while what arrives is near, and for a while beyond that; no router obeys in the last row.
    for (own, came, seconds, expected) in [
        (84.0, 120.0, 20, 120.0),
        (60.0, 120.0, 9, 120.0),
        (84.0, 120.0, 1, 120.0),
        (60.0, 120.0, 9, 120.0),
        (60.0, 120.0, 2, 72.0),
        (200.0, 400.0, 9, 72.0),
        (200.0, 400.0, 11, 240.0),
        (48.0, 400.0, 12, 58.0),
    ] {
        rounds(&mut law, &mut now, seconds, Some(own), Some(came));
        assert_eq!(is(&law), Some(expected), "own {own}");
    }
    // Calm: after each 10 s a step, two, four, up to what has come.
    for expected in [69.0, 97.0, 174.0] {
        rounds(&mut law, &mut now, 10, None, Some(expected));
        assert!(
            is(&law).is_some_and(|is| (is - expected).abs() <= 1.0),
            "{:?} {expected}",
            is(&law)
        );
    }
    rounds(&mut law, &mut now, 10, None, Some(357.0));
    assert_eq!(is(&law), None, "more has never come");
}

/// Each cut of the rate is one that routers are told, whatever the hysteresis.
#[test]
fn no_cut_is_smaller_than_what_is_told() {
    for (by, first) in [(0.05, 1_000.0), (0.2, 20.0), (0.2, 1_000.0), (0.3, 100.0), (0.5, 100.0)] {
        let steps = Steps { by: Share::new(by), ..Steps::default() };
        let bounds = Bounds { hysteresis: steps.by, between: steps.between, ..Bounds::default() };
        let (mut law, mut plan, mut now) = (Uncounted::new(steps), Plan::new(bounds), Nanos::ZERO);
        let rule = Rule::to("192.0.2.1/32".parse().expect("a prefix"));
        let (mut told, mut cuts) = (first * 9.0, 0_u32);
        // After the begin the own limit falls slowly, and routers let pass what they are told.
        for second in 0..600 {
            now += Nanos::SECOND;
            let own = first * (1.0 - f64::from(second) / 660.0);
            let Some(wanted) = law.tick((now, Nanos::SECOND), Some(rate(own)), Some(told as u64))
            else {
                continue;
            };
            let wanted = wanted.get().ceil();
            let route = Route { rule: rule.clone(), action: Action::Packets(rate(wanted)) };
            assert_eq!(plan.want(now, &[route]), Ok(0));
            for change in plan.changes(now) {
                plan.done(now, &change);
                (told, cuts) = (wanted, cuts + 1);
            }
            assert_eq!(told, wanted, "{by} from {first}: what is decided is told");
        }
        assert!(cuts >= 3, "{by} from {first}: {cuts}");
    }
}

/// A back-end was away, and the own limit with it. Nobody waits for small steps from there.
#[test]
fn a_rate_that_was_far_too_low_ends_soon() {
    let begun = || {
        let (mut law, mut now) = (Uncounted::new(Steps::default()), Nanos::SECOND);
        rounds(&mut law, &mut now, 5, Some(100.0), Some(90_000.0));
        assert_eq!(law.rate().map(Rate::get), Some(120.0));
        (law, now)
    };
    // The own limit is high again, and refuses nothing.
    let (mut law, mut now) = begun();
    rounds(&mut law, &mut now, 20, Some(20_000.0), Some(120.0));
    assert_eq!(law.rate().map(Rate::get), Some(24_000.0), "not below K times the own limit");
    rounds(&mut law, &mut now, 20, Some(20_000.0), Some(120.0));
    assert_eq!(law.rate(), None, "less than half of that comes");
    // There is none: as much comes as routers let pass.
    let (mut law, mut now) = begun();
    for _ in 0..80 {
        let Some(rate) = law.rate() else { break };
        rounds(&mut law, &mut now, 1, None, Some(rate.get()));
    }
    assert_eq!(law.rate(), None, "more than 90,000/s after seven steps");
}

/// Beside a fixed rate, a demand below it that varies around it now and then.
#[test]
fn demand_that_varies_keeps_no_route() {
    let (mut law, mut now) = (Uncounted::new(Steps::default()), Nanos::SECOND);
    rounds(&mut law, &mut now, 5, Some(20.0), Some(300.0));
    assert_eq!(law.rate().map(Rate::get), Some(24.0));
    for _ in 0..30 {
        rounds(&mut law, &mut now, 1, Some(20.0), Some(30.0));
        rounds(&mut law, &mut now, 3, Some(20.0), Some(10.0));
    }
    assert_eq!(law.rate(), None);
    // What comes is not known, and a limit stands.
    rounds(&mut law, &mut now, 5, Some(20.0), Some(300.0));
    rounds(&mut law, &mut now, 29, Some(20.0), None);
    assert!(law.rate().is_some());
    rounds(&mut law, &mut now, 2, Some(20.0), None);
    assert_eq!(law.rate(), None);
}

/// Demand that grows behind its route: who ended too early waits, by this end, too.
#[test]
fn an_end_above_all_that_has_come_waits_after_a_relapse() {
    let (mut law, mut now) = (Uncounted::new(Steps::default()), Nanos::SECOND);
    let mut stays = Vec::new();
    for _ in 0..4 {
        rounds(&mut law, &mut now, 5, Some(100.0), Some(150.0));
        assert!(law.rate().is_some());
        let begin = now;
        while law.rate().is_some() {
            assert!(now.since(begin) < Nanos::from_secs(600));
            rounds(&mut law, &mut now, 1, None, Some(120.0));
        }
        stays.push(now.since(begin).0 / Nanos::SECOND.0);
    }
    println!("{stays:?}");
    assert!(stays.windows(2).all(|two| two[1] >= two[0] + CALM_AFTER.0 / Nanos::SECOND.0));
}

/// Each overload that comes back soon doubles the time that the route stays, so that nothing swings without end.
#[test]
fn a_route_that_is_let_go_too_early_stays_longer_the_next_time() {
    let (mut law, mut now) = (Uncounted::new(Steps::default()), Nanos::SECOND);
    let mut stays = Vec::new();
    for _ in 0..7 {
        rounds(&mut law, &mut now, 5, Some(100.0), Some(900.0));
        assert!(law.rate().is_some());
        let begin = now;
        while law.rate().is_some() {
            assert!(now.since(begin) < Nanos::from_secs(600));
            rounds(&mut law, &mut now, 1, None, Some(10.0));
        }
        stays.push(now.since(begin).0 / Nanos::SECOND.0);
    }
    let least = CALM_AFTER.0 / Nanos::SECOND.0;
    println!("{stays:?}");
    assert!((least..least + 5).contains(&stays[0]), "{stays:?}");
    assert!(stays[1] >= 2 * least && stays.windows(2).all(|two| two[1] >= two[0]), "{stays:?}");
    // Lifted by an operator: at once, and it is forgotten.
    rounds(&mut law, &mut now, 5, Some(100.0), Some(900.0));
    law.clear();
    assert_eq!(law.rate(), None);
    // What comes is not known: it grows, and ends.
    rounds(&mut law, &mut now, 5, Some(100.0), Some(900.0));
    rounds(&mut law, &mut now, 29, None, None);
    assert!(law.rate().is_some_and(|rate| rate.get() > 121.0));
    rounds(&mut law, &mut now, 2, None, None);
    assert_eq!(law.rate(), None);
}

/// A limit on datagrams comes in answer to a notice only. Who may limit connections without one is not waited for.
#[test]
fn datagrams_are_limited_by_notices_alone_and_by_their_owners_alone() {
    let mut router = Router::new();
    router.inbound = Inbound::of(Unit::Datagrams);
    let own = Grant { peer: "b2".into(), scopes: vec![scope(SCOPE)], ..Grant::default() };
    let when_congested = vec![scope(SCOPE)];
    let grant = Grant { peer: "b1".into(), when_congested, ..Grant::default() };
    let listens = vec![SCOPE.parse().expect("an address")];
    let service =
        Protected { name: "shop".into(), listens, min_rate: rate(1.0), ..Protected::default() };
    router.inbound.follow(&[grant, own], vec![service]);
    for (peer, session) in [("b1", 7), ("b2", 8)] {
        router.inbound.session(peer, Some((session, 1)));
    }
    router.inbound.congested(true);
    assert_eq!(router.seconds(3), None);
    let mut pushed = router.pushed(50.0);
    pushed.received.limit.restriction = Restriction::Datagrams(rate(50.0));
    let plain = ReceivedLimit { peer: "b2".into(), session: 8, ..pushed.received.clone() };
    assert_eq!(router.inbound.take(plain), Err(NotTaken::Unsupported));
    assert_eq!(router.inbound.push(pushed), Ok(()));
    assert!(router.seconds(2).is_some(), "it holds");
    let told = router.inbound.notices(1);
    assert_eq!(told.iter().map(|(to, _)| to.as_str()).collect::<Vec<_>>(), ["b1"]);
    assert!(told[0].1.offered.get() > 150.0, "of all that comes: {told:?}");
}
