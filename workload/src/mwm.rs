// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The multifractal wavelet model: positive, bursty rates with long memory.
//!
//! Riedi, Crouse, Ribeiro and Baraniuk, "A multifractal wavelet model with application to network
//! traffic", IEEE Transactions on Information Theory 45(3), 1999. A Haar tree grows from one root
//! to 2^scales slots; a node U with the multiplier A has the children (1 + A)·U/√2 and
//! (1 − A)·U/√2, where A = 2·Beta(p, p) − 1 and p belongs to the scale. The parameters p follow
//! in closed form from the mean, the standard deviation of a slot and the Hurst parameter.

use crate::rng::{Rng, normal, symmetric_beta};
use serde::{Deserialize, Serialize};
use tidegate_units::Random;

/// Most scales: 2^24 slots are 128 MiB.
pub const SCALES_MAX: u32 = 24;
/// A negative root is drawn again so often; with a positive mean, fewer than one in 10^38 is left.
const REDRAWS_MAX: u32 = 128;

/// What the top of the tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Root {
    /// Every trace has exactly the mean (the Abacus paper's experiments hold it fixed).
    Fixed,
    /// The mean of a trace is normal, as in the model's own paper; negative roots are drawn
    /// again, which raises the mean where the deviation is large (by 0.7 % at 1.6 times the mean).
    Random,
}

/// What is wanted of the traces.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MwmSpec {
    /// Mean of a slot (for slots of 1 s: arrivals per second), above 0.
    pub mean: f64,
    /// Standard deviation of a slot, above 0.
    pub sd: f64,
    /// Hurst parameter, above 0.5 and below 1.
    pub hurst: f64,
    /// Scales: a trace has 2^scales slots; 1 to [`SCALES_MAX`].
    pub scales: u32,
    /// Whether the mean of each trace is fixed.
    pub root: Root,
}

impl MwmSpec {
    /// The load of the Abacus paper's section 6, with this standard deviation: mean 100, H 0.8,
    /// 10 scales, and the mean the same in every trace.
    #[must_use]
    pub const fn paper(sd: f64) -> Self {
        Self { mean: 100.0, sd, hurst: 0.8, scales: 10, root: Root::Fixed }
    }
}

/// Why a model cannot be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MwmError {
    /// The mean or the standard deviation is not finite and positive.
    Moments,
    /// The Hurst parameter is not between 0.5 and 1 (both excluded).
    Hurst(f64),
    /// The number of scales is not from 1 to [`SCALES_MAX`].
    Scales(u32),
    /// At this scale (0 is the coarsest) no multiplier has the variance that is needed.
    Multiplier(u32),
    /// Too few numbers to fit the model to, or numbers that are not finite.
    Data,
}

impl std::fmt::Display for MwmError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Moments => f.write_str("mean and standard deviation must be finite and above 0"),
            Self::Hurst(h) => write!(f, "a Hurst parameter of {h} is not between 0.5 and 1"),
            Self::Scales(n) => write!(f, "{n} scales are not from 1 to {SCALES_MAX}"),
            Self::Multiplier(j) => {
                write!(f, "the standard deviation is too large for a positive rate, at scale {j}")
            }
            Self::Data => f.write_str("too few finite numbers to fit the model to"),
        }
    }
}

impl std::error::Error for MwmError {}

/// A multifractal wavelet model, ready to draw traces from.
#[derive(Clone, Debug, PartialEq)]
pub struct Mwm {
    root_mean: f64,
    root_sd: f64,
    shapes: Vec<f64>,
}

impl Mwm {
    /// The model with these moments.
    ///
    /// # Errors
    /// Values out of range, or a deviation that positive rates cannot have.
    pub fn new(spec: MwmSpec) -> Result<Self, MwmError> {
        if ![spec.mean, spec.sd].iter().all(|x| x.is_finite() && *x > 0.0) {
            return Err(MwmError::Moments);
        }
        if !(spec.hurst > 0.5 && spec.hurst < 1.0) {
            return Err(MwmError::Hurst(spec.hurst));
        }
        if !(1..=SCALES_MAX).contains(&spec.scales) {
            return Err(MwmError::Scales(spec.scales));
        }
        let shapes = match spec.root {
            Root::Random => random_root_shapes(&spec),
            Root::Fixed => fixed_root_shapes(&spec),
        };
        // Of the root only the mean over its slots is kept: U_0 / 2^(n/2).
        let n = f64::from(spec.scales);
        let root_sd = match spec.root {
            Root::Fixed => 0.0,
            Root::Random => spec.sd * libm::exp2(n * (2.0 * spec.hurst - 1.0) / 2.0 - n / 2.0),
        };
        Self { root_mean: spec.mean, root_sd, shapes }.checked()
    }

    /// The model that fits a series, as the authors' own program fits it: the root from the mean
    /// and the standard deviation of the coarsest coefficients, of which at least `coarse` are
    /// kept, the multipliers from the energy of each scale (section IV of the paper).
    ///
    /// # Errors
    /// Fewer than `2 · coarse` numbers, numbers that are not finite, or energies that no
    /// multiplier gives.
    pub fn fit(series: &[f64], coarse: usize) -> Result<Self, MwmError> {
        let scales = (series.len() / coarse.max(2)).checked_ilog2().unwrap_or(0).min(SCALES_MAX);
        if scales == 0 || !series.iter().all(|x| x.is_finite()) {
            return Err(MwmError::Data);
        }
        let roots = series.len() >> scales;
        let mut sums = series[..roots << scales].to_vec();
        let mut energies = Vec::with_capacity(scales as usize);
        for _ in 0..scales {
            energies.push(haar_step(&mut sums));
        }
        let mean = sums.iter().sum::<f64>() / roots as f64;
        let spread = sums.iter().map(|u| (u - mean) * (u - mean)).sum::<f64>();
        let mut above = sums.iter().map(|u| u * u).sum::<f64>() / roots as f64;
        let mut shape = 0.0;
        let mut shapes = Vec::with_capacity(scales as usize);
        for energy in energies.into_iter().rev() {
            shape = 0.5 * (above / energy) * (shape + 1.0) - 0.5;
            shapes.push(shape);
            above = energy;
        }
        let per_slot = libm::exp2(-f64::from(scales) / 2.0);
        let root_sd = libm::sqrt(spread / (roots - 1) as f64) * per_slot;
        Self { root_mean: mean * per_slot, root_sd, shapes }.checked()
    }

    fn checked(self) -> Result<Self, MwmError> {
        if !(self.root_mean > 0.0 && self.root_sd.is_finite()) {
            return Err(MwmError::Moments);
        }
        match self.shapes.iter().position(|p| !(p.is_finite() && *p > 0.0)) {
            Some(scale) => Err(MwmError::Multiplier(scale as u32)),
            None => Ok(self),
        }
    }

    /// The parameter p of each scale's Beta(p, p), from coarse to fine.
    #[must_use]
    pub fn shapes(&self) -> &[f64] {
        &self.shapes
    }

    /// Mean and standard deviation of the mean over one trace.
    #[must_use]
    pub const fn root(&self) -> (f64, f64) {
        (self.root_mean, self.root_sd)
    }

    /// Slots of a trace: 2^scales.
    #[must_use]
    pub fn slots(&self) -> usize {
        1 << self.shapes.len()
    }

    /// One trace: the rate of each slot, not negative, in the unit of the mean.
    #[must_use]
    pub fn rates(&self, rng: &mut Rng) -> Vec<f64> {
        let mut rates = vec![0.0; self.slots()];
        rates[0] = self.draw_root(rng);
        for (scale, shape) in self.shapes.iter().enumerate() {
            // From the right, so that children overwrite no parent that is still needed.
            for node in (0..1_usize << scale).rev() {
                let (parent, a) = (rates[node], symmetric_beta(*shape, rng));
                rates[2 * node] = (1.0 + a) * parent;
                rates[2 * node + 1] = (1.0 - a) * parent;
            }
        }
        rates
    }

    fn draw_root(&self, rng: &mut Rng) -> f64 {
        if self.root_sd <= 0.0 {
            return self.root_mean;
        }
        (0..REDRAWS_MAX)
            .map(|_| self.root_mean + self.root_sd * normal(rng))
            .find(|root| *root >= 0.0)
            .unwrap_or(self.root_mean)
    }
}

/// p_j for a normal root, j from coarse to fine.
fn random_root_shapes(spec: &MwmSpec) -> Vec<f64> {
    let e = 2.0 - 2.0 * spec.hurst;
    let b = libm::exp2(e) - 1.0;
    let ratio = (spec.mean / spec.sd) * (spec.mean / spec.sd);
    let shape = |m: u32| ((1.0 + ratio * libm::exp2(f64::from(m) * e)) / b - 1.0) / 2.0;
    (1..=spec.scales).rev().map(shape).collect()
}

/// p_j for a fixed root: V_j is the variance of a node's mean at scale j.
fn fixed_root_shapes(spec: &MwmSpec) -> Vec<f64> {
    let q = libm::exp2(2.0 - 2.0 * spec.hurst);
    let whole = libm::pow(q, f64::from(spec.scales)) - 1.0;
    let v = |j: u32| spec.sd * spec.sd * (libm::pow(q, f64::from(j)) - 1.0) / whole;
    let shape = |j: u32| {
        let square = (v(j + 1) - v(j)) / (spec.mean * spec.mean + v(j));
        (1.0 / square - 1.0) / 2.0
    };
    (0..spec.scales).map(shape).collect()
}

/// Replaces neighbours by their sums over √2; the mean square of their differences over √2.
fn haar_step(sums: &mut Vec<f64>) -> f64 {
    let pairs = sums.len() / 2;
    let mut energy = 0.0;
    for i in 0..pairs {
        let (a, b) = (sums[2 * i], sums[2 * i + 1]);
        energy += (a - b) * (a - b) / 2.0;
        sums[i] = (a + b) * core::f64::consts::FRAC_1_SQRT_2;
    }
    sums.truncate(pairs);
    energy / pairs as f64
}

/// Whole arrivals for each rate, by stochastic rounding: the expected count is the rate. Rates
/// below zero or not finite count as zero.
#[must_use]
pub fn rates_to_counts(rates: &[f64], rng: &mut Rng) -> Vec<u64> {
    rates
        .iter()
        .map(|rate| {
            let rate = if rate.is_finite() { rate.max(0.0) } else { 0.0 };
            let whole = libm::floor(rate);
            whole as u64 + u64::from(rng.next_f64() < rate - whole)
        })
        .collect()
}
