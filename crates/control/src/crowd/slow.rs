// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the responses of a destination have become slow: each is compared with the usual one of its
//! size, and a sequential test says for how long it has been so.
//!
//! An exchange is slow if it took [`STEPS`] buckets more than the median of its size class, about 1.7
//! times as long. Of healthy ones some always are (clients differ in distance). The test adds up, tick
//! by tick, how far the share of slow ones is above the middle between what is usual and what a crowd
//! shows (Page 1954). So it needs no count of samples that depend on each other, which exchanges
//! behind one queue do: its unit is a second, and a moment that is over soon is no crowd.

use crate::RATE_CEILING;
use crate::kept::{number, within};
use serde_json::{Value, json};

/// Size classes and buckets, as `policy/router/durations.h` counts them.
pub(super) const CLASSES: usize = 16;
pub(super) const BUCKETS: usize = 64;
/// Buckets above the median from which on an exchange is slow. Four are twice as long; with three the
/// median has doubled for certain when more than half are slow.
const STEPS: usize = 3;
/// Exchanges of a class before its median counts.
const LEARNED: f32 = 32.0;
/// The baseline forgets with this time constant: by day and night it follows, in a crowd it does not.
const MEMORY_S: f64 = 1800.0;
/// It is halved only so often.
const FADE_S: f64 = 20.0;
/// The share of slow exchanges when the median has doubled.
const CROWDED: f64 = 0.6;
/// Where the middle may lie.
const MIDDLE: (f64, f64) = (0.35, 0.5);
/// Slow for certain: so many seconds, each by how far its share is above the middle. That is six seconds where all exchanges are slow. With
/// half as much, brown-outs of a few seconds on links that the load nearly fills are crowds; with five, crowds that come slowly are found late.
const ENOUGH_S: f64 = 4.0;
/// With fewer exchanges in a tick its share counts less.
const SAMPLES: f64 = 4.0;
/// Slow without a crowd for so long: then it is usual, and is learned.
const USUAL_AFTER_S: f64 = 900.0;
/// Time constant of the shares that are shown.
const SHOWN_S: f64 = 3.0;
/// Time constant of what is usual.
const USUAL_S: f64 = 120.0;
/// Fewer exchanges a second say nothing of how fast a destination is.
const KNOWN: f64 = 1.0;
/// A weight is kept in such parts of an exchange.
const KEPT_PARTS: f32 = 16.0;

/// Exchanges that were completed in a tick, by size class and duration bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// Size class.
    pub class: usize,
    /// Duration bucket: a quarter of a power of two each.
    pub bucket: usize,
    /// How many.
    pub count: u32,
}

/// What a tick shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Seconds of the tick.
    pub(super) s: f64,
    /// Exchanges in flight for longer than [`Slow::overdue_after`].
    pub(super) overdue: f64,
    /// Whether there is a crowd: then nothing is learned.
    pub(super) crowd: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Slow {
    usual: Box<[[f32; BUCKETS]; CLASSES]>,
    medians: [Option<usize>; CLASSES],
    /// The bucket that 19 of 20 exchanges are below.
    late: Option<usize>,
    since_fade_s: f64,
    /// Of the test, in seconds.
    score_s: f64,
    slow_for_s: f64,
    /// Share of slow exchanges: lately, and usually.
    share: f64,
    usual_share: f64,
    /// Exchanges a second that say whether it is slow, lately.
    known: f64,
    /// Usually overdue, and usually completed a second.
    usual_overdue: f64,
    usual_rate: f64,
    /// Mean of the medians of what was completed lately, seconds.
    usual_s: f64,
    /// How much longer than that it takes lately, seconds.
    delay_s: f64,
}

impl Default for Slow {
    fn default() -> Self {
        Self {
            usual: Box::new([[0.0; BUCKETS]; CLASSES]),
            medians: [None; CLASSES],
            late: None,
            since_fade_s: 0.0,
            score_s: 0.0,
            slow_for_s: 0.0,
            share: 0.0,
            usual_share: 0.1,
            known: 0.0,
            usual_overdue: 0.0,
            usual_rate: 0.0,
            usual_s: 0.0,
            delay_s: 0.0,
        }
    }
}

/// The middle of a bucket, seconds.
fn seconds(bucket: usize) -> f64 {
    let quarter = (bucket % 4) as f64;
    256e-6 * libm::exp2((bucket / 4) as f64) * (1.125 + quarter / 4.0)
}

fn weight(s: f64, constant_s: f64) -> f64 {
    -libm::expm1(-s / constant_s)
}

impl Slow {
    /// The middle between the usual share of slow exchanges and that of a crowd.
    fn middle(&self) -> f64 {
        f64::midpoint(self.usual_share, CROWDED).clamp(MIDDLE.0, MIDDLE.1)
    }

    pub(super) fn tick(&mut self, took: &[Took], seen: &Seen) {
        let (mut all, mut slow, mut sum_s, mut delays_s) = (0.0, 0.0, 0.0, 0.0);
        for Took { class, bucket, count } in took {
            if let Some(Some(median)) = self.medians.get(*class) {
                all += f64::from(*count);
                sum_s += f64::from(*count) * seconds(*median);
                delays_s += f64::from(*count) * (seconds(*bucket) - seconds(*median)).max(0.0);
                slow += if *bucket >= median + STEPS { f64::from(*count) } else { 0.0 };
            }
        }
        if all > 0.0 {
            let first = self.usual_s <= 0.0;
            let moved = if first { 1.0 } else { weight(seen.s, SHOWN_S) };
            self.usual_s += moved * (sum_s / all - self.usual_s);
        }
        // A server that hangs completes nothing: what is overdue stands for what is missing.
        let missing = (self.usual_rate * seen.s - all).max(0.0);
        let stuck = (seen.overdue - 2.0 * self.usual_overdue).max(0.0).min(missing);
        (all, slow) = (all + stuck, slow + stuck);
        delays_s += stuck * (self.overdue_after_s().unwrap_or(0.0) - self.usual_s).max(0.0);
        self.known += weight(seen.s, SHOWN_S) * (all / seen.s.max(1e-3) - self.known);
        if all > 0.0 {
            let certain = (all / SAMPLES).min(1.0);
            let (share, middle) = (slow / all, self.middle());
            self.score_s += seen.s * certain * (share - middle);
            self.score_s = self.score_s.clamp(0.0, 2.0 * ENOUGH_S);
            self.share += certain * weight(seen.s, SHOWN_S) * (share - self.share);
            self.delay_s += certain * weight(seen.s, SHOWN_S) * (delays_s / all - self.delay_s);
        }
        self.slow_for_s = if self.share > self.middle() { self.slow_for_s + seen.s } else { 0.0 };
        if !seen.crowd && (self.share <= self.middle() || self.slow_for_s > USUAL_AFTER_S) {
            self.learn(took, seen, slow / all.max(1.0));
        }
    }

    fn learn(&mut self, took: &[Took], seen: &Seen, share: f64) {
        let mut completed = 0.0;
        for Took { class, bucket, count } in took {
            if let Some(place) = self.usual.get_mut(*class).and_then(|c| c.get_mut(*bucket)) {
                *place += *count as f32;
                completed += f64::from(*count);
            }
        }
        let slowly = weight(seen.s, USUAL_S);
        self.usual_overdue += slowly * (seen.overdue - self.usual_overdue);
        self.usual_rate += slowly * (completed / seen.s.max(1e-3) - self.usual_rate);
        if completed > 0.0 {
            self.usual_share += slowly * (share - self.usual_share);
        }
        self.since_fade_s += seen.s;
        let is_new = took.iter().any(|t| self.medians.get(t.class) == Some(&None));
        if self.since_fade_s >= FADE_S {
            let keeps = libm::exp(-self.since_fade_s / MEMORY_S) as f32;
            self.usual.iter_mut().flatten().for_each(|weight| *weight *= keeps);
            self.since_fade_s = 0.0;
            self.look();
        } else if is_new {
            self.look();
        }
    }

    /// Medians, anew.
    fn look(&mut self) {
        let mut all = [0.0; BUCKETS];
        for (class, median) in self.usual.iter().zip(&mut self.medians) {
            let sum: f32 = class.iter().sum();
            *median = (sum >= LEARNED).then(|| quantile(class, sum, 0.5));
            all.iter_mut().zip(class).for_each(|(all, own)| *all += own);
        }
        let sum: f32 = all.iter().sum();
        self.late = (sum >= LEARNED).then(|| quantile(&all, sum, 0.95));
    }

    /// What is usual, and how slow it is now, for the process that comes next. Weights that fade are left out.
    pub(super) fn kept(&self) -> Value {
        let mut usual = Vec::new();
        for (class, weights) in self.usual.iter().enumerate() {
            let weights = weights.iter().enumerate();
            let some = weights.map(|(bucket, weight)| (bucket, (weight * KEPT_PARTS).round()));
            let some = some.filter(|(_, parts)| *parts > 0.0);
            usual.extend(some.map(|(bucket, parts)| json!([class, bucket, parts as u64])));
        }
        json!({
            "usual": usual,
            "share": self.share,
            "usual_share": self.usual_share,
            "usual_overdue": self.usual_overdue,
            "usual_rate": self.usual_rate,
            "usual_s": self.usual_s,
        })
    }

    /// Goes on from there; `None`: it is of no use.
    pub(super) fn take(value: &Value) -> Option<Self> {
        let share = (0.0, 1.0);
        let mut slow = Self {
            share: number(value, "share", share)?,
            usual_share: number(value, "usual_share", share)?,
            usual_overdue: number(value, "usual_overdue", (0.0, RATE_CEILING))?,
            usual_rate: number(value, "usual_rate", (0.0, RATE_CEILING))?,
            usual_s: number(value, "usual_s", (0.0, seconds(BUCKETS)))?,
            ..Self::default()
        };
        for kept in value.get("usual")?.as_array()? {
            let [class, bucket, parts] = kept.as_array()?.as_slice() else { return None };
            let place = |at: &Value| usize::try_from(at.as_u64()?).ok();
            let weight = within(parts, (0.0, RATE_CEILING))? as f32 / KEPT_PARTS;
            *slow.usual.get_mut(place(class)?)?.get_mut(place(bucket)?)? = weight;
        }
        slow.look();
        Some(slow)
    }

    /// For so long an exchange may be in flight: twice as long as 19 of 20 take, seconds. None before
    /// anything is known.
    pub(super) fn overdue_after_s(&self) -> Option<f64> {
        self.late.map(|bucket| 2.0 * seconds(bucket))
    }

    /// Whether it has been slow for longer than by chance.
    pub(super) fn is_certain(&self) -> bool {
        self.score_s >= ENOUGH_S
    }

    /// The test begins anew: what it knew has led to an alarm that is over.
    pub(super) const fn again(&mut self) {
        self.score_s = 0.0;
    }

    /// Hardly anything was completed for long: what was seen before says nothing of now.
    pub(super) const fn rest(&mut self) {
        self.again();
        (self.share, self.slow_for_s, self.delay_s) = (0.0, 0.0, 0.0);
    }

    /// Whether it is slow at the moment.
    pub(super) fn is_slow(&self) -> bool {
        self.share > self.middle()
    }

    /// Whether enough exchanges say that it is not slow.
    pub(super) fn is_fast(&self) -> bool {
        self.known >= KNOWN && !self.is_slow()
    }

    /// So many times as many exchanges are seen from now on.
    pub(super) fn scale(&mut self, times: f64) {
        for rate in [&mut self.usual_rate, &mut self.usual_overdue] {
            *rate = (*rate * times).min(RATE_CEILING);
        }
    }

    /// Whether it may become one: from here on demand is compared with what was before.
    pub(super) fn is_suspicious(&self) -> bool {
        self.score_s > 0.25 * ENOUGH_S
    }

    /// Share of slow exchanges, lately.
    pub(super) const fn share(&self) -> f64 {
        self.share
    }

    /// How much longer than usual exchanges take lately, seconds.
    pub(super) const fn delay_s(&self) -> f64 {
        self.delay_s
    }

    /// How long exchanges of the present mix usually take, seconds; 0 if unknown.
    pub(super) const fn usual_s(&self) -> f64 {
        self.usual_s
    }
}

/// The bucket below whose end this share of the weights lies.
fn quantile(weights: &[f32; BUCKETS], sum: f32, share: f32) -> usize {
    let mut left = share * sum;
    let found = weights.iter().position(|weight| {
        left -= weight;
        left <= 0.0
    });
    found.unwrap_or(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(class: usize, bucket: usize, count: u32) -> Took {
        Took { class, bucket, count }
    }

    fn after(slow: &mut Slow, seconds: u32, took: &[Took]) -> Option<u32> {
        let seen = Seen { s: 0.5, ..Seen::default() };
        (1..=2 * seconds).find(|_| {
            slow.tick(took, &seen);
            slow.is_certain()
        })
    }

    fn learned() -> Slow {
        let mut slow = Slow::default();
        let usual = [took(2, 30, 10), took(2, 33, 1), took(6, 40, 5)];
        assert_eq!(after(&mut slow, 120, &usual), None);
        slow
    }

    #[test]
    fn a_median_that_has_doubled_is_found_within_seconds_and_less_is_not() {
        // (buckets above the median, half seconds until it is certain)
        for (steps, most) in [(4, Some(14)), (3, Some(14)), (2, None), (1, None), (0, None)] {
            let found = after(&mut learned(), 60, &[took(2, 30 + steps, 15)]);
            match most {
                Some(most) => {
                    assert!(found.is_some_and(|n| (11..=most).contains(&n)), "{steps}: {found:?}");
                }
                None => assert_eq!(found, None, "{steps}"),
            }
        }
    }

    #[test]
    fn another_mix_of_sizes_moves_nothing() {
        assert_eq!(after(&mut learned(), 300, &[took(6, 40, 15)]), None, "large ones only");
        assert_eq!(after(&mut learned(), 300, &[took(2, 30, 15)]), None);
        assert_eq!(after(&mut learned(), 300, &[took(9, 60, 15)]), None, "sizes never seen");
    }

    #[test]
    fn a_moment_is_no_crowd() {
        let mut slow = learned();
        assert_eq!(after(&mut slow, 5, &[took(2, 50, 15)]), None, "five seconds");
        assert_eq!(after(&mut slow, 60, &[took(2, 30, 15)]), None);
        assert!(!slow.is_slow());
    }

    /// A server that completes nothing has no durations: what is overdue counts, as far as completions
    /// are missing.
    #[test]
    fn a_hang_is_slow_too() {
        let hang = |overdue| {
            let mut slow = learned();
            let seen = Seen { s: 0.5, overdue, crowd: false };
            (1..=40).find(|_| {
                slow.tick(&[], &seen);
                slow.is_certain()
            })
        };
        assert!(hang(50.0).is_some_and(|n| (11..=14).contains(&n)));
        assert_eq!(hang(0.0), None, "nobody is there");
    }

    /// Slow for long without a crowd is usual; in a crowd nothing is learned.
    #[test]
    fn what_stays_is_learned_and_a_crowd_is_not() {
        let mut slow = learned();
        let half_hour = |slow: &mut Slow, crowd: bool| {
            for _ in 0..3600 {
                slow.tick(&[took(2, 36, 15)], &Seen { s: 0.5, overdue: 0.0, crowd });
            }
        };
        half_hour(&mut slow, true);
        assert!(slow.is_slow());
        half_hour(&mut slow, false);
        half_hour(&mut slow, false);
        assert!(!slow.is_slow() && !slow.is_certain());
    }

    #[test]
    fn seconds_of_a_bucket_are_its_middle() {
        assert!((seconds(0) - 288e-6).abs() < 1e-9);
        assert!((seconds(4) - 576e-6).abs() < 1e-9);
        assert!((seconds(7) - 512e-6 * 1.875).abs() < 1e-9);
        let slow = learned();
        assert!(slow.overdue_after_s().is_some_and(|s| s > 2.0 * seconds(38)));
        assert!(slow.usual_s() > seconds(29) && slow.usual_s() < seconds(40));
    }
}
