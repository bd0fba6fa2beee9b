// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may limit what, and which messages count.
//!
//! A peer may limit the destinations that the receiver's own configuration gives it, and nothing
//! else. A message counts only in the session that is up, and only once: `(epoch, sequence)` grows.
//! `tidegate-peer` checks the same before; this is the second check, by other code.

use std::collections::BTreeMap;
use tidegate_model::remote::{REMOTE_SCOPES_MAX, ReceivedLimit, Scope};
use tidegate_units::Nanos;

/// Messages per second for each scope: twice what a sender sends.
const PER_SCOPE: f64 = 20.0;
/// Seconds of that which may come at once.
const BURST_SECONDS: f64 = 3.0;

/// What one peer may limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Its name in the configuration.
    pub peer: String,
    /// Destinations that it owns.
    pub scopes: Vec<Scope>,
    /// Destinations that it may limit with signed limits only, while this host is congested.
    pub when_congested: Vec<Scope>,
}

/// How a limit came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the session of its sender.
    Plain,
    /// Signed, in answer to a notice of this host while it is congested.
    Pushed,
}

/// Why a remote limit was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotTaken {
    /// A peer that may limit nothing.
    UnknownPeer,
    /// Not the session that is up.
    OtherSession,
    /// Stale or repeated.
    Stale,
    /// A destination that the peer does not own.
    NotGranted,
    /// A value outside its range.
    OutOfRange,
    /// No service of this host lies in the scope.
    NoService,
    /// Something that cannot be enforced here: a limit of another unit, or of some priorities of what knows
    /// none.
    Unsupported,
    /// More messages than the quota.
    Quota,
}

impl NotTaken {
    /// The name in metrics; where `tidegate-peer` has the reason, too, it is the same.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownPeer => "unknown-peer",
            Self::OtherSession => "other-session",
            Self::Stale => "stale",
            Self::NotGranted => "not-granted",
            Self::OutOfRange => "out-of-range",
            Self::NoService => "no-service",
            Self::Unsupported => "unsupported",
            Self::Quota => "quota",
        }
    }
}

/// Who may limit what.
#[derive(Clone, Debug, Default)]
pub struct Authority {
    peers: BTreeMap<String, Peer>,
}

#[derive(Clone, Debug)]
struct Peer {
    scopes: Vec<Scope>,
    when_congested: Vec<Scope>,
    /// Number and epoch of the session that is up.
    session: Option<(u64, u64)>,
    sequence: u64,
    messages: f64,
    at: Nanos,
}

impl Peer {
    /// What may come at once. `known`: scopes of which it has spoken; one that is granted may cover many.
    fn burst(&self, known: usize) -> f64 {
        let granted = self.scopes.len() + self.when_congested.len();
        let scopes = granted.max(known).clamp(1, REMOTE_SCOPES_MAX);
        PER_SCOPE * BURST_SECONDS * scopes as f64
    }

    fn own(&self, way: Way) -> &[Scope] {
        match way {
            Way::Plain => &self.scopes,
            Way::Pushed => &self.when_congested,
        }
    }

    fn within_quota(&mut self, now: Nanos, known: usize) -> bool {
        let burst = self.burst(known);
        let earned = now.since(self.at).as_secs_f64() * burst / BURST_SECONDS;
        self.at = self.at.max(now);
        self.messages = (self.messages + earned).min(burst);
        let within = self.messages >= 1.0;
        if within {
            self.messages -= 1.0;
        }
        within
    }
}

impl Authority {
    /// Follows other grants. A peer that stays keeps its session and its place in it.
    pub fn follow(&mut self, grants: &[Grant]) {
        let mut old = std::mem::take(&mut self.peers);
        let any = |grant: &&Grant| !grant.scopes.is_empty() || !grant.when_congested.is_empty();
        for grant in grants.iter().filter(any) {
            let (scopes, when_congested) = (grant.scopes.clone(), grant.when_congested.clone());
            let peer = match old.remove(&grant.peer) {
                Some(before) => Peer { scopes, when_congested, ..before },
                None => {
                    let (session, sequence, messages, at) = (None, 0, 0.0, Nanos::ZERO);
                    let peer = Peer { scopes, when_congested, session, sequence, messages, at };
                    Peer { messages: peer.burst(0), ..peer }
                }
            };
            self.peers.insert(grant.peer.clone(), peer);
        }
    }

    /// The session of a peer that is up, as the listener knows it: its random number and its epoch.
    /// `None`: there is none, and nothing more of it counts.
    pub fn session(&mut self, peer: &str, session: Option<(u64, u64)>) {
        if let Some(peer) = self.peers.get_mut(peer)
            && peer.session != session
        {
            peer.session = session;
            peer.sequence = 0;
        }
    }

    /// Whether a peer may limit this scope in this way.
    #[must_use]
    pub fn owns(&self, peer: &str, scope: &Scope, way: Way) -> bool {
        self.peers.get(peer).is_some_and(|p| p.own(way).iter().any(|own| own.covers(scope)))
    }

    /// The peers, and what each may limit in this way.
    pub fn grants(&self, way: Way) -> impl Iterator<Item = (&str, &[Scope])> {
        self.peers.iter().map(move |(name, peer)| (name.as_str(), peer.own(way)))
    }

    /// Whether a message counts. It is used up then: the same one does not count again. `priorities`: it may
    /// be about some of them only. `known`: scopes for which the peer has entries.
    ///
    /// # Errors
    /// Why it does not; nothing changed then.
    pub fn accept(
        &mut self,
        received: &ReceivedLimit,
        (way, priorities): (Way, bool),
        known: usize,
    ) -> Result<(), NotTaken> {
        let limit = &received.limit;
        let owns = self.owns(&received.peer, &limit.scope, way);
        let peer = self.peers.get_mut(&received.peer).ok_or(NotTaken::UnknownPeer)?;
        if peer.session != Some((received.session, received.epoch)) {
            return Err(NotTaken::OtherSession);
        }
        if limit.sequence <= peer.sequence {
            return Err(NotTaken::Stale);
        }
        if !owns {
            return Err(NotTaken::NotGranted);
        }
        limit.check().map_err(|_| NotTaken::OutOfRange)?;
        if limit.priority != 0 && !priorities {
            return Err(NotTaken::Unsupported);
        }
        if !peer.within_quota(received.at, known) {
            return Err(NotTaken::Quota);
        }
        peer.sequence = limit.sequence;
        Ok(())
    }
}
