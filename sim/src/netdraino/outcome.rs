// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came of a run.

use tidegate_units::Nanos;

/// One second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// Packets that arrived at S0.
    pub arrived: u64,
    /// Of these accepted.
    pub accepted: u64,
    /// Accepted by the other servers.
    pub others: u64,
    /// Packets offered to the routers for S0, and refused there by limits.
    pub offered: u64,
    /// See above.
    pub refused: u64,
    /// Refused by limits of packets for others than S0.
    pub refused_others: u64,
    /// Bytes sent over the bottlenecks.
    pub bytes: u64,
    /// Of these in options.
    pub option_bytes: u64,
    /// Packets that the queues of the bottlenecks dropped.
    pub dropped: u64,
    /// Bottlenecks that are congested.
    pub congested: u64,
    /// Sum of the limits for S0 in force, packets per second; 0: none.
    pub limit: f64,
    /// Notices and limits sent.
    pub notices: u64,
    /// See above.
    pub limits: u64,
}

/// What a run gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Second by second.
    pub bins: Vec<Bin>,
    /// When the first limit was in force.
    pub first_limit: Option<Nanos>,
    /// Limits that were given to routers that were not congested.
    pub needless: u64,
    /// Limits that a router did not take.
    pub refused_limits: u64,
    /// Most routers with a limit at once.
    pub limited_routers: usize,
    /// Events of the simulator.
    pub events: u64,
}

impl Outcome {
    /// The seconds from `from` to `until`.
    #[must_use]
    pub fn part(&self, from: usize, until: usize) -> &[Bin] {
        let until = until.min(self.bins.len());
        &self.bins[from.min(until)..until]
    }

    /// The mean per second of something, over a part.
    #[must_use]
    pub fn mean(&self, (from, until): (usize, usize), of: impl Fn(&Bin) -> f64) -> f64 {
        let bins = self.part(from, until);
        bins.iter().map(of).sum::<f64>() / bins.len().max(1) as f64
    }
}
