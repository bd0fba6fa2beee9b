// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever is sensed, or not: limits are finite and inside their bounds, the same signals give
//! the same limits, and missing signals never tighten.

use proptest::prelude::*;
use tidegate_control::{
    Controller, DefaultController, DefaultSpec, Fixed, Mode, RATE_CEILING, Syn, SynSpec, SynVariant,
};
use tidegate_model::RATE_MIN;
use tidegate_model::signals::{AcceptQueue, Counts, Reading, Signals, Times};
use tidegate_units::{Nanos, Rate, Share};

fn controllers() -> Vec<Box<dyn Controller>> {
    let published = SynSpec { variant: SynVariant::Published, ..SynSpec::default() };
    vec![
        Box::new(Fixed::new(Rate::per_second(100.0), 10)),
        Box::new(Syn::new(SynSpec::default())),
        Box::new(Syn::new(published)),
        Box::new(DefaultController::new(DefaultSpec::default())),
        Box::new(DefaultController::new(DefaultSpec { objective: Nanos(0) })),
    ]
}

/// Mostly of a server's size, sometimes absurd.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0_u64..2000, 1 => 0_u64..10, 1 => any::<u64>()]
}

fn reading<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<Reading<T>>> {
    let age = prop_oneof![8 => Just(0_u64), 1 => 0_u64..2_000_000_000, 1 => any::<u64>()];
    let one = (value, age).prop_map(|(value, age)| Some(Reading { value, age: Nanos(age) }));
    prop_oneof![9 => one, 1 => Just(None)]
}

fn signals() -> impl Strategy<Value = Signals> {
    let period = prop_oneof![8 => Just(100_000_000_u64), 1 => Just(0_u64), 1 => any::<u64>()];
    let counts = (number(), number(), number(), number(), number(), number()).prop_map(
        |(offered, repeated, admitted, refused, completed, unseen)| Counts {
            offered,
            repeated,
            admitted,
            refused,
            refused_remote: None,
            completed,
            unknown: unseen / 2,
            unseen,
            connections: None,
        },
    );
    let times = (number(), number(), number()).prop_map(|(count, sum, p50)| Times {
        count,
        sum: Nanos(sum.saturating_mul(1_000_000)),
        p50: Nanos(p50),
        p99: Nanos(p50),
    });
    let queue = (number(), number()).prop_map(|(length, limit)| AcceptQueue { length, limit });
    let share = (0.0..=1.0_f64).prop_map(Share::new);
    (
        any::<u64>(),
        period,
        reading(counts),
        reading(number()),
        reading(times),
        reading(queue),
        reading(share),
    )
        .prop_map(|(now, period, counts, waiting, times, queue, cpu)| {
            let mut s = Signals { now: Nanos(now), period: Nanos(period), ..Signals::default() };
            s.balance.counts = counts;
            s.time.waiting = waiting;
            s.time.first_byte = times;
            s.queue.accept = queue;
            s.resource.cpu = cpu;
            s
        })
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Enforce), Just(Mode::Shadow)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn limits_are_finite_bounded_and_repeatable(
        series in prop::collection::vec((signals(), mode()), 1..200)
    ) {
        for (mut one, mut other) in controllers().into_iter().zip(controllers()) {
            for (signals, mode) in &series {
                let limits = one.tick(signals, *mode);
                if let Some(rate) = limits.rate {
                    let rate = rate.get();
                    prop_assert!(rate.is_finite() && (RATE_MIN..=RATE_CEILING).contains(&rate));
                    prop_assert!(limits.burst >= 1);
                    prop_assert!(limits.burst <= 1_000_000, "burst {}", limits.burst);
                }
                prop_assert!(limits.waiting_max != Some(0), "nothing at all would be admitted");
                prop_assert!(!limits.why.text.is_empty());
                prop_assert_eq!(limits, other.tick(signals, *mode));
            }
        }
    }
}

/// A server of 200/s that is offered twice as much; `waiting` grows until limits hold it.
fn crowd(controller: &mut dyn Controller, ticks: u64) -> (Signals, Option<Rate>) {
    let (mut waiting, mut rate, mut last) = (4_u64, None, Signals::default());
    for tick in 1..=ticks {
        let offered = if tick < 100 { 10 } else { 40 };
        let admitted = rate.map_or(offered, |r: Rate| offered.min((r.get() / 10.0) as u64));
        let completed = (waiting + admitted).min(20).min(if tick < 100 { 10 } else { 20 });
        waiting = waiting + admitted - completed;
        let mut s = Signals {
            now: Nanos(tick * 100_000_000),
            period: Nanos::from_millis(100),
            ..Signals::default()
        };
        s.balance.counts = Some(Reading::fresh(Counts {
            offered,
            admitted,
            refused: offered - admitted,
            completed,
            ..Counts::default()
        }));
        s.time.waiting = Some(Reading::fresh(waiting));
        let each = Nanos::from_millis(40);
        s.time.first_byte = Some(Reading::fresh(Times {
            count: completed,
            sum: Nanos(each.0 * completed),
            p50: each,
            p99: each,
        }));
        last = s.clone();
        rate = controller.tick(&s, Mode::Enforce).rate;
    }
    (last, rate)
}

#[test]
fn an_overload_is_shed_at_about_the_capacity() {
    let mut controller = DefaultController::new(DefaultSpec::default());
    let (_, rate) = crowd(&mut controller, 300);
    let rate = rate.expect("a limit is set").get();
    assert!((180.0..=220.0).contains(&rate), "rate {rate} for a capacity of 200/s");
}

/// An accept queue of 600, so old.
fn queue(age_ms: u64) -> Signals {
    let mut s = Signals { period: Nanos::from_millis(100), ..Signals::default() };
    let value = AcceptQueue { length: 600, limit: 1024 };
    s.queue.accept = Some(Reading { value, age: Nanos::from_millis(age_ms) });
    s
}

/// Where no listener is visible, or not any more, SYN policing must not refuse for ever: its rate
/// stands for ten periods and is gone then, and only a queue that is known brings it back.
#[test]
fn syn_policing_lets_go_of_a_queue_that_is_lost() {
    for variant in [SynVariant::Published, SynVariant::Released] {
        let mut syn = Syn::new(SynSpec { variant, ..SynSpec::default() });
        let mut tick = |s: &Signals| syn.tick(s, Mode::Enforce).rate.map(Rate::get);
        let mut missing = queue(0);
        missing.queue.accept = None;
        for n in 1..=30 {
            let expected = if n <= 10 { Some(1000.0) } else { None };
            assert_eq!(tick(&missing), expected, "never seen, {n} periods");
        }
        assert_eq!(tick(&queue(500)), None, "what is too old to act upon tightens nothing");
        let low = (0..300).map(|_| tick(&queue(0))).last().flatten();
        assert!(low.is_some_and(|rate| rate < 300.0), "{low:?}");
        for n in 1..=30 {
            assert_eq!(tick(&missing), if n <= 10 { low } else { None }, "lost, {n} periods");
        }
        assert_eq!(tick(&queue(500)), None, "what is too old to act upon tightens nothing");
        let back = tick(&queue(0));
        assert!(back.is_some_and(|rate| rate > 990.0), "begins anew: {back:?}");
    }
}

#[test]
fn stale_signals_freeze_the_limits_and_lost_ones_release_them() {
    let mut controller = DefaultController::new(DefaultSpec::default());
    let (mut s, rate) = crowd(&mut controller, 300);
    assert!(rate.is_some());
    s.balance.counts = None;
    // Missing ages like stale: up to ten periods the limits stand, after that they are gone.
    for tick in 1..=20_u64 {
        s.now += s.period;
        let limits = controller.tick(&s, Mode::Enforce);
        if tick <= 10 {
            assert_eq!(limits.rate, rate, "tick {tick}");
        } else {
            assert_eq!((limits.rate, limits.waiting_max), (None, None), "tick {tick}");
        }
    }
}
