// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rates and shares that are always finite and in range.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Events per second; finite and not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(f64);

impl Rate {
    /// Nothing per second.
    pub const ZERO: Self = Self(0.0);

    /// `value` per second; NaN and negative values become zero, infinity the largest float.
    #[must_use]
    pub fn per_second(value: f64) -> Self {
        Self(if value.is_nan() { 0.0 } else { value.clamp(0.0, f64::MAX) })
    }

    /// Events per second.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// In thousandths of an event per second, rounded and saturating: what the kernel takes.
    #[must_use]
    pub fn as_milli(self) -> u64 {
        (self.0 * 1e3).round() as u64
    }

    /// Not below `min_rate`, not above `ceiling` (the ceiling wins).
    #[must_use]
    pub fn clamp(self, min_rate: Self, ceiling: Self) -> Self {
        Self(self.0.max(min_rate.0).min(ceiling.0))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}/s", self.0)
    }
}

/// A share of one: finite, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(f64);

impl Share {
    /// Nothing.
    pub const ZERO: Self = Self(0.0);
    /// All.
    pub const ONE: Self = Self(1.0);

    /// `value` clamped to 0…1; NaN becomes zero.
    #[must_use]
    pub fn new(value: f64) -> Self {
        Self(if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) })
    }

    /// As a float from 0 to 1.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", self.0 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_goes_in_finite_and_in_range_comes_out() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 0.5, 1.5] {
            let rate = Rate::per_second(value).get();
            assert!(rate.is_finite() && rate >= 0.0, "{value} gave {rate}");
            let share = Share::new(value).get();
            assert!((0.0..=1.0).contains(&share), "{value} gave {share}");
        }
    }
}
