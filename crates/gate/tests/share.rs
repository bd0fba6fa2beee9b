// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proxies that refuse by themselves what the gate has told them to, in virtual time: one that obeys the last answer
//! for a second (HAProxy), and one that is told of tenths of a second to come (nginx).
//!
//! ```text
//! Poisson arrivals ─► proxy ─ asks about some ─► gate: 800/s ─► at once reported
//!                       └─ refuses the others
//! ```
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use std::collections::BTreeMap;
use tidegate_config::{Config, Registry, parse};
use tidegate_gate::{Ask, Completion, Gate, Id, NoHeaders};
use tidegate_model::limits::ServiceLimits;
use tidegate_policy::Reason;
use tidegate_units::{Nanos, Rate};

/// What the gate admits, a second.
const LIMIT: f64 = 800.0;
const TICK: Nanos = Nanos::from_millis(100);
const ALL: u32 = 10_000;

/// What the proxies of these tests know.
#[derive(Clone, Debug)]
enum Proxy {
    /// The share, and when it was told.
    Last(u32, Nanos),
    /// The share of each tenth of a second.
    Tenths(BTreeMap<u64, u32>),
    /// It is told nothing.
    Silent,
}

impl Proxy {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Last(..) => "the last share",
            Self::Tenths(_) => "tenths",
            Self::Silent => "nothing",
        }
    }

    /// The share that it asks about now.
    fn share(&self, now: Nanos) -> Option<u32> {
        match self {
            Self::Last(parts, at) if now.since(*at) < Nanos::SECOND => Some(*parts),
            Self::Last(..) => Some(ALL),
            Self::Tenths(told) => Some(told.get(&tenth(now)).copied().unwrap_or(ALL)),
            Self::Silent => None,
        }
    }

    /// What it was told with an answer.
    fn told(&mut self, now: Nanos, share: Option<u32>) {
        match self {
            Self::Last(parts, at) => {
                if let Some(share) = share {
                    (*parts, *at) = (share, now);
                }
            }
            Self::Tenths(told) => {
                let all = tenth(now) + 2..=tenth(now) + 8;
                told.extend(all.map(|of| (of, share.unwrap_or(ALL))));
            }
            Self::Silent => assert_eq!(share, None),
        }
    }
}

const fn tenth(now: Nanos) -> u64 {
    now.0 / 100_000_000
}

struct World {
    gate: Gate,
    config: Config,
    proxies: Vec<Proxy>,
    now: Nanos,
    dice: u64,
    /// The control loop runs.
    ticks: bool,
}

/// What came in a while, and what became of it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    came: f64,
    asked: f64,
    admitted: f64,
    refused: f64,
    /// By the gate's own count.
    counted: f64,
    by_proxy: f64,
}

impl World {
    fn new(mode: &str, proxies: Vec<Proxy>) -> Self {
        let text = format!(
            "services: {{shop: {{mode: {mode}}}}}
gateways: {{edge: {{adapter: nginx, listen: '127.0.0.1:9470', completions: '127.0.0.1:9471', routes: [{{service: shop}}]}}}}
"
        );
        let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let gate = Gate::new(&config, 1);
        let now = Nanos::from_millis(5_000);
        gate.tick(now);
        let limits = ServiceLimits {
            rate: Some(Rate::per_second(LIMIT)),
            burst: 80,
            ..ServiceLimits::default()
        };
        assert!(gate.set_limits(&config, &[limits]).is_empty());
        Self { gate, config, proxies, now, dice: 88_172_645_463_325_252, ticks: true }
    }

    fn random(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Requests at so many times the limit.
    fn run(&mut self, load: f64, ms: u64) -> Seen {
        let counts = |gate: &Gate| {
            let of = |reason| {
                let counts = gate.counts(0).into_iter();
                counts.filter(|c| c.reason == reason).map(|c| c.count).sum::<u64>() as f64
            };
            (gate.totals(0).unwrap().offered as f64, of(Reason::ByProxy))
        };
        let (before, end) = (counts(&self.gate), self.now + Nanos::from_millis(ms));
        let (mut seen, mut tick) = (Seen::default(), self.now + TICK);
        while self.now < end {
            let even = (self.random() >> 11) as f64 / (1_u64 << 53) as f64;
            self.now += Nanos::from_secs_f64(-(1.0 - even).ln() / (load * LIMIT));
            while tick <= self.now {
                if self.ticks {
                    self.gate.tick(tick);
                }
                tick += TICK;
            }
            seen.came += 1.0;
            self.arrive(&mut seen);
        }
        let after = counts(&self.gate);
        Seen { counted: after.0 - before.0, by_proxy: after.1 - before.1, ..seen }
    }

    fn arrive(&mut self, seen: &mut Seen) {
        let (random, which) = (self.random() >> 20, self.random() as usize % self.proxies.len());
        let share = self.proxies[which].share(self.now);
        if random % u64::from(ALL) >= u64::from(share.unwrap_or(ALL)) {
            seen.refused += 1.0;
            return;
        }
        seen.asked += 1.0;
        let ask = Ask {
            gateway: "edge",
            method: "GET",
            host: Some("shop.example"),
            target: "/",
            client: None,
            request_id: None,
            reported_by_id: false,
            share,
            turn: None,
            headers: &NoHeaders,
        };
        let answer = self.gate.ask(self.now, &ask);
        self.proxies[which].told(self.now, answer.share);
        if answer.passes() {
            seen.admitted += 1.0;
        } else {
            seen.refused += 1.0;
        }
        if let Some(token) = answer.token {
            let done = Completion { status: 200, ..Completion::default() };
            self.gate.complete(self.now, Id::Token(token), &done);
        }
    }
}

/// One proxy of each kind, and three of them behind one gateway.
fn kinds() -> [Vec<Proxy>; 3] {
    let (last, tenths) = (Proxy::Last(ALL, Nanos::ZERO), Proxy::Tenths(BTreeMap::new()));
    [vec![last.clone()], vec![tenths], vec![last; 3]]
}

/// Half more than is admitted is asked about, the limit is reached all the same, and what is counted is what came.
#[test]
fn a_share_is_obeyed_and_demand_is_known() {
    for proxies in kinds() {
        let kind = format!("{} with {}", proxies.len(), proxies[0].kind());
        for load in [3.0, 10.0, 40.0] {
            let mut world = World::new("enforce", proxies.clone());
            world.run(load, 1_500);
            let seen = world.run(load, 10_000);
            let (asked, admitted) = (seen.asked / 10.0 / LIMIT, seen.admitted / 10.0 / LIMIT);
            let counted = seen.counted / seen.came;
            println!(
                "{kind}, {load}: asked {asked:.2}, admitted {admitted:.3}, counted {counted:.3}"
            );
            assert!((1.3..1.7).contains(&asked), "{kind}, {load}: {asked}");
            assert!((0.98..=1.02).contains(&admitted), "{kind}, {load}: {admitted}");
            assert!((0.95..=1.05).contains(&counted), "{kind}, {load}: {counted}");
        }
    }
}

/// What is refused after a flash crowd has left ends within a second, and a new one begins anew.
#[test]
fn a_flash_crowd_that_leaves_is_not_missed_for_long() {
    for proxies in kinds() {
        let mut world = World::new("enforce", proxies);
        for _ in 0..3 {
            assert!(world.run(10.0, 5_000).by_proxy > 10_000.0);
            world.run(0.5, 1_200);
            let after = world.run(0.5, 5_000);
            assert_eq!((after.refused, after.by_proxy), (0.0, 0.0), "{after:?}");
        }
    }
}

/// The control loop stops: nothing is withheld a second and a half later, while the gate's own lease goes on.
#[test]
fn a_share_ends_with_the_control_loop() {
    for proxies in kinds() {
        let mut world = World::new("enforce", proxies);
        assert!(world.run(10.0, 3_000).by_proxy > 0.0);
        world.ticks = false;
        world.run(10.0, 1_600);
        let after = world.run(10.0, 1_000);
        assert_eq!(after.asked, after.came, "{after:?}");
        assert_eq!(after.by_proxy, 0.0, "{after:?}");
    }
}

/// The kill switch, a reload to a gateway whose requests are not alike, and shadow mode.
#[test]
fn nothing_is_withheld_where_nothing_may_be_refused_unseen() {
    for proxies in kinds() {
        let mut world = World::new("enforce", proxies.clone());
        assert!(world.run(10.0, 3_000).by_proxy > 0.0);
        world.gate.release(true);
        world.run(10.0, 1_100);
        let after = world.run(10.0, 1_000);
        assert_eq!((after.asked, after.admitted), (after.came, after.came), "{after:?}");

        let mut world = World::new("enforce", proxies.clone());
        assert!(world.run(10.0, 3_000).by_proxy > 0.0);
        world.config.gateways[0].rate_limit_fields = true;
        world.gate.reconfigure(&world.config);
        world.run(10.0, 1_300);
        let after = world.run(10.0, 1_000);
        assert_eq!((after.asked, after.by_proxy), (after.came, 0.0), "{after:?}");

        let after = World::new("shadow", proxies).run(10.0, 5_000);
        assert_eq!((after.refused, after.by_proxy), (0.0, 0.0), "{after:?}");
    }
}

/// A proxy that does not say how it chose is told nothing, and nothing is estimated of it.
#[test]
fn a_proxy_without_the_rules_is_asked_as_before() {
    let mut world = World::new("enforce", vec![Proxy::Silent]);
    let seen = world.run(10.0, 5_000);
    assert_eq!((seen.asked, seen.counted, seen.by_proxy), (seen.came, seen.came, 0.0));
    // Beside one that has them it counts as itself.
    let mut world = World::new("enforce", vec![Proxy::Silent, Proxy::Last(ALL, Nanos::ZERO)]);
    world.run(20.0, 1_500);
    let seen = world.run(20.0, 10_000);
    let counted = seen.counted / seen.came;
    assert!((0.95..=1.05).contains(&counted), "{counted}");
}
