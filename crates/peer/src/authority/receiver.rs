// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks limits against grants. What is refused changes nothing.
//!
//! Of several grants with one number the one holds that began last, whatever the order of their files. It holds
//! also after its end: an operator who has narrowed a grant does not meet the wider one again.
//!
//! Order: form, receiver, grant, freshness, ranges, scope, quota; the signature last, because it costs
//! most. So a forger pays for everything else first, and what is counted as `signature` was right but for
//! that.

use super::grant::{GrantBody, SignedGrant, SignedRevocations};
use super::key::VerifyingKey;
use super::limit::SignedLimit;
use crate::frame::VERSION;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_model::remote::{RemoteLimit, Scope, Unit};
use tidegate_units::{Nanos, Rate};

/// A limit of a staged grant only counts for so long.
const STAGED: Nanos = Nanos::from_secs(5);
/// Grants at once, at most.
const GRANTS_MAX: usize = 4096;
/// Grants of one number at once, at most: one that holds, and some that follow it.
const OF_ONE_NUMBER_MAX: usize = 4;

/// Why a limit or a grant is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Denied {
    /// No message.
    #[error("malformed")]
    Malformed,
    /// For another receiver.
    #[error("for another receiver")]
    Receiver,
    /// No such grant, or of another key.
    #[error("no such grant")]
    Grant,
    /// Taken back.
    #[error("the grant is revoked")]
    Revoked,
    /// Not yet, or no longer.
    #[error("the grant is not valid now")]
    Expired,
    /// Another session or epoch.
    #[error("another session")]
    Session,
    /// Not newer than the last one.
    #[error("stale")]
    Stale,
    /// A value is out of range.
    #[error("out of range")]
    OutOfRange,
    /// A kind that the grant does not allow.
    #[error("a kind that is not granted")]
    Kind,
    /// Not inside the grant.
    #[error("not inside the grant")]
    Scope,
    /// More limits at once than the grant, or all together, may have.
    #[error("too many limits")]
    Quota,
    /// More changes a minute than the grant allows.
    #[error("too many changes")]
    Changes,
    /// Not signed by the holder.
    #[error("wrong signature")]
    Signature,
}

/// The receiver's own bounds. How far a limit may fall is bounded where it is enforced
/// (`tidegate_control::fleet::remote`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Limits of all holders together, at most.
    pub limits: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { limits: 1024 }
    }
}

/// A limit that is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Serial number of its grant.
    pub grant: u64,
    /// The limit.
    pub limit: RemoteLimit,
    /// What the server can take in all.
    pub whole: Rate,
    /// The notice that it answers.
    pub notice: u64,
    /// Until then it only counts.
    pub counts_until: Nanos,
    /// When it ends.
    pub until: Nanos,
}

#[derive(Clone, Debug)]
struct Held {
    since: Nanos,
    until: Nanos,
}

/// By what grants of one number are ordered: their begin, their end, and, so that there is one order, their content.
type Order = (u64, u64, Vec<u8>);

#[derive(Clone, Debug)]
struct Granted {
    body: GrantBody,
    scopes: Vec<Scope>,
}

/// What is known of a number.
#[derive(Clone, Debug)]
struct Holder {
    grants: BTreeMap<Order, Granted>,
    session: Option<(u64, u64)>,
    sequence: u64,
    held: BTreeMap<(Scope, Unit), Held>,
    /// Changes that may be made at once, and as of when.
    changes: (f64, Nanos),
}

/// One receiver.
#[derive(Clone, Debug)]
pub struct Receiver {
    name: String,
    operator: VerifyingKey,
    bounds: Bounds,
    holders: BTreeMap<u64, Holder>,
    revoked: (u64, BTreeSet<u64>),
    denied: BTreeMap<Denied, u64>,
}

impl Receiver {
    /// A receiver of this name, who believes this operator.
    #[must_use]
    pub fn new(name: &str, operator: VerifyingKey, bounds: Bounds) -> Self {
        Self {
            name: name.to_owned(),
            operator,
            bounds,
            holders: BTreeMap::new(),
            revoked: (0, BTreeSet::new()),
            denied: BTreeMap::new(),
        }
    }

    /// Takes a grant. The same one again changes nothing. Of several with the same number the one holds that began
    /// last; session, sequence and limits stay.
    ///
    /// # Errors
    /// Why not; then nothing changes. [`Denied::Stale`]: others of the same number begin later.
    pub fn grant(&mut self, now: Nanos, grant: &SignedGrant) -> Result<(), Denied> {
        let serial = grant.body().serial;
        if !grant.verified(&self.operator) {
            return Err(Denied::Grant);
        }
        if self.revoked.1.contains(&serial) {
            return Err(Denied::Revoked);
        }
        if self.holders.len() >= GRANTS_MAX && !self.holders.contains_key(&serial) {
            return Err(Denied::Quota);
        }
        let body = grant.body().clone();
        let scopes = body.check().ok_or(Denied::OutOfRange)?;
        let changes = (f64::from(body.changes), now);
        let holder = self.holders.entry(serial).or_insert_with(|| Holder {
            grants: BTreeMap::new(),
            session: None,
            sequence: 0,
            held: BTreeMap::new(),
            changes,
        });
        let order = (body.from_s, body.until_s, grant.bytes().to_vec());
        if holder.take(order.clone(), Granted { body, scopes }) {
            Ok(())
        } else {
            Err(Denied::Stale)
        }
    }

    /// Goes on where an earlier receiver of the same operator was, as far as the same is granted: sessions, numbers,
    /// limits and quotas, and what was revoked. A grant that had begun holds on where only older ones of its number
    /// are left.
    pub fn adopt(&mut self, before: Self, today_s: u64) {
        if before.operator != self.operator {
            return;
        }
        self.denied = before.denied;
        self.revoked.0 = self.revoked.0.max(before.revoked.0);
        self.revoked.1.extend(before.revoked.1);
        let revoked = &self.revoked.1;
        self.holders.retain(|serial, _| !revoked.contains(serial));
        for (serial, known) in before.holders {
            let Some(holder) = self.holders.get_mut(&serial) else { continue };
            if let Some((order, granted)) = known.begun(today_s) {
                holder.take(order.clone(), granted.clone());
            }
            (holder.session, holder.sequence) = (known.session, known.sequence);
            (holder.held, holder.changes) = (known.held, known.changes);
        }
    }

    /// Takes a list of revocations. What was revoked stays so, also where a newer list does not name it. Returns
    /// the grants that end now: whoever enforces their limits is to lift them.
    ///
    /// # Errors
    /// When it is not signed, or older than the last one.
    pub fn revoke(&mut self, list: &SignedRevocations) -> Result<Vec<u64>, Denied> {
        if !list.verified(&self.operator) {
            return Err(Denied::Signature);
        }
        let list = list.body();
        if list.sequence <= self.revoked.0 {
            return Err(Denied::Stale);
        }
        self.revoked.0 = list.sequence;
        self.revoked.1.extend(&list.serials);
        let ended =
            list.serials.iter().copied().filter(|serial| self.holders.remove(serial).is_some());
        Ok(ended.collect())
    }

    /// Begins a session with a holder: its random number and epoch. What was signed for another one is stale; the
    /// same one again goes on where it was.
    pub fn open(&mut self, grant: u64, session: (u64, u64)) {
        if let Some(holder) = self.holders.get_mut(&grant)
            && holder.session != Some(session)
        {
            (holder.session, holder.sequence) = (Some(session), 0);
        }
    }

    /// Whether a holder has a grant that is valid today, and allows limits of this unit.
    #[must_use]
    pub fn grants_to(&self, holder: &str, unit: Unit, today_s: u64) -> bool {
        let own = |own: &Granted| own.body.holder == holder && own.body.kinds.counts(unit);
        self.holders.values().any(|known| known.valid(today_s).is_ok_and(own))
    }

    /// Whether the grant of this number is this holder's today, valid or not.
    #[must_use]
    pub fn is_of(&self, (serial, holder): (u64, &str), today_s: u64) -> bool {
        let known = self.holders.get(&serial).and_then(|known| known.latest(today_s));
        known.is_some_and(|own| own.body.holder == holder)
    }

    /// Whether the grant of this number is this holder's, valid today, and allows limits about this.
    #[must_use]
    pub fn allows(
        &self,
        (serial, holder): (u64, &str),
        (scope, unit): &(Scope, Unit),
        today_s: u64,
    ) -> bool {
        let grant = self.holders.get(&serial).and_then(|known| known.valid(today_s).ok());
        grant.is_some_and(|own| {
            let covers = own.scopes.iter().any(|of| of.covers(scope));
            covers && own.body.holder == holder && own.body.kinds.counts(*unit)
        })
    }

    /// The key of the grant of this number, if it is valid today.
    #[must_use]
    pub fn key_of(&self, serial: u64, today_s: u64) -> Option<VerifyingKey> {
        let grant = self.holders.get(&serial).and_then(|known| known.valid(today_s).ok());
        grant.map(|own| own.body.key)
    }

    /// Takes a limit that has arrived now, `today_s` seconds since 1970.
    ///
    /// # Errors
    /// Why not; then nothing changes.
    pub fn accept(
        &mut self,
        (now, today_s): (Nanos, u64),
        bytes: &[u8],
    ) -> Result<Accepted, Denied> {
        let signed = SignedLimit::decode(bytes).ok_or(Denied::Malformed);
        let taken = signed.and_then(|signed| self.check((now, today_s), signed));
        let (signed, limit) = taken.inspect_err(|why| {
            let count = self.denied.entry(*why).or_default();
            *count = count.saturating_add(1);
        })?;
        Ok(self.take((now, today_s), signed, limit))
    }

    fn check(
        &self,
        (now, today_s): (Nanos, u64),
        signed: SignedLimit,
    ) -> Result<(SignedLimit, RemoteLimit), Denied> {
        if signed.receiver != self.name {
            return Err(Denied::Receiver);
        }
        if self.revoked.1.contains(&signed.grant) {
            return Err(Denied::Revoked);
        }
        let holder = self.holders.get(&signed.grant).ok_or(Denied::Grant)?;
        let grant = holder.valid(today_s)?;
        let limit = holder.check(now, grant, &signed)?;
        let held = |holder: &Holder| holder.held.values().filter(|held| now < held.until).count();
        if !holder.holds(&about(&limit), now) && limit.validity > Nanos::ZERO {
            let all: usize = self.holders.values().map(held).sum();
            if all >= self.bounds.limits || held(holder) >= usize::from(grant.body.limits) {
                return Err(Denied::Quota);
            }
        }
        if !signed.verified(&grant.body.key) {
            return Err(Denied::Signature);
        }
        Ok((signed, limit))
    }

    fn take(
        &mut self,
        (now, today_s): (Nanos, u64),
        signed: SignedLimit,
        limit: RemoteLimit,
    ) -> Accepted {
        let until = now + limit.validity;
        let mut counts_until = now;
        if let Some(holder) = self.holders.get_mut(&signed.grant) {
            holder.sequence = signed.limit.sequence;
            let grant = holder.valid(today_s).ok().map(|grant| grant.body.clone());
            let (most, staged) = grant.map_or((0, true), |own| (own.changes, own.staged));
            holder.changes = (holder.changes_left(now, most) - 1.0, now);
            holder.held.retain(|_, held| now < held.until);
            let about = about(&limit);
            let since = holder.held.get(&about).map_or(now, |held| held.since);
            if staged {
                counts_until = since + STAGED;
            }
            if limit.validity > Nanos::ZERO {
                holder.held.insert(about, Held { since, until });
            } else {
                holder.held.remove(&about);
            }
        }
        let whole = Rate::per_second(signed.whole_milli as f64 / 1e3);
        Accepted { grant: signed.grant, limit, whole, notice: signed.notice, counts_until, until }
    }

    /// Limits in force now.
    #[must_use]
    pub fn in_force(&self, now: Nanos) -> usize {
        let held = self.holders.values().flat_map(|holder| holder.held.values());
        held.filter(|held| now < held.until).count()
    }

    /// What was refused, by reason.
    #[must_use]
    pub const fn denied(&self) -> &BTreeMap<Denied, u64> {
        &self.denied
    }
}

/// Datagrams and connections of one scope have limits of their own.
fn about(limit: &RemoteLimit) -> (Scope, Unit) {
    (limit.scope.clone(), limit.restriction.unit())
}

impl Holder {
    /// Remembers a grant; false: too many begin later.
    fn take(&mut self, order: Order, granted: Granted) -> bool {
        self.grants.insert(order.clone(), granted);
        if self.grants.len() > OF_ONE_NUMBER_MAX {
            self.grants.pop_first();
        }
        self.grants.contains_key(&order)
    }

    /// The grant that began last.
    fn begun(&self, today_s: u64) -> Option<(&Order, &Granted)> {
        self.grants.iter().rev().find(|((from_s, ..), _)| *from_s <= today_s)
    }

    /// The same; where none has begun the one that begins first.
    fn latest(&self, today_s: u64) -> Option<&Granted> {
        self.begun(today_s).or_else(|| self.grants.first_key_value()).map(|(_, granted)| granted)
    }

    fn valid(&self, today_s: u64) -> Result<&Granted, Denied> {
        let begun = self.begun(today_s).map(|(_, granted)| granted);
        begun.filter(|granted| today_s < granted.body.until_s).ok_or(Denied::Expired)
    }

    fn changes_left(&self, now: Nanos, most: u16) -> f64 {
        let most = f64::from(most);
        let gained = now.since(self.changes.1).as_secs_f64() * most / 60.0;
        (self.changes.0 + gained).min(most)
    }

    fn holds(&self, about: &(Scope, Unit), now: Nanos) -> bool {
        self.held.get(about).is_some_and(|held| now < held.until)
    }

    /// All but dates, quota and signature.
    fn check(
        &self,
        now: Nanos,
        grant: &Granted,
        signed: &SignedLimit,
    ) -> Result<RemoteLimit, Denied> {
        let message = &signed.limit;
        if self.session != Some((message.session, message.epoch)) {
            return Err(Denied::Session);
        }
        if message.sequence <= self.sequence {
            return Err(Denied::Stale);
        }
        if !grant.body.kinds.allows(message.kind) {
            return Err(Denied::Kind);
        }
        // The session has looked at its version before.
        let limit = message.limit(VERSION).map_err(|_| Denied::OutOfRange)?;
        if !grant.scopes.iter().any(|own| own.covers(&limit.scope)) {
            return Err(Denied::Scope);
        }
        if self.changes_left(now, grant.body.changes) < 1.0 {
            return Err(Denied::Changes);
        }
        Ok(limit)
    }
}
