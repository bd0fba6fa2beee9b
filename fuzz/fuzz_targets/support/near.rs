// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that are nearly a message, from seeds that are one: for the bounded runs of the harnesses.
#![allow(dead_code, reason = "no run uses all of it")]

/// Random numbers that are the same in each run (xorshift), and what is made by them.
pub(crate) struct Near(u64);

impl Near {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }

    /// Up to 200 bytes of any kind.
    pub(crate) fn any(&mut self) -> Vec<u8> {
        let length = self.below(200);
        (0..length).map(|_| self.below(256) as u8).collect()
    }

    /// Puts in, changes or cuts off, at `from` or behind.
    pub(crate) fn change(&mut self, bytes: &mut Vec<u8>, from: usize) {
        let (at, with) = (from + self.below(bytes.len() + 1 - from), self.below(256) as u8);
        match self.below(3) {
            0 => bytes.insert(at, with),
            1 if at < bytes.len() => bytes[at] = with,
            _ => bytes.truncate(at),
        }
    }
}
