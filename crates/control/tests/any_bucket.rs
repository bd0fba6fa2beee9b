// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever is sensed of a bucket, or not: its limits are finite and inside their bounds, the same
//! signals give the same limits, missing signals never tighten, and SYN policing sets no rate while a
//! bucket of a resource under pressure has something left to refuse.

use proptest::prelude::*;
use tidegate_control::{
    BucketController, BucketSpec, Context, Controller, DefaultBucket, DefaultController,
    DefaultSpec, Demand, Detector, Dual, Fixed, FixedBucket, Gauge, Interaction, Load, Mode,
    PaperBucket, PaperBucketSpec, Refusals, Syn, SynSpec, Variant,
};
use tidegate_model::limits::{BucketLimits, ServiceLimits};
use tidegate_model::signals::{
    AcceptQueue, BucketCounts, BucketSignals, Counts, InterfaceQueue, Reading, Signals, Times,
};
use tidegate_units::{Nanos, Rate, Share};

const GAUGES: [Gauge; 11] = [
    Gauge::Cpu,
    Gauge::Bandwidth,
    Gauge::Memory,
    Gauge::Disk,
    Gauge::AcceptQueue,
    Gauge::InFlight(20),
    Gauge::CpuPressure,
    Gauge::FirstByte(Nanos::SECOND),
    Gauge::ResponseTime(Nanos::from_millis(50)),
    Gauge::Waiting(100),
    Gauge::BytesSent(1_000),
];

fn spec(start: Option<f64>) -> BucketSpec {
    BucketSpec {
        maximum: Rate::per_second(5000.0),
        start: start.map(Rate::per_second),
        ..BucketSpec::default()
    }
}

fn controllers() -> Vec<Box<dyn BucketController>> {
    let mut all: Vec<Box<dyn BucketController>> =
        vec![Box::new(FixedBucket::new(Rate::per_second(50.0), spec(None)))];
    for gauge in GAUGES {
        for variant in [Variant::Published, Variant::Released] {
            for start in [None, Some(1000.0)] {
                let bucket = spec(start);
                for paper in [PaperBucketSpec::p(gauge), PaperBucketSpec::pd(gauge)] {
                    let paper = PaperBucketSpec { bucket, variant, ..paper };
                    all.push(Box::new(PaperBucket::new(paper)));
                }
            }
        }
        all.push(Box::new(DefaultBucket::new(gauge, spec(None), DefaultSpec::default())));
    }
    all
}

/// A bucket and the detector of its service.
struct Told {
    bucket: Box<dyn BucketController>,
    detector: Detector,
}

impl Told {
    fn new(bucket: Box<dyn BucketController>) -> Self {
        Self { bucket, detector: Detector::of_rules(DefaultSpec::default().objective) }
    }

    fn tick(
        &mut self,
        signals: &Signals,
        index: usize,
        mode: Mode,
        demand: Demand,
    ) -> BucketLimits {
        let load = self.detector.tick(signals, mode, None, Refusals::of_rules(signals, mode));
        let overload = if let Load::Overload(overload) = &load { Some(overload) } else { None };
        self.bucket.tick(signals, index, Context { mode, overload, demand })
    }
}

/// P of the CPU with these rates.
fn p(bucket: BucketSpec) -> Box<dyn BucketController> {
    Box::new(PaperBucket::new(PaperBucketSpec { bucket, ..PaperBucketSpec::p(Gauge::Cpu) }))
}

/// Buckets and SYN policing, coupled.
fn coupled(
    buckets: Vec<Box<dyn BucketController>>,
    syn: Box<dyn Controller>,
    interaction: Interaction,
) -> Dual {
    let detector = Detector::of_rules(DefaultSpec::default().objective);
    Dual::new(buckets, detector, syn, interaction)
}

/// Mostly of a server's size, sometimes absurd.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..2000, 1 => 0_u64..10, 1 => any::<u64>()]
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0..200.0_f64, 1 => any::<f64>()]
}

fn reading<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<Reading<T>>> {
    let age = prop_oneof![8 => Just(0_u64), 1 => 0_u64..2_000_000_000, 1 => any::<u64>()];
    let one = (value, age).prop_map(|(value, age)| Some(Reading { value, age: Nanos(age) }));
    prop_oneof![9 => one, 1 => Just(None)]
}

fn bucket() -> impl Strategy<Value = BucketSignals> {
    let ranks = || prop::array::uniform3(number());
    let counts = (ranks(), ranks(), number(), number()).prop_map(
        |(offered, refused, refused_first, ended)| BucketCounts {
            offered,
            refused,
            refused_first,
            begun: ended,
            ended,
        },
    );
    let times = || {
        let times = (number(), any::<u64>(), any::<u64>());
        reading(times.prop_map(|(count, sum, p99)| {
            let (sum, p99) = (Nanos(sum), Nanos(p99));
            Times { count, sum, p50: p99, p99 }
        }))
    };
    (reading(counts), reading(number()), times(), times()).prop_map(
        |(counts, in_flight, first_byte, end)| BucketSignals { counts, in_flight, first_byte, end },
    )
}

fn signals() -> impl Strategy<Value = Signals> {
    let period = prop_oneof![8 => Just(100_000_000_u64), 1 => Just(0_u64), 1 => any::<u64>()];
    let counts = (number(), number(), number()).prop_map(|(offered, refused, completed)| Counts {
        offered,
        refused,
        completed,
        ..Counts::default()
    });
    let queue = (number(), number()).prop_map(|(length, limit)| AcceptQueue { length, limit });
    let interface = (float(), float()).prop_map(|(length, limit)| InterfaceQueue { length, limit });
    let share = || prop_oneof![2 => (0.0..=1.0_f64).prop_map(Share::new), 1 => Just(Share::ONE)];
    let shares = (reading(share()), reading(share()), reading(share()), reading(float()));
    (
        (any::<u64>(), period, reading(counts), reading(number())),
        shares,
        reading(queue),
        reading(interface),
        prop_oneof![9 => prop::collection::vec(bucket(), 2..3), 1 => Just(Vec::new())],
    )
        .prop_map(|((now, period, counts, waiting), shares, accept, interface, buckets)| {
            let mut s = Signals { now: Nanos(now), period: Nanos(period), ..Signals::default() };
            (s.resource.cpu, s.resource.memory_pressure) = (shares.0, shares.1);
            (s.resource.io_pressure, s.resource.bandwidth) = (shares.2, shares.3);
            s.resource.cpu_pressure = shares.2;
            s.balance.counts = counts;
            s.time.waiting = waiting;
            s.time.first_byte = Some(Reading::fresh(Times::default()));
            (s.queue.accept, s.queue.interface) = (accept, interface);
            s.buckets = buckets;
            s
        })
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![3 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)]
}

fn check(limits: &BucketLimits) -> Result<(), TestCaseError> {
    if let Some(rate) = limits.rate {
        let rate = rate.get();
        prop_assert!(rate.is_finite() && (10.0..=5000.0).contains(&rate), "{rate}");
        prop_assert!((1..=1_000_000).contains(&limits.burst));
        prop_assert!(limits.reserve.is_sorted() && limits.reserve[0] == 0);
        prop_assert!(limits.reserve[2] < limits.burst, "the lowest rank finds a token");
    }
    prop_assert!(!limits.why.text.is_empty());
    Ok(())
}

fn dual(interaction: Interaction, syn: bool) -> Dual {
    let buckets: Vec<Box<dyn BucketController>> = vec![
        p(spec(None)),
        Box::new(DefaultBucket::new(Gauge::Bandwidth, spec(None), DefaultSpec::default())),
    ];
    coupled(buckets, policing(syn), interaction)
}

/// SYN policing by the paper's controller, or by ours.
fn policing(syn: bool) -> Box<dyn Controller> {
    if syn {
        Box::new(Syn::new(SynSpec::default()))
    } else {
        Box::new(DefaultController::new(DefaultSpec::default()))
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn limits_are_finite_bounded_and_repeatable(
        series in prop::collection::vec((signals(), mode(), 0_u8..8), 1..100)
    ) {
        for (one, other) in controllers().into_iter().zip(controllers()) {
            let (mut one, mut other) = (Told::new(one), Told::new(other));
            for (signals, mode, order) in &series {
                let demand = match order {
                    0 => Demand::Lower,
                    1 => Demand::LowerAtOnce,
                    2 => Demand::Least,
                    _ => Demand::Nothing,
                };
                let limits = one.tick(signals, 1, *mode, demand);
                check(&limits)?;
                prop_assert_eq!(limits, other.tick(signals, 1, *mode, demand));
            }
        }
    }

    #[test]
    fn syn_policing_refuses_nothing_while_a_rule_could(
        series in prop::collection::vec((signals(), mode()), 1..200), syn: bool
    ) {
        let mut dual = dual(Interaction::Released, syn);
        for (signals, mode) in &series {
            let limits = dual.tick(signals, *mode);
            limits.buckets.iter().try_for_each(check)?;
            if !dual.active() {
                prop_assert!(limits.rate.is_none() && limits.accept_queue_max_q10 == 0);
                prop_assert!(limits.waiting_max.is_none_or(|most| most >= 3 * 128));
            } else if *mode == Mode::Enforce {
                // Those that say that their resource is under pressure, in `alarmed`, are at their minimum;
                // without a limit are only those of whose requests too little is known.
                for bucket in limits.buckets.iter().filter(|b| !b.why.alarmed.is_empty()) {
                    prop_assert!(bucket.rate.is_none_or(|rate| rate.get() == 10.0), "{bucket:?}");
                }
            }
        }
    }

    #[test]
    fn the_published_coupling_changes_nothing_in_syn_policing(
        series in prop::collection::vec((signals(), mode()), 1..100)
    ) {
        let mut dual = dual(Interaction::Published, true);
        let mut alone = Syn::new(SynSpec::default());
        for (signals, mode) in &series {
            let (limits, expected) = (dual.tick(signals, *mode), alone.tick(signals, *mode));
            prop_assert_eq!(limits.rate, expected.rate);
            prop_assert_eq!(limits.waiting_max, expected.waiting_max);
        }
    }
}

fn under_pressure(cpu: Option<Reading<Share>>, hits: u64) -> Signals {
    let mut s = Signals { period: Nanos::from_millis(100), ..Signals::default() };
    s.resource.cpu = cpu;
    let offered = [0, hits, 0];
    let counts = Some(Reading::fresh(BucketCounts { offered, ..BucketCounts::default() }));
    s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
    s
}

/// Signals that age hold a limit for ten periods and then lift it; they never lower it.
#[test]
fn stale_signals_freeze_and_lost_ones_release() {
    let full = Some(Reading::fresh(Share::ONE));
    let context = Context::alone(Mode::Enforce);
    let mut p = PaperBucket::new(PaperBucketSpec::p(Gauge::Cpu));
    let mut last = None;
    for _ in 0..40 {
        last = p.tick(&under_pressure(full, 10), 0, context).rate;
    }
    assert!(last.is_some());
    for tick in 1..=20 {
        let missing = p.tick(&under_pressure(None, 10), 0, context).rate;
        assert_eq!(missing, if tick <= 10 { last } else { None }, "tick {tick}");
    }
}

/// A tick of a server that completes 200/s, is offered 500/s and has all of its CPU, its accept queue
/// and its link used up; all of that is known.
fn overloaded(tick: u64) -> Signals {
    let mut s = under_pressure(Some(Reading::fresh(Share::ONE)), 100);
    s.now = Nanos::from_millis(100 * tick);
    let counts = Counts { offered: 50, admitted: 50, completed: 20, ..Counts::default() };
    s.balance.counts = Some(Reading::fresh(counts));
    s.time.waiting = Some(Reading::fresh(1000));
    s.queue.accept = Some(Reading::fresh(AcceptQueue { length: 1000, limit: 1024 }));
    s.queue.interface = Some(Reading::fresh(InterfaceQueue { length: 90.0, limit: 100.0 }));
    s.resource.bandwidth = Some(Reading::fresh(12.5e6));
    s
}

/// Gives a signal this age, or takes it away.
fn lose<T>(reading: &mut Option<Reading<T>>, age: Option<Nanos>) {
    *reading = reading.take().zip(age).map(|(reading, age)| Reading { age, ..reading });
}

type Lose = fn(&mut Signals, Option<Nanos>);

/// What a default bucket of this gauge decides by, and how to lose it.
fn inputs(gauge: Gauge) -> Vec<(&'static str, Lose)> {
    let mut all: Vec<(&'static str, Lose)> =
        vec![("bucket counts", |s, age| lose(&mut s.buckets[0].counts, age))];
    if gauge == Gauge::Bandwidth {
        all.push(("interface queue", |s, age| lose(&mut s.queue.interface, age)));
        all.push(("bandwidth", |s, age| lose(&mut s.resource.bandwidth, age)));
        return all;
    }
    all.push(("waiting", |s, age| lose(&mut s.time.waiting, age)));
    all.push(("counts", |s, age| lose(&mut s.balance.counts, age)));
    all.push(match gauge {
        Gauge::Cpu => ("CPU", |s, age| lose(&mut s.resource.cpu, age)),
        _ => ("accept queue", |s, age| lose(&mut s.queue.accept, age)),
    });
    all
}

/// Whichever of its inputs a default bucket loses, it holds its limit for ten periods and then lets
/// go, and acts again when it is back. A reading that only ages is acted upon for three.
#[test]
fn a_default_bucket_that_loses_any_input_freezes_and_then_releases() {
    for gauge in [Gauge::Cpu, Gauge::AcceptQueue, Gauge::Bandwidth] {
        for (name, lose) in inputs(gauge) {
            for ages in [false, true] {
                let told = format!("{gauge:?} without {name}, ages: {ages}");
                let bucket = DefaultBucket::new(gauge, spec(None), DefaultSpec::default());
                let mut bucket = Told::new(Box::new(bucket));
                let mut tick = |signals: &Signals| {
                    bucket.tick(signals, 0, Mode::Enforce, Demand::Nothing).rate
                };
                let mut now = 0;
                // Until it acts, and then a few ticks more: it is on its way down.
                let mut last = None;
                while now < 100 && last.is_none() {
                    last = tick(&overloaded(now));
                    now += 1;
                }
                assert!(last.is_some_and(|rate| rate.get() > 20.0), "{told}: {last:?}");
                for age in 1..=60 {
                    let mut signals = overloaded(now);
                    lose(&mut signals, ages.then(|| Nanos::from_millis(100 * age)));
                    let rate = tick(&signals);
                    if ages && age <= 3 {
                        last = rate;
                    }
                    assert_eq!(rate, if age <= 10 { last } else { None }, "{told}: {age} periods");
                    now += 1;
                }
                let back = (now..now + 60).map(|now| tick(&overloaded(now)));
                assert!(back.last().flatten().is_some(), "{told}: acts again");
            }
        }
    }
}

/// Two buckets of any kinds on a server that is short of everything, and of which all is known: while
/// SYN policing is active, whoever says that its resource is under pressure refuses all that it may.
#[test]
fn while_active_all_under_pressure_are_at_their_minimum() {
    type Make = fn() -> Box<dyn BucketController>;
    fn pd(gauge: Gauge) -> Box<dyn BucketController> {
        let paper = PaperBucketSpec::pd(gauge);
        Box::new(PaperBucket::new(PaperBucketSpec { bucket: spec(None), ..paper }))
    }
    fn default(gauge: Gauge) -> Box<dyn BucketController> {
        Box::new(DefaultBucket::new(gauge, spec(None), DefaultSpec::default()))
    }
    let kinds: [(&str, Make); 5] = [
        ("P of the CPU", || p(spec(None))),
        ("PD of the interface", || pd(Gauge::Bandwidth)),
        ("PD of the accept queue", || pd(Gauge::AcceptQueue)),
        ("default of the CPU", || default(Gauge::Cpu)),
        ("default of the interface", || default(Gauge::Bandwidth)),
    ];
    for ((one, first), (other, second)) in
        kinds.iter().flat_map(|a| kinds.iter().map(move |b| (a, b)))
    {
        for syn in [false, true] {
            let buckets = vec![first(), second()];
            let mut dual = coupled(buckets, policing(syn), Interaction::Released);
            let (mut active, mut under_pressure) = (0, 0);
            for tick in 0..600 {
                let mut signals = overloaded(tick);
                signals.buckets.push(signals.buckets[0].clone());
                signals.queue.accept =
                    Some(Reading::fresh(AcceptQueue { length: 1024, limit: 1024 }));
                let limits = dual.tick(&signals, Mode::Enforce);
                if !dual.active() {
                    continue;
                }
                active += 1;
                for bucket in limits.buckets.iter().filter(|b| !b.why.alarmed.is_empty()) {
                    let rate = bucket.rate.map(Rate::get);
                    assert_eq!(rate, Some(10.0), "{one} and {other}, {tick}: {bucket:?}");
                    under_pressure += 1;
                }
            }
            assert!(
                active > 100 && under_pressure >= active,
                "{one}, {other}, {syn}: {active}, {under_pressure}"
            );
        }
    }
}

/// A rule whose refusals are only counted holds nothing: SYN policing does not wait for it.
#[test]
fn rules_in_shadow_do_not_put_syn_policing_on_standby() {
    let mut dual = dual(Interaction::Released, true);
    assert!(!dual.active());
    dual.rules_in_shadow(true);
    assert!(dual.active());
    let limits = dual.tick(&under_pressure(None, 10), Mode::Enforce);
    assert_eq!(limits.rate, Some(Rate::per_second(1000.0)));
}

/// A guard on the connections that wait, and nothing else.
struct Guard(Option<u64>);

impl Controller for Guard {
    fn tick(&mut self, _: &Signals, _: Mode) -> ServiceLimits {
        let min_rate = Some(Rate::per_second(0.1));
        ServiceLimits { waiting_max: self.0, min_rate, ..ServiceLimits::default() }
    }
}

/// Who is refused by the in-flight limit while SYN policing is on standby is told so, with its number.
#[test]
fn the_in_flight_limit_is_told_while_syn_policing_is_on_standby() {
    for (calm, most, told) in [
        (
            Some(256),
            Some(768),
            "SYN policing is on standby, but at most 768 may wait for a response",
        ),
        (None, None, "SYN policing is on standby; it would say"),
    ] {
        let rules = vec![p(spec(None))];
        let mut dual = coupled(rules, Box::new(Guard(calm)), Interaction::Released);
        let limits = dual.tick(&under_pressure(None, 10), Mode::Enforce);
        assert_eq!((limits.rate, limits.waiting_max), (None, most));
        assert_eq!(
            limits.min_rate.map(Rate::get),
            Some(0.1),
            "the in-flight limit, too, is passed at it"
        );
        assert!(limits.why.text.starts_with(told), "{}", limits.why.text);
    }
}

/// Request rules of the CPU, whose rate this law hardly moves in a second, and the paper's SYN policing.
fn rules_and_syn() -> Dual {
    let bucket = BucketSpec { start: Some(Rate::per_second(1000.0)), ..spec(None) };
    coupled(vec![p(bucket)], Box::new(Syn::new(SynSpec::default())), Interaction::Released)
}

/// `offered` SYNs a tick, all of the CPU used up, an accept queue of 900 as it was so long ago.
fn queue_of_900(offered: u64, age: u64) -> Signals {
    let mut s = under_pressure(Some(Reading::fresh(Share::ONE)), 100);
    let counts = Counts { offered, admitted: offered, completed: offered, ..Counts::default() };
    s.balance.counts = Some(Reading::fresh(counts));
    let queue = AcceptQueue { length: 900, limit: 1024 };
    s.queue.accept = Some(Reading { value: queue, age: Nanos::from_millis(100 * age) });
    s
}

/// An accept queue was long once, or somebody says so late: rules are lowered for as long as that is
/// fresh, and SYN policing does not become active, whether its last rate is above what arrives or below.
#[test]
fn a_stale_accept_queue_lowers_nothing_and_activates_nothing() {
    for (offered, first) in [(50, 0), (50, 4), (150, 0), (150, 4)] {
        let (mut dual, mut rate) = (rules_and_syn(), f64::INFINITY);
        for age in first..first + 100 {
            let limits = dual.tick(&queue_of_900(offered, age), Mode::Enforce);
            let now = limits.buckets[0].rate.map_or(f64::INFINITY, Rate::get);
            // The law takes 2/s a second; a demand a third in each tick.
            let lowered = rate.is_finite() && now < rate - 1.0;
            assert!(age <= 3 || !lowered, "{offered} from {first}, {age}: {rate} to {now}");
            assert!(!dual.active(), "{offered} from {first}, {age}");
            rate = now;
        }
        assert!(rate > 100.0, "{offered} from {first}: {rate}");
    }
}

/// The same of jobs in flight: the number that rules and SYN policing were left with is no reason.
#[test]
fn stale_jobs_in_flight_lower_nothing_and_activate_nothing() {
    let bucket = BucketSpec { start: Some(Rate::per_second(1000.0)), ..spec(None) };
    let syn = Box::new(DefaultController::new(DefaultSpec::default()));
    let mut dual = coupled(vec![p(bucket)], syn, Interaction::Released);
    let (mut rate, mut begun) = (f64::INFINITY, None);
    for tick in 0..200 {
        let mut signals = overloaded(tick);
        signals.queue.accept = None;
        // From the moment that SYN policing would refuse, nobody renews the number.
        let age = begun.map_or(0, |begun| tick - begun);
        signals.time.waiting.as_mut().unwrap().age = Nanos::from_millis(100 * age);
        let limits = dual.tick(&signals, Mode::Enforce);
        if begun.is_none() && limits.why.text.contains("would say: shedding") {
            begun = Some(tick);
        }
        let now = limits.buckets[0].rate.map_or(f64::INFINITY, Rate::get);
        let lowered = rate.is_finite() && now < rate - 1.0;
        assert!(age <= 3 || !lowered, "{age} periods: {rate} to {now}");
        assert!(!dual.active(), "{age} periods");
        rate = now;
    }
    assert!(begun.is_some() && rate > 100.0, "{begun:?} {rate}");
}

/// SYN policing that is active keeps the bucket of a resource under pressure at its minimum: while the resource
/// is not known for a moment too, but not any more when it is lost, though SYN policing stays active.
#[test]
fn a_bucket_whose_gauge_is_lost_is_not_kept_at_its_minimum() {
    let start = Some(Rate::per_second(1000.0));
    let bucket = BucketSpec { start, ..spec(None) };
    let pd = PaperBucketSpec { bucket, ..PaperBucketSpec::pd(Gauge::Cpu) };
    let default = DefaultBucket::new(Gauge::Cpu, bucket, DefaultSpec::default());
    let buckets: [Box<dyn BucketController>; 3] =
        [p(bucket), Box::new(PaperBucket::new(pd)), Box::new(default)];
    for (n, bucket) in buckets.into_iter().enumerate() {
        let syn = Box::new(Fixed::new(Rate::per_second(100.0), 20));
        let mut dual = coupled(vec![bucket], syn, Interaction::Released);
        let mut now = 0;
        let mut tick = |dual: &mut Dual, cpu: bool| {
            let mut signals = overloaded(now);
            signals.resource.cpu = signals.resource.cpu.filter(|_| cpu);
            now += 1;
            dual.tick(&signals, Mode::Enforce).buckets[0].rate
        };
        let minimum = Some(Rate::per_second(10.0));
        let last = (0..100).map(|_| tick(&mut dual, true)).last().flatten();
        assert!(dual.active() && last == minimum, "bucket {n}: {last:?}");
        for missing in 1..=60 {
            let rate = tick(&mut dual, false);
            let expected = if missing <= 10 { minimum } else { None };
            assert_eq!(rate, expected, "bucket {n}: CPU missing for {missing} periods");
            assert!(dual.active());
        }
        // Known and under pressure again: it goes first again.
        let last = (0..30).map(|_| tick(&mut dual, true)).last().flatten();
        assert_eq!(last, minimum, "bucket {n}");
    }
}
