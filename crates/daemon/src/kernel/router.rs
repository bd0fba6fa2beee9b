// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router's measurement and limits as the daemon keeps them: sweeps with the heartbeats, figures once an interval, and
//! links that are made again. It is no part of what protects: whatever fails here is told, and all else goes on.

use super::asked::Asked;
use super::crowds::FlashCrowds;
use super::limiting::LimitIntent;
use crate::state::KeptCrowd;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use tidegate_bpf::{Dataplane, Error, Interface, Router, RouterLosses, RouterTimes};
use tidegate_config::{Config, Replies, RouterConfig};
use tidegate_model::Mode;
use tidegate_model::record::What;
use tidegate_model::router::{
    CrowdState, DestinationCounts, DestinationFigures, DestinationState, RouterState,
};
use tidegate_model::sharing::{DestinationReport, RouterReports};
use tidegate_model::snapshot::ReasonCount;
use tidegate_units::Nanos;

/// How often figures are made. With ticks of 100 ms the table is swept in less: in 32 of them.
const INTERVAL: Nanos = Nanos::from_secs(5);
/// Most destinations that are shown one by one.
const SHOWN_MAX: usize = 32;
/// Share of the connections that are the fastest (authors' code of NEWS).
const FASTEST: f64 = 0.1;
/// How often links are looked after. After a try that failed this doubles, up to the longest: a try may load programs,
/// for which a tick waits.
const LOOK_EVERY: Nanos = Nanos::SECOND;
const LOOK_EVERY_MAX: Nanos = Nanos::from_secs(32);
/// Whom a limit refused is asked for so long after its end: a minute, and the slice of it that was written to.
const REFUSED_KNOWN_FOR: Nanos = Nanos::from_secs(65);
/// What the interfaces together are called.
const ALL: &str = "all";

/// A destination as it was read: its place, its address, its counts.
type Read = (usize, SocketAddr, DestinationCounts);

/// The measurement; nothing of it is there without the section `router`.
#[derive(Debug, Default)]
pub(super) struct Measured {
    router: Option<Router>,
    interfaces: Vec<Interface>,
    state: Option<RouterState>,
    /// When figures were made last, with what was counted then by place; times of those that were shown.
    before: Option<(Nanos, Vec<DestinationCounts>)>,
    times: BTreeMap<usize, RouterTimes>,
    crowds: FlashCrowds,
    /// What they ask for.
    asked: Asked,
    /// What is wanted of limits.
    intent: LimitIntent,
    /// Whom no limit refuses, and why the kernel does not know.
    sources: Vec<IpNet>,
    unexempted: Option<String>,
    /// The first heartbeat and the last one: what the process before limited is not known.
    beats: Option<(Nanos, Nanos)>,
    /// How many replies there may be, and why the kernel does not know how clients are refused.
    replies: Replies,
    unrefused: Option<String>,
    /// When destinations had a limit last.
    limited: BTreeMap<SocketAddr, Nanos>,
    /// What happened to what is not measured any more.
    ended: Vec<What>,
    /// When links are looked after again, and the pause behind that.
    look_at: Nanos,
    pause: Nanos,
    /// Where it is not attached, or why it could not be loaded, one sentence each.
    unattached: Vec<String>,
    /// What failed in the last sweep or look.
    failed: Option<String>,
}

impl Measured {
    /// Begins, where the configuration has a section for it.
    pub(super) fn start(
        config: &Config,
        interfaces: Vec<Interface>,
        dataplane: &Dataplane,
    ) -> Self {
        let Some(section) = &config.router else { return Self::default() };
        let (state, intent) = (Some(fresh(section)), LimitIntent::of(config));
        let (sources, replies) = (config.exempt.sources.clone(), config.replies.clone());
        let mut measured = Self { interfaces, state, intent, sources, replies, ..Self::default() };
        match Router::load_beside(section, dataplane) {
            Ok(router) => measured.router = Some(router),
            Err(error) => measured.unattached = vec![error.to_string()],
        }
        measured.crowds.share_with(&others(config));
        measured.asked.want(section.hot_spots);
        measured.exempt();
        measured.refuse();
        measured.attach(dataplane);
        if measured.unattached.is_empty() {
            tracing::info!(destinations = section.destinations.len(), "measures as a router");
        }
        measured.unattached.iter().for_each(|text| tracing::warn!("router: {text}"));
        measured
    }

    /// Why a configuration cannot be followed without a restart.
    pub(super) fn refuses(&self, config: &Config) -> Option<&'static str> {
        let section = config.router.as_ref()?;
        let can = match (&self.router, &self.state) {
            (Some(router), _) => router.can_follow(section),
            // What failed at the start is not tried again.
            (None, Some(_)) => true,
            (None, None) => false,
        };
        (!can).then_some(
            "router: the section, its connections, destinations_max and sample, and the first action abacus come by a \
             restart only: start the daemon anew with them",
        )
    }

    /// Follows a configuration that it does not refuse.
    pub(super) fn apply(
        &mut self,
        config: &Config,
        interfaces: Vec<Interface>,
        dataplane: &Dataplane,
    ) {
        let Some(section) = &config.router else {
            let ended = std::mem::take(&mut self.crowds).end();
            let limited = std::mem::take(&mut self.limited);
            *self = Self { ended, limited, ..Self::default() };
            return;
        };
        self.interfaces = interfaces;
        if let Some(router) = &mut self.router
            && router.config() != section
            && let Err(error) = router.follow(section)
        {
            tracing::warn!(%error, "router: the destinations are those of before");
        }
        (self.intent, self.sources) = (LimitIntent::of(config), config.exempt.sources.clone());
        self.replies = config.replies.clone();
        self.asked.want(section.hot_spots);
        self.crowds.share_with(&others(config));
        self.exempt();
        self.refuse();
        self.attach(dataplane);
    }

    /// Another mode of a service: one that is enforced limits its destinations itself.
    pub(super) fn set_mode(&mut self, service: usize, mode: Mode) {
        self.intent.set_mode(service, mode);
    }

    /// Whom no limit refuses. As long as the kernel does not take that, nobody is limited, and it is tried again.
    fn exempt(&mut self) {
        let Some(router) = &mut self.router else { return };
        let exempted = router.exempt(&self.sources);
        self.intent.unexempt(exempted.is_err());
        let why = exempted.err().map(|error| format!("exemptions cannot be written: {error}"));
        if let Some(text) = why.as_ref().filter(|_| self.unexempted.is_none()) {
            tracing::warn!("router: nothing is limited: {text}");
        }
        self.unexempted = why;
    }

    /// How clients are refused. What the kernel does not take is tried again.
    fn refuse(&mut self) {
        let Some(router) = &mut self.router else { return };
        let failed = router.refuse(&self.replies).err();
        let why = failed.map(|error| format!("classes and actions cannot be written: {error}"));
        if let Some(text) = why.as_ref().filter(|_| self.unrefused.is_none()) {
            tracing::warn!("router: clients are refused as before: {text}");
        }
        self.unrefused = why;
    }

    fn attach(&mut self, dataplane: &Dataplane) {
        let Some(router) = &mut self.router else { return };
        self.unattached = router.attach(&self.interfaces, Some(dataplane));
    }

    /// Attaches again where an interface came back; less and less often where that fails.
    fn mend(&mut self, now: Nanos, dataplane: &Dataplane) {
        if now < self.look_at {
            return;
        }
        if self.unexempted.is_some() {
            self.exempt();
        }
        if self.unrefused.is_some() {
            self.refuse();
        }
        if self.router.as_ref().is_none_or(Router::is_attached) {
            (self.pause, self.look_at) = (LOOK_EVERY, now + LOOK_EVERY);
            return;
        }
        self.attach(dataplane);
        let longer = Nanos(self.pause.0.saturating_mul(2)).min(LOOK_EVERY_MAX);
        self.pause = if self.unattached.is_empty() { LOOK_EVERY } else { longer.max(LOOK_EVERY) };
        self.look_at = now + self.pause;
    }

    /// With each heartbeat.
    pub(super) fn heartbeat(&mut self, now: Nanos, dataplane: &Dataplane) {
        self.mend(now, dataplane);
        self.beats = Some((self.beats.map_or(now, |(first, _)| first), now));
        let Some(router) = &mut self.router else { return self.tell(now) };
        let due = self.before.as_ref().is_none_or(|(then, _)| now.since(*then) >= INTERVAL);
        let sample = router.config().sample;
        // A switch that cannot be read is taken for thrown.
        let limits = self.intent.mode().is_some();
        self.intent.release(limits && dataplane.released().unwrap_or(true));
        let intended = self.crowds.intend(router, &self.intent, now);
        let swept = router.sweep().and_then(|_| self.crowds.swept(router, now, sample));
        let awaited = look_for_crowds(router, &mut self.crowds, now);
        let asked = self.asked.tick(router, &self.crowds.crowded(), now);
        let swept = swept.and(intended).and(awaited).and(asked);
        // What is shown does not stand still where a sweep fails.
        let looked = if due { self.look(now) } else { Ok(()) };
        self.failed = swept.and(looked).err().map(|error| error.to_string());
        self.tell(now);
    }

    /// Takes in what other routers told; what they are to be told, if it is time to.
    pub(super) fn share(
        &mut self,
        now: Nanos,
        heard: Vec<RouterReports>,
    ) -> Option<Vec<DestinationReport>> {
        self.crowds.share(now, heard)
    }

    /// What the next process needs.
    pub(super) fn kept(&self) -> Vec<KeptCrowd> {
        self.crowds.kept()
    }

    /// What the process before kept, so long ago.
    pub(super) fn restore(&mut self, kept: Vec<KeptCrowd>, age: Nanos) {
        if self.router.is_some() {
            self.crowds.restore(kept, age);
        }
    }

    fn tell(&mut self, now: Nanos) {
        self.limited.extend(self.crowds.limited().map(|destination| (destination, now)));
        self.limited.retain(|_, then| now.since(*then) <= REFUSED_KNOWN_FOR);
        if let Some(state) = &mut self.state {
            let crowds = self.crowds.now(now).into_iter().map(|(place, crowd)| {
                let hot_spots = self.asked.hot_spots(place);
                CrowdState { hot_spots, ..crowd }
            });
            state.crowds = crowds.collect();
            state.crowds_total = self.crowds.began();
            state.crowds_time = self.crowds.lasted();
            (state.limits_time, state.limits_allowed) = self.crowds.limits();
            let (mode, open) = self.crowds.limits_open();
            (state.limit_mode, state.limits_open) = (mode, open);
            state.sharing = self.crowds.others(now);
            state.crowds_missed = self.crowds.blind(now).unwrap_or_default();
            let problems: Vec<&str> =
                self.unattached.iter().chain(&self.failed).map(String::as_str).collect();
            state.problem = problems.join("; ");
        }
    }

    /// Destinations whose limit may have refused somebody in the last minute.
    pub(super) fn limited_lately(&self) -> Vec<SocketAddr> {
        self.limited.keys().copied().collect()
    }

    /// Whether these are all of the last minute.
    pub(super) fn knows_a_minute(&self) -> bool {
        let lasts = |(first, last): (Nanos, Nanos)| last.since(first) >= REFUSED_KNOWN_FOR;
        self.state.is_none() || self.beats.is_some_and(lasts)
    }

    /// What is shown of it; `None`: it is not configured.
    pub(super) fn state(&self) -> Option<RouterState> {
        self.state.clone()
    }

    /// What happened since the last question.
    pub(super) fn events(&mut self) -> Vec<What> {
        let mut events = std::mem::take(&mut self.ended);
        events.extend(self.crowds.events());
        for what in &events {
            tracing::info!("router: {}", what.sentence());
        }
        events
    }

    /// What an operator should know, one sentence each.
    pub(super) fn doubts(&self) -> impl Iterator<Item = String> + '_ {
        let problems = self.unattached.iter().chain(&self.failed);
        let open = self.unexempted.iter().map(|text| format!("router: nothing is limited: {text}"));
        let before = self.unrefused.iter();
        let before = before.map(|text| format!("router: clients are refused as before: {text}"));
        let unmeasured = problems.map(|text| format!("router: not everything is measured: {text}"));
        unmeasured.chain(open).chain(before)
    }

    /// Reads all destinations, and makes figures of the interval.
    fn look(&mut self, now: Nanos) -> Result<(), Error> {
        let (Some(router), Some(state)) = (&self.router, &mut self.state) else { return Ok(()) };
        let read = router.destinations()?;
        let sample = u64::from(router.config().sample);
        let (then, before) = self.before.take().unwrap_or_default();
        let period = (then != Nanos::ZERO).then(|| now.since(then).as_secs_f64());
        let was = |place: usize| before.get(place).copied().unwrap_or_default();
        let enough = period.map_or(u64::MAX, |s| (self.crowds.busy_from() * s) as u64);
        let is_busy = |(place, address, counts): &&Read| {
            let begun = counts.begun.saturating_sub(was(*place).begun);
            begun >= enough || (begun > 0 && self.crowds.others_tell_of(address, now))
        };
        let busy: Vec<_> = read.iter().filter(is_busy).collect();
        let busy = busy.into_iter().map(|(place, address, _)| (*place, address));
        self.crowds.watch(router, busy, now);
        let crowded: BTreeSet<usize> = self.crowds.now(now).into_keys().collect();
        let order = busiest(&read, was, &crowded);
        let mut times = BTreeMap::new();
        state.destinations.clear();
        for (place, address, counts) in order {
            let now_times = router.times(*place);
            // What was not shown has no earlier look: it is all new if it is new itself.
            let earlier = self.times.get(place).cloned().or_else(|| {
                let empty = now_times.as_ref().map(|times| times.since(times));
                empty.filter(|_| before.len() <= *place && period.is_some())
            });
            let new = now_times.as_ref().zip(earlier.as_ref()).map(|(now, then)| now.since(then));
            let last = period.map(|s| figures((*counts, was(*place)), s, (sample, new.as_ref())));
            let (address, counts) = (address.to_string(), scaled(*counts, sample));
            state.destinations.push(DestinationState { address, counts, last });
            times.extend(now_times.map(|times| (*place, times)));
        }
        self.times = times;
        let sum =
            |all: DestinationCounts, one: DestinationCounts| all.with(one, u64::saturating_add);
        let all = read.iter().fold(DestinationCounts::default(), |all, (_, _, one)| sum(all, *one));
        let all_before =
            before.iter().fold(DestinationCounts::default(), |all, one| sum(all, *one));
        let last = period.map(|s| figures((all, all_before), s, (sample, None)));
        state.all = DestinationState { address: ALL.into(), counts: scaled(all, sample), last };
        state.sample = router.config().sample;
        state.connections = router.connections();
        state.known = read.len() as u64;
        state.losses = losses(router.losses()?);
        let mut kept = vec![DestinationCounts::default(); router.known()?];
        for (place, _, counts) in read {
            if let Some(of) = kept.get_mut(place) {
                *of = counts;
            }
        }
        self.before = Some((now, kept));
        Ok(())
    }
}

/// Destinations for which crowds of the process before wait are watched as soon as they are known.
fn look_for_crowds(router: &Router, crowds: &mut FlashCrowds, now: Nanos) -> Result<(), Error> {
    if !crowds.waits(router.known()?, now) {
        return Ok(());
    }
    let read = router.destinations()?;
    let mut known = Vec::from_iter(read.iter().map(|(place, address, _)| (*place, address)));
    known.retain(|(_, address)| crowds.waits_for(address));
    if !known.is_empty() {
        crowds.watch(router, known.into_iter(), now);
    }
    Ok(())
}

/// The other routers with which this one shares.
fn others(config: &Config) -> Vec<String> {
    let routers = config.cluster.iter().flat_map(|cluster| &cluster.routers);
    routers.map(|router| router.name.clone()).collect()
}

/// Before anything was measured.
fn fresh(section: &RouterConfig) -> RouterState {
    RouterState {
        connections_max: section.connections.into(),
        sample: section.sample,
        known_max: section.destinations_max.into(),
        all: DestinationState { address: ALL.into(), ..DestinationState::default() },
        ..RouterState::default()
    }
}

/// The destinations that are shown: half of them those to which most was delivered, and half those to which
/// most comes, first those with a flash crowd. A server that hangs delivers nothing, and is looked for.
fn busiest<'a>(
    read: &'a [Read],
    was: impl Fn(usize) -> DestinationCounts,
    crowded: &BTreeSet<usize>,
) -> Vec<&'a Read> {
    let new = |(place, _, counts): &&Read| counts.with(was(*place), u64::saturating_sub);
    let delivered = |read: &&Read| new(read).delivered_bytes;
    let demanded = |read: &&Read| {
        let new = new(read);
        new.syns + new.syns_repeated + new.begun
    };
    let mut rest: Vec<&Read> = read.iter().collect();
    rest.sort_by_cached_key(|read| std::cmp::Reverse((delivered(read), demanded(read))));
    let mut shown = rest;
    let mut rest = shown.split_off(shown.len().min(SHOWN_MAX / 2));
    let crowded = |read: &&Read| crowded.contains(&read.0);
    rest.sort_by_cached_key(|read| {
        std::cmp::Reverse((crowded(read), demanded(read), delivered(read)))
    });
    shown.extend(rest.into_iter().take(SHOWN_MAX / 2));
    shown
}

/// What is counted of connections, as if all were followed; SYNs are all counted.
fn scaled(counts: DestinationCounts, sample: u64) -> DestinationCounts {
    let of = |n: u64| n.saturating_mul(sample);
    DestinationCounts {
        syns: counts.syns,
        syns_repeated: counts.syns_repeated,
        admitted: of(counts.admitted),
        begun: of(counts.begun),
        completed: of(counts.completed),
        given_up: of(counts.given_up),
        resumed: of(counts.resumed),
        sent_bytes: of(counts.sent_bytes),
        again_bytes: of(counts.again_bytes),
        delivered_bytes: of(counts.delivered_bytes),
        refused: counts.refused,
        reset: counts.reset,
        would_refuse: counts.would_refuse,
    }
}

fn figures(
    (now, then): (DestinationCounts, DestinationCounts),
    seconds: f64,
    (sample, times): (u64, Option<&RouterTimes>),
) -> DestinationFigures {
    let new = scaled(now.with(then, u64::saturating_sub), sample);
    let each = |n: u64| n as f64 / seconds;
    // Of the sums: a response that went on may have been complete before.
    let responses = now.responses().saturating_sub(then.responses()).saturating_mul(sample);
    let bytes = new.sent_bytes + new.again_bytes;
    DestinationFigures {
        syns: each(new.syns),
        admitted: each(new.admitted),
        completed: each(responses),
        delivered: each(new.delivered_bytes),
        again: (bytes > 0).then(|| new.again_bytes as f64 / bytes as f64),
        median: times.and_then(|times| times.took(0.5)),
        p99: times.and_then(|times| times.took(0.99)),
        fastest: times.and_then(|times| times.fastest(FASTEST)),
        sizes: times.map(|times| times.by_size(seconds, sample)).unwrap_or_default(),
    }
}

fn losses(losses: RouterLosses) -> Vec<ReasonCount> {
    let RouterLosses { connections, handshakes, destinations, unknown } = losses;
    let all = [
        ("connections", connections),
        ("handshakes", handshakes),
        ("destinations", destinations),
        ("unknown", unknown),
    ];
    all.into_iter().map(|(reason, count)| ReasonCount { reason: reason.into(), count }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(syns: u64, completed: u64, delivered_bytes: u64) -> DestinationCounts {
        DestinationCounts { syns, completed, delivered_bytes, ..DestinationCounts::default() }
    }

    #[test]
    fn what_is_sampled_is_multiplied_and_syns_are_not() {
        let figures = figures((counts(30, 12, 4000), counts(10, 2, 0)), 5.0, (4, None));
        assert_eq!((figures.syns, figures.completed, figures.delivered), (4.0, 8.0, 3200.0));
        assert_eq!((figures.median, figures.again), (None, None));
        assert_eq!(scaled(counts(30, 12, 4000), 4), counts(30, 48, 16_000));
    }

    #[test]
    fn half_of_the_shown_deliver_most_and_a_server_that_hangs_is_among_the_others() {
        let address = |place: usize| SocketAddr::from(([192, 0, 2, 1], place as u16 + 1));
        let mut read: Vec<Read> =
            (0..100).map(|n| (n, address(n), counts(1, 1, 1000 + n as u64))).collect();
        read[7].2 = counts(1000, 0, 0);
        let shown = busiest(&read, |_| DestinationCounts::default(), &BTreeSet::from([11]));
        let places: Vec<usize> = shown.iter().map(|(place, ..)| *place).collect();
        assert_eq!(places.len(), SHOWN_MAX);
        assert_eq!(places[..16], Vec::from_iter((84..100).rev()));
        assert_eq!(places[16..18], [11, 7], "a crowd; and nothing is delivered, and most comes");
        let was = |place: usize| read[place].2;
        let calm = busiest(&read[..3], was, &BTreeSet::new());
        assert_eq!(calm.len(), 3, "what was counted before is no activity");
    }
}
