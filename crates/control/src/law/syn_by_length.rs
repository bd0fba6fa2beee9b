// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published SYN controller with its reference in connections. It knows shares of the accept queue's limit, and
//! that is known with the first reading.

use super::{Syn, SynSpec};
use crate::{Beside, Controller, Decision, Mode};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::Share;

/// A reference above the queue's limit could never be reached: half of it at most.
const REFERENCE_MAX: f64 = 0.5;

/// See the head of this file.
pub struct SynByLength {
    connections: u32,
    inner: Syn,
    limit: u64,
}

impl SynByLength {
    /// Aims at an accept queue of so many connections.
    #[must_use]
    pub fn new(spec: SynSpec, connections: u32) -> Self {
        Self { inner: Syn::new(spec), connections, limit: 0 }
    }
}

impl Controller for SynByLength {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        self.decide(signals, mode, Beside::default()).limits
    }

    fn decide(&mut self, signals: &Signals, mode: Mode, beside: Beside) -> Decision {
        let limit = signals.queue.accept.map_or(0, |queue| queue.value.limit);
        if self.limit == 0 && limit > 0 {
            self.limit = limit;
            let share = (f64::from(self.connections) / limit as f64).min(REFERENCE_MAX);
            self.inner.aim(Share::new(share));
        }
        self.inner.decide(signals, mode, beside)
    }
}
