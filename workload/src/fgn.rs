// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fractional Gaussian noise, exactly, by the method of Davies and Harte (1987): the covariance is
//! embedded in a circulant matrix, whose square root the Fourier transform takes.
//!
//! The one process of known Hurst parameter that shares nothing with the wavelet model: what the
//! estimators are checked with.

use crate::rng::{Rng, normal};

/// Longest series: 2^22.
const OCTAVES_MAX: u32 = 22;

/// Normal numbers with mean 0, variance 1 and the covariance of fractional Gaussian noise.
#[derive(Clone, Debug)]
pub struct FractionalNoise {
    /// Square roots of the circulant's eigenvalues over its length.
    roots: Vec<f64>,
}

impl FractionalNoise {
    /// Series of 2^octaves numbers with this Hurst parameter; `None` when that is not above 0 and
    /// below 1 or the octaves are not from 1 to 22.
    #[must_use]
    pub fn new(hurst: f64, octaves: u32) -> Option<Self> {
        if !(hurst > 0.0 && hurst < 1.0 && (1..=OCTAVES_MAX).contains(&octaves)) {
            return None;
        }
        let (n, size) = (1_usize << octaves, 2_usize << octaves);
        let power = |k: f64| libm::pow(k.abs(), 2.0 * hurst);
        let covariance = |lag: usize| {
            let k = lag as f64;
            0.5 * (power(k + 1.0) - 2.0 * power(k) + power(k - 1.0))
        };
        let mut re: Vec<f64> = (0..size).map(|i| covariance(i.min(size - i))).collect();
        let mut im = vec![0.0; size];
        debug_assert_eq!(re[n], covariance(n));
        fourier(&mut re, &mut im);
        // The eigenvalues are not negative for this covariance; what is below zero is rounding.
        let roots = re.iter().map(|e| libm::sqrt(e.max(0.0) / size as f64)).collect();
        Some(Self { roots })
    }

    /// One series.
    #[must_use]
    pub fn sample(&self, rng: &mut Rng) -> Vec<f64> {
        let mut draw = || self.roots.iter().map(|root| root * normal(rng)).collect::<Vec<f64>>();
        let (mut re, mut im) = (draw(), draw());
        fourier(&mut re, &mut im);
        re.truncate(self.roots.len() / 2);
        re
    }
}

/// The discrete Fourier transform in place, for a power of two of numbers (radix 2, decimation in
/// time).
fn fourier(re: &mut [f64], im: &mut [f64]) {
    let n = re.len();
    let bits = n.trailing_zeros();
    for i in 0..n {
        let j = i.reverse_bits() >> (usize::BITS - bits);
        if i < j {
            re.swap(i, j);
            im.swap(i, j);
        }
    }
    let turn = |k: usize| -core::f64::consts::TAU * k as f64 / n as f64;
    let twiddles: Vec<(f64, f64)> =
        (0..n / 2).map(|k| (libm::cos(turn(k)), libm::sin(turn(k)))).collect();
    for half in (0..bits).map(|stage| 1_usize << stage) {
        let stride = n / (2 * half);
        for start in (0..n).step_by(2 * half) {
            for k in 0..half {
                let (c, s) = twiddles[k * stride];
                let (a, b) = (start + k, start + k + half);
                let (x, y) = (re[b] * c - im[b] * s, re[b] * s + im[b] * c);
                (re[b], im[b]) = (re[a] - x, im[a] - y);
                (re[a], im[a]) = (re[a] + x, im[a] + y);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_agrees_with_its_definition() {
        let input: Vec<(f64, f64)> =
            (0..16_i32).map(|i| (f64::from(i * i % 7), f64::from(i % 5))).collect();
        let (mut re, mut im): (Vec<f64>, Vec<f64>) = input.iter().copied().unzip();
        fourier(&mut re, &mut im);
        for k in 0..16 {
            let (mut x, mut y) = (0.0, 0.0);
            for (i, (a, b)) in input.iter().enumerate() {
                let turn = -core::f64::consts::TAU * (k * i) as f64 / 16.0;
                let (c, s) = (libm::cos(turn), libm::sin(turn));
                x += a * c - b * s;
                y += a * s + b * c;
            }
            assert!((re[k] - x).abs() < 1e-12 && (im[k] - y).abs() < 1e-12, "{k}");
        }
    }

    #[test]
    fn the_noise_has_the_covariance_of_its_definition() {
        let noise = FractionalNoise::new(0.8, 8).expect("in range");
        let mut rng = Rng::new(4, 0);
        let (mut variance, mut neighbours) = (0.0, 0.0);
        let series = 4000;
        for _ in 0..series {
            let x = noise.sample(&mut rng);
            variance += x.iter().map(|x| x * x).sum::<f64>() / 256.0;
            neighbours += x.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / 255.0;
        }
        let n = f64::from(series);
        // 2^(2H − 1) − 1 for neighbours.
        let wanted = libm::pow(2.0, 0.6) - 1.0;
        assert!((variance / n - 1.0).abs() < 0.015, "variance {}", variance / n);
        assert!((neighbours / n - wanted).abs() < 0.015, "neighbours {}", neighbours / n);
    }
}
