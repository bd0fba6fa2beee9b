// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router's Abacus filter decides in the kernel as in the simulator: bit for bit the same verdicts and the same state,
//! whichever compiler made the kernel's code. `TIDEGATE_SEED=…` repeats or varies a run.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::events::Events;
use support::object::{COMPILERS, require_root};
use support::random::{Dice, seed};
use support::replayed::{Replayed, VERDICT};
use tidegate_policy::{
    AbacusExactSpec, Action, BucketSpec, CrowdAction, CrowdFilter, Event, Policy, VerdictKind,
};
use tidegate_units::{Nanos, Rate};

/// Events in one run.
const BATCH: usize = 4096;
/// Runs with each compiler, each with another rate.
const RUNS: usize = 60;
const ACTIONS: [CrowdAction; 3] = [CrowdAction::Drop, CrowdAction::Reset, CrowdAction::Abacus];

fn spec(dice: &mut Dice) -> AbacusExactSpec {
    let rate = Rate::per_second(*dice.pick(&[1.0, 37.5, 200.0, 2000.0]));
    let burst = *dice.pick(&[1, 2, 20, 500]);
    AbacusExactSpec {
        bucket: BucketSpec::new(rate, burst, Action::Drop),
        schedule: vec![1, 3, 7],
        window: 7,
        period: Nanos::SECOND,
    }
}

/// What was said by action, so that a one-sided series does not pass for a proof.
fn replay(compiler: &str) -> [[usize; 4]; 3] {
    let (kernel, seed) = (Replayed::compile(compiler), seed());
    let mut dice = Dice::new(seed);
    let mut series = Events::new(Policy::AbacusExact, seed ^ 5);
    let mut ours = CrowdFilter::new(&spec(&mut dice)).unwrap();
    kernel.write("filter", ours.as_bytes());
    let mut seen = [[0; 4]; 3];
    for run in 0..RUNS {
        let spec = spec(&mut dice);
        ours.set(&spec).unwrap();
        kernel.write("filter_params", &spec.filter().unwrap());
        let (_, events) = series.batch(BATCH);
        let events = events.into_iter().map(|event| {
            let priority = u8::from(dice.one_in(3));
            let action = *dice.pick(&ACTIONS);
            (action, Event { priority, level: action.code().into(), ..event })
        });
        let (actions, events): (Vec<CrowdAction>, Vec<Event>) = events.unzip();
        let theirs = kernel.evaluate("replay_filter", &events);
        for (at, (action, event)) in actions.iter().zip(&events).enumerate() {
            let verdict = ours.admit(*action, event);
            let said = [verdict.kind as u8, verdict.reason as u8, u8::from(verdict.repeated)];
            let what = format!("{compiler}, run {run}, event {at} (TIDEGATE_SEED={seed})");
            assert_eq!(said, theirs[at * VERDICT..][..3], "{what}: {action:?} {event:?} {spec:?}");
            seen[usize::from(action.code())][verdict.kind as usize] += 1;
        }
        let same = kernel.read("filter") == ours.as_bytes();
        assert!(same, "{compiler}, run {run}: states differ (TIDEGATE_SEED={seed})");
    }
    seen
}

#[test]
fn kernel_and_native_filters_agree_whichever_compiler_made_the_kernels_code() {
    require_root();
    for compiler in COMPILERS {
        let seen = replay(compiler);
        println!("{compiler}: {seen:?}");
        let often = |action: CrowdAction, kind: VerdictKind| {
            seen[usize::from(action.code())][kind as usize] > RUNS * BATCH / 200
        };
        for (action, kinds) in [
            (CrowdAction::Drop, &[VerdictKind::Admit, VerdictKind::Drop][..]),
            (CrowdAction::Reset, &[VerdictKind::Admit, VerdictKind::Reject]),
            (CrowdAction::Abacus, &[VerdictKind::Admit, VerdictKind::Drop, VerdictKind::Reject]),
        ] {
            assert!(kinds.iter().all(|kind| often(action, *kind)), "{action:?}: {seen:?}");
        }
        assert_eq!(seen[0][VerdictKind::Reject as usize], 0);
        assert_eq!(seen[1][VerdictKind::Drop as usize], 0);
    }
}
