// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dataplane as the kernel has it: the same policies (the same C), the same chain, the same
//! counts; only the packets are missing.

use tidegate_control::Mode;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::totals::{Histogram, ServiceTotals};
use tidegate_policy::{
    Action, BucketSpec, Event, Params, ParamsError, Policy, State, VerdictKind, admit,
};
use tidegate_units::Nanos;

/// What the gate does with one SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gated {
    /// To the server.
    Passed,
    /// Refused in silence.
    Dropped,
    /// Refused by a RST.
    Reset,
}

/// What the gate looks at beside the SYN.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Length of the accept queue.
    pub length: usize,
    /// Its limit.
    pub limit: usize,
}

/// One service's dataplane.
#[derive(Debug)]
pub struct Gate {
    policy: Policy,
    action: Action,
    mode: Mode,
    limits: ServiceLimits,
    params: Params,
    state: State,
    totals: ServiceTotals,
}

impl Gate {
    /// A gate without limits.
    #[must_use]
    pub fn new(policy: Policy, action: Action, mode: Mode) -> Self {
        Self {
            policy,
            action,
            mode,
            limits: ServiceLimits::default(),
            params: Params::no_limit(policy),
            state: State::fresh(),
            totals: ServiceTotals::default(),
        }
    }

    /// Writes new limits; the policy's state stays.
    ///
    /// # Errors
    /// When the policy does not take the parameters.
    pub fn set(&mut self, limits: ServiceLimits) -> Result<(), ParamsError> {
        self.params = match limits.rate {
            None => Params::no_limit(self.policy),
            Some(rate) => {
                let mut spec = BucketSpec::new(rate, limits.burst, self.action);
                spec.reserve = limits.reserve;
                match self.policy {
                    Policy::TokenBucket => Params::token_bucket(&spec)?,
                    _ => Params::fresh_first(&spec)?,
                }
            }
        };
        self.limits = limits;
        Ok(())
    }

    /// Judges a SYN: accept queue, then waiting, then the policy.
    pub fn judge(&mut self, now: Nanos, key: u64, queue: Queue) -> Gated {
        self.totals.offered += 1;
        let action = match self.action {
            Action::Drop => Gated::Dropped,
            Action::Reject => Gated::Reset,
        };
        let share = self.limits.accept_queue_max_q10;
        let queue_full =
            share > 0 && queue.length as u64 * 1024 >= queue.limit as u64 * u64::from(share);
        let waiting_full = self.limits.waiting_max.is_some_and(|max| self.totals.waiting >= max);
        let verdict = if queue_full || waiting_full {
            action
        } else {
            let event = Event { now_ns: now.0, key, random: 0, priority: 7, pad: [0; 3] };
            let verdict = admit(&self.params, &mut self.state, &event);
            self.totals.repeated += u64::from(verdict.repeated);
            match verdict.kind {
                VerdictKind::Admit | VerdictKind::Delay => Gated::Passed,
                VerdictKind::Drop => Gated::Dropped,
                VerdictKind::Reject => Gated::Reset,
            }
        };
        let refused = verdict != Gated::Passed;
        self.totals.refused += u64::from(refused);
        if refused && self.mode == Mode::Enforce {
            return verdict;
        }
        self.totals.admitted += 1;
        Gated::Passed
    }

    /// A connection was established: the server owes it an answer.
    pub fn established(&mut self) {
        self.totals.waiting += 1;
        self.totals.open += 1;
    }

    /// The answer's first byte, and the end: what answers here is short.
    pub fn answered(&mut self, took: Nanos) {
        self.left();
        self.totals.first_byte.record(took);
        self.totals.end.record(took);
    }

    /// The client has closed without an answer.
    pub fn left(&mut self) {
        self.totals.waiting -= 1;
        self.totals.open -= 1;
    }

    /// What was counted so far.
    #[must_use]
    pub const fn totals(&self) -> &ServiceTotals {
        &self.totals
    }

    /// The limits in force.
    #[must_use]
    pub const fn limits(&self) -> &ServiceLimits {
        &self.limits
    }
}

/// Differences of totals become signals, as `tidegate-sense` makes them.
#[must_use]
pub fn times(now: &Histogram, then: &Histogram) -> tidegate_model::signals::Times {
    let since = now.since(then);
    tidegate_model::signals::Times {
        count: since.count,
        sum: Nanos(since.sum_ns),
        p50: since.quantile(0.5),
        p99: since.quantile(0.99),
    }
}
