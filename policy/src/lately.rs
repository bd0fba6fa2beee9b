// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who was refused in the last minute (`policy/chain/lately.h`): the lines of a filter, the hash that
//! says which one, and when the kernel's slices began.
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi::{self, HASH_KEYS, LATELY_SLICES, LATELY_WORDS};
use crate::source::words;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_units::Nanos;

pub use crate::abi::LatelyTurn;

/// So far back a client is found.
const MINUTE: Nanos = Nanos::from_secs(60);

/// One question: has this service refused this client?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatelyHash(u64);

impl LatelyHash {
    /// Words of a key.
    pub const KEYS: usize = HASH_KEYS;

    /// By the key of whoever notes it. `client`: an address as a packet has it, IPv4 mapped into IPv6.
    /// `identity` tells services apart; `shadow`: the refusal was only computed.
    #[must_use]
    pub fn new(key: &[u64; HASH_KEYS], client: [u8; 16], (identity, shadow): (u64, bool)) -> Self {
        let address = words(client);
        // SAFETY: four words and a whole key, read only.
        Self(unsafe {
            abi::tg_native_lately_hash(address.as_ptr(), identity, shadow.into(), key.as_ptr())
        })
    }

    /// One of nobody: what such a question finds is wrong.
    #[must_use]
    pub const fn of_nobody(random: u64) -> Self {
        Self(random)
    }

    /// Its line of a slice that has so many, a power of two.
    #[must_use]
    pub fn line(self, lines: u32) -> usize {
        // SAFETY: plain numbers.
        unsafe { abi::tg_native_lately_line(self.0, lines.saturating_sub(1)) as usize }
    }
}

/// 64 bytes of a slice (`struct tg_lately_line`); the default has nobody.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct LatelyLine([AtomicU64; LATELY_WORDS]);

impl LatelyLine {
    /// Words of a line.
    pub const WORDS: usize = LATELY_WORDS;

    /// As it was read somewhere else.
    #[must_use]
    pub fn of(words: [u64; LATELY_WORDS]) -> Self {
        Self(words.map(AtomicU64::new))
    }

    /// Notes a client. Others may do so at the same time.
    pub fn note(&self, hash: LatelyHash) {
        // SAFETY: the C changes words by atomic operations only, as it does on maps.
        unsafe { abi::tg_native_lately_note(self.0.as_ptr().cast_mut().cast(), hash.0) }
    }

    /// Whether it was noted, or looks as if.
    #[must_use]
    pub fn has(&self, hash: LatelyHash) -> bool {
        // SAFETY: read only, word by word.
        unsafe { abi::tg_native_lately_has(self.0.as_ptr().cast(), hash.0) != 0 }
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// A slice of time of which it is known who was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatelySpan {
    /// Number of the slice.
    pub slice: usize,
    /// When it began.
    pub begin: Nanos,
    /// When it ended; of the present one: now.
    pub end: Nanos,
}

impl LatelyTurn {
    /// Slices.
    pub const SLICES: u32 = LATELY_SLICES;

    /// A heartbeat, and when the last one was, of slices with so many lines each: so many of the next one
    /// are to be cleared. As the kernel's heartbeat does it; here for tests.
    pub fn beat(&mut self, lines: u32, (last, now): (Nanos, Nanos)) -> u32 {
        // SAFETY: the structure is the C one, and is exclusively borrowed.
        unsafe { abi::tg_native_lately_beat(self, lines, last.0, now.0) }
    }

    /// The caller has cleared so many lines of the next one.
    pub const fn count_cleared(&mut self, lines: u32) {
        self.cleared += lines;
    }

    /// As if so much time had passed; here for tests.
    pub fn age(&mut self, by: Nanos) {
        for begin in self.begin_ns.iter_mut().filter(|begin| **begin != 0) {
            *begin = begin.saturating_sub(by.0).max(1);
        }
    }

    /// The slices in which there is something of the last minute, the present one first.
    pub fn spans(&self, now: Nanos) -> impl Iterator<Item = LatelySpan> + '_ {
        let mut end = now;
        // The next one is being cleared.
        (0..LATELY_SLICES - 1).map_while(move |back| {
            let slice = (self.slice % LATELY_SLICES + LATELY_SLICES - back) % LATELY_SLICES;
            let begin = Nanos(self.begin_ns[slice as usize]);
            let span = LatelySpan { slice: slice as usize, begin, end };
            (begin.0 != 0 && now.since(end) <= MINUTE).then(|| {
                end = begin;
                span
            })
        })
    }

    /// Whether all of the last minute is in them: not if the state is younger.
    #[must_use]
    pub fn knows_a_minute(&self, now: Nanos) -> bool {
        self.spans(now).last().is_some_and(|oldest| now.since(oldest.begin) >= MINUTE)
    }

    /// The slice that is written to.
    #[must_use]
    pub const fn slice(&self) -> u32 {
        self.slice
    }
}
