// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why something that a peer did was refused: one list, for counters, answers and logs.

use serde::{Deserialize, Serialize};

macro_rules! refusals {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $text:literal;)*) => {
        /// Why a session or a message was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Refusal {
            $($(#[$doc])* $variant,)*
        }

        impl Refusal {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What an operator reads.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

refusals! {
    /// No TLS 1.3 session with a certificate of our authority.
    Untrusted = "untrusted", "no TLS 1.3 session with a certificate of the configured authority";
    /// Not exactly one SPIFFE URI in the certificate.
    Identity = "identity", "the certificate does not name exactly one SPIFFE URI";
    /// An identity that is not in the table.
    UnknownPeer = "unknown-peer", "its identity is not among the configured peers";
    /// Too many sessions are being set up.
    Busy = "busy", "too many sessions are being set up";
    /// No message in time.
    Silent = "silent", "nothing was heard in time";
    /// Bytes that are no frame.
    Malformed = "malformed", "a frame that cannot be understood";
    /// Another version of the protocol.
    Version = "version", "another version of the protocol";
    /// A frame that has no place in this state of the session.
    Unexpected = "unexpected", "a message out of order";
    /// The number of another session: a recording.
    OtherSession = "other-session", "a report that was made for another session";
    /// A newer session of the same peer has begun.
    Superseded = "superseded", "a newer session of the same peer has taken its place";
    /// A service that this peer may not report, or a scope that it may not limit.
    NotGranted = "not-granted", "a service or scope that is not this peer's";
    /// Stale or repeated.
    Stale = "stale", "a report that is stale or repeated";
    /// A value outside its range.
    OutOfRange = "out-of-range", "a value outside its range";
    /// More messages or bytes than the quota.
    Quota = "quota", "more messages than the quota of this peer allows";
    /// It has lasted long enough; a new one begins with a new look at the certificates.
    Expired = "expired", "the session has lasted its time";
    /// The receiver stops.
    Stopping = "stopping", "the host is stopping";
    /// A kind of message that this host does not know; it was skipped.
    UnknownKind = "unknown-kind", "a kind of message that this version does not know was skipped";
    /// A reason that is not in this list: the other side is newer.
    Other = "other", "a reason that this version does not know";
    /// A remote limit that this host cannot enforce.
    Unsupported = "unsupported", "a limit of a kind or priority that this host cannot enforce";
    /// A remote limit that reaches no service of this host.
    NoService = "no-service", "no service of this host lies in the scope";
    /// A message over a bus that the holder of its certificate has not signed.
    Signature = "signature", "a message that the holder of its certificate has not signed";
}

/// How many reasons version 1 of the protocol knows.
const OF_VERSION_1: u32 = 16;

/// A reason as it is sent: its place in the list, which grows at its end only. A newer peer may send
/// one that is not in ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code(pub u32);

impl Code {
    /// The reason; [`Refusal::Other`] where it is not in our list.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        let place = usize::try_from(self.0).unwrap_or(usize::MAX);
        Refusal::ALL.get(place).copied().unwrap_or(Refusal::Other)
    }

    /// What is sent in a session of this version.
    pub(crate) fn within(self, version: u8) -> Self {
        if version == 1 && self.0 >= OF_VERSION_1 { Refusal::Unexpected.into() } else { self }
    }
}

impl From<Refusal> for Code {
    fn from(why: Refusal) -> Self {
        Self(why as u32)
    }
}

impl Refusal {
    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}
