// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What evaluates a SYN.

use super::spec::Refill;
use tidegate_policy::{Event, Params, State, evaluate};
use tidegate_units::Nanos;

/// What is done with a SYN. `Delay` makes a run void: it is not modelled.
pub use tidegate_policy::VerdictKind as Verdict;

/// A filter in front of the server.
pub trait Filter {
    /// The verdict on one SYN at `now` (never falling). `key` is the same for all SYNs of one
    /// client; `attempt` is 0 for its first. Shipped policies do not see the attempt: it is there
    /// for references and tests.
    fn evaluate(&mut self, now: Nanos, key: u64, attempt: u8) -> Verdict;
}

impl<F: Filter + ?Sized> Filter for &mut F {
    fn evaluate(&mut self, now: Nanos, key: u64, attempt: u8) -> Verdict {
        (**self).evaluate(now, key, attempt)
    }
}

impl<F: Filter + ?Sized> Filter for Box<F> {
    fn evaluate(&mut self, now: Nanos, key: u64, attempt: u8) -> Verdict {
        (**self).evaluate(now, key, attempt)
    }
}

/// Any registered policy: the C that the kernel runs, through its binding.
#[derive(Debug)]
pub struct PolicyFilter {
    params: Params,
    state: State,
    grain: u64,
    random: u64,
}

impl PolicyFilter {
    /// A fresh policy with these parameters.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self { params, state: State::fresh(), grain: 1, random: 0 }
    }

    /// The same policy with tokens that arrive as `refill` says. Once a period: the policy is
    /// shown a clock that stands still inside a period (of at least 1 ns), so its tokens, and
    /// whatever else it does by time, come at whole multiples.
    #[must_use]
    pub fn refilled(mut self, refill: Refill) -> Self {
        self.grain = match refill {
            Refill::Continuous => 1,
            Refill::Every(period) => period.0.max(1),
        };
        self
    }

    /// The policy's memory, for whoever looks into it.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }
}

impl Filter for PolicyFilter {
    #[inline]
    fn evaluate(&mut self, now: Nanos, key: u64, _attempt: u8) -> Verdict {
        let now_ns = if self.grain == 1 { now.0 } else { now.0 / self.grain * self.grain };
        // a full-period LCG: policies get random bits that do not depend on the client
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = (self.random >> 32) as u32;
        let event = Event { now_ns, key, random, ..Event::default() };
        evaluate(&self.params, &mut self.state, &event)
    }
}
