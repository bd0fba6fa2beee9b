// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a client draws: a function of seed, serial number and attempt.
//!
//! A generator that is asked by position and not in sequence: one LCG step from a position, then
//! the output permutation of PCG RXS-M-XS 64 (O'Neill 2014). Its two constants come from the
//! project's pinned generator.

use tidegate_units::Random;
use tidegate_workload::{Jitter, Rng};

/// Stream of the seed that the draws take their constants from.
const STREAM: u64 = 0x5359_4e00;

const LCG: u64 = 6_364_136_223_846_793_005;
const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

/// Positions of one client: attempts, then kind and key.
const OF_CLIENT: u64 = 0xff;

#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    start: u64,
    step: u64,
}

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, STREAM);
        Self { start: rng.next_u64(), step: rng.next_u64() | 1 }
    }

    #[inline]
    fn at(self, id: u32, what: u64) -> u64 {
        let position = (u64::from(id) << 8 | what).wrapping_mul(WEYL).wrapping_add(self.start);
        let mixed = (position ^ (position >> 32)).wrapping_mul(LCG).wrapping_add(self.step);
        let word =
            ((mixed >> ((mixed >> 59) + 5)) ^ mixed).wrapping_mul(12_605_985_483_714_917_081);
        (word >> 43) ^ word
    }

    /// Identity of a client: the key of all its SYNs, which also chooses its kind.
    #[inline]
    pub(super) fn client(self, id: u32) -> u64 {
        self.at(id, OF_CLIENT)
    }

    /// What the network adds to a SYN's way, in nanoseconds.
    #[inline]
    pub(super) fn delay(self, id: u32, attempt: u8, jitter: &Jitter) -> i64 {
        around_zero(self.at(id, u64::from(attempt)) as u32, jitter.delay.0)
    }

    /// What the client's timer adds before this attempt (1 is the first retransmission).
    #[inline]
    pub(super) fn timer(self, id: u32, attempt: u8, jitter: &Jitter) -> i64 {
        let half = if attempt == 1 { jitter.rto_first } else { jitter.rto_later };
        around_zero((self.at(id, u64::from(attempt)) >> 32) as u32, half.0)
    }
}

/// Uniform from -half to half; half is at most 2⁴⁰ (`GAP_MAX`).
#[inline]
fn around_zero(bits: u32, half: u64) -> i64 {
    let width = u128::from(2 * half + 1);
    ((u128::from(bits) * width) >> 32) as i64 - half as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Nanos;

    /// Uniform, and independent between neighbours in serial number and in attempt.
    #[test]
    fn draws_are_uniform_and_independent_of_their_neighbours() {
        let draws = Draws::new(1);
        let n = 200_000_u32;
        let at = |id: u32, what: u64| draws.at(id, what) as f64 / 2_f64.powi(64) - 0.5;
        type Step = fn(u32, u64) -> (u32, u64);
        let steps: [Step; 4] =
            [|i, k| (i, k), |i, k| (i + 1, k), |i, k| (i, k + 1), |i, k| (i + 256, k + 3)];
        for (step, expected) in steps.iter().zip([1.0 / 12.0, 0.0, 0.0, 0.0]) {
            for what in [0, 1, 5, OF_CLIENT - 3] {
                let product = |id| {
                    let (other, also) = step(id, what);
                    at(id, what) * at(other, also)
                };
                let mean = (0..n).map(product).sum::<f64>() / f64::from(n);
                assert!((mean - expected).abs() < 0.001, "{what}: {mean} for {expected}");
            }
        }
        // 256 cells of the upper and of the lower bits: chi-squared within 5 deviations of 255
        for shift in [0, 24, 32, 56] {
            let mut cells = [0.0_f64; 256];
            (0..n).for_each(|id| cells[(draws.at(id, 2) >> shift) as usize & 255] += 1.0);
            let mean = f64::from(n) / 256.0;
            let chi: f64 = cells.iter().map(|c| (c - mean) * (c - mean) / mean).sum();
            assert!((chi - 255.0).abs() < 5.0 * 22.6, "bits from {shift}: {chi}");
        }
    }

    #[test]
    fn jitter_keeps_its_half_width_and_reaches_it() {
        let jitter = Jitter::uniform(Nanos(2));
        let draws = Draws::new(3);
        let mut seen = [0_u32; 5];
        for id in 0..10_000 {
            seen[(draws.delay(id, 1, &jitter) + 2) as usize] += 1;
            assert!(draws.timer(id, 1, &jitter).abs() <= 2);
        }
        assert!(seen.iter().all(|n| (1800..2200).contains(n)), "{seen:?}");
        let none = Jitter::NONE;
        assert_eq!((draws.delay(1, 1, &none), draws.timer(1, 1, &none)), (0, 0));
        assert_eq!(around_zero(0, 1 << 40), -(1 << 40), "no overflow");
        assert_eq!(around_zero(u32::MAX, 1 << 30), 1 << 30);
    }
}
