// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit in flight: its levels at both sides of each bound, and against a second opinion in exact
//! numbers, for any limits and any course of the gauges.

use proptest::prelude::*;
use tidegate_policy::InFlight;

/// A fresh limit of 10 that is 4 once it has refused, until 2 are left.
fn two_levels() -> (InFlight, u32) {
    (InFlight::up_to(10).tight((4, 2)), 0)
}

#[test]
fn zero_limits_nothing() {
    let mut tight = 0;
    assert!(!InFlight::default().full(&mut tight, u64::MAX, u64::MAX));
    assert_eq!(tight, 0);
    assert_eq!(InFlight::up_to(0), InFlight::up_to(1), "a limit of none would admit nobody");
}

#[test]
fn once_refused_the_limit_is_tighter_until_few_are_left() {
    let (limit, mut tight) = two_levels();
    let mut full = |waiting| limit.full(&mut tight, waiting, 0);
    let course = [
        (9, false),
        (4, false),
        (10, true),
        (9, true),
        (4, true),
        (3, false),
        (4, true),
        (3, false),
        (2, false),
        (9, false),
        (10, true),
    ];
    for (step, (waiting, refused)) in course.into_iter().enumerate() {
        assert_eq!(full(waiting), refused, "step {step}: {waiting} wait");
    }
}

#[test]
fn one_level_gives_every_free_place_away_and_forgets() {
    let (two, mut tight) = two_levels();
    assert!(two.full(&mut tight, 10, 0) && tight == 1);
    for low in [0, 10, 11] {
        let one = InFlight::up_to(10).tight((low, 2));
        let mut of = tight;
        assert!(!one.full(&mut of, 9, 0), "{low}");
        assert_eq!(of, 0, "{low}");
        assert!(one.full(&mut of, 10, 0));
        assert!(!one.full(&mut of, 9, 0), "{low}");
    }
}

#[test]
fn silent_connections_count_by_their_share_and_close_nothing_alone() {
    let full = |limit: InFlight, waiting, silent| limit.full(&mut 0, waiting, silent);
    let (limit, _) = two_levels();
    let half = limit.counting(100, 512);
    assert!(!full(half, 9, 101), "half of one is none");
    assert!(full(half, 9, 102));
    assert!(!full(half, 9, 99), "fewer than usual are no place more");
    assert!(!full(limit, 9, 10_000), "a share of zero");
    let all = limit.counting(0, 1024);
    assert!(!full(all, 6, u64::MAX), "at most three: less than the lower level");
    assert!(full(all, 7, u64::MAX));
    let narrow = InFlight::up_to(10).tight((8, 2)).counting(0, 1024);
    assert!(!full(narrow, 7, u64::MAX), "at most the two between the levels");
    assert!(full(narrow, 8, u64::MAX));
    for limit in [all, narrow] {
        assert!(!limit.full(&mut 1, 0, u64::MAX), "nor the lower one: {limit:?}");
    }
    assert_eq!(limit.counting(0, 5000), all, "no more than all of them");
}

/// The rule in words of any size.
fn expected(limit: &InFlight, tight: bool, waiting: u64, silent: u64) -> (bool, bool) {
    let wide = |n: u32| u128::from(n);
    let beyond = u128::from(silent).saturating_sub(wide(limit.silent));
    let most = wide(limit.max).saturating_sub(wide(limit.low));
    let most = if limit.low > 0 { most.min(wide(limit.low) - 1) } else { most };
    let count = u128::from(waiting) + (beyond * wide(limit.asks) / 1024).min(most);
    let two = limit.low > 0 && limit.low < limit.max;
    let tight = two && tight && count > wide(limit.rest);
    let full = limit.max > 0 && count >= wide(if tight { limit.low } else { limit.max });
    (full, two && (tight || full))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_course_is_evaluated_as_the_rule_says(
        (max, low, rest) in (0..40_u32, 0..40_u32, 0..40_u32),
        (usual, asks) in (0..40_u32, 0..=1024_u32),
        course in prop::collection::vec((0..50_u64, 0..100_u64), 1..200),
    ) {
        let limit = InFlight { max, low, rest, silent: usual, asks };
        let (mut state, mut tight) = (0, false);
        for (waiting, silent) in course {
            let full;
            (full, tight) = expected(&limit, tight, waiting, silent);
            prop_assert_eq!(limit.full(&mut state, waiting, silent), full);
            prop_assert_eq!(state == 1, tight);
        }
    }

    /// While nobody waits the limit is never full, whatever came before.
    #[test]
    fn silent_connections_alone_never_close_it(
        words in prop::array::uniform5(any::<u32>()),
        (tight, silent) in (0..2_u32, any::<u64>()),
    ) {
        let [max, low, rest, usual, asks] = words;
        let limit = InFlight { max, low, rest, silent: usual, asks: asks % 1025 };
        prop_assert!(max == 0 || low == 0 || !limit.full(&mut tight.clone(), 0, silent >> 2));
    }

    /// Any words at all: no overflow, and more in flight never opens what fewer close.
    #[test]
    fn more_in_flight_is_never_admitted_where_less_is_refused(
        words in prop::array::uniform5(any::<u32>()),
        (tight, waiting, silent) in (0..2_u32, any::<u64>(), any::<u64>()),
        (more, quieter) in (any::<u32>(), any::<u32>()),
    ) {
        let [max, low, rest, usual, asks] = words;
        let limit = InFlight { max, low, rest: rest % low.max(1), silent: usual, asks: asks % 1025 };
        let waiting = waiting >> 2;
        let silent = silent >> 2;
        let less = limit.full(&mut tight.clone(), waiting, silent);
        let after = limit.full(
            &mut tight.clone(),
            waiting + u64::from(more),
            silent + u64::from(quieter),
        );
        prop_assert!(!less || after);
    }
}
