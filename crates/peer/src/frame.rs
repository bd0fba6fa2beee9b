// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages as bytes.
//!
//! ```text
//!  0               2         3         4
//!  ├ length of body ┼ version ┼ kind    ┼ body (postcard) ───────
//!    big endian       1…3       1…13      at most 4096 bytes
//! ```
//!
//! Both sides speak the newest version of [`VERSIONS`] that they share ([`crate::tls`] negotiates
//! it), and every frame of a session carries it.
//!
//! - A new kind of message needs no new version: a frame of an unknown kind is [`Frame::Unknown`],
//!   which the receiver skips and counts.
//! - A body is taken only if it is exactly what its content is written as: what is decoded is encoded
//!   again and compared. So there are no unknown, missing or trailing fields and no second spelling of
//!   anything. A change of the content of a kind is a change of the version.

use crate::authority::SignedLimit;
use crate::destinations::DestinationsMessage;
use crate::limit::{HitsMessage, LimitMessage};
use crate::notice::NoticeMessage;
use crate::refusal::{Code, Refusal};
use crate::report::Report;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::ops::RangeInclusive;
use tidegate_model::remote::Unit;

/// The versions that this host speaks. In version 1 a message of an unknown kind ends the session at
/// its receiver.
pub const VERSIONS: RangeInclusive<u8> = 1..=VERSION;
/// The newest of them.
pub const VERSION: u8 = 3;
/// The first version with remote limits.
pub const WITH_LIMITS: u8 = 2;
/// The first version whose limits may be on requests, on request buckets, and on some priorities only.
pub const WITH_REQUESTS: u8 = 3;
/// Kind of a [`Frame::Limit`].
const LIMIT: u8 = 6;
/// Kind of a [`Frame::Hits`].
const HITS: u8 = 7;
/// Kind of a [`Frame::Notice`].
const NOTICE: u8 = 8;
/// Kind of a [`Frame::Pushback`].
const PUSHBACK: u8 = 9;
/// Kind of a [`Frame::Notice`] about datagrams.
const NOTICE_DATAGRAMS: u8 = 10;
/// Kind of a [`Frame::Hits`] about datagrams.
const HITS_DATAGRAMS: u8 = 11;
/// Kind of a [`Frame::Destinations`].
const DESTINATIONS: u8 = 12;
/// Kind of a [`Frame::Hits`] about requests.
const HITS_REQUESTS: u8 = 13;
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
    /// Sender: a remote limit (from version 2 on).
    Limit(LimitMessage),
    /// Receiver: what became of it, in connections or in datagrams (from version 2 on), or in requests (from
    /// version 3 on).
    Hits(Unit, HitsMessage),
    /// Receiver: it is congested, and this comes for a service (from version 2 on). Connections and datagrams are
    /// told apart.
    Notice(Unit, Box<NoticeMessage>),
    /// Sender: a signed limit, in answer to a notice (from version 2 on).
    Pushback(Box<SignedLimit>),
    /// Sender: what a router sees of destinations that the receiver reaches, too (from version 2 on).
    Destinations(Box<DestinationsMessage>),
    /// A message of a kind that this host does not know, without its body.
    Unknown(u8),
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
    pub why: Code,
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Why.
    pub why: Code,
}

impl Bye {
    /// The end, for this reason.
    #[must_use]
    pub fn of(why: Refusal) -> Frame {
        Frame::Bye(Self { why: why.into() })
    }
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length that no frame has.
    #[error("a body of {0} bytes; there are 1 to {BODY_MAX}")]
    Length(usize),
    /// Another version than the one that was negotiated.
    #[error("version {found} of the protocol in a session of version {spoken}")]
    Version {
        /// What the frame says.
        found: u8,
        /// What was negotiated.
        spoken: u8,
    },
    /// A kind of message that is never one.
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
            Self::Version { .. } => Refusal::Version,
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
            Self::Limit(_) => LIMIT,
            Self::Hits(Unit::Connections, _) => HITS,
            Self::Hits(Unit::Datagrams, _) => HITS_DATAGRAMS,
            Self::Hits(Unit::Requests, _) => HITS_REQUESTS,
            // Of requests there is none: see `encode`.
            Self::Notice(Unit::Connections | Unit::Requests, _) => NOTICE,
            Self::Notice(Unit::Datagrams, _) => NOTICE_DATAGRAMS,
            Self::Pushback(_) => PUSHBACK,
            Self::Destinations(_) => DESTINATIONS,
            Self::Unknown(kind) => *kind,
        }
    }

    /// The frame as bytes of this version; `None` if its body would be longer than [`BODY_MAX`] (names
    /// within their bounds never are), and of a kind that the version does not have.
    #[must_use]
    pub fn encode(&self, version: u8) -> Option<Vec<u8>> {
        let body = match self {
            Self::Welcome(body) => postcard::to_allocvec(body),
            Self::Hello(body) => postcard::to_allocvec(body),
            Self::Report(body) => postcard::to_allocvec(body),
            Self::Refused(body) => {
                postcard::to_allocvec(&Refused { why: body.why.within(version), ..body.clone() })
            }
            Self::Bye(body) => postcard::to_allocvec(&Bye { why: body.why.within(version) }),
            Self::Limit(_)
            | Self::Hits(..)
            | Self::Notice(..)
            | Self::Pushback(_)
            | Self::Destinations(_)
                if version < WITH_LIMITS =>
            {
                return None;
            }
            Self::Hits(Unit::Requests, _) if version < WITH_REQUESTS => return None,
            Self::Notice(Unit::Requests, _) => return None,
            Self::Limit(body) => postcard::to_allocvec(body),
            Self::Hits(_, body) => postcard::to_allocvec(body),
            Self::Notice(_, body) => postcard::to_allocvec(body),
            Self::Pushback(body) => postcard::to_allocvec(body),
            Self::Destinations(body) => postcard::to_allocvec(body),
            Self::Unknown(_) => return None,
        }
        .ok()
        .filter(|body| !body.is_empty() && body.len() <= BODY_MAX)?;
        let length = u16::try_from(body.len()).ok()?;
        let mut bytes = Vec::with_capacity(HEAD + body.len());
        bytes.extend(length.to_be_bytes());
        bytes.extend([version, self.kind()]);
        bytes.extend(body);
        Some(bytes)
    }

    /// The first frame of `bytes`, in a session of this version, and how many bytes it has; `None`
    /// while it is not complete.
    ///
    /// # Errors
    /// As soon as the bytes cannot become a frame any more.
    pub fn decode(version: u8, bytes: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let Some((&[high, low, found, kind], rest)) = bytes.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if found != version {
            return Err(FrameError::Version { found, spoken: version });
        }
        if length == 0 || length > BODY_MAX {
            return Err(FrameError::Length(length));
        }
        if kind == 0 {
            return Err(FrameError::Kind(kind));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        Ok(Some((Self::of(version, kind, body)?, HEAD + length)))
    }

    fn of(version: u8, kind: u8, body: &[u8]) -> Result<Self, FrameError> {
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
            LIMIT if version >= WITH_LIMITS => Self::Limit(exactly("limit", body)?),
            HITS | HITS_DATAGRAMS if version >= WITH_LIMITS => {
                Self::Hits(unit(kind), exactly("hits", body)?)
            }
            HITS_REQUESTS if version >= WITH_REQUESTS => {
                Self::Hits(unit(kind), exactly("hits", body)?)
            }
            NOTICE | NOTICE_DATAGRAMS if version >= WITH_LIMITS => {
                Self::Notice(unit(kind), Box::new(exactly("notice", body)?))
            }
            PUSHBACK if version >= WITH_LIMITS => {
                Self::Pushback(Box::new(exactly("pushback", body)?))
            }
            DESTINATIONS if version >= WITH_LIMITS => {
                Self::Destinations(Box::new(exactly("report of destinations", body)?))
            }
            _ => Self::Unknown(kind),
        })
    }
}

const fn unit(kind: u8) -> Unit {
    match kind {
        HITS_DATAGRAMS | NOTICE_DATAGRAMS => Unit::Datagrams,
        HITS_REQUESTS => Unit::Requests,
        _ => Unit::Connections,
    }
}

/// Decodes all of `body`, and takes it only in the one form in which it is written.
pub(crate) fn exactly<T: DeserializeOwned + Serialize>(
    name: &'static str,
    body: &[u8],
) -> Result<T, FrameError> {
    let value: T = postcard::from_bytes(body).map_err(|_| FrameError::Body(name))?;
    match postcard::to_allocvec(&value) {
        Ok(again) if again == body => Ok(value),
        _ => Err(FrameError::Body(name)),
    }
}
