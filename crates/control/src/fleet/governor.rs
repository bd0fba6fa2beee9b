// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One service: its controllers, and what holds whatever they do.
//!
//! ```text
//!   signals ─► controllers ─► what policies need ─► nothing tighter ─► limits of a ─► limits
//!              (steering)     beside a rate         without signals    predecessor
//! ```
//!
//! - A controller is arithmetic on whatever the world measured. It may panic, and then only its own service is
//!   released, and its controllers are started anew; after [`PANICS_MAX`] times not before a reload.
//! - Without a signal that is younger than [`SIGNAL_AGE_MAX`] nothing becomes tighter than it was.
//! - Limits of a predecessor stay for a while, unless the new controller sheds: it needs that time to see what its
//!   predecessor saw.
//! - The rate that an operator set by hand, or a ceiling, holds also where a controller failed or nothing was sensed; that
//!   of the service also while limits of a predecessor stay, unless these are tighter.
//!
//! The daemon and the simulator run it. It knows nothing of files: [`Terms`] are what a file says.

use super::bounds::{Operator, no_tighter};
use super::steering::Steering;
use crate::{
    BucketController, Controller, Detector, Dual, Interaction, Measured, Misfire, Misfired, Mode,
    Wants, signals_fresh,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use tidegate_model::limits::{BucketLimits, Reserve, ServiceLimits, Why};
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// After so many panics a controller is not started again until the next reload.
pub const PANICS_MAX: u32 = 3;
/// A reading older than this is no reason to tighten.
pub const SIGNAL_AGE_MAX: Nanos = Nanos::from_secs(3);

/// What the configuration says of a service, beside its controllers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terms {
    /// What an operator said of its rates and of those of its buckets.
    pub operator: Operator,
    /// How many back-ends each have that; 0: it runs on this host.
    pub back_ends: usize,
    /// What its policies need beside a rate.
    pub wants: Wants,
    /// What its classes keep of its bucket.
    pub reserve: Reserve,
    /// Refusals of request rules are only counted.
    pub rules_in_shadow: bool,
    /// All refusals are only counted.
    pub shadow: bool,
    /// Only a part of the sources is refused.
    pub canary: bool,
}

impl Terms {
    /// Limits with a bucket of at least one token, and what the classes keep of it.
    #[must_use]
    pub fn with_reserve(&self, mut limits: ServiceLimits) -> ServiceLimits {
        limits.burst = limits.burst.max(1);
        limits.reserve = self.reserve.tokens(limits.burst);
        limits
    }

    /// Limits where no controller decides: what an operator set by hand, of each back-end.
    fn without_controller(&self, now: Nanos, why: &str) -> ServiceLimits {
        let cap = self.operator.service.cap();
        let what = cap.map_or_else(
            || "everything passes".to_owned(),
            |cap| format!("only the operator's cap of {} holds", cap.rate),
        );
        let text = format!("{why}: {what}");
        let why = Why { shedding: false, since: now, alarmed: Vec::new(), cause: None, text };
        let all = self.operator.of_all(self.back_ends);
        let own = all.buckets.iter().map(|bounds| BucketLimits {
            rate: bounds.own,
            burst: bounds.burst.max(1),
            why: why.clone(),
            ..BucketLimits::default()
        });
        let any = all.buckets.iter().any(|bounds| bounds.own.is_some());
        let buckets = if any { own.collect() } else { Vec::new() };
        let burst = cap.map_or(1, |cap| cap.burst);
        let rate = all.service.own;
        self.with_reserve(ServiceLimits { rate, burst, why, buckets, ..ServiceLimits::default() })
    }
}

/// Controllers that have seen nothing, as a configuration names them.
pub struct NewControllers {
    /// Of its request buckets, in the order of the configuration.
    pub buckets: Vec<Box<dyn BucketController>>,
    /// Of its rules.
    pub detector: Detector,
    /// Of the service.
    pub service: Box<dyn Controller>,
    /// How the two are coupled.
    pub interaction: Interaction,
    /// What holds whatever they do.
    pub cap: Option<crate::Cap>,
}

impl NewControllers {
    /// All of them together.
    #[must_use]
    pub fn dual(self) -> Dual {
        Dual::new(self.buckets, self.detector, self.service, self.interaction).capped(self.cap)
    }
}

/// What of a service's controllers stays under another configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stays {
    /// That of the service, with its limit.
    pub service: bool,
    /// The detector of its rules.
    pub detector: bool,
    /// For each bucket, the place that it had before, if it is the same.
    pub buckets: Vec<Option<usize>>,
}

/// Makes the controllers of a service.
pub type Maker = Box<dyn Fn() -> Steering + Send>;

/// Why a service has no limits but those of its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A controller panicked; another one begins.
    StartedAnew,
    /// It panicked too often.
    TooOften,
}

impl Failed {
    /// For people.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::StartedAnew => {
                "its controller failed and was started anew; everything passes but for what \
                an operator's cap refuses"
                    .into()
            }
            Self::TooOften => {
                format!("its controller failed {PANICS_MAX} times; released until a reload")
            }
        }
    }
}

/// A service and its controllers: see the head of this file.
pub struct Governor {
    /// Its limits since the last tick.
    pub limits: ServiceLimits,
    steering: Steering,
    make: Option<Maker>,
    panics: u32,
    /// What its policies need beside a rate.
    measured: Measured,
    /// Whether what is refused does harm and no good.
    misfire: Misfire,
    /// Until then the limits of a predecessor stay.
    inherits_until: Option<Nanos>,
}

impl Governor {
    /// Begins with these controllers, and makes others where they fail.
    #[must_use]
    pub fn new(make: Maker) -> Self {
        let steering = make();
        Self { make: Some(make), ..Self::with(steering) }
    }

    /// Begins with one controller, of a service without request rules. There is no other: where it panics, so does
    /// whoever asked.
    #[must_use]
    pub fn of_one(controller: Box<dyn Controller>) -> Self {
        Self::with(Steering::Host(Box::new(Dual::alone(controller))))
    }

    fn with(steering: Steering) -> Self {
        Self {
            limits: ServiceLimits::default(),
            steering,
            make: None,
            panics: 0,
            measured: Measured::default(),
            misfire: Misfire::default(),
            inherits_until: None,
        }
    }

    /// The same service and controllers; one that failed too often is started again.
    #[must_use]
    pub fn retry_after_panics(self) -> Self {
        Self { panics: 0, ..self }
    }

    /// The same service under another configuration: what stays of its controllers keeps what it has learned, and its
    /// limit. Every back-end has all controllers: they are made anew together.
    #[must_use]
    pub fn follow(self, make: Maker, new: NewControllers, stays: &Stays) -> Self {
        let Steering::Host(mut dual) = self.steering else { return Self::new(make) };
        let mut old: Vec<_> = dual.take_buckets().into_iter().map(Some).collect();
        let mut limits = if stays.service { self.limits.clone() } else { ServiceLimits::default() };
        limits.buckets = Vec::new();
        let mut buckets = Vec::new();
        let places = stays.buckets.iter().copied().chain(std::iter::repeat(None));
        for (bucket, place) in new.buckets.into_iter().zip(places) {
            let kept = place.and_then(|place| old.get_mut(place)?.take());
            let decided = place.filter(|_| kept.is_some());
            let before = decided.and_then(|at| self.limits.buckets.get(at).cloned());
            limits.buckets.push(before.unwrap_or_default());
            buckets.push(kept.unwrap_or(bucket));
        }
        let dual = if stays.service {
            let sheds = self.limits.rate.is_some() && self.limits.why.shedding;
            dual.with_buckets(buckets, new.interaction, sheds)
        } else {
            let detector = if stays.detector { dual.into_detector() } else { new.detector };
            Dual::new(buckets, detector, new.service, new.interaction)
        };
        let steering = Steering::Host(Box::new(dual.capped(new.cap)));
        Self { limits, steering, make: Some(make), panics: 0, ..self }
    }

    /// Other controllers begin in the place of those that panicked.
    fn restart(&mut self, panic: Box<dyn Any + Send>) {
        match &self.make {
            Some(make) => self.steering = make(),
            None => resume_unwind(panic),
        }
    }

    /// Lifts all limits for this reason, but for what an operator set by hand.
    pub fn release(&mut self, terms: &Terms, now: Nanos, why: &str) {
        self.limits = terms.without_controller(now, why);
    }

    /// The limits for the next tick.
    ///
    /// # Errors
    /// When a controller failed: the service is released, but for what an operator set by hand.
    pub fn tick(&mut self, terms: &Terms, signals: &Signals, mode: Mode) -> Result<(), Failed> {
        if self.panics >= PANICS_MAX {
            return Err(Failed::TooOften);
        }
        let shadow = terms.rules_in_shadow;
        let ticked = catch_unwind(AssertUnwindSafe(|| self.steering.tick(signals, mode, shadow)));
        let wanted = match ticked {
            Ok(wanted) => wanted,
            Err(panic) => {
                self.panics += 1;
                self.restart(panic);
                self.release(terms, signals.now, "the controller failed");
                return Err(Failed::StartedAnew);
            }
        };
        let mut limits = terms.with_reserve(wanted);
        self.measured.complete(signals, &terms.wants, &mut limits);
        if !signals_fresh(signals, SIGNAL_AGE_MAX) {
            // The controller should not tighten by old signals. It may not, whatever it thinks.
            limits = no_tighter(&limits, &self.limits, &terms.operator, terms.back_ends);
        }
        let inherits = self.inherits_until.is_some_and(|until| signals.now < until);
        if !inherits || limits.why.shedding {
            self.limits = limits;
            return Ok(());
        }
        let bounds = terms.operator.of_all(terms.back_ends).service;
        let rate = bounds.with_own(self.limits.rate, limits.rate);
        if rate != self.limits.rate {
            (self.limits.rate, self.limits.burst) = (rate, limits.burst);
            self.limits.reserve = limits.reserve;
        }
        if self.limits.buckets.len() != limits.buckets.len() {
            self.limits.buckets = limits.buckets;
        }
        Ok(())
    }

    /// Whether what is refused does harm and no good. What an operator's own limit refuses is none of that.
    pub fn misfires(&mut self, terms: &Terms, signals: &Signals) -> Option<Misfired> {
        let mut seen = signals.clone();
        if terms.shadow
            && let Some(counts) = &mut seen.balance.counts
        {
            // Nothing is really refused: this is what is usual.
            counts.value.refused = 0;
        }
        let found = self.misfire.see(&seen, &self.limits.why, terms.canary);
        let bounds = &terms.operator.service;
        let cap = bounds.own.zip(self.limits.rate);
        let by_hand = bounds.by_hand || cap.is_some_and(|(own, rate)| rate >= own);
        found.filter(|_| !by_hand)
    }

    /// Begins with what a predecessor had decided; until then that stays. Buckets have no names there: where their
    /// number is another, they are others.
    pub fn inherit(&mut self, terms: &Terms, mut limits: ServiceLimits, until: Option<Nanos>) {
        if limits.buckets.len() != terms.operator.buckets.len() {
            limits.buckets.clear();
        }
        self.limits = limits;
        self.inherits_until = until;
    }

    /// The limits of a predecessor stay no longer.
    pub fn forget_predecessor(&mut self) {
        self.inherits_until = None;
    }

    /// What its controllers have learned.
    #[must_use]
    pub fn save(&self) -> Option<serde_json::Value> {
        let saved = catch_unwind(AssertUnwindSafe(|| self.steering.save()));
        saved.unwrap_or_else(|panic| match &self.make {
            Some(_) => None,
            None => resume_unwind(panic),
        })
    }

    /// Gives that to its controllers, `age` later; false: they begin afresh.
    pub fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        let restored = catch_unwind(AssertUnwindSafe(|| self.steering.restore(value, age)));
        restored.unwrap_or_else(|panic| {
            // Half of it may have been taken.
            self.restart(panic);
            false
        })
    }

    /// Whether it has no word yet against what was in force before the start: it sees and does not
    /// shed, and the rate is not one that an operator set.
    #[must_use]
    pub fn is_undecided(&self, terms: &Terms, signals: &Signals) -> bool {
        let by_hand = terms.operator.service.by_hand;
        signals_fresh(signals, SIGNAL_AGE_MAX) && !by_hand && !self.limits.why.shedding
    }

    /// The same of its request buckets: which.
    #[must_use]
    pub fn undecided_buckets(&self, terms: &Terms, signals: &Signals) -> Vec<usize> {
        let sees = signals_fresh(signals, SIGNAL_AGE_MAX);
        let buckets = self.limits.buckets.iter().zip(&terms.operator.buckets).enumerate();
        let undecided =
            buckets.filter(|(_, (limits, bounds))| sees && !bounds.by_hand && !limits.why.shedding);
        undecided.map(|(bucket, _)| bucket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bounds;
    use super::*;
    use crate::{BucketSpec, FixedBucket};
    use tidegate_model::signals::{Counts, Reading};
    use tidegate_units::Rate;

    /// Admits so many a second in an overload, or everything; fails where nobody knows the period.
    struct Told(Option<f64>);
    impl Controller for Told {
        fn tick(&mut self, signals: &Signals, _: Mode) -> ServiceLimits {
            assert!(signals.period > Nanos::ZERO, "a controller that fails");
            if let Some(counts) = signals.balance.counts {
                // Tests tell it by what was offered.
                self.0 = (counts.value.offered > 0).then_some(counts.value.offered as f64);
            }
            let why = Why { shedding: self.0.is_some(), ..Why::default() };
            ServiceLimits { rate: self.0.map(Rate::per_second), why, ..ServiceLimits::default() }
        }

        fn restore(&mut self, value: serde_json::Value, _: Nanos) -> bool {
            self.0 = value.as_f64();
            assert!(self.0.is_some(), "a controller that fails");
            true
        }
    }

    /// So many a second are told, with a reading of this age.
    fn told(ms: u64, rate: u64, age: Nanos) -> Signals {
        let period = Nanos::from_millis(100);
        let mut signals = Signals { now: Nanos::from_millis(ms), period, ..Signals::default() };
        let counts = Counts { offered: rate, ..Counts::default() };
        signals.balance.counts = Some(Reading { value: counts, age });
        signals
    }

    fn rate(governor: &Governor) -> Option<f64> {
        governor.limits.rate.map(Rate::get)
    }

    fn new_controllers(buckets: usize) -> NewControllers {
        let bucket = || -> Box<dyn BucketController> {
            Box::new(FixedBucket::new(Rate::per_second(5.0), BucketSpec::default()))
        };
        NewControllers {
            buckets: (0..buckets).map(|_| bucket()).collect(),
            detector: Detector::of_rules(Nanos::SECOND),
            service: Box::new(Told(None)),
            interaction: Interaction::Published,
            cap: None,
        }
    }

    fn maker(buckets: usize) -> Maker {
        Box::new(move || Steering::Host(Box::new(new_controllers(buckets).dual())))
    }

    fn tick(governor: &mut Governor, signals: &Signals) -> Result<(), Failed> {
        governor.tick(&Terms::default(), signals, Mode::Enforce)
    }

    #[test]
    fn without_a_signal_of_late_nothing_becomes_tighter() {
        let mut governor = Governor::new(maker(0));
        let old = SIGNAL_AGE_MAX + Nanos(1);
        for (ms, wanted, age, found) in [
            (100, 50, Nanos::ZERO, Some(50.0)),
            (200, 20, old, Some(50.0)),
            (300, 80, old, Some(80.0)),
            (400, 20, SIGNAL_AGE_MAX, Some(20.0)),
            (500, 0, old, None),
            (600, 20, old, None),
        ] {
            assert_eq!(tick(&mut governor, &told(ms, wanted, age)), Ok(()));
            assert_eq!(rate(&governor), found, "{ms} ms");
        }
    }

    #[test]
    fn a_controller_that_fails_limits_nothing_and_is_started_anew_three_times() {
        let own = Bounds { own: Some(Rate::per_second(9.0)), burst: 7, ..Bounds::default() };
        let operator = Operator { service: own, buckets: vec![Bounds::default()] };
        let terms = Terms { operator, ..Terms::default() };
        let mut governor = Governor::new(maker(1));
        let tick = |governor: &mut Governor, signals: &Signals| {
            governor.tick(&terms, signals, Mode::Enforce)
        };
        let broken = Signals::default();
        for _ in 0..PANICS_MAX {
            assert_eq!(tick(&mut governor, &told(0, 5, Nanos::ZERO)), Ok(()));
            assert_eq!(rate(&governor), Some(5.0));
            assert_eq!(tick(&mut governor, &broken), Err(Failed::StartedAnew));
            assert_eq!((rate(&governor), governor.limits.burst), (Some(9.0), 7), "the operator's");
            assert!(governor.limits.buckets.is_empty(), "nothing was said of any bucket");
        }
        assert_eq!(tick(&mut governor, &told(0, 5, Nanos::ZERO)), Err(Failed::TooOften));
        let mut governor = governor.retry_after_panics();
        assert_eq!(tick(&mut governor, &told(0, 5, Nanos::ZERO)), Ok(()));
        assert_eq!(rate(&governor), Some(5.0));
        assert!(!governor.restore(serde_json::json!("half of it"), Nanos::ZERO));
        assert!(governor.restore(serde_json::json!(4.0), Nanos::ZERO));
    }

    #[test]
    fn limits_of_a_predecessor_stay_for_a_while_unless_the_new_controller_sheds() {
        let before = ServiceLimits { rate: Some(Rate::per_second(30.0)), ..Default::default() };
        for (sheds_at, after) in [(None, [Some(30.0), None]), (Some(200), [Some(40.0); 2])] {
            let mut governor = Governor::new(maker(0));
            governor.inherit(&Terms::default(), before.clone(), Some(Nanos::from_millis(350)));
            let mut found = Vec::new();
            for ms in [100, 200, 300, 400] {
                let wanted = if sheds_at.is_some_and(|at| ms >= at) { 40 } else { 0 };
                tick(&mut governor, &told(ms, wanted, Nanos::ZERO)).unwrap();
                found.push(rate(&governor));
            }
            assert_eq!(found[0], Some(30.0));
            assert_eq!(found[2..], after, "{sheds_at:?}");
        }
        let bucket = BucketLimits { rate: Some(Rate::per_second(1.0)), ..Default::default() };
        let mut governor = Governor::new(maker(0));
        let other = ServiceLimits { buckets: vec![bucket], ..before };
        governor.inherit(&Terms::default(), other, None);
        assert!(governor.limits.buckets.is_empty(), "another number of buckets: others");
    }

    /// A rate set by hand holds at once, of each back-end, and keeps its reserve; a controller's own waits.
    #[test]
    fn what_an_operator_set_holds_beside_the_limits_of_a_predecessor() {
        let own = Bounds { own: Some(Rate::per_second(20.0)), ..Bounds::default() };
        let operator = Operator { service: own, buckets: Vec::new() };
        let terms = Terms { operator, back_ends: 2, ..Terms::default() };
        for (before, found) in [(None, 40.0), (Some(60.0), 40.0), (Some(30.0), 30.0)] {
            let rate_before = before.map(Rate::per_second);
            let limits = ServiceLimits { rate: rate_before, burst: 3, ..Default::default() };
            // It wants 50/s and sheds nothing: a ceiling.
            let mut governor = Governor::new(Box::new(|| {
                let calm = Calm(Rate::per_second(50.0));
                Steering::Host(Box::new(Dual::alone(Box::new(calm))))
            }));
            governor.inherit(&terms, limits, Some(Nanos::SECOND));
            governor.tick(&terms, &told(100, 1, Nanos::ZERO), Mode::Enforce).unwrap();
            assert_eq!(rate(&governor), Some(found), "{before:?}");
            governor.tick(&terms, &told(1000, 1, Nanos::ZERO), Mode::Enforce).unwrap();
            assert_eq!(rate(&governor), Some(50.0));
            governor.release(&terms, Nanos::SECOND, "nothing was sensed");
            assert_eq!(rate(&governor), Some(40.0));
        }
    }

    /// A rate, and no overload.
    struct Calm(Rate);
    impl Controller for Calm {
        fn tick(&mut self, _: &Signals, _: Mode) -> ServiceLimits {
            ServiceLimits { rate: Some(self.0), burst: 9, ..ServiceLimits::default() }
        }
    }

    /// Whoever sees and does not shed has no word yet, but for what an operator set by hand.
    #[test]
    fn who_does_not_shed_is_undecided() {
        let by_hand = Bounds { by_hand: true, ..Bounds::default() };
        let operator = Operator { service: by_hand, buckets: vec![by_hand, Bounds::default()] };
        let terms = Terms { operator, ..Terms::default() };
        let mut governor = Governor::new(maker(2));
        let old = SIGNAL_AGE_MAX + Nanos(1);
        for (offered, age, service, buckets) in [
            (0, Nanos::ZERO, true, vec![1]),
            (0, old, false, vec![]),
            (9, Nanos::ZERO, false, vec![1]),
        ] {
            let signals = told(100, offered, age);
            tick(&mut governor, &signals).unwrap();
            assert_eq!(governor.is_undecided(&Terms::default(), &signals), service);
            assert!(!governor.is_undecided(&terms, &signals), "set by hand");
            assert_eq!(governor.undecided_buckets(&terms, &signals), buckets, "{offered}");
        }
    }

    #[test]
    #[should_panic(expected = "a controller that fails")]
    fn where_there_is_no_other_controller_its_panic_goes_on() {
        let mut governor = Governor::of_one(Box::new(Told(None)));
        let _ = tick(&mut governor, &Signals::default());
    }

    #[test]
    fn what_stays_keeps_what_it_has_learned_and_its_limit() {
        for (stays, service, buckets) in [
            (
                Stays { service: true, detector: true, buckets: vec![None, Some(0)] },
                true,
                [false, true],
            ),
            (
                Stays { service: false, detector: true, buckets: vec![Some(1), None] },
                false,
                [true, false],
            ),
            (Stays::default(), false, [false, false]),
        ] {
            let mut governor = Governor::new(maker(2));
            tick(&mut governor, &told(100, 50, Nanos::ZERO)).unwrap();
            let mut governor = governor.follow(maker(2), new_controllers(2), &stays);
            assert_eq!(rate(&governor).is_some(), service, "{stays:?}");
            let kept: Vec<bool> =
                governor.limits.buckets.iter().map(|bucket| bucket.rate.is_some()).collect();
            assert_eq!(kept, buckets, "{stays:?}");
            // Without a count the controller stands by what it knew.
            let mut silent = told(200, 0, Nanos::ZERO);
            silent.balance.counts = None;
            silent.resource.cpu = Some(Reading::fresh(tidegate_units::Share::new(0.5)));
            tick(&mut governor, &silent).unwrap();
            assert_eq!(rate(&governor), service.then_some(50.0), "{stays:?}");
        }
    }
}
