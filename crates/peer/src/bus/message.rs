// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A report as it goes over a bus: the frame of a session, and what stands in for the session.
//!
//! ```text
//! version ┊ certificates ┊ scheme ┊ signature ┊ body
//!                                               └ for each other router: the number that the sender gives it, and the
//!                                                 one that it heard from it ┊ the frame, with the sender's own number
//! ```

use super::member::PROCESSES_MAX;
use crate::destinations::DestinationsMessage;
use crate::frame::{Frame, FrameError, HEAD, VERSION, exactly};
use crate::refusal::Refusal;
use crate::tls::Credentials;
use serde::{Deserialize, Serialize};
use tidegate_model::SPIFFE_MAX;
use tidegate_model::sharing::ROUTERS_MAX;

/// Version of what is around the frame.
pub const BUS_VERSION: u8 = 1;
/// Longest message, in bytes.
pub const MESSAGE_MAX: usize = 16 * 1024;
/// Most certificates in a message.
pub const CHAIN_MAX: usize = 4;
/// Most routers that a message names, and most bytes that they take.
const NAMED_MAX: usize = ROUTERS_MAX;
pub(super) const KNOWN_MAX: usize = NAMED_MAX * (SPIFFE_MAX + 64);

/// A message as it arrives. Nobody has verified it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The sender's certificate, and what leads to the authority (DER).
    pub certificates: Vec<Vec<u8>>,
    /// How it is signed: a number of TLS (`SignatureScheme`).
    pub scheme: u16,
    /// The signature on the body.
    pub signature: Vec<u8>,
    /// What it says.
    pub body: Vec<u8>,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// One for each router with which the sender shares.
    pub known: Vec<Known>,
    /// A [`Frame::Destinations`] of the newest version. Its session is the sender's own number, its epoch 0.
    pub frame: Vec<u8>,
}

/// What the sender and another router have told each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The identity of the other one.
    pub router: String,
    /// A random number for it. It begins a session with the sender by giving it back.
    pub given: u64,
    /// The numbers that processes of the other one gave to the sender, the one that it heard last first.
    pub told: Vec<u64>,
}

impl Envelope {
    /// A body on a subject, signed by this host; `None` if its key cannot sign.
    #[must_use]
    pub fn seal(credentials: &Credentials, subject: &str, body: Vec<u8>) -> Option<Self> {
        let (scheme, signature) = credentials.sign(subject, &body)?;
        Some(Self { certificates: credentials.chain(), scheme, signature, body })
    }

    fn has_certificates(&self) -> bool {
        (1..=CHAIN_MAX).contains(&self.certificates.len())
    }

    /// As bytes; `None` if it is too long, or has too many certificates.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        if !self.has_certificates() {
            return None;
        }
        let content = postcard::to_allocvec(self).ok()?;
        let bytes = [&[BUS_VERSION], content.as_slice()].concat();
        (bytes.len() <= MESSAGE_MAX).then_some(bytes)
    }

    /// From bytes, which are exactly a message.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], or [`Refusal::Version`] of a newer sender.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let (version, content) = bytes.split_first().ok_or(Refusal::Malformed)?;
        if *version != BUS_VERSION {
            return Err(Refusal::Version);
        }
        if bytes.len() > MESSAGE_MAX {
            return Err(Refusal::Malformed);
        }
        let message: Self = exactly("message", content).map_err(FrameError::refusal)?;
        if message.has_certificates() { Ok(message) } else { Err(Refusal::Malformed) }
    }
}

impl Body {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_allocvec(self).ok()
    }

    /// From bytes, which are exactly one, with what its frame says.
    ///
    /// # Errors
    /// What the frame is if it is no report of destinations of this version.
    pub fn decode(bytes: &[u8]) -> Result<(Self, DestinationsMessage), Refusal> {
        let body: Self = exactly("body", bytes).map_err(FrameError::refusal)?;
        let numbers = |known: &Known| known.told.len() <= PROCESSES_MAX;
        if body.known.len() > NAMED_MAX || !body.known.iter().all(numbers) {
            return Err(Refusal::Malformed);
        }
        match Frame::decode(VERSION, &body.frame).map_err(FrameError::refusal)? {
            Some((Frame::Destinations(message), length)) if length == body.frame.len() => {
                Ok((body, *message))
            }
            Some((Frame::Unknown(_), _)) => Err(Refusal::UnknownKind),
            Some((_, length)) if length > HEAD => Err(Refusal::Unexpected),
            _ => Err(Refusal::Malformed),
        }
    }

    /// What it says of a router.
    #[must_use]
    pub fn of(&self, router: &str) -> Option<&Known> {
        self.known.iter().find(|known| known.router == router)
    }
}
