// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator said of limits, and that nothing becomes tighter without signals.

use crate::Cap;
use tidegate_model::RATE_MIN;
use tidegate_model::limits::ServiceLimits;
use tidegate_units::Rate;

/// What an operator said of one limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// No report takes the limit below this.
    pub min_rate: Rate,
    /// A rate set by hand, or a ceiling: the limit is never above it.
    pub own: Option<Rate>,
    /// The bucket of that rate, in admissions.
    pub burst: u32,
    /// No controller decides: the rate is `own`, or there is none.
    pub by_hand: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { min_rate: Rate::per_second(RATE_MIN), own: None, burst: 1, by_hand: false }
    }
}

impl Bounds {
    /// What holds whatever a controller does.
    #[must_use]
    pub fn cap(&self) -> Option<Cap> {
        Some(Cap { rate: self.own?, burst: self.burst })
    }

    /// A limit with the operator's own, where that is in what a controller wants: one on standby
    /// wants no limit at all.
    pub(super) fn with_own(&self, limit: Option<Rate>, wanted: Option<Rate>) -> Option<Rate> {
        match (limit, self.own.filter(|_| wanted.is_some())) {
            (Some(limit), Some(own)) if limit < own => Some(limit),
            (limit, own) => own.or(limit),
        }
    }

    /// What a controller made of reports: what is below the operator's own.
    pub(super) fn reported(&self, wanted: Option<Rate>) -> Option<Rate> {
        wanted.filter(|rate| self.own.is_none_or(|own| *rate < own))
    }

    /// What remains of a limit that was `base` when the interval began.
    pub(super) fn lowered(&self, wanted: Option<Rate>, base: Option<Rate>) -> Option<Rate> {
        let least = (base?.get() / 2.0).max(self.min_rate.get());
        wanted.map(|rate| Rate::per_second(rate.get().max(least)))
    }
}

/// What an operator said of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operator {
    /// Of its own limit.
    pub service: Bounds,
    /// Of its request buckets, in the order of the configuration; of one that is missing here nothing
    /// was said.
    pub buckets: Vec<Bounds>,
}

impl Operator {
    pub(super) fn bucket(&self, bucket: usize) -> Bounds {
        self.buckets.get(bucket).copied().unwrap_or_default()
    }

    /// The same where so many back-ends have it, each.
    #[must_use]
    pub fn of_all(&self, back_ends: usize) -> Self {
        let times = back_ends.max(1) as f64;
        let all = |bounds: &Bounds| Bounds {
            own: bounds.own.map(|own| Rate::per_second(own.get() * times)),
            ..*bounds
        };
        Self { service: all(&self.service), buckets: self.buckets.iter().map(all).collect() }
    }
}

/// What remains of the limits that controllers want where nothing was measured of late: nothing tighter
/// than before. What an operator set by hand, a fixed rate or a ceiling, needs no signals; each of so
/// many back-ends has it.
#[must_use]
pub fn no_tighter(
    wanted: &ServiceLimits,
    before: &ServiceLimits,
    operator: &Operator,
    back_ends: usize,
) -> ServiceLimits {
    let operator = operator.of_all(back_ends);
    let mut limits = wanted.clone();
    limits.no_tighter_than(before);
    limits.rate = operator.service.with_own(limits.rate, wanted.rate);
    for (index, (limits, wanted)) in limits.buckets.iter_mut().zip(&wanted.buckets).enumerate() {
        limits.no_tighter_than(before.buckets.get(index));
        limits.rate = operator.bucket(index).with_own(limits.rate, wanted.rate);
    }
    limits
}
