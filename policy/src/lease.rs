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

    /// Of a limit that ends at this time if nobody says otherwise; `None`: as of any other.
    #[must_use]
    pub fn until(self, end: Option<Nanos>, now: Nanos) -> Self {
        // SAFETY: as above.
        Self(unsafe { abi::tg_native_lease_until(self.0, until(end), now.0) })
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

/// The end of a limit as the kernel has it, up to a millisecond later; 0: none.
pub(crate) fn until(end: Option<Nanos>) -> u32 {
    end.map_or(0, |end| ((end.0 >> abi::LEASE_UNTIL_SHIFT).wrapping_add(1) as u32).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where its units have wrapped, after 52 days.
    #[test]
    fn a_limit_that_was_given_until_a_time_is_over_then() {
        for start in [Nanos::from_secs(5), Nanos::from_secs(4_503_590), Nanos::from_secs(9_007_195)]
        {
            let whole = Lease::at(start, start);
            assert_eq!(whole.until(None, start + Nanos::from_secs(900)), Lease::WHOLE);
            let end = start + Nanos::from_secs(10);
            let at = |ms: u64| whole.until(Some(end), start + Nanos::from_millis(ms));
            assert_eq!((at(0), at(9_999)), (Lease::WHOLE, Lease::WHOLE), "{start:?}");
            assert_eq!((at(10_003).strength(), at(900_000).strength()), (0, 0), "{start:?}");
        }
        let relaxing = Lease::at(Nanos::from_secs(1), Nanos::from_secs(6));
        assert_eq!(relaxing.until(Some(Nanos::from_secs(7)), Nanos::from_secs(6)), relaxing);
    }
}
