// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A load profile: the rate of arrivals as a piecewise linear function of time.

use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

/// One piece: the rate runs linearly from `from` to `to` during `lasts`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Length of the piece.
    pub lasts: Nanos,
    /// Arrivals per second at its beginning.
    pub from: f64,
    /// Arrivals per second at its end.
    pub to: f64,
}

impl Segment {
    /// A piece of constant rate (arrivals per second).
    #[must_use]
    pub const fn constant(lasts: Nanos, rate: f64) -> Self {
        Self { lasts, from: rate, to: rate }
    }

    /// Expected arrivals in its first `t` seconds.
    fn expected(&self, t: f64) -> f64 {
        let length = self.lasts.as_secs_f64();
        let slope = if length > 0.0 { (self.to - self.from) / length } else { 0.0 };
        (self.from + 0.5 * slope * t) * t
    }

    /// Seconds after which `n` arrivals are expected, if that happens within the piece.
    fn time_of(&self, n: f64) -> Option<f64> {
        let length = self.lasts.as_secs_f64();
        let whole = self.expected(length);
        if n > whole || whole <= 0.0 {
            return None;
        }
        let slope = (self.to - self.from) / length;
        // Root of slope/2·t² + from·t − n, in the form that stays exact for a small slope.
        let root = libm::sqrt((self.from * self.from + 2.0 * slope * n).max(0.0));
        let divisor = self.from + root;
        if divisor <= 0.0 { Some(0.0) } else { Some((2.0 * n / divisor).min(length)) }
    }
}

/// Pieces one after the other, from time zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The pieces; rates below zero or not finite count as zero.
    pub segments: Vec<Segment>,
}

impl Profile {
    /// A profile of these pieces.
    #[must_use]
    pub fn new(segments: &[Segment]) -> Self {
        let clean = |rate: f64| if rate.is_finite() { rate.max(0.0) } else { 0.0 };
        let segments = segments
            .iter()
            .map(|s| Segment { lasts: s.lasts, from: clean(s.from), to: clean(s.to) })
            .collect();
        Self { segments }
    }

    /// One rate (per second) for a while.
    #[must_use]
    pub fn constant(lasts: Nanos, rate: f64) -> Self {
        Self::new(&[Segment::constant(lasts, rate)])
    }

    /// Length of the whole.
    #[must_use]
    pub fn duration(&self) -> Nanos {
        self.segments.iter().fold(Nanos::ZERO, |sum, s| sum + s.lasts)
    }

    /// Expected arrivals of the whole.
    #[must_use]
    pub fn expected(&self) -> f64 {
        self.segments.iter().map(|s| s.expected(s.lasts.as_secs_f64())).sum()
    }
}

/// Maps "the n-th expected arrival" to its time, for growing n: the inverse of the cumulative rate.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    profile: Profile,
    index: usize,
    started: Nanos,
    passed: f64,
}

impl Cursor {
    pub(crate) fn new(profile: Profile) -> Self {
        Self { profile, index: 0, started: Nanos::ZERO, passed: 0.0 }
    }

    /// Time at which the cumulative rate reaches `n`; `None` after the end. `n` must not fall.
    pub(crate) fn time_of(&mut self, n: f64) -> Option<Nanos> {
        while let Some(segment) = self.profile.segments.get(self.index) {
            if let Some(t) = segment.time_of(n - self.passed) {
                return Some(self.started + Nanos::from_secs_f64(t));
            }
            self.passed += segment.expected(segment.lasts.as_secs_f64());
            self.started += segment.lasts;
            self.index += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_of_a_ramp_and_a_step_is_exact() {
        let second = Nanos::SECOND;
        let profile = Profile::new(&[
            Segment { lasts: second, from: 0.0, to: 100.0 },
            Segment::constant(second, 0.0),
            Segment::constant(second, 10.0),
        ]);
        assert!((profile.expected() - 60.0).abs() < 1e-9);
        let mut cursor = Cursor::new(profile);
        for (n, seconds) in [(12.5, 0.5), (50.0, 1.0), (51.0, 2.1), (60.0, 3.0)] {
            let t = cursor.time_of(n).map(Nanos::as_secs_f64);
            assert!(t.is_some_and(|t| (t - seconds).abs() < 1e-6), "{n} at {t:?}");
        }
        assert_eq!(cursor.time_of(60.5), None);
    }
}
