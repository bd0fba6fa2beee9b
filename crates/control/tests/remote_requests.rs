// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits on requests: which services and buckets they reach, in what form, and for whom.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use tidegate_control::fleet::remote::{Flow, Grant, InForce, Inbound, NotTaken, Part, Protected};
use tidegate_model::remote::{Form, ReceivedLimit, RemoteLimit, Restriction, Unit};
use tidegate_units::{Nanos, Rate, Share};

const TICK: Nanos = Nanos::from_millis(100);

/// Places of the host below.
const SHOP: usize = 0;
const SHOP_SEARCH: usize = 1;
const WEB_A: usize = 2;
const WEB_B: usize = 3;
const API_SEARCH: usize = 4;

struct Host {
    inbound: Inbound,
    now: Nanos,
    sequence: u64,
    /// Requests that come to each place in a tick.
    come: [u64; 5],
}

fn rate(rate: f64) -> Rate {
    Rate::per_second(rate)
}

fn bucket(service: &str, name: &str, shares: bool) -> Protected {
    let bucket = Some(Part { name: name.into(), shares });
    Protected { name: service.into(), min_rate: rate(2.0), bucket, ..Protected::default() }
}

impl Host {
    /// `shop` is behind a gateway, with a bucket of a route. The hooks have rules for `web`, and `api` is another
    /// service of the gateway, of which the peer owns a bucket.
    fn new() -> Self {
        let scopes = ["shop", "192.0.2.0/24:80", "api/search"];
        let scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
        let shop = Protected { name: "shop".into(), min_rate: rate(5.0), ..Protected::default() };
        let web = |name| Protected {
            listens: vec!["192.0.2.1:80".parse().unwrap()],
            ..bucket("web", name, true)
        };
        let places = vec![
            Protected { priorities: true, ..shop },
            bucket("shop", "search", false),
            web("a"),
            web("b"),
            bucket("api", "search", false),
        ];
        let mut inbound = Inbound::of(Unit::Requests);
        inbound.follow(&[Grant { peer: "b1".into(), scopes, ..Grant::default() }], places);
        inbound.session("b1", Some((7, 1)));
        Self { inbound, now: Nanos::SECOND, sequence: 0, come: [30, 20, 30, 10, 20] }
    }

    fn says(
        &mut self,
        scope: &str,
        restriction: Restriction,
        priority: u8,
    ) -> Result<(), NotTaken> {
        self.sequence += 1;
        let limit = RemoteLimit {
            scope: scope.parse().unwrap(),
            restriction,
            validity: Nanos::from_secs(10),
            sequence: self.sequence,
            priority,
        };
        let (session, epoch, at) = (7, 1, self.now);
        self.inbound.take(ReceivedLimit { peer: "b1".into(), session, epoch, at, limit })
    }

    /// Some seconds, in which all that comes passes: what holds then.
    fn run(&mut self, seconds: u64) -> Vec<Option<InForce>> {
        let flow = |offered: u64| Some(Flow { offered, passed: offered, ..Flow::default() });
        let flows: Vec<Option<Flow>> = self.come.into_iter().map(flow).collect();
        let mut last = Vec::new();
        for _ in 0..10 * seconds {
            self.now += TICK;
            last = self.inbound.tick(self.now, TICK, &flows);
        }
        last
    }
}

fn rates(in_force: &[Option<InForce>]) -> Vec<Option<f64>> {
    let whole = |limit: &InForce| (limit.rate.get() * 10.0).round() / 10.0;
    in_force.iter().map(|limit| limit.as_ref().map(whole)).collect()
}

#[test]
fn a_scope_reaches_a_service_or_its_buckets_and_nothing_else() {
    for (scope, expected) in [
        ("shop", [Some(200.0), None, None, None, None]),
        ("shop/search", [None, Some(200.0), None, None, None]),
        // 300 and 100 of 400/s come.
        ("192.0.2.1:80", [None, None, Some(150.0), Some(50.0), None]),
        ("api/search", [None, None, None, None, Some(200.0)]),
    ] {
        let mut host = Host::new();
        host.run(5);
        host.says(scope, Restriction::Requests(rate(200.0)), 0).unwrap();
        assert_eq!(rates(&host.run(5)), expected, "{scope}");
        let told = host.inbound.hits(host.now);
        assert_eq!((told.len(), told[0].1.unit), (1, Unit::Requests), "{scope}");
    }
}

#[test]
fn what_is_anothers_and_what_cannot_be_enforced_is_not_taken() {
    let requests = Restriction::Requests(rate(50.0));
    for (scope, restriction, priority, expected) in [
        ("api", requests, 0, Err(NotTaken::NotGranted)),
        ("api/cart", requests, 0, Err(NotTaken::NotGranted)),
        ("shop/cart", requests, 0, Err(NotTaken::NoService)),
        ("192.0.2.9:80", requests, 0, Err(NotTaken::NoService)),
        ("shop", Restriction::Rate(rate(50.0)), 0, Err(NotTaken::Unsupported)),
        ("shop", requests, 3, Ok(())),
        ("shop/search", requests, 3, Err(NotTaken::Unsupported)),
        ("192.0.2.1:80", requests, 3, Err(NotTaken::Unsupported)),
        ("shop", requests, 8, Err(NotTaken::OutOfRange)),
    ] {
        assert_eq!(Host::new().says(scope, restriction, priority), expected, "{scope} {priority}");
    }
}

/// What is in force has the form and the priority that were told, and falls by half in a second at most.
#[test]
fn each_form_is_told_with_the_clamps_of_a_rate() {
    for (restriction, form, burst, last) in [
        (Restriction::Requests(rate(60.0)), Form::Rate, 20, 60.0),
        (Restriction::RequestLoss(Share::new(0.8)), Form::Loss, 20, 60.0),
        (Restriction::RequestGap(Nanos::from_millis(20)), Form::Gap, 1, 50.0),
        (Restriction::RequestGap(Nanos::SECOND), Form::Gap, 1, 5.0),
    ] {
        let mut host = Host::new();
        host.run(5);
        host.says("shop", restriction, 3).unwrap();
        let first = host.run(1)[SHOP].unwrap();
        assert!(first.rate.get() >= 149.0, "{restriction}: {first:?}");
        let held = host.run(7)[SHOP].unwrap();
        assert!((held.rate.get() - last).abs() < 1.0, "{restriction}: {held:?}");
        assert_eq!((held.form, held.burst, held.priority), (form, burst, 3));
        let share = held.loss.unwrap().get();
        assert!((share - (1.0 - last / 300.0)).abs() < 0.01, "{restriction}: {share}");
        let states = host.inbound.states_at(host.now, &[SHOP, SHOP_SEARCH]);
        assert_eq!(states.len(), 1);
        assert_eq!((states[0].restriction, states[0].priority), (Some(restriction), 3));
        assert!(host.inbound.states_at(host.now, &[WEB_A, WEB_B, API_SEARCH]).is_empty());
    }
}

/// One scope that is granted covers many buckets, and each is renewed as often as a scope.
#[test]
fn the_quota_counts_the_buckets_under_a_grant() {
    let names = ["a", "b", "c"];
    let mut inbound = Inbound::of(Unit::Requests);
    let scopes = vec!["shop".parse().unwrap()];
    let grant = Grant { peer: "b1".into(), scopes, ..Grant::default() };
    inbound.follow(&[grant], names.map(|name| bucket("shop", name, true)).into());
    inbound.session("b1", Some((7, 1)));
    let mut host = Host { inbound, ..Host::new() };
    let requests = Restriction::Requests(rate(50.0));
    let begin = host.now;
    while host.now.since(begin) < Nanos::from_secs(60) {
        for name in names {
            let said = host.says(&format!("shop/{name}"), requests, 0);
            assert_eq!(said, Ok(()), "{name} after {}", host.now.since(begin));
        }
        host.now += Nanos::from_millis(95);
    }
    // More than the three scopes allow is refused as ever.
    let flood = (0..1_000).filter(|_| host.says("shop/a", requests, 0).is_ok()).count();
    assert!((100..=180).contains(&flood), "{flood}");
    assert_eq!(host.inbound.refused("b1")[0].reason, "quota");
}
