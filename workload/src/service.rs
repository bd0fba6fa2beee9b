// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Distributions of service times (and of any positive amount) with a given mean.

use crate::rng::{exponential, normal};
use serde::{Deserialize, Serialize};
use tidegate_units::Random;

/// Shape of a distribution; [`Shape::sample`] has mean 1, so a mean is a factor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Always 1.
    Constant,
    /// Exponential.
    Exponential,
    /// Log-normal with this coefficient of variation (standard deviation over mean).
    Lognormal {
        /// Coefficient of variation, above 0.
        cv: f64,
    },
    /// Bounded Pareto: tail index `alpha` (not 1), the largest value `ratio` times the smallest.
    Pareto {
        /// Tail index, above 0 and not 1.
        alpha: f64,
        /// Largest over smallest value, above 1.
        ratio: f64,
    },
    /// Two values: a share `heavy` of the samples is `ratio` times the others.
    Bimodal {
        /// Share of the heavy ones, 0 to 1.
        heavy: f64,
        /// How many times heavier they are.
        ratio: f64,
    },
}

impl Shape {
    /// One sample, of mean 1.
    pub fn sample(&self, random: &mut impl Random) -> f64 {
        match *self {
            Self::Constant => 1.0,
            Self::Exponential => exponential(random),
            Self::Lognormal { cv } => {
                let variance = libm::log(1.0 + cv * cv);
                libm::exp(libm::sqrt(variance) * normal(random) - variance / 2.0)
            }
            Self::Pareto { alpha, ratio } => {
                let u = random.next_f64();
                let x = libm::pow(1.0 - u * (1.0 - libm::pow(ratio, -alpha)), -1.0 / alpha);
                x / pareto_moment(alpha, ratio, 1.0)
            }
            Self::Bimodal { heavy, ratio } => {
                let light = 1.0 / (1.0 - heavy + heavy * ratio);
                if random.next_f64() < heavy { light * ratio } else { light }
            }
        }
    }

    /// Coefficient of variation: standard deviation over mean.
    #[must_use]
    pub fn cv(&self) -> f64 {
        match *self {
            Self::Constant => 0.0,
            Self::Exponential => 1.0,
            Self::Lognormal { cv } => cv,
            Self::Pareto { alpha, ratio } => {
                let mean = pareto_moment(alpha, ratio, 1.0);
                let square = pareto_moment(alpha, ratio, 2.0);
                libm::sqrt((square / (mean * mean) - 1.0).max(0.0))
            }
            Self::Bimodal { heavy, ratio } => {
                let mean = 1.0 - heavy + heavy * ratio;
                let square = 1.0 - heavy + heavy * ratio * ratio;
                libm::sqrt((square / (mean * mean) - 1.0).max(0.0))
            }
        }
    }
}

/// The k-th moment of a bounded Pareto with smallest value 1 and largest `ratio`.
fn pareto_moment(alpha: f64, ratio: f64, k: f64) -> f64 {
    let scale = alpha / (1.0 - libm::pow(ratio, -alpha));
    let d = k - alpha;
    if d.abs() < 1e-9 {
        return scale * libm::log(ratio);
    }
    scale * (libm::pow(ratio, d) - 1.0) / d
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn every_shape_has_mean_one_and_its_coefficient_of_variation() {
        for shape in [
            Shape::Constant,
            Shape::Exponential,
            Shape::Lognormal { cv: 2.0 },
            Shape::Pareto { alpha: 1.5, ratio: 100.0 },
            Shape::Pareto { alpha: 2.0, ratio: 1000.0 },
            Shape::Bimodal { heavy: 0.1, ratio: 20.0 },
        ] {
            let mut rng = Rng::new(11, 0);
            let n = 1_000_000;
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..n {
                let x = shape.sample(&mut rng);
                assert!(x.is_finite() && x >= 0.0);
                sum += x;
                squares += x * x;
            }
            let mean = sum / f64::from(n);
            let cv = libm::sqrt((squares / f64::from(n) - mean * mean).max(0.0)) / mean;
            assert!((mean - 1.0).abs() < 0.02, "{shape:?}: mean {mean}");
            assert!((cv - shape.cv()).abs() < 0.1 * (1.0 + shape.cv()), "{shape:?}: cv {cv}");
        }
    }
}
