// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way through to what the service's controller keeps from one process to the next.

use super::Dual;
use tidegate_units::Nanos;

impl Dual {
    /// See [`crate::Controller::save`].
    #[must_use]
    pub fn save(&self) -> Option<serde_json::Value> {
        self.syn.save()
    }

    /// See [`crate::Controller::restore`].
    pub fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        self.syn.restore(value, age)
    }
}
