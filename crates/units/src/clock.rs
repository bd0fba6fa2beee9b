// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time and randomness as arguments. The one place in the project that reads the system's clock.

use crate::Nanos;
use std::sync::atomic::{AtomicU64, Ordering};

/// A monotonic clock.
pub trait Clock {
    /// The time now; never goes back.
    fn now(&self) -> Nanos;
}

/// A source of random numbers.
pub trait Random {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;

    /// A uniform float in 0…1, 1 excluded, from the upper 53 bits.
    fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The machine's monotonic clock (`CLOCK_MONOTONIC`): the clock that `bpf_ktime_get_ns` reads, so
/// that times of the dataplane and of user space compare (outside of time namespaces).
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Nanos {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }
}

/// The time since the machine was booted, sleep included (`CLOCK_BOOTTIME`): for what is kept from
/// one process to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Nanos {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }
}

/// The time of day (`CLOCK_REALTIME`), since 1970: for people, and for no decision but where another program decides by
/// it. It may be set.
#[derive(Clone, Copy, Debug, Default)]
pub struct DayClock;

impl Clock for DayClock {
    fn now(&self) -> Nanos {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Nanos(u64::try_from(t.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000) + t.tv_nsec as u64)
    }
}

/// CPU time used by the present thread: for programs that have to spend a certain amount of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadCpuClock;

impl Clock for ThreadCpuClock {
    fn now(&self) -> Nanos {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }
}

/// A clock that moves only when told to: for tests and virtual time.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: AtomicU64,
}

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Nanos) {
        self.now.fetch_add(by.0, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }
}
