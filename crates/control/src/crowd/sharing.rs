// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several routers of one domain that carry the connections of one destination.
//!
//! ```text
//!  own tick ───────────────► Crowd alone ──► limit alone ───────────┐ bounds
//!      └──► + reports ─────► Crowd of all ─► limit of all ─► part ──┴──► limit
//!              ▲ of the others, once a second       by demand
//! ```
//!
//! Each router has all that the others tell, and computes the limit of all by itself: there is no leader. It takes the part
//! that its clients have of the demand, with what is refused, so that a small part does not make the next one smaller.
//! Each counts its own demand as the least of the last seconds, and that of the others as the most. So the parts add
//! up to no more than the whole, although the routers hear of each other late.
//!
//! What the others tell is foreign. It makes no limit where this router's own clients are served as fast as usual. It
//! lets pass no more than a quarter above what this router alone would let pass; and half of what usually comes here
//! passes, unless the router alone would let less pass. Where only this router's clients wait, the limit is its own.
//!
//! A router that is lost keeps its part, and then counts less and less (`heard.rs`). What is left is the limit that
//! each router has by itself.

use super::crowd::{Crowd, CrowdSaid, CrowdTick};
use super::crowds::Crowds;
use super::heard::{Others, Recent, Seen};
use super::limit::{CrowdLimit, LEADS, Led, Shown, TakenBack, limit};
use super::slow::Took;
use crate::fleet::remote::divide;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tidegate_model::sharing::{
    Destination, DestinationReport, PartState, RouterReports, SHARED_BUCKETS, SHARED_CLASSES,
    SHARED_MAX, SPAN_MS, SharingState, TOOK_MAX,
};
use tidegate_units::Nanos;

/// How often the others are told, less than a tick.
const TELL_EVERY: Nanos = Nanos::from_millis(900);
/// Time constant of the demand that a limit is divided by, seconds.
const DEMAND_S: f64 = 4.0;
/// The least part of a limit, for clients that come first by this router.
const LEAST: f64 = 0.02;
/// Its own clients are served as fast as usual for so long: then it asks anew whether they wait. A limit that works makes
/// them fast, so not at once.
const FAST_FOR: Nanos = Nanos::from_secs(60);
/// What others say takes no more than this of what usually comes here, and gives no more than this, of what the router
/// alone would let pass.
const USUAL: f64 = 0.5;
const MORE: f64 = 1.25;

/// What a tick is of.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// When.
    pub now: Nanos,
    /// The destination, as [`Crowds`] knows it.
    pub key: u64,
    /// The same, as other routers know it.
    pub destination: Destination,
    /// One connection in so many is followed.
    pub sample: u32,
    /// Whether limits are executed.
    pub enforced: bool,
}

/// A destination.
#[derive(Clone, Debug)]
struct Shared {
    destination: Destination,
    /// The detector of what all routers see.
    all: Crowd,
    /// Demand here: lately, and over the last seconds.
    demand: f64,
    recent: Recent,
    /// What was counted since the others were told last.
    told: Counted,
    /// Its clients wait, too: the limit of all holds here.
    joined: bool,
    /// They have been served as fast as usual for so long.
    fast_for: Nanos,
    /// Demand that was usual before the limit of all held here.
    usual: f64,
    /// What the tokens of the limit here led to.
    led: Led,
    /// Since when there is a crowd.
    crowd: Option<Nanos>,
    fast: bool,
    part: Option<PartState>,
}

/// What is counted for the others.
#[derive(Clone, Debug, Default)]
struct Counted {
    span: Nanos,
    sample: u32,
    first_attempts: f64,
    refused: f64,
    connected: u32,
    started: u32,
    completed: u32,
    given_up: u32,
    segments: (u64, u64),
    in_flight: u32,
    overdue: u32,
    flooded: bool,
    took: BTreeMap<u16, u32>,
}

/// What this router shares with others, and what it makes of what they tell.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    others: Others,
    shared: BTreeMap<u64, Shared>,
    told: Option<Nanos>,
}

impl Sharing {
    /// Shares with these routers from now on.
    pub fn follow(&mut self, routers: &[String]) {
        self.others.follow(routers);
        if self.others.is_empty() {
            *self = Self::default();
        }
    }

    /// With how many.
    #[must_use]
    pub fn routers(&self) -> usize {
        self.others.len()
    }

    /// Takes in what a router told.
    pub fn hear(&mut self, now: Nanos, told: RouterReports) {
        self.others.hear(now, told);
    }

    /// Whether another router tells of a destination now.
    #[must_use]
    pub fn tell_of(&self, destination: &Destination, now: Nanos) -> bool {
        self.others.tell_of(destination, now)
    }

    /// A tick of a destination of which the detectors of this router alone said this; what holds here.
    pub fn tick(
        &mut self,
        sight: &Sight,
        own: &CrowdTick<'_>,
        (detectors, said): (&Crowds, CrowdSaid),
    ) -> CrowdSaid {
        let Some(alone) = detectors.get(sight.key).filter(|_| !self.others.is_empty()) else {
            return said;
        };
        let shared =
            self.shared.entry(sight.key).or_insert_with(|| Shared::new(sight, Crowd::default()));
        shared.count(sight, own, (alone, &said));
        let times = (sight.now, own.period);
        let seen = self.others.see(times, &sight.destination, (sight.sample, shared.demand));
        shared.all.scale(seen.times);
        let mut took = Vec::new();
        let all = shared.all.tick(&seen.with(own, &mut took), sight.enforced);
        let said = shared.join((&seen, own.period), (alone, said), all);
        shared.crowd = said.alarm.then(|| shared.crowd.unwrap_or(sight.now));
        shared.fast = !said.alarm && alone.is_fast();
        said
    }

    /// A tick in which a destination was not looked at, for a flood of SYNs: what was known of it goes on.
    pub fn flooded(&mut self, key: u64, period: Nanos) {
        if let Some(shared) = self.shared.get_mut(&key) {
            shared.told.span += period;
            shared.told.flooded = true;
        }
    }

    /// What the others are to be told, if it is time to: of the destinations with a crowd and with the most demand.
    pub fn tell(&mut self, now: Nanos) -> Option<Vec<DestinationReport>> {
        if self.others.is_empty() || self.told.is_some_and(|told| now.since(told) < TELL_EVERY) {
            return None;
        }
        self.told = Some(now);
        self.others.forget(now);
        let shared = self.shared.values_mut();
        let all = shared.filter_map(|one| one.report(now).filter(DestinationReport::is_sound));
        let mut reports: Vec<_> = all.collect();
        reports.sort_by_key(|one| Reverse((one.crowd_ms.is_some(), one.demand_milli)));
        reports.truncate(SHARED_MAX);
        Some(reports)
    }

    /// Demand of a destination per second at all routers, lately.
    #[must_use]
    pub fn demand(&self, key: u64) -> f64 {
        self.shared.get(&key).map_or(0.0, |one| one.all.demand())
    }

    /// The part that this router has of the limit of a destination; `None`: it is not divided.
    #[must_use]
    pub fn part(&self, key: u64) -> Option<PartState> {
        self.shared.get(&key)?.part
    }

    /// The other routers.
    #[must_use]
    pub fn states(&self, now: Nanos) -> Vec<SharingState> {
        self.others.states(now)
    }

    /// A destination goes on with a crowd of the process before, of which only this router's part is known.
    pub fn restore(&mut self, sight: &Sight, detectors: &Crowds) {
        if let Some(alone) = detectors.get(sight.key).filter(|_| !self.others.is_empty()) {
            // The others have heard of what comes here, and have kept it.
            let (demand, mut recent) = (alone.demand(), Recent::default());
            recent.put(sight.now, demand);
            let shared = Shared::new(sight, alone.clone());
            let usual = alone.usual();
            self.shared.insert(sight.key, Shared { demand, recent, usual, ..shared });
        }
    }

    /// See [`Crowds::rest`].
    pub fn rest(&mut self, key: u64) {
        if let Some(shared) = self.shared.get_mut(&key) {
            shared.all.rest();
            (shared.joined, shared.crowd, shared.part) = (false, None, None);
        }
    }

    /// Forgets a destination.
    pub fn forget(&mut self, key: u64) {
        self.shared.remove(&key);
    }
}

impl Shared {
    fn new(sight: &Sight, all: Crowd) -> Self {
        // Nobody has heard of it yet.
        let mut recent = Recent::default();
        recent.put(sight.now, 0.0);
        Self {
            destination: sight.destination,
            all,
            demand: 0.0,
            recent,
            told: Counted::default(),
            joined: false,
            fast_for: Nanos::ZERO,
            usual: 0.0,
            led: Led::default(),
            crowd: None,
            fast: false,
            part: None,
        }
    }

    /// Counts a tick for the others, and the demand here: exchanges that began, and those that connections would have
    /// brought that were refused. Of these only the share counts of which tokens lead to exchanges.
    fn count(&mut self, sight: &Sight, own: &CrowdTick<'_>, (alone, said): (&Crowd, &CrowdSaid)) {
        let s = own.period.as_secs_f64().max(1e-3);
        self.led.fade(s);
        let (tokens, connected, started) = (own.tokens, own.connected.into(), own.started.into());
        self.led.add(&Shown { tokens, connected, started, ..Shown::default() });
        let leads = said.limit.map_or(1.0, |limit| limit.leads).min(self.led.share());
        let passed = f64::from(own.started.min(own.connected));
        let refused = (own.first_attempts - passed).max(0.0) * leads * alone.per_connection();
        let wanted = (f64::from(own.started) + refused) / s;
        self.demand += -libm::expm1(-s / DEMAND_S) * (wanted - self.demand);
        self.recent.put(sight.now, self.demand);
        self.told.add(own, sight.sample);
    }

    /// What holds here: of what this router alone said, and what is said of what all see.
    fn join(
        &mut self,
        (seen, period): (&Seen, Nanos),
        (alone, said): (&Crowd, CrowdSaid),
        all: CrowdSaid,
    ) -> CrowdSaid {
        self.part = None;
        // Its own clients are served as usual: nobody limits them for what others say.
        let waits = said.alarm || !alone.is_fast();
        self.fast_for = if waits { Nanos::ZERO } else { self.fast_for + period };
        if !self.joined {
            self.usual = alone.usual();
        }
        let waits = waits || (self.joined && self.fast_for < FAST_FOR);
        self.joined = all.alarm && waits && seen.is_common;
        if !self.joined {
            return said;
        }
        let (slow, overdue_after) = (all.slow, said.overdue_after);
        let joined = CrowdSaid { alarm: true, slow, overdue_after, ..CrowdSaid::default() };
        if all.taken_back.is_some() {
            // What all see does not follow what is refused: that may be what others say.
            return CrowdSaid { alarm: true, ..said };
        }
        if said.taken_back == Some(TakenBack::TokensUnused) {
            return CrowdSaid { taken_back: said.taken_back, ..joined };
        }
        let limit = all.limit.map(|all| self.part_of(all, (alone, said.limit), seen));
        let would = all.would.map(|all| self.part_of(all, (alone, said.would), seen));
        CrowdSaid { limit, would, ..joined }
    }

    /// This router's part of a limit. `own`: what it alone would let pass.
    fn part_of(
        &mut self,
        all: CrowdLimit,
        (alone, own): (&Crowd, Option<CrowdLimit>),
        seen: &Seen,
    ) -> CrowdLimit {
        // In exchanges: here a connection may have fewer of them than elsewhere.
        let whole = all.rate * self.all.per_connection();
        let here = self.recent.least();
        let demands: Vec<_> = std::iter::once(here).chain(seen.demands.iter().copied()).collect();
        let sum: f64 = demands.iter().sum();
        let demands: Vec<_> = demands.into_iter().map(Some).collect();
        let part = divide(whole, LEAST * whole, &demands).first().copied().unwrap_or(whole);
        let per_connection = alone.per_connection();
        let (routers, share) = (demands.len() as u64, if sum > 0.0 { here / sum } else { 0.0 });
        self.part = Some(PartState { routers, whole: whole / per_connection, share });
        let least = USUAL * self.usual;
        let law = own.map(|own| own.rate * own.leads * per_connection);
        let led = match law {
            Some(law) => part.max(least.min(law)).min(MORE * law),
            None => part.max(least),
        };
        let leads = own.map_or_else(|| self.led.share().max(LEADS), |own| own.leads);
        CrowdLimit { leads, ..limit(led / (per_connection * leads)) }
    }

    /// What was counted since the last report; `None`: nothing came, or not for long enough.
    fn report(&mut self, now: Nanos) -> Option<DestinationReport> {
        let ms = u32::try_from(self.told.span.0 / 1_000_000).unwrap_or(u32::MAX);
        if ms < SPAN_MS.0 {
            return None;
        }
        let told = std::mem::take(&mut self.told);
        let milli = |value: f64| (value * 1e3).round().max(0.0) as u64;
        let demand_milli = milli(self.demand);
        if demand_milli == 0 && told.in_flight == 0 {
            return None;
        }
        let crowd = self.crowd.map(|since| now.since(since).0 / 1_000_000);
        let empty =
            DestinationReport::empty(self.destination, ms.min(SPAN_MS.1), told.sample.max(1));
        Some(DestinationReport {
            first_milli: milli(told.first_attempts),
            refused_milli: milli(told.refused),
            connected: told.connected,
            started: told.started,
            completed: told.completed,
            given_up: told.given_up.min(told.completed),
            sent_bytes: told.segments.0,
            again_bytes: told.segments.1.min(told.segments.0),
            in_flight: told.in_flight,
            overdue: told.overdue.min(told.in_flight),
            demand_milli,
            crowd_ms: crowd.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)),
            fast: self.fast,
            flooded: told.flooded,
            took: most(told.took),
            ..empty
        })
    }
}

/// The places with the most exchanges, in their order.
fn most(took: BTreeMap<u16, u32>) -> Vec<(u16, u32)> {
    let mut places: Vec<_> = took.into_iter().collect();
    places.sort_by_key(|(_, count)| Reverse(*count));
    places.truncate(TOOK_MAX);
    places.sort_unstable();
    places
}

impl Counted {
    fn add(&mut self, own: &CrowdTick<'_>, sample: u32) {
        self.span += own.period;
        self.sample = sample;
        self.first_attempts += own.first_attempts;
        self.refused += own.refused;
        self.connected = self.connected.saturating_add(own.connected);
        self.started = self.started.saturating_add(own.started);
        self.completed = self.completed.saturating_add(own.completed);
        self.given_up = self.given_up.saturating_add(own.given_up);
        self.segments.0 += u64::from(own.segments.0);
        self.segments.1 += u64::from(own.segments.1);
        (self.in_flight, self.overdue) = (own.in_flight, own.overdue);
        self.flooded |= own.flooded;
        for Took { class, bucket, count } in own.took {
            let (classes, buckets) = (usize::from(SHARED_CLASSES), usize::from(SHARED_BUCKETS));
            if *class < classes && *bucket < buckets && *count > 0 {
                let place = u16::try_from(class * buckets + bucket).unwrap_or_default();
                let sum = self.took.entry(place).or_insert(0);
                *sum = sum.saturating_add(*count);
            }
        }
    }
}
