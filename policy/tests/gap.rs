// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gap: RFC 7415's leaky bucket as its reference algorithm has it, the gaps of the paper, and who
//! waits how long.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_policy::{
    Action, BucketSpec, Event, GapSpec, Params, Reason, State, Verdict, VerdictKind, admit,
};
use tidegate_units::{Nanos, Rate};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn gap(spec: &GapSpec) -> Params {
    Params::gap(spec).unwrap()
}

fn ask(params: &Params, state: &mut State, now: u64, priority: u8) -> Verdict {
    admit(params, state, &Event { priority, ..Event::at(now) })
}

fn admitted(params: &Params, state: &mut State, now: u64, priority: u8, tries: u32) -> u32 {
    let admits = |_: &u32| ask(params, state, now, priority).kind == VerdictKind::Admit;
    (0..tries).filter(admits).count() as u32
}

/// RFC 7415, section 3.5.1, in its own words: T, TAU, X, LCT. Time in nanoseconds.
struct Reference {
    t: f64,
    x: f64,
    lct: f64,
}

impl Reference {
    fn new(t: f64, tau0: f64, now: f64) -> Self {
        Self { t, x: tau0, lct: now }
    }

    fn forwards(&mut self, ta: f64, tau: f64) -> bool {
        let xp = self.x - (ta - self.lct);
        let forwards = xp <= tau;
        if forwards {
            self.x = xp.max(0.0) + self.t;
            self.lct = ta;
        }
        forwards
    }
}

/// Series of arrivals at three times the rate, and with pauses: the same verdicts as the RFC's code.
#[test]
fn decides_as_the_rfcs_reference_algorithm() {
    // a rate whose gap is a whole number of nanoseconds, so that floats are exact
    let (rate, t) = (20.0, 50.0 * MS as f64);
    for (tau_milli, tau0_milli) in [(0, 0), (500, 250), (4000, 0), (4000, 4000), (10_000, 3000)] {
        let spec = GapSpec { tau_milli: [tau_milli; 8], tau0_milli, ..spec(rate) };
        let (params, mut state) = (gap(&spec), State::fresh());
        let (tau, tau0) = (f64::from(tau_milli) / 1e3 * t, f64::from(tau0_milli) / 1e3 * t);
        let mut now = SECOND;
        let mut reference = Reference::new(t, tau0, now as f64);
        for n in 0..3000_u64 {
            let verdict = ask(&params, &mut state, now, 0);
            let forwards = reference.forwards(now as f64, tau);
            assert_eq!(verdict.kind == VerdictKind::Admit, forwards, "{n}: {spec:?}");
            // 0 to 33 ms, and now and then a pause
            now += n * 7919 % 34 * MS + if n % 100 == 99 { 700 * MS } else { 0 };
        }
    }
}

fn spec(rate: f64) -> GapSpec {
    GapSpec::new(Rate::per_second(rate), Action::Drop)
}

/// Section 3.5.1: TAU = 4 T. From an empty bucket five go at once, since X is 4 T before the fifth,
/// and then one in T.
#[test]
fn four_gaps_of_tolerance_are_five_at_once() {
    let (params, mut state) = (gap(&spec(150.0)), State::fresh());
    assert_eq!(admitted(&params, &mut state, SECOND, 7, 20), 5);
    let t = SECOND.div_ceil(150);
    assert_eq!(admitted(&params, &mut state, SECOND + t - 1, 7, 20), 0);
    assert_eq!(admitted(&params, &mut state, SECOND + t, 7, 20), 1);
    assert_eq!(admitted(&params, &mut state, SECOND + 3 * t, 7, 20), 2);
}

/// TAU0 = TAU: control that begins with a full tolerance admits one, and no burst. It is so again
/// when control is lifted and begins anew.
#[test]
fn tau0_is_what_the_bucket_holds_when_control_begins() {
    let spec = GapSpec { tau0_milli: 4000, ..spec(20.0) };
    let (params, mut state) = (gap(&spec), State::fresh());
    assert_eq!(admitted(&params, &mut state, SECOND, 7, 20), 1);
    let none = Params::no_limit(tidegate_policy::Policy::Gap);
    assert_eq!(admitted(&none, &mut state, 100 * SECOND, 7, 20), 20);
    assert_eq!(admitted(&params, &mut state, 200 * SECOND, 7, 20), 1);
    // within one control a pause empties the bucket
    assert_eq!(admitted(&params, &mut state, 300 * SECOND, 7, 20), 5);
}

/// Section 3.5.2: TAU1 = 5 T and TAU2 = 10 T. Up to TAU1 all are admitted, from there to TAU2 only the
/// higher priorities, above it nobody.
#[test]
fn two_priorities_have_two_tolerances() {
    let rate = Rate::per_second(100.0);
    let (params, mut state) =
        (gap(&GapSpec::two_priorities(rate, 2, Action::Reject)), State::fresh());
    assert_eq!(admitted(&params, &mut state, SECOND, 2, 20), 6);
    assert_eq!(ask(&params, &mut state, SECOND, 7).reason, Reason::Reserved);
    assert_eq!(admitted(&params, &mut state, SECOND, 1, 20), 5);
    let refused = ask(&params, &mut state, SECOND, 0);
    assert_eq!((refused.kind, refused.reason), (VerdictKind::Reject, Reason::Rate));
    // 10 ms each; the lower ones are admitted again once 5 T have drained and one more fits
    assert_eq!(admitted(&params, &mut state, SECOND + 59 * MS, 2, 1), 0);
    assert_eq!(admitted(&params, &mut state, SECOND + 60 * MS, 2, 2), 1);
}

/// The paper, section 5.3: a controlled client of 20 requests a second sends one every 50 ms. With a gap
/// of 150 ms more it sends 5. The other two gaps are the paper's, too.
#[test]
fn the_papers_gaps_bring_20_requests_a_second_down_to_5() {
    for (more_ms, least, most) in [(50, 10, 10), (150, 5, 5), (250, 2, 3)] {
        let gap_ns = Nanos::from_millis(50 + more_ms);
        let (params, mut state) = (gap(&GapSpec::least(gap_ns, Action::Drop)), State::fresh());
        for second in 1..60_u64 {
            let sent = (0..20_u64).map(|n| second * SECOND + n * 50 * MS);
            let count: u32 = sent.map(|now| admitted(&params, &mut state, now, 7, 1)).sum();
            assert!((least..=most).contains(&count), "{count} in a second at {gap_ns}");
        }
    }
}

/// TAU = 0: no two are admitted within the gap, to the nanosecond.
#[test]
fn without_tolerance_the_gap_is_the_least_time_between_two() {
    let params = gap(&GapSpec::least(Nanos::from_millis(150), Action::Drop));
    let mut state = State::fresh();
    assert_eq!(admitted(&params, &mut state, SECOND, 7, 3), 1);
    assert_eq!(admitted(&params, &mut state, SECOND + 150 * MS - 1, 7, 3), 0);
    // 6.666 requests a second: the rate is rounded down
    let t = TOKEN / 6666 + 1;
    assert_eq!(admitted(&params, &mut state, SECOND + t - 1, 7, 3), 0);
    assert_eq!(admitted(&params, &mut state, SECOND + t, 7, 3), 1);
}

/// picotokens in a token: ns * thousandths of a token per second.
const TOKEN: u64 = 1_000_000_000_000;

/// A host program that can wait: who is too early is told how long, in the order in which they came,
/// and only who would wait too long is refused.
#[test]
fn who_comes_too_early_waits_for_its_turn() {
    let wait_max = Nanos::from_millis(250);
    let spec = GapSpec { tau_milli: [0; 8], wait_max, ..spec(10.0) };
    let (params, mut state) = (gap(&spec), State::fresh());
    let verdicts: Vec<Verdict> = (0..4).map(|_| ask(&params, &mut state, SECOND, 7)).collect();
    assert_eq!((verdicts[0].kind, verdicts[0].delay), (VerdictKind::Admit, Nanos::ZERO));
    for (n, verdict) in verdicts[1..3].iter().enumerate() {
        assert_eq!((verdict.kind, verdict.reason), (VerdictKind::Delay, Reason::Wait));
        let late = verdict.delay.0 - (n as u64 + 1) * 100 * MS;
        assert!(late <= 1100, "{late} ns late");
    }
    // 300 ms is more than 250
    assert_eq!((verdicts[3].kind, verdicts[3].reason), (VerdictKind::Drop, Reason::Rate));
    // 60 ms later the third in the queue has 240 ms to wait
    let later = ask(&params, &mut state, SECOND + 60 * MS, 7);
    assert_eq!((later.kind, later.delay.0 / MS), (VerdictKind::Delay, 240));
    assert_eq!(ask(&params, &mut state, SECOND + 60 * MS, 7).kind, VerdictKind::Drop);
}

/// Whatever the rate and the longest wait: a delay is never too short, at most 1.1 µs too long, and never
/// longer than allowed.
#[test]
fn delays_are_exact_at_every_rate() {
    for rate in [0.001, 0.7, 1.0, 6.666, 150.0, 12_345.678, 999_999.0, 1e9] {
        for wait_us in [1_u64, 999, 150_000, 5_000_000, 60_000_000] {
            let wait_max = Nanos::from_micros(wait_us);
            let spec = GapSpec { tau_milli: [1500; 8], wait_max, ..spec(rate) };
            // above 1e6 requests of wait
            let Ok(params) = Params::gap(&spec) else { continue };
            let (mut state, mut content) = (State::fresh(), 0_u128);
            let milli = u128::from(Rate::per_second(rate).as_milli());
            let step = (SECOND / 7).min(wait_us * 1000 / 3 + 1);
            let mut now = SECOND;
            for n in 0..200_u64 {
                let verdict = ask(&params, &mut state, now, 0);
                let over = content.saturating_sub(u128::from(TOKEN * 3 / 2));
                let exact_ns = over.div_ceil(milli) as u64;
                match verdict.kind {
                    VerdictKind::Admit => assert_eq!(over, 0, "{rate}, {wait_max}, {n}"),
                    VerdictKind::Delay => {
                        assert!(over > 0 && exact_ns <= wait_max.0, "{rate}, {wait_max}, {n}");
                        let late = verdict.delay.0.checked_sub(exact_ns).unwrap();
                        assert!(late <= 1100, "{late} ns late at {rate}, {wait_max}");
                    }
                    _ => assert!(over > u128::from(wait_max.0) * milli, "{rate}, {wait_max}, {n}"),
                }
                if matches!(verdict.kind, VerdictKind::Admit | VerdictKind::Delay) {
                    content += u128::from(TOKEN);
                }
                let next = now + if n % 3 == 2 { step } else { 0 };
                content = content.saturating_sub(u128::from(next - now) * milli);
                now = next;
            }
        }
    }
}

/// What is let in, at once or after its wait, keeps the rate: never two that are closer than T when TAU is
/// 0, and the server gets all the rate that it allows.
#[test]
fn who_waited_is_let_in_at_the_rate() {
    let wait_max = Nanos::from_secs(1);
    let spec = GapSpec { tau_milli: [0; 8], wait_max, ..spec(40.0) };
    let (params, mut state) = (gap(&spec), State::fresh());
    let mut let_in: Vec<u64> = Vec::new();
    for n in 0..900_u64 {
        // 90 a second, the paper's 225 %, for 10 s
        let now = SECOND + n * SECOND / 90;
        let verdict = ask(&params, &mut state, now, 7);
        if matches!(verdict.kind, VerdictKind::Admit | VerdictKind::Delay) {
            let_in.push(now + verdict.delay.0);
        }
    }
    let close = let_in.windows(2).filter(|two| two[1] - two[0] < 25 * MS - 1100).count();
    assert_eq!(close, 0);
    // 10 s at 40 a second, and those who still wait
    assert!((400..=442).contains(&let_in.len()), "{}", let_in.len());
}

/// A higher priority has the larger tolerance, so it never waits longer than a lower one.
#[test]
fn a_higher_priority_waits_less() {
    let wait_max = Nanos::from_millis(100);
    let spec =
        GapSpec { wait_max, ..GapSpec::two_priorities(Rate::per_second(100.0), 4, Action::Reject) };
    let (params, mut state) = (gap(&spec), State::fresh());
    // 6 at once, and 10 that wait
    assert_eq!((0..40).filter(|_| !refused(&params, &mut state, SECOND, 7)).count(), 16);
    let high = ask(&params, &mut state.clone(), SECOND, 0);
    assert_eq!((high.kind, high.delay.0 / MS), (VerdictKind::Delay, 60));
    assert_eq!(ask(&params, &mut state, SECOND, 7).reason, Reason::Reserved);
}

fn refused(params: &Params, state: &mut State, now: u64, priority: u8) -> bool {
    let kind = ask(params, state, now, priority).kind;
    matches!(kind, VerdictKind::Drop | VerdictKind::Reject)
}

/// Where nobody waits it is the token bucket: TAU is what the bucket holds beside one token.
#[test]
fn without_waiting_it_is_a_token_bucket() {
    let bucket = BucketSpec {
        reserve: [0, 0, 1, 1, 2, 3, 5, 7],
        ..BucketSpec::new(Rate::per_second(77.7), 9, Action::Reject)
    };
    let tau_milli = bucket.reserve.map(|kept| (bucket.burst - 1 - kept) * 1000);
    let spec = GapSpec { tau_milli, ..GapSpec::new(bucket.rate, bucket.action) };
    let params = [gap(&spec), Params::token_bucket(&bucket).unwrap()];
    let mut states = [State::fresh(), State::fresh()];
    let mut now = SECOND;
    for n in 0..20_000_u64 {
        let priority = (n * 31 % 8) as u8;
        let [one, two] = [0, 1].map(|which| ask(&params[which], &mut states[which], now, priority));
        assert_eq!(one, two, "event {n}");
        now = now + n * 7919 % 23 * MS - n % 5 * MS;
    }
}

/// A clock that goes back refuses for as long as it is back, and one that was wrong by more is believed.
#[test]
fn a_clock_that_goes_back_does_no_harm() {
    let (params, mut state) = (gap(&spec(10.0)), State::fresh());
    assert_eq!(admitted(&params, &mut state, 100 * SECOND, 7, 9), 5);
    assert_eq!(admitted(&params, &mut state, 100 * SECOND - 500 * MS, 7, 9), 0);
    assert_eq!(admitted(&params, &mut state, 100 * SECOND + 100 * MS, 7, 9), 1);
    assert_eq!(admitted(&params, &mut state, 2 * SECOND, 7, 9), 0);
    assert_eq!(admitted(&params, &mut state, 2 * SECOND + 100 * MS, 7, 9), 1);
}

/// What is out of range is refused where it is said, with the range.
#[test]
fn parameters_out_of_range_are_errors() {
    let good = spec(10.0);
    let waits = |wait_max| GapSpec { wait_max, ..good.clone() };
    let wrong = [
        (GapSpec { rate: Rate::ZERO, ..good.clone() }, "rate"),
        (GapSpec { tau_milli: [1, 2, 2, 2, 2, 2, 2, 2], ..good.clone() }, "tolerance"),
        (GapSpec { tau0_milli: 4001, ..good.clone() }, "tolerance"),
        (waits(Nanos(60 * SECOND + 1)), "wait 60"),
        (GapSpec { rate: Rate::per_second(1e6), ..waits(Nanos::SECOND) }, "wait 1.00 s"),
        (GapSpec { tau_milli: [999_999_001; 8], ..good.clone() }, "wait 0"),
        (GapSpec::least(Nanos::from_secs(1001), Action::Drop), "rate"),
    ];
    for (spec, word) in wrong {
        let error = Params::gap(&spec).unwrap_err().to_string();
        assert!(error.starts_with(word), "{error}");
    }
    for spec in [
        waits(Nanos(60 * SECOND)),
        GapSpec { tau0_milli: 4000, ..good.clone() },
        GapSpec { tau_milli: [999_999_000; 8], ..good.clone() },
    ] {
        assert!(Params::gap(&spec).is_ok(), "{spec:?}");
    }
}
