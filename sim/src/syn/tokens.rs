// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The token bucket of the reference filters, in exact integers.

use super::spec::{Capacity, Refill};

/// One token, in picotokens: nanoseconds times thousandths of a token per second.
const TOKEN: u64 = 1_000_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    rate_milli: u64,
    depth: u64,
    grain: u64,
    used: u64,
    then: u64,
}

impl Bucket {
    pub(super) fn new(capacity: &Capacity) -> Self {
        let grain = match capacity.refill {
            Refill::Continuous => 1,
            Refill::Every(period) => period.0.max(1),
        };
        let depth = u64::from(capacity.burst).saturating_mul(TOKEN);
        Self { rate_milli: capacity.rate.as_milli(), depth, grain, used: 0, then: 0 }
    }

    fn refill(&mut self, at: u64) {
        let now = at / self.grain * self.grain;
        let came = now.saturating_sub(self.then).saturating_mul(self.rate_milli);
        self.used = self.used.saturating_sub(came);
        self.then = self.then.max(now);
    }

    /// Takes a token, if there is a whole one.
    pub(super) fn take(&mut self, at: u64) -> bool {
        self.refill(at);
        let free = self.used.saturating_add(TOKEN) <= self.depth;
        self.used += if free { TOKEN } else { 0 };
        free
    }

    /// Tokens at this time, parts of one included.
    pub(super) fn level(&mut self, at: u64) -> f64 {
        self.refill(at);
        (self.depth - self.used) as f64 / TOKEN as f64
    }
}
