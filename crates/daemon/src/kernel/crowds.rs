// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flash crowds at the destinations behind a router: our detector and its law (`tidegate_control::crowd`), on what the
//! kernel measures. It says when a crowd begins, why it is slow, and when it is over; and, where the operator wants
//! that, it limits new connections to the destination meanwhile (`limiting.rs`).
//!
//! Demand is exchanges that begin. A SYN may be spoofed, and a connection may be opened to be idle: neither
//! begins a crowd. While a limit refuses, first SYNs that it refused are demand as well, spoofed ones among them: else a
//! limit that holds a crowd would look like its end. Where one connection in n is followed, the detectors see the sample: what is beyond chance depends on
//! how many were counted. What is shown is multiplied.

mod counted;
mod kept;
mod sharing;

pub(super) use counted::Counted;

use super::limiting::{LimitIntent, Limited};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use tidegate_bpf::{Error, ROUTER_SWEEPS, RouterLimited, RouterTimes};
use tidegate_control::crowd::{
    CrowdLimit, CrowdSaid, CrowdTick, Crowds, Neighbours, Sharing, Spared, TakenBack, Took, Why,
};
use tidegate_model::record::What;
use tidegate_model::router::{CrowdState, DestinationCounts};
use tidegate_model::{Listen, Mode, Protocol};
use tidegate_units::Nanos;

/// Ports of one address are one server.
type Servers = Neighbours<IpAddr>;

/// How often the detectors look, as those of the simulator do. After a pause (the daemon was stopped) they begin
/// anew from what is counted then.
const TICK: Nanos = Nanos::from_millis(500);
const TICK_MAX: Nanos = Nanos::from_secs(3);
/// Most destinations that are watched: each takes 9 KiB, and is read twice a second.
const WATCHED_MAX: usize = 1024;
/// Exchanges a second from which on a destination is watched: with fewer nothing is beyond chance.
pub(super) const BUSY: f64 = 3.0;
/// With fewer for so long its alarm ends; and where there is no room, it gives its place after so long.
const QUIET_AFTER: Nanos = Nanos::from_secs(30);
const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(600);
/// What is usual has to be known: connections that were open before are not followed, so demand grows at first.
const LEARNS_FOR: Nanos = Nanos::from_secs(30);
/// A crowd is over once it has not been there for so long, so that one that comes and goes is one.
const OVER_AFTER: Nanos = Nanos::from_secs(10);
/// What has been so for so long is usual, and is learned.
const USUAL_AFTER: Nanos = Nanos::from_secs(3600);
/// Neighbours of few exchanges show later than the destination itself that they are slow, too.
const WHY_FOR: Nanos = Nanos::from_secs(10);
/// No more crowds begin as events within this time, and no more than one at a destination within the other: a slow
/// link has one at each destination behind it, and the history has room for 1,000 events. The others are in the
/// status and in the metrics.
const EVENTS_MAX: usize = 16;
const EVENTS_WITHIN: Nanos = Nanos::from_secs(60);
const EVENT_EVERY: Nanos = Nanos::from_secs(600);
/// No more limits begin as events within the first, and of one destination within the second: one that is taken back may
/// begin again in seconds. The end of each that was told is one.
const LIMIT_EVENTS_MAX: usize = 32;
const LIMIT_EVENTS_EACH: usize = 4;
/// Why a destination with a crowd has no limit, if nothing else is in its way.
const FITS: &str = "what comes fits, or is slow no longer";
const FLOOD: &str = "in a flood of SYNs none begins";
const PAUSE: &str = "the daemon was stopped for a moment: what came meanwhile is not known";
/// A response that goes on is subtracted from those of its bucket that come within this time.
const SUBTRACTED_FOR: Nanos = Nanos::from_secs(10);
/// Share of the handshakes whose notes were overwritten, above which nothing is concluded: a flood of SYNs.
const FLOODED: f64 = 0.05;
const FLOODED_MIN: u64 = 20;

/// A crowd that is there.
#[derive(Debug)]
struct Alarm {
    since: Nanos,
    /// When the detector said so last.
    last: Nanos,
    why: Why,
    slow: f64,
    /// Its begin is an event.
    told: bool,
    /// What was counted before it, and refused of it by processes before.
    before: DestinationCounts,
    earlier: (u64, u64),
}

/// A limit as it was told, or not.
#[derive(Debug)]
struct Told {
    mode: Mode,
    /// Its begin is an event.
    is_event: bool,
    since: Nanos,
    /// SYNs that were beyond limits before it, and those of them that were replied to.
    beyond: u64,
    reset: u64,
}

/// A destination that is watched.
#[derive(Debug)]
struct Watched {
    address: SocketAddr,
    counts: DestinationCounts,
    times: RouterTimes,
    /// Exchanges that have ended, with a response or without one.
    ended: u64,
    /// Exchanges to subtract from those that come, by size class and bucket; since when.
    subtract: BTreeMap<(usize, usize), (u32, Nanos)>,
    /// What [`Counted::overdue`] said after each sweep of a whole round, and before it.
    overdue: VecDeque<u64>,
    overdue_after: Nanos,
    /// What is usual is not known before.
    learns_until: Nanos,
    /// When enough came last.
    busy: Nanos,
    /// When a crowd of it was an event last.
    told: Option<Nanos>,
    alarm: Option<Alarm>,
    limited: Limited,
    /// Why it has no limit, as far as it has none.
    unlimited: &'static str,
    told_limit: Option<Told>,
    /// When limits of it were events.
    told_limits: VecDeque<Nanos>,
    /// When it had one last.
    had_limit: Nanos,
}

/// The detectors of a router.
#[derive(Debug, Default)]
pub(super) struct FlashCrowds {
    detectors: Crowds,
    /// What other routers see, and which of them are heard.
    sharing: Sharing,
    heard: BTreeSet<String>,
    watched: BTreeMap<usize, Watched>,
    /// Destinations for which there was no room at the last look.
    unwatched: usize,
    /// When they looked last, and what was overwritten then.
    looked: Option<(Nanos, u64)>,
    /// When there was a flood last.
    flooded: Option<Nanos>,
    sample: u32,
    began: u64,
    lasted: Nanos,
    events: Vec<What>,
    /// When the last crowds began that are events.
    told: VecDeque<Nanos>,
    told_limits: VecDeque<Nanos>,
    /// What is wanted of limits.
    intent: LimitIntent,
    /// The kernel could not be asked what came, or told of limits: their lease is not renewed.
    failed: bool,
    limits_time: Nanos,
    limits_allowed: f64,
    /// Crowds of the process before.
    waiting: kept::Waiting,
}

impl FlashCrowds {
    /// Watches these destinations, to which enough comes, from now on. Those that are watched stay so; where there
    /// is no room, those give their places to which nothing came for long.
    pub(super) fn watch<'a>(
        &mut self,
        counted: &impl Counted,
        busy: impl Iterator<Item = (usize, &'a SocketAddr)>,
        now: Nanos,
    ) {
        self.unwatched = 0;
        let busy = Vec::from_iter(busy.filter(|(place, _)| !self.watched.contains_key(place)));
        if self.watched.len() + busy.len() > WATCHED_MAX {
            self.forget(counted, now);
        }
        for (place, address) in busy {
            if self.watched.len() >= WATCHED_MAX {
                self.unwatched += 1;
            } else if let Some(mut one) = Watched::new(counted, (place, *address), now) {
                self.go_on(place, &mut one, now);
                self.watched.insert(place, one);
            }
        }
    }

    fn forget(&mut self, counted: &impl Counted, now: Nanos) {
        let (detectors, sharing) = (&mut self.detectors, &mut self.sharing);
        self.watched.retain(|place, one| {
            let limited = one.limited.rate().is_some();
            let keep = one.alarm.is_some() || limited || now.since(one.busy) < FORGOTTEN_AFTER;
            if !keep {
                detectors.forget(*place as u64);
                sharing.forget(*place as u64);
                // What it counts is read by nobody.
                let _ = counted.set_overdue_after(*place, Nanos::ZERO);
            }
            keep
        });
    }

    /// What is wanted of limits from now on. Where they hold in another way, those that are there end: others begin with
    /// the next look.
    ///
    /// # Errors
    /// When the kernel cannot be told: what it has then ends with the lease, or with the next look.
    pub(super) fn intend(
        &mut self,
        counted: &impl Counted,
        intent: &LimitIntent,
        now: Nanos,
    ) -> Result<(), Error> {
        if self.intent == *intent {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.intent, intent.clone()).now();
        if before == intent.now() {
            return Ok(());
        }
        // First what lets more pass: no limit of shadow is executed.
        let Some(mode) = intent.now() else {
            let renewed = counted.renew(now, None);
            let opened = self.open(counted, intent.why_not(), now);
            self.failed |= renewed.is_err();
            return renewed.and(opened);
        };
        self.open(counted, "limits hold in another way now", now)?;
        let renewed = counted.renew(now, Some(mode));
        self.failed = renewed.is_err();
        renewed
    }

    /// Ends all limits, and tells that.
    fn open(&mut self, counted: &impl Counted, why: &'static str, now: Nanos) -> Result<(), Error> {
        let mut opened = Ok(());
        for (place, one) in &mut self.watched {
            one.unlimited = why;
            opened = opened.and(one.limited.lift(counted, *place));
            if one.limited.rate().is_none() {
                self.events.extend(one.end_limit(now));
            }
        }
        self.failed |= opened.is_err();
        opened
    }

    /// After each sweep.
    ///
    /// # Errors
    /// When the kernel cannot be asked what was overwritten, or told what takes too long or what is limited. All else
    /// was done.
    pub(super) fn swept(
        &mut self,
        counted: &impl Counted,
        now: Nanos,
        sample: u32,
    ) -> Result<(), Error> {
        let looked = self.look_at(counted, now, sample);
        self.failed |= looked.is_err();
        self.tell_limits(now);
        // What could not be written does not hold for longer than the lease.
        let renewed = match self.intent.now() {
            Some(mode) if !self.failed => counted.renew(now, Some(mode)),
            _ => Ok(()),
        };
        looked.and(renewed)
    }

    fn look_at(&mut self, counted: &impl Counted, now: Nanos, sample: u32) -> Result<(), Error> {
        self.sample = sample;
        for (place, one) in &mut self.watched {
            one.overdue.push_back(counted.overdue(*place).unwrap_or_default());
            if one.overdue.len() > ROUTER_SWEEPS as usize + 1 {
                one.overdue.pop_front();
            }
        }
        let (then, overwritten) = *self.looked.get_or_insert((now, counted.overwritten()?));
        let period = now.since(then);
        if period < TICK {
            return Ok(());
        }
        let all = counted.overwritten()?;
        self.looked = Some((now, all));
        if self.is_flooded(counted, all.saturating_sub(overwritten)) {
            self.flooded = Some(now);
        }
        if period > TICK_MAX {
            self.watched.iter_mut().for_each(|(place, one)| one.begin_anew(counted, *place));
            self.failed = false;
            return self.open(counted, PAUSE, now);
        }
        let looked = self.look(counted, (now, period));
        self.failed = looked.is_err();
        looked
    }

    /// Most handshakes were not seen to their end: demand is not known.
    fn is_flooded(&self, counted: &impl Counted, overwritten: u64) -> bool {
        let new = |(place, one): (&usize, &Watched)| {
            let now = counted.counts(*place).unwrap_or_default();
            now.admitted.saturating_sub(one.counts.admitted)
        };
        overwritten >= FLOODED_MIN && {
            let admitted: u64 = self.watched.iter().map(new).sum();
            overwritten as f64 > FLOODED * (admitted + overwritten) as f64
        }
    }

    fn look(&mut self, counted: &impl Counted, (now, period): (Nanos, Nanos)) -> Result<(), Error> {
        let mut failed = Ok(());
        let mut said = Vec::with_capacity(self.watched.len());
        let beside = self.detectors.beside();
        let (intent, sample) = (&self.intent, self.sample.max(1));
        let flooded = self.flooded == Some(now);
        for (place, one) in &mut self.watched {
            if flooded && one.limited.rate().is_none() {
                one.begin_anew(counted, *place);
                one.unlimited = FLOOD;
                self.sharing.flooded(*place as u64, period);
                continue;
            }
            let Some(tick) = one.tick(counted, *place, now) else { continue };
            let by_law = self.detectors.spares(*place as u64, beside);
            let spared = one.spared(intent, by_law);
            let mode = intent.now().filter(|_| spared.is_none());
            let enforced = mode == Some(Mode::Enforce);
            let scale = Scale { period, sample, enforced, flooded };
            let both = (&mut self.detectors, &mut self.sharing);
            let of = one.ask(both, *place, (&tick, &scale, now));
            failed = failed.and(one.count_overdue(counted, *place, of.overdue_after));
            let wanted = mode.and(of.limit.or(of.would));
            one.unlimited = spared.or(of.taken_back.map(TakenBack::text)).unwrap_or(FITS);
            failed = failed.and(one.put(counted, *place, (&tick, &scale), (wanted, intent)));
            let rate = one.limited.rate();
            one.had_limit = if rate.is_some() { now } else { one.had_limit };
            self.limits_time += if rate.is_some() { period } else { Nanos::ZERO };
            self.limits_allowed += rate.unwrap_or_default() * period.as_secs_f64();
            said.push((*place, of));
        }
        let whys = self.whys(&said, now);
        for (place, of) in said {
            self.note(place, &of, (&whys, now));
        }
        let crowds = self.watched.values().filter(|one| one.alarm.is_some()).count() as u64;
        self.lasted += Nanos(period.0.saturating_mul(crowds));
        failed
    }

    /// What all destinations say of each other, where a reason is asked for.
    fn whys(&self, said: &[(usize, CrowdSaid)], now: Nanos) -> Option<Servers> {
        let asks = |(place, said): &(usize, CrowdSaid)| {
            let alarm = self.watched.get(place).and_then(|one| one.alarm.as_ref());
            said.alarm && alarm.is_none_or(|alarm| now.since(alarm.since) <= WHY_FOR)
        };
        if !said.iter().any(asks) {
            return None;
        }
        let heard = self.detectors.heard().filter_map(|(key, heard)| {
            let one = self.watched.get(&(key as usize))?;
            Some((one.address.ip(), heard))
        });
        Some(heard.collect())
    }

    /// An alarm begins, goes on, or is over.
    fn note(&mut self, place: usize, said: &CrowdSaid, (whys, now): (&Option<Servers>, Nanos)) {
        let demand = self.demand(place);
        let Some(one) = self.watched.get_mut(&place) else { return };
        let why = whys.as_ref().map_or(Why::Unknown, |whys| whys.why(&one.address.ip()));
        match (&mut one.alarm, said.alarm) {
            (None, true) => {
                self.told.retain(|then| now.since(*then) < EVENTS_WITHIN);
                let told = self.told.len() < EVENTS_MAX
                    && one.told.is_none_or(|then| now.since(then) >= EVENT_EVERY);
                let (slow, before) = (said.slow, one.counts);
                let (since, last, earlier) = (now, now, (0, 0));
                one.alarm = Some(Alarm { since, last, why, slow, told, before, earlier });
                self.began += 1;
                if told {
                    one.told = Some(now);
                    self.told.push_back(now);
                    let (destination, why) = (one.address.to_string(), why.text().to_owned());
                    self.events.push(What::CrowdBegan { destination, why, demand, slow });
                }
            }
            (Some(alarm), true) => {
                (alarm.slow, alarm.last) = (said.slow, now);
                if now.since(alarm.since) <= WHY_FOR && why != Why::Unknown {
                    alarm.why = why;
                }
            }
            (Some(alarm), false) if now.since(alarm.last) >= OVER_AFTER => {
                self.events.extend(one.end());
            }
            (_, false) => {}
        }
    }

    /// Limits that begin, hold in another way, or end.
    fn tell_limits(&mut self, now: Nanos) {
        self.told_limits.retain(|then| now.since(*then) < EVENTS_WITHIN);
        let mode = self.intent.now();
        for one in self.watched.values_mut() {
            let holds = one.limited.rate().zip(mode);
            if holds.map(|(_, mode)| mode) == one.told_limit.as_ref().map(|told| told.mode) {
                continue;
            }
            self.events.extend(one.end_limit(now));
            let Some((rate, mode)) = holds else { continue };
            one.told_limits.retain(|then| now.since(*then) < EVENT_EVERY);
            let fits = one.told_limits.len() < LIMIT_EVENTS_EACH;
            let is_event = fits && self.told_limits.len() < LIMIT_EVENTS_MAX;
            let (beyond, reset) = (one.beyond(mode), one.counts.reset);
            one.told_limit = Some(Told { mode, is_event, since: now, beyond, reset });
            if is_event {
                self.told_limits.push_back(now);
                one.told_limits.push_back(now);
                let (destination, shadow) = (one.address.to_string(), mode == Mode::Shadow);
                self.events.push(What::CrowdLimited { destination, rate, shadow });
            }
        }
    }

    /// Exchanges that begin per second, as if all were followed.
    fn demand(&self, place: usize) -> f64 {
        self.detectors.demand(place as u64) * f64::from(self.sample.max(1))
    }

    /// Crowds that are there now, by place.
    pub(super) fn now(&self, now: Nanos) -> BTreeMap<usize, CrowdState> {
        let wanted = self.intent.now().is_some();
        let of = |(place, one): (&usize, &Watched)| {
            let alarm = one.alarm.as_ref()?;
            let (refused, would_refuse) = one.refused(alarm);
            let limit = one.limited.rate();
            let unlimited = if wanted && limit.is_none() { one.unlimited } else { "" };
            let state = CrowdState {
                destination: one.address.to_string(),
                lasts: now.since(alarm.since),
                why: alarm.why.text().to_owned(),
                demand: self.demand(*place),
                slow: alarm.slow,
                limit,
                unlimited: unlimited.to_owned(),
                refused,
                reset: one.counts.reset.saturating_sub(alarm.before.reset),
                would_refuse,
                abacus: one.limited.filter(),
                hot_spots: Vec::new(),
                part: limit.and_then(|_| self.sharing.part(*place as u64)),
            };
            Some((*place, state))
        };
        self.watched.iter().filter_map(of).collect()
    }

    /// The places of destinations with a crowd.
    pub(super) fn crowded(&self) -> BTreeSet<usize> {
        let crowded = self.watched.iter().filter(|(_, one)| one.alarm.is_some());
        crowded.map(|(place, _)| *place).collect()
    }

    /// Destinations that have a limit.
    pub(super) fn limited(&self) -> impl Iterator<Item = SocketAddr> {
        let limited = self.watched.values().filter(|one| one.limited.rate().is_some());
        limited.map(|one| one.address)
    }

    /// How many there were.
    pub(super) const fn began(&self) -> u64 {
        self.began
    }

    /// How long they were, those of all destinations added up.
    pub(super) const fn lasted(&self) -> Nanos {
        self.lasted
    }

    /// How long there were limits, those of all destinations added up, and their rates over that time.
    pub(super) const fn limits(&self) -> (Nanos, f64) {
        (self.limits_time, self.limits_allowed)
    }

    /// How limits hold where they do, and why they do not hold now.
    pub(super) fn limits_open(&self) -> (Option<Mode>, String) {
        let why = match (self.intent.mode(), self.intent.now()) {
            (None, _) => String::new(),
            (_, None) => format!("limits are open: {}", self.intent.why_not()),
            _ if self.failed => {
                "limits may be open: the kernel cannot be asked what came, or told of limits".into()
            }
            _ => String::new(),
        };
        (self.intent.mode(), why)
    }

    /// Why crowds may be there that are not found.
    pub(super) fn blind(&self, now: Nanos) -> Option<String> {
        if self.flooded.is_some_and(|then| now.since(then) < OVER_AFTER) {
            return Some(
                "flash crowds are not looked for, and no limit begins: a flood of SYNs overwrites \
                 handshakes"
                    .into(),
            );
        }
        (self.unwatched > 0).then(|| {
            let unwatched = self.unwatched;
            format!(
                "flash crowds are looked for at {WATCHED_MAX} destinations, and not at {unwatched} others"
            )
        })
    }

    /// What began and ended since the last question.
    pub(super) fn events(&mut self) -> Vec<What> {
        std::mem::take(&mut self.events)
    }

    /// The same when nothing is measured any more: what is there ends.
    pub(super) fn end(mut self) -> Vec<What> {
        let now = self.looked.map_or(Nanos::ZERO, |(then, _)| then);
        for one in self.watched.values_mut() {
            one.unlimited = "nothing is measured any more";
            self.events.extend(one.end_limit(now));
            self.events.extend(one.end());
        }
        self.events
    }
}

impl Watched {
    fn new(
        counted: &impl Counted,
        (place, address): (usize, SocketAddr),
        now: Nanos,
    ) -> Option<Self> {
        let counts = counted.counts(place)?;
        Some(Self {
            limited: Limited::new(counted, place),
            address,
            counts,
            times: counted.times(place)?,
            ended: ended(&counts),
            subtract: BTreeMap::new(),
            overdue: VecDeque::new(),
            overdue_after: Nanos::ZERO,
            learns_until: now + LEARNS_FOR,
            busy: now,
            told: None,
            alarm: None,
            unlimited: FITS,
            told_limit: None,
            told_limits: VecDeque::new(),
            had_limit: Nanos::ZERO,
        })
    }

    /// What was counted up to now is not looked at.
    fn begin_anew(&mut self, counted: &impl Counted, place: usize) {
        if let Some((counts, times)) = counted.counts(place).zip(counted.times(place)) {
            (self.counts, self.times, self.ended) = (counts, times, ended(&counts));
            self.subtract.clear();
        }
        self.limited.begin_anew(counted, place);
    }

    /// SYNs beyond limits that hold like this.
    const fn beyond(&self, mode: Mode) -> u64 {
        match mode {
            Mode::Shadow => self.counts.would_refuse,
            Mode::Enforce => self.counts.refused,
        }
    }

    /// Why it gets no limit, if so, by what the operator wants and by the law. One that has a limit keeps it, also from one process
    /// to the next.
    fn spared(&self, intent: &LimitIntent, by_law: Option<Spared>) -> Option<&'static str> {
        let (address, port) = (Some(self.address.ip()), self.address.port());
        let why = by_law.filter(|_| !self.limited.goes_on()).map(Spared::text);
        intent.spares(Listen { address, port, protocol: Protocol::Tcp }).or(why)
    }

    /// What the law wants goes to the kernel, as if all connections were followed.
    fn put(
        &mut self,
        counted: &impl Counted,
        place: usize,
        (tick, scale): (&Tick, &Scale),
        (wanted, intent): (Option<CrowdLimit>, &LimitIntent),
    ) -> Result<(), Error> {
        let sample = f64::from(scale.sample);
        let wanted = wanted.map(|limit| CrowdLimit { rate: limit.rate * sample, ..limit });
        let connected = tick.new.admitted as f64 * sample;
        self.limited.put(counted, place, (scale.period, connected), (wanted, intent))
    }

    /// Its limit is there no longer, or holds in another way; the event, if its begin was one.
    fn end_limit(&mut self, now: Nanos) -> Option<What> {
        let told = self.told_limit.take().filter(|told| told.is_event)?;
        let (destination, why) = (self.address.to_string(), self.unlimited.to_owned());
        let refused = self.beyond(told.mode).saturating_sub(told.beyond);
        let reset = self.counts.reset.saturating_sub(told.reset);
        let (lasted, shadow) = (now.since(told.since), told.mode == Mode::Shadow);
        Some(What::CrowdUnlimited { destination, why, lasted, refused, reset, shadow })
    }

    /// What is new since the last look.
    fn tick(&mut self, counted: &impl Counted, place: usize, now: Nanos) -> Option<Tick> {
        let counts = counted.counts(place)?;
        let new = counts.with(self.counts, u64::saturating_sub);
        let times = (new.completed + new.resumed > 0).then(|| counted.times(place)).flatten();
        let took = times.map(|times| self.took(times, now)).unwrap_or_default();
        let in_flight = counts.in_flight();
        self.counts = counts;
        let all = ended(&counts);
        // A response that goes on has not ended: the one that ends next is not another one.
        let more = all.saturating_sub(self.ended);
        self.ended = self.ended.max(all);
        let limited = self.limited.tick(counted, place);
        Some(Tick { new, ended: more, in_flight, took, limited })
    }

    /// What was completed. Responses that went on are subtracted from those that come next in their bucket.
    fn took(&mut self, times: RouterTimes, now: Nanos) -> Vec<Took> {
        let new = times.took_since(&self.times);
        self.times = times;
        self.subtract.retain(|_, (left, since)| *left > 0 && now.since(*since) < SUBTRACTED_FOR);
        let mut took = Vec::new();
        for (class, bucket, count) in new {
            let Ok(count) = u32::try_from(count) else {
                let (left, _) = self.subtract.entry((class, bucket)).or_insert((0, now));
                *left = left.saturating_add(count.unsigned_abs());
                continue;
            };
            let less = self.subtract.get_mut(&(class, bucket)).map_or(0, |(left, _)| {
                let less = count.min(*left);
                *left -= less;
                less
            });
            if count > less {
                took.push(Took { class, bucket, count: count - less });
            }
        }
        took
    }

    /// What the detector makes of it.
    fn ask(
        &mut self,
        (detectors, sharing): (&mut Crowds, &mut Sharing),
        place: usize,
        (tick, scale, now): (&Tick, &Scale, Nanos),
    ) -> CrowdSaid {
        let key = place as u64;
        let shown = self.shown(tick, scale);
        let alone = detectors.tick(key, &shown, scale.enforced);
        let sight = self.sight(place, scale, now);
        let mut said = sharing.tick(&sight, &shown, (&*detectors, alone));
        if detectors.demand(key).max(sharing.demand(key)) >= BUSY {
            self.busy = now;
        }
        if now < self.learns_until || now.since(self.busy) >= QUIET_AFTER {
            detectors.rest(key);
            sharing.rest(key);
            said = CrowdSaid { overdue_after: said.overdue_after, slow: said.slow, ..NOTHING };
        }
        // What a limit holds is no usual load, nor is what was held within the hour.
        let usual = |alarm: &Alarm| now.since(alarm.since.max(self.had_limit)) >= USUAL_AFTER;
        if said.limit.is_none() && self.alarm.as_ref().is_some_and(usual) {
            detectors.forget(key);
            sharing.forget(key);
            self.learns_until = now + LEARNS_FOR;
            said = CrowdSaid { overdue_after: said.overdue_after, slow: said.slow, ..NOTHING };
        }
        said
    }

    fn shown<'a>(&self, tick: &'a Tick, scale: &Scale) -> CrowdTick<'a> {
        let of = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        // SYNs are all counted, and connections only if they are followed.
        let sampled = |n: u64| n as f64 / f64::from(scale.sample);
        let (started, connected) = (of(tick.new.begun), of(tick.new.admitted));
        let round = self.overdue.front().zip(self.overdue.back());
        CrowdTick {
            period: scale.period,
            took: &tick.took,
            // So the demand is what was started, and what was refused to start.
            first_attempts: f64::from(started.min(connected)) + sampled(tick.limited.refused_first),
            refused: sampled(tick.new.refused),
            tokens: sampled(tick.limited.tokens),
            connected,
            started,
            // Without a response, too: a client that says goodbye inside TLS begins an exchange that has none.
            completed: of(tick.ended),
            given_up: of(tick.new.given_up),
            // Of the segments only their share counts.
            segments: (
                of(tick.new.sent_bytes.saturating_add(tick.new.again_bytes)),
                of(tick.new.again_bytes),
            ),
            in_flight: of(tick.in_flight),
            overdue: of(round.map_or(0, |(first, last)| last.wrapping_sub(*first))),
            flooded: scale.flooded,
        }
    }

    fn count_overdue(
        &mut self,
        counted: &impl Counted,
        place: usize,
        after: Option<Nanos>,
    ) -> Result<(), Error> {
        let after = after.unwrap_or_default();
        if after != self.overdue_after {
            counted.set_overdue_after(place, after)?;
            self.overdue_after = after;
        }
        Ok(())
    }

    /// Its crowd is over; the event, if its begin was one.
    fn end(&mut self) -> Option<What> {
        let alarm = self.alarm.take()?;
        let (destination, why) = (self.address.to_string(), alarm.why.text().to_owned());
        let lasted = alarm.last.since(alarm.since);
        let (refused, would_refuse) = self.refused(&alarm);
        alarm.told.then_some(What::CrowdEnded { destination, why, lasted, refused, would_refuse })
    }
}

/// What is new at a destination.
struct Tick {
    new: DestinationCounts,
    ended: u64,
    in_flight: u64,
    took: Vec<Took>,
    limited: RouterLimited,
}

/// How long a tick was, of which part of the connections, whether a limit would be executed, and whether SYNs were a flood.
struct Scale {
    period: Nanos,
    sample: u32,
    enforced: bool,
    flooded: bool,
}

/// No alarm, and no limit.
const NOTHING: CrowdSaid = CrowdSaid {
    alarm: false,
    slow: 0.0,
    limit: None,
    taken_back: None,
    would: None,
    overdue_after: None,
};

/// Exchanges that have ended, with a response or without one. It falls when a response goes on.
const fn ended(counts: &DestinationCounts) -> u64 {
    counts.responses().saturating_add(counts.given_up)
}

#[cfg(test)]
#[path = "crowds_tests.rs"]
mod tests;
