// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is measured of a run. Counts are of what began while it was measured, rates and times of
//! what ended in it.

use super::client::Stream;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::{Nanos, Rate};

/// One stream of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamReport {
    /// Requests that began.
    pub began: u64,
    /// Of these, refused at least once by SYN policing.
    pub refused_syn: u64,
    /// Of these, refused by their header.
    pub refused_header: u64,
    /// Of these, never answered, refused ones included.
    pub failed: u64,
    /// Responses that ended.
    pub answered: u64,
    /// Of them, those of dynamic requests.
    pub answered_dynamic: u64,
    /// Seconds from the intended start to the end of the response, of each that ended.
    pub took_s: Vec<f64>,
}

impl StreamReport {
    /// Mean time of the responses in seconds; 0 without any.
    #[must_use]
    pub fn mean_s(&self) -> f64 {
        self.took_s.iter().sum::<f64>() / self.took_s.len().max(1) as f64
    }

    /// A quantile of the times of the responses in seconds; 0 without any.
    #[must_use]
    pub fn quantile_s(&self, q: f64) -> f64 {
        let mut sorted = self.took_s.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = (sorted.len() as f64 * q).ceil() as usize;
        sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
    }

    /// A count as a share of the requests that began.
    #[must_use]
    pub fn share(&self, count: u64) -> f64 {
        count as f64 / self.began.max(1) as f64
    }
}

/// One tick of the controller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebTrace {
    /// When.
    pub at: Nanos,
    /// CPU used, as a share.
    pub cpu: f64,
    /// Connections that wait for a worker.
    pub accept: u64,
    /// Packets that wait in the interface, on average.
    pub interface: f64,
    /// The rate of SYN policing, if one was set.
    pub syn_rate: Option<f64>,
    /// SYNs that it refused in the period.
    pub syn_refused: u64,
    /// The rates of the buckets, where set.
    pub rates: Vec<Option<f64>>,
    /// Requests that they refused in the period.
    pub refused: u64,
    /// Responses whose first byte left in the period.
    pub answers: u64,
    /// Length of the period.
    pub period: Nanos,
}

impl WebTrace {
    /// What one tick saw and decided.
    #[must_use]
    pub fn of(signals: &Signals, limits: &ServiceLimits) -> Self {
        let counts = signals.balance.counts.map(|c| c.value).unwrap_or_default();
        let refused = |b: &tidegate_model::signals::BucketSignals| {
            b.counts.map_or(0, |c| c.value.refused.iter().sum::<u64>())
        };
        Self {
            at: signals.now,
            cpu: signals.resource.cpu.map_or(0.0, |c| c.value.get()),
            accept: signals.queue.accept.map_or(0, |a| a.value.length),
            interface: signals.queue.interface.map_or(0.0, |i| i.value.length),
            syn_rate: limits.rate.map(Rate::get),
            syn_refused: counts.refused,
            rates: limits.buckets.iter().map(|b| b.rate.map(Rate::get)).collect(),
            refused: signals.buckets.iter().map(refused).sum(),
            answers: counts.completed,
            period: signals.period,
        }
    }
}

/// The whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebReport {
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// The load.
    pub surge: StreamReport,
    /// The requests for one large file beside it.
    pub large: StreamReport,
    /// Sessions that began while it was measured, and those of them that got every response.
    pub sessions: (u64, u64),
    /// CPU used while it was measured, as a share.
    pub cpu: f64,
    /// Packets offered to the interface, and dropped, over the whole run.
    pub packets: (u64, u64),
    /// Tick by tick, over the whole run.
    pub traces: Vec<WebTrace>,
}

impl WebReport {
    pub(super) fn of(&mut self, stream: Stream) -> &mut StreamReport {
        match stream {
            Stream::Surge => &mut self.surge,
            Stream::Large => &mut self.large,
        }
    }
}
