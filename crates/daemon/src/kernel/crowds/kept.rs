// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crowds go on in the next process. One that starts in a crowd would take it for usual, and limit nothing.
//!
//! A destination is known once a handshake with it was completed. So crowds wait for theirs, for a minute at most.

use super::{Alarm, FlashCrowds, Scale, TICK, Watched};
use crate::state::{KeptCrowd, LEARNED_AGE_MAX};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tidegate_control::crowd::Why;
use tidegate_model::router::DestinationCounts;
use tidegate_units::Nanos;

/// Crowds wait for so long.
const WAIT: Nanos = Nanos::from_secs(60);
/// Most crowds that are kept, or taken: first those with a limit, and of these those with the most demand.
pub(super) const KEPT_MAX: usize = 16;

/// Crowds of the process before, and when they were taken.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    crowds: BTreeMap<SocketAddr, KeptCrowd>,
    since: Option<Nanos>,
    /// When it was looked for their destinations, and how many there were.
    looked: Nanos,
    known: usize,
}

impl Waiting {
    fn age(&self, now: Nanos) -> Nanos {
        self.since.map_or(Nanos::ZERO, |since| now.since(since))
    }
}

impl FlashCrowds {
    /// What the next process needs of the crowds that are there.
    pub(in crate::kernel) fn kept(&self) -> Vec<KeptCrowd> {
        let now = self.looked.map_or(Nanos::ZERO, |(then, _)| then);
        let alarmed = self.watched.iter().filter(|(_, one)| one.alarm.is_some());
        let mut order: Vec<_> = alarmed
            .map(|(place, one)| {
                let demand = self.demand(*place) as u64;
                (Reverse((one.limited.rate().is_some(), demand)), *place, one)
            })
            .collect();
        order.sort_by_key(|(order, place, _)| (*order, *place));
        let own = order.into_iter().take(KEPT_MAX).filter_map(|(_, place, one)| {
            let detector = self.detectors.kept(place as u64)?;
            one.kept(now, (self.sample, detector))
        });
        // Those that wait themselves are carried on once: one whose use ends a process does so twice at most.
        let age = self.waiting.age(now);
        let waiting = self.waiting.crowds.values().filter(|crowd| !crowd.carried).cloned();
        let waiting =
            waiting.map(|crowd| KeptCrowd { age: crowd.age + age, carried: true, ..crowd });
        own.chain(waiting).take(KEPT_MAX).collect()
    }

    /// Crowds of the process before, written so long ago.
    pub(in crate::kernel) fn restore(&mut self, kept: Vec<KeptCrowd>, age: Nanos) {
        let aged = kept.into_iter().map(|crowd| KeptCrowd { age: crowd.age + age, ..crowd });
        let young = aged.filter(|crowd| crowd.age <= LEARNED_AGE_MAX).take(KEPT_MAX);
        let crowds = young.map(|crowd| (crowd.destination, crowd)).collect();
        self.waiting = Waiting { crowds, ..Waiting::default() };
    }

    /// Whether the destinations, of which there are so many, are to be looked at now for those that crowds wait for.
    pub(in crate::kernel) fn waits(&mut self, known: usize, now: Nanos) -> bool {
        if now.since(*self.waiting.since.get_or_insert(now)) > WAIT {
            self.waiting.crowds.clear();
        }
        let Waiting { crowds, looked, known: before, .. } = &mut self.waiting;
        let due = !crowds.is_empty() && known > *before && now.since(*looked) >= TICK;
        if due && self.sample > 0 {
            (*looked, *before) = (now, known);
            return true;
        }
        false
    }

    /// Whether a crowd waits for this destination.
    pub(in crate::kernel) fn waits_for(&self, destination: &SocketAddr) -> bool {
        self.waiting.crowds.contains_key(destination)
    }

    /// A destination that is watched from now on goes on with its crowd, if it had one.
    pub(super) fn go_on(&mut self, place: usize, one: &mut Watched, now: Nanos) {
        let Some(kept) = self.waiting.crowds.remove(&one.address) else { return };
        let age = kept.age + self.waiting.age(now);
        let same = kept.sample == self.sample;
        let taken = same.then(|| self.detectors.restore(place as u64, &kept.detector, age));
        match taken.flatten() {
            Some(alarm) => {
                let scale =
                    Scale { period: TICK, sample: self.sample, enforced: false, flooded: false };
                self.sharing.restore(&one.sight(place, &scale, now), &self.detectors);
                one.go_on(kept, (alarm, age, now));
            }
            None => {
                tracing::info!(destination = %one.address, same, "its flash crowd was not taken over")
            }
        }
    }
}

impl Watched {
    /// SYNs that were refused in its crowd, and would have been.
    pub(super) const fn refused(&self, alarm: &Alarm) -> (u64, u64) {
        let (DestinationCounts { refused, would_refuse, .. }, then) = (self.counts, alarm.before);
        let new =
            (refused.saturating_sub(then.refused), would_refuse.saturating_sub(then.would_refuse));
        (new.0.saturating_add(alarm.earlier.0), new.1.saturating_add(alarm.earlier.1))
    }

    fn kept(&self, now: Nanos, (sample, detector): (u32, serde_json::Value)) -> Option<KeptCrowd> {
        let alarm = self.alarm.as_ref()?;
        let (refused, would_refuse) = self.refused(alarm);
        let had = (self.had_limit > Nanos::ZERO).then(|| now.since(self.had_limit));
        Some(KeptCrowd {
            destination: self.address,
            lasted: now.since(alarm.since),
            age: Nanos::ZERO,
            carried: false,
            why: alarm.why.text().to_owned(),
            told: alarm.told,
            limited: self.limited.rate().is_some(),
            had_limit: had,
            refused,
            would_refuse,
            sample,
            detector,
        })
    }

    /// What was usual is known; with an alarm its crowd is there, too.
    fn go_on(&mut self, kept: KeptCrowd, (alarm, age, now): (bool, Nanos, Nanos)) {
        self.learns_until = now;
        let ago = |span: Nanos| Nanos(now.0.saturating_sub(span.0));
        self.had_limit = kept.had_limit.map_or(Nanos::ZERO, |had| ago(had + age));
        if !alarm {
            return;
        }
        self.told = kept.told.then_some(now);
        let (since, before) = (ago(kept.lasted + age), self.counts);
        tracing::info!(destination = %self.address, "router: its flash crowd goes on");
        let why = Why::of_text(&kept.why).unwrap_or(Why::Unknown);
        let earlier = (kept.refused, kept.would_refuse);
        self.alarm =
            Some(Alarm { since, last: now, why, slow: 0.0, told: kept.told, before, earlier });
        if kept.limited {
            self.limited.resume();
        }
    }
}
