// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a server tells routers that give no hit counters back (BGP FlowSpec).
//!
//! Of what a router refuses nothing is known. Known are the server's own limit, and what arrives. So the rate for
//! routers stays a little above the own limit: then the server still sees the overload, and its own limit says
//! when that is over. A router passes its whole rate as long as it refuses anything. So a rate of which less than half
//! arrives refuses nothing.
//!
//! | own limit | what arrives | rate for routers |
//! | --- | --- | --- |
//! | refuses | above K times the own limit, for [`BEGIN_AFTER`] | begins at K times the own limit |
//! | refuses | above K² times the own limit, for `between` | falls, so that K times the own limit arrives; not below that, and not by less than a step |
//! | refuses | less | stays, and follows K times the own limit upwards |
//! | refuses nothing | half of the rate or more | more after each `between`: a step, then two, four, … |
//! | refuses nothing | less than half of the rate, for [`CALM_AFTER`] | ends |
//!
//! This is the relaxation of NetDraino (section 4.4): steps after a time, removal when the limit is not needed. It
//! goes on as the server's own limit says, because there is nobody who notifies the server again.

use super::super::split::Passed;
use super::answer::K;
use tidegate_units::{Nanos, Rate, Share};

/// The overload has to last for so long.
pub const BEGIN_AFTER: Nanos = Nanos::from_secs(2);
/// A rate of which less than half arrives ends after this.
pub const CALM_AFTER: Nanos = Nanos::from_secs(10);
/// A rate of which less than this share arrives refuses nothing. Not 1: routers count bytes, or bursts, and let
/// less pass than they are told.
const NEEDED: f64 = 0.5;
/// Without counts of what arrives nobody knows whether the rate is needed: it ends after this.
const UNKNOWN_AFTER: Nanos = Nanos::from_secs(30);
/// An overload that comes back within this time doubles [`CALM_AFTER`] for the next end.
const RELAPSE_WITHIN: Nanos = Nanos::from_secs(120);
/// So often at most.
const RELAPSES_MAX: u32 = 5;
/// Whether the own limit refuses is decided by a mean over this time: what arrives varies.
const MEAN_OVER: Nanos = Nanos::from_secs(10);
/// Steps at once, at most: 2^6 steps of 20 % are a factor of 14.
const DOUBLED_MAX: u32 = 6;

/// How often, and by how much, a rate changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// By which share a rate grows.
    pub by: Share,
    /// Time from one step to the next.
    pub between: Nanos,
}

impl Default for Steps {
    fn default() -> Self {
        Self { by: Share::new(0.2), between: Nanos::from_secs(10) }
    }
}

/// The limit of one service, for routers without hit counters.
#[derive(Clone, Debug, Default)]
pub struct Uncounted {
    steps: Steps,
    rate: Option<f64>,
    arrived: Passed,
    /// Mean of what arrives while there is a rate, over [`MEAN_OVER`].
    mean: f64,
    /// Steps up since the own limit refused last.
    doubled: u32,
    /// Since when a step more would be above all that has come.
    enough: Option<Nanos>,
    /// Since when more comes than the routers would be told.
    over: Option<Nanos>,
    /// Since when much more arrives than K times the own limit.
    outside: Option<Nanos>,
    /// Since when less than half of the rate arrives.
    calm: Option<Nanos>,
    /// Since when what arrives is not known.
    unknown: Option<Nanos>,
    /// When the rate changed last, or was last needed.
    stepped: Nanos,
    /// The most that has arrived since shortly before the rate began.
    most: f64,
    ended: Option<Nanos>,
    relapses: u32,
}

impl Uncounted {
    /// Without a limit.
    #[must_use]
    pub fn new(steps: Steps) -> Self {
        Self { steps, ..Self::default() }
    }

    /// The rate that routers are told; `None`: none.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.rate.map(Rate::per_second)
    }

    /// Ends it at once: nobody shall be refused (shadow mode, the kill switch).
    pub fn clear(&mut self) {
        let (steps, arrived) = (self.steps, self.arrived);
        *self = Self { steps, arrived, ..Self::default() };
    }

    /// A round: the rate until the next. `own` is what the service limits itself to, `arrived` how many SYNs have
    /// come in this round; `None`: not known.
    pub fn tick(
        &mut self,
        (now, period): (Nanos, Nanos),
        own: Option<Rate>,
        arrived: Option<u64>,
    ) -> Option<Rate> {
        if let Some(arrived) = arrived.filter(|_| period > Nanos::ZERO) {
            self.arrived.see(period.as_secs_f64(), arrived);
        }
        let arrives = self.arrived.one_of(1).filter(|_| arrived.is_some()).map(Rate::get);
        let own = own.map(Rate::get);
        if let Some(arrives) = arrives {
            let share = (period.as_secs_f64() / MEAN_OVER.as_secs_f64()).min(1.0);
            self.mean += share * (arrives - self.mean);
        }
        match self.rate {
            None => self.begin(now, own, arrives),
            Some(rate) => {
                self.rate = self.held(now, rate, own, arrives);
                if self.rate.is_none() {
                    (self.calm, self.unknown, self.over, self.enough) = (None, None, None, None);
                    self.ended = Some(now);
                }
            }
        }
        self.rate()
    }

    /// The same of a service that says what it can take, and refuses nothing itself: it would, while more than that
    /// arrives.
    pub fn tick_beyond(
        &mut self,
        time: (Nanos, Nanos),
        takes: Rate,
        arrived: Option<u64>,
    ) -> Option<Rate> {
        let own = (self.mean > takes.get()).then_some(takes);
        self.tick(time, own, arrived)
    }

    fn begin(&mut self, now: Nanos, own: Option<f64>, arrives: Option<f64>) {
        let exceeds = own.zip(arrives).filter(|(own, arrives)| *arrives > K * own);
        let Some((own, arrives)) = exceeds else {
            self.over = None;
            return;
        };
        if now.since(*self.over.get_or_insert(now)) < BEGIN_AFTER {
            return;
        }
        let relapsed = self.ended.is_some_and(|ended| now.since(ended) < RELAPSE_WITHIN);
        self.relapses = if relapsed { (self.relapses + 1).min(RELAPSES_MAX) } else { 0 };
        (self.rate, self.most, self.mean) = (Some(K * own), arrives, arrives);
        (self.stepped, self.outside, self.doubled) = (now, None, 0);
    }

    fn held(
        &mut self,
        now: Nanos,
        rate: f64,
        own: Option<f64>,
        arrives: Option<f64>,
    ) -> Option<f64> {
        self.most = arrives.map_or(self.most, |arrives| self.most.max(arrives));
        if let Some((own, arrives)) = own.zip(arrives).filter(|(own, _)| self.mean > *own) {
            (self.calm, self.unknown, self.stepped) = (None, None, now);
            (self.doubled, self.enough) = (0, None);
            return Some(self.near(now, own, (rate, arrives)));
        }
        self.outside = None;
        if self.is_over(now, rate, arrives) {
            return None;
        }
        if now.since(self.stepped) < self.steps.between {
            return Some(rate);
        }
        let steps = f64::from(1_u32 << self.doubled.min(DOUBLED_MAX));
        // The own limit holds where there is one, so nobody has to be slow below it.
        let grown =
            (rate * (1.0 + steps * self.steps.by.get())).max(own.map_or(0.0, |own| K * own));
        // More has never come, so nothing would be refused. Who was wrong about that before waits.
        if grown > self.most {
            let since = *self.enough.get_or_insert(now);
            let waits = if self.relapses == 0 { Nanos::ZERO } else { self.calm_after() };
            return Some(rate).filter(|_| now.since(since) < waits);
        }
        (self.stepped, self.doubled, self.enough) = (now, self.doubled + 1, None);
        Some(grown)
    }

    /// The rate while the service refuses. What arrives is not what routers are told, if they count bytes or bursts.
    /// But nobody is told less than K times the own limit, also if no router obeys.
    fn near(&mut self, now: Nanos, own: f64, (rate, arrives): (f64, f64)) -> f64 {
        let aim = K * own;
        let cut = aim.max(rate * aim / arrives);
        // Routers are told whole numbers, and nothing of what differs by less than a step.
        let told = cut + 1.0 <= rate * (1.0 - self.steps.by.get());
        let below = aim > rate * (1.0 + self.steps.by.get());
        if !below && (arrives <= K * aim || rate <= K * aim || !told) {
            self.outside = None;
            return rate;
        }
        if now.since(*self.outside.get_or_insert(now)) < self.steps.between {
            return rate;
        }
        self.outside = None;
        cut
    }

    /// Whether the rate has not been needed for long enough, or that is not known.
    fn is_over(&mut self, now: Nanos, rate: f64, arrives: Option<f64>) -> bool {
        let Some(arrives) = arrives else {
            self.calm = None;
            return now.since(*self.unknown.get_or_insert(now)) >= UNKNOWN_AFTER;
        };
        self.unknown = None;
        if arrives >= NEEDED * rate {
            self.calm = None;
            return false;
        }
        now.since(*self.calm.get_or_insert(now)) >= self.calm_after()
    }

    fn calm_after(&self) -> Nanos {
        Nanos(CALM_AFTER.0 << self.relapses)
    }
}
