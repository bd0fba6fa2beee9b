// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Abacus filter as published: the worked example, the borrowing of the paper's figure 7, the
//! ring, the average, and what the generalisation to any schedule must keep.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_policy::{
    AbacusSpec, Action, BucketSpec, Event, Params, ParamsError, Reason, State, VerdictKind, admit,
};
use tidegate_units::{Nanos, Rate};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 100 * SECOND;

/// Offsets in `struct tg_state`: 32 bytes of counts, then `struct tg_abacus_state`.
const PERIODS_AT: usize = 32 + 40;
const NOW_AT: usize = 32 + 32;
const LAMBDA_AT: usize = 32 + 24;

fn word(state: &State, at: usize) -> u32 {
    u32::from_ne_bytes(state.as_bytes()[at..at + 4].try_into().unwrap())
}

/// (used in thousandths, B) of the period that lies `ahead` of the current one.
fn period(state: &State, ahead: u32) -> (u32, u32) {
    let index = ((word(state, NOW_AT) + ahead) & 127) as usize;
    let at = PERIODS_AT + index * 8;
    (word(state, at), word(state, at + 4))
}

/// r_t = 20 per second and lambda = 0: every period takes 20 (W_a = 20); the bucket holds one token.
fn spec(window: u16) -> AbacusSpec {
    let bucket = BucketSpec::new(Rate::per_second(20.0), 1, Action::Drop);
    AbacusSpec::classic(bucket, window)
}

/// The filter with an empty stage one, at time START.
fn emptied(spec: &AbacusSpec) -> (Params, State) {
    let params = Params::abacus(spec).unwrap();
    let mut state = State::fresh();
    assert_eq!(admit(&params, &mut state, &Event::at(START)).kind, VerdictKind::Admit);
    (params, state)
}

fn count(params: &Params, state: &mut State, now: u64, n: u32, kind: VerdictKind) -> u32 {
    (0..n).filter(|_| admit(params, state, &Event::at(now)).kind == kind).count() as u32
}

/// As many steps as there may be, all in the window and none with room: rejected, and nobody is
/// expected to come again.
#[test]
fn a_full_schedule_without_room_leaves_no_mark() {
    let full = AbacusSpec { schedule: (1..=12).collect(), ..spec(45) };
    let (params, mut state) = emptied(&full);
    assert_eq!(count(&params, &mut state, START, 240, VerdictKind::Drop), 240);
    let marks = |state: &State| (1..=12).map(|ahead| period(state, ahead).1).collect::<Vec<u32>>();
    let before = marks(&state);
    assert_eq!(count(&params, &mut state, START, 5, VerdictKind::Reject), 5);
    assert_eq!(marks(&state), before);
}

/// The worked example: W_a = 20 everywhere, 100 SYNs at once. With S = 45, 80 are dropped and 20
/// rejected, and B[3], B[9], B[21] are 60, 40, 20.
#[test]
fn worked_example() {
    let (params, mut state) = emptied(&spec(45));
    let verdicts: Vec<_> =
        (0..100).map(|_| admit(&params, &mut state, &Event::at(START))).collect();
    assert!(
        verdicts[..80].iter().all(|v| v.reason == Reason::Borrowed && v.kind == VerdictKind::Drop)
    );
    assert!(
        verdicts[80..].iter().all(|v| v.reason == Reason::NoRoom && v.kind == VerdictKind::Reject)
    );
    assert_eq!(
        [3, 9, 21, 45].map(|i| period(&state, i)),
        [(20_000, 60), (20_000, 40), (20_000, 20), (20_000, 0)]
    );
}

/// The same for every window: S = 0, 3, 9, 21, 44, 45 drop 0, 20, 40, 60, 60, 80.
#[test]
fn the_window_bounds_the_borrowing() {
    let dropped = [0, 2, 3, 9, 21, 44, 45].map(|window| {
        let (params, mut state) = emptied(&spec(window));
        count(&params, &mut state, START, 100, VerdictKind::Drop)
    });
    assert_eq!(dropped, [0, 0, 20, 40, 60, 60, 80]);
}

/// Figure 7, step by step, in the period in which the first copies return: the first B[0] excess
/// SYNs are dropped without borrowing, the next ones borrow from the periods then ahead.
#[test]
fn figure_7_drops_b0_first_and_then_borrows() {
    let (params, mut state) = emptied(&spec(45));
    assert_eq!(count(&params, &mut state, START, 100, VerdictKind::Drop), 80);
    let returns = START + 3 * SECOND;
    // one token has come (depth 1); then B[0] = 60
    assert_eq!(admit(&params, &mut state, &Event::at(returns)).reason, Reason::Token);
    assert_eq!(period(&state, 0), (20_000, 60));
    for n in 0..60 {
        let verdict = admit(&params, &mut state, &Event::at(returns));
        assert_eq!(verdict.reason, Reason::ExpectedAgain, "SYN {n}");
    }
    assert_eq!(period(&state, 0), (20_000, 0));
    // the 61st borrows: 3 ahead of now is a period that nobody has used
    let borrowed = period(&state, 3);
    assert_eq!(admit(&params, &mut state, &Event::at(returns)).reason, Reason::Borrowed);
    assert_eq!(period(&state, 3).0, borrowed.0 + 1_000);
}

/// A chain that walks past a period counts itself there, once in each, and takes one token only.
#[test]
fn a_chain_marks_every_period_it_walks_past() {
    let (params, mut state) = emptied(&spec(45));
    assert_eq!(count(&params, &mut state, START, 41, VerdictKind::Drop), 41);
    assert_eq!([3, 9, 21].map(|i| period(&state, i)), [(20_000, 21), (20_000, 1), (1_000, 0)]);
}

/// What is left of B[0] is dropped with its period.
#[test]
fn b0_ends_with_its_period() {
    let (params, mut state) = emptied(&spec(45));
    assert_eq!(count(&params, &mut state, START, 100, VerdictKind::Drop), 80);
    let after = START + 4 * SECOND;
    let _ = admit(&params, &mut state, &Event::at(after));
    assert_eq!(period(&state, 0).1, 0);
    assert_eq!(period(&state, 5), (20_000, 40), "B[9] is now 5 ahead");
}

/// A period that comes into the window gets (r_t - lambda) * T0, and lambda is the EWMA with weight
/// 1/8 a period over all SYNs.
#[test]
fn new_periods_get_what_lambda_leaves() {
    let (params, mut state) = emptied(&spec(45));
    // 79 more in the first second: 80 arrivals
    let _ = count(&params, &mut state, START, 79, VerdictKind::Drop);
    let _ = admit(&params, &mut state, &Event::at(START + SECOND));
    assert_eq!(word(&state, LAMBDA_AT), 80_000 / 8);
    assert_eq!(period(&state, 45), (10_000, 0), "room for 20 less 10 of new arrivals");
    // silence: lambda falls by an eighth a period
    let _ = admit(&params, &mut state, &Event::at(START + 2 * SECOND));
    let expected = 10_000 - (10_000 - 1_000) / 8;
    assert_eq!(word(&state, LAMBDA_AT), expected);
    assert_eq!(period(&state, 45), (expected, 0));
}

/// The first estimate is an option: with lambda = r_t there is no room, all excess is rejected.
#[test]
fn lambda_start_fills_the_ring() {
    let spec = AbacusSpec { lambda_start: Rate::per_second(20.0), ..spec(45) };
    let (params, mut state) = emptied(&spec);
    assert_eq!(count(&params, &mut state, START, 10, VerdictKind::Reject), 10);
    let spec = AbacusSpec { lambda_start: Rate::per_second(15.0), ..spec };
    let (params, mut state) = emptied(&spec);
    assert_eq!(count(&params, &mut state, START, 100, VerdictKind::Drop), 4 * 5);
}

/// Any schedule: that of today's Linux borrows in the seconds in which its copies come.
#[test]
fn the_schedule_is_a_table() {
    let linux = AbacusSpec { schedule: vec![1, 2, 3, 4, 5, 7, 11, 19, 35, 67], ..spec(70) };
    let (params, mut state) = emptied(&linux);
    assert_eq!(count(&params, &mut state, START, 300, VerdictKind::Drop), 10 * 20);
    assert_eq!([1, 2, 35, 67].map(|i| period(&state, i).1), [180, 160, 20, 0]);
    assert_eq!(period(&state, 6), (0, 0), "nobody comes in second 6");
}

/// Other periods: at T0 = 0.1 s the same SYNs borrow tenths of a second's room.
#[test]
fn the_period_is_a_parameter() {
    let fine = AbacusSpec { period: Nanos::from_millis(100), schedule: vec![30, 90], ..spec(100) };
    let (params, mut state) = emptied(&fine);
    assert_eq!(count(&params, &mut state, START, 100, VerdictKind::Drop), 2 * 2);
}

/// A silence longer than the ring leaves a ring as good as new, at bounded work.
#[test]
fn long_silence_starts_over() {
    let (params, mut state) = emptied(&spec(45));
    assert_eq!(count(&params, &mut state, START, 100, VerdictKind::Drop), 80);
    let later = START + 1_000_000 * SECOND;
    assert_eq!(admit(&params, &mut state, &Event::at(later)).reason, Reason::Token);
    assert_eq!(word(&state, LAMBDA_AT), 0);
    assert_eq!(count(&params, &mut state, later, 100, VerdictKind::Drop), 80);
}

/// Both sides of every bound of the parameters.
#[test]
fn parameters_out_of_range_are_errors() {
    let good = spec(45);
    let wrong = [
        AbacusSpec { schedule: vec![], ..good.clone() },
        AbacusSpec { schedule: vec![0, 3], ..good.clone() },
        AbacusSpec { schedule: vec![3, 3], ..good.clone() },
        AbacusSpec { schedule: (1..=13).collect(), ..good.clone() },
        AbacusSpec { window: 128, ..good.clone() },
        AbacusSpec { period: Nanos::from_micros(999), ..good.clone() },
        AbacusSpec { period: Nanos::from_secs(3601), ..good.clone() },
        AbacusSpec { ewma_shift: 16, ..good.clone() },
    ];
    for spec in wrong {
        let error: ParamsError = Params::abacus(&spec).unwrap_err();
        assert!(!error.to_string().is_empty(), "{spec:?}");
    }
    let limits = AbacusSpec {
        schedule: (1..=12).collect(),
        window: 127,
        period: Nanos::from_millis(1),
        ewma_shift: 15,
        ..good
    };
    assert!(Params::abacus(&limits).is_ok());
}
