// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lease on limits, for native host programs (`policy/chain/lease.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::{Reason, abi};
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
        match number as u32 {
            abi::TG_EXECUTED => Self::Executed,
            abi::TG_SHADOWED => Self::Shadowed,
            _ => Self::Spared,
        }
    }
}

impl Lease {
    /// Limits hold.
    pub const WHOLE: Self = Self(abi::LEASE_WHOLE);
    /// So long after the last heartbeat everything passes.
    pub const END: Nanos = Nanos(abi::LEASE_END_NS);

    /// By the last heartbeat (zero: there was none).
    #[must_use]
    pub fn at(heartbeat: Nanos, now: Nanos) -> Self {
        // SAFETY: computes with its arguments only.
        Self(unsafe { abi::tg_native_lease(heartbeat.0, now.0) })
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
        let reason = unsafe { abi::tg_native_lease_passes(released.into(), self.0) };
        Reason::from_number(reason).filter(|reason| *reason != Reason::None)
    }
}
