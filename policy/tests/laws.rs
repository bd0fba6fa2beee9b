// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Laws that every policy of policies.def keeps, whatever its parameters and whatever arrives.

use proptest::prelude::*;
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, Event, Params, Policy,
    State, Verdict, VerdictKind, admit,
};
use tidegate_units::{Nanos, Rate};

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
        })
        .map(|params| params.expect("the strategies give valid buckets"))
        .collect();
    assert_eq!(params.len(), Policy::ALL.len());
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
    prop::collection::vec((step, 0_u64..50, any::<u32>(), 0_u8..8), 1..400).prop_map(|rows| {
        let mut now = 10 * SECOND;
        rows.into_iter()
            .map(|(step, key, random, priority)| {
                now = now.saturating_add_signed(step);
                let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Event { now_ns: now, key, random, priority, ..Event::default() }
            })
            .collect()
    })
}

fn run(params: &Params, state: &mut State, events: &[Event]) -> Vec<Verdict> {
    events.iter().map(|event| admit(params, state, event)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Same events, same verdicts, same memory; and a verdict always has a known reason.
    #[test]
    fn verdicts_repeat(bucket in bucket(), events in events()) {
        for params in all_params(&bucket) {
            let (mut one, mut two) = (State::fresh(), State::fresh());
            let verdicts = run(&params, &mut one, &events);
            prop_assert_eq!(&verdicts, &run(&params, &mut two, &events));
            prop_assert_eq!(one, two);
            prop_assert!(verdicts.iter().all(|v| v.reason != tidegate_policy::Reason::None));
        }
    }

    /// Zero is fresh: a state of zeros admits up to the burst that its priority may use, at once.
    #[test]
    fn zero_is_fresh(bucket in bucket(), now in 0_u64..u64::MAX / 4, priority in 0_u8..8) {
        for params in all_params(&bucket) {
            let mut state = State::from_bytes(&vec![0; State::fresh().as_bytes().len()]).unwrap();
            let usable = bucket.burst - bucket.reserve[usize::from(priority)];
            for n in 0..usable {
                let key = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let event = Event { now_ns: now, key, random: n, priority, ..Event::default() };
                prop_assert_eq!(admit(&params, &mut state, &event).kind, VerdictKind::Admit);
            }
        }
    }

    /// Arrivals that conform to rate and burst are never refused.
    #[test]
    fn conforming_arrivals_are_never_refused(
        rate in 1_u64..5_000,
        burst in 1_u32..50,
        bursts in prop::collection::vec(1_u32..50, 1..60),
    ) {
        let bucket = BucketSpec::new(Rate::per_second(rate as f64), burst, Action::Reject);
        for params in all_params(&bucket) {
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
                    let event = Event { key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15), ..event };
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
        for params in all_params(&bucket) {
            let mut state = State::fresh();
            let verdicts = run(&params, &mut state, &events);
            let admitted = verdicts.iter().filter(|v| v.kind == VerdictKind::Admit).count();
            let time_s = (events[events.len() - 1].now_ns - events[0].now_ns) as f64 / 1e9;
            let bound = f64::from(bucket.burst) + bucket.rate.get() * time_s + 1e-3;
            prop_assert!(admitted as f64 <= bound.max(1.0), "{admitted} above {bound}");
        }
    }

    /// In one state, refusing a priority implies refusing all below it.
    #[test]
    fn refusals_respect_priority(bucket in bucket(), events in events(), probe in any::<u64>()) {
        for params in all_params(&bucket) {
            let mut state = State::fresh();
            run(&params, &mut state, &events);
            let last = events[events.len() - 1];
            let mut refused = false;
            for priority in 0..8 {
                let event = Event { key: probe, priority, ..last };
                let kind = admit(&params, &mut state.clone(), &event).kind;
                prop_assert!(!refused || kind != VerdictKind::Admit, "priority {priority} overtook");
                refused = kind != VerdictKind::Admit;
            }
        }
    }

    /// An idle time as long as the bucket needs makes it full again, whatever was before: neither
    /// a clock that leaps nor one that goes back leaves a trace for longer.
    #[test]
    fn silence_heals(bucket in bucket(), events in events()) {
        for params in all_params(&bucket) {
            let mut state = State::fresh();
            run(&params, &mut state, &events);
            let latest = events.iter().map(|event| event.now_ns).max().unwrap_or(0);
            let full_s = f64::from(bucket.burst) / bucket.rate.get() + 1.0;
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

/// A clock that was wrong by a year and is set right does not stop admissions for a year.
#[test]
fn a_clock_that_was_far_ahead_does_no_lasting_harm() {
    let bucket = BucketSpec::new(Rate::per_second(10.0), 1, Action::Drop);
    for params in all_params(&bucket) {
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
        for params in all_params(&bucket) {
            let size = State::fresh().as_bytes().len();
            let mut state = State::from_bytes(&vec![byte; size]).unwrap();
            for n in 0..1000 {
                let _ = admit(&params, &mut state, &Event::at(n * SECOND / 10));
            }
        }
    }
}
