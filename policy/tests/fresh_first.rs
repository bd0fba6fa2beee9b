// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fresh first: who has been refused before stands behind who comes for the first time.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_policy::{Action, BucketSpec, Event, Params, Reason, State, Verdict, VerdictKind};
use tidegate_units::Rate;

const SECOND: u64 = 1_000_000_000;

fn key(n: u64) -> u64 {
    // splitmix64: what a seeded hash gives
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn ask(params: &Params, state: &mut State, now_ns: u64, client: u64) -> Verdict {
    let event = Event { key: key(client), ..Event::at(now_ns) };
    tidegate_policy::admit(params, state, &event)
}

fn params(rate: f64, burst: u32) -> Params {
    Params::fresh_first(&BucketSpec::new(Rate::per_second(rate), burst, Action::Drop)).unwrap()
}

/// A refused client that returns is recognised, and passes over the tokens kept for first attempts.
#[test]
fn the_repeated_wait_for_what_is_left() {
    let params = params(1.0, 4);
    let mut state = State::fresh();
    for client in 0..4 {
        assert_eq!(ask(&params, &mut state, SECOND, client).kind, VerdictKind::Admit);
    }
    let refused = ask(&params, &mut state, SECOND, 100);
    assert_eq!(
        (refused.kind, refused.reason, refused.repeated),
        (VerdictKind::Drop, Reason::Rate, false)
    );
    // two tokens later the bucket holds 2, which are for first attempts
    let again = ask(&params, &mut state, 3 * SECOND, 100);
    assert_eq!(
        (again.kind, again.reason, again.repeated),
        (VerdictKind::Drop, Reason::Repeated, true)
    );
    assert_eq!(ask(&params, &mut state, 3 * SECOND, 101).kind, VerdictKind::Admit);
    // when demand is low the bucket fills, and the repeated are served
    let served = ask(&params, &mut state, 6 * SECOND, 100);
    assert_eq!((served.kind, served.repeated), (VerdictKind::Admit, true));
}

/// At three times the rate, with every refused client coming back each second for five seconds,
/// nearly all tokens go to first attempts; a plain bucket gives most of them to repetitions.
#[test]
fn under_overload_first_attempts_get_the_tokens() {
    let share_of_first = |params: &Params| {
        let mut state = State::fresh();
        let (mut first, mut all) = (0_u32, 0_u32);
        let mut waiting: Vec<Vec<u64>> = vec![Vec::new(); 120];
        let mut client = 0;
        for second in 0..100_u64 {
            let returning = std::mem::take(&mut waiting[second as usize]);
            let mut arrivals: Vec<(u64, u64)> =
                returning.iter().map(|c| (key(*c) % SECOND, *c)).collect();
            for _ in 0..300 {
                client += 1;
                arrivals.push((key(client) % SECOND, client | 1 << 40));
            }
            arrivals.sort_unstable();
            for (offset, who) in arrivals {
                let id = who & ((1 << 40) - 1);
                let attempt = who >> 41;
                let now = (second + 10) * SECOND + offset;
                if ask(params, &mut state, now, id).kind == VerdictKind::Admit {
                    all += 1;
                    first += u32::from(who >> 40 == 1);
                } else if attempt < 5 {
                    waiting[second as usize + 1].push(id | (attempt + 1) << 41);
                }
            }
        }
        f64::from(first) / f64::from(all)
    };
    let spec = BucketSpec::new(Rate::per_second(100.0), 10, Action::Drop);
    let fresh = share_of_first(&Params::fresh_first(&spec).unwrap());
    let plain = share_of_first(&Params::token_bucket(&spec).unwrap());
    assert!(fresh > 0.97, "fresh first: {fresh}");
    assert!(plain < 0.5, "plain bucket: {plain}");
}

/// The latest 8 of a set are remembered, the ninth pushes out the oldest; seeing one again keeps it.
#[test]
fn a_full_set_forgets_its_oldest() {
    let params = params(0.001, 1);
    let mut state = State::fresh();
    // the same set (low 15 bits), different fingerprints (high 16 bits)
    let member = |n: u64| Event { key: (n + 1) << 48 | 5, ..Event::at(SECOND) };
    let mut seen = |n| tidegate_policy::admit(&params, &mut state, &member(n)).repeated;
    assert!(!seen(99), "takes the only token");
    for n in 0..8 {
        assert!(!seen(n), "client {n} is new");
    }
    assert!(seen(0), "remembered, and now the latest");
    assert!(!seen(8), "new: pushes out the oldest, client 1");
    assert!(seen(0), "kept because it came again");
    assert!(!seen(1), "forgotten");
}

/// A million spoofed sources: the table forgets, chance hits stay below 8 in 65536 or so, and a
/// first attempt is hardly ever taken for a repetition.
#[test]
fn a_flood_of_sources_is_harmless() {
    let params = params(1.0, 1);
    let mut state = State::fresh();
    let flood = 1_000_000;
    let mistaken = (0..flood).filter(|n| ask(&params, &mut state, SECOND, *n).repeated).count();
    assert!((mistaken as f64) < flood as f64 * 8.0 / 65536.0 * 1.5, "{mistaken} mistaken");
    assert!(mistaken > 0, "with full sets chance hits must be seen: the test measures something");
}

/// With a bucket of one token nothing is kept for first attempts: a repeated SYN can be served.
#[test]
fn the_smallest_bucket_serves_the_repeated_too() {
    let params = params(1.0, 1);
    let mut state = State::fresh();
    assert_eq!(ask(&params, &mut state, SECOND, 1).kind, VerdictKind::Admit);
    assert_eq!(ask(&params, &mut state, SECOND, 2).kind, VerdictKind::Drop);
    assert_eq!(ask(&params, &mut state, 3 * SECOND, 2).kind, VerdictKind::Admit);
}
