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

use tidegate_control::{Controller, Dual, Mode};
use tidegate_model::RATE_FLOOR;
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
    passed_per_s: f64,
    /// Counts that do not divide are handed round.
    ticks: usize,
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
        let floor = config.control.floor.unwrap_or(Rate::per_second(RATE_FLOOR));
        let each: Vec<Each> = config
            .backends
            .iter()
            .map(|backend| Each {
                name: backend.peer.clone(),
                dual: make(),
                clamp: Clamp::new(floor),
                completed: 0.0,
            })
            .collect();
        (!each.is_empty()).then(|| Self { make: Box::new(make), each, passed_per_s: 0.0, ticks: 0 })
    }

    /// Whether header rules only count.
    pub(crate) fn rules_in_shadow(&mut self, on: bool) {
        self.each.iter_mut().for_each(|each| each.dual.rules_in_shadow(on));
    }

    /// The limits until the next tick.
    pub(crate) fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        let n = self.each.len();
        self.learn(signals);
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
                passed: Rate::per_second(self.passed_per_s / n as f64),
                waiting: view.time.waiting.map_or(0, |waiting| waiting.value),
            };
            // What is let go has no effect, and a controller must not believe that it had.
            let lost = !ground.valid && each.clamp.lost(signals.now);
            let wanted = each.dual.tick(&view, if lost { Mode::Shadow } else { mode });
            let clamped = each.clamp.clamp(wanted, ground);
            if !lost && !ground.valid && each.clamp.lost(signals.now) {
                // What it learned from reports that are long gone must not come back with the next.
                each.dual = (self.make)();
            }
            parts.push((each.name.as_str(), clamped));
        }
        sum(parts)
    }

    fn learn(&mut self, signals: &Signals) {
        let Some(counts) = signals.balance.counts else { return };
        let seconds = signals.period.as_secs_f64();
        if seconds > 0.0 {
            let keep = (-seconds / PASSED_SECONDS).exp();
            let now = counts.value.admitted as f64 / seconds;
            self.passed_per_s = keep * self.passed_per_s + (1.0 - keep) * now;
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
    let Resource { cpu, cpu_pressure, memory_pressure, io_pressure, bandwidth } = &mut resource;
    for share in [cpu, cpu_pressure, memory_pressure, io_pressure] {
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
    use crate::controllers;
    use tidegate_control::{Fixed, Interaction};
    use tidegate_model::intent::{Registry, parse};
    use tidegate_model::signals::AcceptQueue;
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
        let counts = Counts { offered: 101, admitted: 80, refused: 21, completed: 80, repeated: 0 };
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
        let config = service(TWO, "{name: fixed, rate: 300}");
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
