// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Laws that every policy of policies.def keeps, whatever its parameters and whatever arrives. A law
//! that does not speak about a policy asks for a property of it, here at the top.

use proptest::prelude::*;
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, Circumstances, Event,
    GapSpec, Params, PercentSpec, Policy, RequestChain, RequestLimits, State, ThresholdSpec,
    Thresholds, Throttle, Verdict, VerdictKind, admit,
};
use tidegate_units::{Nanos, Rate, Share};

const SECOND: u64 = 1_000_000_000;

/// Parameters of every policy for one bucket.
fn all_params(bucket: &BucketSpec) -> Vec<Params> {
    let params: Vec<Params> = Policy::ALL
        .iter()
        .map(|policy| match policy {
            Policy::TokenBucket => Params::token_bucket(bucket),
            Policy::FreshFirst => Params::fresh_first(bucket),
            Policy::Abacus => Params::abacus(&AbacusSpec::classic(bucket.clone(), 45)),
            Policy::AbacusExact => {
                Params::abacus_exact(&AbacusExactSpec::classic(bucket.clone(), 45))
            }
            Policy::AbacusLearned => {
                Params::abacus_learned(&AbacusLearnedSpec::classic(bucket.clone()))
            }
            Policy::Threshold => Params::threshold(&thresholds(bucket)),
            Policy::Gap => Params::gap(&gap(bucket)),
            Policy::Percent => Params::percent(&percent(bucket)),
        })
        .map(|params| params.expect("the strategies give valid buckets"))
        .collect();
    assert_eq!(params.len(), Policy::ALL.len());
    params
}

/// What a policy's limit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limits {
    /// Arrivals in time. The laws about rate and burst speak about these.
    Rate,
    /// What waits at the server, which the host program measures: as much as comes is admitted while
    /// that is little, and nothing, however few come, while it is much.
    Level,
    /// The part of what arrives that is refused: of twice as many, twice as many are admitted, and of
    /// one alone, as little as of many.
    Share,
}

fn limits(params: &Params) -> Limits {
    match params.policy() {
        Policy::TokenBucket
        | Policy::FreshFirst
        | Policy::Abacus
        | Policy::AbacusExact
        | Policy::AbacusLearned
        | Policy::Gap => Limits::Rate,
        Policy::Threshold => Limits::Level,
        Policy::Percent => Limits::Share,
    }
}

/// Those whose limit is about one of these.
fn that_limit(params: Vec<Params>, what: &[Limits]) -> Vec<Params> {
    params.into_iter().filter(|params| what.contains(&limits(params))).collect()
}

/// The counts of a policy that are one event each: admitted, refused, delayed.
fn counted(params: &Params, state: &State) -> [u64; 3] {
    let word = |at: usize| {
        let bytes = state.as_bytes()[8 * at..8 * at + 8].try_into().expect("8 bytes");
        u64::from_ne_bytes(bytes)
    };
    match params.policy() {
        // the other two are those of them that are repeated
        Policy::TokenBucket | Policy::FreshFirst | Policy::Percent => [word(0), word(1), 0],
        Policy::Abacus | Policy::AbacusExact | Policy::AbacusLearned => {
            [word(0), word(1) + word(2) + word(3), 0]
        }
        Policy::Threshold => [word(0), word(1) + word(2), 0],
        Policy::Gap => [word(0), word(1), word(2)],
    }
}

/// Thresholds, throttles and preferred priorities of every kind, as the bucket's numbers have it.
fn thresholds(bucket: &BucketSpec) -> ThresholdSpec {
    let ladder = |reserve: u32| {
        let abatement = 1 + bucket.burst - reserve;
        let onset = abatement + bucket.burst / 4;
        let discard = onset + bucket.burst / 2;
        let discard = (reserve > 0 || bucket.burst & 1 == 0).then_some(discard);
        Thresholds { abatement, onset, discard, harder: u8::from(reserve > bucket.burst / 2) }
    };
    let severities = if bucket.burst >= 16 { 3 } else { 1 };
    let throttle = match bucket.burst % 3 {
        0 => Throttle::Share([30, 60, 90].map(|p| Share::new(f64::from(p) / 1e2)).to_vec()),
        1 => Throttle::Gap([3, 50, 700].map(Nanos::from_millis).to_vec()),
        _ => Throttle::None,
    };
    let throttle = match throttle {
        Throttle::Share(shares) => Throttle::Share(shares[..severities].to_vec()),
        Throttle::Gap(gaps) => Throttle::Gap(gaps[..severities].to_vec()),
        Throttle::None => Throttle::None,
    };
    let rises = if severities == 3 && throttle != Throttle::None {
        vec![bucket.burst / 8, bucket.burst / 4]
    } else {
        Vec::new()
    };
    ThresholdSpec {
        priorities: bucket.reserve.map(ladder),
        rises,
        throttle,
        preferred: [0, 1, 3, 7][bucket.burst as usize % 4],
        action: bucket.action,
    }
}

/// The same bucket as a gap.
fn gap(bucket: &BucketSpec) -> GapSpec {
    let tau_milli = bucket.reserve.map(|reserve| (bucket.burst - 1 - reserve) * 1000);
    GapSpec { tau_milli, ..GapSpec::new(bucket.rate, bucket.action) }
}

/// A gap, and who comes too early waits up to a few gaps.
fn waiting_gap(bucket: &BucketSpec) -> Params {
    let wait_max = Nanos::from_secs_f64((5.0 / bucket.rate.get()).min(60.0));
    Params::gap(&GapSpec { wait_max, ..gap(bucket) }).expect("a wait of few gaps")
}

/// A share of 0.01 to 0.99.
fn percent(bucket: &BucketSpec) -> PercentSpec {
    let share = Share::new(f64::from(1 + bucket.burst % 99) / 1e2);
    PercentSpec { period: Nanos::SECOND, ..PercentSpec::new(share, bucket.action) }
}

/// One more than every policy: a gap whose host program can wait.
fn all_and_waiting(bucket: &BucketSpec) -> Vec<Params> {
    let mut params = all_params(bucket);
    params.push(waiting_gap(bucket));
    params
}

fn bucket() -> impl Strategy<Value = BucketSpec> {
    let rate = prop_oneof![1_u64..2_000, 1_000_u64..10_000_000, Just(1_000_000_000_000)];
    (rate, 1_u32..300, any::<bool>(), prop::array::uniform8(0_u32..40)).prop_map(
        |(rate_milli, burst, reject, mut steps)| {
            // rising, and below the burst
            let mut sum = 0;
            for step in &mut steps {
                sum = (sum + *step).min(burst - 1);
                *step = sum;
            }
            BucketSpec {
                rate: Rate::per_second(rate_milli as f64 / 1e3),
                burst,
                action: if reject { Action::Reject } else { Action::Drop },
                reserve: steps,
            }
        },
    )
}

/// Times that advance, stand still, leap ahead and go back.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![
        Just(0_i64),
        0..5_000_000_i64,
        0..3_000_000_000_i64,
        Just(500_000_000_000),
        -2_000_000_i64..0,
    ];
    let level = prop_oneof![Just(0_u32), 0..20_u32, 0..1000_u32, any::<u32>()];
    prop::collection::vec((step, 0_u64..50, any::<u32>(), 0_u8..8, level), 1..400).prop_map(
        |rows| {
            let mut now = 10 * SECOND;
            rows.into_iter()
                .map(|(step, key, random, priority, level)| {
                    now = now.saturating_add_signed(step);
                    let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    Event { now_ns: now, key, random, priority, level, ..Event::default() }
                })
                .collect()
        },
    )
}

/// Admitted, later, not at all: what a higher priority gets is never more than what a lower one gets.
fn rank(kind: VerdictKind) -> u8 {
    match kind {
        VerdictKind::Admit => 0,
        VerdictKind::Delay => 1,
        VerdictKind::Drop | VerdictKind::Reject => 2,
    }
}

fn run(params: &Params, state: &mut State, events: &[Event]) -> Vec<Verdict> {
    events.iter().map(|event| admit(params, state, event)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Same events, same verdicts, same memory; and a verdict always has a known reason.
    #[test]
    fn verdicts_repeat(bucket in bucket(), events in events()) {
        for params in all_and_waiting(&bucket) {
            let (mut one, mut two) = (State::fresh(), State::fresh());
            let verdicts = run(&params, &mut one, &events);
            prop_assert_eq!(&verdicts, &run(&params, &mut two, &events));
            prop_assert_eq!(one, two);
            prop_assert!(verdicts.iter().all(|v| v.reason != tidegate_policy::Reason::None));
        }
    }

    /// Every event is admitted, refused or delayed, and the counts that people see say the same; a
    /// delay is told exactly when there is one.
    #[test]
    fn admitted_refused_and_delayed_are_what_was_offered(bucket in bucket(), events in events()) {
        for params in all_and_waiting(&bucket) {
            let mut state = State::fresh();
            let verdicts = run(&params, &mut state, &events);
            let mut told = [0_u64; 3];
            for verdict in &verdicts {
                told[[0, 2, 1][usize::from(rank(verdict.kind))]] += 1;
                let delays = verdict.kind == VerdictKind::Delay;
                prop_assert_eq!(delays, verdict.delay > Nanos::ZERO, "{:?}", verdict);
            }
            prop_assert_eq!(told.iter().sum::<u64>(), events.len() as u64);
            prop_assert_eq!(counted(&params, &state), told, "{:?}", params.policy());
        }
    }

    /// Zero is fresh: a state of zeros admits up to the burst that its priority may use, at once. A
    /// policy that limits by a level admits as many while the level is low.
    #[test]
    fn zero_is_fresh(bucket in bucket(), now in 0_u64..u64::MAX / 4, priority in 0_u8..8) {
        for params in that_limit(all_and_waiting(&bucket), &[Limits::Rate, Limits::Level]) {
            let mut state = State::from_bytes(&vec![0; State::fresh().as_bytes().len()]).unwrap();
            let usable = bucket.burst - bucket.reserve[usize::from(priority)];
            for n in 0..usable {
                let key = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let event = Event { now_ns: now, key, random: n, priority, ..Event::default() };
                prop_assert_eq!(admit(&params, &mut state, &event).kind, VerdictKind::Admit);
            }
        }
    }

    /// Arrivals that conform to rate and burst are never refused. Where the level is what is limited:
    /// those that come while it is below every threshold of theirs.
    #[test]
    fn conforming_arrivals_are_never_refused(
        rate in 1_u64..5_000,
        burst in 1_u32..50,
        bursts in prop::collection::vec(1_u32..50, 1..60),
    ) {
        let bucket = BucketSpec::new(Rate::per_second(rate as f64), burst, Action::Reject);
        for params in that_limit(all_and_waiting(&bucket), &[Limits::Rate, Limits::Level]) {
            let mut state = State::fresh();
            let mut now = SECOND;
            let mut key = 0_u64;
            for size in &bursts {
                let size = (*size).min(burst);
                // what this burst takes is refilled before the next
                now += (u64::from(size) * SECOND).div_ceil(rate);
                for _ in 0..size {
                    key += 1;
                    let event = Event::at(now);
                    let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    // the abatement is one above the burst
                    let event = Event { key, level: burst, ..event };
                    let kind = admit(&params, &mut state, &event).kind;
                    prop_assert_eq!(kind, VerdictKind::Admit, "{:?}", params.policy());
                }
            }
        }
    }

    /// Never more than burst + rate * time is admitted, over any events whose time does not go back.
    #[test]
    fn admissions_are_bounded(bucket in bucket(), events in events()) {
        let mut events = events;
        events.sort_by_key(|event| event.now_ns);
        for params in that_limit(all_and_waiting(&bucket), &[Limits::Rate]) {
            let mut state = State::fresh();
            let verdicts = run(&params, &mut state, &events);
            // who waits is admitted when the wait is over
            let ends = |verdict: &Verdict, event: &Event| match verdict.kind {
                VerdictKind::Admit | VerdictKind::Delay => Some(event.now_ns + verdict.delay.0),
                _ => None,
            };
            let times = verdicts.iter().zip(&events).filter_map(|(v, event)| ends(v, event));
            let admitted = times.clone().count();
            let last_ns = times.max().unwrap_or(0).max(events[events.len() - 1].now_ns);
            let time_s = (last_ns - events[0].now_ns) as f64 / 1e9;
            let bound = f64::from(bucket.burst) + bucket.rate.get() * time_s + 1e-3;
            prop_assert!(admitted as f64 <= bound.max(1.0), "{admitted} above {bound}");
        }
    }

    /// In one state, refusing a priority implies refusing all below it, and who is made to wait waits
    /// no longer than those below. The same random bits and the same level for all.
    #[test]
    fn refusals_respect_priority(
        bucket in bucket(),
        events in events(),
        probe in any::<u64>(),
        random in any::<u32>(),
        level in 0_u32..600,
    ) {
        for params in all_and_waiting(&bucket) {
            let mut state = State::fresh();
            run(&params, &mut state, &events);
            let last = events[events.len() - 1];
            let mut above = (0, Nanos::ZERO);
            for priority in 0..8 {
                let event = Event { key: probe, priority, random, level, ..last };
                let verdict = admit(&params, &mut state.clone(), &event);
                let this = (rank(verdict.kind), verdict.delay);
                prop_assert!(this.0 >= above.0, "{:?}: {priority} overtook", params.policy());
                prop_assert!(this.0 != above.0 || this.1 >= above.1, "{priority} waits less");
                above = this;
            }
        }
    }

    /// The same of the buckets of a gateway. Limits that are about some priorities only refuse none above
    /// them.
    #[test]
    fn limits_from_a_priority_on_refuse_none_above(
        bucket in bucket(),
        events in events(),
        from in 0_u8..8,
        random in any::<u32>(),
    ) {
        let how = Circumstances::default();
        for params in all_and_waiting(&bucket) {
            let Some(limits) = RequestLimits::new(params) else { continue };
            let mut chain = RequestChain::default();
            chain.set(limits.from_priority(from));
            for event in &events {
                let (verdict, _) = chain.decide_by_priority(event, 0, &how);
                prop_assert!(event.priority >= from || verdict.kind == VerdictKind::Admit);
            }
            let last = events[events.len() - 1];
            let mut above = 0;
            for priority in 0..8 {
                let event = Event { priority, random, ..last };
                let (verdict, _) = chain.clone().decide_by_priority(&event, 0, &how);
                let this = rank(verdict.kind);
                prop_assert!(this >= above, "{:?}: {priority} overtook", params.policy());
                above = this;
            }
        }
    }

    /// An idle time as long as the bucket needs makes it full again, whatever was before: neither
    /// a clock that leaps nor one that goes back leaves a trace for longer. Where the level is what is
    /// limited, it has fallen by then.
    #[test]
    fn silence_heals(bucket in bucket(), events in events()) {
        for params in that_limit(all_and_waiting(&bucket), &[Limits::Rate, Limits::Level]) {
            let mut state = State::fresh();
            run(&params, &mut state, &events);
            let latest = events.iter().map(|event| event.now_ns).max().unwrap_or(0);
            // and those who wait have been let in
            let full_s = f64::from(bucket.burst + 5) / bucket.rate.get() + 1.0;
            let now_ns = latest.saturating_add(Nanos::from_secs_f64(full_s).0);
            // a key that no event had
            let event = Event { now_ns, key: 77 << 32, random: 0, priority: 7, ..Event::default() };
            let kind = admit(&params, &mut state, &event).kind;
            prop_assert_eq!(kind, VerdictKind::Admit, "{:?}", params.policy());
        }
    }
}

/// No parameters, no limit: a table that was never filled lets everything pass.
#[test]
fn zeroed_parameters_admit_everything() {
    for policy in Policy::ALL {
        let params = Params::no_limit(*policy);
        let mut state = State::fresh();
        for n in 0..10_000 {
            assert_eq!(admit(&params, &mut state, &Event::at(n)).kind, VerdictKind::Admit);
        }
    }
}

/// Requests of two priorities, evenly in time, and so many a second each. What is refused of each after the
/// first ten seconds, as shares.
fn refused_of(limits: RequestLimits, per_second: [u64; 2]) -> [f64; 2] {
    let mut chain = RequestChain::default();
    chain.set(limits);
    let mut times: Vec<(u64, usize)> = Vec::new();
    for (class, rate) in per_second.into_iter().enumerate() {
        times.extend((0..40 * rate).map(|n| (SECOND + n * SECOND / rate, class)));
    }
    times.sort_unstable();
    let (mut seed, mut came, mut refused) = (7_u64, [0_u32; 2], [0_u32; 2]);
    for (now_ns, class) in times {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (random, priority) = ((seed >> 32) as u32, [0, 7][class]);
        let event = Event { now_ns, random, priority, ..Event::default() };
        let (verdict, _) = chain.decide_by_priority(&event, 0, &Circumstances::default());
        if now_ns >= 11 * SECOND {
            came[class] += 1;
            refused[class] += u32::from(rank(verdict.kind) == 2);
        }
    }
    [0, 1].map(|class| f64::from(refused[class]) / f64::from(came[class]))
}

/// 100 requests a second fit. Who is above is refused only once all below are.
#[test]
fn a_lower_priority_is_refused_whole_before_any_of_a_higher_one() {
    let rate = Rate::per_second(100.0);
    for ([high, low], expected) in [([60_u64, 120], [0.0, 0.667]), ([150, 50], [0.333, 1.0])] {
        let share = 1.0 - rate.get() / (high + low) as f64;
        let mut bucket = BucketSpec::new(rate, 20, Action::Reject);
        bucket.reserve = [0, 0, 0, 0, 0, 0, 0, 10];
        let percent = PercentSpec {
            period: Nanos::SECOND,
            ..PercentSpec::new(Share::new(share), Action::Reject)
        };
        let params =
            [Params::token_bucket(&bucket), Params::gap(&gap(&bucket)), Params::percent(&percent)];
        for params in params {
            let limits = RequestLimits::new(params.unwrap()).unwrap();
            let found = refused_of(limits, [high, low]);
            let near = |at: usize| (found[at] - expected[at]).abs() < 0.03;
            assert!(
                near(0) && near(1),
                "{:?}: {found:?}, not {expected:?}",
                limits.params().policy()
            );
            let whole = |class: usize| [0.0, 1.0].contains(&expected[class]);
            for class in (0..2).filter(|class| whole(*class)) {
                assert_eq!(found[class], expected[class], "{:?}", limits.params().policy());
            }
            // The same limit, about the lower priority alone: it bears all, and the higher one nothing.
            let found = refused_of(limits.from_priority(7), [high, low]);
            assert_eq!(found[0], 0.0);
            assert!((found[1] - expected[1]).abs() < 0.03, "{found:?}");
        }
    }
}

/// A clock that was wrong by a year and is set right does not stop admissions for a year.
#[test]
fn a_clock_that_was_far_ahead_does_no_lasting_harm() {
    let bucket = BucketSpec::new(Rate::per_second(10.0), 1, Action::Drop);
    for params in that_limit(all_and_waiting(&bucket), &[Limits::Rate, Limits::Level]) {
        let mut state = State::fresh();
        let year = 365 * 24 * 3600 * SECOND;
        let _ = admit(&params, &mut state, &Event::at(year + SECOND));
        let _ = admit(&params, &mut state, &Event::at(SECOND));
        let verdict = admit(&params, &mut state, &Event::at(2 * SECOND));
        assert_eq!(verdict.kind, VerdictKind::Admit, "{:?}", params.policy());
    }
}

/// Every value that memory can hold is survived: a state of garbage gives a verdict in bounded
/// work, without undefined behaviour that the sanitizer or the process would notice.
#[test]
fn a_corrupt_state_is_survived() {
    let bucket = BucketSpec::new(Rate::per_second(10.0), 5, Action::Reject);
    for byte in [0xff_u8, 0x80, 0x7f, 0x01] {
        for params in all_and_waiting(&bucket) {
            let size = State::fresh().as_bytes().len();
            let mut state = State::from_bytes(&vec![byte; size]).unwrap();
            for n in 0..1000 {
                let _ = admit(&params, &mut state, &Event::at(n * SECOND / 10));
            }
        }
    }
}
