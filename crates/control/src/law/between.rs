// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An operator's minimum rate and ceiling around a controller of a service. The minimum is the least rate of the limits, too.

use crate::apart::without_refused;
use crate::{Beside, Controller, Decision, Mode};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::{Nanos, Rate};

/// A controller between a minimum rate and a ceiling.
pub struct Between {
    inner: Box<dyn Controller>,
    min_rate: Option<Rate>,
    ceiling: Option<Rate>,
    /// Of the ceiling, in admissions.
    burst: u32,
    /// It was the ceiling that held in the tick before.
    capped: bool,
}

impl Between {
    /// This controller, between a minimum rate and a ceiling with a bucket of this depth, where there are any.
    #[must_use]
    pub fn new(
        inner: Box<dyn Controller>,
        (min_rate, ceiling): (Option<Rate>, Option<Rate>),
        burst: u32,
    ) -> Self {
        Self { inner, min_rate, ceiling, burst, capped: false }
    }
}

impl Controller for Between {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        self.decide(signals, mode, Beside::default()).limits
    }

    fn decide(&mut self, signals: &Signals, mode: Mode, beside: Beside) -> Decision {
        let mut decision = if self.capped {
            self.inner.decide(&without_refused(signals), mode, beside)
        } else {
            self.inner.decide(signals, mode, beside)
        };
        let limits = &mut decision.limits;
        if let (Some(rate), Some(min_rate)) = (limits.rate, self.min_rate)
            && rate < min_rate
        {
            limits.rate = Some(min_rate);
        }
        limits.min_rate = self.min_rate.or(limits.min_rate);
        self.capped = false;
        if let Some(ceiling) = self.ceiling
            && limits.rate.is_none_or(|rate| rate > ceiling)
        {
            self.capped = true;
            if limits.rate.is_none() {
                limits.burst = limits.burst.max(self.burst);
            }
            limits.rate = Some(ceiling);
        }
        decision
    }

    fn save(&self) -> Option<serde_json::Value> {
        self.inner.save()
    }

    fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        self.inner.restore(value, age)
    }
}
