// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time as the kernel's dataplane counts it: unsigned nanoseconds of one monotonic clock.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point on a monotonic clock, or a span of it, in nanoseconds.
///
/// Subtraction saturates at zero: time standing still or going back does no harm.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The beginning of the clock, or no time at all.
    pub const ZERO: Self = Self(0);
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000);

    /// Whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// Whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Seconds as a float; NaN and negative values become zero, too large ones the maximum.
    #[must_use]
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e9) as u64)
    }

    /// In seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// In milliseconds.
    #[must_use]
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The span since `earlier`, zero if that lies in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.since(other)
    }
}

impl From<std::time::Duration> for Nanos {
    fn from(d: std::time::Duration) -> Self {
        Self(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for std::time::Duration {
    fn from(n: Nanos) -> Self {
        Self::from_nanos(n.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 1_000 => write!(f, "{n} ns"),
            n if n < 1_000_000 => write!(f, "{:.1} us", n as f64 / 1e3),
            n if n < 1_000_000_000 => write!(f, "{:.1} ms", n as f64 / 1e6),
            n => write!(f, "{:.2} s", n as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_going_back_is_zero_and_never_wraps() {
        assert_eq!(Nanos(5) - Nanos(7), Nanos::ZERO);
        assert_eq!(Nanos(u64::MAX) + Nanos(1), Nanos(u64::MAX));
        assert_eq!(Nanos::from_secs_f64(f64::NAN), Nanos::ZERO);
        assert_eq!(Nanos::from_secs_f64(-1.0), Nanos::ZERO);
        assert_eq!(Nanos::from_secs_f64(f64::INFINITY), Nanos(u64::MAX));
    }

    #[test]
    fn shown_with_the_unit_that_fits() {
        let shown: Vec<String> =
            [999, 1_500, 2_500_000, 3_250_000_000].map(|n| Nanos(n).to_string()).into();
        assert_eq!(shown, ["999 ns", "1.5 us", "2.5 ms", "3.25 s"]);
    }
}
