// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers that nobody can guess, however many of them are known: a keyed hash of a counter.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A sequence of such numbers. Its key is drawn for it alone and is never shown.
#[derive(Debug, Default)]
pub struct Unguessable {
    /// SipHash with a key of the system.
    key: RandomState,
    given: AtomicU64,
}

impl Unguessable {
    /// The next one.
    pub fn next(&self) -> u64 {
        self.key.hash_one(self.given.fetch_add(1, Relaxed))
    }
}
