// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bucket with a rate that an operator set by hand.

use super::{BucketController, BucketSpec, Context, Core, Demand, Headroom};
use crate::Mode;
use tidegate_model::limits::BucketLimits;
use tidegate_model::signals::Signals;
use tidegate_units::{Nanos, Rate};

/// The rate is the limit, whatever is sensed; nothing lowers it.
#[derive(Clone, Debug)]
pub struct FixedBucket {
    core: Core,
}

impl FixedBucket {
    /// This rate, inside the bounds of `spec`.
    #[must_use]
    pub fn new(rate: Rate, spec: BucketSpec) -> Self {
        Self { core: Core::new(BucketSpec { start: Some(rate), ..spec }) }
    }

    /// No rate: for a policy whose limits an operator set.
    #[must_use]
    pub fn without_rate(spec: BucketSpec) -> Self {
        Self { core: Core::new(BucketSpec { start: None, ..spec }) }
    }
}

impl BucketController for FixedBucket {
    fn tick(&mut self, signals: &Signals, bucket: usize, context: Context<'_>) -> BucketLimits {
        self.core.see(signals, bucket, Some(Nanos::ZERO));
        self.core.rate = self.core.spec.begin();
        let context = Context { mode: Mode::Enforce, ..context };
        self.core.limits(signals, context, "fixed".to_owned())
    }

    fn headroom(&self, _: Demand, _: f64) -> Headroom {
        Headroom { under_pressure: false, exhausted: true }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::second;
    use super::*;

    /// What is decided from counts is lifted without them; this was not.
    #[test]
    fn it_holds_without_counts_however_long() {
        let mut bucket = FixedBucket::new(Rate::per_second(50.0), BucketSpec::default());
        let rates: Vec<_> = (0..50)
            .map(|_| {
                bucket
                    .tick(&Signals::default(), 0, Context::alone(Mode::Enforce))
                    .rate
                    .map(Rate::get)
            })
            .collect();
        assert_eq!(rates, [Some(50.0); 50]);
    }

    #[test]
    fn without_a_rate_it_never_begins_one() {
        let mut bucket = FixedBucket::without_rate(BucketSpec::default());
        for demand in [Demand::Nothing, Demand::LowerAtOnce, Demand::Least] {
            let context = Context { demand, ..Context::alone(Mode::Enforce) };
            let limits = bucket.tick(&second(100, 50, 1.0), 0, context);
            assert_eq!(limits.rate, None, "{demand:?}");
            assert!(bucket.headroom(demand, 1.0).exhausted, "connections are left to refuse");
        }
    }

    #[test]
    fn nothing_moves_it_but_the_floor() {
        let spec = BucketSpec::default();
        for (rate, expected) in [(50.0, 50.0), (1.0, 10.0)] {
            let mut bucket = FixedBucket::new(Rate::per_second(rate), spec);
            for (signals, mode) in [
                (second(100, 50, 1.0), Mode::Enforce),
                (second(0, 0, 0.0), Mode::Shadow),
                (Signals::default(), Mode::Enforce),
            ] {
                for demand in [Demand::Nothing, Demand::LowerAtOnce, Demand::Least] {
                    let context = Context { demand, ..Context::alone(mode) };
                    let limits = bucket.tick(&signals, 0, context);
                    assert_eq!(limits.rate.map(Rate::get), Some(expected));
                    assert_eq!(limits.burst, 5);
                }
            }
        }
    }
}
