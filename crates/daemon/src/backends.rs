// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service whose back-ends report: controllers of their own for each of them, fed with its
//! signals, and the sum of what they admit.
//!
//! ```text
//!  signals of back-end 1 ─► controllers 1 ─► clamp 1 ─┐
//!  signals of back-end 2 ─► controllers 2 ─► clamp 2 ─┴─ sum ─► limits of the service
//! ```
//!
//! The clamp is what a remote signal may do, whatever a controller makes of it: see
//! [`tidegate_peer::clamp`]. A back-end without a limit, calm or not heard of any more, makes the
//! sum one without a limit: so nothing becomes tighter because a report was lost.

use crate::controllers;
use tidegate_control::{Controller, Dual, Mode};
use tidegate_model::RANKS;
use tidegate_model::intent::ServiceConfig;
use tidegate_model::limits::{BucketLimits, ServiceLimits, Why};
use tidegate_model::signals::{Backend, BucketCounts, Counts, Queue, Reading, Resource, Signals};
use tidegate_peer::clamp::{Clamp, Ground};
use tidegate_units::{Nanos, Rate};

/// Seconds over which what passes is averaged.
const PASSED_SECONDS: f64 = 1.0;

/// The controllers of all back-ends of a service.
pub(crate) struct Backends {
    make: Box<dyn Fn() -> Dual + Send>,
    each: Vec<Each>,
    rules_in_shadow: bool,
    /// Connections that passed, and requests of each bucket.
    connections: Passed,
    requests: Vec<Passed>,
    /// Counts that do not divide are handed round.
    ticks: usize,
}

/// What passes, per second, on average; `None` before anything was counted.
#[derive(Clone, Copy, Debug, Default)]
struct Passed(Option<f64>);

impl Passed {
    fn see(&mut self, seconds: f64, count: u64) {
        let now = count as f64 / seconds;
        let keep = (-seconds / PASSED_SECONDS).exp();
        self.0 = Some(self.0.map_or(now, |mean| keep * mean + (1.0 - keep) * now));
    }

    /// That of one of so many back-ends.
    fn one_of(self, n: usize) -> Option<Rate> {
        self.0.map(|per_second| Rate::per_second(per_second / n as f64))
    }
}

struct Each {
    name: String,
    dual: Dual,
    clamp: Clamp,
    /// Fractions of completions that were not given yet.
    completed: f64,
}

impl Backends {
    /// Controllers for every back-end of this service; `None` if it has none.
    pub(crate) fn new(
        config: &ServiceConfig,
        make: impl Fn() -> Dual + Send + 'static,
    ) -> Option<Self> {
        let buckets = config.requests.iter().flat_map(|requests| &requests.buckets);
        let buckets: Vec<_> = buckets.map(controllers::bounds_of_bucket).collect();
        let service = controllers::bounds(&config.control);
        let each: Vec<Each> = config
            .backends
            .iter()
            .map(|backend| Each {
                name: backend.peer.clone(),
                dual: make(),
                clamp: Clamp::new(service, buckets.clone()),
                completed: 0.0,
            })
            .collect();
        (!each.is_empty()).then(|| Self {
            make: Box::new(make),
            each,
            rules_in_shadow: false,
            connections: Passed::default(),
            requests: vec![Passed::default(); buckets.len()],
            ticks: 0,
        })
    }

    /// Whether header rules only count.
    pub(crate) fn rules_in_shadow(&mut self, on: bool) {
        self.rules_in_shadow = on;
        self.each.iter_mut().for_each(|each| each.dual.rules_in_shadow(on));
    }

    /// The limits until the next tick.
    pub(crate) fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        let n = self.each.len();
        self.learn(signals, mode);
        let passed = self.connections.one_of(n);
        let requests: Vec<_> = self.requests.iter().map(|passed| passed.one_of(n)).collect();
        self.ticks = self.ticks.wrapping_add(1);
        let silent = Backend::default();
        let mut parts = Vec::with_capacity(n);
        for (index, each) in self.each.iter_mut().enumerate() {
            let backend = signals.backends.get(index).unwrap_or(&silent);
            let part = Part { index: (index + self.ticks) % n, of: n };
            let view = each.view(signals, backend, part);
            let ground = Ground {
                now: signals.now,
                valid: backend.valid,
                passed,
                requests: &requests,
                waiting: view.time.waiting.map_or(0, |waiting| waiting.value),
            };
            // What is let go has no effect, and a controller must not believe that it had.
            let lost = !ground.valid && each.clamp.lost(signals.now);
            let wanted = each.dual.tick(&view, if lost { Mode::Shadow } else { mode });
            let clamped = each.clamp.clamp(&wanted, ground);
            if !lost && !ground.valid && each.clamp.lost(signals.now) {
                // What it learned from reports that are long gone must not come back with the next.
                each.dual = (self.make)();
            }
            parts.push((each.name.as_str(), clamped));
        }
        sum(parts)
    }

    fn learn(&mut self, signals: &Signals, mode: Mode) {
        let seconds = signals.period.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        if let Some(counts) = signals.balance.counts {
            self.connections.see(seconds, counts.value.admitted);
        }
        let shadow = self.rules_in_shadow || mode == Mode::Shadow;
        for (passed, bucket) in self.requests.iter_mut().zip(&signals.buckets) {
            let Some(counts) = bucket.counts.map(|counts| counts.value) else { continue };
            let sum = |ranks: [u64; RANKS]| ranks.into_iter().fold(0, u64::saturating_add);
            // What is only counted as refused has passed.
            let refused = if shadow { 0 } else { sum(counts.refused) };
            passed.see(seconds, sum(counts.offered).saturating_sub(refused));
        }
    }
}

/// Which of how many.
#[derive(Clone, Copy)]
struct Part {
    index: usize,
    of: usize,
}

impl Part {
    /// An equal part of a count; all parts together are the count.
    fn of(self, count: u64) -> u64 {
        let (index, of) = (self.index as u64, self.of as u64);
        let up_to = |i: u64| (u128::from(count) * u128::from(i) / u128::from(of)) as u64;
        up_to(index + 1) - up_to(index)
    }

    fn counts(self, counts: Counts) -> Counts {
        Counts {
            offered: self.of(counts.offered),
            repeated: self.of(counts.repeated),
            admitted: self.of(counts.admitted),
            refused: self.of(counts.refused),
            completed: self.of(counts.completed),
            unknown: self.of(counts.unknown),
            unseen: self.of(counts.unseen),
            // back-ends report exchanges only
            connections: None,
        }
    }

    fn bucket(self, counts: BucketCounts) -> BucketCounts {
        BucketCounts {
            offered: counts.offered.map(|count| self.of(count)),
            refused: counts.refused.map(|count| self.of(count)),
            refused_first: self.of(counts.refused_first),
            begun: self.of(counts.begun),
            ended: self.of(counts.ended),
        }
    }
}

impl Each {
    /// The signals of one back-end: what it reported, and of what this host sees its part. Where
    /// there is one back-end, that is all.
    fn view(&mut self, signals: &Signals, backend: &Backend, part: Part) -> Signals {
        let (resource, queue, waiting) = as_told(backend);
        let mut view = Signals { resource, queue, backends: Vec::new(), ..signals.clone() };
        if part.of == 1 {
            return view;
        }
        view.time.open = None;
        view.time.waiting = waiting.or_else(|| map(view.time.waiting, |n| part.of(n)));
        view.balance.counts = map(view.balance.counts, |counts| part.counts(counts));
        if let (Some(counts), Some(rate)) = (&mut view.balance.counts, backend.completed_per_s) {
            self.completed += rate.value * signals.period.as_secs_f64();
            let whole = self.completed.floor().max(0.0);
            self.completed -= whole;
            counts.value.completed = whole as u64;
        }
        for bucket in &mut view.buckets {
            bucket.counts = map(bucket.counts, |counts| part.bucket(counts));
            bucket.in_flight = map(bucket.in_flight, |n| part.of(n));
        }
        view
    }
}

/// The readings with the age that they had when they were told: for how long a report counts is a
/// matter of its validity, and not of this host's tick.
fn as_told(backend: &Backend) -> (Resource, Queue, Option<Reading<u64>>) {
    fn told<T>(reading: &mut Option<Reading<T>>, since: Nanos) {
        if let Some(reading) = reading {
            reading.age = reading.age.since(since);
        }
    }
    let since = backend.age.unwrap_or_default();
    let (mut resource, mut queue) = (backend.resource.clone(), backend.queue.clone());
    let Resource { cpu, busiest_thread, cpu_pressure, memory_pressure, io_pressure, bandwidth } =
        &mut resource;
    for share in [cpu, busiest_thread, cpu_pressure, memory_pressure, io_pressure] {
        told(share, since);
    }
    told(bandwidth, since);
    told(&mut queue.accept, since);
    told(&mut queue.interface, since);
    let mut waiting = backend.waiting;
    told(&mut waiting, since);
    (resource, queue, waiting)
}

fn map<T: Copy>(reading: Option<Reading<T>>, part: impl Fn(T) -> T) -> Option<Reading<T>> {
    reading.map(|reading| Reading { value: part(reading.value), age: reading.age })
}

/// What all of them admit together; there is no limit where one has none.
fn sum(parts: Vec<(&str, ServiceLimits)>) -> ServiceLimits {
    let alone = parts.len() == 1;
    let mut parts = parts.into_iter();
    let Some((first, mut total)) = parts.next() else { return ServiceLimits::default() };
    if alone {
        return total;
    }
    total.why.text = format!("{first}: {}", total.why.text);
    for (name, part) in parts {
        total.rate = both(total.rate, part.rate);
        total.burst = total.burst.saturating_add(part.burst);
        total.waiting_max =
            total.waiting_max.zip(part.waiting_max).map(|(a, b)| a.saturating_add(b));
        total.plain_waiting();
        total.min_rate = both(total.min_rate, part.min_rate);
        for (bucket, more) in total.buckets.iter_mut().zip(&part.buckets) {
            add(bucket, more);
        }
        join(&mut total.why, name, &part.why);
    }
    total
}

fn both(a: Option<Rate>, b: Option<Rate>) -> Option<Rate> {
    a.zip(b).map(|(a, b)| Rate::per_second(a.get() + b.get()))
}

fn add(bucket: &mut BucketLimits, more: &BucketLimits) {
    bucket.rate = both(bucket.rate, more.rate);
    bucket.burst = bucket.burst.saturating_add(more.burst);
    for (reserve, more) in bucket.reserve.iter_mut().zip(more.reserve) {
        *reserve = reserve.saturating_add(more);
    }
    bucket.why.shedding |= more.why.shedding;
}

fn join(why: &mut Why, name: &str, more: &Why) {
    why.shedding |= more.shedding;
    why.since = why.since.max(more.since);
    for family in &more.alarmed {
        if !why.alarmed.contains(family) {
            why.alarmed.push(*family);
        }
    }
    why.text = format!("{}; {name}: {}", why.text, more.text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_control::{BucketController, Fixed, Ground, Interaction, Room};
    use tidegate_model::intent::{Registry, parse};
    use tidegate_model::signals::{AcceptQueue, BucketSignals, InterfaceQueue};
    use tidegate_units::Share;

    fn service(backends: &str, control: &str) -> ServiceConfig {
        let text = format!(
            "interfaces: [{{name: lo}}]\n\
             services:\n  shop: {{mode: enforce, listen: [\"*:80\"], backends: [{backends}], control: {control}}}\n\
             cluster:\n  certificate: /c\n  key: /k\n  authority: /a\n  listen: 127.0.0.1:7000\n  \
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
        Backends::new(config, move || dual(&of)).unwrap()
    }

    fn syn(config: &ServiceConfig) -> Dual {
        Dual::new(Vec::new(), controllers::make(config), Interaction::Published)
    }

    /// 300/s that the clamp takes for a controller's.
    fn fixed(_: &ServiceConfig) -> Dual {
        let fixed = Fixed::new(Rate::per_second(300.0), 20);
        Dual::new(Vec::new(), Box::new(fixed), Interaction::Published)
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
            assert_eq!(backends.tick(&now, Mode::Enforce).rate, None, "let go after 3 s");
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
        assert_eq!(gone.rate, None, "and lets go in the end");
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
        Dual::new(buckets.collect(), controllers::make(config), Interaction::Published)
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
        fn tick(&mut self, _: &Signals, _: usize, _: Mode) -> BucketLimits {
            let rate = Some(Rate::per_second(10.0));
            BucketLimits { rate, burst: 5, ..BucketLimits::default() }
        }

        fn room(&self) -> Room {
            Room { pressed: true, spent: true }
        }

        fn squeeze(&mut self, _: f64, _: Ground) {}

        fn lowest(&mut self) -> Option<Rate> {
            None
        }
    }

    fn lied_to(config: &ServiceConfig) -> Dual {
        Dual::new(vec![Box::new(Lowest)], controllers::make(config), Interaction::Published)
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
    fn what_passes_is_known_from_the_first_count_on() {
        let mut passed = Passed::default();
        assert_eq!(passed.one_of(2), None);
        passed.see(0.1, 80);
        assert_eq!(passed.one_of(2), Some(Rate::per_second(400.0)));
        (0..100).for_each(|_| passed.see(0.1, 10));
        assert!(passed.one_of(1).is_some_and(|rate| (rate.get() - 100.0).abs() < 0.1));
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
        Dual::new(Vec::new(), controllers::make(config), Interaction::Published)
    }

    /// The default controller of each of two back-ends, which judges by the connections that wait
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

    #[test]
    fn parts_of_a_count_are_the_count() {
        for count in [0, 1, 2, 7, 100, u64::MAX] {
            for of in 1..5 {
                let sum: u128 = (0..of).map(|index| u128::from(Part { index, of }.of(count))).sum();
                assert_eq!(sum, u128::from(count));
            }
        }
    }
}
