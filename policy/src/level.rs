// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much work waits for a service (`policy/chain/level.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi::{self, LEVEL_SHIFT, Level};
use tidegate_units::Nanos;

/// A weight of one.
const ONE_Q10: u32 = 1 << LEVEL_SHIFT;

/// The default counts nothing: the level is 0, below every threshold.
impl Level {
    /// Always 0.
    pub const NONE: Self = Self { queue_q10: 0, in_flight_q10: 0 };
    /// Connections that wait for accept().
    pub const ACCEPT_QUEUE: Self = Self { queue_q10: ONE_Q10, in_flight_q10: 0 };
    /// Requests that wait for a response.
    pub const IN_FLIGHT: Self = Self { queue_q10: 0, in_flight_q10: ONE_Q10 };
    /// The larger of both: who waits for accept() and has sent a request is in both.
    pub const UNFINISHED_WORK: Self = Self { queue_q10: ONE_Q10, in_flight_q10: ONE_Q10 };

    /// The virtual waiting time, in microseconds: unfinished work times what one request takes of the
    /// service, which is 1 / capacity. At most 4 s each.
    #[must_use]
    pub fn waiting_time(per_request: Nanos) -> Self {
        let q10 = u128::from(per_request.0) * u128::from(ONE_Q10) / 1000;
        let q10 = u32::try_from(q10).unwrap_or(u32::MAX);
        Self { queue_q10: q10, in_flight_q10: q10 }
    }

    /// The level with so many connections in the accept queue and so many requests in flight.
    #[must_use]
    pub fn of(self, queue: u64, in_flight: u64) -> u32 {
        let queue = u32::try_from(queue).unwrap_or(u32::MAX);
        let in_flight = i64::try_from(in_flight).unwrap_or(i64::MAX);
        // SAFETY: the structure is the C one, read only.
        unsafe { abi::tg_native_level(&raw const self, queue, in_flight) }
    }
}
