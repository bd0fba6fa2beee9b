// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is known of the peers: soft state, by identity. Nothing here outlives its validity, and
//! nothing is kept of anyone who is not configured.

mod destinations;

use self::destinations::Destinations;
use crate::authority::{Denied, Receiver, SignedLimit, SignedRevocations, VerifyingKey};
use crate::frame::Welcome;
use crate::inbox::Inbox;
use crate::limit::LimitMessage;
use crate::refusal::Refusal;
use crate::report::Report;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_model::SpiffeId;
use tidegate_model::remote::{
    Arrived, Notice, Pushed, REMOTE_SCOPES_MAX, ReceivedLimit, Scope, Unit,
};
use tidegate_model::signals::{Backend, Reading};
use tidegate_model::snapshot::{PeerState, ReasonCount};
use tidegate_units::Nanos;

/// The name under which is counted what nobody can be charged with.
pub const UNKNOWN: &str = "unknown";

/// Who may report and limit what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its name in the configuration.
    pub name: String,
    /// Its identity.
    pub identity: SpiffeId,
    /// The services that it may report.
    pub services: Vec<String>,
    /// What it owns and may limit, as this host knows it.
    pub limits: Vec<Scope>,
    /// What it owns and may limit with signed limits only, while this host is congested.
    pub when_congested: Vec<Scope>,
    /// How many limits of these scopes this host can hold at once: of connections, of requests and of datagrams, and
    /// of each request bucket.
    pub targets: usize,
}

/// Sessions that a peer may begin at once, and per second: it reconnects with a growing pause.
const OPENINGS: f64 = 10.0;
/// See [`OPENINGS`].
const OPENINGS_PER_SECOND: f64 = 1.0;
/// The shortest way of a report is remembered for one to two times this.
const DELAY_WINDOW: Nanos = Nanos::from_secs(60);

/// The session of each peer, by its name in the configuration: random number and epoch, where one is up.
pub type Sessions = Vec<(String, Option<(u64, u64)>)>;
/// Limits whose grant has ended: the name of the peer, and what they are about.
pub type Ended = Vec<(String, Scope, Unit)>;

/// A signed limit that was taken.
#[derive(Clone, Debug)]
struct Signed {
    peer: String,
    /// The number of its grant, the holder, and the key of that.
    by: (u64, String, Option<VerifyingKey>),
    about: (Scope, Unit),
    until: Nanos,
}

/// Counts by [`Refusal`].
pub(crate) type Counts = [u64; Refusal::COUNT];

/// The peers that may report to this host.
#[derive(Clone, Debug, Default)]
pub struct Table {
    peers: BTreeMap<SpiffeId, Peer>,
    /// Those of them that are routers with which this host shares.
    routers: BTreeSet<SpiffeId>,
    /// They are heard over a bus, and have no session of their own.
    by_bus: bool,
    /// Who checks what holders of grants have signed; `None`: nothing is taken.
    receiver: Option<Receiver>,
    /// What they have signed and may still hold.
    signed: Vec<Signed>,
    /// Seconds since 1970, for the expiry of grants.
    today_s: u64,
    unknown: Counts,
    problem: String,
}

#[derive(Clone, Debug)]
struct Peer {
    name: String,
    services: BTreeMap<String, Option<Told>>,
    scopes: Vec<Scope>,
    when_congested: Vec<Scope>,
    targets: usize,
    /// The last limit of each scope and unit that nobody has taken out yet.
    inbox: BTreeMap<(Scope, Unit), ReceivedLimit>,
    /// Limits for this host while it is congested.
    pushed: Inbox,
    /// What it told of destinations.
    destinations: Destinations,
    /// The number of the session that is up.
    session: Option<u64>,
    /// The version of the protocol that it speaks; 0 before the first.
    version: u8,
    epoch: u64,
    sequence: u64,
    /// Sessions that may begin now, and as of when.
    openings: (f64, Nanos),
    delay: Delay,
    last: Option<Nanos>,
    reports: u64,
    limits: u64,
    refused: Counts,
    problem: String,
}

/// By how much a report was later than the fastest lately. The two clocks need no common origin:
/// only differences of differences count. A sender that stood still looks late until the window has
/// passed, which is the safe side.
#[derive(Clone, Copy, Debug, Default)]
struct Delay {
    /// Smallest arrival less sending, in ms, of this window and of the one before.
    least: [Option<i64>; 2],
    since: Nanos,
}

impl Delay {
    fn excess(&mut self, now: Nanos, sent_ms: u64) -> Nanos {
        let arrival = i64::try_from(now.0 / 1_000_000).unwrap_or(i64::MAX);
        let difference = arrival.saturating_sub(i64::try_from(sent_ms).unwrap_or(i64::MAX));
        if now.since(self.since) >= DELAY_WINDOW {
            self.least = [None, self.least[0]];
            self.since = now;
        }
        let least = self.least[0].map_or(difference, |least| least.min(difference));
        self.least[0] = Some(least);
        let least = self.least[1].map_or(least, |before| before.min(least));
        let excess = difference.saturating_sub(least);
        Nanos::from_millis(u64::try_from(excess).unwrap_or_default())
    }
}

/// The last report of a service.
#[derive(Clone, Debug)]
struct Told {
    at: Nanos,
    report: Report,
    completed_per_s: Option<f64>,
}

impl Peer {
    fn new(grant: &Grant) -> Self {
        Self {
            name: grant.name.clone(),
            services: grant.services.iter().map(|service| (service.clone(), None)).collect(),
            scopes: grant.limits.clone(),
            when_congested: grant.when_congested.clone(),
            targets: grant.targets,
            inbox: BTreeMap::new(),
            pushed: Inbox::default(),
            destinations: Destinations::default(),
            session: None,
            version: 0,
            epoch: 0,
            sequence: 0,
            openings: (OPENINGS, Nanos::ZERO),
            delay: Delay::default(),
            last: None,
            reports: 0,
            limits: 0,
            refused: [0; Refusal::COUNT],
            problem: String::new(),
        }
    }
}

impl Table {
    /// A table of these peers.
    #[must_use]
    pub fn new(grants: &[Grant]) -> Self {
        let mut table = Self::default();
        table.follow(grants);
        table
    }

    /// Other grants from now on. A peer that stays keeps its epoch, its session and, of the services
    /// that it may still report, what it said.
    pub fn follow(&mut self, grants: &[Grant]) {
        let mut old = std::mem::take(&mut self.peers);
        for grant in grants {
            let mut peer = Peer::new(grant);
            if let Some(mut before) = old.remove(&grant.identity) {
                let pushed = std::mem::take(&mut before.pushed).anew();
                let mut told = before.services;
                let services = std::mem::take(&mut peer.services);
                peer = Peer {
                    name: peer.name,
                    services,
                    scopes: peer.scopes,
                    when_congested: peer.when_congested,
                    targets: peer.targets,
                    inbox: BTreeMap::new(),
                    pushed,
                    ..Peer { services: BTreeMap::new(), ..before }
                };
                for (service, slot) in &mut peer.services {
                    *slot = told.remove(service).flatten();
                }
            }
            self.peers.insert(grant.identity.clone(), peer);
        }
    }

    /// Who checks signed limits from now on. It goes on where the one before was, as far as it grants the same.
    pub fn trust(&mut self, receiver: Option<Receiver>) {
        let before = self.receiver.take();
        self.receiver = receiver.map(|mut receiver| {
            if let Some(before) = before {
                receiver.adopt(before, self.today_s);
            }
            receiver
        });
    }

    /// Takes a list of revocations; one that is not signed, or not newer, changes nothing.
    pub fn revoke(&mut self, list: &SignedRevocations) {
        if let Some(receiver) = &mut self.receiver {
            let _ = receiver.revoke(list);
        }
    }

    /// The day, in seconds since 1970: grants expire by it, and nothing else.
    pub fn at_day(&mut self, today_s: u64) {
        self.today_s = today_s;
    }

    /// How many services a peer may report and limits it may tell; `None` if no such peer may begin a session.
    #[must_use]
    pub fn granted(&self, identity: &SpiffeId) -> Option<usize> {
        let scopes = |peer: &Peer| peer.scopes.len() + peer.when_congested.len();
        let router = self.granted_as_router(identity);
        let peer = self.peers.get(identity).filter(|_| !self.is_by_bus(identity))?;
        Some(peer.services.len() + scopes(peer).max(peer.targets) + router)
    }

    /// Whether this peer may report this service.
    #[must_use]
    pub fn may_report(&self, identity: &SpiffeId, service: &str) -> bool {
        self.peers.get(identity).is_some_and(|peer| peer.services.contains_key(service))
    }

    /// Begins a session: it takes the place of the one before and has a higher epoch. `session` is
    /// random.
    ///
    /// # Errors
    /// [`Refusal::UnknownPeer`], or [`Refusal::Busy`] for a peer that begins too many.
    pub fn open(
        &mut self,
        now: Nanos,
        identity: &SpiffeId,
        session: u64,
    ) -> Result<Welcome, Refusal> {
        let peer = self.peers.get_mut(identity).ok_or(Refusal::UnknownPeer)?;
        let (tokens, at) = peer.openings;
        let tokens = (tokens + now.since(at).as_secs_f64() * OPENINGS_PER_SECOND).min(OPENINGS);
        peer.openings = ((tokens - 1.0).max(0.0), at.max(now));
        if tokens < 1.0 {
            return Err(Refusal::Busy);
        }
        peer.epoch = peer.epoch.saturating_add(1);
        peer.sequence = 0;
        peer.session = Some(session);
        peer.delay = Delay::default();
        // What nobody has taken out yet is of a session that is over.
        peer.inbox.clear();
        peer.pushed = Inbox::default();
        peer.problem.clear();
        Ok(Welcome { session, epoch: peer.epoch })
    }

    /// Notes the version of the session that is up.
    pub(crate) fn speaks(&mut self, identity: &SpiffeId, version: u8) {
        if let Some(peer) = self.peers.get_mut(identity) {
            peer.version = version;
        }
    }

    /// Ends a session. What was said stays valid for as long as it was said to be, unless the peer
    /// itself took its leave (`end`).
    pub fn close(&mut self, identity: &SpiffeId, session: u64, end: bool) {
        let Some(peer) = self.peers.get_mut(identity) else { return };
        if peer.session != Some(session) {
            return;
        }
        peer.session = None;
        if end {
            peer.services.values_mut().for_each(|told| *told = None);
        }
    }

    /// Whether this is the session of the peer that is up; else why it is over.
    ///
    /// # Errors
    /// [`Refusal::UnknownPeer`] or [`Refusal::Superseded`].
    pub fn current(&self, identity: &SpiffeId, session: u64) -> Result<(), Refusal> {
        let peer = self.peers.get(identity).ok_or(Refusal::UnknownPeer)?;
        if peer.session == Some(session) { Ok(()) } else { Err(Refusal::Superseded) }
    }

    /// Takes a report in that has arrived now.
    ///
    /// # Errors
    /// Why it was not taken; then nothing changed.
    pub fn accept(
        &mut self,
        now: Nanos,
        identity: &SpiffeId,
        report: Report,
    ) -> Result<(), Refusal> {
        let peer = self.peers.get_mut(identity).ok_or(Refusal::UnknownPeer)?;
        if peer.session != Some(report.session) {
            return Err(Refusal::OtherSession);
        }
        if report.epoch != peer.epoch || report.sequence <= peer.sequence {
            return Err(Refusal::Stale);
        }
        let slot = peer.services.get_mut(&report.service).ok_or(Refusal::NotGranted)?;
        report.check().map_err(|_| Refusal::OutOfRange)?;
        peer.sequence = report.sequence;
        peer.last = Some(now);
        peer.reports += 1;
        // What was held up on its way is as old as that, by the receiver's clock alone.
        let late = peer.delay.excess(now, report.sent_ms);
        *slot = if report.validity_ms == 0 {
            None
        } else {
            let completed_per_s = slot.as_ref().and_then(|before| before.rate(&report));
            Some(Told { at: Nanos(now.0.saturating_sub(late.0)), report, completed_per_s })
        };
        Ok(())
    }

    /// Takes a remote limit in that has arrived now.
    ///
    /// # Errors
    /// Why it was not taken; then nothing changed.
    pub fn accept_limit(
        &mut self,
        now: Nanos,
        identity: &SpiffeId,
        message: &LimitMessage,
    ) -> Result<(), Refusal> {
        let peer = self.peers.get_mut(identity).ok_or(Refusal::UnknownPeer)?;
        if peer.session != Some(message.session) {
            return Err(Refusal::OtherSession);
        }
        if message.epoch != peer.epoch || message.sequence <= peer.sequence {
            return Err(Refusal::Stale);
        }
        let limit = message.limit(peer.version)?;
        // Only in answer to a notice.
        if limit.restriction.unit() == Unit::Datagrams {
            return Err(Refusal::Unsupported);
        }
        let about = (limit.scope.clone(), limit.restriction.unit());
        if !peer.scopes.iter().any(|own| own.covers(&limit.scope)) {
            return Err(Refusal::NotGranted);
        }
        if peer.inbox.len() >= REMOTE_SCOPES_MAX && !peer.inbox.contains_key(&about) {
            return Err(Refusal::Quota);
        }
        peer.sequence = message.sequence;
        peer.limits += 1;
        let (session, epoch) = (message.session, message.epoch);
        let received = ReceivedLimit { peer: peer.name.clone(), session, epoch, at: now, limit };
        peer.inbox.insert(about, received);
        Ok(())
    }

    /// The number of a notice that is sent to this peer now; `None`: it holds no grant that is valid today
    /// and allows a limit in answer.
    pub fn notice(&mut self, now: Nanos, identity: &SpiffeId, notice: &Notice) -> Option<u64> {
        let holder = identity.to_string();
        let (unit, today_s) = (notice.unit, self.today_s);
        self.receiver.as_ref().filter(|of| of.grants_to(&holder, unit, today_s))?;
        Some(self.peers.get_mut(identity)?.pushed.notice(now, notice))
    }

    /// Takes a signed limit in that has arrived now: it answers a notice of this session, and the sender's grant
    /// allows it, as does the table of this host.
    ///
    /// # Errors
    /// Why it was not taken; then nothing changed.
    pub fn accept_pushed(
        &mut self,
        now: Nanos,
        identity: &SpiffeId,
        signed: &SignedLimit,
    ) -> Result<(), (Refusal, String)> {
        let refused = |why: Refusal| (why, why.text().to_owned());
        let peer = self.peers.get_mut(identity).ok_or_else(|| refused(Refusal::UnknownPeer))?;
        let message = &signed.limit;
        if peer.session != Some(message.session) {
            return Err(refused(Refusal::OtherSession));
        }
        let limit = message.limit(peer.version).map_err(refused)?;
        if !peer.when_congested.iter().any(|own| own.covers(&limit.scope)) {
            return Err(refused(Refusal::NotGranted));
        }
        let about = (limit.scope.clone(), limit.restriction.unit());
        let answers = peer.pushed.answers(now, signed.notice, &about);
        if message.sequence <= peer.sequence || !answers {
            return Err(refused(Refusal::Stale));
        }
        if !peer.pushed.has_room(&about) {
            return Err(refused(Refusal::Quota));
        }
        let (holder, today_s) = (identity.to_string(), self.today_s);
        let receiver = self.receiver.as_mut().ok_or_else(|| refused(Refusal::NotGranted))?;
        // Nobody relays here: the holder itself brings it.
        if !receiver.is_of((signed.grant, &holder), today_s) {
            return Err((Refusal::NotGranted, Denied::Grant.to_string()));
        }
        receiver.open(signed.grant, (message.session, peer.epoch));
        let accepted = receiver
            .accept((now, today_s), &signed.encode())
            .map_err(|why| (refusal(why), why.to_string()))?;
        peer.sequence = message.sequence;
        peer.limits += 1;
        let (session, epoch, limit) = (message.session, message.epoch, accepted.limit);
        let received = ReceivedLimit { peer: peer.name.clone(), session, epoch, at: now, limit };
        let (whole, enforced_from) = (accepted.whole, accepted.counts_until);
        let key = receiver.key_of(accepted.grant, today_s);
        self.signed.retain(|of| now < of.until);
        // Of several that may be alive each counts: what is taken here may be refused where limits are enforced.
        self.signed.push(Signed {
            peer: peer.name.clone(),
            by: (accepted.grant, holder, key),
            about,
            until: accepted.until,
        });
        peer.pushed.put(Pushed { received, whole, enforced_from });
        Ok(())
    }

    /// The limits that arrived since the last call, of each peer in the order of their numbers, whichever way they
    /// came: a newer one of one kind must not make an older one of the other look stale.
    pub fn take_limits(&mut self) -> Vec<Arrived> {
        let mut all = Vec::new();
        for peer in self.peers.values_mut() {
            all.extend(std::mem::take(&mut peer.inbox).into_values().map(Arrived::Plain));
            all.extend(peer.pushed.take().into_iter().map(Arrived::Pushed));
        }
        all.sort_by_key(|arrived| arrived.received().limit.sequence);
        all
    }

    /// The signed limits, by peer, whose grant has ended since the last call: it was revoked, has expired, is another one
    /// now, or nobody is trusted any more.
    pub fn take_ended(&mut self) -> Ended {
        let (receiver, today_s) = (self.receiver.as_ref(), self.today_s);
        let stands = |of: &Signed| {
            let (grant, holder, key) = &of.by;
            receiver.is_some_and(|receiver| {
                receiver.allows((*grant, holder), &of.about, today_s)
                    && receiver.key_of(*grant, today_s) == *key
            })
        };
        let ended = self.signed.extract_if(.., |of| !stands(of));
        let mut ended: Ended = ended.map(|of| (of.peer, of.about.0, of.about.1)).collect();
        ended.dedup();
        ended
    }

    /// The session of each peer that is up: its random number and its epoch.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        let session = |peer: &Peer| peer.session.map(|session| (session, peer.epoch));
        self.peers.values().map(|peer| (peer.name.clone(), session(peer))).collect()
    }

    /// The name of a peer in the configuration.
    #[must_use]
    pub fn name(&self, identity: &SpiffeId) -> Option<&str> {
        self.peers.get(identity).map(|peer| peer.name.as_str())
    }

    /// Counts a refusal, at the peer if it is known who it was.
    pub fn refuse(&mut self, identity: Option<&SpiffeId>, why: Refusal, problem: &str) {
        let peer = identity.and_then(|identity| self.peers.get_mut(identity));
        let (counts, text) = match peer {
            Some(peer) => (&mut peer.refused, &mut peer.problem),
            None => (&mut self.unknown, &mut self.problem),
        };
        counts[why as usize] = counts[why as usize].saturating_add(1);
        problem.clone_into(text);
    }

    /// What `peer` (a name of the configuration) last said of `service`, as far as it is valid.
    #[must_use]
    pub fn backend(&self, now: Nanos, name: &str, service: &str) -> Backend {
        let mut backend = Backend { peer: name.to_owned(), ..Backend::default() };
        let Some(peer) = self.peers.values().find(|peer| peer.name == name) else {
            return backend;
        };
        backend.age = peer.last.map(|at| now.since(at));
        let Some(Some(told)) = peer.services.get(service) else { return backend };
        let since = now.since(told.at);
        backend.age = Some(since);
        if since < told.report.validity() {
            backend.valid = true;
            told.report.levels.tell(since, &mut backend);
            backend.completed_per_s =
                told.completed_per_s.map(|value| Reading { value, age: since });
        }
        backend
    }

    /// The state of all peers, by identity, and of the unknown if there were any.
    #[must_use]
    pub fn states(&self, now: Nanos) -> Vec<PeerState> {
        let mut states: Vec<PeerState> = self
            .peers
            .iter()
            .map(|(identity, peer)| PeerState {
                name: peer.name.clone(),
                role: "reports".into(),
                identity: identity.to_string(),
                up: self.is_heard(now, identity, peer),
                version: peer.version,
                epoch: peer.epoch,
                sequence: peer.sequence,
                age: peer.last.map(|at| now.since(at)),
                reports: peer.reports,
                limits: peer.limits,
                refused: named(&peer.refused),
                problem: self.problem_of(now, identity, peer),
            })
            .collect();
        if self.unknown.iter().any(|count| *count > 0) {
            states.push(PeerState {
                name: UNKNOWN.into(),
                role: "reports".into(),
                refused: named(&self.unknown),
                problem: self.problem.clone(),
                ..PeerState::default()
            });
        }
        states
    }
}

impl Told {
    /// Completions per second from this report to the next one; a counter that began anew says
    /// nothing.
    fn rate(&self, next: &Report) -> Option<f64> {
        let ms = next.sent_ms.checked_sub(self.report.sent_ms)?;
        let seconds = ms as f64 / 1e3;
        let more = next.completed?.checked_sub(self.report.completed?)?;
        (seconds > 0.0).then(|| more as f64 / seconds)
    }
}

const fn refusal(why: Denied) -> Refusal {
    match why {
        Denied::Malformed => Refusal::Malformed,
        Denied::Session => Refusal::OtherSession,
        Denied::Stale => Refusal::Stale,
        Denied::OutOfRange => Refusal::OutOfRange,
        Denied::Quota | Denied::Changes => Refusal::Quota,
        Denied::Receiver
        | Denied::Grant
        | Denied::Revoked
        | Denied::Expired
        | Denied::Kind
        | Denied::Scope
        | Denied::Signature => Refusal::NotGranted,
    }
}

pub(crate) fn named(counts: &Counts) -> Vec<ReasonCount> {
    let counted = Refusal::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
    counted.map(|(why, count)| ReasonCount { reason: why.name().into(), count: *count }).collect()
}
