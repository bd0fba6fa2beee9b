// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The product's governor of a service, in the worlds that have one.

use serde_json::Value;
use tidegate_control::fleet::{Failed, Governor, INHERIT, Terms};
use tidegate_control::{Controller, Mode};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// A governor, and under which terms it decides.
pub(crate) struct SimGovernor {
    governor: Governor,
    terms: Terms,
    mode: Mode,
}

impl SimGovernor {
    pub(crate) fn new(controller: Box<dyn Controller>, terms: Terms, mode: Mode) -> Self {
        Self { governor: Governor::of_one(controller), terms, mode }
    }

    /// The limits until the next tick.
    pub(crate) fn tick(&mut self, signals: &Signals) -> Result<ServiceLimits, String> {
        let ticked = self.governor.tick(&self.terms, signals, self.mode);
        ticked.map_err(Failed::text)?;
        Ok(self.governor.limits.clone())
    }

    /// What its controller has learned.
    pub(crate) fn save(&self) -> Option<Value> {
        self.governor.save()
    }

    /// A new daemon begins with another controller, which gets what was kept for it so long ago. The limits in force
    /// stay for a while.
    pub(crate) fn succeed(
        &mut self,
        now: Nanos,
        next: Box<dyn Controller>,
        kept: Option<(Value, Nanos)>,
    ) {
        let limits = std::mem::take(&mut self.governor.limits);
        self.governor = Governor::of_one(next);
        if let Some((value, age)) = kept {
            // A controller that refuses it begins afresh.
            self.governor.restore(value, age);
        }
        self.governor.inherit(&self.terms, limits, Some(now + INHERIT));
    }

    /// The limits in force stay for a while, as where a new daemon begins, with the same controller.
    pub(crate) fn hold(&mut self, now: Nanos) {
        let limits = std::mem::take(&mut self.governor.limits);
        self.governor.inherit(&self.terms, limits, Some(now + INHERIT));
    }
}
