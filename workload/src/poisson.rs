// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Poisson arrivals of one rate, for runs of billions: the same process as [`crate::Arrivals`]
//! under a constant profile, from other draws, several times faster.
//!
//! The distances are exponential by the ziggurat method (Marsaglia and Tsang 2000, with 256
//! layers): exact in distribution, a logarithm in one of some hundred draws. Its tables are
//! computed at the start with `libm`, so they are the same on every machine.

use crate::rng::{Rng, exponential};
use tidegate_units::{Nanos, Random};

/// Layers of the ziggurat.
const LAYERS: usize = 256;
/// Where the lowest layer's rectangle ends and the tail begins, for 256 layers.
const TAIL: f64 = 7.697_117_470_131_05;
/// Area of each layer: TAIL·e^−TAIL + e^−TAIL.
const AREA: f64 = 0.003_949_659_822_581_572;
/// Draws that may be thrown away one after the other; each is kept with more than 0.98.
const TRIES_MAX: u32 = 64;

/// Exponential numbers of mean 1, quickly.
#[derive(Clone, Debug)]
pub struct Exponential {
    /// Right ends of the layers, falling; the last is 0.
    x: [f64; LAYERS + 1],
    /// e^−x of them.
    y: [f64; LAYERS + 1],
}

impl Default for Exponential {
    fn default() -> Self {
        let mut x = [0.0; LAYERS + 1];
        // The lowest layer is a rectangle as wide as its area over its height, tail included.
        x[0] = AREA / libm::exp(-TAIL);
        x[1] = TAIL;
        for i in 2..LAYERS {
            x[i] = -libm::log(libm::exp(-x[i - 1]) + AREA / x[i - 1]);
        }
        Self { y: x.map(|x| libm::exp(-x)), x }
    }
}

impl Exponential {
    /// One number; finite and not negative.
    #[inline]
    pub fn sample(&self, random: &mut impl Random) -> f64 {
        for _ in 0..TRIES_MAX {
            let bits = random.next_u64();
            let layer = (bits & 0xff) as usize;
            let x = (bits >> 11) as f64 / (1_u64 << 53) as f64 * self.x[layer];
            if x < self.x[layer + 1] {
                return x; // inside the layer above as well, so under the curve
            }
            if let Some(x) = self.edge(layer, x, random) {
                return x;
            }
        }
        exponential(random)
    }

    /// Beyond the layer's safe part: the tail, or under the curve by chance.
    #[cold]
    fn edge(&self, layer: usize, x: f64, random: &mut impl Random) -> Option<f64> {
        if layer == 0 {
            return Some(TAIL + exponential(random)); // the tail looks like the whole
        }
        let (low, high) = (self.y[layer], self.y[layer + 1]);
        (low + (high - low) * random.next_f64() < libm::exp(-x)).then_some(x)
    }
}

/// Poisson arrivals at one rate from time zero to an end.
#[derive(Clone, Debug)]
pub struct Poisson {
    exponential: Exponential,
    mean_ns: f64,
    at_ns: f64,
    until: Nanos,
    rng: Rng,
}

impl Poisson {
    /// `rate` arrivals per second (none, if it is not above 0) before `until`.
    #[must_use]
    pub fn new(rate: f64, until: Nanos, rng: Rng) -> Self {
        let mean_ns = if rate > 0.0 { 1e9 / rate } else { f64::INFINITY };
        Self { exponential: Exponential::default(), mean_ns, at_ns: 0.0, until, rng }
    }
}

impl Iterator for Poisson {
    type Item = Nanos;

    #[inline]
    fn next(&mut self) -> Option<Nanos> {
        self.at_ns += self.mean_ns * self.exponential.sample(&mut self.rng);
        let at = Nanos(self.at_ns as u64);
        (at < self.until).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_have_one_area_and_close_at_the_top() {
        let e = Exponential::default();
        for i in 1..LAYERS {
            let area = e.x[i] * (e.y[i + 1] - e.y[i]);
            assert!((area / AREA - 1.0).abs() < 1e-6, "layer {i}: {area}");
        }
        assert!(e.x.is_sorted_by(|a, b| a > b));
        assert!((AREA - (TAIL + 1.0) * libm::exp(-TAIL)).abs() < 1e-15);
    }

    /// The distribution function at 60 points, from the body far into the tail, within five
    /// standard errors.
    #[test]
    fn numbers_are_exponential_tail_included() {
        let (e, n) = (Exponential::default(), 2_000_000_u32);
        let mut rng = Rng::new(3, 0);
        let mut samples: Vec<f64> = (0..n).map(|_| e.sample(&mut rng)).collect();
        samples.sort_unstable_by(f64::total_cmp);
        for k in 1..=60 {
            let x = f64::from(k) * 0.2;
            let above = samples.len() - samples.partition_point(|s| *s < x);
            let expected = libm::exp(-x);
            let error = libm::sqrt(expected * (1.0 - expected) / f64::from(n));
            let share = above as f64 / f64::from(n);
            assert!((share - expected).abs() < 5.0 * error, "above {x}: {share}, {expected}");
        }
        assert!(samples[0] >= 0.0 && samples[samples.len() - 1].is_finite());
    }

    #[test]
    fn counts_have_variance_equal_to_their_mean() {
        let mut counts = vec![0.0; 10_000];
        for t in Poisson::new(100.0, Nanos::from_secs(1000), Rng::new(5, 0)) {
            counts[(t.0 / 100_000_000) as usize] += 1.0;
        }
        let mean = counts.iter().sum::<f64>() / 1e4;
        let var = counts.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 1e4;
        assert!((mean - 10.0).abs() < 0.15, "mean {mean}");
        assert!((var / mean - 1.0).abs() < 0.06, "variance over mean {}", var / mean);
        assert_eq!(Poisson::new(0.0, Nanos::SECOND, Rng::new(1, 0)).count(), 0);
        assert_eq!(Poisson::new(f64::NAN, Nanos::SECOND, Rng::new(1, 0)).count(), 0);
    }
}
