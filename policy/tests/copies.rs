// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Laws of a bucket that several CPUs copy (`chain/copy.h`): who is refused without the lock would have
//! been refused under it, and nobody else.

#![allow(clippy::unwrap_used, reason = "a test may")]

use proptest::prelude::*;
use tidegate_policy::{
    Action, Ask, BucketSpec, Chain, Circumstances, Event, Limits, Params, State, Verdict,
    VerdictKind, admit,
};
use tidegate_units::Rate;

const SECOND: u64 = 1_000_000_000;
/// Makes a policy's parameters of a bucket.
type Make = fn(&BucketSpec) -> Params;
/// The policies whose bucket is copied.
const COPIED: [Make; 2] =
    [|bucket| Params::token_bucket(bucket).unwrap(), |bucket| Params::fresh_first(bucket).unwrap()];

fn bucket() -> impl Strategy<Value = BucketSpec> {
    let rate = prop_oneof![1_u64..2_000, 1_000_u64..10_000_000, Just(1_000_000_000_000)];
    (rate, 1_u32..60, any::<bool>(), 0_u32..9).prop_map(|(rate_milli, burst, reject, step)| {
        let action = if reject { Action::Reject } else { Action::Drop };
        let mut spec = BucketSpec::new(Rate::per_second(rate_milli as f64 / 1e3), burst, action);
        spec.reserve = std::array::from_fn(|i| (i as u32 * step).min(burst - 1));
        spec
    })
}

/// Time steps that stand still, advance, leap, and go back.
fn steps(back_ns: i64) -> impl Strategy<Value = Vec<(i64, u64, u8, usize)>> {
    let step = prop_oneof![
        4 => Just(0_i64),
        4 => 0..5_000_000_i64,
        2 => 0..3_000_000_000_i64,
        1 => -back_ns..=0,
    ];
    prop::collection::vec((step, 0_u64..40, 0_u8..8, 0_usize..64), 1..300)
}

fn events(steps: &[(i64, u64, u8, usize)]) -> impl Iterator<Item = (usize, Event)> {
    let mut now = 100 * SECOND;
    steps.iter().map(move |(step, key, priority, cpu)| {
        now = now.saturating_add_signed(*step);
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (*cpu, Event { now_ns: now, key, priority: *priority, ..Event::default() })
    })
}

fn decide(chain: &mut Chain, cpu: usize, event: Event) -> Verdict {
    let ask = Ask { event, ..Ask::default() };
    chain.decide_on(cpu, &ask, &Circumstances::default(), |_| Ok(())).verdict
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// On one CPU every verdict and every count is that of the policy alone, bit for bit: also where
    /// rate, depth or reserves change on the way, and where the clock goes back.
    #[test]
    fn one_cpu_decides_as_the_policy_alone(
        buckets in prop::collection::vec(bucket(), 1..4),
        steps in steps(3_000_000_000),
    ) {
        for make in COPIED {
            let mut chain = Chain::default();
            let mut state = State::fresh();
            for (at, (_, event)) in events(&steps).enumerate() {
                let params = make(&buckets[at * buckets.len() / steps.len()]);
                chain.set(Limits::new(params));
                let verdict = decide(&mut chain, 0, event);
                prop_assert_eq!(verdict, admit(&params, &mut state, &event), "event {}", at);
            }
            prop_assert_eq!(chain.counted(), counts(&state));
        }
    }

    /// On any number of CPUs the same are admitted as under one lock, while time does not go back.
    /// So conforming arrivals are never refused, and the bound on admissions is that of one bucket.
    #[test]
    fn several_cpus_admit_as_one(bucket in bucket(), steps in steps(0), cpus in 2_usize..9) {
        for make in COPIED {
            let params = make(&bucket);
            let mut chain = Chain::with_cpus(Limits::new(params), cpus);
            let mut state = State::fresh();
            let mut told = [0_u64; 2];
            for (at, (cpu, event)) in events(&steps).enumerate() {
                let verdict = decide(&mut chain, cpu, event);
                let alone = admit(&params, &mut state, &event);
                // which of two reasons to refuse depends on tokens that other CPUs took meanwhile
                prop_assert_eq!(verdict.kind, alone.kind, "event {}", at);
                prop_assert_eq!(verdict.repeated, alone.repeated, "event {}", at);
                told[usize::from(verdict.kind != VerdictKind::Admit)] += 1;
            }
            let [admitted, refused, ..] = chain.counted();
            prop_assert_eq!([admitted, refused], told, "the counts of all CPUs");
        }
    }

    /// In one state, on one CPU, refusing a priority implies refusing all below it.
    #[test]
    fn refusals_respect_priority(bucket in bucket(), steps in steps(0), cpu in 0_usize..4) {
        for make in COPIED {
            let mut chain = Chain::with_cpus(Limits::new(make(&bucket)), 4);
            let mut last = Event::default();
            for (cpu, event) in events(&steps) {
                decide(&mut chain, cpu, event);
                last = event;
            }
            let mut refused = false;
            for priority in 0..8 {
                let event = Event { key: 77 << 32, priority, ..last };
                let admitted = decide(&mut chain.clone(), cpu, event).kind == VerdictKind::Admit;
                prop_assert!(!refused || !admitted, "priority {} overtook", priority);
                refused = !admitted;
            }
        }
    }
}

/// The first words of a state: what its policy counts.
fn counts(state: &State) -> [u64; 4] {
    std::array::from_fn(|at| {
        u64::from_ne_bytes(state.as_bytes()[8 * at..8 * at + 8].try_into().unwrap())
    })
}
