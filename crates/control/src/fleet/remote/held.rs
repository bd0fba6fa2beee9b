// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One remote limit where it is enforced.
//!
//! ```text
//!  rate     renewed …      expired: × 2 per validity, probing           gone
//!   in      ─────────────┐ ┌──┐                                      ┌──────────
//!  force                 └─┘  └── never below the minimum rate ──  8 × validity
//! ```
//!
//! Its sender may lower what passes by at most half per second and never below the minimum rate: a sender
//! that is wrong, or somebody else, slows its own destination down and does not cut it off.

use super::super::clamp::INTERVAL;
use tidegate_model::remote::{Form, RemoteLimit};
use tidegate_units::{Nanos, Rate};

/// A limit that is not renewed is gone after so many validities; before, it doubles with each.
pub const OPENING_STEPS: u64 = 8;
/// For so long the lease holds the limits of a daemon that has died (`policy/chain/lease.h`).
const LEASE_HOLDS: Nanos = Nanos::from_secs(3);
/// See [`Held::ends`].
const ENDS_STEP: Nanos = Nanos::from_millis(500);

/// What comes and what passes where a limit is enforced, per second; `None`: not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// New work that comes, with what is refused.
    pub offered: Option<Rate>,
    /// What passes.
    pub passed: Option<Rate>,
}

/// A limit that was taken.
#[derive(Clone, Debug)]
pub struct Held {
    limit: RemoteLimit,
    /// When the last message arrived that counted.
    at: Nanos,
    /// What is in force; `None`: nothing yet.
    rate: Option<Rate>,
    /// What it may not fall below half of until the interval is over, and since when.
    base: Option<Rate>,
    since: Option<Nanos>,
    /// The rate at the end of the validity.
    expired: Option<Rate>,
}

impl Held {
    /// A limit that arrived now.
    #[must_use]
    pub const fn new(limit: RemoteLimit, now: Nanos) -> Self {
        Self { limit, at: now, rate: None, base: None, since: None, expired: None }
    }

    /// Another message of the same sender for the same scope.
    pub fn renew(&mut self, limit: RemoteLimit, now: Nanos) {
        self.limit = limit;
        self.at = self.at.max(now);
        self.expired = None;
    }

    /// What it asks for is another rate by now.
    pub(super) fn follow(&mut self, rate: Rate) {
        self.limit.restriction = self.limit.restriction.unit().limit(rate);
    }

    /// What its sender said last.
    #[must_use]
    pub const fn limit(&self) -> &RemoteLimit {
        &self.limit
    }

    /// The end of its validity.
    #[must_use]
    pub fn until(&self) -> Nanos {
        self.at + self.limit.validity
    }

    /// Validities since the last message: 0 while it is valid, then the steps by which it opened.
    #[must_use]
    pub const fn steps(&self, now: Nanos) -> u64 {
        let age = now.since(self.at).0;
        match age.checked_div(self.limit.validity.0) {
            Some(steps) => steps,
            None => OPENING_STEPS,
        }
    }

    /// When the kernel ends it if nobody is there to renew or to open it: when it would be gone, and not before the lease opens
    /// what a dead daemon decided. To half a second, since each other time is written anew.
    #[must_use]
    pub fn ends(&self) -> Nanos {
        let gone = Nanos(self.limit.validity.0.saturating_mul(OPENING_STEPS));
        let ends = self.at + gone.max(LEASE_HOLDS);
        Nanos(ends.0 - ends.0 % ENDS_STEP.0)
    }

    /// Whether it is over.
    #[must_use]
    pub const fn gone(&self, now: Nanos) -> bool {
        self.steps(now) >= OPENING_STEPS
    }

    /// What is in force.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Depth of the bucket, in admissions: a gap admits one at a time.
    #[must_use]
    pub const fn burst(&self, of_rate: u32) -> u32 {
        match self.limit.restriction.form() {
            Form::Gap => 1,
            Form::Rate | Form::Loss => of_rate,
        }
    }

    /// Admissions per second that are allowed from now on; `None`: no limit.
    pub fn tick(&mut self, now: Nanos, seen: Seen, min_rate: Rate) -> Option<Rate> {
        let steps = self.steps(now);
        self.rate = if steps == 0 {
            self.valid(now, seen, min_rate)
        } else if steps < OPENING_STEPS {
            self.expired = self.expired.or(self.rate);
            let times = (1_u64 << steps) as f64;
            self.expired.map(|rate| Rate::per_second(rate.get() * times))
        } else {
            None
        };
        self.rate
    }

    fn valid(&mut self, now: Nanos, seen: Seen, min_rate: Rate) -> Option<Rate> {
        let wanted = self.limit.restriction.rate(seen.offered)?;
        if self.since.is_none_or(|at| now.since(at) >= INTERVAL) {
            self.since = Some(now);
            // A limit that was not there begins at half of what passes.
            self.base = self.rate.or(seen.passed);
        } else if self.base < self.rate {
            // What has risen meanwhile must not fall back by more either.
            self.base = self.rate;
        }
        let least = (self.base?.get() / 2.0).max(min_rate.get());
        Some(Rate::per_second(wanted.get().max(least)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::remote::{Restriction, Scope, Unit};
    use tidegate_units::Share;

    fn limit(restriction: Restriction) -> RemoteLimit {
        let scope = Scope::Service("shop".into());
        let validity = Nanos::from_millis(500);
        RemoteLimit { scope, restriction, validity, sequence: 1, priority: 0 }
    }

    fn rate(rate: f64) -> Restriction {
        Restriction::Rate(Rate::per_second(rate))
    }

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn seen(offered: f64, passed: f64) -> Seen {
        let known = |rate| Some(Rate::per_second(rate));
        Seen { offered: known(offered), passed: known(passed) }
    }

    const MIN_RATE: f64 = 10.0;

    fn tick(held: &mut Held, at: u64, seen: Seen) -> Option<f64> {
        held.tick(ms(at), seen, Rate::per_second(MIN_RATE)).map(Rate::get)
    }

    #[test]
    fn it_falls_by_half_a_second_and_not_below_the_floor() {
        let mut held = Held::new(limit(rate(0.001)), ms(0));
        let mut course = Vec::new();
        for at in (0..9_000).step_by(100) {
            held.renew(limit(rate(0.001)), ms(at));
            course.push(tick(&mut held, at, seen(800.0, 800.0)).unwrap());
        }
        let each: Vec<f64> = course.iter().step_by(10).copied().collect();
        assert_eq!(each, [400.0, 200.0, 100.0, 50.0, 25.0, 12.5, 10.0, 10.0, 10.0]);
        held.renew(limit(rate(700.0)), ms(9_000));
        assert_eq!(tick(&mut held, 9_000, seen(800.0, 10.0)), Some(700.0), "it rises at once");
    }

    #[test]
    fn it_opens_in_steps_and_a_message_in_between_brings_it_back() {
        let mut held = Held::new(limit(rate(100.0)), ms(0));
        assert_eq!(tick(&mut held, 0, seen(150.0, 150.0)), Some(100.0));
        assert_eq!(tick(&mut held, 499, seen(150.0, 100.0)), Some(100.0));
        for (at, expected) in [(500, 200.0), (999, 200.0), (1_000, 400.0), (1_500, 800.0)] {
            assert_eq!(tick(&mut held, at, seen(150.0, 100.0)), Some(expected), "{at} ms");
        }
        held.renew(limit(rate(100.0)), ms(1_600));
        assert_eq!(tick(&mut held, 1_600, seen(150.0, 100.0)), Some(400.0), "halved at most");
        assert_eq!(tick(&mut held, 2_099, seen(150.0, 100.0)), Some(400.0));
        assert!(!held.gone(ms(5_599)) && held.gone(ms(5_600)), "eight validities");
        assert_eq!(tick(&mut held, 5_600, seen(150.0, 100.0)), None);
    }

    /// Whatever the form: what passes falls by half in a second at most, never below the minimum rate, and opens in
    /// the same steps.
    #[test]
    fn every_form_has_the_same_clamps() {
        for (unit, form) in [
            (Unit::Connections, Form::Rate),
            (Unit::Connections, Form::Loss),
            (Unit::Connections, Form::Gap),
            (Unit::Requests, Form::Rate),
            (Unit::Requests, Form::Loss),
            (Unit::Requests, Form::Gap),
        ] {
            let offered = Some(Rate::per_second(800.0));
            let least = Rate::per_second(if form == Form::Gap { 1.0 } else { 0.8 });
            let wanted = limit(Restriction::in_form(unit, form, least, offered));
            assert_eq!((wanted.restriction.unit(), wanted.restriction.form()), (unit, form));
            let mut held = Held::new(wanted.clone(), ms(0));
            let mut course = Vec::new();
            for at in (0..8_000).step_by(100) {
                held.renew(wanted.clone(), ms(at));
                course.push(tick(&mut held, at, seen(800.0, 800.0)).unwrap());
            }
            let each: Vec<f64> = course.iter().step_by(10).copied().collect();
            assert_eq!(
                each,
                [400.0, 200.0, 100.0, 50.0, 25.0, 12.5, 10.0, 10.0],
                "{unit:?} {form:?}"
            );
            let last = 7_900;
            for (after, expected) in [(499, 10.0), (500, 20.0), (1_000, 40.0), (3_500, 1280.0)] {
                let rate = tick(&mut held, last + after, seen(800.0, 10.0));
                assert_eq!(rate, Some(expected), "{unit:?} {form:?}, {after} ms");
            }
        }
    }

    #[test]
    fn loss_and_gap_are_rates_of_what_comes() {
        let mut loss = Held::new(limit(Restriction::Loss(Share::new(0.25))), ms(0));
        assert_eq!(tick(&mut loss, 0, Seen::default()), None, "of what is not known there is none");
        assert_eq!(tick(&mut loss, 1_000, seen(200.0, 200.0)), None, "and it has expired");
        loss.renew(limit(Restriction::Loss(Share::new(0.25))), ms(1_100));
        assert_eq!(tick(&mut loss, 1_100, seen(200.0, 200.0)), Some(150.0));
        let mut gap = Held::new(limit(Restriction::Gap(ms(20))), ms(0));
        assert_eq!(tick(&mut gap, 0, seen(80.0, 80.0)), Some(50.0));
        assert_eq!((gap.burst(20), loss.burst(20)), (1, 20));
    }
}
