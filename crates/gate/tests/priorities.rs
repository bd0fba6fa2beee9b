// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is refused first: by buckets, beside thresholds, and past a full limit.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod shop;

use shop::{BULK, GOLD, NOW, SILVER, ask, passed};
use tidegate_config::Config;
use tidegate_gate::{Completed, Completion, Gate, Id, Token};
use tidegate_model::limits::{BucketLimits, Low, ServiceLimits};
use tidegate_policy::Reason;
use tidegate_units::{Nanos, Rate};

fn gate(policy: &str, limits: ServiceLimits) -> (Gate, Config) {
    let config = shop::config("enforce", policy);
    (shop::gate(&config, limits), config)
}

/// A rate so low that it admits its burst, and then nothing.
fn burst() -> Option<Rate> {
    Some(Rate::per_second(0.001))
}

/// Requests that the service sheds anyway leave the bucket to those whom it admits.
#[test]
fn what_the_service_refuses_takes_no_token_of_a_bucket() {
    let bucket = BucketLimits { rate: burst(), burst: 100, ..BucketLimits::default() };
    let limits = ServiceLimits {
        rate: burst(),
        burst: 40,
        buckets: vec![bucket],
        ..ServiceLimits::default()
    };
    let (gate, _) = gate("{name: token_bucket}", limits);
    // Half of the tokens of the service are kept for those above.
    assert_eq!(passed(&gate, 1000, &ask("/search", BULK)), 20);
    assert_eq!(passed(&gate, 1000, &ask("/search", GOLD)), 20, "the bucket has them");
    let of = &gate.totals(0).unwrap().buckets[0];
    assert_eq!((of.offered, of.refused, of.begun), ([20, 20, 0], [0, 0, 0], 40));
}

/// And what the bucket refuses takes no token of the service.
#[test]
fn what_the_bucket_refuses_takes_no_token_of_the_service() {
    let bucket = BucketLimits { rate: burst(), burst: 5, ..BucketLimits::default() };
    let limits = ServiceLimits {
        rate: burst(),
        burst: 40,
        buckets: vec![bucket],
        ..ServiceLimits::default()
    };
    let (gate, _) = gate("{name: token_bucket}", limits);
    assert_eq!(passed(&gate, 1000, &ask("/search", BULK)), 5);
    assert_eq!(passed(&gate, 1000, &ask("/", BULK)), 15);
}

#[test]
fn a_bucket_knows_all_priorities() {
    let reserve = [0, 50, 50];
    let bucket = BucketLimits { rate: burst(), burst: 100, reserve, ..BucketLimits::default() };
    let (gate, _) =
        gate("{name: token_bucket}", ServiceLimits { buckets: vec![bucket], ..Default::default() });
    let each = [BULK, SILVER, GOLD].map(|client| passed(&gate, 1000, &ask("/search", client)));
    assert_eq!(each, [50, 25, 25]);
}

/// Thresholds see the work that waits, and the limit in flight keeps seats beside them.
#[test]
fn seats_are_kept_beside_thresholds() {
    for (policy, expected) in [
        ("{name: threshold, discard: 1000}", [60, 2, 2]),
        ("{name: threshold, discard: 50, priorities: [{priority: 0, discard: 1000}]}", [50, 0, 14]),
        ("{name: token_bucket}", [60, 2, 2]),
    ] {
        let limits = ServiceLimits { waiting_max: Some(64), ..ServiceLimits::default() };
        let (gate, _) = gate(policy, limits);
        let each = [BULK, SILVER, GOLD].map(|client| passed(&gate, 100, &ask("/", client)));
        assert_eq!(each, expected, "{policy}");
    }
}

/// A server that hangs: one in 100 ms goes past the full limit. It is one of the highest priority that
/// comes, and nobody's interval is lost.
#[test]
fn past_a_full_limit_goes_the_highest_priority() {
    for (priority, clients) in
        [(GOLD, &[BULK, SILVER, GOLD][..]), (SILVER, &[BULK, SILVER]), (BULK, &[BULK])]
    {
        let limits = ServiceLimits {
            waiting_max: Some(2),
            min_rate: Some(Rate::per_second(10.0)),
            ..ServiceLimits::default()
        };
        let (gate, _) = gate("{name: token_bucket}", limits);
        passed(&gate, 10, &ask("/", BULK));
        passed(&gate, 10, &ask("/", GOLD));
        let (mut of_it, mut of_others) = (0, 0);
        for ms in 1..=4000_u64 {
            let now = NOW + Nanos::from_millis(ms);
            // The lower ones come in each millisecond, the highest one in each tenth.
            for client in clients {
                let passes = *client == BULK || ms % 10 == 0 || *client != priority;
                let passes = passes && gate.ask(now, &ask("/", client)).passes();
                *(if *client == priority { &mut of_it } else { &mut of_others }) +=
                    u32::from(passes);
            }
            if ms % 100 == 0 {
                gate.tick(now);
            }
        }
        assert!((32..=40).contains(&of_it) && of_others <= 1, "{priority}: {of_it} {of_others}");
    }
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
        let rate = |dice: &mut Self| {
            (dice.below(3) > 0).then(|| Rate::per_second(100.0 + dice.below(1000) as f64))
        };
        let max = 2 + self.below(300);
        let burst = 2 + self.below(200) as u32;
        let kept = self.below(u64::from(burst)) as u32;
        ServiceLimits {
            rate: rate(self),
            burst,
            waiting_max: (self.below(3) > 0).then_some(max),
            waiting_low: (self.below(2) > 0).then(|| Low { most: max / 2 + 1, rest: max / 4 }),
            min_rate: (self.below(2) > 0).then(|| Rate::per_second(1.0 + self.below(50) as f64)),
            buckets: vec![BucketLimits {
                rate: rate(self),
                burst,
                reserve: [0, kept, kept],
                ..BucketLimits::default()
            }],
            ..ServiceLimits::default()
        }
    }
}

/// A million requests of three priorities at random times against random limits, with and without a
/// bucket, a least rate and a second level: nobody is refused while somebody below is admitted at the
/// same time, and everything is counted once.
#[test]
fn refusing_a_priority_implies_refusing_all_below_it() {
    let mut dice = Dice(1);
    let (gate, config) = gate("{name: token_bucket}", ServiceLimits::default());
    let (mut now, mut tokens, mut refused) = (NOW, Vec::<Token>::new(), 0_u32);
    let mut past = 0_u32;
    for step in 0..333_334 {
        if step % 1000 == 0 {
            assert!(gate.set_limits(&config, &[dice.limits()]).is_empty());
            gate.tick(now);
        }
        now += Nanos::from_micros(dice.below(3000));
        let target = if dice.below(2) == 0 { "/search" } else { "/" };
        let answers = [GOLD, SILVER, BULK].map(|client| gate.ask(now, &ask(target, client)));
        let passes = answers.each_ref().map(|answer| answer.passes());
        assert!(passes[0] >= passes[1] && passes[1] >= passes[2], "step {step}: {answers:?}");
        refused += u32::from(!passes[0]);
        past += u32::from(answers[1].reason == Reason::Waiting && passes[0]);
        tokens.extend(answers.into_iter().filter_map(|answer| answer.token));
        let keep = dice.below(400) as usize;
        for _ in 0..3 {
            if tokens.len() > keep {
                let at = dice.below(tokens.len() as u64) as usize;
                let done = Completion { status: 200, ..Completion::default() };
                let said = gate.complete(now, Id::Token(tokens.swap_remove(at)), &done);
                assert_ne!(said, Completed::Unknown);
            }
        }
    }
    let totals = gate.totals(0).unwrap();
    assert_eq!((totals.offered, totals.offered), (1_000_002, totals.admitted + totals.refused));
    assert!(refused > 10_000 && past > 100, "{refused} of the upper priority, {past} past");
}
