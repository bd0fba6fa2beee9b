// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The share of the requests that a proxy asks about, while far more come than are admitted.
//!
//! A question costs a proxy more than a refusal of its own. Ten times what a service can take is asked
//! about for nothing nine times in ten, and the proxy becomes the bottleneck. So a proxy that can be
//! told asks about a random share, and refuses the rest by itself:
//!
//! ```text
//! share = max(1.5 · what is admitted a second, 300/s) / (what comes a second)
//! ```
//!
//! The half more that is asked about is what the chain chooses from, and what chance needs. 300 questions
//! a second cost little, and show that a flash crowd has left: a share ends at the first tick in which
//! the chain refuses none of those that are asked about.
//!
//! Before a rate is known the limit in flight refuses. What is admitted is then what the service completes, or what was admitted of
//! late if that is more.
//!
//! A proxy refuses without looking. So it does only where the gate has no choice either: every request
//! of the gateway goes to one service, at one priority, through no bucket, no client is exempt, and no limit that
//! another node told refuses anybody. What a proxy refuses is not seen; it is estimated from those that are asked
//! about, and counts as offered and as refused.
//!
//! | proxy | how it is told | how it forgets | a question stands for |
//! | --- | --- | --- | --- |
//! | Envoy | its runtime (adapter/envoy/runtime.rs) | the layer lives for 1 s | 1 / the share that it acknowledged |
//! | HAProxy | the answers to its questions | its rules obey for 1 s | 1 / the share that the question names |
//! | nginx, Caddy | names of files (adapter/closed.rs) | a name is of one tenth of a second | 1 / the share of its tenth |
//!
//! An Envoy that asks as much as before, although it said so, is not told anything for a minute. Of the others
//! the share of each question is known ([`crate::Ask::share`]).
//!
//! The share is no older than a tick: without the control loop, in shadow and under the kill switch all
//! are asked about.

use crate::service::Service;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_config::{Config, GatewayConfig};
use tidegate_model::PRIORITY_DEFAULT;
use tidegate_units::Nanos;

/// A share is a number of these parts.
pub(crate) const PARTS: u32 = 10_000;
/// So many times what is admitted is asked about.
const SURPLUS: f64 = 1.5;
/// A share below the first one begins it, after so many ticks, and one above the second ends it: a question
/// more is cheap.
const BEGINS: f64 = 0.8;
const BEGINS_TICKS: u32 = 3;
const ENDS: f64 = 0.9;
/// The least share: less would say too little about what comes.
const LEAST: f64 = 0.01;
const PARTS_MIN: u32 = PARTS / 100;
/// Time in which what comes is averaged, in seconds.
const AVERAGE_SECONDS: f64 = 0.3;
/// Questions per second, at least: 90 in such a time, so the average errs by a tenth.
const ASKED_MIN: f64 = 300.0;
/// A share that no tick has confirmed for so long holds no more.
const AGE_MAX: Nanos = Nanos::from_millis(500);
/// A proxy obeys if it asks less than this part of what it asked before, within so many seconds. Else it is
/// told nothing for a while.
const OBEYS: f64 = 0.9;
const OBEYS_SECONDS: f64 = 1.0;
/// A larger share says nothing of that: more may be admitted meanwhile, and asked about.
const OBEYS_BELOW: f64 = 0.6;
const PAUSE: Nanos = Nanos::from_secs(60);
/// A proxy can be told for so long after a question of which the share is known.
const HEARD_MAX: Nanos = Nanos::SECOND;
/// For so long after a limit of another node has refused somebody all are asked about.
const OTHERS_FOR: Nanos = Nanos::from_secs(3);

/// What comes, tick by tick.
#[derive(Debug, Default)]
struct Pace {
    /// Of this service.
    of: Option<Arc<str>>,
    at: Nanos,
    offered: u64,
    refused: u64,
    unseen: u64,
    per_second: f64,
    /// Questions per second, and those of them that were admitted.
    asked: f64,
    admitted: f64,
    /// The same when a share began, whether it has fallen since, and seconds in which it has not.
    before: f64,
    obeyed: bool,
    in_vain_s: f64,
    /// Ticks in which a share would have begun.
    wanted: u32,
    /// Nothing is told until then.
    pause: Nanos,
}

/// What happened to a service in a tick.
#[derive(Clone, Copy, Debug, Default)]
struct Tick {
    seconds: f64,
    offered: f64,
    /// Questions, and those of them that were refused.
    asked: f64,
    refused: f64,
}

/// What the proxies of one gateway are told.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Proxies that can be told.
    listeners: AtomicUsize,
    /// The parts that are not to be asked about, and those that the proxies say they do not ask about.
    wanted: AtomicU32,
    told: AtomicU32,
    /// When the last tick was, and the last question of which the share is known.
    ticked_ns: AtomicU64,
    heard_ns: AtomicU64,
    /// What limits of other nodes have refused, and when that was last more.
    others: AtomicU64,
    others_ns: AtomicU64,
    pace: Mutex<Pace>,
}

/// A proxy that can be told; until it is dropped.
pub(crate) struct Listener(Arc<Asked>);

impl Listener {
    /// The parts that it is to ask about.
    pub(crate) fn parts(&self, now: Nanos) -> u32 {
        self.0.parts(now)
    }

    /// It says that it asks about so many.
    pub(crate) fn has(&self, parts: u32) {
        self.0.told.store(PARTS - parts.min(PARTS), Relaxed);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.0.listeners.fetch_sub(1, Relaxed) == 1 {
            self.0.told.store(0, Relaxed);
        }
    }
}

impl Asked {
    pub(crate) fn listen(of: &Arc<Self>) -> Listener {
        of.listeners.fetch_add(1, Relaxed);
        Listener(Arc::clone(of))
    }

    fn parts(&self, now: Nanos) -> u32 {
        let fresh = now.since(Nanos(self.ticked_ns.load(Relaxed))) <= AGE_MAX;
        let withheld = if fresh { self.wanted.load(Relaxed) } else { 0 };
        PARTS - withheld.min(PARTS - 1)
    }

    /// How many requests the proxies have refused by themselves for one that was asked about, as one of this share:
    /// rounded at random, so that it is right on average.
    pub(crate) fn unseen(
        &self,
        now: Nanos,
        share: Option<u32>,
        random: impl FnOnce() -> u64,
    ) -> u64 {
        let parts = if let Some(parts) = share {
            self.heard_ns.store(now.0, Relaxed);
            u64::from(parts.clamp(PARTS_MIN, PARTS))
        } else {
            u64::from(PARTS - self.told.load(Relaxed).min(PARTS - 1))
        };
        let withheld = u64::from(PARTS) - parts;
        if withheld == 0 {
            return 0;
        }
        withheld / parts + u64::from(random() % parts < withheld % parts)
    }

    /// The share that is wanted, for the answer to a question of this share; `None`: there is none, and was none.
    pub(crate) fn answer(&self, now: Nanos, share: Option<u32>) -> Option<u32> {
        let (had, parts) = (share?, self.parts(now));
        (parts.min(had) < PARTS).then_some(parts.max(PARTS_MIN))
    }

    /// Once a tick in which nothing may be withheld.
    pub(crate) fn all(&self) {
        self.wanted.store(0, Relaxed);
        let mut pace = self.pace();
        // An Envoy that does not obey is not told again sooner.
        *pace = Pace { pause: pace.pause, ..Pace::default() };
    }

    /// Whether limits that other nodes told have refused anybody lately; they have refused so many so far.
    pub(crate) fn others_refuse(&self, now: Nanos, refused: u64) -> bool {
        if self.others.swap(refused, Relaxed) != refused {
            self.others_ns.store(now.0.max(1), Relaxed);
        }
        let at = self.others_ns.load(Relaxed);
        at > 0 && now.since(Nanos(at)) <= OTHERS_FOR
    }

    /// Once a tick: what the service admits and what comes to it.
    pub(crate) fn tick(&self, now: Nanos, service: &Service) {
        self.ticked_ns.store(now.0, Relaxed);
        let mut pace = self.pace();
        let Some(tick) = pace.take(now, service) else { return self.wanted.store(0, Relaxed) };
        let heard = self.heard_ns.load(Relaxed);
        let lately = heard > 0 && now.since(Nanos(heard)) <= HEARD_MAX;
        let can_be_told = lately || self.listeners.load(Relaxed) > 0;
        let admits = service.sheds().filter(|_| can_be_told);
        let before = f64::from(PARTS - self.wanted.load(Relaxed)) / f64::from(PARTS);
        let told = self.told.load(Relaxed) > 0;
        let share = pace.share(tick, admits, (before, told));
        let parts = (share * f64::from(PARTS)).round() as u32;
        self.wanted.store(PARTS - parts.min(PARTS), Relaxed);
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pace {
    /// What came since the last tick; `None`: this is the first of this service.
    fn take(&mut self, now: Nanos, service: &Service) -> Option<Tick> {
        let (offered, refused, unseen) = service.came();
        if self.of.as_ref() != Some(&service.name) {
            let of = Some(Arc::clone(&service.name));
            // The pause is the proxy's, whatever the service is.
            let pause = self.pause;
            *self = Self { of, at: now, offered, refused, unseen, pause, ..Self::default() };
            return None;
        }
        let more =
            |now: u64, before: &mut u64| now.saturating_sub(std::mem::replace(before, now)) as f64;
        let by_proxy = more(unseen, &mut self.unseen);
        let offered = more(offered, &mut self.offered);
        let tick = Tick {
            seconds: now.since(std::mem::replace(&mut self.at, now)).as_secs_f64(),
            offered,
            asked: (offered - by_proxy).max(0.0),
            refused: (more(refused, &mut self.refused) - by_proxy).max(0.0),
        };
        (tick.seconds > 0.0).then_some(tick)
    }

    /// The share to ask about, where so many a second are admitted if the rest is refused; `before`:
    /// that of the last tick, and whether proxies have one.
    fn share(&mut self, tick: Tick, admits: Option<f64>, (before, told): (f64, bool)) -> f64 {
        let weight = 1.0 - (-tick.seconds / AVERAGE_SECONDS).exp();
        self.per_second += weight * (tick.offered / tick.seconds - self.per_second);
        self.asked += weight * (tick.asked / tick.seconds - self.asked);
        let admitted = (tick.asked - tick.refused).max(0.0) / tick.seconds;
        self.admitted += weight * (admitted - self.admitted);
        let withheld = before < 1.0;
        // More may come meanwhile, all of which is asked about for two ticks.
        self.before = self.before.max(self.asked);
        self.obeyed |= withheld && told && self.asked < OBEYS * self.before;
        let in_vain = before < OBEYS_BELOW && told && !self.obeyed;
        self.in_vain_s = if in_vain { self.in_vain_s + tick.seconds } else { 0.0 };
        if self.in_vain_s > OBEYS_SECONDS {
            (self.in_vain_s, self.pause) = (0.0, self.at + PAUSE);
        }
        // One tick without a question says nothing of a share that holds.
        let unneeded = tick.refused == 0.0 && !(withheld && tick.asked == 0.0);
        let admits = admits.filter(|_| !unneeded && self.at >= self.pause);
        // Where it was idle until now, more is admitted than has been completed yet.
        let admits = admits.map(|rate| if withheld { rate } else { rate.max(self.admitted) });
        let wanted = |admits: f64| (SURPLUS * admits).max(ASKED_MIN) / self.per_second.max(1.0);
        let share = admits.map_or(1.0, wanted);
        let most = if withheld { ENDS } else { BEGINS };
        self.wanted = if share < most { self.wanted.saturating_add(1) } else { 0 };
        if self.wanted < if withheld { 1 } else { BEGINS_TICKS } {
            return 1.0;
        }
        if !withheld {
            (self.before, self.obeyed) = (self.asked, false);
        }
        share.max(LEAST)
    }
}

/// The service of a gateway all of whose requests are alike, and which has no other gateway; `None`: they
/// are not, or some are exempt, or are told what a proxy cannot tell them.
pub(crate) fn alike(gateway: &GatewayConfig, config: &Config) -> Option<usize> {
    let first = gateway.routes.first()?;
    let service = config.services.iter().position(|service| service.name == first.service)?;
    let classes = &config.services[service].classes;
    let alike = gateway.routes.iter().all(|route| {
        route.service == first.service
            && route.bucket.is_none()
            && route.priority.is_none_or(|priority| priority == PRIORITY_DEFAULT)
    });
    let every = gateway.routes.iter().any(|route| {
        route.host.is_none()
            && route.methods.is_empty()
            && route.cookie.is_none()
            && route.header.is_none()
            && route.path.as_ref().is_some_and(|path| path.to_string() == "/")
    });
    let leads = |gateway: &&GatewayConfig| {
        gateway.routes.iter().any(|route| route.service == first.service)
    };
    let one_gateway = config.gateways.iter().filter(leads).count() == 1;
    let one_priority = classes.iter().all(|class| class.priority == PRIORITY_DEFAULT);
    let nobody_exempt = config.exempt.sources.is_empty();
    let told_little = !gateway.rate_limit_fields;
    (alike && every && one_gateway && one_priority && nobody_exempt && told_little)
        .then_some(service)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};

    #[test]
    fn what_a_proxy_refuses_is_estimated_from_what_it_asks() {
        let asked = Arc::new(Asked::default());
        let listener = Asked::listen(&asked);
        let now = Nanos::SECOND;
        assert_eq!(asked.unseen(now, None, || panic!("nothing is withheld")), 0);
        asked.wanted.store(PARTS / 2, Relaxed);
        assert_eq!(asked.unseen(now, None, || 7), 0, "no proxy has it yet");
        listener.has(PARTS / 10);
        assert_eq!(asked.unseen(now, None, || 7), 9);
        listener.has(PARTS * 2 / 3);
        let random = |n: u64| asked.unseen(now, None, || n.wrapping_mul(0x9e37_79b9));
        let all: u64 = (0..100_000).map(random).sum();
        assert!((49_000..51_000).contains(&all), "one in three is half of the others: {all}");
        listener.has(0);
        assert_eq!(asked.unseen(now, None, || 1), u64::from(PARTS) - 1, "never all");
        drop(listener);
        assert_eq!(asked.unseen(now, None, || 1), 0, "nobody is left who was told");
    }

    #[test]
    fn a_question_of_a_known_share_stands_for_as_many() {
        let (asked, now) = (Asked::default(), Nanos::SECOND);
        let unseen = |parts| asked.unseen(now, Some(parts), || 0);
        assert_eq!([PARTS, PARTS / 2, PARTS / 10, PARTS_MIN].map(unseen), [0, 1, 9, 99]);
        assert_eq!([0, PARTS + 1].map(unseen), [99, 0], "no share is less, or more");
    }

    #[test]
    fn a_share_is_told_until_the_proxy_has_none() {
        let (asked, now) = (Asked::default(), Nanos::from_secs(10));
        let told = |share| asked.answer(now, share);
        assert_eq!([None, Some(PARTS)].map(told), [None; 2], "there is none");
        assert_eq!(told(Some(5)), Some(PARTS), "it has an old one");
        asked.wanted.store(PARTS / 4, Relaxed);
        asked.ticked_ns.store(now.0, Relaxed);
        let wanted = Some(PARTS / 4 * 3);
        assert_eq!([None, Some(PARTS), Some(5)].map(told), [None, wanted, wanted]);
    }

    #[test]
    fn a_proxy_that_does_not_obey_is_not_told_sooner_by_what_ends_a_share() {
        let (asked, service) = (Asked::default(), Service::new("shop"));
        asked.pace().pause = Nanos::from_secs(70);
        asked.all();
        asked.tick(Nanos::from_secs(11), &service);
        assert_eq!(asked.pace().pause, Nanos::from_secs(70));
    }

    #[test]
    fn limits_of_others_count_for_a_while_after_they_refused() {
        let asked = Asked::default();
        let refuse = |second, refused| asked.others_refuse(Nanos::from_secs(second), refused);
        assert!(!refuse(10, 0));
        assert!(refuse(11, 5) && refuse(14, 5), "for three seconds");
        assert!(!refuse(15, 5));
        assert!(refuse(16, 6));
    }

    #[test]
    fn a_share_that_no_tick_confirms_holds_no_more() {
        let asked = Arc::new(Asked::default());
        let listener = Asked::listen(&asked);
        asked.wanted.store(PARTS / 4, Relaxed);
        asked.ticked_ns.store(Nanos::from_secs(10).0, Relaxed);
        assert_eq!(listener.parts(Nanos::from_millis(10_500)), PARTS * 3 / 4);
        assert_eq!(listener.parts(Nanos::from_millis(10_501)), PARTS);
    }

    /// A proxy that obeys after two ticks, in front of a service of `admits` per second.
    struct World {
        pace: Pace,
        shares: Vec<f64>,
        obeys: bool,
    }

    impl World {
        fn new() -> Self {
            Self { pace: Pace::default(), shares: vec![1.0; 3], obeys: true }
        }

        /// Ticks of 0.1 s with so many a second.
        fn run(&mut self, ticks: usize, per_second: f64, admits: Option<f64>) -> f64 {
            for _ in 0..ticks {
                let now = self.shares.len();
                let has = if self.obeys { self.shares[now - 3] } else { 1.0 };
                let asked = per_second * has / 10.0;
                let said = self.shares[now - 3];
                let tick = Tick {
                    seconds: 0.1,
                    offered: asked / said,
                    asked,
                    refused: admits.map_or(0.0, |admits| (asked - admits / 10.0).max(0.0)),
                };
                self.pace.at += Nanos::from_millis(100);
                let before = self.shares[now - 1];
                let share = self.pace.share(tick, admits, (before, said < 1.0));
                self.shares.push(share);
            }
            self.shares[self.shares.len() - 1]
        }
    }

    #[test]
    fn half_more_than_is_admitted_is_asked_about() {
        let mut world = World::new();
        assert_eq!(world.run(50, 8_000.0, None), 1.0, "nothing is shed");
        let share = world.run(30, 8_000.0, Some(800.0));
        assert!((share - 0.15).abs() < 0.01, "{share}");
        let share = world.run(30, 40_000.0, Some(800.0));
        assert!((share - 0.03).abs() < 0.005, "{share}");
        let share = world.run(30, 4e6, Some(800.0));
        assert!((share - LEAST).abs() < 1e-9, "{share}");
        assert_eq!(World::new().run(50, 1_400.0, Some(800.0)), 1.0, "0.86 is worth nothing");
        assert_eq!(World::new().run(50, 370.0, Some(8.0)), 1.0, "300 a second are asked about");
        let share = World::new().run(50, 1_000.0, Some(8.0));
        assert!((share - 0.3).abs() < 0.02, "{share}");
    }

    /// In calm it is known what is admitted, too: the service completes it.
    #[test]
    fn where_nobody_is_refused_nothing_is_told() {
        let mut pace = Pace::default();
        let tick = |refused| Tick { seconds: 0.1, offered: 800.0, asked: 800.0, refused };
        let mut share = |refused| pace.share(tick(refused), Some(800.0), (1.0, false));
        assert_eq!([0.0; 20].map(&mut share), [1.0; 20]);
        assert_eq!([700.0, 700.0, 0.0, 700.0, 700.0].map(&mut share), [1.0; 5], "not in a row");
        assert!([700.0; 20].map(&mut share)[19] < 0.2, "in a row");
    }

    /// What is completed lags behind: it says 100/s when 1,700/s are admitted of 3,400/s.
    #[test]
    fn a_service_that_was_idle_is_not_starved() {
        let mut pace = Pace { per_second: 100.0, asked: 100.0, ..Pace::default() };
        let tick = Tick { seconds: 0.1, offered: 340.0, asked: 340.0, refused: 170.0 };
        for _ in 0..20 {
            let share = pace.share(tick, Some(100.0), (1.0, false));
            assert!(share > 0.5, "{share}");
        }
    }

    #[test]
    fn a_crowd_that_leaves_is_not_missed_for_long() {
        let mut world = World::new();
        world.run(30, 8_000.0, Some(800.0));
        assert_eq!(
            world.run(1, 400.0, Some(800.0)),
            1.0,
            "all that were asked about were admitted"
        );
        assert_eq!(world.run(30, 400.0, Some(800.0)), 1.0);
        // One tick of a crowd begins nothing.
        world.run(1, 8_000.0, Some(800.0));
        assert_eq!(world.run(1, 400.0, Some(800.0)), 1.0);
    }

    /// It says that it withholds, and asks about everything.
    #[test]
    fn a_proxy_that_does_not_obey_is_told_nothing_for_a_minute() {
        let mut world = World { obeys: false, ..World::new() };
        world.run(40, 8_000.0, Some(800.0));
        let told = world.shares.iter().filter(|share| **share < 1.0).count();
        assert!((5..20).contains(&told), "{told}");
        assert_eq!(world.run(500, 8_000.0, Some(800.0)), 1.0);
        assert!(
            world.run(120, 8_000.0, Some(800.0)) < 1.0 || world.pace.pause > Nanos::from_secs(60)
        );
    }

    /// It asks about three of four, and a sixth more is admitted once the share has begun.
    #[test]
    fn a_proxy_that_obeys_is_told_on_though_more_is_admitted() {
        let mut world = World::new();
        assert!(world.run(11, 1_600.0, Some(800.0)) < 0.8);
        world.run(20, 1_600.0, Some(940.0));
        assert!(world.run(20, 8_000.0, Some(800.0)) < 0.2);
        assert_eq!(world.pace.pause, Nanos::ZERO);
    }

    #[test]
    fn only_where_the_gate_has_no_choice_a_proxy_refuses_for_it() {
        let told = |routes: &str, rest: &str| {
            // A service that no route leads to needs an address.
            let text = format!(
                "services:
  shop:
    mode: enforce
    listen: ['*:80']
    classes: [{{name: gold, sources: [198.51.100.0/24], priority: 0}}]
  mail: {{mode: enforce, listen: ['*:82']}}
  pile: {{mode: enforce, listen: ['*:81'], requests: {{buckets: {{search: {{resource: cpu}}}}, rules: [{{path: /search, bucket: search}}]}}}}
interfaces: [{{name: lo}}]
gateways:
  edge: {{adapter: envoy, listen: 127.0.0.1:9470, routes: {routes}}}
{rest}"
            );
            let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
            alike(&config.gateways[0], &config)
        };
        assert_eq!(told("[{service: mail}]", ""), Some(1));
        assert_eq!(told("[{path: /a/, service: mail}, {service: mail}]", ""), Some(1));
        for routes in [
            "[{service: shop}]",
            "[{path: /a/, service: mail}]",
            "[{host: a.example, service: mail}]",
            "[{methods: [GET], service: mail}]",
            "[{header: {name: x, value: a}, service: mail}]",
            "[{path: /a/, service: pile}, {service: mail}]",
            "[{service: mail, priority: 1}]",
            "[{path: /search, service: pile, bucket: search}, {service: pile}]",
        ] {
            assert_eq!(told(routes, ""), None, "{routes}");
        }
        for rest in [
            "exempt: {sources: [10.0.0.0/8]}",
            "  other: {adapter: envoy, listen: 127.0.0.1:9471, routes: [{service: mail}]}",
        ] {
            assert_eq!(told("[{service: mail}]", rest), None, "{rest}");
        }
    }
}
