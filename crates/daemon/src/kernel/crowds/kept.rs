// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crowds go on in the next process. One that starts in a crowd would take it for usual, and limit nothing.
//!
//! A destination is known once a handshake with it was completed. So crowds wait for theirs, for a minute at most.

use super::{Alarm, FlashCrowds, TICK, Watched};
use crate::state::KeptCrowd;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tidegate_control::crowd::Why;
use tidegate_units::Nanos;

/// Crowds wait for so long.
const WAIT: Nanos = Nanos::from_secs(60);
/// Most crowds that are kept, first those with a limit.
const KEPT_MAX: usize = 16;

/// Crowds of the process before, and when they were kept.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    crowds: BTreeMap<SocketAddr, KeptCrowd>,
    /// How old they were at the start, and when that was.
    age: Nanos,
    since: Option<Nanos>,
    looked: Nanos,
}

impl Waiting {
    fn age(&self, now: Nanos) -> Nanos {
        self.age + self.since.map_or(Nanos::ZERO, |since| now.since(since))
    }
}

impl FlashCrowds {
    /// What the next process needs of the crowds that are there.
    pub(in crate::kernel) fn kept(&self) -> Vec<KeptCrowd> {
        let now = self.looked.map_or(Nanos::ZERO, |(then, _)| then);
        let of = |(place, one): (&usize, &Watched)| {
            let alarm = one.alarm.as_ref()?;
            Some(KeptCrowd {
                destination: one.address,
                lasted: now.since(alarm.since),
                why: alarm.why.text().to_owned(),
                told: alarm.told,
                limited: one.limited.rate().is_some(),
                sample: self.sample,
                detector: self.detectors.kept(*place as u64)?,
            })
        };
        let mut kept: Vec<KeptCrowd> = self.watched.iter().filter_map(of).collect();
        // Those that wait themselves.
        let age = self.waiting.age(now);
        let waiting = self.waiting.crowds.values().cloned();
        kept.extend(waiting.map(|crowd| KeptCrowd { lasted: crowd.lasted + age, ..crowd }));
        kept.sort_by_key(|crowd| !crowd.limited);
        kept.truncate(KEPT_MAX);
        kept
    }

    /// Crowds of the process before, kept so long ago.
    pub(in crate::kernel) fn restore(&mut self, kept: Vec<KeptCrowd>, age: Nanos) {
        let crowds = kept.into_iter().map(|crowd| (crowd.destination, crowd)).collect();
        self.waiting = Waiting { crowds, age, since: None, looked: Nanos::ZERO };
    }

    /// Whether destinations are to be looked for now that crowds wait for.
    pub(in crate::kernel) fn waits(&mut self, now: Nanos) -> bool {
        if now.since(*self.waiting.since.get_or_insert(now)) > WAIT {
            self.waiting.crowds.clear();
        }
        let waits = !self.waiting.crowds.is_empty();
        let due = waits && now.since(self.waiting.looked) >= TICK;
        self.waiting.looked = if due { now } else { self.waiting.looked };
        due
    }

    /// Whether a crowd waits for this destination.
    pub(in crate::kernel) fn waits_for(&self, destination: &SocketAddr) -> bool {
        self.waiting.crowds.contains_key(destination)
    }

    /// A destination that is watched from now on goes on with its crowd, if it had one.
    pub(super) fn go_on(&mut self, place: usize, one: &mut Watched, now: Nanos) {
        let Some(kept) = self.waiting.crowds.remove(&one.address) else { return };
        let age = self.waiting.age(now);
        let Some(why) = Why::of_text(&kept.why).filter(|_| kept.sample == self.sample) else {
            return;
        };
        let Some(alarm) = self.detectors.restore(place as u64, &kept.detector, age) else {
            tracing::debug!(destination = %one.address, "what was kept of its crowd is of no use");
            return;
        };
        one.learns_until = now;
        if !alarm {
            return;
        }
        let lasted = kept.lasted + age;
        tracing::info!(destination = %one.address, %lasted, "router: its flash crowd goes on");
        let since = Nanos(now.0.saturating_sub(lasted.0));
        let (told, before) = (kept.told, one.counts);
        one.alarm = Some(Alarm { since, last: now, why, slow: 0.0, told, before });
        one.told = told.then_some(now);
        one.had_limit = if kept.limited { now } else { Nanos::ZERO };
    }
}
