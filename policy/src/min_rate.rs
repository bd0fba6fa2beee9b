// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The least rate, for native host programs (`policy/chain/min_rate.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi;
use std::sync::atomic::AtomicU64;
use tidegate_units::{Nanos, Rate};

/// One in so long is admitted even if the limit in flight or the one on the accept queue is full.
/// The default admits none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinRate {
    interval_us: u32,
}

impl MinRate {
    /// So many per second, from one in 4,294 s to a million. The interval between two is rounded up to
    /// whole microseconds.
    #[must_use]
    pub fn per(rate: Rate) -> Self {
        let us = 1e6 / rate.get();
        let us = if us.is_nan() { f64::INFINITY } else { us.ceil() };
        // casts saturate
        Self { interval_us: (us as u32).max(1) }
    }

    /// Microseconds between two, as the chain has it; 0: none is admitted.
    #[must_use]
    pub const fn interval_us(self) -> u32 {
        self.interval_us
    }

    /// Whether one who comes now to a full limit is admitted. `at` is the state: when the last one was,
    /// nanoseconds; zero is fresh.
    pub fn admits(self, at: &AtomicU64, now: Nanos) -> bool {
        // SAFETY: the word lives, and is only changed by a compare-and-exchange; nothing else is.
        unsafe { abi::tg_native_min_rate(self.interval_us, at.as_ptr(), now.0) != 0 }
    }
}
