// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seeded dice, and the seed that a failing test tells.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// The environment variable that repeats a run: `TIDEGATE_SEED=… cargo test …`.
const SEED_ENV: &str = "TIDEGATE_SEED";

/// The seed of this run: from the environment, else always the same.
pub fn seed() -> u64 {
    from_env(SEED_ENV).unwrap_or(0x7469_6465_6761_7465)
}

/// A number from the environment; anything that is no number is an error.
pub fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// A source of random choices; equal seeds give equal choices.
pub struct Dice(ChaCha8Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    pub fn u8(&mut self) -> u8 {
        self.u32() as u8
    }

    /// 0 … bound - 1; the bias of a modulo does not matter here.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.u64() % bound as u64) as usize
    }

    /// One time in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
