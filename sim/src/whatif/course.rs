// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is observed of one world: by period, by class, by episode; all of it bounded.

use super::bins::{Bin, Bins};
use super::episodes::Episodes;
use crate::world::Arrival;
use crate::world::report::{Observer, Trace};
use tidegate_model::totals::Histogram;
use tidegate_units::Nanos;

/// What became of the clients of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassCount {
    /// Clients that came.
    pub offered: u64,
    /// Clients let in.
    pub admitted: u64,
    /// Clients refused at least once.
    pub refused: u64,
    /// Clients answered.
    pub answered: u64,
    /// Clients answered within the objective.
    pub good: u64,
    /// Clients that never got a response.
    pub failed: u64,
    /// From arrival to answer.
    pub times: Histogram,
}

/// What became of a load in one world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    /// By period.
    pub bins: Bins,
    /// By class.
    pub classes: Vec<ClassCount>,
    /// When something was refused.
    pub episodes: Episodes,
    offered: u64,
    why: String,
}

impl Course {
    /// Nothing observed, of so many classes.
    #[must_use]
    pub fn new(classes: u8) -> Self {
        Self {
            bins: Bins::default(),
            classes: vec![ClassCount::default(); usize::from(classes.max(1))],
            episodes: Episodes::default(),
            offered: 0,
            why: String::new(),
        }
    }

    /// All periods in one.
    #[must_use]
    pub fn total(&self) -> Bin {
        let mut total = Bin::default();
        for bin in self.bins.all() {
            total.add(bin);
        }
        total
    }

    /// Every client ended once, and periods and classes count the same.
    ///
    /// # Errors
    /// What does not add up.
    pub fn check(&self, offered: u64) -> Result<(), String> {
        let total = self.total();
        let sum = |f: fn(&ClassCount) -> u64| self.classes.iter().map(f).sum::<u64>();
        let pairs = [
            ("offered", offered, total.offered),
            ("ended", offered, total.answered + total.failed),
            ("offered by class", total.offered, sum(|c| c.offered)),
            ("refused by class", total.refused, sum(|c| c.refused)),
            ("answered by class", total.answered, sum(|c| c.answered)),
            ("failed by class", total.failed, sum(|c| c.failed)),
            ("times", total.answered, total.times.count),
        ];
        match pairs.iter().find(|(_, wanted, found)| wanted != found) {
            None => Ok(()),
            Some((what, wanted, found)) => Err(format!("{what}: {found} instead of {wanted}")),
        }
    }

    fn class(&mut self, arrival: &Arrival) -> &mut ClassCount {
        let last = self.classes.len() - 1;
        &mut self.classes[usize::from(arrival.class).min(last)]
    }
}

impl Observer for Course {
    fn began(&mut self, arrival: &Arrival) {
        self.offered += 1;
        self.bins.at(arrival.at).offered += 1;
        self.class(arrival).offered += 1;
    }

    fn admitted(&mut self, now: Nanos, arrival: &Arrival) {
        self.bins.at(now).admitted += 1;
        self.class(arrival).admitted += 1;
    }

    fn ignored(&mut self, now: Nanos, _arrival: &Arrival) {
        self.bins.at(now).ignored += 1;
    }

    fn refused(&mut self, now: Nanos, arrival: &Arrival, first: bool) {
        let bin = self.bins.at(now);
        bin.refused += u64::from(first);
        bin.refusals += 1;
        self.class(arrival).refused += u64::from(first);
        self.episodes.refused(now, (self.offered, first), || self.why.clone());
    }

    fn failed(&mut self, arrival: &Arrival) {
        self.bins.at(arrival.at).failed += 1;
        self.class(arrival).failed += 1;
    }

    fn answered(&mut self, (now, _): (Nanos, Nanos), arrival: &Arrival, good: bool) {
        let took = now.since(arrival.at);
        let bin = self.bins.at(now);
        bin.answered += 1;
        bin.good += u64::from(good);
        bin.times.record(took);
        let class = self.class(arrival);
        class.answered += 1;
        class.good += u64::from(good);
        class.times.record(took);
    }

    fn trace(&mut self, trace: Trace) {
        if let Some(rate) = trace.rate {
            let bin = self.bins.at(trace.at);
            bin.limit_milli_sum = bin.limit_milli_sum.saturating_add((rate * 1e3) as u64);
            bin.limit_ticks += 1;
        }
        self.why = trace.why;
    }
}
