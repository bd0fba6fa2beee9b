// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same as [`Misfire`] of what request rules refuse at the hooks: harm and no good. Requests are counted
//! apart from connections, since who is refused by a rule had been admitted as one.
//!
//! - **Buckets that an operator limits by hand** count for nothing, neither in what is refused nor in what is usual.
//! - **While SYNs are refused** nothing is concluded: the server may be calm because of that, and less is answered
//!   because less may ask.
//! - **A controller that sheds**, that of any bucket that counts, is never overruled. So this is for what refuses
//!   without one: throttling policies of buckets.

use super::misfire::{AGE_MAX, Flows, Misfire, Misfired, NEXT_TO_NOTHING, NOW_SECONDS, flows};
use crate::period_s;
use tidegate_model::RANKS;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::{Counts, Reading, Signals};

/// What is asked about the request rules of a service.
#[derive(Clone, Copy, Debug)]
pub struct RulesAsked<'a> {
    /// The places of the buckets that count: not of those that an operator limits by hand.
    pub buckets: &'a [usize],
    /// Whether refusals are executed. If not, what comes and is answered is what is usual.
    pub enforced: bool,
    /// They are executed for a share of the sources only.
    pub canary: bool,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct RulesMisfire {
    misfire: Misfire,
    syns: Flows,
}

impl RulesMisfire {
    /// Takes a tick, with the limits that were decided in it; what was found, once all of it has held for long
    /// enough.
    pub fn see(
        &mut self,
        signals: &Signals,
        limits: &ServiceLimits,
        asked: &RulesAsked<'_>,
    ) -> Option<Misfired> {
        let syns = signals.balance.counts.and_then(|counts| counts.within(AGE_MAX));
        if let Some(counts) = &syns {
            let seconds = period_s(signals);
            let keep = libm::exp(-seconds / NOW_SECONDS);
            self.syns.toward(&flows(counts, signals, seconds), keep);
        }
        let decided = || asked.buckets.iter().filter_map(|at| limits.buckets.get(*at));
        let mut why = limits.why.clone();
        why.shedding =
            self.syns.refuses(NEXT_TO_NOTHING) || decided().any(|bucket| bucket.why.shedding);
        decided().for_each(|bucket| why.alarmed.extend(&bucket.why.alarmed));
        let mut seen = signals.clone();
        seen.balance.counts = syns.and_then(|_| requests(signals, asked));
        self.misfire.see(&seen, &why, asked.canary)
    }
}

/// The requests of the buckets that count, in the place of connections. Which of them come again is not known.
/// `None`: not all is known of them, or there are none.
fn requests(signals: &Signals, asked: &RulesAsked<'_>) -> Option<Reading<Counts>> {
    let all = |ranks: &[u64; RANKS]| ranks.iter().sum::<u64>();
    let mut sum = Reading::fresh(Counts::default());
    for at in asked.buckets {
        let bucket = signals.buckets.get(*at)?;
        let (counts, answered) = (bucket.counts?, bucket.first_byte?);
        sum.value.offered += all(&counts.value.offered);
        sum.value.refused += if asked.enforced { all(&counts.value.refused) } else { 0 };
        sum.value.completed += answered.value.count;
        sum.age = sum.age.max(counts.age).max(answered.age);
    }
    (!asked.buckets.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::limits::BucketLimits;
    use tidegate_model::signals::{BucketCounts, BucketSignals, Family, Times};
    use tidegate_units::{Nanos, Share};

    const TICK: Nanos = Nanos::from_millis(100);

    /// A tick. The second bucket is one that an operator limits by hand.
    #[derive(Clone, Copy, Debug)]
    struct Now {
        syns: u64,
        syns_refused: u64,
        comes: u64,
        refused: u64,
        answered: u64,
        by_hand: (u64, u64, u64),
        sheds: [bool; 2],
        alarmed: bool,
        cpu: f64,
        waiting: u64,
    }

    const CALM: Now = Now {
        syns: 20,
        syns_refused: 0,
        comes: 10,
        refused: 0,
        answered: 10,
        by_hand: (10, 0, 10),
        sheds: [false; 2],
        alarmed: false,
        cpu: 0.3,
        waiting: 4,
    };
    const WRONG: Now = Now { refused: 5, answered: 5, waiting: 2, cpu: 0.15, ..CALM };
    const ASKED: RulesAsked<'_> = RulesAsked { buckets: &[0], enforced: true, canary: false };

    fn bucket((comes, refused, count): (u64, u64, u64)) -> BucketSignals {
        let (offered, refused) = ([0, comes, 0], [0, refused, 0]);
        let counts = BucketCounts { offered, refused, ..BucketCounts::default() };
        BucketSignals {
            counts: Some(Reading::fresh(counts)),
            first_byte: Some(Reading::fresh(Times { count, ..Times::default() })),
            ..BucketSignals::default()
        }
    }

    #[derive(Default)]
    struct Course {
        misfire: RulesMisfire,
        ticks: u64,
    }

    impl Course {
        /// The first tick of these seconds at which something was found.
        fn go(&mut self, seconds: u64, now: Now, asked: &RulesAsked<'_>) -> Option<u64> {
            let mut found = None;
            for n in 0..10 * seconds {
                self.ticks += 1;
                let mut signals =
                    Signals { now: Nanos(self.ticks * TICK.0), period: TICK, ..Signals::default() };
                let (offered, refused) = (now.syns, now.syns_refused);
                let syns = Counts { offered, refused, completed: 20, ..Counts::default() };
                signals.balance.counts = Some(Reading::fresh(syns));
                signals.time.waiting = Some(Reading::fresh(now.waiting));
                signals.resource.cpu = Some(Reading::fresh(Share::new(now.cpu)));
                let own = bucket((now.comes, now.refused, now.answered));
                signals.buckets = vec![own, bucket(now.by_hand)];
                let mut limits = ServiceLimits::default();
                limits.why.shedding = now.sheds.contains(&true);
                limits.buckets = vec![BucketLimits::default(); 2];
                for (bucket, sheds) in limits.buckets.iter_mut().zip(now.sheds) {
                    bucket.why.shedding = sheds;
                }
                if now.alarmed {
                    limits.buckets[0].why.alarmed.push(Family::Resource);
                }
                let seen = self.misfire.see(&signals, &limits, asked);
                found = found.or(seen.map(|_| n));
            }
            found
        }

        fn after_a_calm_minute(now: Now, asked: &RulesAsked<'_>) -> Option<u64> {
            let mut course = Self::default();
            assert_eq!(course.go(60, CALM, asked), None);
            course.go(20, now, asked)
        }
    }

    #[test]
    fn rules_gone_wrong_are_found_in_some_seconds() {
        let found = Course::after_a_calm_minute(WRONG, &ASKED);
        assert!(found.is_some_and(|tick| (50..100).contains(&tick)), "{found:?}");
        let canary = RulesAsked { canary: true, ..ASKED };
        let all_answered = Now { answered: 10, ..WRONG };
        assert!(Course::after_a_calm_minute(all_answered, &canary).is_some());
    }

    #[test]
    fn what_is_refused_for_a_reason_is_not() {
        for (name, now) in [
            ("more comes", Now { comes: 20, refused: 15, ..WRONG }),
            ("the bucket's controller sheds", Now { sheds: [true, false], ..WRONG }),
            ("it is pressed", Now { alarmed: true, ..WRONG }),
            ("the CPU is used", Now { cpu: 0.9, ..WRONG }),
            ("much is in flight", Now { waiting: 40, ..WRONG }),
            ("as much is answered as usual", Now { answered: 10, ..WRONG }),
            ("a flood of SYNs is refused", Now { syns: 500, syns_refused: 490, ..WRONG }),
            ("a few SYNs are refused", Now { syns_refused: 1, ..WRONG }),
        ] {
            assert_eq!(Course::after_a_calm_minute(now, &ASKED), None, "{name}");
        }
    }

    /// A flood that ends while the rules go on refusing: only then can anything be told.
    #[test]
    fn what_is_seen_while_syns_are_refused_is_not_usual() {
        let mut course = Course::default();
        course.go(60, Now { syns: 500, syns_refused: 490, ..CALM }, &ASKED);
        assert_eq!(course.go(20, WRONG, &ASKED), None, "nothing is usual");
        let mut course = Course::default();
        course.go(60, CALM, &ASKED);
        assert_eq!(course.go(20, Now { syns_refused: 10, ..WRONG }, &ASKED), None);
        assert!(course.go(20, WRONG, &ASKED).is_some());
    }

    /// Neither what it refuses nor what comes to it.
    #[test]
    fn a_bucket_that_is_limited_by_hand_counts_for_nothing() {
        let now = Now { by_hand: (500, 490, 10), sheds: [false, true], ..CALM };
        assert_eq!(Course::after_a_calm_minute(now, &ASKED), None, "its own refusals");
        let now = Now { by_hand: now.by_hand, sheds: now.sheds, ..WRONG };
        assert!(Course::after_a_calm_minute(now, &ASKED).is_some(), "beside those of another");
        let none = RulesAsked { buckets: &[], ..ASKED };
        assert_eq!(Course::after_a_calm_minute(WRONG, &none), None);
    }

    #[test]
    fn what_is_only_counted_is_usual() {
        let mut course = Course::default();
        let shadow = RulesAsked { enforced: false, ..ASKED };
        assert_eq!(course.go(60, Now { refused: 5, ..CALM }, &shadow), None);
        assert!(course.go(20, WRONG, &ASKED).is_some());
    }

    #[test]
    fn what_is_not_known_is_no_reason() {
        type Hide = fn(&mut Signals);
        let hidden: [(&str, Hide); 4] = [
            ("SYNs", |s| s.balance.counts = None),
            ("requests", |s| s.buckets[0].counts = None),
            ("answers", |s| s.buckets[0].first_byte = None),
            ("the bucket", |s| s.buckets.clear()),
        ];
        for (name, hide) in hidden {
            let mut misfire = RulesMisfire::default();
            for n in 1..=900 {
                let now = if n <= 600 { CALM } else { WRONG };
                let mut signals =
                    Signals { now: Nanos(n * TICK.0), period: TICK, ..Signals::default() };
                let syns = Counts { offered: 20, completed: 20, ..Counts::default() };
                signals.balance.counts = Some(Reading::fresh(syns));
                signals.time.waiting = Some(Reading::fresh(now.waiting));
                signals.buckets = vec![bucket((now.comes, now.refused, now.answered))];
                hide(&mut signals);
                let found = misfire.see(&signals, &ServiceLimits::default(), &ASKED);
                assert_eq!(found, None, "{name}");
            }
        }
    }
}
