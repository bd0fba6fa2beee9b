// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sources of services as a canary tells them apart (`policy/chain/canary.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi::{self, HASH_KEYS};

/// By which sources are hashed. Nobody outside is told, or he could choose an address that is spared.
#[derive(Clone, Copy)]
pub struct SourceKey([u64; HASH_KEYS]);

impl SourceKey {
    /// Words of a key.
    pub const WORDS: usize = HASH_KEYS;

    /// Of these words.
    #[must_use]
    pub const fn new(words: [u64; HASH_KEYS]) -> Self {
        Self(words)
    }

    /// The source of a service to which a client belongs. `client`: an address as a packet has it, IPv4
    /// mapped into IPv6. `service`: what tells services apart.
    #[must_use]
    pub fn source(&self, client: [u8; 16], service: u64) -> u64 {
        let address = words(client);
        // SAFETY: four words and a whole key, read only.
        unsafe { abi::tg_native_canary_source(address.as_ptr(), service, self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for SourceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SourceKey(…)")
    }
}

/// An address as the C has it.
pub(crate) fn words(address: [u8; 16]) -> [u32; 4] {
    let word = |at| address[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
    [0, 4, 8, 12].map(word)
}
