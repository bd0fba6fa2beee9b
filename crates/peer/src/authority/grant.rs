// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator grants to a server, and takes back. Files are one line: a name, the content and the
//! signature in hexadecimal digits. The content has one encoding.

use super::key::{SigningKey, VerifyingKey, hex, unhex};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidegate_model::SpiffeId;
use tidegate_model::remote::{Scope, Unit};

/// Scopes of a grant, and grants of a list of revocations, at most.
const SCOPES_MAX: usize = 64;
const REVOKED_MAX: usize = 4096;
/// Longest file.
const TEXT_MAX: usize = 1 << 17;
const GRANT: &str = "grant";
const REVOKED: &str = "revoked";

/// Kinds of limits that a grant allows. As bytes: one each for rate and loss, and one in which gap is the first bit
/// and datagrams the second. So a grant from before there were limits on datagrams allows none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[u8; 3]", into = "[u8; 3]")]
pub struct Kinds {
    /// At most so many a second.
    pub rate: bool,
    /// A share is refused.
    pub loss: bool,
    /// A distance from one to the next.
    pub gap: bool,
    /// At most so many datagrams a second.
    pub datagrams: bool,
}

impl From<Kinds> for [u8; 3] {
    fn from(kinds: Kinds) -> Self {
        let last = u8::from(kinds.gap) | u8::from(kinds.datagrams) << 1;
        [kinds.rate.into(), kinds.loss.into(), last]
    }
}

impl TryFrom<[u8; 3]> for Kinds {
    type Error = &'static str;

    fn try_from([rate, loss, last]: [u8; 3]) -> Result<Self, Self::Error> {
        if rate > 1 || loss > 1 || last > 3 {
            return Err("kinds of limits that this version does not know");
        }
        let (gap, datagrams) = (last & 1 == 1, last & 2 == 2);
        Ok(Self { rate: rate == 1, loss: loss == 1, gap, datagrams })
    }
}

impl Kinds {
    /// Whether a kind, as it is sent, is allowed.
    #[must_use]
    pub const fn allows(self, kind: u8) -> bool {
        match kind {
            1 => self.rate,
            2 => self.loss,
            3 => self.gap,
            4 => self.datagrams,
            _ => false,
        }
    }

    /// Whether there is a kind that counts this.
    #[must_use]
    pub const fn counts(self, unit: Unit) -> bool {
        match unit {
            Unit::Connections => self.rate || self.loss || self.gap,
            Unit::Datagrams => self.datagrams,
            Unit::Requests => false,
        }
    }
}

/// What is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantBody {
    /// Its number, of which there is one for the operator's key.
    pub serial: u64,
    /// Who may limit: the identity of the server.
    pub holder: String,
    /// The holder's key, with which it signs limits.
    pub key: VerifyingKey,
    /// Prefixes with ports, as scopes: `192.0.2.0/24:80`, `[2001:db8::/48]:*`.
    pub scopes: Vec<String>,
    /// What kinds of limits.
    pub kinds: Kinds,
    /// Limits at once.
    pub limits: u16,
    /// Changes per minute.
    pub changes: u16,
    /// Whether limits count only for the first 5 s. Without, they are enforced at once.
    pub staged: bool,
    /// Valid from and to, seconds since 1970.
    pub from_s: u64,
    /// See above.
    pub until_s: u64,
}

impl GrantBody {
    /// Its scopes, if all is within its range: destinations only, in their one spelling.
    #[must_use]
    pub fn check(&self) -> Option<Vec<Scope>> {
        self.holder.parse::<SpiffeId>().ok()?;
        let sizes = (1..=SCOPES_MAX).contains(&self.scopes.len());
        let quota = (1..=256).contains(&self.limits) && self.changes > 0;
        if !sizes || !quota || self.until_s <= self.from_s {
            return None;
        }
        let destination = |text: &String| {
            let scope: Scope = text.parse().ok()?;
            let plain = matches!(scope, Scope::Destination { .. }) && scope.to_string() == *text;
            plain.then_some(scope)
        };
        self.scopes.iter().map(destination).collect()
    }
}

/// A grant with the operator's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedGrant {
    body: GrantBody,
    bytes: Vec<u8>,
    signature: Vec<u8>,
}

impl SignedGrant {
    /// Signs a grant; `None` if it is out of range.
    #[must_use]
    pub fn sign(body: GrantBody, operator: &SigningKey) -> Option<Self> {
        body.check()?;
        let bytes = postcard::to_allocvec(&body).ok()?;
        let signature = operator.sign(GRANT, &bytes);
        Some(Self { body, bytes, signature })
    }

    /// What it says. Nobody has verified it.
    #[must_use]
    pub const fn body(&self) -> &GrantBody {
        &self.body
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the operator has signed it, and it is in range.
    #[must_use]
    pub fn verified(&self, operator: &VerifyingKey) -> bool {
        self.body.check().is_some() && operator.verifies(GRANT, &self.bytes, &self.signature)
    }

    /// As a line.
    #[must_use]
    pub fn to_text(&self) -> String {
        to_text(GRANT, &self.bytes, &self.signature)
    }

    /// From a line; `None` if it is none, or what it says is out of range: nobody could have signed it so.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (bytes, signature) = from_text(GRANT, text)?;
        let body: GrantBody = exactly(&bytes)?;
        body.check()?;
        Some(Self { body, bytes, signature })
    }
}

/// Grants that are taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocations {
    /// One more than that of the list before: an older list changes nothing.
    pub sequence: u64,
    /// Serial numbers, rising.
    pub serials: Vec<u64>,
}

/// A list with the operator's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRevocations {
    body: Revocations,
    bytes: Vec<u8>,
    signature: Vec<u8>,
}

impl SignedRevocations {
    /// Signs a list; `None` if it is too long.
    #[must_use]
    pub fn sign(mut body: Revocations, operator: &SigningKey) -> Option<Self> {
        body.serials.sort_unstable();
        body.serials.dedup();
        let bytes =
            postcard::to_allocvec(&body).ok().filter(|_| body.serials.len() <= REVOKED_MAX)?;
        let signature = operator.sign(REVOKED, &bytes);
        Some(Self { body, bytes, signature })
    }

    /// What it says. Nobody has verified it.
    #[must_use]
    pub const fn body(&self) -> &Revocations {
        &self.body
    }

    /// Whether the operator has signed it.
    #[must_use]
    pub fn verified(&self, operator: &VerifyingKey) -> bool {
        operator.verifies(REVOKED, &self.bytes, &self.signature)
    }

    /// As a line.
    #[must_use]
    pub fn to_text(&self) -> String {
        to_text(REVOKED, &self.bytes, &self.signature)
    }

    /// From a line; `None` if it is none.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (bytes, signature) = from_text(REVOKED, text)?;
        let body: Revocations = exactly(&bytes)?;
        let rising = body.serials.windows(2).all(|pair| pair[0] < pair[1]);
        (rising && body.serials.len() <= REVOKED_MAX).then_some(Self { body, bytes, signature })
    }
}

fn to_text(kind: &str, bytes: &[u8], signature: &[u8]) -> String {
    format!("tidegate-{kind}-1 {} {}\n", hex(bytes), hex(signature))
}

fn from_text(kind: &str, text: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    if text.len() > TEXT_MAX {
        return None;
    }
    let mut words = text.strip_suffix('\n').unwrap_or(text).split(' ');
    let head = words.next()?.strip_prefix("tidegate-")?.strip_suffix("-1")?;
    let (body, signature) = (unhex(words.next()?)?, unhex(words.next()?)?);
    (head == kind && words.next().is_none()).then_some((body, signature))
}

/// All of `bytes`, in the one form in which it is written.
pub(super) fn exactly<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    let value: T = postcard::from_bytes(bytes).ok()?;
    (postcard::to_allocvec(&value).ok()? == bytes).then_some(value)
}
