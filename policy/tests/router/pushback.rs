// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NetDraino at a router and at a server: congestion, shares, limits as soft state. The references are
//! written from the paper in floating point.

use proptest::prelude::*;
use tidegate_policy::{
    Congestion, CongestionSpec, Event, LinkTick, Offered, Part, Pushback, PushbackError,
    PushbackSpec, Reason, TailorSpec, VerdictKind,
};
use tidegate_units::{Nanos, Rate, Share};

const SECOND: u64 = 1_000_000_000;

fn rate(per_second: f64) -> Rate {
    Rate::per_second(per_second)
}

fn ours() -> CongestionSpec {
    CongestionSpec {
        queue: 15.0,
        weight: Share::new(0.002),
        drops: Share::new(0.015),
        rate: Share::new(0.95),
        fits: Share::new(0.9),
        calm: Nanos::from_millis(300),
    }
}

/// A tick of 100 ms of a link of 1,000 bytes a tick.
fn tick(sent: u64, dropped: u32, refused: u64) -> LinkTick {
    LinkTick {
        elapsed: Nanos::from_millis(100),
        capacity_bytes: 1_000,
        sent_bytes: sent,
        dropped_bytes: 0,
        refused_bytes: refused,
        packets: 100,
        dropped,
    }
}

proptest! {
    /// The average is RED's, whatever the queue does.
    #[test]
    fn the_average_is_reds(queues in prop::collection::vec(0_usize..200, 1..500)) {
        let (mut average, weight) = (0.0, f64::from((0.002 * 65_536.0) as u32) / 65_536.0);
        let mut link = Congestion::new(&CongestionSpec::published(15.0, 0.002));
        for queue in queues {
            link.queue(queue);
            average += weight * (queue as f64 - average);
            let near = (average - 15.0_f64).abs() < 0.01;
            prop_assert!(near || link.is_long() == (average > 15.0), "{}", average);
        }
    }

    /// No router gets more than the rate, a higher demand no less, and where all of it passes routers
    /// the limits add up to k times the rate at most.
    #[test]
    fn limits_are_shares_of_k_times_the_rate(
        whole in 1_u32..100_000, k in 1.0_f64..4.0,
        offered in prop::collection::vec((0_u32..100_000, 0.0_f64..=1.0), 1..8),
        beside in 0_u32..100_000,
    ) {
        let spec = TailorSpec { rate: rate(whole.into()), min_rate: rate(0.0), k };
        let part = |(offered, refused): &(u32, f64)| {
            let offered = f64::from(*offered);
            Part { offered: rate(offered), refused: rate((offered * refused).floor()), before: None }
        };
        let parts: Vec<Part> = offered.iter().map(part).collect();
        let passed: f64 = parts.iter().map(|part| part.offered.get() - part.refused.get()).sum();
        let arrived = passed + f64::from(beside);
        let all: f64 = parts.iter().map(|part| part.offered.get()).sum::<f64>() + f64::from(beside);
        let limits = spec.limits(&parts, rate(arrived));
        let mut sum = 0.0;
        for (part, limit) in parts.iter().zip(&limits) {
            let share = if all > 0.0 { part.offered.get() / all } else { 1.0 };
            let wanted = (k * f64::from(whole) * share).min(f64::from(whole));
            let error = 1e-3 * wanted + f64::from(whole) * 2e-5 + 0.01;
            prop_assert!((limit.get() - wanted).abs() <= error, "{} for {}", limit.get(), wanted);
            prop_assert!(limit.get() <= f64::from(whole));
            sum += limit.get();
        }
        let bound = (k * f64::from(whole)).max(f64::from(whole) * limits.len() as f64 * f64::from(u8::from(all == 0.0)));
        prop_assert!(sum <= bound * 1.001 + 0.01, "{} above {}", sum, bound);
    }

    /// What a router refuses changes no share: that is what keeps them from spiralling.
    #[test]
    fn a_share_does_not_depend_on_what_is_refused(
        offered in prop::collection::vec(0_u32..100_000, 2..8), refused in 0.0_f64..=1.0,
        beside in 0_u32..1_000,
    ) {
        let spec = TailorSpec { rate: rate(400.0), min_rate: rate(0.0), k: 1.2 };
        let limits = |refused: f64| {
            let mut parts: Vec<Part> = offered
                .iter()
                .map(|n| Part { offered: rate(f64::from(*n)), ..Part::default() })
                .collect();
            parts[0].refused = rate((parts[0].offered.get() * refused).floor());
            let passed: f64 = parts.iter().map(|p| p.offered.get() - p.refused.get()).sum();
            spec.limits(&parts, rate(passed + f64::from(beside)))
        };
        prop_assert_eq!(limits(refused), limits(0.0));
    }

    /// Over any time no more passes than the bucket and the rate of each step allow; after the time to
    /// live everything does, whether anybody looks or not.
    #[test]
    fn a_limit_bounds_what_passes_and_ends_by_itself(
        limit in 1_u32..500, more in 0_u32..500, delta_ms in 100_u64..3_000, steps in 1_u32..=16,
        gaps in prop::collection::vec(0_u64..50_000_000, 1..800),
    ) {
        let spec = PushbackSpec {
            delta: Nanos::from_millis(delta_ms), steps, burst: Nanos::from_millis(100),
        };
        let (low, whole) = (f64::from(limit), f64::from(limit + more));
        let mut state = Pushback::new(&spec);
        prop_assert_eq!(state.install((rate(low), rate(whole)), spec.ttl_min(), Nanos(0)), Ok(()));
        let (mut now, mut passed, mut allowed) = (0_u64, 0.0, (0.1 * low).max(1.0));
        for gap in gaps {
            let mut left = gap;
            while left > 0 {
                let age = now / spec.delta.0;
                let to = left.min((age + 1) * spec.delta.0 - now);
                let step = low + (whole - low) * age as f64 / f64::from(steps);
                allowed += step * to as f64 / 1e9;
                now += to;
                left -= to;
            }
            let verdict = state.admit(&Event::at(now));
            if now >= spec.ttl_min().0 {
                prop_assert_eq!(verdict.reason, Reason::NoLimit);
                continue;
            }
            prop_assert!(verdict.reason != Reason::NoLimit);
            passed += f64::from(u8::from(verdict.kind == VerdictKind::Admit));
            // The bucket grows with the rate: the room that it gains begins unused.
            prop_assert!(passed <= allowed + 0.1 * (whole - low) + 1.01, "{} of {}", passed, allowed);
        }
    }

    /// The rate rises by equal steps to the whole, and a refreshed limit begins anew.
    #[test]
    fn a_limit_is_relaxed_in_equal_steps(
        limit in 1_u32..1_000, more in 0_u32..1_000, steps in 1_u32..=16, again in 0_u32..16,
    ) {
        let delta = Nanos::SECOND;
        let spec = PushbackSpec { delta, steps, burst: Nanos::ZERO };
        let (low, whole) = (f64::from(limit), f64::from(limit + more));
        let mut state = Pushback::new(&spec);
        let mut begin = 0;
        for _ in 0..2 {
            let at = Nanos(begin * SECOND);
            prop_assert_eq!(state.install((rate(low), rate(whole)), spec.ttl_min(), at), Ok(()));
            for age in 0..u64::from(steps.min(again)) {
                let now = Nanos((begin + age) * SECOND + SECOND / 2);
                let wanted = low + (whole - low) * age as f64 / f64::from(steps);
                let held = state.rate(now, false).map_or(0.0, Rate::get);
                prop_assert!((held - wanted).abs() < 0.002, "{} at {}, not {}", held, age, wanted);
            }
            begin += u64::from(steps.min(again));
        }
        let last = Nanos((begin + u64::from(steps)) * SECOND);
        prop_assert!(state.rate(last, false).is_some() || steps.min(again) > 0);
        prop_assert_eq!(state.rate(Nanos((begin + 17) * SECOND), false), None);
    }

    /// Whatever is put in, what comes out is within bounds, and no limit is above its whole.
    #[test]
    fn wild_values_do_no_harm(
        values in prop::array::uniform6(any::<u64>()), steps in any::<u32>(), times in prop::collection::vec(any::<u64>(), 1..20),
    ) {
        let [delta, burst, low, whole, ttl, now] = values;
        let spec = PushbackSpec { delta: Nanos(delta % (1 << 45)), steps, burst: Nanos(burst) };
        let mut state = Pushback::new(&spec);
        let (low, whole) = (rate((low >> 20) as f64 / 1e3), rate((whole >> 20) as f64 / 1e3));
        let taken = state.install((low, whole), Nanos(ttl), Nanos(now));
        if taken.is_ok() {
            prop_assert!((1..=16).contains(&steps) && low.get() <= whole.get());
            prop_assert!(u128::from(ttl) >= u128::from(spec.delta.0) * u128::from(steps + 1));
        }
        for at in times {
            let held = state.rate(Nanos(at), false);
            prop_assert!(held.is_none_or(|held| held.get() <= whole.get() + 0.001 && taken.is_ok()));
            let verdict = state.admit(&Event::at(at));
            prop_assert!(taken.is_ok() || verdict.reason == Reason::NoLimit);
        }
        let spec = TailorSpec { rate: low, min_rate: whole, k: values[0] as f64 };
        let parts: Vec<Part> = values
            .iter()
            .map(|v| Part { offered: rate(*v as f64), refused: rate(*v as f64 / 2.0), before: Some((*v % 9) as usize) })
            .collect();
        for limit in spec.limits(&parts, whole) {
            prop_assert!(limit.get() <= low.get() + 0.001);
        }
    }
}

/// Each sign begins it, on both sides of its bound; a new begin has a new number.
#[test]
fn each_sign_begins_congestion() {
    for (seen, congested, signs) in [
        (tick(949, 0, 0), false, [false, false, false]),
        (tick(951, 0, 0), true, [false, false, true]),
        (tick(500, 1, 0), false, [false, false, false]),
        (tick(500, 2, 0), true, [false, true, false]),
        // What limits refuse is no sign: it would say for ever that there is congestion.
        (tick(500, 0, 5_000), false, [false, false, false]),
    ] {
        let mut link = Congestion::new(&ours());
        assert_eq!((link.tick(&seen), link.signs()), (congested, signs), "{seen:?}");
        assert_eq!(link.sequence(), u32::from(congested));
    }
    let mut link = Congestion::new(&ours());
    (0..5_000).for_each(|_| link.queue(16));
    assert!(link.is_long() && link.tick(&tick(0, 0, 0)), "a queue of 16");
    let mut link = Congestion::new(&ours());
    (0..5_000).for_each(|_| link.queue(14));
    assert!(!link.is_long() && !link.tick(&tick(0, 0, 0)), "a queue of 14");
    let none = CongestionSpec { queue: 0.0, ..CongestionSpec::published(0.0, 1.0) };
    let mut link = Congestion::new(&none);
    link.queue(1_000_000);
    assert!(!link.tick(&tick(1_000, 100, 0)), "without params never");
}

/// A limit that works keeps its reason: the link is free because of what is refused.
#[test]
fn congestion_ends_when_what_is_offered_would_fit() {
    let mut link = Congestion::new(&ours());
    assert!(link.tick(&tick(1_000, 50, 0)));
    for _ in 0..100 {
        assert!(link.tick(&tick(600, 0, 400)), "600 pass and 400 are refused: together too much");
    }
    for calm in [true, true, false] {
        assert_eq!(link.tick(&tick(600, 0, 200)), calm, "after three ticks it has ended");
    }
    assert!(link.tick(&tick(990, 0, 0)));
    assert_eq!(link.sequence(), 2);
    // One that does not fit begins the count anew.
    for calm in [true, true] {
        assert_eq!(link.tick(&tick(100, 0, 0)), calm);
    }
    assert!(link.tick(&tick(600, 0, 400)) && link.tick(&tick(100, 0, 0)));
    // What counts is time, whatever the ticks are: 300 ms of calm.
    for (ms, ticks) in [(1, 300), (50, 6), (100, 3), (149, 3), (151, 2), (300, 1), (10_000, 1)] {
        let mut link = Congestion::new(&ours());
        assert!(link.tick(&tick(1_000, 50, 0)));
        let calm = LinkTick { elapsed: Nanos::from_millis(ms), ..tick(100, 0, 0) };
        let lasts = (1..).find(|_| !link.tick(&calm));
        assert_eq!(lasts, Some(ticks), "ticks of {ms} ms");
    }
    // Without a known rate it ends when there is no sign.
    let mut link = Congestion::new(&ours());
    let unknown = |dropped| LinkTick { capacity_bytes: 0, ..tick(1_000, dropped, 9_000) };
    assert!(link.tick(&unknown(50)));
    let ended: Vec<bool> = (0..3).map(|_| link.tick(&unknown(0))).collect();
    assert_eq!(ended, [true, true, false]);
}

/// Nothing is known: it is over, and what begins later is another time.
#[test]
fn what_is_not_known_is_no_congestion() {
    let mut link = Congestion::new(&ours());
    (0..5_000).for_each(|_| link.queue(200));
    assert!(link.tick(&tick(1_000, 50, 0)) && link.is_long());
    link.unknown();
    assert!(!link.is_congested() && !link.is_long() && link.signs() == [false; 3]);
    assert_eq!(link.sequence(), 1);
    assert!(link.tick(&tick(1_000, 50, 0)));
    assert_eq!(link.sequence(), 2);
    // A look has the weight that it is given.
    let mut link = Congestion::new(&ours());
    link.look(20, Share::new(0.7));
    assert!(!link.is_long(), "14 of 15");
    link.look(20, Share::new(0.7));
    assert!(link.is_long(), "18.2");
}

#[test]
fn offered_counts_are_rates() {
    let (tenth, weight) = (Nanos::from_millis(100), Share::new(0.25));
    let mut offered = Offered::default();
    for n in 0..50 {
        (0..40).for_each(|n| offered.add(n % 4 == 0));
        offered.tick(tenth, weight);
        assert_eq!((offered.offered(), offered.refused()), (rate(400.0), rate(100.0)), "tick {n}");
    }
    (0..80).for_each(|_| offered.add(false));
    offered.tick(tenth, weight);
    assert_eq!((offered.offered(), offered.refused()), (rate(500.0), rate(75.0)));
    (0..200).for_each(|_| offered.tick(tenth, weight));
    assert!(offered.offered().get() < 0.01 && offered.refused().get() < 0.01);
}

/// A router behind a router: what the far one refuses stays demand of the near one, else the near one's
/// share would fall with each round.
#[test]
fn a_cascade_does_not_spiral() {
    let spec = TailorSpec { rate: rate(400.0), min_rate: rate(1.0), k: 1.2 };
    let far = Part { offered: rate(1_000.0), refused: rate(600.0), before: Some(1) };
    let near = Part { offered: rate(400.0), refused: rate(0.0), before: None };
    assert_eq!(spec.limits(&[far, near], rate(400.0)), [rate(400.0), rate(400.0)]);
    // A third stands beside them, with half of all.
    let beside = Part { offered: rate(1_000.0), refused: rate(500.0), before: None };
    let limits = spec.limits(&[far, near, beside], rate(900.0));
    limits.iter().for_each(|limit| assert!((limit.get() - 240.0).abs() < 0.1, "{limits:?}"));
    // Routers in a circle are a mistake of the configuration, and end nowhere worse than at the rate.
    let circle = [Part { before: Some(1), ..far }, Part { before: Some(0), ..near }];
    spec.limits(&circle, rate(400.0)).iter().for_each(|limit| assert!(limit.get() <= 400.0));
}

#[test]
fn a_share_of_nothing_is_the_floor_and_nothing_known_the_rate() {
    let spec = TailorSpec { rate: rate(400.0), min_rate: rate(5.0), k: 1.2 };
    assert_eq!(spec.limits(&[Part::default()], rate(0.0)), [rate(400.0)]);
    assert_eq!(spec.limits(&[Part::default()], rate(9.0)), [rate(5.0)]);
    assert_eq!((spec.published(0, 0), spec.published(1, 2)), (rate(400.0), rate(240.0)));
    assert_eq!(spec.limits(&[], rate(9.0)), []);
}

#[test]
fn what_is_out_of_range_is_not_taken_and_changes_nothing() {
    let spec = PushbackSpec { delta: Nanos::SECOND, steps: 4, burst: Nanos::from_millis(100) };
    let ttl = spec.ttl_min();
    assert_eq!(ttl, Nanos::from_secs(5));
    let mut state = Pushback::new(&spec);
    assert_eq!(state.install((rate(10.0), rate(20.0)), ttl, Nanos(0)), Ok(()));
    let before = state.clone();
    for (rates, ttl, why) in [
        ((0.0, 20.0), ttl, PushbackError::Rate),
        ((20.1, 20.0), ttl, PushbackError::Rate),
        ((10.0, 1.1e9), ttl, PushbackError::Rate),
        ((10.0, 20.0), Nanos(ttl.0 - 1), PushbackError::Ttl),
        ((10.0, 20.0), Nanos(u64::MAX), PushbackError::Ttl),
    ] {
        let rates = (rate(rates.0), rate(rates.1));
        assert_eq!(state.install(rates, ttl, Nanos(7)), Err(why), "{rates:?} {ttl}");
        assert_eq!(state, before);
    }
    for (delta, steps) in [(0, 4), (3_601, 4), (1, 0), (1, 17)] {
        let spec = PushbackSpec { delta: Nanos::from_secs(delta), steps, ..spec };
        let taken = Pushback::new(&spec).install(
            (rate(1.0), rate(2.0)),
            Nanos::from_secs(1 << 20),
            Nanos(0),
        );
        assert_eq!(taken, Err(PushbackError::Params), "δ {delta} s, {steps} steps");
    }
    assert_eq!(state.rate(Nanos::from_secs(1), true), None, "an idle router has no limit");
    assert_eq!(state.admit(&Event::at(2)).reason, Reason::NoLimit);
}

/// What was used stays used when a limit is refreshed: refreshing is no way to a fresh bucket.
#[test]
fn refreshing_gives_no_tokens() {
    let spec = PushbackSpec { delta: Nanos::SECOND, steps: 1, burst: Nanos::from_millis(100) };
    let mut state = Pushback::new(&spec);
    let mut passed = 0;
    for now in (0..2_000_u64).map(|ms| ms * 1_000_000) {
        let rates = (rate(50.0), rate(100.0));
        assert_eq!(state.install(rates, spec.ttl_min(), Nanos(now)), Ok(()));
        passed += u32::from(state.admit(&Event::at(now)).kind == VerdictKind::Admit);
    }
    assert!((100..=105).contains(&passed), "{passed} in 2 s at 50/s with 5 at once");
}
