// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One service in the owner's hands: from its configuration to its governor, and what is told of its connections.
//!
//! What holds of its limits whatever its controllers want is [`tidegate_control::fleet::Governor`].

use crate::backends;
use crate::controllers::{self, terms};
use crate::keep_alive::KeepAlive;
use crate::pooled::Pooled;
use crate::silent::{is_known, remedy};
use tidegate_config::{BucketConfig, ServiceConfig, SynPolicing};
use tidegate_control::fleet::{Failed, Governor, NewControllers, SIGNAL_AGE_MAX, Stays, Steering};
use tidegate_control::{
    BucketController, Controller, Detector, HeldWorkers, Holders, Interaction, Misfired, Mode,
};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_model::sources::SourceUse;
use tidegate_sense::Sensed;
use tidegate_units::Nanos;

/// How controllers are made.
#[derive(Clone, Copy)]
pub struct Makers {
    /// That of a service.
    pub service: fn(&ServiceConfig) -> Box<dyn Controller>,
    /// That of one of its request buckets.
    pub bucket: fn(&ServiceConfig, &BucketConfig) -> Box<dyn BucketController>,
}

impl Makers {
    fn new_controllers(self, config: &ServiceConfig) -> NewControllers {
        let buckets = buckets_of(config).iter().map(|bucket| (self.bucket)(config, bucket));
        NewControllers {
            buckets: buckets.collect(),
            detector: Detector::of_rules(config.objective),
            service: (self.service)(config),
            interaction: interaction(config),
            cap: controllers::operator(config).service.cap(),
        }
    }

    fn steering(self, config: &ServiceConfig) -> Steering {
        let of = config.clone();
        match backends::make(config, move || self.new_controllers(&of).dual()) {
            Some(backends) => Steering::Fleet(backends),
            None => Steering::Host(Box::new(self.new_controllers(config).dual())),
        }
    }

    fn maker(self, config: &ServiceConfig) -> Box<dyn Fn() -> Steering + Send> {
        let of = config.clone();
        Box::new(move || self.steering(&of))
    }
}

/// A service, its controllers, and what is known of its connections.
pub(crate) struct Governed {
    governor: Governor,
    make: Makers,
    /// What the service's connections carry.
    pooled: Pooled,
    /// Who holds its workers with silent connections.
    pub(crate) holders: Holders,
    /// For how long idle connections have held them.
    keep_alive: KeepAlive,
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

/// What of the controllers stays where a configuration becomes another one; `None`: all of them.
fn stays(before: &ServiceConfig, after: &ServiceConfig) -> Option<Stays> {
    let objective = before.objective == after.objective;
    let service = objective && before.control == after.control;
    let rules =
        interaction(before) == interaction(after) && buckets_of(before) == buckets_of(after);
    if service && rules {
        return None;
    }
    let place =
        |bucket| buckets_of(before).iter().position(|was| was == bucket).filter(|_| objective);
    let buckets = buckets_of(after).iter().map(place).collect();
    Some(Stays { service, detector: objective, buckets })
}

impl Governed {
    pub(crate) fn new(config: &ServiceConfig, make: Makers) -> Self {
        Self {
            governor: Governor::new(make.maker(config)),
            make,
            pooled: Pooled::default(),
            holders: Holders::default(),
            keep_alive: KeepAlive::default(),
        }
    }

    /// The same service under another configuration: every controller whose configuration stays keeps what it has
    /// learned, and its limit. A reload starts a controller again that failed too often.
    pub(crate) fn follow(self, before: &ServiceConfig, after: &ServiceConfig) -> Self {
        let make = self.make;
        if before.backends != after.backends {
            return Self::new(after, make);
        }
        let governor = match stays(before, after) {
            None => self.governor.retry_after_panics(),
            Some(_) if !after.backends.is_empty() => return Self::new(after, make),
            Some(stays) => {
                self.governor.follow(make.maker(after), make.new_controllers(after), &stays)
            }
        };
        Self { governor, ..self }
    }

    /// Its limits since the last tick.
    pub(crate) const fn limits(&self) -> &ServiceLimits {
        &self.governor.limits
    }

    /// What is said of its limits, or holds beside them.
    pub(crate) const fn limits_mut(&mut self) -> &mut ServiceLimits {
        &mut self.governor.limits
    }

    /// Lifts all limits for this reason, but for what an operator set by hand.
    pub(crate) fn release(&mut self, config: &ServiceConfig, now: Nanos, why: &str) {
        self.governor.release(&terms(config), now, why);
    }

    /// The limits for the next tick; an error when a controller failed and the service was
    /// therefore released.
    pub(crate) fn tick(
        &mut self,
        config: &ServiceConfig,
        signals: &Signals,
        mode: Mode,
    ) -> Result<(), String> {
        self.governor.tick(&terms(config), signals, mode).map_err(Failed::text)
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

    /// Which layer would help, where refusing connections is the wrong one.
    pub(crate) fn layer(&mut self, signals: &Signals, has_rules: bool) -> Option<String> {
        self.pooled.see(signals, &self.governor.limits);
        self.pooled.advice(self.governor.limits.why.shedding, has_rules)
    }

    /// Whether what is refused does harm and no good.
    pub(crate) fn misfires(
        &mut self,
        config: &ServiceConfig,
        signals: &Signals,
    ) -> Option<Misfired> {
        self.governor.misfires(&terms(config), signals)
    }

    /// Where the owner begins after a take-over: with what its predecessor had decided, which stays until then.
    pub(crate) fn inherit(
        &mut self,
        config: &ServiceConfig,
        limits: ServiceLimits,
        until: Option<Nanos>,
    ) {
        self.governor.inherit(&terms(config), limits, until);
    }

    /// The limits of a predecessor stay no longer.
    pub(crate) fn forget_predecessor(&mut self) {
        self.governor.forget_predecessor();
    }

    /// What its controller has learned.
    pub(crate) fn save(&self) -> Option<serde_json::Value> {
        self.governor.save()
    }

    /// Gives it to the controller; false: it begins afresh.
    pub(crate) fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        self.governor.restore(value, age)
    }

    /// Whether it has no word yet against what was in force before the start.
    pub(crate) fn is_undecided(&self, config: &ServiceConfig, signals: &Signals) -> bool {
        self.governor.is_undecided(&terms(config), signals)
    }

    /// The same of its request buckets: which.
    pub(crate) fn undecided_buckets(
        &self,
        config: &ServiceConfig,
        signals: &Signals,
    ) -> Vec<usize> {
        self.governor.undecided_buckets(&terms(config), signals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_control::fleet::{PANICS_MAX, no_tighter};
    use tidegate_model::limits::{BucketLimits, Why};
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
            let mut governor = Governed::new(&config, make);
            governor.release(&config, Nanos::SECOND, "the controller failed");
            let limits = governor.limits();
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
        let mut governor = Governed::new(&before, shedding());
        for (at, after) in [rules(1), rules(2), config("")].into_iter().enumerate() {
            for n in 0..3 {
                let signals = crowd(10 * at as u64 + n);
                governor.tick(&before, &signals, Mode::Enforce).unwrap();
                assert_eq!(governor.limits().rate.map(Rate::get), Some(5.0), "{at}: {n}");
            }
            governor = governor.follow(&before, &after);
            before = after;
        }
    }

    #[test]
    fn a_controller_that_failed_too_often_is_started_by_a_reload() {
        let config = shop("    backends: [{peer: b1, service: shop}]\n", "");
        let mut governor = Governed::new(&config, shedding());
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
            let mut governor = Governed::new(&before, make);
            governor.limits_mut().rate = decided;
            governor.follow(&before, &shop(from, to)).limits().rate == decided
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
