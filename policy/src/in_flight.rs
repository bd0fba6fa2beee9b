// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit in flight, for native host programs (`policy/chain/in_flight.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi::{self, ASKS_SHIFT, InFlight};

impl InFlight {
    /// At most so many that wait; at least one.
    #[must_use]
    pub fn up_to(max: u64) -> Self {
        Self { max: word(max).max(1), ..Self::default() }
    }

    /// Once that has refused, at most `low`, until no more than `rest` wait.
    #[must_use]
    pub fn tight(self, (low, rest): (u64, u64)) -> Self {
        Self { low: word(low), rest: word(rest), ..self }
    }

    /// Counts this share, in 1/1024, of the silent beyond so many.
    #[must_use]
    pub fn counting(self, silent: u64, asks: u32) -> Self {
        Self { silent: word(silent), asks: asks.min(1 << ASKS_SHIFT), ..self }
    }

    /// Whether no more may come. `tight` is the state of the limit: zero is fresh.
    pub fn full(&self, tight: &mut u32, waiting: u64, silent: u64) -> bool {
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        // SAFETY: the structures are the C ones.
        unsafe { abi::tg_native_full(self, tight, gauge(waiting), gauge(silent)) != 0 }
    }
}

/// A number of connections as the chain has it: no table holds more.
fn word(connections: u64) -> u32 {
    connections.min(i32::MAX as u64) as u32
}
