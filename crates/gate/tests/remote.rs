// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits on requests, beside the limits of a service and of a route's bucket.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod shop;

use shop::{BULK, GOLD, NOW, SILVER, ask, passed};
use tidegate_config::Config;
use tidegate_gate::Gate;
use tidegate_model::limits::{BucketLimits, RequestLimit, ServiceLimits};
use tidegate_model::remote::Form;
use tidegate_model::{Canary, Mode};
use tidegate_units::{Nanos, Rate, Share};

fn gate(mode: &str, limits: &ServiceLimits) -> (Gate, Config) {
    let config = shop::config(mode, "{name: fresh_first}");
    (shop::gate(&config, limits.clone()), config)
}

/// A rate so low that it admits its burst, and then nothing.
fn burst(burst: u32) -> RequestLimit {
    let rate = Rate::per_second(0.001);
    RequestLimit { form: Form::Rate, rate, burst, loss: None, priority: 0 }
}

fn told(limit: RequestLimit) -> ServiceLimits {
    ServiceLimits { requests: Some(limit), ..ServiceLimits::default() }
}

#[test]
fn all_limits_must_admit_and_none_loses_tokens_to_another() {
    let own = |rate, burst| ServiceLimits { rate, burst, ..told(self::burst(40)) };
    let none = Some(Rate::per_second(0.001));
    // What the service refuses takes nothing of the remote limit, and the other way round.
    let (gate, config) = gate("enforce", &own(none, 10));
    assert_eq!(passed(&gate, 100, &ask("/", BULK)), 5, "half is kept by the service's own limit");
    assert_eq!(passed(&gate, 100, &ask("/", GOLD)), 5);
    let more = own(None, 0);
    assert!(gate.set_limits(&config, &[more]).is_empty());
    assert_eq!(passed(&gate, 100, &ask("/", GOLD)), 30, "40 less those that passed");
    // Nor does a bucket of a route.
    let bucket = BucketLimits { rate: none, burst: 3, ..BucketLimits::default() };
    let limits = ServiceLimits { buckets: vec![bucket], ..told(burst(10)) };
    let (gate, config) = self::gate("enforce", &limits);
    assert_eq!(passed(&gate, 100, &ask("/search", GOLD)), 3);
    assert_eq!(passed(&gate, 100, &ask("/", GOLD)), 7);
    assert_eq!(gate.totals(0).unwrap().admitted, 10);
    // It ends.
    assert!(gate.set_limits(&config, &[ServiceLimits::default()]).is_empty());
    assert_eq!(passed(&gate, 100, &ask("/search", BULK)), 100);
}

/// What the limit refuses, and what the service refuses beside it, are told apart.
#[test]
fn refusals_of_the_remote_limit_are_counted_by_themselves() {
    let counted = |gate: &Gate| {
        let totals = gate.totals(0).unwrap();
        (totals.admitted, totals.refused, totals.refused_remote)
    };
    let limits = ServiceLimits { waiting_max: Some(20), ..told(burst(50)) };
    let (gate, config) = gate("enforce", &limits);
    assert_eq!(passed(&gate, 100, &ask("/", GOLD)), 20);
    assert_eq!(counted(&gate), (20, 80, Some(0)), "all were refused by the limit in flight");
    assert!(gate.set_limits(&config, &[told(burst(50))]).is_empty());
    assert_eq!(passed(&gate, 100, &ask("/", GOLD)), 30);
    assert_eq!(counted(&gate), (50, 150, Some(70)));
}

#[test]
fn in_shadow_and_outside_a_canary_it_is_only_counted() {
    let (gate, _) = gate("shadow", &told(burst(1)));
    assert_eq!(passed(&gate, 10, &ask("/", BULK)), 10);
    let totals = gate.totals(0).unwrap();
    let counts = (totals.admitted, totals.refused, totals.refused_remote);
    assert_eq!(counts, (10, 9, Some(9)), "one had the token");
    gate.set_mode(0, Mode::Enforce, Canary::default());
    assert_eq!(passed(&gate, 10, &ask("/", BULK)), 0);
    gate.set_mode(0, Mode::Shadow, Canary::default());
    assert_eq!(passed(&gate, 10, &ask("/", BULK)), 10);
    gate.release(true);
    gate.set_mode(0, Mode::Enforce, Canary::default());
    assert_eq!(passed(&gate, 10, &ask("/", BULK)), 10, "the kill switch");
}

/// A limit about the lowest priority alone refuses nobody above, whose requests it counts.
#[test]
fn a_limit_about_some_priorities_spares_those_above() {
    let (gate, _) = gate("enforce", &told(RequestLimit { priority: 7, ..burst(20) }));
    assert_eq!(passed(&gate, 15, &ask("/", SILVER)), 15);
    assert_eq!(passed(&gate, 15, &ask("/", BULK)), 0, "nothing is left for them");
    assert_eq!(passed(&gate, 100, &ask("/", SILVER)), 100);
    assert_eq!(passed(&gate, 100, &ask("/", GOLD)), 100);
    assert_eq!(passed(&gate, 15, &ask("/", BULK)), 0);
}

/// Dice of a fixed seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn limits(&mut self) -> ServiceLimits {
        let rate = |dice: &mut Self| Rate::per_second(100.0 + dice.below(1000) as f64);
        let form = [Form::Rate, Form::Loss, Form::Gap][self.below(3) as usize];
        let requests = RequestLimit {
            form,
            rate: rate(self),
            burst: 2 + self.below(100) as u32,
            loss: (self.below(4) > 0).then(|| Share::new(self.below(100) as f64 / 100.0)),
            priority: [0, 0, 6, 7][self.below(4) as usize],
        };
        let burst = 2 + self.below(100) as u32;
        let own = (self.below(3) == 0).then(|| rate(self));
        let bucket = BucketLimits {
            rate: (self.below(3) == 0).then(|| rate(self)),
            burst,
            ..BucketLimits::default()
        };
        ServiceLimits { rate: own, burst, buckets: vec![bucket], ..told(requests) }
    }
}

/// Of each form, with and without limits beside it: nobody is refused while somebody below is admitted at the
/// same time, and nobody is refused whom the limit is not about.
#[test]
fn refusing_a_priority_implies_refusing_all_below_it() {
    let mut dice = Dice(1);
    let (gate, config) = gate("enforce", &ServiceLimits::default());
    let (mut now, mut refused, mut limits) = (NOW, [0_u32; 3], ServiceLimits::default());
    for step in 0..100_000 {
        if step % 1000 == 0 {
            limits = dice.limits();
            assert!(gate.set_limits(&config, std::slice::from_ref(&limits)).is_empty());
        }
        // Before the lease begins to end.
        if step % 100 == 0 {
            gate.tick(now);
        }
        now += Nanos::from_micros(dice.below(6000));
        let target = if dice.below(2) == 0 { "/search" } else { "/" };
        let answers = [GOLD, SILVER, BULK].map(|client| gate.ask(now, &ask(target, client)));
        let passes = answers.each_ref().map(|answer| answer.passes());
        assert!(passes[0] >= passes[1] && passes[1] >= passes[2], "step {step}: {answers:?}");
        let about = limits.requests.unwrap().priority;
        let alone = limits.rate.is_none() && limits.buckets[0].rate.is_none();
        assert!(!alone || about == 0 || passes[0], "step {step}: {answers:?}");
        for (count, passes) in refused.iter_mut().zip(passes) {
            *count += u32::from(!passes);
        }
    }
    assert!(refused[0] > 1_000 && refused[2] > refused[0] + 10_000, "{refused:?}");
}
