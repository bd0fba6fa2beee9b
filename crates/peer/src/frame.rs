// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages as bytes.
//!
//! ```text
//!  0               2         3         4
//!  ├ length of body ┼ version ┼ kind    ┼ body (postcard) ───────
//!    big endian       1         1…5       at most 4096 bytes
//! ```
//!
//! A body is taken only if it is exactly what its content is written as: what is decoded is encoded
//! again and compared. So there are no unknown, missing or trailing fields and no second spelling of
//! anything, whichever side is newer; a change of the content is a change of the version.

use crate::refusal::Refusal;
use crate::report::Report;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The version that is spoken.
pub const VERSION: u8 = 1;
/// Longest body, in bytes.
pub const BODY_MAX: usize = 4096;
/// Bytes in front of the body.
pub const HEAD: usize = 4;
/// Most services in a [`Hello`].
pub const SERVICES_MAX: usize = 32;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Receiver: begins the session.
    Welcome(Welcome),
    /// Sender: answers it.
    Hello(Hello),
    /// Sender: how a service is.
    Report(Box<Report>),
    /// Receiver: this was not taken; the session goes on.
    Refused(Refused),
    /// Either: the end, and why.
    Bye(Bye),
}

/// The receiver's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// A random number that every report of the session carries: a recording of another session is
    /// known by it.
    pub session: u64,
    /// The epoch of the session, above that of every session before.
    pub epoch: u64,
}

/// The sender's first word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The number from the welcome.
    pub session: u64,
    /// What it is going to report, so that a missing grant is told at once.
    pub services: Vec<String>,
}

/// Something was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Sequence of the report; 0 for the hello.
    pub sequence: u64,
    /// The service.
    pub service: String,
    /// Why.
    pub why: Refusal,
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Why.
    pub why: Refusal,
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length that no frame has.
    #[error("a body of {0} bytes; there are 1 to {BODY_MAX}")]
    Length(usize),
    /// Another version.
    #[error("version {0} of the protocol; this host speaks version {VERSION}")]
    Version(u8),
    /// No such kind of message.
    #[error("a message of kind {0}, which there is not")]
    Kind(u8),
    /// The body is not what a message of this kind has.
    #[error("the body of a {0} cannot be understood")]
    Body(&'static str),
}

impl FrameError {
    /// The reason under which it is counted.
    #[must_use]
    pub const fn refusal(self) -> Refusal {
        match self {
            Self::Version(_) => Refusal::Version,
            Self::Length(_) | Self::Kind(_) | Self::Body(_) => Refusal::Malformed,
        }
    }
}

impl Frame {
    const fn kind(&self) -> u8 {
        match self {
            Self::Welcome(_) => 1,
            Self::Hello(_) => 2,
            Self::Report(_) => 3,
            Self::Refused(_) => 4,
            Self::Bye(_) => 5,
        }
    }

    /// The frame as bytes; `None` if its body would be longer than [`BODY_MAX`] (names within their
    /// bounds never are).
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let body = match self {
            Self::Welcome(body) => postcard::to_allocvec(body),
            Self::Hello(body) => postcard::to_allocvec(body),
            Self::Report(body) => postcard::to_allocvec(body),
            Self::Refused(body) => postcard::to_allocvec(body),
            Self::Bye(body) => postcard::to_allocvec(body),
        }
        .ok()
        .filter(|body| !body.is_empty() && body.len() <= BODY_MAX)?;
        let length = u16::try_from(body.len()).ok()?;
        let mut bytes = Vec::with_capacity(HEAD + body.len());
        bytes.extend(length.to_be_bytes());
        bytes.extend([VERSION, self.kind()]);
        bytes.extend(body);
        Some(bytes)
    }

    /// The first frame of `bytes` and how many bytes it has; `None` while it is not complete.
    ///
    /// # Errors
    /// As soon as the bytes cannot become a frame any more.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let Some((&[high, low, version, kind], rest)) = bytes.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        if length == 0 || length > BODY_MAX {
            return Err(FrameError::Length(length));
        }
        if !(1..=5).contains(&kind) {
            return Err(FrameError::Kind(kind));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        Ok(Some((Self::of(kind, body)?, HEAD + length)))
    }

    fn of(kind: u8, body: &[u8]) -> Result<Self, FrameError> {
        Ok(match kind {
            1 => Self::Welcome(exactly("welcome", body)?),
            2 => {
                let hello: Hello = exactly("hello", body)?;
                if hello.services.len() > SERVICES_MAX {
                    return Err(FrameError::Body("hello"));
                }
                Self::Hello(hello)
            }
            3 => Self::Report(Box::new(exactly("report", body)?)),
            4 => Self::Refused(exactly("refused", body)?),
            5 => Self::Bye(exactly("bye", body)?),
            _ => return Err(FrameError::Kind(kind)),
        })
    }
}

/// Decodes all of `body`, and takes it only in the one form in which it is written.
fn exactly<T: DeserializeOwned + Serialize>(
    name: &'static str,
    body: &[u8],
) -> Result<T, FrameError> {
    let value: T = postcard::from_bytes(body).map_err(|_| FrameError::Body(name))?;
    match postcard::to_allocvec(&value) {
        Ok(again) if again == body => Ok(value),
        _ => Err(FrameError::Body(name)),
    }
}
