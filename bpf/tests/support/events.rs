// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Adversarial series of events for the policies, as seeded batches: each with its own parameters
//! (rates change in between) and its own way of time.

use super::policies::Spec;
use super::random::Dice;
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, Event, GapSpec, Params,
    PercentSpec, Policy, ThresholdSpec, Thresholds, Throttle,
};
use tidegate_units::{Nanos, Rate, Share};

const SECOND: u64 = 1_000_000_000;
/// Keys that come again: enough to fill sets of the fingerprint table, few enough to meet again.
const KEYS_KEPT: usize = 4096;

/// How time and keys go on within one batch.
#[derive(Clone, Copy, Debug)]
enum Mix {
    /// Random gaps around this mean, in nanoseconds.
    Steady(u64),
    /// No time passes at all.
    Standstill,
    /// Bursts at one instant, long pauses between them.
    Bursts,
    /// Small steps back and forth, below the second that is forgiven.
    Jitter,
    /// Now and then far back or far ahead, to the ends of the clock.
    Jumps,
}

/// What the policy computes with.
pub fn params(policy: Policy, spec: &Spec) -> Params {
    match (policy, spec) {
        (_, Spec::NoLimit) => Params::no_limit(policy),
        (Policy::FreshFirst, Spec::Bucket(bucket)) => Params::fresh_first(bucket).unwrap(),
        (_, Spec::Bucket(bucket)) => Params::token_bucket(bucket).unwrap(),
        (_, Spec::Abacus(abacus)) => Params::abacus(abacus).unwrap(),
        (_, Spec::AbacusExact(exact)) => Params::abacus_exact(exact).unwrap(),
        (_, Spec::AbacusLearned(learned)) => Params::abacus_learned(learned).unwrap(),
        (_, Spec::Threshold(threshold)) => Params::threshold(threshold).unwrap(),
        (_, Spec::Gap(gap)) => Params::gap(gap).unwrap(),
        (_, Spec::Percent(percent)) => Params::percent(percent).unwrap(),
    }
}

/// A series of batches, the same for the same seed and policy.
pub struct Events {
    dice: Dice,
    policy: Policy,
    now: u64,
    /// How much work waits.
    level: u32,
    kept: Vec<u64>,
}

impl Events {
    pub fn new(policy: Policy, seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ (policy as u64) << 56);
        let kept = (0..KEYS_KEPT).map(|_| dice.u64()).collect();
        let now = 1 + dice.u64() % (1000 * SECOND);
        Self { dice, policy, now, level: 0, kept }
    }

    /// The next parameters and the events that meet them.
    pub fn batch(&mut self, count: usize) -> (Params, Vec<Event>) {
        let (spec, events) = self.batch_of(count);
        (params(self.policy, &spec), events)
    }

    /// The same, before they are parameters.
    pub fn batch_of(&mut self, count: usize) -> (Spec, Vec<Event>) {
        let spec = self.spec();
        let mean = 1 << self.dice.below(31);
        let steady = Mix::Steady(mean);
        let mixes = [steady, steady, steady, Mix::Standstill, Mix::Bursts, Mix::Jitter, Mix::Jumps];
        let mix = *self.dice.pick(&mixes);
        let events = (0..count).map(|_| self.event(mix)).collect();
        // a clock that was thrown to one of its ends comes back, or no batch would see time pass
        if self.now > u64::MAX / 2 {
            self.now = self.dice.u64() % (1_000_000 * SECOND);
        }
        (spec, events)
    }

    fn spec(&mut self) -> Spec {
        if self.dice.one_in(12) {
            return Spec::NoLimit;
        }
        let bucket = self.bucket();
        match self.policy {
            Policy::TokenBucket | Policy::FreshFirst => Spec::Bucket(bucket),
            Policy::Abacus => Spec::Abacus(self.abacus(bucket)),
            Policy::AbacusExact => {
                let AbacusSpec { bucket, schedule, window, period, .. } = self.abacus(bucket);
                Spec::AbacusExact(AbacusExactSpec { bucket, schedule, window, period })
            }
            Policy::AbacusLearned => {
                let AbacusSpec { bucket, schedule, window, period, .. } = self.abacus(bucket);
                let period = period.max(Nanos::from_millis(4));
                let reject = Nanos(period.0 * u64::from(window) * 2);
                Spec::AbacusLearned(AbacusLearnedSpec { bucket, schedule, reject, period })
            }
            Policy::Threshold => Spec::Threshold(self.threshold(bucket.action)),
            Policy::Gap => Spec::Gap(self.gap(&bucket)),
            Policy::Percent => Spec::Percent(self.percent(bucket.action)),
        }
    }

    /// Ladders that rise from priority 7 to 0, or are the same, below and around the usual levels.
    fn threshold(&mut self, action: Action) -> ThresholdSpec {
        let dice = &mut self.dice;
        let mut below = |bound: usize| dice.below(bound) as u32;
        let rises = match below(3) {
            0 => vec![],
            1 => vec![1 + below(20)],
            _ => vec![1 + below(10), 11 + below(20)],
        };
        let (abatement, lowest) = (1 + below(40), below(30));
        let onset = abatement + lowest;
        let discard = onset + rises.last().copied().unwrap_or(0) + below(50);
        let (step, without, hard) = (below(12), below(9), below(9));
        let ladder = |priority: usize| {
            let up = step * (7 - priority as u32);
            Thresholds {
                abatement: abatement + up,
                onset: onset + up,
                discard: (priority as u32 >= without).then_some(discard + up),
                harder: u8::from(priority as u32 >= hard),
            }
        };
        let mut values = [below(65_537), below(65_537), below(65_537)];
        values.sort_unstable();
        let values = &values[..=rises.len()];
        let shares = values.iter().map(|value| Share::new(f64::from(*value) / 65_536.0));
        let gaps = values.iter().map(|value| Nanos::from_micros(1 + u64::from(*value) * 7));
        let throttle = match below(5) {
            0 if rises.is_empty() => Throttle::None,
            1 | 2 => Throttle::Gap(gaps.collect()),
            _ => Throttle::Share(shares.collect()),
        };
        let preferred = [0, 0, 1, 7, 0xff][below(5) as usize];
        ThresholdSpec {
            priorities: std::array::from_fn(ladder),
            rises,
            throttle,
            preferred,
            action,
        }
    }

    /// Half of them for a host program that can wait.
    fn gap(&mut self, bucket: &BucketSpec) -> GapSpec {
        let dice = &mut self.dice;
        let mut tau_milli: [u32; 8] = std::array::from_fn(|_| dice.u32() % 20_000);
        tau_milli.sort_unstable_by(|one, two| two.cmp(one));
        let tau0_milli = if dice.one_in(2) { 0 } else { dice.u32() % (tau_milli[7] + 1) };
        let gaps = if dice.one_in(2) { 0.0 } else { dice.below(50_000) as f64 / 1e3 };
        let wait_max = Nanos::from_secs_f64((gaps / bucket.rate.get()).min(60.0));
        GapSpec { tau_milli, tau0_milli, wait_max, ..GapSpec::new(bucket.rate, bucket.action) }
    }

    fn percent(&mut self, action: Action) -> PercentSpec {
        let dice = &mut self.dice;
        let share = match dice.below(8) {
            0 => 0.0,
            1 => 1.0,
            _ => f64::from(dice.u32() % 65_537) / 65_536.0,
        };
        let mut mix = [0_u8; 8];
        for _ in 0..100 {
            // some have none at all
            mix[dice.below(8) & dice.below(8)] += 1;
        }
        let period = Nanos::from_millis(*dice.pick(&[100, 1000, 5000, 3_600_000]));
        PercentSpec { share: Share::new(share), period, mix, action }
    }

    fn bucket(&mut self) -> BucketSpec {
        let rate = match self.dice.below(8) {
            0 => 0.001,
            1 => 1e9,
            _ => 1.0 + (self.dice.u64() % (1 << (4 + self.dice.below(24)))) as f64 / 7.0,
        };
        let burst = match self.dice.below(8) {
            0 => 1,
            1 => 1_000_000,
            _ => 2 + self.dice.u32() % (1 << (1 + self.dice.below(12))),
        };
        let action = *self.dice.pick(&[Action::Drop, Action::Reject]);
        let mut bucket = BucketSpec::new(Rate::per_second(rate), burst, action);
        if self.dice.one_in(2) {
            for reserve in &mut bucket.reserve {
                *reserve = self.dice.u32() % burst;
            }
            bucket.reserve.sort_unstable();
        }
        bucket
    }

    fn abacus(&mut self, bucket: BucketSpec) -> AbacusSpec {
        let mut spec = AbacusSpec::classic(bucket, *self.dice.pick(&[0, 1, 3, 21, 45, 50, 127]));
        if self.dice.one_in(2) {
            let steps = 1 + self.dice.below(12);
            let mut schedule: Vec<u16> =
                (0..steps).map(|_| 1 + self.dice.below(140) as u16).collect();
            schedule.sort_unstable();
            schedule.dedup();
            spec.schedule = schedule;
        }
        let period_ms = *self.dice.pick(&[1, 10, 1000, 1000, 1000, 3_600_000]);
        spec.period = Nanos::from_millis(period_ms);
        spec.lambda_start = Rate::per_second(self.dice.below(200) as f64);
        spec.ewma_shift = self.dice.below(16) as u8;
        spec
    }

    fn event(&mut self, mix: Mix) -> Event {
        self.pass(mix);
        let key = self.key();
        let priority = if self.dice.one_in(50) { self.dice.u8() } else { self.dice.u8() & 7 };
        let (random, level) = (self.dice.u32(), self.wait());
        Event { now_ns: self.now, key, random, priority, level, ..Event::default() }
    }

    /// The level: nothing, anything, and mostly a little more or less than before.
    fn wait(&mut self) -> u32 {
        let dice = &mut self.dice;
        self.level = match dice.below(40) {
            0 => 0,
            1 => dice.u32(),
            2..5 => dice.u32() % 200,
            _ => (self.level % 300 + dice.u32() % 9).saturating_sub(4),
        };
        self.level
    }

    fn pass(&mut self, mix: Mix) {
        let dice = &mut self.dice;
        self.now = match mix {
            Mix::Steady(mean) => self.now.wrapping_add(dice.u64() % (2 * mean)),
            Mix::Standstill => self.now,
            Mix::Bursts if dice.one_in(700) => self.now.wrapping_add(dice.u64() % (9 * SECOND)),
            Mix::Bursts => self.now,
            Mix::Jitter => {
                let step = dice.u64() % (SECOND / 2);
                if dice.one_in(2) { self.now.saturating_sub(step) } else { self.now + step }
            }
            Mix::Jumps if dice.one_in(300) => match dice.below(6) {
                0 => 0,
                1 => u64::MAX,
                2 => u64::MAX - dice.u64() % SECOND,
                3 => dice.u64(),
                4 => self.now.saturating_sub(dice.u64() % (4000 * SECOND)),
                _ => self.now.wrapping_add(dice.u64() % (400_000 * SECOND)),
            },
            Mix::Jumps => self.now.wrapping_add(dice.u64() % 1_000_000),
        };
    }

    /// New keys, known keys, keys of one crowded set, and a fingerprint of zero.
    fn key(&mut self) -> u64 {
        let at = self.dice.below(KEYS_KEPT);
        match self.dice.below(10) {
            0..4 => self.kept[at],
            4 => self.dice.u64() & !0x7fff | 42,
            5 if self.dice.one_in(20) => self.dice.u64() & 0xffff_ffff_ffff,
            _ => {
                self.kept[at] = self.dice.u64();
                self.kept[at]
            }
        }
    }
}
