// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One service in the owner's hands: its controller, fenced in.
//!
//! A controller is arithmetic on whatever the world measured. It may panic, and then only its own
//! service is released: the heartbeat and the other services go on. What panics elsewhere in the
//! owner ends the process, and the lease opens: that is the honest thing for a bug of unknown
//! reach.

use crate::controllers;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidegate_control::{Controller, Mode};
use tidegate_model::intent::ServiceConfig;
use tidegate_model::limits::{ServiceLimits, Why};
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// After so many panics a controller is not started again until the next reload.
const PANICS_MAX: u32 = 3;
/// A reading older than this is no ground to tighten.
pub const SIGNAL_AGE_MAX: Nanos = Nanos::from_secs(3);

/// Makes the controller of a service.
pub type MakeController = fn(&ServiceConfig) -> Box<dyn Controller>;

/// A service and its controller.
pub(crate) struct Governor {
    pub(crate) limits: ServiceLimits,
    controller: Box<dyn Controller>,
    make: MakeController,
    panics: u32,
}

impl Governor {
    pub(crate) fn new(config: &ServiceConfig, make: MakeController) -> Self {
        Self { limits: ServiceLimits::default(), controller: make(config), make, panics: 0 }
    }

    /// The limits for the next tick; an error when the controller failed and the service was
    /// therefore released.
    pub(crate) fn tick(
        &mut self,
        config: &ServiceConfig,
        signals: &Signals,
        mode: Mode,
    ) -> Result<(), String> {
        if self.panics >= PANICS_MAX {
            return Err(format!(
                "its controller failed {PANICS_MAX} times; released until a reload"
            ));
        }
        let ticked = catch_unwind(AssertUnwindSafe(|| self.controller.tick(signals, mode)));
        let Ok(mut limits) = ticked else {
            self.panics += 1;
            self.controller = (self.make)(config);
            self.limits = released(signals.now, "the controller failed: everything passes");
            return Err("its controller failed and was started anew; everything passes".into());
        };
        limits.burst = limits.burst.max(1);
        limits.reserve = config.reserve_tokens(limits.burst);
        if !grounded(signals) && config.control.name != controllers::FIXED {
            keep_loose(&mut limits, &self.limits);
        }
        self.limits = limits;
        Ok(())
    }

    /// Where the owner begins after a take-over: with what its predecessor had decided.
    pub(crate) fn inherit(&mut self, limits: ServiceLimits) {
        self.limits = limits;
    }
}

/// No limits, with the reason.
pub(crate) fn released(now: Nanos, text: &str) -> ServiceLimits {
    let why = Why { shedding: false, since: now, alarmed: Vec::new(), text: text.into() };
    ServiceLimits { burst: 1, why, ..ServiceLimits::default() }
}

/// Whether anything was measured of late: at least one family with a young reading.
fn grounded(signals: &Signals) -> bool {
    let ages = [
        signals.resource.cpu.map(|r| r.age),
        signals.resource.cpu_pressure.map(|r| r.age),
        signals.queue.accept.map(|r| r.age),
        signals.time.waiting.map(|r| r.age),
        signals.time.first_byte.map(|r| r.age),
        signals.balance.counts.map(|r| r.age),
    ];
    ages.iter().flatten().any(|age| *age <= SIGNAL_AGE_MAX)
}

/// The second fence of "missing data never tightens", whatever the controller thinks: nothing
/// becomes tighter than it was.
fn keep_loose(limits: &mut ServiceLimits, before: &ServiceLimits) {
    limits.rate = match (limits.rate, before.rate) {
        (Some(now), Some(then)) => Some(if now < then { then } else { now }),
        _ => None,
    };
    limits.waiting_max = match (limits.waiting_max, before.waiting_max) {
        (Some(now), Some(then)) => Some(now.max(then)),
        _ => None,
    };
    limits.accept_queue_max_q10 = match (limits.accept_queue_max_q10, before.accept_queue_max_q10) {
        (0, _) | (_, 0) => 0,
        (now, then) => now.max(then),
    };
}

/// Whether the dataplane has to be told: the reasons alone are not written.
pub(crate) fn same(a: &ServiceLimits, b: &ServiceLimits) -> bool {
    a.rate == b.rate
        && a.burst == b.burst
        && a.waiting_max == b.waiting_max
        && a.accept_queue_max_q10 == b.accept_queue_max_q10
        && a.reserve == b.reserve
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Rate;

    #[test]
    fn nothing_becomes_tighter_without_ground() {
        let before = ServiceLimits {
            rate: Some(Rate::per_second(100.0)),
            waiting_max: None,
            accept_queue_max_q10: 512,
            ..ServiceLimits::default()
        };
        let mut limits = ServiceLimits {
            rate: Some(Rate::per_second(10.0)),
            waiting_max: Some(3),
            accept_queue_max_q10: 100,
            ..ServiceLimits::default()
        };
        keep_loose(&mut limits, &before);
        assert_eq!(limits, before);
        let mut looser = ServiceLimits { rate: None, ..before.clone() };
        keep_loose(&mut looser, &before);
        assert_eq!(looser.rate, None, "looser is allowed");
    }
}
