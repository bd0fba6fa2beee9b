// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The token bucket: its arithmetic to the token, both sides of every bound.

use tidegate_policy::{Action, BucketSpec, Event, Params, ParamsError, Reason, State, VerdictKind};
use tidegate_units::Rate;

const MS: u64 = 1_000_000;

fn admitted(params: &Params, state: &mut State, now_ns: u64, tries: u64) -> u64 {
    (0..tries)
        .filter(|_| {
            let verdict = tidegate_policy::admit(params, state, &Event::at(now_ns));
            verdict.kind == VerdictKind::Admit
        })
        .count() as u64
}

/// A token is there exactly when it has been refilled, not a nanosecond before.
#[test]
fn refills_to_the_nanosecond() {
    let bucket = BucketSpec::new(Rate::per_second(1_000.0), 3, Action::Drop);
    let params = Params::token_bucket(&bucket).unwrap();
    let mut state = State::fresh();
    let start = 5 * MS;
    assert_eq!(admitted(&params, &mut state, start, 10), 3);
    assert_eq!(admitted(&params, &mut state, start + MS - 1, 10), 0);
    assert_eq!(admitted(&params, &mut state, start + MS, 10), 1);
    assert_eq!(admitted(&params, &mut state, start + 3 * MS, 10), 2);
    assert_eq!(admitted(&params, &mut state, start + 1_000 * MS, 10), 3);
}

/// Rates that no power of two divides lose nothing: 7 per second over 1000 s, looked at every 13 ms,
/// are 7000 tokens and the initial burst.
#[test]
fn uneven_rates_lose_nothing() {
    let bucket = BucketSpec::new(Rate::per_second(7.0), 1, Action::Reject);
    let params = Params::token_bucket(&bucket).unwrap();
    let mut state = State::fresh();
    let mut sum = 0;
    // a look every millisecond never misses more than one; depth 1 loses what is not taken in time
    for ms in 0..=1_000_000_u64 {
        sum += admitted(&params, &mut state, 1_000 * MS + ms * MS, 1);
    }
    // each token waits for the next look, at most 1 ms of 142.86: 7 * 143 / 142.857
    assert!((6_990..=7_001).contains(&sum), "{sum}");
}

/// The action and the reason are those of the parameters.
#[test]
fn refuses_as_told() {
    for (action, kind) in [(Action::Drop, VerdictKind::Drop), (Action::Reject, VerdictKind::Reject)]
    {
        let params =
            Params::token_bucket(&BucketSpec::new(Rate::per_second(1.0), 1, action)).unwrap();
        let mut state = State::fresh();
        let first = tidegate_policy::admit(&params, &mut state, &Event::at(1));
        assert_eq!((first.kind, first.reason), (VerdictKind::Admit, Reason::Token));
        let second = tidegate_policy::admit(&params, &mut state, &Event::at(1));
        assert_eq!((second.kind, second.reason), (kind, Reason::Rate));
    }
}

/// Trunk reservation: the lowest priority leaves what is reserved, and is told so.
#[test]
fn leaves_the_reserve_to_higher_priorities() {
    let mut bucket = BucketSpec::new(Rate::per_second(1.0), 10, Action::Reject);
    bucket.reserve = [0, 0, 0, 0, 0, 0, 0, 4];
    let params = Params::token_bucket(&bucket).unwrap();
    let mut state = State::fresh();
    let low = Event { priority: 7, ..Event::at(1) };
    for _ in 0..6 {
        assert_eq!(tidegate_policy::admit(&params, &mut state, &low).kind, VerdictKind::Admit);
    }
    assert_eq!(tidegate_policy::admit(&params, &mut state, &low).reason, Reason::Reserved);
    assert_eq!(admitted(&params, &mut state, 1, 10), 4);
    assert_eq!(tidegate_policy::admit(&params, &mut state, &low).reason, Reason::Rate);
}

/// A bucket that shrinks while in use owes at most its new depth.
#[test]
fn shrinking_leaves_no_debt() {
    let large = Params::token_bucket(&BucketSpec::new(Rate::per_second(10.0), 1_000, Action::Drop));
    let small = Params::token_bucket(&BucketSpec::new(Rate::per_second(10.0), 2, Action::Drop));
    let mut state = State::fresh();
    assert_eq!(admitted(&large.unwrap(), &mut state, 1_000 * MS, 2_000), 1_000);
    // full debt of the small bucket: 2 tokens, 0.2 s
    assert_eq!(admitted(&small.unwrap(), &mut state, 1_200 * MS, 10), 2);
}

/// What is out of range is refused where it is said, with the range.
#[test]
fn parameters_out_of_range_are_errors() {
    let good = BucketSpec::new(Rate::per_second(1.0), 1, Action::Drop);
    let wrong = [
        (BucketSpec { rate: Rate::ZERO, ..good.clone() }, "rate"),
        (BucketSpec { rate: Rate::per_second(1.1e9), ..good.clone() }, "rate"),
        (BucketSpec { burst: 0, ..good.clone() }, "burst"),
        (BucketSpec { burst: 1_000_001, ..good.clone() }, "burst"),
        (BucketSpec { reserve: [1, 0, 0, 0, 0, 0, 0, 0], ..good.clone() }, "reserve"),
        (BucketSpec { reserve: [0, 0, 0, 0, 0, 0, 0, 1], ..good.clone() }, "reserve"),
    ];
    for (spec, word) in wrong {
        let error: ParamsError = Params::token_bucket(&spec).unwrap_err();
        assert!(error.to_string().starts_with(word), "{error}");
    }
    for burst in [1, 1_000_000] {
        assert!(Params::token_bucket(&BucketSpec { burst, ..good.clone() }).is_ok());
    }
    let fast = BucketSpec { rate: Rate::per_second(1e9), ..good };
    assert!(Params::token_bucket(&fast).is_ok());
}
