// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All remote limits of a control node that count the same, connections, datagrams or requests, and what they make
//! of its services.
//!
//! - A scope with several services: its rate is divided among them by what each is offered. So is that of a
//!   service among its request buckets, where nothing else of it is limited.
//! - Several scopes of one peer for a service: the tightest holds.
//! - A limit that was pushed into this router relaxes, and ends when the router is not congested any more.
//! - Several owners of a service (back-ends behind one address): each says what it can take itself, so
//!   the service has the sum, and no limit while one of them has none.

use super::super::split::Passed;
use super::authority::{Authority, Grant, NotTaken, Way};
use super::divide::divide;
use super::held::{Held, Seen};
use super::pushed::{PUSHBACK, Relaxing};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_model::Listen;
use tidegate_model::remote::{
    Arrived, Form, Hits, Notice, Pushed, REMOTE_SCOPES_MAX, ReceivedLimit, RemoteLimit, Scope, Unit,
};
use tidegate_model::snapshot::{ReasonCount, RemoteState};
use tidegate_policy::PushbackSpec;
use tidegate_units::{Nanos, Rate, Share};

/// How often its hit counters go back to the sender of a limit.
pub const HITS_EVERY: Nanos = Nanos::from_millis(200);
/// A scope of which its sender says nothing for so long is forgotten.
const FORGET_AFTER: Nanos = Nanos::from_secs(60);

/// A service of this host, or a request bucket of one, and what remote limits may do to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Protected {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub listens: Vec<Listen>,
    /// No remote limit takes it below this.
    pub min_rate: Rate,
    /// It is this bucket of the service; `None`: all of it.
    pub bucket: Option<Part>,
    /// It knows priorities, so that a limit may be about some of them only.
    pub priorities: bool,
}

/// A request bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Limits of the whole service are divided among its buckets.
    pub shares: bool,
}

impl Protected {
    /// Whether it is about nothing but this scope.
    fn lies_in(&self, scope: &Scope) -> bool {
        match (&self.bucket, scope) {
            (Some(part), Scope::Bucket { service, bucket }) => {
                *service == self.name && *bucket == part.name
            }
            (Some(part), _) => part.shares && scope.reaches(&self.name, &self.listens),
            (None, _) => scope.reaches(&self.name, &self.listens),
        }
    }

    /// Whether who owns this scope owns it.
    fn is_owned_by(&self, scope: &Scope) -> bool {
        let own = self
            .bucket
            .as_ref()
            .map(|part| Scope::Bucket { service: self.name.clone(), bucket: part.name.clone() });
        self.lies_in(scope) || own.is_some_and(|own| scope.covers(&own))
    }
}

/// What came to a service in one tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// New work, with what was refused.
    pub offered: u64,
    /// Of it, SYNs that are known to be repeated: they are no demand.
    pub repeated: u64,
    /// What passed.
    pub passed: u64,
    /// What was refused because of remote limits; in shadow mode what would have been.
    pub refused: u64,
    /// Refusals are only counted: the sender of a limit is not told of any.
    pub shadow: bool,
}

impl Flow {
    /// First attempts that remote limits turned away: of what was refused, no more than first attempts that did not pass.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        if self.shadow {
            return 0;
        }
        self.offered.saturating_sub(self.repeated).saturating_sub(self.passed).min(self.refused)
    }
}

/// What remote limits allow a service.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InForce {
    /// Admissions per second.
    pub rate: Rate,
    /// Depth of the bucket, in admissions.
    pub burst: u32,
    /// The share of what is offered that the rate leaves out, for policies that refuse a share.
    pub loss: Option<Share>,
    /// In what form it was given.
    pub form: Form,
    /// It refuses this priority and lower ones; 0: all.
    pub priority: u8,
    /// One of a congested router: when it is over unless it is given again, also if every daemon has died by then.
    pub until: Option<Nanos>,
    /// The same of one that came without a notice. `None` of both: with the lease.
    pub ends: Option<Nanos>,
}

impl InForce {
    /// With what another owner of the same service allows.
    fn and(self, other: &Self) -> Self {
        Self {
            rate: Rate::per_second(self.rate.get() + other.rate.get()),
            burst: self.burst.saturating_add(other.burst),
            loss: None,
            form: if self.form == other.form { self.form } else { Form::Rate },
            // What one of them does not limit passes.
            priority: self.priority.max(other.priority),
            until: self.until.into_iter().chain(other.until).min(),
            ends: self.ends.into_iter().chain(other.ends).min(),
        }
    }
}

/// The remote limits of one host that count the same.
#[derive(Debug)]
pub struct Inbound {
    unit: Unit,
    authority: Authority,
    services: Vec<Service>,
    entries: BTreeMap<(String, Scope), Entry>,
    refused: BTreeMap<(String, &'static str), u64>,
    congested: bool,
    /// How limits that are pushed age.
    ages: PushbackSpec,
}

impl Default for Inbound {
    fn default() -> Self {
        Self::of(Unit::default())
    }
}

#[derive(Debug)]
struct Service {
    of: Protected,
    owners: Vec<String>,
    /// Of these the ones that may limit it while this host is congested.
    when_congested: Vec<String>,
    offered: Passed,
    repeated: Passed,
    passed: Passed,
    refused: Passed,
}

impl Service {
    /// First attempts, and those of them that were refused, per second. A client that is refused sends its SYN again: with the copies,
    /// what a router refuses would make its own share larger, and that of others smaller.
    fn demand(&self, n: usize) -> Option<(Rate, Rate)> {
        let [offered, repeated, passed, refused] =
            [self.offered, self.repeated, self.passed, self.refused];
        let per_second = |of: Passed| of.one_of(n).map(Rate::get);
        let first = (per_second(offered)? - per_second(repeated)?).max(0.0);
        let turned_away = (first - per_second(passed)?).clamp(0.0, per_second(refused)?);
        Some((Rate::per_second(first), Rate::per_second(turned_away)))
    }
}

/// What a peer said of a scope.
#[derive(Debug)]
struct Entry {
    services: Vec<usize>,
    held: Option<Held>,
    /// It was pushed: how `held` ages.
    pushed: Option<Relaxing>,
    sequence: u64,
    heard: Nanos,
    /// Since the last hit counters, and since when.
    offered: u64,
    refused: u64,
    since: Nanos,
    /// What came while nothing was counted, as far as it is less than one.
    guessed: f64,
    /// Since the peer spoke of the scope first.
    offered_total: u64,
    refused_total: u64,
    /// While it is staged: what its bucket holds, and what it would have refused.
    bucket: f64,
    trial: Option<Held>,
    would_refuse: f64,
    /// By service: who else may limit it, and why that one does not yet. So this limit does not hold there.
    lacking: BTreeMap<usize, String>,
}

impl Inbound {
    /// Limits that count this.
    #[must_use]
    pub fn of(unit: Unit) -> Self {
        Self {
            unit,
            authority: Authority::default(),
            services: Vec::new(),
            entries: BTreeMap::new(),
            refused: BTreeMap::new(),
            congested: false,
            ages: PUSHBACK,
        }
    }

    /// Follows another configuration. Limits stay whose sender still owns their scope.
    pub fn follow(&mut self, grants: &[Grant], services: Vec<Protected>) {
        self.authority.follow(grants);
        let mut old: Vec<Service> = std::mem::take(&mut self.services);
        for of in services {
            let owners = |way| owners(&self.authority, &of, way);
            let when_congested = owners(Way::Pushed);
            // Limits on datagrams come by notices only: nobody waits for one of another way.
            let by_notice = self.unit == Unit::Datagrams;
            let plain = if by_notice { Vec::new() } else { owners(Way::Plain) };
            let all: BTreeSet<String> = plain.into_iter().chain(when_congested.clone()).collect();
            let owners = all.into_iter().collect();
            let same = |was: &Protected| (&was.name, &was.bucket) == (&of.name, &of.bucket);
            let before = old.iter().position(|service| same(&service.of));
            let before = before.map(|at| old.swap_remove(at));
            let lately =
                |of: fn(&Service) -> Passed| before.as_ref().map_or_else(Passed::default, of);
            self.services.push(Service {
                of,
                owners,
                when_congested,
                offered: lately(|before| before.offered),
                repeated: lately(|before| before.repeated),
                passed: lately(|before| before.passed),
                refused: lately(|before| before.refused),
            });
        }
        let Self { authority, services, entries, .. } = self;
        entries.retain(|(peer, scope), entry| {
            entry.services = reached(services, scope);
            authority.owns(peer, scope, entry.way()) && !entry.services.is_empty()
        });
    }

    /// The session of a peer that is up; see [`Authority::session`].
    pub fn session(&mut self, peer: &str, session: Option<(u64, u64)>) {
        self.authority.session(peer, session);
    }

    /// How limits that are pushed from now on age.
    pub const fn age(&mut self, ages: PushbackSpec) {
        self.ages = ages;
    }

    /// Takes a message in.
    ///
    /// # Errors
    /// Why it was not taken, counted; nothing else changed then.
    pub fn take(&mut self, received: ReceivedLimit) -> Result<(), NotTaken> {
        let peer = received.peer.clone();
        self.accept(received, None).inspect_err(|why| self.count_refused(peer, *why))
    }

    /// Takes a limit in that was pushed into this router.
    ///
    /// # Errors
    /// Why it was not taken, counted; nothing else changed then.
    pub fn push(&mut self, pushed: Pushed) -> Result<(), NotTaken> {
        let peer = pushed.received.peer.clone();
        // Without congestion no limit counts, whoever has signed it.
        let relaxing = match self.congested {
            true => Relaxing::new(&pushed, &self.ages),
            false => Err(NotTaken::Stale),
        };
        let taken = relaxing.and_then(|relaxing| self.accept(pushed.received, Some(relaxing)));
        taken.inspect_err(|why| self.count_refused(peer, *why))
    }

    /// The grant of a limit that was pushed has ended: so has the limit. Whether there was one.
    pub fn revoke(&mut self, peer: &str, scope: &Scope) -> bool {
        let key = (peer.to_owned(), scope.clone());
        let pushed = self.entries.get(&key).is_some_and(|entry| entry.pushed.is_some());
        pushed && self.entries.remove(&key).is_some_and(|entry| entry.held.is_some())
    }

    /// Takes a limit in that came either way.
    ///
    /// # Errors
    /// As above.
    pub fn arrived(&mut self, arrived: Arrived) -> Result<(), NotTaken> {
        match arrived {
            Arrived::Plain(received) => self.take(received),
            Arrived::Pushed(pushed) => self.push(pushed),
        }
    }

    fn count_refused(&mut self, peer: String, why: NotTaken) {
        // A name that is not configured must not grow the table.
        let peer = if why == NotTaken::UnknownPeer { String::new() } else { peer };
        let count = self.refused.entry((peer, why.name())).or_default();
        *count = count.saturating_add(1);
    }

    /// Whether a link of this router is congested; without this it is not.
    pub fn congested(&mut self, is: bool) {
        self.congested = is;
    }

    /// What they are to be told who may limit a service while this router is congested. Each of several has its
    /// part.
    #[must_use]
    pub fn notices(&self, episode: u32) -> Vec<(String, Notice)> {
        let of = |service: &Service| {
            let (offered, refused) = service.demand(service.owners.len().max(1))?;
            let notice = Notice {
                service: service.of.name.clone(),
                listens: service.of.listens.clone(),
                episode,
                unit: self.unit,
                offered,
                refused,
            };
            // No news of datagrams: most services have none.
            if !self.unit.is_usual() && notice.offered.get() <= 0.0 {
                return None;
            }
            let to = |owner: &String| (owner.clone(), notice.clone());
            Some(service.when_congested.iter().map(to).collect::<Vec<_>>())
        };
        self.services.iter().filter_map(of).flatten().collect()
    }

    fn accept(
        &mut self,
        received: ReceivedLimit,
        pushed: Option<Relaxing>,
    ) -> Result<(), NotTaken> {
        // The other kind has limits of its own, and datagrams have none without a notice.
        let comes = self.unit != Unit::Datagrams || pushed.is_some();
        if received.limit.restriction.unit() != self.unit || !comes {
            return Err(NotTaken::Unsupported);
        }
        let way = way(pushed.as_ref());
        let services = reached(&self.services, &received.limit.scope);
        let owned = self.authority.owns(&received.peer, &received.limit.scope, way);
        if owned && services.is_empty() {
            return Err(NotTaken::NoService);
        }
        let at = received.at;
        let key = (received.peer.clone(), received.limit.scope.clone());
        let held = self.entries.keys().filter(|(of, _)| *of == key.0).count();
        if !self.entries.contains_key(&key) && held >= REMOTE_SCOPES_MAX {
            return Err(NotTaken::Quota);
        }
        let knows = |at: &usize| self.services.get(*at).is_some_and(|s| s.of.priorities);
        let priorities = services.iter().all(knows);
        self.authority.accept(&received, (way, priorities), held)?;
        let limit = received.limit;
        let entry = self.entries.entry(key).or_insert_with(|| Entry::new(services, at));
        entry.heard = entry.heard.max(at);
        entry.sequence = limit.sequence;
        entry.pushed = pushed;
        match &mut entry.held {
            _ if limit.validity == Nanos::ZERO => entry.held = None,
            Some(held) => held.renew(limit, at),
            none => *none = Some(Held::new(limit, at)),
        }
        Ok(())
    }

    /// A round: what remote limits allow each service until the next, in the order of the
    /// configuration; `None`: no limit. `flows` is what came since the round before; `None`: nothing was
    /// counted.
    pub fn tick(
        &mut self,
        now: Nanos,
        period: Nanos,
        flows: &[Option<Flow>],
    ) -> Vec<Option<InForce>> {
        self.count(period, flows);
        let mut decided: BTreeMap<(usize, String), InForce> = BTreeMap::new();
        let Self { services, entries, congested, .. } = self;
        entries.retain(|_, entry| entry.relax(now, !*congested));
        for ((peer, _), entry) in entries.iter_mut() {
            if entry.held.as_ref().is_some_and(|held| held.gone(now)) {
                entry.held = None;
            }
            for (service, new) in entry.shares((now, period), services, flows) {
                let held = decided.entry((service, peer.clone())).or_insert(new);
                if new.rate < held.rate {
                    *held = new;
                }
            }
        }
        let has = |at: usize, owner: &String| decided.get(&(at, owner.clone()));
        let staged: BTreeSet<(usize, String)> = entries
            .iter()
            .filter(|(_, entry)| entry.is_staged(now))
            .flat_map(|((peer, _), entry)| entry.services.iter().map(|at| (*at, peer.clone())))
            .collect();
        for ((peer, _), entry) in entries.iter_mut() {
            let own = entry.services.iter().filter(|at| has(**at, peer).is_some());
            let lacks = |at: &usize| {
                let other = services.get(*at)?.owners.iter().find(|of| has(*at, of).is_none())?;
                let is_staged = staged.contains(&(*at, other.clone()));
                let why = if is_staged { "its limit is only counted yet" } else { "has no limit" };
                Some((*at, format!("{other} may limit this as well, and {why}")))
            };
            entry.lacking = own.filter_map(lacks).collect();
        }
        let of = |(index, service): (usize, &Service)| {
            let each = service.owners.iter().map(|owner| has(index, owner));
            let each: Option<Vec<_>> = each.collect();
            let sum = each?.into_iter().copied().reduce(|all, one| all.and(&one))?;
            let loss = service.offered.one_of(1).and_then(|offered| loss(sum.rate, offered));
            Some(InForce { loss, ..sum })
        };
        services.iter().enumerate().map(of).collect()
    }

    fn count(&mut self, period: Nanos, flows: &[Option<Flow>]) {
        let seconds = period.as_secs_f64();
        for (service, flow) in self.services.iter_mut().zip(flows) {
            if let Some(flow) = flow.filter(|_| seconds > 0.0) {
                service.offered.see(seconds, flow.offered);
                service.repeated.see(seconds, flow.repeated);
                service.passed.see(seconds, flow.passed);
                service.refused.see(seconds, if flow.shadow { 0 } else { flow.refused });
            }
        }
        let Self { services, entries, .. } = self;
        for entry in entries.values_mut() {
            for at in entry.services.clone() {
                match (flows.get(at), services.get(at)) {
                    (Some(Some(flow)), _) => entry.see(*flow),
                    // What is not counted is not nothing: the sender of the limit would give this
                    // host's share to others.
                    (Some(None), Some(service)) => {
                        let lately = service.offered.one_of(1).map_or(0.0, Rate::get);
                        entry.guess(lately * seconds);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The hit counters that are due, by peer.
    pub fn hits(&mut self, now: Nanos) -> Vec<(String, Hits)> {
        let mut due = Vec::new();
        for ((peer, scope), entry) in &mut self.entries {
            let span = now.since(entry.since);
            if span < HITS_EVERY {
                continue;
            }
            let owners = entry.services.iter().filter_map(|at| self.services.get(*at));
            // Each of several owners gets its part of what comes for all.
            let n = owners.map(|service| service.owners.len()).max().unwrap_or(1).max(1) as u64;
            let (offered, refused) = (entry.offered / n, entry.refused / n);
            entry.offered -= offered * n;
            entry.refused -= refused * n;
            entry.since = now;
            let probe = entry.held.as_ref().is_some_and(|held| held.steps(now) > 0);
            let (scope, unit) = (scope.clone(), self.unit);
            due.push((peer.clone(), Hits { scope, unit, span, offered, refused, probe }));
        }
        due
    }

    /// The remote limits of a service, by its place in the configuration.
    #[must_use]
    pub fn states(&self, now: Nanos, service: usize) -> Vec<RemoteState> {
        self.states_at(now, &[service])
    }

    /// The remote limits that reach any of these services.
    #[must_use]
    pub fn states_at(&self, now: Nanos, services: &[usize]) -> Vec<RemoteState> {
        let reaches = |entry: &Entry| entry.services.iter().any(|at| services.contains(at));
        let of_service = self.entries.iter().filter(|(_, entry)| reaches(entry));
        let state = |((peer, scope), entry): (&(String, Scope), &Entry)| RemoteState {
            unit: self.unit,
            ..entry.state(now, (peer, scope), services)
        };
        of_service.map(state).collect()
    }

    /// Messages of a peer that were refused, by reason.
    #[must_use]
    pub fn refused(&self, peer: &str) -> Vec<ReasonCount> {
        let of_peer = self.refused.iter().filter(|((of, _), _)| of == peer);
        let count = |((_, reason), count): (&(String, &'static str), &u64)| ReasonCount {
            reason: (*reason).to_owned(),
            count: *count,
        };
        of_peer.map(count).collect()
    }
}

fn loss(rate: Rate, offered: Rate) -> Option<Share> {
    (rate < offered).then(|| Share::new(1.0 - rate.get() / offered.get()))
}

/// Who may limit a service in this way.
fn owners(authority: &Authority, of: &Protected, way: Way) -> Vec<String> {
    let owns = |scopes: &[Scope]| scopes.iter().any(|scope| of.is_owned_by(scope));
    let owners = authority.grants(way).filter(|(_, scopes)| owns(scopes));
    owners.map(|(peer, _)| peer.to_owned()).collect()
}

const fn way(pushed: Option<&Relaxing>) -> Way {
    if pushed.is_some() { Way::Pushed } else { Way::Plain }
}

fn reached(services: &[Service], scope: &Scope) -> Vec<usize> {
    let reached = services.iter().enumerate();
    reached.filter(|(_, service)| service.of.lies_in(scope)).map(|(at, _)| at).collect()
}

/// Depth of the bucket for a rate, in admissions: that of a service without one of its own.
const BURST: u32 = 20;
/// Of a limit on datagrams so much passes at once, if that is more: senders of datagrams send several at once.
pub const DATAGRAMS_AT_ONCE: Nanos = Nanos::from_millis(50);

impl Entry {
    const fn new(services: Vec<usize>, now: Nanos) -> Self {
        Self {
            services,
            held: None,
            pushed: None,
            sequence: 0,
            heard: now,
            offered: 0,
            refused: 0,
            since: now,
            guessed: 0.0,
            offered_total: 0,
            refused_total: 0,
            bucket: BURST as f64,
            trial: None,
            would_refuse: 0.0,
            lacking: BTreeMap::new(),
        }
    }

    const fn way(&self) -> Way {
        way(self.pushed.as_ref())
    }

    /// Brings a limit that was pushed to where it is by now. Whether there is anything to remember of it.
    fn relax(&mut self, now: Nanos, idle: bool) -> bool {
        let Some(pushed) = &mut self.pushed else {
            return self.held.is_some() || now.since(self.heard) < FORGET_AFTER;
        };
        let rate = pushed.rate(now, idle);
        if let (Some(rate), Some(held)) = (rate, &mut self.held) {
            held.follow(rate);
        }
        rate.is_some()
    }

    fn see(&mut self, flow: Flow) {
        self.offered = self.offered.saturating_add(flow.offered);
        let told = if flow.shadow { 0 } else { flow.refused };
        self.refused = self.refused.saturating_add(told);
        self.offered_total = self.offered_total.saturating_add(flow.offered);
        self.refused_total = self.refused_total.saturating_add(flow.refused);
    }

    fn guess(&mut self, offered: f64) {
        self.guessed += offered;
        let whole = self.guessed.floor();
        self.guessed -= whole;
        self.offered = self.offered.saturating_add(whole as u64);
    }

    fn is_staged(&self, now: Nanos) -> bool {
        let staged = self.pushed.as_ref().is_some_and(|pushed| pushed.is_staged(now));
        staged && self.held.is_some()
    }

    /// What a limit that is only counted would refuse of what came, with the clamps that it will have.
    fn would(
        &mut self,
        (now, period): (Nanos, Nanos),
        (seen, min_rate): (Seen, Rate),
        flows: &[Option<Flow>],
    ) {
        let Some(limit) = self.held.as_ref().map(|held| held.limit().clone()) else { return };
        let datagrams = limit.restriction.unit() == Unit::Datagrams;
        let trial = self.trial.get_or_insert_with(|| Held::new(limit.clone(), now));
        trial.renew(limit, now);
        let Some(rate) = trial.tick(now, seen, min_rate) else { return };
        // As deep as the daemon's.
        let deep = if datagrams { rate.get() * DATAGRAMS_AT_ONCE.as_secs_f64() } else { 0.0 };
        let deep = deep.max(f64::from(BURST));
        let came = self.services.iter().filter_map(|at| flows.get(*at).copied().flatten());
        let came = came.map(|flow| flow.offered as f64).sum::<f64>();
        let holds = self.bucket + rate.get() * period.as_secs_f64();
        self.would_refuse += (came - holds).max(0.0);
        self.bucket = (holds - came).clamp(0.0, deep);
    }

    /// Why it is not in force at any of these services, for people.
    fn why(&self, now: Nanos, services: &[usize]) -> String {
        let staged = self.pushed.as_ref().and_then(|pushed| pushed.staged_for(now));
        let would = self.would_refuse;
        match (&self.held, staged) {
            (None, _) => String::new(),
            (_, Some(left)) => {
                format!("for {left} more it is only counted, and would have refused {would:.0}")
            }
            _ => self
                .lacks(services)
                .map_or_else(String::new, |why| format!("it is not in force: {why}")),
        }
    }

    /// Who else keeps it from being in force at all of these services that it is about.
    fn lacks(&self, services: &[usize]) -> Option<&String> {
        let about = || self.services.iter().filter(|at| services.contains(at));
        let nowhere = about().all(|at| self.lacking.contains_key(at));
        about().find_map(|at| self.lacking.get(at)).filter(|_| nowhere)
    }

    /// What the limit allows each of its services.
    fn shares(
        &mut self,
        (now, period): (Nanos, Nanos),
        services: &[Service],
        flows: &[Option<Flow>],
    ) -> Vec<(usize, InForce)> {
        let of = |at: &usize| services.get(*at).map(|service| (*at, service));
        let own: Vec<(usize, &Service)> = self.services.iter().filter_map(of).collect();
        let sum = |of: fn(&Service) -> Option<Rate>| {
            let each: Option<Vec<f64>> = own.iter().map(|(_, s)| Some(of(s)?.get())).collect();
            each.map(|each| Rate::per_second(each.iter().sum()))
        };
        let seen = Seen {
            offered: sum(|service| service.offered.one_of(1)),
            passed: sum(|service| service.passed.one_of(1)),
        };
        let min_rate: f64 = own.iter().map(|(_, service)| service.of.min_rate.get()).sum();
        let min_rate = Rate::per_second(min_rate);
        if self.is_staged(now) {
            self.would((now, period), (seen, min_rate), flows);
            return Vec::new();
        }
        self.trial = None;
        let Some(held) = self.held.as_mut() else { return Vec::new() };
        let Some(rate) = held.tick(now, seen, min_rate) else { return Vec::new() };
        let demand = |service: &Service| service.demand(1).map(|(first, _)| first.get());
        let demands: Vec<Option<f64>> = own.iter().map(|(_, service)| demand(service)).collect();
        let parts = divide(rate.get(), 0.0, &demands);
        let burst = held.burst(BURST);
        let RemoteLimit { restriction, priority, .. } = *held.limit();
        let form = restriction.form();
        let until = self.pushed.as_ref().map(Relaxing::until);
        let ends = until.is_none().then(|| held.ends());
        let part = |((at, service), part): (&(usize, &Service), f64)| {
            let rate = Rate::per_second(part.max(service.of.min_rate.get()));
            (*at, InForce { rate, burst, loss: None, form, priority, until, ends })
        };
        own.iter().zip(parts).map(part).collect()
    }

    fn state(&self, now: Nanos, (peer, scope): (&str, &Scope), services: &[usize]) -> RemoteState {
        let held = self.held.as_ref();
        let gone = self.pushed.as_ref().map_or(Nanos(u64::MAX), Relaxing::until);
        let left = held.map(|held| held.until().min(gone).since(now));
        RemoteState {
            peer: peer.to_owned(),
            role: "from".into(),
            scope: scope.to_string(),
            restriction: held.map(|held| held.limit().restriction),
            priority: held.map_or(0, |held| held.limit().priority),
            rate: held.and_then(Held::rate).filter(|_| self.lacks(services).is_none()),
            left: left.filter(|left| *left > Nanos::ZERO),
            steps: held.map_or(0, |held| held.steps(now)),
            sequence: self.sequence,
            age: Some(now.since(self.heard)),
            offered: self.offered_total,
            refused: self.refused_total,
            would_refuse: self.would_refuse as u64,
            unit: Unit::default(),
            why: self.why(now, services),
        }
    }
}
