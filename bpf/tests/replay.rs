// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel decides as the native build does: for every policy more than a million events, bit
//! for bit the same verdicts and the same state, whichever compiler made the kernel's code.
//!
//! `TIDEGATE_SEED=… cargo test -p tidegate-bpf --test replay` repeats or varies a run,
//! `TIDEGATE_REPLAY_EVENTS` lengthens it.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::events::{Events, params};
use support::object::{COMPILER_DEFAULT, COMPILERS, require_root};
use support::policies::Policies;
use support::random::{from_env, seed};
use support::replayed::{REPLAY_BATCH, Replayed, VERDICT};
use tidegate_policy::{Event, Params, Policy, State, Verdict, admit};
use zerocopy::IntoBytes;

/// Events per policy with the product's compiler.
const EVENTS: usize = 1_200_000;
/// Events per policy with each other compiler.
const EVENTS_OTHER: usize = 300_000;
/// Longest batch with one set of parameters; the lengths cycle up to it.
const BATCHES: [usize; 5] = [1, 300, 2_500, REPLAY_BATCH, 7_000];

/// The kernel's side of the replay of policies.
struct Kernel(Replayed);

impl Kernel {
    fn new(compiler: &str) -> Self {
        Self(Replayed::compile(compiler))
    }

    fn evaluate(&self, params: &Params, events: &[Event]) -> Vec<u8> {
        self.0.write("params", params.as_bytes());
        self.0.evaluate("replay", events)
    }

    fn state(&self) -> Vec<u8> {
        self.0.read("state")
    }

    fn forget(&self) {
        self.0.write("state", State::fresh().as_bytes());
    }
}

fn as_bytes(v: Verdict) -> [u8; VERDICT] {
    let delay_us = (v.delay.0 / 1000) as u32;
    let [a, b, c, d] = delay_us.to_ne_bytes();
    [v.kind as u8, v.reason as u8, u8::from(v.repeated), 0, a, b, c, d]
}

/// What a series of events covered, so that a one-sided generator does not pass for a proof.
#[derive(Default)]
struct Seen {
    kinds: [usize; 4],
    repeated: usize,
    reasons: std::collections::BTreeSet<&'static str>,
}

fn replay(kernel: &Kernel, policy: Policy, total: usize) -> Seen {
    let seed = seed();
    let mut series = Events::new(policy, seed);
    let mut state = State::fresh();
    let mut seen = Seen::default();
    let mut done = 0;
    kernel.forget();
    for length in BATCHES.iter().cycle() {
        let (params, events) = series.batch(*length);
        let theirs = kernel.evaluate(&params, &events);
        for (at, event) in events.iter().enumerate() {
            let ours = admit(&params, &mut state, event);
            assert_eq!(
                as_bytes(ours),
                theirs[at * VERDICT..][..VERDICT],
                "event {} of {} (TIDEGATE_SEED={seed}): native {ours:?}, {event:?}, {params:?}",
                done + at,
                policy.name(),
            );
            seen.kinds[ours.kind as usize] += 1;
            seen.repeated += usize::from(ours.repeated);
            seen.reasons.insert(ours.reason.name());
        }
        done += events.len();
        let same = kernel.state() == state.as_bytes();
        assert!(
            same,
            "{}: states differ after {done} events (TIDEGATE_SEED={seed})",
            policy.name()
        );
        if done >= total {
            break;
        }
    }
    seen
}

fn replay_all(compiler: &str, total: usize) {
    let kernel = Kernel::new(compiler);
    for policy in Policy::ALL {
        let seen = replay(&kernel, *policy, total);
        println!("{compiler} {}: {:?} {:?}", policy.name(), seen.kinds, seen.reasons);
        assert!(
            seen.kinds[..3].iter().all(|count| *count > total / 50),
            "{}: admit, drop and reject must all occur often, saw {:?}",
            policy.name(),
            seen.kinds
        );
        let waits = *policy == Policy::Gap;
        assert_eq!(seen.kinds[3] > 0, waits, "{}: {:?}", policy.name(), seen.kinds);
        let knows_repetitions =
            [Policy::FreshFirst, Policy::AbacusExact, Policy::AbacusLearned].contains(policy);
        assert_eq!(seen.repeated > 0, knows_repetitions, "{}", policy.name());
    }
}

#[test]
fn kernel_and_native_give_the_same_verdicts_and_the_same_state() {
    require_root();
    let total = from_env("TIDEGATE_REPLAY_EVENTS").map_or(EVENTS, |n| n as usize);
    replay_all(COMPILER_DEFAULT, total);
}

#[test]
fn whichever_compiler_made_the_kernels_code() {
    require_root();
    for compiler in COMPILERS.iter().filter(|name| **name != COMPILER_DEFAULT) {
        replay_all(compiler, EVENTS_OTHER);
    }
}

/// What the C decides is what its description says, as another hand read it.
#[test]
fn native_and_the_reference_give_the_same_verdicts() {
    let seed = seed();
    let total = from_env("TIDEGATE_REPLAY_EVENTS").map_or(EVENTS, |n| n as usize);
    for policy in Policy::ALL {
        let mut series = Events::new(*policy, seed ^ 2);
        let (mut state, mut reference) = (State::fresh(), Policies::new(*policy));
        let mut done = 0;
        for length in BATCHES.iter().cycle() {
            let (spec, events) = series.batch_of(*length);
            let params = params(*policy, &spec);
            for event in &events {
                let v = admit(&params, &mut state, event);
                let said = reference.admit(&spec, event);
                let who = format!("event {done} of {} (TIDEGATE_SEED={seed})", policy.name());
                assert_eq!((v.kind, v.reason, v.repeated), said, "{who}: {event:?}, {spec:?}");
                done += 1;
            }
            if done >= total {
                break;
            }
        }
    }
}

/// The comparison can fail: a state that differs in one bit is found out.
#[test]
fn a_difference_is_found() {
    require_root();
    let kernel = Kernel::new(COMPILER_DEFAULT);
    let mut series = Events::new(Policy::TokenBucket, 1);
    let (params, events) = series.batch(100);
    kernel.forget();
    let mut state = State::fresh();
    let _ = kernel.evaluate(&params, &events);
    for event in &events[1..] {
        let _ = admit(&params, &mut state, event);
    }
    assert!(kernel.state() != state.as_bytes(), "one event fewer, and the same state");
}
