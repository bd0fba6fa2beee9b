// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits and hit counters, as they are sent: integers and text.

use crate::frame::WITH_REQUESTS;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use tidegate_model::remote::{Hits, RemoteLimit, Restriction, Scope, Unit};
use tidegate_units::{Nanos, Rate, Share};

/// Kinds of restrictions; a receiver refuses one that it does not know, and the session goes on.
const RATE: u8 = 1;
/// See [`RATE`].
const LOSS: u8 = 2;
/// See [`RATE`].
const GAP: u8 = 3;
/// See [`RATE`].
const DATAGRAMS: u8 = 4;
/// See [`RATE`].
const REQUESTS: u8 = 5;
/// See [`RATE`].
const REQUEST_LOSS: u8 = 6;
/// See [`RATE`].
const REQUEST_GAP: u8 = 7;
/// A share of one, in millionths.
const SHARE_ONE: f64 = 1e6;

/// A remote limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitMessage {
    /// The number of the session.
    pub session: u64,
    /// The epoch of the session.
    pub epoch: u64,
    /// One more than that of the report or limit before, from 1.
    pub sequence: u64,
    /// What it is about ([`Scope`] as text, in its one spelling).
    pub scope: String,
    /// 1: rate, 2: loss, 3: gap, 4: datagrams; of requests 5: rate, 6: loss, 7: gap.
    pub kind: u8,
    /// A rate in thousandths per second, rounded down; a share of loss in millionths; a gap in µs, rounded up.
    pub value: u64,
    /// How long it is valid from its arrival on, in ms; 0 ends it now.
    pub validity_ms: u32,
    /// The classes of this priority and of all lower ones are restricted; 0: all.
    pub priority: u8,
}

impl LimitMessage {
    /// A limit as a message; session and epoch are the sender's to fill in.
    #[must_use]
    pub fn of(limit: &RemoteLimit) -> Self {
        let (kind, value) = match limit.restriction {
            Restriction::Rate(rate) => (RATE, milli(rate)),
            Restriction::Datagrams(rate) => (DATAGRAMS, milli(rate)),
            Restriction::Requests(rate) => (REQUESTS, milli(rate)),
            Restriction::Loss(share) => (LOSS, millionths(share)),
            Restriction::RequestLoss(share) => (REQUEST_LOSS, millionths(share)),
            Restriction::Gap(gap) => (GAP, gap.0.div_ceil(1_000)),
            Restriction::RequestGap(gap) => (REQUEST_GAP, gap.0.div_ceil(1_000)),
        };
        Self {
            sequence: limit.sequence,
            scope: limit.scope.to_string(),
            kind,
            value,
            validity_ms: u32::try_from(limit.validity.0 / 1_000_000).unwrap_or(u32::MAX),
            priority: limit.priority,
            ..Self::default()
        }
    }

    /// The limit that it says in a session of this version.
    ///
    /// # Errors
    /// [`Refusal::OutOfRange`] or, for a kind or a scope that the version does not have, [`Refusal::Unsupported`].
    pub fn limit(&self, version: u8) -> Result<RemoteLimit, Refusal> {
        let requests = version >= WITH_REQUESTS;
        let rate = Rate::per_second(self.value as f64 / 1e3);
        let share = Share::new(self.value as f64 / SHARE_ONE);
        let gap = Nanos::from_micros(self.value.min(u64::from(u32::MAX)));
        let restriction = match self.kind {
            RATE => Restriction::Rate(rate),
            LOSS => Restriction::Loss(share),
            GAP => Restriction::Gap(gap),
            DATAGRAMS => Restriction::Datagrams(rate),
            REQUESTS if requests => Restriction::Requests(rate),
            REQUEST_LOSS if requests => Restriction::RequestLoss(share),
            REQUEST_GAP if requests => Restriction::RequestGap(gap),
            _ => return Err(Refusal::Unsupported),
        };
        let scope = scope(&self.scope).ok_or(Refusal::OutOfRange)?;
        if matches!(scope, Scope::Bucket { .. }) && !requests {
            return Err(Refusal::Unsupported);
        }
        let limit = RemoteLimit {
            scope,
            restriction,
            validity: Nanos::from_millis(self.validity_ms.into()),
            sequence: self.sequence,
            priority: self.priority,
        };
        limit.check().map_err(|_| Refusal::OutOfRange)?;
        Ok(limit)
    }
}

/// What came to the scope of a limit, from where it is enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitsMessage {
    /// The number of the session.
    pub session: u64,
    /// The scope of the limit.
    pub scope: String,
    /// The time over which was counted, in ms.
    pub span_ms: u32,
    /// New work that came, with what was refused.
    pub offered: u64,
    /// Of this refused because of the limit.
    pub refused: u64,
    /// The limit has expired: what holds?
    pub probe: bool,
}

impl HitsMessage {
    /// Hit counters as a message of this session.
    #[must_use]
    pub fn of(session: u64, hits: &Hits) -> Self {
        Self {
            session,
            scope: hits.scope.to_string(),
            span_ms: u32::try_from(hits.span.0 / 1_000_000).unwrap_or(u32::MAX),
            offered: hits.offered,
            refused: hits.refused,
            probe: hits.probe,
        }
    }

    /// The hit counters that it says, of this unit; `None` where its scope is none, or more was refused than came.
    #[must_use]
    pub fn hits(&self, unit: Unit) -> Option<Hits> {
        if self.refused > self.offered {
            return None;
        }
        Some(Hits {
            scope: scope(&self.scope)?,
            unit,
            span: Nanos::from_millis(self.span_ms.into()),
            offered: self.offered,
            refused: self.refused,
            probe: self.probe,
        })
    }
}

fn millionths(share: Share) -> u64 {
    (share.get() * SHARE_ONE).round() as u64
}

/// Rounded down: the sum over several hosts must not become more.
fn milli(rate: Rate) -> u64 {
    (rate.get() * 1e3).floor().max(1.0) as u64
}

/// A scope in its one spelling.
fn scope(text: &str) -> Option<Scope> {
    text.parse::<Scope>().ok().filter(|scope| scope.to_string() == text)
}
