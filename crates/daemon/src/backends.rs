// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a service's configuration to the controllers of its back-ends
//! ([`tidegate_control::fleet`]).

use crate::controllers;
use tidegate_config::ServiceConfig;
use tidegate_control::Dual;
use tidegate_control::fleet::Backends;

/// Controllers for every back-end of this service; `None` if it has none.
pub(crate) fn make(
    config: &ServiceConfig,
    make: impl Fn() -> Dual + Send + 'static,
) -> Option<Backends> {
    let names: Vec<String> = config.backends.iter().map(|backend| backend.peer.clone()).collect();
    (!names.is_empty()).then(|| Backends::new(names, &controllers::operator(config), make))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};
    use tidegate_control::{
        BucketController, Context, Controller, Demand, Detector, Fixed, Headroom, Interaction, Mode,
    };
    use tidegate_model::limits::BucketLimits;
    use tidegate_model::signals::{
        AcceptQueue, Backend, BucketCounts, BucketSignals, Counts, InterfaceQueue, Reading, Signals,
    };
    use tidegate_units::{Nanos, Rate, Share};

    fn service(backends: &str, control: &str) -> ServiceConfig {
        let text = format!(
            "interfaces: [{{name: lo}}]\n\
             services:\n  shop: {{mode: enforce, listen: [\"*:80\"], backends: [{backends}], control: {control}}}\n\
             cluster:\n  certificate: /c\n  key: /k\n  ca_file: /a\n  listen: 127.0.0.1:7000\n  \
             peers:\n    b1: {{identity: spiffe://x/b1, services: [shop]}}\n    \
             b2: {{identity: spiffe://x/b2, services: [shop]}}\n"
        );
        let registry = Registry::new(["fresh_first"], controllers::NAMES);
        parse(&text, &registry).unwrap_or_else(|e| panic!("{e}")).services.remove(0)
    }

    const ONE: &str = "{peer: b1, service: shop}";
    const TWO: &str = "{peer: b1, service: shop}, {peer: b2, service: shop}";

    fn backends(config: &ServiceConfig, dual: fn(&ServiceConfig) -> Dual) -> Backends {
        let of = config.clone();
        make(config, move || dual(&of)).unwrap()
    }

    fn coupled(
        config: &ServiceConfig,
        buckets: Vec<Box<dyn BucketController>>,
        service: Box<dyn Controller>,
    ) -> Dual {
        let detector = Detector::of_rules(config.objective);
        Dual::new(buckets, detector, service, Interaction::Published)
    }

    fn syn(config: &ServiceConfig) -> Dual {
        coupled(config, Vec::new(), controllers::make(config))
    }

    /// 300/s that the clamp takes for a controller's.
    fn fixed(config: &ServiceConfig) -> Dual {
        coupled(config, Vec::new(), Box::new(Fixed::new(Rate::per_second(300.0), 20)))
    }

    /// A back-end whose accept queue is this long.
    fn reported(length: u64, age_ms: u64) -> Backend {
        let age = Nanos::from_millis(age_ms);
        let mut backend = Backend { valid: true, age: Some(age), ..Backend::default() };
        let queue = AcceptQueue { length, limit: 1024 };
        backend.queue.accept = Some(Reading { value: queue, age });
        backend.resource.cpu = Some(Reading { value: Share::new(0.99), age });
        backend
    }

    fn signals(ms: u64, backends: Vec<Backend>) -> Signals {
        let mut signals = Signals {
            now: Nanos::from_millis(ms),
            period: Nanos::from_millis(100),
            backends,
            ..Signals::default()
        };
        let counts =
            Counts { offered: 101, admitted: 80, refused: 21, completed: 80, ..Counts::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        signals
    }

    #[test]
    fn an_overloaded_back_end_tightens_and_silence_never_does() {
        let config = service(ONE, "{name: syn, rate: 1000}");
        let mut backends = backends(&config, syn);
        for tick in 0..100 {
            backends.tick(&signals(100 * tick, vec![reported(1000, 0)]), Mode::Enforce);
        }
        let tight = backends.tick(&signals(10_000, vec![reported(1000, 0)]), Mode::Enforce);
        let held = tight.rate.unwrap();
        assert!(held.get() < 900.0, "{held}");
        for tick in 1..30 {
            let now = signals(10_000 + 100 * tick, vec![Backend::default()]);
            let rate = backends.tick(&now, Mode::Enforce).rate;
            assert!(rate.is_none_or(|rate| rate >= held), "tick {tick}: {rate:?} below {held}");
        }
        for tick in 30..60 {
            let now = signals(10_000 + 100 * tick, vec![Backend::default()]);
            assert_eq!(backends.tick(&now, Mode::Enforce).rate, None, "lifted after 3 s");
        }
        let back = backends.tick(&signals(16_000, vec![reported(1000, 0)]), Mode::Enforce);
        assert!(back.rate.unwrap().get() >= 400.0, "begins anew, not where it was: {back:?}");
    }

    #[test]
    fn the_rate_is_the_sum_over_the_back_ends_that_are_fresh() {
        let config = service(TWO, "{name: default}");
        let mut backends = backends(&config, fixed);
        let both = || vec![reported(0, 0), reported(0, 0)];
        for tick in 0..30 {
            backends.tick(&signals(100 * tick, both()), Mode::Enforce);
        }
        let sum = backends.tick(&signals(3_000, both()), Mode::Enforce);
        assert_eq!(sum.rate.map(Rate::get), Some(600.0));
        assert_eq!(sum.burst, 40);
        let one = || vec![reported(0, 0), Backend::default()];
        let held = backends.tick(&signals(3_100, one()), Mode::Enforce);
        assert_eq!(held.rate.map(Rate::get), Some(600.0), "a lost report changes nothing at first");
        let gone = backends.tick(&signals(6_100, one()), Mode::Enforce);
        assert_eq!(gone.rate, None, "and is lifted in the end");
    }

    /// A service with back-ends and one bucket of requests.
    fn with_bucket(control: &str, bucket: &str) -> ServiceConfig {
        service(
            ONE,
            &format!(
                "{control}, requests: {{buckets: {{a: {bucket}}}, rules: [{{path: /, bucket: a}}]}}"
            ),
        )
    }

    fn as_shipped(config: &ServiceConfig) -> Dual {
        let requests = config.requests.as_ref().unwrap();
        let buckets =
            requests.buckets.iter().map(|bucket| controllers::make_bucket(config, bucket));
        coupled(config, buckets.collect(), controllers::make(config))
    }

    /// The signals with `requests` in the tick's bucket, of which so many were refused.
    fn asking(ms: u64, backends: Vec<Backend>, (requests, refused): (u64, u64)) -> Signals {
        let mut signals = signals(ms, backends);
        let (offered, refused) = ([0, 0, requests], [0, 0, refused]);
        let counts = BucketCounts { offered, refused, ..BucketCounts::default() };
        let counts = Some(Reading::fresh(counts));
        signals.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        signals
    }

    /// Each bucket goes by what the back-end reports of the resource of that bucket, and of no other.
    #[test]
    fn a_bucket_falls_when_its_own_resource_is_reported_short() {
        let requests = "requests: {buckets: {\
             cpu: {resource: cpu, control: {name: p, rate: 500}}, \
             line: {resource: bandwidth, control: {name: pd, rate: 500}}}, \
             rules: [{path: /cgi/, bucket: cpu}, {path: /large/, bucket: line}]}";
        let config = service(ONE, &format!("{{name: default}}, {requests}"));
        for (cpu, length, short) in [(0.99, 0.0, 0), (0.5, 80.0, 1)] {
            let mut backends = backends(&config, as_shipped);
            let mut told = reported(0, 0);
            told.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
            told.queue.interface = Some(Reading::fresh(InterfaceQueue { length, limit: 100.0 }));
            let mut rates = Vec::new();
            for tick in 0..300 {
                let mut now = asking(100 * tick, vec![told.clone()], (50, 0));
                now.buckets.push(now.buckets[0].clone());
                let limits = backends.tick(&now, Mode::Enforce);
                rates = limits.buckets.iter().map(|bucket| bucket.rate.map(Rate::get)).collect();
            }
            let other = rates[1 - short];
            assert!(rates[short].is_some_and(|rate| rate < 460.0), "{short}: {rates:?}");
            assert!(other.is_none_or(|rate| rate >= 500.0), "{short}: {rates:?}");
        }
    }

    /// What a back-end that lies can make of a bucket's controller.
    struct Lowest;

    impl BucketController for Lowest {
        fn tick(&mut self, _: &Signals, _: usize, _: Context<'_>) -> BucketLimits {
            let rate = Some(Rate::per_second(10.0));
            BucketLimits { rate, burst: 5, ..BucketLimits::default() }
        }

        fn headroom(&self, _: Demand, _: f64) -> Headroom {
            Headroom { under_pressure: true, exhausted: true }
        }
    }

    fn lied_to(config: &ServiceConfig) -> Dual {
        coupled(config, vec![Box::new(Lowest)], controllers::make(config))
    }

    /// 800 connections a second with ten requests each: the bucket's first limit is half of the
    /// requests, and of those that passed only.
    #[test]
    fn a_bucket_is_lowered_from_requests_and_not_from_connections() {
        let config = with_bucket("{name: default}", "{resource: cpu}");
        for (refused, shadow, least) in
            [(0, false, 4000.0), (200, false, 3000.0), (200, true, 4000.0)]
        {
            let mut backends = backends(&config, lied_to);
            backends.rules_in_shadow(shadow);
            for second in 0..4 {
                for tick in 0..10 {
                    let ms = 1000 * second + 100 * tick;
                    let told = vec![reported(0, 0)];
                    let limits = backends.tick(&asking(ms, told, (800, refused)), Mode::Enforce);
                    let rate = limits.buckets[0].rate.unwrap().get();
                    let wanted = least / (1_u64 << second) as f64;
                    assert!((rate - wanted).abs() < 1e-6, "{ms} ms: {rate} and not {wanted}");
                }
            }
        }
    }

    /// Rates set by hand and ceilings need no report, whatever the passing is.
    #[test]
    fn what_was_set_by_hand_holds_before_reports_come_and_after_they_are_lost() {
        for (control, bucket, expected) in [
            (
                "{name: fixed, rate: 300}",
                "{resource: cpu, control: {name: fixed, rate: 3/s}}",
                (Some(300.0), Some(3.0)),
            ),
            (
                "{name: default, ceiling: 70}",
                "{resource: cpu, control: {ceiling: 50}}",
                (Some(70.0), Some(50.0)),
            ),
            ("{name: syn}", "{resource: cpu, control: {name: p}}", (None, None)),
        ] {
            let config = with_bucket(control, bucket);
            let mut backends = backends(&config, as_shipped);
            let mut rates = |ms, told: Vec<Backend>| {
                let limits = backends.tick(&asking(ms, told, (800, 0)), Mode::Enforce);
                let rate = |rate: Option<Rate>| rate.map(Rate::get);
                (rate(limits.rate), rate(limits.buckets[0].rate))
            };
            for tick in 0..5 {
                assert_eq!(rates(100 * tick, vec![Backend::default()]), expected, "{control}");
            }
            for tick in 5..60 {
                let (rate, requests) = rates(100 * tick, vec![reported(0, 0)]);
                let below = |rate: Option<f64>, own: Option<f64>| {
                    own.is_none_or(|own| rate.is_some_and(|rate| rate <= own))
                };
                assert!(below(rate, expected.0) && below(requests, expected.1), "{control}");
            }
            for tick in 100..110 {
                assert_eq!(rates(100 * tick, vec![Backend::default()]), expected, "{control}");
            }
        }
    }

    #[test]
    fn a_report_counts_for_as_long_as_it_is_valid_whatever_the_tick_is() {
        let config = service(ONE, "{name: syn, rate: 1000}");
        let mut backends = backends(&config, syn);
        // Told once a second, valid for longer; a controller would freeze after three ticks.
        for tick in 0..100 {
            let told = vec![reported(1000, 100 * (tick % 10))];
            backends.tick(&signals(100 * tick, told), Mode::Enforce);
        }
        let rate = backends.tick(&signals(10_000, vec![reported(1000, 0)]), Mode::Enforce).rate;
        assert!(rate.unwrap().get() < 500.0, "56 admissions per second and second: {rate:?}");
    }

    fn default(config: &ServiceConfig) -> Dual {
        coupled(config, Vec::new(), controllers::make(config))
    }

    /// The default controller of each of two back-ends, which decides by the connections that wait
    /// there: they are told every two seconds, and lost to it if they age for one.
    #[test]
    fn connections_that_wait_at_a_back_end_count_for_as_long_as_well() {
        let config = service(TWO, "{name: default}");
        let mut backends = backends(&config, default);
        let told = |tick: u64| {
            let mut backend = reported(500, 100 * (tick % 20));
            backend.waiting = backend.age.map(|age| Reading { value: 600, age });
            backend
        };
        let mut shed = 0;
        for tick in 0..200 {
            let both = vec![told(tick), told(tick)];
            let limits = backends.tick(&signals(100 * tick, both), Mode::Enforce);
            shed += u64::from(limits.why.shedding);
            assert_eq!(limits.why.shedding, limits.rate.is_some(), "tick {tick}: {limits:?}");
        }
        assert!(
            shed >= 150,
            "it is offered 1010/s, completes 800/s, and shed in {shed} of 200 ticks"
        );
    }
}
