// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The controllers of a service, wherever it runs.

use super::backends::Backends;
use crate::{Controller, Dual, Mode};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// What steers a service.
pub enum Steering {
    /// It runs on this host.
    Host(Box<Dual>),
    /// Its back-ends report.
    Fleet(Backends),
}

impl Steering {
    /// The limits until the next tick. With `rules_in_shadow` request rules only count.
    pub fn tick(&mut self, signals: &Signals, mode: Mode, rules_in_shadow: bool) -> ServiceLimits {
        match self {
            Self::Host(dual) => {
                dual.rules_in_shadow(rules_in_shadow);
                dual.tick(signals, mode)
            }
            Self::Fleet(backends) => {
                backends.rules_in_shadow(rules_in_shadow);
                backends.tick(signals, mode)
            }
        }
    }

    /// What was learned. Where back-ends report there is nothing to keep: they go on and report again.
    #[must_use]
    pub fn save(&self) -> Option<serde_json::Value> {
        match self {
            Self::Host(dual) => dual.save(),
            Self::Fleet(_) => None,
        }
    }

    /// Goes on from what another process has saved `age` ago; false: it begins afresh.
    pub fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        match self {
            Self::Host(dual) => dual.restore(value, age),
            Self::Fleet(_) => false,
        }
    }
}
