// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limit with its issuer's signature, as it travels through relays.

use super::grant::exactly;
use super::key::{SigningKey, VerifyingKey};
use crate::limit::LimitMessage;
use serde::{Deserialize, Serialize};

const LIMIT: &str = "limit";
/// Longest message.
const BYTES_MAX: usize = 1024;

/// A limit, by whom, and its signature. Session, epoch and sequence in it are those that the receiver gave
/// to the issuer, so it counts at this receiver and in this session only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedLimit {
    /// Serial number of the grant.
    pub grant: u64,
    /// Identity of the receiver.
    pub receiver: String,
    /// The limit.
    pub limit: LimitMessage,
    /// What the server can take in all, in thousandths per second: the limit relaxes towards it.
    pub whole_milli: u64,
    /// The notice of the receiver that it answers: so a limit cannot be held back and given later.
    pub notice: u64,
    /// 64 bytes.
    pub signature: Vec<u8>,
}

impl SignedLimit {
    /// Signs a limit.
    #[must_use]
    pub fn sign(
        (grant, receiver): (u64, &str),
        limit: LimitMessage,
        (whole_milli, notice): (u64, u64),
        holder: &SigningKey,
    ) -> Self {
        let (receiver, signature) = (receiver.to_owned(), Vec::new());
        let signed = Self { grant, receiver, limit, whole_milli, notice, signature };
        Self { signature: holder.sign(LIMIT, &signed.signed_bytes()), ..signed }
    }

    fn signed_bytes(&self) -> Vec<u8> {
        let Self { grant, receiver, limit, whole_milli, notice, signature: _ } = self;
        postcard::to_allocvec(&(grant, receiver, limit, whole_milli, notice)).unwrap_or_default()
    }

    pub(super) fn verified(&self, holder: &VerifyingKey) -> bool {
        let bytes = self.signed_bytes();
        !bytes.is_empty() && holder.verifies(LIMIT, &bytes, &self.signature)
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// From bytes, which are exactly a limit; `None` if they are none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > BYTES_MAX { None } else { exactly(bytes) }
    }
}
