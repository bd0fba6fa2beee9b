// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients do: the schedules against published facts, jitter against the paper's bounds, and
//! reactions to refusals.

use tidegate_units::Nanos;
use tidegate_workload::{Answer, Jitter, Mixture, Reaction, Rng, SCHEDULES, Schedule};

fn named(name: &str) -> &'static Schedule {
    Schedule::named(name).expect(name)
}

/// Seconds of the SYNs and of giving up, with their sources: kernel documentation of
/// tcp_syn_linear_timeouts and TCP_TIMEOUT_INIT (Linux), tcp_syn_backoff (XNU, older FreeBSD),
/// tcp_rexmit_initial (FreeBSD), InitialRto and MaxSynRetransmissions (Windows), table 1 and
/// section 6 of the Abacus paper (classic), RFC 9002 (QUIC).
const FACTS: &[(&str, &[f64], f64)] = &[
    ("linux-6.5", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0, 19.0, 35.0, 67.0], 131.0),
    ("linux-3.7", &[0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0], 127.0),
    ("linux-3.1", &[0.0, 1.0, 3.0, 7.0, 15.0, 31.0], 63.0),
    ("linux-2.6", &[0.0, 3.0, 9.0, 21.0, 45.0, 93.0], 189.0),
    ("apple", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0, 19.0, 35.0, 67.0], 75.0),
    ("freebsd", &[0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0], 75.0),
    ("freebsd-old", &[0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 21.0, 33.0, 57.0], 75.0),
    // By its time-outs; 21 s has been reported, of a schedule that may be the old one.
    ("windows", &[0.0, 1.0, 3.0, 7.0, 15.0], 31.0),
    ("windows-old", &[0.0, 3.0, 9.0], 21.0),
    // The paper books a time-out at 75 s; doubling alone would give up at 93 s.
    ("classic", &[0.0, 3.0, 9.0, 21.0, 45.0], 75.0),
    // The end is the stack's own: 30 s is a choice of ours.
    ("quic", &[0.0, 0.999, 2.997, 6.993, 14.985], 30.0),
    ("quic-chromium", &[0.0, 0.3, 0.9, 2.1, 4.5], 30.0),
];

#[test]
fn every_schedule_has_the_times_of_its_source() {
    assert_eq!(FACTS.len(), SCHEDULES.len(), "a schedule without a fact");
    for (name, at_s, gives_up_s) in FACTS {
        let schedule = named(name);
        let nominal: Vec<f64> = schedule.at_ms.iter().map(|ms| f64::from(*ms) / 1e3).collect();
        assert_eq!(&nominal, at_s, "{name}");
        assert_eq!(schedule.gives_up().as_secs_f64(), *gives_up_s, "{name}");
    }
}

/// Measured on Linux 6.18: long waits are stretched by the granularity of kernel timers.
#[test]
fn the_stretch_of_linux_is_the_measured_one() {
    let measured = [0, 1020, 2040, 3070, 4090, 5110, 7130, 11_190, 19_390, 35_510, 69_050];
    let linux = named("linux-6.5");
    let real: Vec<Nanos> = (0..).map_while(|n| linux.at(n)).collect();
    assert_eq!(real, measured.map(Nanos::from_millis));
    assert_eq!(linux.gap(9), Some(Nanos::from_millis(69_050 - 35_510)));
    assert_eq!(linux.gap(10), None);
    assert_eq!(named("apple").at(10), Some(Nanos::from_secs(67)), "not measured, not stretched");
}

#[test]
fn a_refusal_is_taken_as_the_stack_takes_it() {
    let half = Reaction::SendsAgain(Nanos::from_millis(500));
    let again = |ms| Reaction::SendsAgain(Nanos::from_millis(ms));
    let gives_up = |s| Reaction::GivesUp(Nanos::from_secs(s));
    for (name, n, silence, reset, unreachable) in [
        ("linux-6.5", 0, again(1020), Reaction::Fails, Reaction::Fails),
        ("linux-3.7", 1, again(2050), Reaction::Fails, Reaction::Fails),
        ("apple", 5, again(2000), Reaction::Fails, again(2000)),
        ("freebsd", 6, gives_up(12), Reaction::Fails, gives_up(12)),
        ("windows", 0, again(1000), half, again(1000)),
        ("windows", 3, again(8000), half, again(8000)),
        // All its SYNs are sent: a RST ends it, silence lasts to the end.
        ("windows", 4, gives_up(16), Reaction::Fails, gives_up(16)),
        ("classic", 4, gives_up(30), Reaction::Fails, Reaction::Fails),
        ("classic", 99, gives_up(0), Reaction::Fails, Reaction::Fails),
    ] {
        let schedule = named(name);
        assert_eq!(schedule.after(n, Answer::Silence), silence, "{name} {n}");
        assert_eq!(schedule.after(n, Answer::Reset), reset, "{name} {n}");
        assert_eq!(schedule.after(n, Answer::Unreachable), unreachable, "{name} {n}");
    }
}

/// The walk of every client ends: as many SYNs as its schedule has, under any answer.
#[test]
fn no_answer_makes_a_client_send_more_than_its_schedule() {
    for schedule in SCHEDULES {
        for answer in [Answer::Silence, Answer::Reset, Answer::Unreachable] {
            let (mut n, mut waited) = (0, Nanos::ZERO);
            while let Reaction::SendsAgain(gap) = schedule.after(n, answer) {
                (n, waited) = (n + 1, waited + gap);
            }
            assert!(n < schedule.at_ms.len(), "{}", schedule.name);
            if let Reaction::GivesUp(rest) = schedule.after(n, answer) {
                assert_eq!(waited + rest, schedule.gives_up(), "{}", schedule.name);
            }
        }
    }
}

/// Times between the first and the last of some.
fn width(times: &[Nanos]) -> Nanos {
    times.iter().max().copied().unwrap_or_default()
        - times.iter().min().copied().unwrap_or_default()
}

/// Section 3.1 of the Abacus paper, result R1: the first retransmission of a burst of length b
/// covers at most b + 120 ms, each later one at most 20 ms more. And figure 4: a burst of 100 ms
/// is spread out, one of a second comes back nearly as it was.
#[test]
fn the_papers_jitter_spreads_a_burst_within_its_bounds() {
    let classic = named("classic");
    for burst_ms in [100, 200, 1000] {
        let mut rng = Rng::new(41, burst_ms);
        let mut widths = [Nanos::ZERO; 4];
        for (attempt, seen) in widths.iter_mut().enumerate() {
            let arrivals: Vec<Nanos> = (0..2000)
                .map(|i| {
                    let mut sent = Nanos(burst_ms * 1_000_000 * i / 2000);
                    for n in 0..=attempt {
                        sent += Jitter::PAPER.gap(classic, n, &mut rng).expect("a next one");
                    }
                    sent + Jitter::PAPER.delay(&mut rng)
                })
                .collect();
            *seen = width(&arrivals);
        }
        let bound = |attempt: u64| Nanos::from_millis(burst_ms + 120 + 20 * attempt);
        for (attempt, seen) in widths.iter().enumerate() {
            assert!(*seen <= bound(attempt as u64), "{burst_ms} ms, {attempt}: {seen}");
        }
        assert!(widths[0] > Nanos::from_millis(burst_ms + 80), "it does spread: {}", widths[0]);
    }
}

#[test]
fn jitter_is_uniform_around_its_schedule_and_absent_when_it_is_nought() {
    let (classic, half) = (named("classic"), Nanos::from_millis(50));
    let jitter = Jitter { rto_first: half, ..Jitter::NONE };
    let mut rng = Rng::new(42, 0);
    let (mut quarters, low) = ([0_u32; 4], Nanos::from_millis(2950));
    for _ in 0..100_000 {
        let over = jitter.gap(classic, 0, &mut rng).expect("a next one").since(low);
        quarters[(over.0 / 25_000_000) as usize] += 1;
    }
    // Standard deviation of a quarter: √(100,000 · 3/16) = 137.
    assert!(quarters.iter().all(|n| n.abs_diff(25_000) < 550), "{quarters:?}");
    let mut untouched = rng.clone();
    assert_eq!(jitter.gap(classic, 1, &mut rng), Some(Nanos::from_secs(6)));
    assert_eq!(jitter.gap(classic, 4, &mut rng), None);
    assert_eq!(jitter.delay(&mut rng), Nanos::ZERO);
    assert_eq!(Jitter::NONE.gap(classic, 0, &mut rng), Some(Nanos::from_secs(3)));
    use tidegate_units::Random;
    assert_eq!(rng.next_u64(), untouched.next_u64(), "no deviation, no random number");
    let wide = Jitter::uniform(Nanos::from_secs(1));
    for _ in 0..1000 {
        assert!(wide.delay(&mut rng) < Nanos::from_secs(2));
        assert!(wide.gap(classic, 0, &mut rng).is_some_and(|g| g >= Nanos::from_secs(2)));
    }
    // Wider than the gap itself: cut at zero, never negative.
    let absurd = Jitter::uniform(Nanos(u64::MAX));
    assert!(absurd.gap(classic, 0, &mut rng).is_some());
}

#[test]
fn a_mixture_is_remembered_by_one_byte_and_drawn_in_its_shares() {
    let mixture = Mixture::new(&[("linux-6.5", 3.0), ("classic", 0.0), ("windows", 1.0)]);
    let mixture = mixture.expect("known names");
    let mut rng = Rng::new(43, 0);
    let mut seen = [0_u32; 3];
    for _ in 0..40_000 {
        seen[mixture.draw_part(&mut rng)] += 1;
    }
    assert_eq!(seen[1], 0, "a weight of nought is never drawn");
    // Standard deviation: √(40,000 · 3/16) = 87.
    assert!(seen[0].abs_diff(30_000) < 350, "{seen:?}");
    assert_eq!(mixture.parts()[2].0.name, "windows");
    let only = Mixture::only(named("apple"));
    assert_eq!((only.draw(&mut rng).name, only.draw_part(&mut rng)), ("apple", 0));
}
