// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Abacus filter that learns: what it knows to begin with, what it learns from whom, who is
//! served first, who is rejected, and what spoofed sources can do to it.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_policy::{
    AbacusLearnedSpec, Action, BucketSpec, Event, Params, ParamsError, Reason, State, Verdict,
    VerdictKind, admit,
};
use tidegate_units::{Nanos, Rate};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 100 * SECOND;

/// Offsets in `struct tg_state`: 32 bytes of counts, then `struct tg_abacus_learned_state`.
const WAITING_AT: usize = 32 + 28;
const CELLS_AT: usize = 32 + 48 + 512;
const CROWDS: usize = 32;

fn word(state: &State, at: usize) -> u32 {
    u32::from_ne_bytes(state.as_bytes()[at..at + 4].try_into().unwrap())
}

fn key(n: u64) -> u64 {
    // splitmix64: what a seeded hash gives
    let z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn spec(rate: f64, burst: u32) -> AbacusLearnedSpec {
    AbacusLearnedSpec::classic(BucketSpec::new(Rate::per_second(rate), burst, Action::Drop))
}

/// One filter and its memory.
struct Filter {
    params: Params,
    state: State,
}

impl Filter {
    fn new(spec: &AbacusLearnedSpec) -> Self {
        Self { params: Params::abacus_learned(spec).unwrap(), state: State::fresh() }
    }

    /// Its bucket emptied at time START by clients of their own.
    fn emptied(spec: &AbacusLearnedSpec) -> Self {
        let mut filter = Self::new(spec);
        for n in 0..u64::from(spec.bucket.burst) {
            assert_eq!(filter.ask(START, u64::MAX / 2 + n).kind, VerdictKind::Admit);
        }
        filter
    }

    /// Asks without the exploration that one random number in 256 brings.
    fn ask(&mut self, now: u64, client: u64) -> Verdict {
        let event = Event { key: key(client), random: 1, ..Event::at(now) };
        admit(&self.params, &mut self.state, &event)
    }

    fn count(&mut self, now: u64, clients: std::ops::Range<u64>, kind: VerdictKind) -> usize {
        clients.filter(|n| self.ask(now, *n).kind == kind).count()
    }

    fn waiting(&self) -> u32 {
        word(&self.state, WAITING_AT)
    }

    /// (average in seconds, how often seen) for an attempt and a crowd.
    fn cell(&self, attempt: usize, crowd: usize) -> (f64, u32) {
        let at = CELLS_AT + 8 * (attempt * CROWDS + crowd);
        let (shift, left) = (word(&self.state, at + 4) & 0xffff, word(&self.state, at + 4) >> 16);
        let seen = if shift == 0 { 0 } else { (2 << shift) - left };
        (f64::from(word(&self.state, at)) / 16.0 / 4000.0, seen)
    }

    /// Cells of an attempt that have learned something.
    fn learned(&self, attempt: usize) -> Vec<(f64, u32)> {
        (0..CROWDS).map(|crowd| self.cell(attempt, crowd)).filter(|cell| cell.1 > 0).collect()
    }
}

/// To begin with, a burst is dropped up to about three times what its return finds, then rejected.
#[test]
fn the_prior_drops_up_to_a_crowd_and_rejects_the_rest() {
    for rate in [20_u64, 200] {
        let mut filter = Filter::emptied(&spec(rate as f64, 1));
        let verdicts: Vec<_> = (0..10 * rate).map(|n| filter.ask(START, n)).collect();
        let dropped = verdicts.iter().take_while(|v| v.reason == Reason::Borrowed).count() as u64;
        assert!((25 * rate / 10..=30 * rate / 10).contains(&dropped), "{dropped} at {rate}/s");
        assert!(verdicts[dropped as usize..].iter().all(|v| v.reason == Reason::NoRoom));
        assert!(verdicts.iter().all(|v| !v.repeated));
        assert_eq!(u64::from(filter.waiting()), dropped);
    }
}

/// One in 256 of those who would be rejected is dropped all the same, and nobody else is touched.
#[test]
fn one_in_256_explores() {
    let mut filter = Filter::emptied(&spec(20.0, 1));
    let _ = filter.count(START, 0..200, VerdictKind::Drop);
    for random in 0..1024_u32 {
        let event = Event { key: key(1000 + u64::from(random)), random, ..Event::at(START) };
        let kind = admit(&filter.params, &mut filter.state, &event).kind;
        let expected = if random % 256 == 0 { VerdictKind::Drop } else { VerdictKind::Reject };
        assert_eq!(kind, expected, "{random}");
    }
}

/// Clients who are served when they come back teach that waiting costs little.
#[test]
fn served_clients_teach_that_waiting_is_cheap() {
    let mut filter = Filter::emptied(&spec(100.0, 100));
    assert_eq!(filter.count(START, 0..20, VerdictKind::Drop), 20);
    let later = START + 3 * SECOND;
    for n in 0..20 {
        let verdict = filter.ask(later, n);
        assert!(verdict.kind == VerdictKind::Admit && verdict.repeated, "client {n}");
    }
    let learned = filter.learned(0);
    assert_eq!(learned.iter().map(|cell| cell.1).sum::<u32>(), 20);
    assert!(learned.iter().all(|cell| cell.0 < 75.0 / 16.0), "below the prior: {learned:?}");
    assert!(filter.learned(1).is_empty(), "nobody came back twice");
}

/// Clients who find no token teach what dropping them again costs: more than the prior said.
#[test]
fn unserved_clients_teach_that_waiting_is_dear() {
    let mut filter = Filter::emptied(&spec(100.0, 1));
    assert_eq!(filter.count(START, 0..60, VerdictKind::Drop), 60);
    let later = START + 3 * SECOND;
    let again: Vec<_> = (0..60).map(|n| filter.ask(later, n)).collect();
    assert_eq!(again[0].kind, VerdictKind::Admit, "one token has come");
    assert!(again[1..].iter().all(|v| v.reason == Reason::ExpectedAgain && v.repeated));
    let learned = filter.learned(0);
    assert_eq!(learned.iter().map(|cell| cell.1).sum::<u32>(), 60);
    assert!(learned.iter().any(|cell| cell.0 > 75.0 / 16.0 + 1.0), "{learned:?}");
    assert_eq!(filter.waiting(), 60 + 59, "the slot of the first return has not passed");
}

/// Where nobody who was dropped is ever served, fewer and fewer are left to wait.
#[test]
fn hopeless_times_are_learned() {
    let mut filter = Filter::emptied(&spec(20.0, 1));
    let burst = |filter: &mut Filter, at: u64, from: u64| {
        filter.count(at, from..from + 200, VerdictKind::Drop)
    };
    let first = burst(&mut filter, START, 0);
    let mut now = START;
    let mut clients = 1000;
    for _ in 0..60 {
        now += 100 * SECOND;
        let before = clients;
        // the bucket is emptied before every return, so that no client is ever served
        let _ = filter.ask(now, u64::MAX / 2 + now);
        let dropped = burst(&mut filter, now, clients) as u64;
        clients += 200;
        for wait in [3, 9, 21, 45] {
            let at = now + wait * SECOND;
            let _ = filter.ask(at, u64::MAX / 2 + at);
            let _ = filter.count(at, before..before + dropped, VerdictKind::Drop);
        }
    }
    now += 100 * SECOND;
    let _ = filter.ask(now, u64::MAX / 2 + now);
    let last = burst(&mut filter, now, clients);
    assert!(last * 2 < first, "{first} to begin with, {last} in the end");
    assert!(last > 0 || filter.cell(0, 0).1 > 0);
}

/// A new arrival leaves a token for each copy that is due now, up to an eighth of the bucket.
#[test]
fn copies_are_served_before_new_arrivals() {
    let mut filter = Filter::emptied(&spec(100.0, 80));
    assert_eq!(filter.count(START, 0..50, VerdictKind::Drop), 50);
    // 3 s later the bucket is full; of 80 tokens 10 stay
    let later = START + 3 * SECOND;
    assert_eq!(filter.count(later, 1000..1100, VerdictKind::Admit), 70);
    assert_eq!(filter.count(later, 0..50, VerdictKind::Admit), 10);
    // nobody is due: nothing is held
    let mut other = Filter::emptied(&spec(100.0, 80));
    assert_eq!(other.count(later, 1000..1100, VerdictKind::Admit), 80);
}

/// The last attempt is rejected, not left to time out; so is one whose next wait alone costs more
/// than a rejection.
#[test]
fn who_would_wait_in_vain_is_rejected() {
    let quick = |now: u64| u64::MAX / 2 + now;
    let mut filter = Filter::emptied(&spec(1.0, 1));
    let mut seen = Vec::new();
    for wait in [0, 3, 9, 21, 45] {
        let now = START + wait * SECOND;
        let _ = filter.ask(now, quick(now));
        seen.push(filter.ask(now, 7).reason);
    }
    use Reason::{Borrowed, ExpectedAgain, LastAttempt};
    assert_eq!(seen, [Borrowed, ExpectedAgain, ExpectedAgain, ExpectedAgain, LastAttempt]);
    let cheap = AbacusLearnedSpec { reject: Nanos::from_secs(10), ..spec(1.0, 1) };
    let mut filter = Filter::emptied(&cheap);
    let seen = [0, 3, 9].map(|wait| {
        let now = START + wait * SECOND;
        let _ = filter.ask(now, quick(now));
        filter.ask(now, 7).reason
    });
    assert_eq!(seen, [Borrowed, ExpectedAgain, LastAttempt], "12 s cost more than 10");
    for reject in [Nanos::ZERO, Nanos::from_secs(3)] {
        let mut filter = Filter::emptied(&AbacusLearnedSpec { reject, ..spec(1.0, 1) });
        assert_eq!(filter.ask(START, 7).reason, Reason::NoRoom, "{reject}");
    }
}

/// A copy that comes long before its time (a duplicate) neither ages nor teaches.
#[test]
fn an_early_copy_changes_nothing() {
    let mut filter = Filter::emptied(&spec(1.0, 1));
    assert_eq!(filter.ask(START, 7).reason, Reason::Borrowed);
    for _ in 0..20 {
        assert_eq!(filter.ask(START + SECOND / 2, 7).reason, Reason::ExpectedAgain);
    }
    assert!(filter.learned(0).is_empty());
    assert_eq!(filter.waiting(), 1);
    let later = START + 3 * SECOND - 40_000_000;
    let _ = filter.ask(later, u64::MAX / 2);
    assert_eq!(filter.ask(later, 7).reason, Reason::ExpectedAgain);
    assert_eq!(filter.learned(0).len(), 1, "a jitter early is on time");
}

/// A flood of sources that never come back: what waits is bounded, nothing is learned from it, and
/// a client who was dropped before the flood is known afterwards.
#[test]
fn a_flood_fills_no_more_than_the_crowd_that_may_wait() {
    let mut filter = Filter::emptied(&spec(100.0, 1));
    assert_eq!(filter.ask(START, 7).kind, VerdictKind::Drop);
    for n in 0..100_000 {
        let _ = filter.ask(START + n * 10_000, 1_000_000 + n);
    }
    // about three times the rate for each second of the first wait
    assert!(filter.waiting() < 3 * 3 * 100, "{} wait at 100/s", filter.waiting());
    assert!(filter.learned(0).is_empty());
    let later = START + 3 * SECOND;
    let verdict = filter.ask(later, 7);
    assert!(verdict.repeated && verdict.kind == VerdictKind::Admit, "{verdict:?}");
}

/// After a silence longer than the ring nobody waits any more; what was learned stays.
#[test]
fn silence_empties_the_ring_and_keeps_the_lesson() {
    let mut filter = Filter::emptied(&spec(100.0, 1));
    assert_eq!(filter.count(START, 0..60, VerdictKind::Drop), 60);
    let _ = filter.count(START + 3 * SECOND, 0..60, VerdictKind::Drop);
    let before = filter.learned(0);
    let later = START + 1_000_000 * SECOND;
    assert_eq!(filter.ask(later, 5000).reason, Reason::Token);
    assert_eq!(filter.waiting(), 0);
    assert_eq!(filter.learned(0), before);
}

/// Both sides of every bound of the parameters.
#[test]
fn parameters_out_of_range_are_errors() {
    let good = spec(20.0, 1);
    let day = Nanos::from_secs(86_400);
    let wrong = [
        AbacusLearnedSpec { schedule: vec![], ..good.clone() },
        AbacusLearnedSpec { schedule: vec![0, 3], ..good.clone() },
        AbacusLearnedSpec { schedule: vec![3, 3], ..good.clone() },
        AbacusLearnedSpec { schedule: (1..=13).collect(), ..good.clone() },
        AbacusLearnedSpec { period: Nanos::from_millis(3), ..good.clone() },
        AbacusLearnedSpec { period: Nanos::from_secs(3601), ..good.clone() },
        AbacusLearnedSpec { reject: day + day, ..good.clone() },
        AbacusLearnedSpec { reject: Nanos(u64::MAX), ..good.clone() },
    ];
    for spec in wrong {
        let error: ParamsError = Params::abacus_learned(&spec).unwrap_err();
        assert!(!error.to_string().is_empty(), "{spec:?}");
    }
    let limits = AbacusLearnedSpec {
        schedule: (1..=12).collect(),
        reject: Nanos::from_secs(33_554),
        ..good.clone()
    };
    assert!(Params::abacus_learned(&limits).is_ok());
    let above = AbacusLearnedSpec { reject: Nanos::from_secs(33_555), ..limits.clone() };
    assert!(Params::abacus_learned(&above).is_err());
    assert!(
        Params::abacus_learned(&AbacusLearnedSpec { period: Nanos::from_millis(4), ..good })
            .is_ok()
    );
}
