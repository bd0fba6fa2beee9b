// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The least rate: both sides of its interval, a clock that stands, goes back or was wrong, and the law
//! that no course of time lets in more than one an interval.

use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_policy::MinRate;
use tidegate_units::{Nanos, Rate};

const SECOND: u64 = 1_000_000_000;

fn read(at: &AtomicU64) -> u64 {
    at.load(Ordering::Relaxed)
}

/// One in 2 s.
fn half() -> MinRate {
    MinRate::per(Rate::per_second(0.5))
}

#[test]
fn without_one_nobody_is_admitted_and_nothing_is_written() {
    for state in [0, 1, u64::MAX] {
        for now in [0, 1, SECOND, u64::MAX] {
            let at = AtomicU64::new(state);
            assert!(!MinRate::default().admits(&at, Nanos(now)));
            assert_eq!(at.into_inner(), state);
        }
    }
}

#[test]
fn one_an_interval_is_admitted() {
    let at = AtomicU64::new(0);
    let course = [
        (2 * SECOND - 1, false),
        (2 * SECOND, true),
        (2 * SECOND, false),
        (3 * SECOND, false),
        (4 * SECOND - 1, false),
        (4 * SECOND, true),
        (100 * SECOND, true),
        (100 * SECOND + 1, false),
        (102 * SECOND, true),
    ];
    for (step, (now, admitted)) in course.into_iter().enumerate() {
        assert_eq!(half().admits(&at, Nanos(now)), admitted, "step {step}");
    }
}

#[test]
fn a_clock_that_goes_back_waits_and_one_that_was_wrong_begins_anew() {
    let (at, back) = (AtomicU64::new(100 * SECOND), SECOND);
    assert!(!half().admits(&at, Nanos(100 * SECOND - back)));
    assert_eq!(read(&at), 100 * SECOND, "as far back as CPUs differ: nothing changes");
    assert!(!half().admits(&at, Nanos(100 * SECOND - back - 1)), "nobody more for it");
    assert_eq!(read(&at), 99 * SECOND - 1, "and nobody waits for the old time");
    assert!(!half().admits(&at, Nanos(101 * SECOND - 2)));
    assert!(half().admits(&at, Nanos(101 * SECOND - 1)));
    let end = AtomicU64::new(u64::MAX);
    assert!(!half().admits(&end, Nanos(0)) && read(&end) == 0, "wrapped");
    assert!(half().admits(&end, Nanos(u64::MAX)));
}

#[test]
fn any_rate_is_an_interval() {
    let us = |rate| MinRate::per(Rate::per_second(rate)).interval_us();
    let rows = [
        (1.0, 1_000_000),
        (0.1, 10_000_000),
        (3.0, 333_334),
        (1e6, 1),
        (1e9, 1),
        (1e-9, u32::MAX),
        (0.0, u32::MAX),
    ];
    for (rate, interval) in rows {
        assert_eq!(us(rate), interval, "{rate}/s");
    }
}

/// Times that stand still, advance, leap, and go back by little and by much.
fn times() -> impl Strategy<Value = Vec<u64>> {
    let step = prop_oneof![
        Just(0_i64),
        0..3_000_000_i64,
        0..5_000_000_000_i64,
        Just(5_000_000_000_000),
        -1_000_000_000..0_i64,
        -9_000_000_000_000..0_i64,
    ];
    (any::<u64>(), prop::collection::vec(step, 1..300)).prop_map(|(start, steps)| {
        let mut now = start >> 1;
        let step = |step: i64| {
            now = now.saturating_add_signed(step);
            now
        };
        steps.into_iter().map(step).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Between two who are admitted the clock has gone forward by an interval, all in all, however it
    /// went back meanwhile.
    #[test]
    fn never_more_than_one_an_interval(times in times(), micros in 1..4_000_000_u32) {
        let rate = MinRate::per(Rate::per_second(1e6 / f64::from(micros)));
        let interval = u64::from(rate.interval_us()) * 1000;
        let (at, mut before) = (AtomicU64::new(times[0]), times[0]);
        let mut forward = 0_u64;
        for now in times {
            forward = forward.saturating_add(now.saturating_sub(before));
            before = now;
            if rate.admits(&at, Nanos(now)) {
                prop_assert!(forward >= interval, "{forward} of {interval}");
                forward = 0;
            }
        }
    }

    /// Whoever asks again and again is admitted, at the latest an interval and what a clock may differ
    /// later, whatever was in the state.
    #[test]
    fn nobody_is_kept_out_for_longer(state in any::<u64>(), start in any::<u64>(), micros in 1..4_000_000_u32) {
        let rate = MinRate::per(Rate::per_second(1e6 / f64::from(micros)));
        let interval = u64::from(rate.interval_us()) * 1000;
        let (at, start) = (AtomicU64::new(state), start >> 1);
        let end = start + interval + SECOND;
        let step = (interval / 7).max(1);
        let mut asked = (0..).map(|n| start + n * step).take_while(|now| *now < end + step);
        prop_assert!(asked.any(|now| rate.admits(&at, Nanos(now))));
    }
}
