// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What other routers told of destinations, and how much of it still counts.
//!
//! A report says what was counted within a second. Until the next one comes the same is taken to go on: a report that is
//! lost makes nothing smaller. A router that is silent for longer is lost: its counts and its demand are kept as they
//! were, and then fade together, so that what they were divided by stays in proportion.

use super::crowd::CrowdTick;
use super::slow::Took;
use std::collections::{BTreeMap, VecDeque};
use tidegate_model::sharing::{
    Destination, DestinationReport, RouterReports, SHARED_BUCKETS, SHARED_CLASSES, SHARED_MAX,
    SharingState,
};
use tidegate_units::Nanos;

/// What was told so long ago is still so: a few reports may be lost.
const FRESH: Nanos = Nanos::from_secs(4);
/// A router that is silent is kept as it was for so long, and is forgotten after the second. In between it counts less
/// and less.
const KEPT_FOR: Nanos = Nanos::from_secs(10);
const GONE_AFTER: Nanos = Nanos::from_secs(60);
/// A router that was not heard before brings what was there, and no more demand.
const NEW_FOR: Nanos = Nanos::from_secs(10);
/// Demand that others may not have heard of yet does not count for oneself, and what they told in this time does not
/// count less: longer than reports take.
const RECENT: Nanos = Nanos::from_secs(6);
/// So many times as much may be seen at once.
const TIMES: (f64, f64) = (0.01, 100.0);
/// Most values in that time.
const RECENT_MAX: usize = 64;

/// Values of the last seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(VecDeque<(Nanos, f64)>);

impl Recent {
    pub(super) fn put(&mut self, now: Nanos, value: f64) {
        self.0.push_back((now, value));
        while self.0.len() > RECENT_MAX {
            self.0.pop_front();
        }
        self.trim(now);
    }

    /// The last one stays, however old.
    fn trim(&mut self, now: Nanos) {
        while self.0.len() > 1 && self.0.front().is_some_and(|(at, _)| now.since(*at) > RECENT) {
            self.0.pop_front();
        }
    }

    pub(super) fn least(&self) -> f64 {
        self.0.iter().map(|(_, value)| *value).reduce(f64::min).unwrap_or_default()
    }

    pub(super) fn most(&self) -> f64 {
        self.0.iter().map(|(_, value)| *value).fold(0.0, f64::max)
    }
}

/// Parts of counts that have not made a whole one yet.
#[derive(Clone, Debug, Default)]
struct Rests {
    counts: [f64; 4],
    took: Vec<f32>,
}

/// Counts so much more; the whole ones of it.
fn whole(rest: &mut f64, more: f64) -> u32 {
    *rest += more;
    let whole = rest.floor().max(0.0);
    *rest -= whole;
    whole as u32
}

/// What a router told of a destination.
#[derive(Clone, Debug)]
struct Heard {
    at: Nanos,
    report: DestinationReport,
    rests: Rests,
    demand: Recent,
    /// How much of the router was there at the last tick.
    there: f64,
}

/// What counts of it now.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// How much of the router is there: 1, and less once it is lost.
    there: f64,
    /// How much of what it told counts.
    weight: f64,
    /// It is heard now.
    fresh: bool,
}

/// A router.
#[derive(Clone, Debug, Default)]
struct Other {
    /// When it was heard last, and since when it is.
    last: Option<Nanos>,
    since: Nanos,
    destinations: BTreeMap<Destination, Heard>,
}

impl Other {
    fn age(&self, now: Nanos) -> Nanos {
        self.last.map_or(Nanos(u64::MAX), |last| now.since(last))
    }

    fn there(&self, now: Nanos) -> f64 {
        let silent = self.age(now);
        if silent <= KEPT_FOR {
            return 1.0;
        }
        let left = GONE_AFTER.since(silent).as_secs_f64();
        left / (GONE_AFTER - KEPT_FOR).as_secs_f64()
    }

    fn counts(&self, heard: &Heard, now: Nanos) -> Counts {
        let there = self.there(now);
        let fresh = now.since(heard.at) <= FRESH;
        // It tells of others, and no more of this one: nothing comes there.
        let over = !fresh && self.age(now) <= FRESH;
        Counts { there, weight: if over { 0.0 } else { there }, fresh }
    }

    fn hear(&mut self, now: Nanos, (at, reports): (Nanos, Vec<DestinationReport>)) {
        if self.age(now) >= GONE_AFTER {
            self.since = now;
            self.destinations.clear();
        }
        self.last = self.last.max(Some(at));
        for report in reports {
            let demand = report.demand_milli as f64 / 1e3;
            let is_new = now.since(self.since) < NEW_FOR;
            let known = self.destinations.contains_key(&report.destination);
            if !known && !self.has_room(now) {
                continue;
            }
            let new = || Heard {
                at,
                report: report.clone(),
                rests: Rests::default(),
                demand: Recent::default(),
                there: if is_new { 0.0 } else { 1.0 },
            };
            let heard = self.destinations.entry(report.destination).or_insert_with(new);
            heard.demand.put(now, demand);
            (heard.at, heard.report) = (heard.at.max(at), report);
        }
    }

    /// Whether there is a place for another destination: that of which nothing was told for longest gives its own, if that
    /// is not fresh.
    fn has_room(&mut self, now: Nanos) -> bool {
        if self.destinations.len() < SHARED_MAX {
            return true;
        }
        let oldest = self.destinations.iter().min_by_key(|(_, heard)| heard.at);
        let old = oldest.filter(|(_, heard)| now.since(heard.at) > FRESH).map(|(at, _)| *at);
        old.is_some_and(|old| self.destinations.remove(&old).is_some())
    }

    /// What is not told of any more gives its place away.
    fn forget(&mut self, now: Nanos) {
        let gone = self.age(now) >= GONE_AFTER;
        self.destinations.retain(|_, heard| !gone && now.since(heard.at) < GONE_AFTER);
    }
}

/// What all other routers see of a destination, as part of a tick.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    took: Vec<Took>,
    first_attempts: f64,
    refused: f64,
    /// Connected, started, completed, given up.
    counts: [u32; 4],
    segments: [f64; 2],
    in_flight: f64,
    overdue: f64,
    flooded: bool,
    /// So many times as much is seen as at the last tick, because routers came or went.
    pub(super) times: f64,
    /// Demand of each that counts.
    pub(super) demands: Vec<f64>,
    /// Somebody else's clients wait as well, or too few say.
    pub(super) is_common: bool,
}

impl Seen {
    /// One tick of what all routers see.
    pub(super) fn with<'a>(&self, own: &CrowdTick<'_>, took: &'a mut Vec<Took>) -> CrowdTick<'a> {
        took.extend_from_slice(own.took);
        took.extend_from_slice(&self.took);
        let [connected, started, completed, given_up] = self.counts;
        let segments = |own: u32, others: f64| own.saturating_add(others as u32);
        CrowdTick {
            period: own.period,
            took,
            first_attempts: own.first_attempts + self.first_attempts,
            refused: own.refused + self.refused,
            // Each router looks after what its own tokens lead to.
            tokens: 0.0,
            connected: own.connected.saturating_add(connected),
            started: own.started.saturating_add(started),
            completed: own.completed.saturating_add(completed),
            given_up: own.given_up.saturating_add(given_up),
            segments: (
                segments(own.segments.0, self.segments[0]),
                segments(own.segments.1, self.segments[1]),
            ),
            in_flight: own.in_flight.saturating_add(self.in_flight.round() as u32),
            overdue: own.overdue.saturating_add(self.overdue.round() as u32),
            flooded: own.flooded || self.flooded,
        }
    }
}

/// All other routers, by their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Others(BTreeMap<String, Other>);

impl Others {
    pub(super) fn follow(&mut self, routers: &[String]) {
        self.0.retain(|name, _| routers.contains(name));
        for name in routers {
            self.0.entry(name.clone()).or_default();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// What of a router that is no other one is not heard.
    pub(super) fn hear(&mut self, now: Nanos, told: RouterReports) {
        if let Some(other) = self.0.get_mut(&told.router) {
            other.hear(now, (told.at, told.reports));
        }
    }

    pub(super) fn forget(&mut self, now: Nanos) {
        self.0.values_mut().for_each(|other| other.forget(now));
    }

    /// Whether somebody tells of a destination now.
    pub(super) fn tell_of(&self, destination: &Destination, now: Nanos) -> bool {
        let heard = |other: &Other| other.destinations.get(destination).map(|heard| heard.at);
        self.0.values().filter_map(heard).any(|at| now.since(at) <= FRESH)
    }

    /// What they see in a tick of this length of a destination, one connection in `sample` of which is followed here.
    /// `own`: demand here.
    pub(super) fn see(
        &mut self,
        (now, period): (Nanos, Nanos),
        destination: &Destination,
        (sample, own): (u32, f64),
    ) -> Seen {
        let mut seen = Seen::default();
        let (mut before, mut after) = (own, own);
        for other in self.0.values_mut() {
            let Some(heard) = other.destinations.get(destination) else { continue };
            let counts = other.counts(heard, now);
            let Some(heard) = other.destinations.get_mut(destination) else { continue };
            let demand = heard.of_sample(heard.report.demand_milli as f64 / 1e3, sample);
            before += heard.there * demand;
            after += counts.there * demand;
            heard.there = counts.there;
            if counts.weight > 0.0 {
                heard.add(&mut seen, counts, (now, period, sample));
            }
        }
        let known = before > 0.0 && after > 0.0;
        let (least, most) = TIMES;
        seen.times = if known { (after / before).clamp(least, most) } else { 1.0 };
        seen
    }

    pub(super) fn states(&self, now: Nanos) -> Vec<SharingState> {
        let state = |(name, other): (&String, &Other)| {
            let told = other.destinations.values().filter(|heard| now.since(heard.at) <= FRESH);
            let crowds = told.clone().filter(|heard| heard.report.crowd_ms.is_some()).count();
            SharingState {
                router: name.clone(),
                age: other.last.map(|last| now.since(last)),
                destinations: told.count() as u64,
                crowds: crowds as u64,
            }
        };
        self.0.iter().map(state).collect()
    }
}

impl Heard {
    /// What is told, where one connection in `sample` is followed here.
    fn of_sample(&self, told: f64, sample: u32) -> f64 {
        told * f64::from(self.report.sample) / f64::from(sample.max(1))
    }

    fn add(&mut self, seen: &mut Seen, counts: Counts, (now, period, sample): (Nanos, Nanos, u32)) {
        let report = &self.report;
        let level = self.of_sample(counts.weight, sample);
        let part = level * period.as_secs_f64() / report.span().as_secs_f64().max(0.1);
        seen.first_attempts += part * report.first_milli as f64 / 1e3;
        let each = [report.connected, report.started, report.completed, report.given_up];
        for ((all, rest), count) in seen.counts.iter_mut().zip(&mut self.rests.counts).zip(each) {
            *all = all.saturating_add(whole(rest, part * f64::from(count)));
        }
        for (all, bytes) in seen.segments.iter_mut().zip([report.sent_bytes, report.again_bytes]) {
            *all += part * bytes as f64;
        }
        seen.in_flight += level * f64::from(report.in_flight);
        self.demand.trim(now);
        seen.demands.push(level * self.demand.most());
        seen.is_common |= !report.fast;
        if !counts.fresh {
            return;
        }
        seen.refused += part * report.refused_milli as f64 / 1e3;
        seen.overdue += level * f64::from(report.overdue);
        seen.flooded |= report.flooded;
        let places = usize::from(SHARED_CLASSES * SHARED_BUCKETS);
        self.rests.took.resize(places, 0.0);
        for (place, count) in &report.took {
            let Some(rest) = self.rests.took.get_mut(usize::from(*place)) else { continue };
            let mut sum = f64::from(*rest);
            let count = whole(&mut sum, part * f64::from(*count));
            *rest = sum as f32;
            if count > 0 {
                let (class, bucket) = (place / SHARED_BUCKETS, place % SHARED_BUCKETS);
                seen.took.push(Took { class: class.into(), bucket: bucket.into(), count });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Nanos = Nanos::from_millis(500);

    fn place() -> Destination {
        Destination::from(([192, 0, 2, 1], 80))
    }

    /// Seven exchanges a second, one of them of a place of its own.
    fn told(at: Nanos) -> RouterReports {
        let empty = DestinationReport::empty(place(), 1000, 1);
        let counted = DestinationReport { connected: 7, started: 7, completed: 7, ..empty };
        let report = DestinationReport {
            in_flight: 4,
            demand_milli: 7000,
            took: vec![(70, 1), (71, 6)],
            ..counted
        };
        RouterReports { router: "r2".into(), at, reports: vec![report] }
    }

    fn others() -> Others {
        let mut others = Others::default();
        others.follow(&["r2".into()]);
        others
    }

    fn see(others: &mut Others, now: Nanos) -> Seen {
        others.see((now, HALF), &place(), (1, 7.0))
    }

    /// Also counts that are no whole ones in a tick add up, and so do those of reports that are lost.
    #[test]
    fn what_is_lost_goes_on_and_all_of_it_is_counted() {
        for every in [2, 6] {
            let (mut others, mut now) = (others(), Nanos::from_secs(100));
            let (mut completed, mut took) = (0, [0; 2]);
            for tick in 0..120 {
                if tick % every == 0 {
                    others.hear(now, told(now));
                }
                now += HALF;
                let seen = see(&mut others, now);
                completed += seen.counts[2];
                seen.took.iter().for_each(|one| took[one.bucket - 6] += one.count);
                assert_eq!((seen.in_flight, &seen.demands[..]), (4.0, &[7.0][..]));
            }
            assert!((419..=420).contains(&completed), "{completed}");
            assert!((59..=60).contains(&took[0]) && (359..=360).contains(&took[1]), "{took:?}");
        }
    }

    /// A router that is lost stays as it was, and then fades with its demand; that much less is seen.
    #[test]
    fn a_router_that_is_lost_fades() {
        let (mut others, begun) = (others(), Nanos::from_secs(100));
        others.hear(begun, told(begun));
        assert_eq!(see(&mut others, begun).times, 2.0, "as much again is seen");
        let mut times = 1.0;
        for (s, weight) in [(4, 1.0), (10, 1.0), (35, 0.5), (55, 0.1), (60, 0.0)] {
            let seen = see(&mut others, begun + Nanos::from_secs(s));
            let demand = seen.demands.first().copied().unwrap_or_default();
            assert!((demand - 7.0 * weight).abs() < 1e-9, "{s}: {demand}");
            assert_eq!(seen.took.is_empty(), s > 4, "{s}");
            times *= seen.times;
            assert!((times - (1.0 + weight) / 2.0).abs() < 1e-9, "{s}: {times}");
        }
        others.forget(begun + Nanos::from_secs(60));
        assert_eq!(see(&mut others, begun + Nanos::from_secs(61)).times, 1.0);
    }

    /// Nothing comes there any more: no router was lost, and nobody has to wait.
    #[test]
    fn a_destination_of_which_nobody_tells_any_more_is_over() {
        let (mut others, mut now) = (others(), Nanos::from_secs(100));
        others.hear(now, told(now));
        for _ in 0..5 {
            now += Nanos::SECOND;
            others.hear(now, RouterReports { reports: Vec::new(), ..told(now) });
        }
        let seen = see(&mut others, now);
        assert!(seen.demands.is_empty() && seen.in_flight == 0.0, "{seen:?}");
        // It comes again: that is more demand, and no router that is new.
        now += NEW_FOR;
        others.hear(now, told(now));
        let seen = see(&mut others, now);
        assert_eq!((seen.times, seen.demands.len()), (1.0, 1));
    }

    #[test]
    fn samples_are_made_equal() {
        let (mut others, now) = (others(), Nanos::from_secs(100));
        others.hear(now, told(now));
        let seen = others.see((now, Nanos::SECOND), &place(), (7, 7.0));
        assert_eq!((seen.counts[2], seen.in_flight), (1, 4.0 / 7.0));
        assert_eq!((&seen.demands[..], seen.times), (&[1.0][..], 8.0 / 7.0), "and demand");
    }

    #[test]
    fn what_is_told_of_no_more_gives_its_place_to_what_is_new() {
        let (mut others, mut now) = (others(), Nanos::from_secs(100));
        for port in 1..=SHARED_MAX as u16 {
            let mut one = told(now);
            one.reports[0].destination.set_port(port);
            others.hear(now, one);
        }
        others.hear(now, told(now));
        assert!(!others.tell_of(&place(), now), "all of them are fresh");
        now += FRESH + Nanos::SECOND;
        others.hear(now, told(now));
        assert!(others.tell_of(&place(), now));
    }

    #[test]
    fn nobody_is_heard_who_is_no_other_router_and_none_fills_the_memory() {
        let (mut others, now) = (others(), Nanos::from_secs(100));
        others.hear(now, RouterReports { router: "r3".into(), ..told(now) });
        assert!(!others.tell_of(&place(), now));
        for port in 0..1000 {
            let mut one = told(now);
            one.reports[0].destination.set_port(port);
            others.hear(now, one);
        }
        assert_eq!(others.states(now)[0].destinations, SHARED_MAX as u64);
    }
}
