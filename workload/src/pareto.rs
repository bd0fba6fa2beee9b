// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Pareto distribution, with what a stationary start needs.

use tidegate_units::Random;

/// Pareto: P(X > x) = (k/x)^α for x above the smallest value k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pareto {
    shape: f64,
    smallest: f64,
}

impl Pareto {
    /// With this shape α (above 1) and mean (above 0).
    pub(crate) fn with_mean(shape: f64, mean: f64) -> Self {
        Self { shape, smallest: mean * (shape - 1.0) / shape }
    }

    /// With this shape α (above 1) and smallest value (above 0).
    pub(crate) const fn with_smallest(shape: f64, smallest: f64) -> Self {
        Self { shape, smallest }
    }

    pub(crate) fn mean(&self) -> f64 {
        self.smallest * self.shape / (self.shape - 1.0)
    }

    pub(crate) fn sample(&self, random: &mut impl Random) -> f64 {
        self.smallest * libm::pow(1.0 - random.next_f64(), -1.0 / self.shape)
    }

    /// What is left of the one that is under way at a random moment: the integrated tail, with
    /// density P(X > x)/mean.
    pub(crate) fn residual(&self, random: &mut impl Random) -> f64 {
        let tail = 1.0 - random.next_f64();
        if tail > 1.0 / self.shape {
            return (1.0 - tail) * self.mean();
        }
        self.smallest * libm::pow(self.shape * tail, -1.0 / (self.shape - 1.0))
    }
}
