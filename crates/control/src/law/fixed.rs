// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits set by hand: it looks at nothing.

use crate::{BURST_MAX, Controller, Mode, bounded};
use tidegate_model::limits::{Cause, ServiceLimits, Why};
use tidegate_model::signals::Signals;
use tidegate_units::{Nanos, Rate};

/// A rate and a burst that never change, or none: then the limits are those of the policy.
#[derive(Clone, Debug)]
pub struct Fixed {
    rate: Option<Rate>,
    burst: u32,
    since: Option<Nanos>,
}

impl Fixed {
    /// `rate` admissions per second (raised to the minimum rate of 1/s) and a bucket of `burst` (at least
    /// 1).
    #[must_use]
    pub fn new(rate: Rate, burst: u32) -> Self {
        Self { rate: Some(bounded(rate.get())), burst: burst.clamp(1, BURST_MAX), since: None }
    }

    /// No rate: for a policy whose limits an operator set.
    #[must_use]
    pub const fn without_rate() -> Self {
        Self { rate: None, burst: 1, since: None }
    }
}

impl Controller for Fixed {
    fn tick(&mut self, signals: &Signals, _mode: Mode) -> ServiceLimits {
        let since = *self.since.get_or_insert(signals.now);
        let refused = signals.balance.counts.map_or(0, |c| c.value.refused);
        let text = match self.rate {
            Some(rate) => format!("fixed at {rate} with a burst of {}", self.burst),
            None => "fixed: the limits are those of the policy".to_owned(),
        };
        ServiceLimits {
            rate: self.rate,
            burst: self.burst,
            why: Why {
                shedding: refused > 0,
                since,
                alarmed: Vec::new(),
                cause: (refused > 0).then_some(Cause::Limit),
                text,
            },
            ..ServiceLimits::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_below_the_floor_is_raised_and_a_bucket_of_nothing_holds_one() {
        let limits = Fixed::new(Rate::ZERO, 0).tick(&Signals::default(), Mode::Enforce);
        assert_eq!(limits.rate.map(Rate::get), Some(1.0));
        assert_eq!(limits.burst, 1);
    }

    #[test]
    fn without_a_rate_nothing_is_limited_here() {
        let limits = Fixed::without_rate().tick(&Signals::default(), Mode::Enforce);
        assert_eq!((limits.rate, limits.waiting_max, limits.burst), (None, None, 1));
    }
}
