// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lease on limits, for native host programs (`policy/chain/lease.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::Reason;
use tidegate_units::Nanos;

/// How strong the limits are: they hold, are executed by chance, or have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease(u32);

/// What becomes of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// It is carried out.
    Executed,
    /// It is only counted: shadow mode.
    Shadowed,
    /// It is only counted: the lease has begun to end.
    Spared,
}

impl Execution {
    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Executed,
            1 => Self::Shadowed,
            _ => Self::Spared,
        }
    }
}

// SAFETY: both are defined in shim.c with these signatures.
unsafe extern "C" {
    fn tg_native_lease(heartbeat_ns: u64, now_ns: u64) -> u32;
    fn tg_native_lease_passes(released: u32, strength: u32) -> u8;
}

impl Lease {
    /// Limits hold (`TG_LEASE_WHOLE`).
    pub const WHOLE: Self = Self(65_536);

    /// By the last heartbeat (zero: there was none).
    #[must_use]
    pub fn at(heartbeat: Nanos, now: Nanos) -> Self {
        // SAFETY: computes with its arguments only.
        Self(unsafe { tg_native_lease(heartbeat.0, now.0) })
    }

    /// In 1/65536.
    #[must_use]
    pub const fn strength(self) -> u32 {
        self.0
    }

    /// Why no limit is asked at all: the kill switch, or the end of the lease.
    #[must_use]
    pub fn passes(self, released: bool) -> Option<Reason> {
        // SAFETY: as above.
        let reason = unsafe { tg_native_lease_passes(released.into(), self.0) };
        Reason::from_number(reason).filter(|reason| *reason != Reason::None)
    }
}
