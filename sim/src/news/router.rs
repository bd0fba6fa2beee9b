// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detectors and limits at the router.

use super::flows::{Flows, Happened, Syn};
use super::spec::{Control, NewsSpec, Protocol};
use crate::net::{Kind, Packet, Side, Verdict};
use std::collections::BTreeMap;
use tidegate_control::crowd::{
    CrowdTick, Crowds, Interval, LimitBounds, Neighbours, Published, PublishedLimit, PublishedSpec,
    Took, Why, fastest,
};
use tidegate_policy::{
    AbacusExactSpec, Action, AgedHotSpots, BucketSpec, CrowdAction, CrowdFilter, CrowdGate,
    CrowdLimit, CrowdRule, Durations, Event, HotSpots, VerdictKind,
};
use tidegate_units::{Nanos, Random as _, Rate, Share};
use tidegate_workload::Rng;

/// From one look at the table to the next.
pub(super) const TICK: Nanos = Nanos::from_millis(500);
/// Until so long after an alarm its reason may still become the link.
const WHY_FOR: Nanos = Nanos::from_secs(10);
/// Hot spots fade once in so many ticks.
const FADE_TICKS: u64 = 20;
/// New connections per second that pass in any case, as the product has it.
const LEAST: f64 = 1.0;
/// The published list: what is sampled, and when an entry is out of date. Neither is printed. A quarter
/// is some 500 hits an interval of 64 s at the paper's rates.
const SAMPLE: f64 = 0.25;
const OUT_S: u32 = 64;
/// When dropped clients come again, in seconds, as the product takes it: what the schedules of all stacks have in common.
const SCHEDULE: [u16; 3] = [1, 3, 7];
/// The same of around 2003.
const SCHEDULE_CLASSIC: [u16; 2] = [3, 9];

/// Which detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detector {
    /// Ours.
    Fast,
    /// The published one with this interval.
    Published(Nanos),
}

/// An alarm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alarm {
    /// Whose.
    pub detector: Detector,
    /// Of which destination; 0: of all.
    pub key: u64,
    /// When it began.
    pub at: Nanos,
    /// When it ended; none: not yet.
    pub until: Option<Nanos>,
    /// Why, if ours says so.
    pub why: Option<Why>,
}

#[derive(Debug)]
struct Watcher {
    published: Published,
    next: Nanos,
    admitted: u64,
    offered: u64,
    alarmed: bool,
    /// ARR of the last interval.
    arr: Option<f64>,
}

impl Watcher {
    const fn new(spec: PublishedSpec) -> Self {
        let (published, next) = (Published::new(spec), spec.interval);
        Self { published, next, admitted: 0, offered: 0, alarmed: false, arr: None }
    }
}

/// The router.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) flows: Flows,
    control: Control,
    fastest: f64,
    random: Rng,
    hot: HotSpots,
    aged: AgedHotSpots,
    gate: CrowdGate,
    /// How ours refuses, and, for Abacus, when clients come again, and the filters of limited destinations.
    action: CrowdAction,
    schedule: Vec<u16>,
    filters: BTreeMap<u64, CrowdFilter>,
    /// The first one controls, if a published one does.
    watchers: Vec<Watcher>,
    crowds: Crowds,
    overdue: BTreeMap<u64, Nanos>,
    limited: BTreeMap<u64, f64>,
    bounds: BTreeMap<u64, LimitBounds>,
    ticks: u64,
    pub(super) alarms: Vec<Alarm>,
    /// SYNs that came, and new connections admitted.
    pub(super) offered: u64,
    pub(super) admitted: u64,
    /// Refused verdicts by destination.
    pub(super) refused: BTreeMap<u64, u64>,
}

fn bucket(rate: f64, burst: f64) -> BucketSpec {
    let burst = burst.round().clamp(1.0, 1e6) as u32;
    BucketSpec::new(Rate::per_second(rate.clamp(0.01, 1e6)), burst, Action::Drop)
}

impl Router {
    pub(super) fn new(spec: &NewsSpec, crowd: u64) -> Self {
        let mut watched = spec.watched.clone();
        if let Control::Published(own) | Control::PublishedHot(own) = spec.control {
            watched.insert(0, own);
        }
        let mut router = Self {
            flows: Flows::new(spec.flows),
            control: spec.control,
            fastest: spec.fastest,
            random: Rng::new(spec.seed, 0x4e45_5753),
            hot: HotSpots::default(),
            aged: AgedHotSpots::new(Share::new(SAMPLE), OUT_S),
            gate: CrowdGate::default(),
            action: spec.action,
            schedule: match spec.protocol {
                Protocol::Classic => SCHEDULE_CLASSIC.to_vec(),
                Protocol::Today => SCHEDULE.to_vec(),
            },
            filters: BTreeMap::new(),
            watchers: watched.into_iter().map(Watcher::new).collect(),
            crowds: Crowds::default(),
            overdue: BTreeMap::new(),
            limited: BTreeMap::new(),
            bounds: BTreeMap::new(),
            ticks: 0,
            alarms: Vec::new(),
            offered: 0,
            admitted: 0,
            refused: BTreeMap::new(),
        };
        if let Control::Static(limit) = spec.control {
            let bucket = bucket(limit.rate, f64::from(limit.burst));
            router.set(CrowdRule::Own, &[CrowdLimit { key: crowd, bucket }]);
        }
        router
    }

    /// Rates are bounded where they are made: what is set here is in range.
    fn set(&mut self, rule: CrowdRule, limits: &[CrowdLimit]) {
        let set = self.gate.set(rule, limits);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// A packet; `key` is the destination of its connection.
    pub(super) fn packet(&mut self, packet: &Packet, (now, key): (Nanos, u64)) -> Verdict {
        if packet.kind == Kind::Syn && packet.sender == Side::Client {
            return self.syn(packet, (now, key));
        }
        if packet.is_tcp() && self.flows.packet(packet, now) {
            // Only who has proved that it exists makes a destination hot, in the published control.
            self.hot.hit(key);
            self.hot.admitted(key);
        }
        Verdict::Pass
    }

    fn syn(&mut self, packet: &Packet, (now, key): (Nanos, u64)) -> Verdict {
        self.offered += 1;
        self.watchers.iter_mut().for_each(|watcher| watcher.offered += 1);
        let syn = self.flows.syn(packet, key);
        if syn == Syn::Admitted {
            return Verdict::Pass;
        }
        let random = (self.random.next_u64() >> 32) as u32;
        self.aged.hit(key, random >> 16, now);
        let priority = u8::from(syn == Syn::Again);
        let event = Event { key, random, priority, ..Event::at(now.0) };
        let kind = match self.filters.get_mut(&key) {
            Some(filter) => {
                let copies = packet.flow.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15);
                filter.admit(self.action, &Event { key: copies, ..event }).kind
            }
            None => self.gate.admit(&self.hot, &event).kind,
        };
        let admitted = kind == VerdictKind::Admit;
        self.flows.evaluated(packet, key, admitted);
        if !admitted {
            *self.refused.entry(key).or_default() += 1;
            return if kind == VerdictKind::Reject { Verdict::Reset } else { Verdict::Drop };
        }
        self.admitted += 1;
        self.watchers.iter_mut().for_each(|watcher| watcher.admitted += 1);
        Verdict::Pass
    }

    /// Every [`TICK`].
    pub(super) fn tick(&mut self, now: Nanos) {
        self.ticks += 1;
        if self.ticks.is_multiple_of(FADE_TICKS) {
            self.hot.fade();
        }
        self.tick_ours(now);
        for index in 0..self.watchers.len() {
            if now >= self.watchers[index].next {
                self.interval(index, now);
            }
        }
    }

    fn tick_ours(&mut self, now: Nanos) {
        let (enforced, beside) = (self.control == Control::Fast, self.crowds.beside());
        let overdue = std::mem::take(&mut self.overdue);
        let seen = self.flows.look(now, |key| overdue.get(&key).copied());
        let mut limited = BTreeMap::new();
        for (key, (happened, in_flight, late)) in seen {
            let took = took(&happened.durations);
            let tick = tick(&happened, &took, (in_flight, late));
            let may = self.limited.contains_key(&key) || self.crowds.spares(key, beside).is_none();
            let limits = enforced && may;
            let said = self.crowds.tick(key, &tick, limits);
            self.note(Detector::Fast, (key, now), said.alarm);
            if said.alarm {
                self.say_why(key, now);
            }
            if let Some(after) = said.overdue_after {
                self.overdue.insert(key, after);
            }
            let connected = f64::from(happened.connected);
            let bounds = self.bounds.entry(key).or_default();
            if let Some(limit) = bounds.hold((TICK, connected), said.limit, LEAST) {
                limited.insert(key, bucket(limit.rate, limit.burst));
            }
        }
        if enforced {
            self.limit_own(limited);
        }
    }

    /// Neighbours may need a moment to show it, too.
    fn say_why(&mut self, key: u64, now: Nanos) {
        let why = self.crowds.heard().collect::<Neighbours<u64>>().why(&key);
        let young = |a: &&mut Alarm| {
            a.detector == Detector::Fast && a.key == key && now.since(a.at) <= WHY_FOR
        };
        if let Some(alarm) = self.alarms.iter_mut().rev().find(young)
            && alarm.why != Some(Why::Link)
        {
            alarm.why = Some(why);
        }
    }

    fn limit_own(&mut self, limited: BTreeMap<u64, BucketSpec>) {
        let mut in_force = BTreeMap::new();
        let mut limits = Vec::new();
        for (key, bucket) in limited {
            if limits.len() < CrowdGate::LIMITS {
                in_force.insert(key, bucket.rate.get());
                let action = match self.action {
                    CrowdAction::Reset => Action::Reject,
                    CrowdAction::Drop | CrowdAction::Abacus => Action::Drop,
                };
                let bucket = BucketSpec { action, ..bucket };
                self.filter(key, &bucket);
                limits.push(CrowdLimit { key, bucket });
            }
        }
        self.limited = in_force;
        self.filters.retain(|key, _| self.limited.contains_key(key));
        self.set(CrowdRule::Own, &limits);
    }

    /// Abacus has a filter for each limit.
    fn filter(&mut self, key: u64, bucket: &BucketSpec) {
        if self.action != CrowdAction::Abacus {
            return;
        }
        let (schedule, period) = (self.schedule.clone(), Nanos::SECOND);
        let window = schedule.last().copied().unwrap_or_default();
        let spec = AbacusExactSpec { bucket: bucket.clone(), schedule, window, period };
        let set = match self.filters.get_mut(&key) {
            Some(filter) => filter.set(&spec),
            None => CrowdFilter::new(&spec).map(|filter| drop(self.filters.insert(key, filter))),
        };
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// The rate of the strictest limit.
    pub(super) fn limit(&self) -> Option<f64> {
        let rates = self.limited.values().copied();
        rates.reduce(f64::min)
    }

    /// ARR of the last interval of the first published detector.
    pub(super) fn arr(&self) -> Option<f64> {
        self.watchers.first().and_then(|watcher| watcher.arr)
    }

    fn note(&mut self, detector: Detector, (key, now): (u64, Nanos), alarm: bool) {
        let open = |a: &&mut Alarm| a.detector == detector && a.key == key && a.until.is_none();
        match (self.alarms.iter_mut().rev().find(open), alarm) {
            (Some(open), false) => open.until = Some(now),
            (None, true) => {
                self.alarms.push(Alarm { detector, key, at: now, until: None, why: None });
            }
            _ => {}
        }
    }

    /// An interval of a published detector is over.
    fn interval(&mut self, index: usize, now: Nanos) {
        let interval = self.watchers[index].published.interval();
        let mut rates = self.flows.rates(now, interval);
        let arr = fastest(&mut rates, self.fastest);
        let watcher = &mut self.watchers[index];
        let s = interval.as_secs_f64();
        let seen = Interval {
            arr,
            admitted: watcher.admitted as f64 / s,
            offered: watcher.offered as f64 / s,
        };
        let said = watcher.published.tick(&seen);
        (watcher.admitted, watcher.offered, watcher.arr) = (0, 0, arr);
        watcher.next = now + interval;
        watcher.alarmed = said.alarm;
        self.note(Detector::Published(interval), (0, now), said.alarm);
        if index == 0 {
            self.limit_published(said.limit, now);
        }
    }

    fn limit_published(&mut self, limit: Option<PublishedLimit>, now: Nanos) {
        let rule = match self.control {
            Control::Published(_) => CrowdRule::All,
            Control::PublishedHot(_) => CrowdRule::Shared,
            _ => return,
        };
        let key = self.aged.top(now).unwrap_or(0);
        self.aged.fade();
        self.limited = limit.iter().map(|limit| (0, limit.rate)).collect();
        let limits: Vec<CrowdLimit> = limit
            .iter()
            .map(|limit| CrowdLimit { key, bucket: bucket(limit.rate, limit.burst) })
            .collect();
        self.set(rule, &limits);
    }
}

fn took(durations: &Durations) -> Vec<Took> {
    let mut all = Vec::new();
    for class in 0..Durations::CLASSES {
        let counts = durations.class(class).iter().enumerate().filter(|(_, count)| **count > 0);
        all.extend(counts.map(|(bucket, count)| Took { class, bucket, count: *count }));
    }
    all
}

fn tick<'a>(
    happened: &Happened,
    took: &'a [Took],
    (in_flight, overdue): (u32, u32),
) -> CrowdTick<'a> {
    CrowdTick {
        period: TICK,
        took,
        first_attempts: f64::from(happened.first_attempts),
        refused: f64::from(happened.refused),
        // Here nobody is spoofed, and who leaves without a response has completed nothing.
        tokens: 0.0,
        given_up: 0,
        connected: happened.connected,
        started: happened.started,
        completed: happened.completed,
        segments: happened.segments,
        in_flight,
        overdue,
        flooded: false,
    }
}
