// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flash crowds at the destinations behind a router: our detector (`tidegate_control::crowd`), on what the
//! kernel measures. It limits nothing: it says when a crowd begins, why it is slow, and when it is over.
//!
//! Demand is exchanges that begin. A SYN may be spoofed, and a connection may be opened to be idle: neither
//! moves it.

use std::collections::{BTreeMap, VecDeque};
use tidegate_bpf::{ROUTER_SWEEPS, RouterTimes};
use tidegate_control::crowd::{CrowdSaid, CrowdTick, Crowds, Took};
use tidegate_model::record::What;
use tidegate_model::router::{CrowdState, DestinationCounts};
use tidegate_units::Nanos;

/// How often the detectors look. Those of the simulator do as often.
const TICK: Nanos = Nanos::from_millis(500);
/// Most destinations that are watched: each takes 9 KiB, and is read twice a second.
const WATCHED_MAX: usize = 1024;
/// Where there is no room, one to which nothing came for so long gives its place.
const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(600);
/// Neighbours of few exchanges show later than the destination itself that the link is slow, too.
const WHY_FOR: Nanos = Nanos::from_secs(10);
/// No more crowds begin as events within this time: a slow link has one at each destination behind it, and the
/// history has room for 1,000 events. The others are in the status and in the metrics.
const EVENTS_MAX: usize = 16;
const EVENTS_WITHIN: Nanos = Nanos::from_secs(60);

/// What the kernel counts of a destination, by its place.
pub(super) trait Counted {
    fn counts(&self, place: usize) -> Option<DestinationCounts>;
    fn times(&self, place: usize) -> Option<RouterTimes>;
    /// How often sweeps saw an exchange that takes too long.
    fn overdue(&self, place: usize) -> Option<u64>;
    /// From how long on it does.
    fn set_overdue_after(&self, place: usize, after: Nanos) -> Result<(), tidegate_bpf::Error>;
}

impl Counted for tidegate_bpf::Router {
    fn counts(&self, place: usize) -> Option<DestinationCounts> {
        self.counts(place)
    }

    fn times(&self, place: usize) -> Option<RouterTimes> {
        self.times(place)
    }

    fn overdue(&self, place: usize) -> Option<u64> {
        self.overdue(place)
    }

    fn set_overdue_after(&self, place: usize, after: Nanos) -> Result<(), tidegate_bpf::Error> {
        self.set_overdue_after(place, after)
    }
}

/// A crowd that is there.
#[derive(Debug)]
struct Alarm {
    since: Nanos,
    why: &'static str,
    slow: f64,
    /// Its begin is an event.
    told: bool,
}

/// A destination that is watched.
#[derive(Debug)]
struct Watched {
    address: String,
    counts: DestinationCounts,
    times: RouterTimes,
    /// What [`Counted::overdue`] said after each sweep of a whole round, and before it.
    overdue: VecDeque<u64>,
    overdue_after: Nanos,
    /// When something came last.
    came: Nanos,
    alarm: Option<Alarm>,
}

/// The detectors of a router.
#[derive(Debug, Default)]
pub(super) struct FlashCrowds {
    detectors: Crowds,
    watched: BTreeMap<usize, Watched>,
    /// When they looked last.
    looked: Option<Nanos>,
    began: u64,
    lasted: Nanos,
    events: Vec<What>,
    /// When the last crowds began that are events.
    told: VecDeque<Nanos>,
}

impl FlashCrowds {
    /// Watches a destination to which something comes, from now on; one that is watched stays so.
    pub(super) fn watch(
        &mut self,
        counted: &impl Counted,
        (place, address): (usize, String),
        now: Nanos,
    ) {
        if self.watched.contains_key(&place) || !self.has_room(now) {
            return;
        }
        let (counts, times) = (counted.counts(place), counted.times(place));
        let Some((counts, times)) = counts.zip(times) else { return };
        let one = Watched {
            address,
            counts,
            times,
            overdue: VecDeque::new(),
            overdue_after: Nanos::ZERO,
            came: now,
            alarm: None,
        };
        self.watched.insert(place, one);
    }

    /// Whether another destination can be watched. Makes room where one is watched for nothing.
    fn has_room(&mut self, now: Nanos) -> bool {
        if self.watched.len() < WATCHED_MAX {
            return true;
        }
        let forgotten =
            |one: &Watched| one.alarm.is_none() && now.since(one.came) >= FORGOTTEN_AFTER;
        let Some(place) = self.watched.iter().find(|(_, one)| forgotten(one)).map(|(at, _)| *at)
        else {
            return false;
        };
        self.watched.remove(&place);
        self.detectors.forget(place as u64);
        true
    }

    /// After each sweep.
    ///
    /// # Errors
    /// When the kernel cannot be told what takes too long.
    pub(super) fn swept(
        &mut self,
        counted: &impl Counted,
        now: Nanos,
        sample: u32,
    ) -> Result<(), tidegate_bpf::Error> {
        for (place, one) in &mut self.watched {
            one.overdue.push_back(counted.overdue(*place).unwrap_or_default());
            if one.overdue.len() > ROUTER_SWEEPS as usize + 1 {
                one.overdue.pop_front();
            }
        }
        let period = now.since(*self.looked.get_or_insert(now));
        if period < TICK {
            return Ok(());
        }
        self.looked = Some(now);
        let places: Vec<usize> = self.watched.keys().copied().collect();
        places
            .into_iter()
            .try_for_each(|place| self.tick(counted, place, (now, period, sample)))?;
        let crowds = self.watched.values().filter(|one| one.alarm.is_some()).count() as u64;
        self.lasted = self.lasted + Nanos(period.0.saturating_mul(crowds));
        Ok(())
    }

    fn tick(
        &mut self,
        counted: &impl Counted,
        place: usize,
        (now, period, sample): (Nanos, Nanos, u32),
    ) -> Result<(), tidegate_bpf::Error> {
        let (Some(one), Some(counts)) = (self.watched.get_mut(&place), counted.counts(place))
        else {
            return Ok(());
        };
        let new = counts.with(one.counts, u64::saturating_sub);
        let took = if new.completed + new.resumed > 0 {
            one.took(counted.times(place))
        } else {
            Vec::new()
        };
        if new.begun > 0 {
            one.came = now;
        }
        one.counts = counts;
        let said =
            self.detectors.tick(place as u64, &one.shown(&new, &took, (period, sample)), false);
        let after = said.overdue_after.unwrap_or_default();
        if after != one.overdue_after {
            counted.set_overdue_after(place, after)?;
            one.overdue_after = after;
        }
        self.note(place, &said, now);
        Ok(())
    }

    /// An alarm begins, goes on, or is over.
    fn note(&mut self, place: usize, said: &CrowdSaid, now: Nanos) {
        let Some(one) = self.watched.get_mut(&place) else { return };
        let why = |crowds: &Crowds| crowds.why(place as u64).text();
        match (&mut one.alarm, said.alarm) {
            (None, true) => {
                let (why, slow) = (why(&self.detectors), said.slow);
                self.began += 1;
                self.told.retain(|then| now.since(*then) < EVENTS_WITHIN);
                let told = self.told.len() < EVENTS_MAX;
                one.alarm = Some(Alarm { since: now, why, slow, told });
                if told {
                    self.told.push_back(now);
                    let (destination, why) = (one.address.clone(), why.to_owned());
                    let demand = self.detectors.demand(place as u64);
                    self.events.push(What::CrowdBegan { destination, why, demand, slow });
                }
            }
            (Some(alarm), true) => {
                alarm.slow = said.slow;
                if now.since(alarm.since) <= WHY_FOR {
                    alarm.why = why(&self.detectors);
                }
            }
            (Some(alarm), false) => {
                if alarm.told {
                    let (why, lasted) = (alarm.why.to_owned(), now.since(alarm.since));
                    let destination = one.address.clone();
                    self.events.push(What::CrowdEnded { destination, why, lasted });
                }
                one.alarm = None;
            }
            (None, false) => {}
        }
    }

    /// Crowds that are there now, by place.
    pub(super) fn now(&self, now: Nanos) -> Vec<(usize, CrowdState)> {
        let of = |(place, one): (&usize, &Watched)| {
            let alarm = one.alarm.as_ref()?;
            let state = CrowdState {
                destination: one.address.clone(),
                lasts: now.since(alarm.since),
                why: alarm.why.to_owned(),
                demand: self.detectors.demand(*place as u64),
                slow: alarm.slow,
            };
            Some((*place, state))
        };
        self.watched.iter().filter_map(of).collect()
    }

    /// How many there were.
    pub(super) const fn began(&self) -> u64 {
        self.began
    }

    /// How long they were, those of all destinations added up.
    pub(super) const fn lasted(&self) -> Nanos {
        self.lasted
    }

    /// What began and ended since the last question.
    pub(super) fn events(&mut self) -> Vec<What> {
        std::mem::take(&mut self.events)
    }
}

impl Watched {
    /// What was completed since the last look.
    fn took(&mut self, now: Option<RouterTimes>) -> Vec<Took> {
        let Some(now) = now else { return Vec::new() };
        let new = now.took_since(&self.times);
        self.times = now;
        new.into_iter().map(|(class, bucket, count)| Took { class, bucket, count }).collect()
    }

    /// A tick of the detector. Counts of connections are as if all were followed; durations, and what is
    /// overdue beside them, are those of the sample.
    fn shown<'a>(
        &self,
        new: &DestinationCounts,
        took: &'a [Took],
        (period, sample): (Nanos, u32),
    ) -> CrowdTick<'a> {
        let of = |n: u64| u32::try_from(n.saturating_mul(sample.into())).unwrap_or(u32::MAX);
        let (started, connected) = (of(new.begun), of(new.admitted));
        let round = self.overdue.front().zip(self.overdue.back());
        let overdue = round.map_or(0, |(first, last)| last.wrapping_sub(*first));
        CrowdTick {
            period,
            took,
            // So the demand is what was started.
            first_attempts: started.min(connected),
            connected,
            started,
            completed: of(new.responses()),
            in_flight: of(self.counts.in_flight()),
            overdue: u32::try_from(overdue).unwrap_or(u32::MAX),
            ..CrowdTick::default()
        }
    }
}

#[cfg(test)]
#[path = "crowds_tests.rs"]
mod tests;
