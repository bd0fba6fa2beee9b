// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of one service that several views show.

use tidegate_model::snapshot::ServiceState;

/// Rates of the last tick, per second; `None` where nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Demand, what was refused included.
    pub offered: Option<f64>,
    /// Known copies of refused SYNs.
    pub repeated: Option<f64>,
    /// Admitted.
    pub admitted: Option<f64>,
    /// Refused; in shadow mode an upper bound of what would be.
    pub refused: Option<f64>,
    /// Responses begun.
    pub completed: Option<f64>,
    /// Exchanges that completed without a time that can be told.
    pub unknown: Option<f64>,
    /// Connections that went out of sight before their response, or that no server of the own proxy had.
    pub unseen: Option<f64>,
}

/// The rates of the last tick.
#[must_use]
pub fn figures(service: &ServiceState) -> Figures {
    let period_s = service.signals.period.as_secs_f64();
    let counts = service.signals.balance.counts.map(|r| r.value).filter(|_| period_s > 0.0);
    let Some(counts) = counts else {
        return Figures::default();
    };
    let rate = |count: u64| Some(count as f64 / period_s);
    Figures {
        offered: rate(counts.offered),
        repeated: rate(counts.repeated),
        admitted: rate(counts.admitted),
        refused: rate(counts.refused),
        // Where responses are not seen, nothing that completed is known.
        unseen: rate(counts.unseen),
        unknown: rate(counts.unknown),
        completed: service.signals.time.first_byte.and_then(|_| rate(counts.completed)),
    }
}
