// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of the clients, of the bottleneck, and what the detectors said.

use super::flows::Ended;
use super::router::Alarm;

/// Clients of one kind that came within the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    /// Came.
    pub came: u64,
    /// Had their whole response within their patience.
    pub served: u64,
    /// Of these within the objective.
    pub good: u64,
    /// Connected, and had no whole response within their patience: time-outs.
    pub timed_out: u64,
    /// Did not connect.
    pub unconnected: u64,
    /// Whose SYN the router refused at least once.
    pub refused: u64,
    /// Seconds from the first SYN to the last byte, of those served.
    pub took_s: Vec<f64>,
}

impl Served {
    /// The smallest time that this share of the served is not above; 0 of none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let mut all = self.took_s.clone();
        all.sort_unstable_by(f64::total_cmp);
        let rank = (share * all.len() as f64).ceil().max(1.0) as usize;
        all.get(rank - 1).copied().unwrap_or(0.0)
    }

    /// The mean time of the served; 0 of none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.took_s.iter().sum::<f64>() / self.took_s.len().max(1) as f64
    }
}

/// One second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// SYNs at the router.
    pub offered: u64,
    /// New connections admitted.
    pub admitted: u64,
    /// SYNs refused. What is neither is a copy of one that was admitted.
    pub refused: u64,
    /// Clients that came.
    pub came: u64,
    /// Clients that had their response within the objective, by when they had it.
    pub good: u64,
    /// Packets offered to the bottleneck, dropped by its queue.
    pub packets: u64,
    /// Of these dropped.
    pub dropped: u64,
    /// Bytes that it delivered.
    pub bytes: u64,
    /// Bytes of bulk that arrived.
    pub bulk: u64,
    /// ARR of the last interval, bits per second; 0 if unknown.
    pub arr: f64,
    /// The limit in force, connections per second; 0: none.
    pub limit: f64,
}

/// What a run gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Clients of the crowd's server.
    pub crowd: Served,
    /// Clients of the bystander's.
    pub bystander: Served,
    /// Second by second.
    pub bins: Vec<Bin>,
    /// Alarms, in the order in which they began.
    pub alarms: Vec<Alarm>,
    /// Exchanges that ended, for the truth.
    pub ended: Vec<Ended>,
    /// Keys of the two destinations.
    pub keys: (u64, u64),
    /// Most requests in service at once at the crowd's server.
    pub busiest: usize,
    /// Most connections in the router's table, and those that did not fit.
    pub flows: (usize, u64),
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
}
