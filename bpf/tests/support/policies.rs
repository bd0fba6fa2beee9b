// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies once more, by another hand: from the head comments of policy/algo, the contract and
//! the description of the Abacus filter. Whole numbers of picotokens, as wide as they come.

use super::exact::{Exact, Refused};
use super::learned::{self, Learned};
use super::throttle::{Above, Gapped, Ladders, Leaky, Mix};
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, Event, GapSpec,
    PercentSpec, Policy, Reason, ThresholdSpec, VerdictKind,
};

const TOKEN: u128 = 1_000_000_000_000;
/// A clock further back than this is believed.
const BACK_MAX: u64 = 1_000_000_000;
/// The table of fingerprints of fresh_first.
const SETS: u64 = 32768;
const WAYS: usize = 8;
/// The ring of the Abacus filter.
const PERIODS: usize = 128;

/// What a service's policy is told.
#[derive(Clone, Debug)]
pub enum Spec {
    NoLimit,
    Bucket(BucketSpec),
    Abacus(AbacusSpec),
    AbacusExact(AbacusExactSpec),
    AbacusLearned(AbacusLearnedSpec),
    Threshold(ThresholdSpec),
    Gap(GapSpec),
    Percent(PercentSpec),
}

/// Kind, reason, and whether the event is known to be a repetition.
pub type Said = (VerdictKind, Reason, bool);

/// The memory of all policies; a series uses one of them.
pub struct Policies {
    policy: Policy,
    bucket: Bucket,
    /// Refused keys, by set, the latest first.
    refused: Vec<Vec<u16>>,
    ring: Ring,
    exact: Exact,
    learned: Learned,
    ladders: Ladders,
    leaky: Leaky,
    mix: Mix,
}

/// A bucket stores what was used.
#[derive(Default)]
struct Bucket {
    used: u128,
    then: u64,
}

impl Bucket {
    fn refill(&mut self, spec: &BucketSpec, now: u64) {
        let rate = u128::from(spec.rate.as_milli());
        let back = u128::from(now.saturating_sub(self.then)) * rate;
        let depth = u128::from(spec.burst) * TOKEN;
        self.used = self.used.saturating_sub(back);
        // from empty to full in so long, rounded up: after that it is full, whatever was used
        let full = back >= depth;
        self.used = if full { 0 } else { self.used.min(depth) };
        if now > self.then || self.then - now > BACK_MAX {
            self.then = now;
        }
    }

    /// Takes a token if so many stay behind.
    fn take(&mut self, spec: &BucketSpec, left_behind: u128) -> bool {
        let fits = self.used + left_behind + TOKEN <= u128::from(spec.burst) * TOKEN;
        if fits {
            self.used += TOKEN;
        }
        fits
    }

    fn has_one(&self, spec: &BucketSpec) -> bool {
        self.used + TOKEN <= u128::from(spec.burst) * TOKEN
    }
}

fn reserve(spec: &BucketSpec, event: &Event) -> u128 {
    u128::from(spec.reserve[usize::from(event.priority) % 8]) * TOKEN
}

fn refusal(action: Action) -> VerdictKind {
    match action {
        Action::Drop => VerdictKind::Drop,
        Action::Reject | Action::Auto => VerdictKind::Reject,
    }
}

impl Policies {
    pub fn new(policy: Policy) -> Self {
        let refused = vec![Vec::new(); SETS as usize];
        Self {
            policy,
            bucket: Bucket::default(),
            refused,
            ring: Ring::default(),
            exact: Exact::new(),
            learned: Learned::new(),
            ladders: Ladders::default(),
            leaky: Leaky::default(),
            mix: Mix::default(),
        }
    }

    /// The verdict on one event.
    pub fn admit(&mut self, spec: &Spec, event: &Event) -> Said {
        match (self.policy, spec) {
            (Policy::TokenBucket, Spec::Bucket(spec)) => self.token_bucket(spec, event),
            (Policy::FreshFirst, Spec::Bucket(spec)) => self.fresh_first(spec, event),
            (Policy::Abacus, Spec::Abacus(spec)) => self.abacus(spec, event),
            (Policy::AbacusExact, Spec::AbacusExact(spec)) => self.abacus_exact(spec, event),
            (Policy::AbacusLearned, Spec::AbacusLearned(spec)) => self.abacus_learned(spec, event),
            (Policy::Threshold, Spec::Threshold(spec)) => self.threshold(spec, event),
            (Policy::Gap, Spec::Gap(spec)) => self.gap(spec, event),
            (Policy::Percent, Spec::Percent(spec)) => self.percent(spec, event),
            (policy, Spec::NoLimit) => {
                self.leaky.idle();
                let repeated = policy == Policy::FreshFirst && self.is_known(event);
                (VerdictKind::Admit, Reason::NoLimit, repeated)
            }
            (policy, spec) => panic!("{} is told {spec:?}", policy.name()),
        }
    }

    fn token_bucket(&mut self, spec: &BucketSpec, event: &Event) -> Said {
        self.bucket.refill(spec, event.now_ns);
        if self.bucket.take(spec, reserve(spec, event)) {
            return (VerdictKind::Admit, Reason::Token, false);
        }
        let reason = if self.bucket.has_one(spec) { Reason::Reserved } else { Reason::Rate };
        (refusal(spec.action), reason, false)
    }

    /// Set and fingerprint of a key; a fingerprint is never zero.
    fn place(event: &Event) -> (usize, u16) {
        ((event.key % SETS) as usize, ((event.key >> 48) as u16).max(1))
    }

    fn is_known(&self, event: &Event) -> bool {
        let (set, print) = Self::place(event);
        self.refused[set].contains(&print)
    }

    fn fresh_first(&mut self, spec: &BucketSpec, event: &Event) -> Said {
        let repeated = self.is_known(event);
        let usable = spec.burst - spec.reserve[7];
        let for_fresh = if repeated { u128::from(usable / 2) * TOKEN } else { 0 };
        let kept = reserve(spec, event);
        self.bucket.refill(spec, event.now_ns);
        if self.bucket.take(spec, kept + for_fresh) {
            return (VerdictKind::Admit, Reason::Token, repeated);
        }
        let (set, print) = Self::place(event);
        let known = &mut self.refused[set];
        known.retain(|other| *other != print);
        known.insert(0, print);
        known.truncate(WAYS);
        let depth = u128::from(spec.burst) * TOKEN;
        let reason = if self.bucket.used + kept + TOKEN <= depth {
            Reason::Repeated
        } else if self.bucket.has_one(spec) {
            Reason::Reserved
        } else {
            Reason::Rate
        };
        (refusal(spec.action), reason, repeated)
    }

    fn abacus(&mut self, spec: &AbacusSpec, event: &Event) -> Said {
        self.ring.turn_to(spec, event.now_ns);
        self.ring.arrivals += 1;
        self.bucket.refill(&spec.bucket, event.now_ns);
        if self.bucket.take(&spec.bucket, reserve(&spec.bucket, event)) {
            (VerdictKind::Admit, Reason::Token, false)
        } else if self.ring.expected_again() {
            (VerdictKind::Drop, Reason::ExpectedAgain, false)
        } else if self.ring.borrow(spec) {
            (VerdictKind::Drop, Reason::Borrowed, false)
        } else {
            (VerdictKind::Reject, Reason::NoRoom, false)
        }
    }
}

impl Policies {
    fn threshold(&mut self, spec: &ThresholdSpec, event: &Event) -> Said {
        let (kind, reason) = match self.ladders.admit(spec, event) {
            Above::Below => (VerdictKind::Admit, Reason::BelowThreshold),
            Above::Let => (VerdictKind::Admit, Reason::LetThrough),
            Above::Throttled => (refusal(spec.action), Reason::Throttled),
            Above::Discarded => (refusal(spec.action), Reason::Discard),
        };
        (kind, reason, false)
    }

    fn gap(&mut self, spec: &GapSpec, event: &Event) -> Said {
        let (kind, reason) = match self.leaky.admit(spec, event) {
            Gapped::Sent => (VerdictKind::Admit, Reason::Token),
            Gapped::Waits => (VerdictKind::Delay, Reason::Wait),
            Gapped::Refused(true) => (refusal(spec.action), Reason::Reserved),
            Gapped::Refused(false) => (refusal(spec.action), Reason::Rate),
        };
        (kind, reason, false)
    }

    fn percent(&mut self, spec: &PercentSpec, event: &Event) -> Said {
        let refuses = self.mix.refuses(spec, event);
        if spec.share.get() < 1.0 / 65_536.0 {
            (VerdictKind::Admit, Reason::NoLimit, false)
        } else if refuses {
            (refusal(spec.action), Reason::Throttled, false)
        } else {
            (VerdictKind::Admit, Reason::LetThrough, false)
        }
    }
}

impl Policies {
    fn abacus_exact(&mut self, spec: &AbacusExactSpec, event: &Event) -> Said {
        self.exact.turn_to(spec, event.now_ns);
        self.bucket.refill(&spec.bucket, event.now_ns);
        let (known, older) = self.exact.meet(event);
        // a full bucket serves anybody
        let most = (u128::from(spec.bucket.burst) - 1) * TOKEN;
        let depth = u128::from(spec.bucket.burst) * TOKEN;
        // a shallow bucket waits with an eighth of it
        let shallow = depth < u128::from(super::exact::room_milli(spec)) * (TOKEN / 1000);
        let waits = if shallow { (older * TOKEN).min(depth / 8) } else { older * TOKEN };
        let kept = (reserve(&spec.bucket, event) + waits).min(most);
        if self.bucket.take(&spec.bucket, kept) {
            self.exact.admitted(event);
            return (VerdictKind::Admit, Reason::Token, known);
        }
        match self.exact.refused(spec, event) {
            Refused::Booked => (VerdictKind::Drop, Reason::Borrowed, false),
            Refused::NoRoom => (VerdictKind::Reject, Reason::NoRoom, false),
            Refused::DroppedAgain => (VerdictKind::Drop, Reason::ExpectedAgain, true),
            Refused::LastAttempt => (VerdictKind::Reject, Reason::LastAttempt, true),
        }
    }

    fn abacus_learned(&mut self, spec: &AbacusLearnedSpec, event: &Event) -> Said {
        self.learned.turn_to(spec, event.now_ns);
        self.bucket.refill(&spec.bucket, event.now_ns);
        let (known, copies) = self.learned.meet(event);
        let depth = u128::from(spec.bucket.burst) * TOKEN;
        // an eighth of the bucket for copies at most, and a full bucket serves anybody
        let waits = (u128::from(copies) * TOKEN).min(depth / 8);
        let kept = (reserve(&spec.bucket, event) + waits).min(depth - TOKEN);
        if self.bucket.take(&spec.bucket, kept) {
            let to_spare = self.bucket.used + depth / 8 + TOKEN / 4 <= depth;
            self.learned.admitted(spec, event, to_spare);
            return (VerdictKind::Admit, Reason::Token, known);
        }
        match self.learned.refused(spec, event) {
            learned::Refused::Dropped => (VerdictKind::Drop, Reason::Borrowed, false),
            learned::Refused::NoRoom => (VerdictKind::Reject, Reason::NoRoom, false),
            learned::Refused::DroppedAgain => (VerdictKind::Drop, Reason::ExpectedAgain, true),
            learned::Refused::LastAttempt => (VerdictKind::Reject, Reason::LastAttempt, true),
        }
    }
}

/// One period of the second stage, in thousandths of a SYN.
#[derive(Clone, Copy, Default)]
struct Period {
    /// Of what the rate gives in a period: taken by new arrivals or borrowed.
    taken: u64,
    /// B: how many are expected to be dropped once more.
    again: u32,
}

/// A and B, and the estimate of arrivals.
struct Ring {
    periods: [Period; PERIODS],
    now: usize,
    /// When the present period ends; `None` before the first SYN.
    ends: Option<u64>,
    lambda: u32,
    arrivals: u32,
}

impl Default for Ring {
    fn default() -> Self {
        Self { periods: [Period::default(); PERIODS], now: 0, ends: None, lambda: 0, arrivals: 0 }
    }
}

/// Thousandths of a SYN in a period at this rate, as much as fits.
fn per_period(spec: &AbacusSpec, per_second: f64) -> u32 {
    (per_second * 1e3 * spec.period.as_secs_f64()).round() as u32
}

fn room(spec: &AbacusSpec) -> u32 {
    per_period(spec, spec.bucket.rate.get())
}

impl Ring {
    fn at(&mut self, ahead: usize) -> &mut Period {
        &mut self.periods[(self.now + ahead) % PERIODS]
    }

    /// max(0, r_t - lambda): what lambda leaves of a period.
    fn fresh(&self, spec: &AbacusSpec) -> Period {
        Period { taken: room(spec).min(self.lambda).into(), again: 0 }
    }

    fn turn_to(&mut self, spec: &AbacusSpec, now: u64) {
        let period = spec.period.0;
        let future = now.wrapping_add(period).wrapping_add(BACK_MAX);
        if self.ends.is_none_or(|ends| ends == 0 || ends > future) {
            self.ends = Some(now.wrapping_add(period));
            self.lambda = per_period(spec, spec.lambda_start.get());
            let taken = self.fresh(spec).taken;
            for ahead in 0..=usize::from(spec.window) {
                self.at(ahead).taken = taken;
            }
        }
        let mut ends = self.ends.unwrap_or_default();
        for _ in 0..PERIODS {
            if now < ends {
                break;
            }
            self.shift(spec);
            ends = ends.wrapping_add(period);
        }
        if now >= ends {
            ends = now.wrapping_add(period);
        }
        self.ends = Some(ends);
    }

    fn shift(&mut self, spec: &AbacusSpec) {
        let seen = (u64::from(self.arrivals) * 1000).min(1 << 31) as u32;
        if seen >= self.lambda {
            self.lambda += (seen - self.lambda) >> spec.ewma_shift;
        } else {
            // rounded up: silence ends at zero
            self.lambda -= (self.lambda - seen).div_ceil(1 << spec.ewma_shift);
        }
        self.arrivals = 0;
        *self.at(0) = Period::default();
        self.now = (self.now + 1) % PERIODS;
        *self.at(spec.window.into()) = self.fresh(spec);
    }

    fn expected_again(&mut self) -> bool {
        let again = &mut self.at(0).again;
        let expected = *again > 0;
        *again -= u32::from(expected);
        expected
    }

    /// Figure 7: the first return with room, within the window; those before it drop once more.
    fn borrow(&mut self, spec: &AbacusSpec) -> bool {
        let within = spec.schedule.iter().take_while(|t| **t <= spec.window);
        let returns: Vec<usize> = within.map(|t| usize::from(*t)).collect();
        let found = returns.iter().position(|t| self.at(*t).taken + 1000 <= room(spec).into());
        let Some(found) = found else { return false };
        self.at(returns[found]).taken += 1000;
        for walked in &returns[..found] {
            self.at(*walked).again += 1;
        }
        true
    }
}
