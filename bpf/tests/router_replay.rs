// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router's Abacus filter decides in the kernel as in the simulator: bit for bit the same verdicts and the same state,
//! whichever compiler made the kernel's code. `TIDEGATE_SEED=…` repeats or varies a run.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::events::Events;
use support::object::{COMPILERS, Loaded, require_root};
use support::random::{Dice, seed};
use tidegate_policy::{
    AbacusExactSpec, Action, BucketSpec, CrowdAction, CrowdFilter, Event, Policy, VerdictKind,
};
use tidegate_units::{Nanos, Rate};

const SOURCE: &str = "bpf/tests/router_replay.bpf.c";
/// Events in one run of the program; `REPLAY_BATCH` in its source.
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

fn bytes(events: &[(CrowdAction, Event)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BATCH * size_of::<Event>());
    for (action, e) in events {
        bytes.extend_from_slice(&e.now_ns.to_ne_bytes());
        bytes.extend_from_slice(&e.key.to_ne_bytes());
        bytes.extend_from_slice(&e.random.to_ne_bytes());
        bytes.extend_from_slice(&[e.priority, 0, 0, 0]);
        bytes.extend_from_slice(&u32::from(action.code()).to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
    }
    bytes.resize(BATCH * size_of::<Event>(), 0);
    bytes
}

/// What was said by action, so that a one-sided series does not pass for a proof.
fn replay(compiler: &str) -> [[usize; 4]; 3] {
    let (kernel, seed) = (Loaded::compile(SOURCE, compiler), seed());
    let mut dice = Dice::new(seed);
    let mut series = Events::new(Policy::AbacusExact, seed ^ 5);
    let mut ours = CrowdFilter::new(&spec(&mut dice)).unwrap();
    kernel.write("filter", ours.as_bytes());
    let mut seen = [[0; 4]; 3];
    for run in 0..RUNS {
        let spec = spec(&mut dice);
        ours.set(&spec).unwrap();
        kernel.write("params", &spec.filter().unwrap());
        let (_, events) = series.batch(BATCH);
        let events = events.into_iter().map(|event| {
            let priority = u8::from(dice.one_in(3));
            (*dice.pick(&ACTIONS), Event { priority, ..event })
        });
        let events: Vec<_> = events.collect();
        kernel.write("events", &bytes(&events));
        let mut args = [(events.len() as u32).to_ne_bytes(), [0; 4]].concat();
        assert_eq!(kernel.run("replay", &mut args), 0);
        assert_eq!(args[4..], args[..4], "all were evaluated");
        let theirs = kernel.read("verdicts");
        for (at, (action, event)) in events.iter().enumerate() {
            let verdict = ours.admit(*action, event);
            let said = [verdict.kind as u8, verdict.reason as u8, u8::from(verdict.repeated)];
            let what = format!("{compiler}, run {run}, event {at} (TIDEGATE_SEED={seed})");
            assert_eq!(said, theirs[at * 8..][..3], "{what}: {action:?} {event:?} {spec:?}");
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
