// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came out: exact counts and sums, and the paper's metrics from them.

use super::check::{Broken, Checked};
use super::spec::Cost;
use tidegate_units::Nanos;

/// Bins of a series.
const BINS_MAX: u64 = 1 << 24;

/// Result of one run. Counts of requests, except where SYNs are named.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Requests that came.
    pub offered: u64,
    /// Requests that were admitted, at some attempt.
    pub connected: u64,
    /// Requests that ended by a rejection.
    pub rejected: u64,
    /// Requests whose client gave up.
    pub timed_out: u64,
    /// SYNs, first and repeated.
    pub syns: u64,
    /// Sum over all requests of the time until connected, rejected or timed out, in nanoseconds.
    pub delay_ns: u128,
    /// The same over connected requests only.
    pub connected_delay_ns: u128,
    /// Time of the last SYN.
    pub last: Nanos,
    /// The cost model that [`Outcome::cost`] uses.
    pub cost: Cost,
    /// Counts per bin, if asked for.
    pub series: Option<Series>,
}

impl Outcome {
    /// Share of requests that ever connected; NaN-free: 0 without requests, as all below.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.per_request(self.connected as f64)
    }

    /// Mean seconds until connected, rejected or timed out, over all requests.
    #[must_use]
    pub fn delay(&self) -> f64 {
        self.per_request(self.delay_ns as f64 / 1e9)
    }

    /// Mean seconds until connected, over the connected.
    #[must_use]
    pub fn connected_delay(&self) -> f64 {
        if self.connected == 0 {
            return 0.0;
        }
        self.connected_delay_ns as f64 / 1e9 / self.connected as f64
    }

    /// Cost per request: h a second of delay, r a rejection, r on top of the delay a time-out.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.cost_with(&self.cost)
    }

    /// The same under another cost model.
    #[must_use]
    pub fn cost_with(&self, cost: &Cost) -> f64 {
        let refused = (self.rejected + self.timed_out) as f64;
        cost.delay * self.delay() + self.per_request(cost.reject * refused)
    }

    /// Mean retransmissions per request.
    #[must_use]
    pub fn retransmissions(&self) -> f64 {
        self.per_request((self.syns - self.offered) as f64)
    }

    /// Share of requests that timed out.
    #[must_use]
    pub fn timed_out(&self) -> f64 {
        self.per_request(self.timed_out as f64)
    }

    /// Share of requests that were rejected.
    #[must_use]
    pub fn rejected(&self) -> f64 {
        self.per_request(self.rejected as f64)
    }

    fn per_request(&self, sum: f64) -> f64 {
        if self.offered == 0 { 0.0 } else { sum / self.offered as f64 }
    }
}

/// SYNs per bin of time, from zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// Width of a bin.
    pub bin: Nanos,
    /// First SYNs.
    pub fresh: Vec<u32>,
    /// Retransmissions.
    pub repeated: Vec<u32>,
    /// SYNs that were admitted.
    pub admitted: Vec<u32>,
}

impl Series {
    pub(super) fn new(bin: Nanos) -> Result<Self, Broken> {
        if bin < Nanos::from_micros(1) {
            return Err(Broken::Spec("a series with bins below 1 µs"));
        }
        Ok(Self { bin, ..Self::default() })
    }

    pub(super) fn count(&mut self, at: u64, repeated: bool, admitted: bool) -> Checked {
        let bin = at / self.bin.0;
        if bin >= BINS_MAX {
            return Err(Box::new(Broken::TooMany("bins of a series")));
        }
        let bin = bin as usize;
        if bin >= self.fresh.len() {
            for counts in [&mut self.fresh, &mut self.repeated, &mut self.admitted] {
                counts.resize(bin + 1, 0);
            }
        }
        let arrived = if repeated { &mut self.repeated } else { &mut self.fresh };
        arrived[bin] += 1;
        self.admitted[bin] += u32::from(admitted);
        Ok(())
    }
}
