// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Laws of the limit on datagrams (`chain/datagram.h`), beside a bucket that is counted in whole numbers here.

#![allow(clippy::unwrap_used, reason = "a test may")]

use proptest::prelude::*;
use tidegate_policy::{
    DATAGRAMS_MERGED_MAX, DatagramGate, DatagramLimit, Reason, TOKEN, VerdictKind,
};
use tidegate_units::{Nanos, Rate};

const SECOND: u64 = 1_000_000_000;

/// The same by another hand: what may still pass, in picotokens; below zero it is in debt.
struct Reference {
    left: i128,
    depth: i128,
    milli: i128,
    at: u64,
}

impl Reference {
    fn new(milli: u64, burst: u32) -> Self {
        let depth = i128::from(burst) * i128::from(TOKEN);
        Self { left: depth, depth, milli: milli.into(), at: 0 }
    }

    fn admits(&mut self, now: u64, merged: u32) -> bool {
        let gained = i128::from(now - self.at) * self.milli;
        self.at = now;
        self.left = (self.left + gained).min(self.depth);
        let whole = i128::from(TOKEN);
        let admits = self.left >= whole;
        if admits {
            self.left -= whole * i128::from(merged.clamp(1, DATAGRAMS_MERGED_MAX));
        }
        admits
    }
}

fn gate(milli: u64, burst: u32, cpus: usize) -> DatagramGate {
    let limit = DatagramLimit::new(Rate::per_second(milli as f64 / 1e3), burst).unwrap();
    DatagramGate::new(limit, cpus)
}

/// Steps of time, datagrams merged in one packet, and CPUs.
fn packets() -> impl Strategy<Value = Vec<(u64, u32, usize)>> {
    let step = prop_oneof![4 => Just(0_u64), 4 => 0..5_000_000_u64, 1 => 0..3 * SECOND];
    let merged = prop_oneof![6 => Just(1_u32), 2 => 0_u32..=DATAGRAMS_MERGED_MAX, 1 => Just(5_000)];
    prop::collection::vec((step, merged, 0_usize..64), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The same datagrams pass as by the reference, on one CPU and on several.
    #[test]
    fn verdicts_are_those_of_one_bucket(
        milli in prop_oneof![1_u64..2_000, 1_000_u64..10_000_000],
        burst in 1_u32..60, cpus in 1_usize..9, packets in packets(),
    ) {
        let mut gate = gate(milli, burst, cpus);
        let mut reference = Reference::new(milli, burst);
        let mut now = 100 * SECOND;
        for (at, (step, merged, cpu)) in packets.into_iter().enumerate() {
            now += step;
            let verdict = gate.admit(cpu, Nanos(now), merged);
            let admits = reference.admits(now, merged);
            prop_assert_eq!(verdict.kind == VerdictKind::Admit, admits, "packet {}", at);
            let reason = if admits { Reason::Token } else { Reason::Rate };
            prop_assert_eq!(verdict.reason, reason);
        }
    }

    /// Over any time no more datagrams pass than burst and rate allow, and one merged packet.
    #[test]
    fn merging_gets_nobody_more(
        rate in 1_u64..2_000, burst in 1_u32..60, packets in packets(),
    ) {
        let mut gate = gate(1_000 * rate, burst, 1);
        let (begin, mut now, mut passed) = (SECOND, SECOND, 0_u64);
        for (step, merged, _) in packets {
            now += step;
            let merged = merged.clamp(1, DATAGRAMS_MERGED_MAX);
            if gate.admit(0, Nanos(now), merged).kind == VerdictKind::Admit {
                passed += u64::from(merged);
            }
            let most = f64::from(burst) + rate as f64 * (now - begin) as f64 / SECOND as f64;
            prop_assert!(passed as f64 <= most + f64::from(DATAGRAMS_MERGED_MAX) + 1e-6);
        }
    }

    /// Datagrams that conform to rate and burst pass.
    #[test]
    fn conforming_datagrams_pass(
        rate in 1_u64..5_000, sizes in prop::collection::vec(1_u32..50, 1..40), cpus in 1_usize..5,
    ) {
        let mut gate = gate(1_000 * rate, 50, cpus);
        let mut now = SECOND;
        for size in sizes {
            now += (u64::from(size) * SECOND).div_ceil(rate);
            for n in 0..size {
                let verdict = gate.admit(n as usize, Nanos(now), 1);
                prop_assert_eq!(verdict.kind, VerdictKind::Admit);
            }
        }
    }

    /// A clock that stands still or goes back by less than a second does no harm: no token comes back.
    #[test]
    fn time_that_goes_back_gives_no_tokens(
        steps in prop::collection::vec((0_u64..900_000_000, 0_u64..900_000_000), 1..200),
    ) {
        let mut gate = gate(1_000, 5, 1);
        let (begin, mut latest, mut passed) = (100 * SECOND, 100 * SECOND, 0_u64);
        for (forward, back) in steps {
            latest += forward;
            let verdict = gate.admit(0, Nanos(latest - back), 1);
            passed += u64::from(verdict.kind == VerdictKind::Admit);
            prop_assert!(passed <= 5 + (latest - begin) / SECOND + 1, "{}", passed);
        }
    }
}

#[test]
fn without_a_rate_everything_passes() {
    let mut gate = DatagramGate::new(DatagramLimit::default(), 1);
    for _ in 0..1_000 {
        let verdict = gate.admit(0, Nanos(1), 128);
        assert_eq!((verdict.kind, verdict.reason), (VerdictKind::Admit, Reason::NoLimit));
    }
    gate.set(DatagramLimit::new(Rate::per_second(1.0), 1).unwrap());
    assert_eq!(gate.admit(0, Nanos(2), 1).kind, VerdictKind::Admit);
    assert_eq!(gate.admit(0, Nanos(2), 1).kind, VerdictKind::Drop);
}

#[test]
fn what_no_bucket_can_be_is_no_limit() {
    for (rate, burst) in [(0.0, 5), (1e10, 5), (5.0, 0), (5.0, 1_000_001)] {
        assert!(DatagramLimit::new(Rate::per_second(rate), burst).is_err(), "{rate} {burst}");
    }
    let limit = DatagramLimit::new(Rate::per_second(1e9), 1_000_000).unwrap();
    let mut other = DatagramLimit::default();
    assert!(limit.limited() && !other.limited());
    other.set_shadow(true);
    other.set_canary(9);
    let joined = limit.with_mode_of(&other);
    assert_eq!((joined.canary(), joined.limited()), (9, true));
    other.set_shadow(false);
    assert_ne!(limit.with_mode_of(&other), joined);
}
