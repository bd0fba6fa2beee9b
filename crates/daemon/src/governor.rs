// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One service in the owner's hands: its controller, and what holds whatever the controller does.
//!
//! A controller is arithmetic on whatever the world measured. It may panic, and then only its own
//! service is released: the heartbeat and the other services go on. What panics elsewhere in the
//! owner ends the process, and the lease opens: that is the honest thing for a bug of unknown
//! reach.

use crate::backends;
use crate::controllers;
use crate::keep_alive::KeepAlive;
use crate::pooled::Pooled;
use crate::silent::{is_known, remedy};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidegate_config::{BucketConfig, ServiceConfig, SynPolicing};
use tidegate_control::fleet::{Steering, no_tighter};
use tidegate_control::{
    BucketController, Controller, Detector, Dual, HeldWorkers, Holders, Interaction, Measured,
    Misfire, Misfired, Mode, signals_fresh,
};
use tidegate_model::limits::{BucketLimits, ServiceLimits, Why};
use tidegate_model::signals::Signals;
use tidegate_model::sources::SourceUse;
use tidegate_sense::Sensed;
use tidegate_units::Nanos;

/// After so many panics a controller is not started again until the next reload.
const PANICS_MAX: u32 = 3;
/// A reading older than this is no reason to tighten.
pub const SIGNAL_AGE_MAX: Nanos = Nanos::from_secs(3);

/// How controllers are made.
#[derive(Clone, Copy)]
pub struct Makers {
    /// That of a service.
    pub service: fn(&ServiceConfig) -> Box<dyn Controller>,
    /// That of one of its request buckets.
    pub bucket: fn(&ServiceConfig, &BucketConfig) -> Box<dyn BucketController>,
}

impl Makers {
    fn dual(self, config: &ServiceConfig) -> Dual {
        let buckets = buckets_of(config).iter().map(|bucket| (self.bucket)(config, bucket));
        let detector = Detector::of_rules(config.objective);
        let dual =
            Dual::new(buckets.collect(), detector, (self.service)(config), interaction(config));
        dual.capped(controllers::cap(config))
    }

    fn steering(self, config: &ServiceConfig) -> Steering {
        let of = config.clone();
        match backends::make(config, move || self.dual(&of)) {
            Some(backends) => Steering::Fleet(backends),
            None => Steering::Host(Box::new(self.dual(config))),
        }
    }
}

/// A service and its controllers.
pub(crate) struct Governor {
    pub(crate) limits: ServiceLimits,
    steering: Steering,
    make: Makers,
    panics: u32,
    /// What its policies need beside a rate.
    measured: Measured,
    /// What the service's connections carry.
    pub(crate) pooled: Pooled,
    /// Who holds its workers with silent connections.
    pub(crate) holders: Holders,
    /// For how long idle connections have held them.
    keep_alive: KeepAlive,
    /// Whether what is refused does harm and no good.
    misfire: Misfire,
}

fn interaction(config: &ServiceConfig) -> Interaction {
    match config.requests.as_ref().map(|requests| requests.syn_policing) {
        Some(SynPolicing::Always) => Interaction::Published,
        Some(SynPolicing::LastResort) | None => Interaction::Released,
    }
}

fn buckets_of(config: &ServiceConfig) -> &[BucketConfig] {
    config.requests.as_ref().map_or(&[], |requests| &requests.buckets)
}

impl Governor {
    pub(crate) fn new(config: &ServiceConfig, make: Makers) -> Self {
        Self {
            limits: ServiceLimits::default(),
            steering: make.steering(config),
            make,
            panics: 0,
            measured: Measured::default(),
            pooled: Pooled::default(),
            holders: Holders::default(),
            keep_alive: KeepAlive::default(),
            misfire: Misfire::default(),
        }
    }

    /// The governor of the same service under another configuration: every controller whose
    /// configuration stays keeps what it has learned, and its limit.
    pub(crate) fn follow(mut self, before: &ServiceConfig, after: &ServiceConfig) -> Self {
        // A reload starts a controller again that failed too often.
        self.panics = 0;
        let make = self.make;
        if before.backends != after.backends {
            return Self::new(after, make);
        }
        let objective = before.objective == after.objective;
        let same = objective
            && before.control == after.control
            && interaction(before) == interaction(after)
            && buckets_of(before) == buckets_of(after);
        if same {
            return self;
        }
        // Every back-end has all controllers: they are made anew together.
        let Steering::Host(mut dual) = self.steering else { return Self::new(after, make) };
        let syn_stays = objective && before.control == after.control;
        let mut old: Vec<_> = dual.take_buckets().into_iter().map(Some).collect();
        let mut limits = if syn_stays { self.limits.clone() } else { ServiceLimits::default() };
        limits.buckets = Vec::new();
        let mut buckets = Vec::new();
        for bucket in buckets_of(after) {
            let place = buckets_of(before).iter().position(|was| was == bucket && objective);
            let kept = place.and_then(|place| old.get_mut(place)?.take());
            let decided = place.filter(|_| kept.is_some());
            limits.buckets.push(
                decided.and_then(|at| self.limits.buckets.get(at).cloned()).unwrap_or_default(),
            );
            buckets.push(kept.unwrap_or_else(|| (make.bucket)(after, bucket)));
        }
        let dual = if syn_stays {
            let sheds = self.limits.rate.is_some() && self.limits.why.shedding;
            dual.with_buckets(buckets, interaction(after), sheds)
        } else {
            let detector =
                if objective { dual.into_detector() } else { Detector::of_rules(after.objective) };
            Dual::new(buckets, detector, (make.service)(after), interaction(after))
        };
        let steering = Steering::Host(Box::new(dual.capped(controllers::cap(after))));
        Self { limits, steering, ..self }
    }

    /// Lifts all limits for this reason, but for what an operator set by hand.
    pub(crate) fn release(&mut self, config: &ServiceConfig, now: Nanos, why: &str) {
        let what = match controllers::cap(config) {
            Some(cap) => format!("only the operator's cap of {} holds", cap.rate),
            None => "everything passes".into(),
        };
        let limits = released(now, &format!("{why}: {what}"));
        self.limits = controllers::of_operator(config, limits);
    }

    /// The limits for the next tick; an error when a controller failed and the service was
    /// therefore released.
    pub(crate) fn tick(
        &mut self,
        config: &ServiceConfig,
        signals: &Signals,
        mode: Mode,
    ) -> Result<(), String> {
        if self.panics >= PANICS_MAX {
            return Err(format!(
                "its controller failed {PANICS_MAX} times; released until a reload"
            ));
        }
        let rules = config.requests.as_ref().map(|requests| requests.mode_within(config.mode));
        let shadow = rules == Some(tidegate_model::Mode::Shadow);
        let ticked = catch_unwind(AssertUnwindSafe(|| self.steering.tick(signals, mode, shadow)));
        let Ok(mut limits) = ticked else {
            self.panics += 1;
            self.steering = self.make.steering(config);
            self.release(config, signals.now, "the controller failed");
            return Err(
                "its controller failed and was started anew; everything passes but for what \
                an operator's cap refuses"
                    .into(),
            );
        };
        limits = controllers::of_service(config, &mut self.measured, signals, limits);
        if !signals_fresh(signals, SIGNAL_AGE_MAX) {
            // The controller should not tighten by old signals. It may not, whatever it thinks.
            let (operator, back_ends) = (controllers::operator(config), config.backends.len());
            limits = no_tighter(&limits, &self.limits, &operator, back_ends);
        }
        self.limits = limits;
        Ok(())
    }

    /// Takes a look at the service's sources, where there was one, and says what is to be told of
    /// connections that hold its workers, silent or idle: subject and sentence.
    pub(crate) fn look_at_sources(
        &mut self,
        now: Nanos,
        sensed: &Sensed,
        sources: Option<&[SourceUse]>,
    ) -> Vec<(&'static str, String)> {
        let cause = HeldWorkers::of(&sensed.signals, SIGNAL_AGE_MAX);
        self.holders.known(now, is_known(&sensed.signals));
        let lasting = self.holders.see(now, cause.is_some());
        if let Some(sources) = sources {
            self.holders.look(now, lasting, sources);
            self.pooled.look(sources);
        } else {
            self.holders.expire(now);
        }
        let remedy = cause.filter(|_| lasting).map(|cause| remedy(cause, sensed.defer_accept));
        let silent = remedy.map(|text| ("silent connections", text));
        let idle = self.keep_alive.see(now, &sensed.signals, sensed.defer_accept);
        let idle = idle.filter(|_| cause.is_none()).map(|text| ("idle connections", text));
        let limit = self.holders.words().map(|text| ("sources", text));
        silent.into_iter().chain(idle).chain(limit).collect()
    }

    /// Whether what is refused does harm and no good. What an operator's own limit refuses is none of that.
    pub(crate) fn misfires(
        &mut self,
        config: &ServiceConfig,
        signals: &Signals,
    ) -> Option<Misfired> {
        let mut seen = signals.clone();
        if config.mode == tidegate_model::Mode::Shadow
            && let Some(counts) = &mut seen.balance.counts
        {
            // Nothing is really refused: this is what is usual.
            counts.value.refused = 0;
        }
        let found = self.misfire.see(&seen, &self.limits.why, !config.canary.is_all());
        let cap = controllers::cap(config).zip(self.limits.rate);
        let by_hand = config.control.name == controllers::FIXED
            || cap.is_some_and(|(cap, rate)| rate >= cap.rate);
        found.filter(|_| !by_hand)
    }

    /// Where the owner begins after a take-over: with what its predecessor had decided. Buckets
    /// have no names there: where their number is another, they are others.
    pub(crate) fn inherit(&mut self, config: &ServiceConfig, mut limits: ServiceLimits) {
        if limits.buckets.len() != buckets_of(config).len() {
            limits.buckets.clear();
        }
        self.limits = limits;
    }

    /// What its controller has learned.
    pub(crate) fn save(&self) -> Option<serde_json::Value> {
        catch_unwind(AssertUnwindSafe(|| self.steering.save())).unwrap_or_default()
    }

    /// Gives it to the controller; false: it begins afresh.
    pub(crate) fn restore(
        &mut self,
        config: &ServiceConfig,
        value: serde_json::Value,
        age: Nanos,
    ) -> bool {
        let restored = catch_unwind(AssertUnwindSafe(|| self.steering.restore(value, age)));
        restored.unwrap_or_else(|_| {
            // Half of it may have been taken.
            self.steering = self.make.steering(config);
            false
        })
    }

    /// Whether it has no word yet against what was in force before the start: it sees and does not
    /// shed, and the rate is not one that an operator set.
    pub(crate) fn is_undecided(&self, config: &ServiceConfig, signals: &Signals) -> bool {
        let fixed = config.control.name == controllers::FIXED;
        signals_fresh(signals, SIGNAL_AGE_MAX) && !fixed && !self.limits.why.shedding
    }

    /// The same of its request buckets: which.
    pub(crate) fn undecided_buckets(
        &self,
        config: &ServiceConfig,
        signals: &Signals,
    ) -> Vec<usize> {
        let sees = signals_fresh(signals, SIGNAL_AGE_MAX);
        let buckets = self.limits.buckets.iter().zip(buckets_of(config)).enumerate();
        let undecided = buckets.filter(|(_, (limits, config))| {
            sees && !controllers::is_fixed(config) && !limits.why.shedding
        });
        undecided.map(|(bucket, _)| bucket).collect()
    }

    /// Goes back to what was decided before, for buckets only where that is known.
    pub(crate) fn keep(&mut self, before: ServiceLimits) {
        let buckets = std::mem::take(&mut self.limits.buckets);
        self.limits = before;
        if self.limits.buckets.len() != buckets.len() {
            self.limits.buckets = buckets;
        }
    }
}

/// No limits, with the reason.
pub(crate) fn released(now: Nanos, text: &str) -> ServiceLimits {
    let text = text.into();
    let why = Why { shedding: false, since: now, alarmed: Vec::new(), cause: None, text };
    ServiceLimits { burst: 1, why, ..ServiceLimits::default() }
}

/// Whether the dataplane has to be told: the reasons alone are not written.
pub(crate) fn same(a: &ServiceLimits, b: &ServiceLimits) -> bool {
    let bucket = |(a, b): (&BucketLimits, &BucketLimits)| {
        (a.rate, a.loss) == (b.rate, b.loss) && a.burst == b.burst && a.reserve == b.reserve
    };
    (a.rate, a.loss, a.per_request) == (b.rate, b.loss, b.per_request)
        && a.burst == b.burst
        && (a.waiting_max, a.waiting_low, a.pending) == (b.waiting_max, b.waiting_low, b.pending)
        && a.onset == b.onset
        && a.accept_queue_max_q10 == b.accept_queue_max_q10
        && a.source_max == b.source_max
        && (a.min_rate, a.copies, a.until) == (b.min_rate, b.copies, b.until)
        && a.datagrams == b.datagrams
        && a.requests == b.requests
        && a.reserve == b.reserve
        && a.buckets.len() == b.buckets.len()
        && a.buckets.iter().zip(&b.buckets).all(bucket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{Counts, Reading};
    use tidegate_units::Rate;

    const CLUSTER: &str = "
interfaces: [{name: lo}]
cluster: {certificate: /c.pem, key: /k.pem, ca_file: /a.pem, listen: '192.0.2.1:7117',
  peers: {b1: {identity: spiffe://example/b1, services: [shop, other]}}}
services:
  shop:
    mode: enforce
    listen: ['*:80']
    backends: [{peer: b1, service: shop}]
    requests: {buckets: {a: {resource: cpu}}, rules: [{path: /a, bucket: a, action: reset}]}
";

    /// The service, with one piece of text exchanged.
    fn shop(from: &str, to: &str) -> ServiceConfig {
        assert!(CLUSTER.contains(from), "{from}");
        parsed(&CLUSTER.replace(from, to))
    }

    fn parsed(text: &str) -> ServiceConfig {
        let registry = tidegate_config::Registry::new(["fresh_first"], controllers::NAMES);
        let mut config = tidegate_config::parse(text, &registry).unwrap();
        config.services.remove(0)
    }

    /// A controller that failed limits nothing; what an operator set by hand needs none.
    #[test]
    fn without_a_controller_an_operators_own_limits_hold() {
        for (service, bucket, rates) in [
            ("", "", [None, None]),
            ("name: fixed, rate: 9", "name: fixed, rate: 5", [Some(9.0), Some(5.0)]),
            ("ceiling: 90", "ceiling: 50", [Some(90.0), Some(50.0)]),
        ] {
            let bucket = format!("{{resource: cpu, control: {{{bucket}}}}}");
            let text = CLUSTER.replace("{resource: cpu}", &bucket);
            let control = format!("mode: enforce\n    control: {{{service}}}");
            let config = parsed(&text.replace("mode: enforce", &control));
            let make = Makers { service: controllers::make, bucket: controllers::make_bucket };
            let mut governor = Governor::new(&config, make);
            governor.release(&config, Nanos::SECOND, "the controller failed");
            let limits = &governor.limits;
            let of_bucket = limits.buckets.first();
            let found = [limits.rate, of_bucket.and_then(|bucket| bucket.rate)];
            let found = found.map(|rate| rate.map(Rate::get));
            assert_eq!(found, rates, "{service}");
            assert!(limits.burst >= 1 && of_bucket.is_none_or(|bucket| bucket.burst >= 1));
            assert_eq!(limits.why.text.contains("operator's cap"), rates[0].is_some());
        }
    }

    /// Before anything was measured: nothing that a controller found, all that an operator set.
    #[test]
    fn before_anything_was_measured_an_operators_own_limits_hold() {
        let limits = |service: f64, bucket: f64| {
            let rate = |rate| Some(Rate::per_second(rate));
            let bucket = BucketLimits { rate: rate(bucket), ..BucketLimits::default() };
            ServiceLimits { rate: rate(service), buckets: vec![bucket], ..Default::default() }
        };
        let rates = |limits: &ServiceLimits| {
            [limits.rate, limits.buckets[0].rate].map(|rate| rate.map(Rate::get))
        };
        let with = |control: &str, bucket: &str| {
            let bucket = format!("{{resource: cpu, control: {{{bucket}}}}}");
            let control = format!("mode: enforce\n    control: {{{control}}}");
            let text = CLUSTER.replace("{resource: cpu}", &bucket);
            parsed(&text.replace("mode: enforce", &control))
        };
        let open = ServiceLimits::default();
        for (config, wanted, expected) in [
            (with("name: default", "name: p"), limits(9.0, 5.0), [None, None]),
            (
                with("name: fixed, rate: 9", "name: fixed, rate: 5"),
                limits(9.0, 5.0),
                [Some(9.0), Some(5.0)],
            ),
            // What the controllers found is less than the ceilings.
            (
                with("name: syn, ceiling: 90", "name: p, ceiling: 50"),
                limits(9.0, 5.0),
                [Some(90.0), Some(50.0)],
            ),
        ] {
            let operator = controllers::operator(&config);
            let now = no_tighter(&wanted, &open, &operator, 1);
            assert_eq!(rates(&now), expected, "{:?}", config.control);
            let then = limits(30.0, 20.0);
            let held = no_tighter(&wanted, &then, &operator, 1);
            let least = |then: f64, own: Option<f64>| Some(own.map_or(then, |own| then.min(own)));
            let expected = [least(30.0, expected[0]), least(20.0, expected[1])];
            assert_eq!(rates(&held), expected, "{:?}", config.control);
        }
    }

    /// Admits 5/s, in an overload that does not end; or fails.
    struct Sheds;
    impl Controller for Sheds {
        fn tick(&mut self, signals: &Signals, _: Mode) -> ServiceLimits {
            assert!(signals.period > Nanos::ZERO, "a controller that fails");
            let why = Why { shedding: true, ..Why::default() };
            ServiceLimits { rate: Some(Rate::per_second(5.0)), why, ..ServiceLimits::default() }
        }
    }

    fn shedding() -> Makers {
        Makers { service: |_| Box::new(Sheds), bucket: controllers::make_bucket }
    }

    /// 1000/s come, 10/s complete.
    fn crowd(n: u64) -> Signals {
        let period = Nanos::from_millis(100);
        let mut signals = Signals { now: Nanos(period.0 * n), period, ..Signals::default() };
        let counts =
            Counts { offered: 100, admitted: 1, refused: 99, completed: 1, ..Default::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        signals.time.waiting = Some(Reading::fresh(50));
        signals
    }

    /// Rules that come, change or go leave SYN policing in force that has to be.
    #[test]
    fn a_reload_in_an_overload_keeps_syn_policing_in_force() {
        let config = |requests: &str| {
            let text = "interfaces: [{name: lo}]\nservices:\n  web:\n    mode: enforce\n    listen: ['*:80']\n";
            parsed(&format!("{text}{requests}"))
        };
        let rules = |minimum: u32| {
            config(&format!(
                "    requests: {{buckets: {{a: {{resource: cpu, min_rate: {minimum}}}}}, rules: [{{path: /a, bucket: a, action: reset}}]}}\n"
            ))
        };
        let mut before = config("");
        let mut governor = Governor::new(&before, shedding());
        for (at, after) in [rules(1), rules(2), config("")].into_iter().enumerate() {
            for n in 0..3 {
                let signals = crowd(10 * at as u64 + n);
                governor.tick(&before, &signals, Mode::Enforce).unwrap();
                assert_eq!(governor.limits.rate.map(Rate::get), Some(5.0), "{at}: {n}");
            }
            governor = governor.follow(&before, &after);
            before = after;
        }
    }

    #[test]
    fn a_controller_that_failed_too_often_is_started_by_a_reload() {
        let config = shop("    backends: [{peer: b1, service: shop}]\n", "");
        let mut governor = Governor::new(&config, shedding());
        let broken = Signals::default();
        for _ in 0..=PANICS_MAX {
            assert!(governor.tick(&config, &broken, Mode::Enforce).is_err());
        }
        assert!(governor.tick(&config, &crowd(1), Mode::Enforce).unwrap_err().contains("reload"));
        let mut governor = governor.follow(&config, &config);
        assert_eq!(governor.tick(&config, &crowd(2), Mode::Enforce), Ok(()));
    }

    #[test]
    fn with_back_ends_only_what_controllers_are_made_of_makes_them_anew() {
        let make = Makers { service: controllers::make, bucket: controllers::make_bucket };
        let before = shop("", "");
        let decided = Some(Rate::per_second(77.0));
        let kept = |from: &str, to: &str| {
            let mut governor = Governor::new(&before, make);
            governor.limits.rate = decided;
            governor.follow(&before, &shop(from, to)).limits.rate == decided
        };
        for (from, to) in [
            ("mode: enforce", "mode: shadow"),
            ("path: /a", "path: /b"),
            ("action: reset", "action: '503'"),
            ("*:80", "*:81"),
        ] {
            assert!(kept(from, to), "{to}");
        }
        for (from, to) in [
            ("mode: enforce", "mode: enforce\n    control: {name: syn}"),
            ("{resource: cpu}", "{resource: disk}"),
            ("buckets:", "syn_policing: always, buckets:"),
            ("service: shop}", "service: other}"),
        ] {
            assert!(!kept(from, to), "{to}");
        }
    }
}
