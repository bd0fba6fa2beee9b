// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An operator's ceiling around a bucket's controller, which holds also while that sets no limit.

use super::{BucketController, Context, Demand, Headroom};
use tidegate_model::limits::BucketLimits;
use tidegate_model::signals::Signals;
use tidegate_units::Rate;

/// A controller below a ceiling.
pub struct CappedBucket {
    inner: Box<dyn BucketController>,
    ceiling: Rate,
    burst: u32,
}

impl CappedBucket {
    /// This controller, below a ceiling with a bucket of this depth.
    #[must_use]
    pub fn new(inner: Box<dyn BucketController>, ceiling: Rate, burst: u32) -> Self {
        Self { inner, ceiling, burst }
    }
}

impl BucketController for CappedBucket {
    fn tick(&mut self, signals: &Signals, bucket: usize, context: Context<'_>) -> BucketLimits {
        let mut limits = self.inner.tick(signals, bucket, context);
        if limits.rate.is_none_or(|rate| rate > self.ceiling) {
            limits.rate = Some(self.ceiling);
            limits.burst = limits.burst.max(self.burst);
        }
        limits
    }

    fn headroom(&self, demand: Demand, seconds: f64) -> Headroom {
        self.inner.headroom(demand, seconds)
    }
}
