// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Controllers of request buckets: what request rules admit of the requests that use up one resource
//! (dual admission control; Voigt and Gunningberg, section 2).
//!
//! One file a controller: [`PaperBucket`] (equations 1 and 2), [`FixedBucket`] (a rate set by hand),
//! [`DefaultBucket`] (for a server of which nothing is known); [`CappedBucket`] is one of these below a ceiling.
//! What they share is here: the rate inside its bounds, requests of the last second, signals that age, the ranks,
//! and what SYN policing asks.

mod capped;
mod default;
mod fixed;
mod gauge;
mod hits;
mod paper;

pub use capped::CappedBucket;
pub use default::DefaultBucket;
pub use fixed::FixedBucket;
pub use gauge::Gauge;
pub use paper::{Equation, PaperBucket, PaperBucketSpec};

use crate::detect::Overload;
use crate::{BURST_MAX, Freshness, Mode, RATE_CEILING, Watch, period_s};
use hits::Hits;
use tidegate_model::limits::{BucketLimits, Cause, Why};
use tidegate_model::signals::{Family, Signals};
use tidegate_model::{RANKS, RATE_MIN};
use tidegate_units::{Nanos, Rate};

/// An allowance is used if this share of it was asked for (the paper's 90 %).
const USED_SHARE: f64 = 0.9;
/// Seconds below the reference, with an allowance that nobody uses, after which a limit ends.
const CALM_SECONDS: f64 = 10.0;
/// Seconds in which a demand halves a rate: from 1000/s to 10/s in a second and a half.
const LOWER_HALVES_SECONDS: f64 = 0.2;
/// A rate this close to the minimum is at the minimum.
const LOWEST_SLACK: f64 = 1.01;

/// Whether the law is followed as published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As printed.
    Published,
    /// What we ship: a rate is raised while it refuses and its resource is below the reference;
    /// lowering begins at what is asked for, because the allowance above that has no effect; and a
    /// limit that nobody needs ends, if there was none at the start.
    Released,
}

/// What a bucket's controller tells the one that holds it together with SYN policing ([`crate::Dual`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Its resource is at its reference or above: refusing requests of this bucket helps.
    pub under_pressure: bool,
    /// It cannot refuse more: the rate is at its minimum, or hardly more than that is asked for.
    pub exhausted: bool,
}

/// What SYN policing asks of the buckets in a tick; each is more than the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// Nothing: a bucket's own law decides.
    #[default]
    Nothing,
    /// Its limits are below what comes: lower the rate faster than the law does, where that is not
    /// enough.
    Lower,
    /// The accept queue is half full or more, or as many jobs wait as its in-flight limit lets in: that shows in
    /// no law, or it does not wait for one. Lower the rate faster than the law does.
    LowerAtOnce,
    /// It refuses: under pressure, go to the minimum and stay there.
    Least,
}

/// What a bucket is told of its service in a tick.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Whether refusals are executed.
    pub mode: Mode,
    /// The service's overload, while there is one.
    pub overload: Option<&'a Overload>,
    /// What SYN policing asks.
    pub demand: Demand,
}

impl Context<'_> {
    /// Of a service of which nothing is known.
    #[must_use]
    pub const fn alone(mode: Mode) -> Self {
        Self { mode, overload: None, demand: Demand::Nothing }
    }
}

/// Turns what was sensed into what the rules of one bucket admit, once a tick.
pub trait BucketController: Send {
    /// The limits until the next tick, of the bucket with this index in [`Signals::buckets`].
    /// Finite, the rate between the bucket's minimum and maximum, for any signals.
    fn tick(&mut self, signals: &Signals, bucket: usize, context: Context<'_>) -> BucketLimits;

    /// What is left to refuse, as of the last tick, once a demand has been followed for so many seconds.
    fn headroom(&self, demand: Demand, seconds: f64) -> Headroom;
}

/// What all buckets have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketSpec {
    /// The rate never goes below this, so that no bucket is starved: 10/s.
    pub min_rate: Rate,
    /// The rate never goes above this.
    pub maximum: Rate,
    /// Rate at the start; `None`: no limit until the resource is first at its reference, and then
    /// from what is asked for (the paper says nothing).
    pub start: Option<Rate>,
    /// Bucket depth for requests of the lowest rank that comes: 5. Higher ranks find more, see
    /// [`BucketLimits::reserve`].
    pub burst: u32,
}

impl Default for BucketSpec {
    fn default() -> Self {
        Self {
            min_rate: Rate::per_second(10.0),
            maximum: Rate::per_second(1e6),
            start: None,
            burst: 5,
        }
    }
}

impl BucketSpec {
    /// The rate at the start.
    fn begin(&self) -> Option<f64> {
        self.start.map(|rate| self.bounded(rate.get()))
    }

    /// A rate inside the bounds; NaN becomes the maximum, because what is no number must not
    /// tighten.
    fn bounded(&self, rate: f64) -> f64 {
        let min_rate = self.min_rate.get().clamp(RATE_MIN, RATE_CEILING);
        let ceiling = self.maximum.get().clamp(min_rate, RATE_CEILING);
        if rate.is_nan() { ceiling } else { rate.clamp(min_rate, ceiling) }
    }
}

/// What a demand of so many seconds leaves of a rate.
fn share_left(seconds: f64) -> f64 {
    libm::exp2(-seconds / LOWER_HALVES_SECONDS)
}

/// What the controllers share.
#[derive(Clone, Debug)]
struct Core {
    spec: BucketSpec,
    rate: Option<f64>,
    /// Bucket depth: that of the spec, or deeper.
    burst: u32,
    hits: Hits,
    counts: Watch,
    level: Watch,
    /// Of all that the controller decides by, as of the last tick.
    seen: Freshness,
    /// There is no limit because signals were lost.
    lost: bool,
    under_pressure: bool,
    /// It stays at its minimum because SYN policing refuses.
    pinned: bool,
    calm_s: f64,
    shedding: bool,
    since: Nanos,
}

impl Core {
    fn new(spec: BucketSpec) -> Self {
        Self {
            rate: spec.begin(),
            burst: spec.burst,
            spec,
            hits: Hits::default(),
            counts: Watch::default(),
            level: Watch::default(),
            seen: Freshness::Frozen,
            lost: false,
            under_pressure: false,
            pinned: false,
            calm_s: 0.0,
            shedding: false,
            since: Nanos::ZERO,
        }
    }

    /// Takes the bucket's counts; the freshness of these and of a level that is `age` old.
    fn see(&mut self, signals: &Signals, bucket: usize, age: Option<Nanos>) -> Freshness {
        let counts = signals.buckets.get(bucket).and_then(|b| b.counts);
        let seen = self.counts.see(counts.map(|c| c.age), signals.period);
        if let (Freshness::Fresh, Some(counts)) = (seen, counts) {
            self.hits.push(period_s(signals), &counts.value);
        }
        let all = seen.max(self.level.see(age, signals.period));
        self.seen = Freshness::Fresh;
        self.also(all)
    }

    /// Takes the freshness of what else the controller decides by; that of all.
    fn also(&mut self, seen: Freshness) -> Freshness {
        self.seen = self.seen.max(seen);
        if self.seen == Freshness::Lost {
            self.lift();
        } else if self.seen == Freshness::Fresh && self.lost {
            self.lost = false;
            self.rate = self.spec.begin();
        }
        self.seen
    }

    /// Signals are lost: neither what was decided nor the rate at the start is known to be needed,
    /// until there are signals again.
    fn lift(&mut self) {
        self.lost = true;
        self.rate = None;
        self.hits = Hits::default();
        self.under_pressure = false;
    }

    /// Whether nearly all that is allowed was asked for in the last second; false before there is
    /// one, and where nothing is limited.
    fn used(&self) -> bool {
        let rate = self.rate.unwrap_or(f64::INFINITY);
        self.hits.per_second().is_some_and(|hits| hits >= USED_SHARE * rate)
    }

    /// Whether something was refused in the last second.
    fn refusing(&self) -> bool {
        self.rate.is_some() && self.hits.refused() > 0.0
    }

    /// The most that a rate can be without being an allowance that nobody uses.
    fn in_use(&self) -> Option<f64> {
        self.hits.per_second().map(|hits| self.spec.bounded(hits / USED_SHARE))
    }

    /// Where a rate is lowered from: the allowance that nobody uses goes first.
    fn without_unused(&self, variant: Variant) -> Option<f64> {
        match (self.rate, self.in_use()) {
            (None, used) => used,
            (Some(rate), Some(used)) if variant == Variant::Released => Some(rate.min(used)),
            (rate, _) => rate,
        }
    }

    /// Before a rate is lowered. True if there is one.
    fn cut(&mut self, variant: Variant) -> bool {
        self.rate = self.without_unused(variant);
        self.rate.is_some()
    }

    /// Ends a limit that nobody needs: a shallow bucket would refuse bursts for ever. Told each tick
    /// whether the resource is below its reference.
    fn end_if_calm(&mut self, variant: Variant, below: bool, seconds: f64) {
        let calm = below && !self.used() && self.hits.per_second().is_some();
        self.calm_s = if calm { self.calm_s + seconds } else { 0.0 };
        let may = variant == Variant::Released && self.spec.start.is_none();
        if may && self.calm_s >= CALM_SECONDS {
            self.rate = None;
        }
    }

    fn change(&mut self, by: f64) {
        self.rate = self.rate.map(|rate| self.spec.bounded(rate + by));
    }

    /// In shadow nothing is refused, so the resource does not answer to the rate: what the server
    /// completes is a rate that it can do.
    fn shadow(&mut self, mode: Mode) {
        if mode == Mode::Shadow
            && let (Some(rate), Some(ended)) = (self.rate, self.hits.ended_per_second())
        {
            self.rate = Some(self.spec.bounded(rate.max(ended)));
        }
    }

    /// Whether a demand lowers the rate, by what was known in the last tick: not while a signal is too
    /// old to act upon.
    fn is_to_lower(&self, demand: Demand) -> bool {
        let lowers = matches!(demand, Demand::Lower | Demand::LowerAtOnce);
        lowers && self.under_pressure && self.seen == Freshness::Fresh
    }

    /// The rate once a demand has been followed, before a law is.
    fn lowered(&self, seconds: f64, demand: Demand) -> Option<f64> {
        if !self.is_to_lower(demand) {
            return self.rate;
        }
        let rate = self.without_unused(Variant::Released);
        rate.map(|rate| self.spec.bounded(rate * share_left(seconds)))
    }

    fn follow(&mut self, seconds: f64, demand: Demand) {
        self.rate = self.lowered(seconds, demand);
    }

    /// Stays at the minimum while SYN policing refuses, once it was under pressure meanwhile. What is
    /// lost is no reason to stay down, and of requests that are not known there is no minimum.
    fn pin(&mut self, demand: Demand) -> Option<Rate> {
        let pinned = demand == Demand::Least && (self.pinned || self.under_pressure);
        let known = pinned && self.seen != Freshness::Lost && self.cut(Variant::Released);
        if known {
            self.rate = Some(self.spec.bounded(0.0));
        }
        self.pinned = known;
        self.rate.filter(|_| known).map(Rate::per_second)
    }

    /// What is left to refuse at this rate.
    fn headroom(&self, rate: Option<f64>) -> Headroom {
        let lowest = self.spec.bounded(0.0) * LOWEST_SLACK;
        // Without a full second nothing is known of what is asked for.
        let quiet = self.hits.per_second().is_some_and(|hits| hits <= lowest);
        Headroom {
            under_pressure: self.under_pressure,
            exhausted: quiet || rate.is_some_and(|rate| rate <= lowest),
        }
    }

    fn limits(&mut self, signals: &Signals, context: Context<'_>, text: String) -> BucketLimits {
        self.shadow(context.mode);
        let shedding = self.refusing();
        if shedding != self.shedding {
            self.shedding = shedding;
            self.since = signals.now;
        }
        let rate = self.rate.map(Rate::per_second);
        let (burst, reserve) = self.hits.ranks(self.burst.clamp(1, BURST_MAX));
        let told = rate.map_or_else(|| "no limit".to_owned(), |rate| format!("rate {rate}"));
        BucketLimits {
            rate: self.pin(context.demand).or(rate),
            loss: None,
            burst,
            reserve: if rate.is_some() { reserve } else { [0; RANKS] },
            why: Why {
                shedding,
                since: self.since,
                alarmed: if self.under_pressure { vec![Family::Resource] } else { Vec::new() },
                cause: shedding.then_some(Cause::Reference),
                text: format!("{text}; {told}"),
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tidegate_model::signals::{BucketCounts, BucketSignals, Reading};
    use tidegate_units::Share;

    /// A second of signals: hits and refusals of one bucket, and the CPU.
    pub(crate) fn second(hits: u64, refused: u64, cpu: f64) -> Signals {
        let mut s = Signals { period: Nanos::SECOND, ..Signals::default() };
        s.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
        let counts = BucketCounts {
            offered: [0, hits, 0],
            refused: [0, refused, 0],
            refused_first: refused,
            begun: hits - refused,
            ended: hits - refused,
        };
        let counts = Some(Reading::fresh(counts));
        s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        s
    }

    #[test]
    fn bounds_hold_also_for_what_is_no_number() {
        let spec = BucketSpec { maximum: Rate::per_second(50.0), ..BucketSpec::default() };
        let table = [(f64::NAN, 50.0), (f64::INFINITY, 50.0), (-1.0, 10.0), (20.0, 20.0)];
        for (rate, expected) in table {
            assert_eq!(spec.bounded(rate), expected, "{rate}");
        }
        let upside_down = BucketSpec { maximum: Rate::ZERO, ..BucketSpec::default() };
        assert_eq!(upside_down.bounded(1.0), 10.0, "the minimum wins");
    }

    /// A core under pressure that has seen this.
    fn under_pressure(spec: BucketSpec, signals: &Signals, age: Nanos) -> Core {
        let mut core = Core::new(spec);
        core.see(signals, 0, Some(age));
        core.under_pressure = true;
        core
    }

    #[test]
    fn a_demand_begins_at_what_is_asked_for_and_ends_at_the_minimum() {
        for demand in [Demand::Lower, Demand::LowerAtOnce] {
            let mut core = under_pressure(BucketSpec::default(), &second(80, 0, 1.0), Nanos::ZERO);
            core.follow(LOWER_HALVES_SECONDS, demand);
            assert!((core.rate.unwrap() - 80.0 / USED_SHARE / 2.0).abs() < 1e-9);
            assert!(!core.headroom(core.rate).exhausted);
            assert!(
                core.headroom(core.lowered(1.0, demand)).exhausted,
                "nothing would be left after it"
            );
            assert!(!core.headroom(core.lowered(1.0, Demand::Nothing)).exhausted);
            (0..20).for_each(|_| core.follow(0.1, demand));
            assert_eq!(core.rate, Some(10.0));
            assert!(core.headroom(core.rate).exhausted);
        }
    }

    #[test]
    fn who_is_not_under_pressure_is_neither_lowered_nor_pinned() {
        let mut core = under_pressure(BucketSpec::default(), &second(80, 0, 1.0), Nanos::ZERO);
        core.follow(1.0, Demand::Nothing);
        core.under_pressure = false;
        core.follow(1.0, Demand::LowerAtOnce);
        assert_eq!((core.pin(Demand::Least), core.rate), (None, None));
        core.under_pressure = true;
        assert_eq!(core.pin(Demand::Lower), None);
        let minimum = Some(Rate::per_second(10.0));
        assert_eq!(core.pin(Demand::Least), minimum);
        core.under_pressure = false;
        assert_eq!(core.pin(Demand::Least), minimum, "until SYN policing refuses no more");
        assert_eq!((core.pin(Demand::Nothing), core.pin(Demand::Least)), (None, None));
    }

    #[test]
    fn while_a_signal_is_too_old_nothing_is_lowered() {
        for (periods, rate) in [(3, Some(25.0)), (4, Some(50.0)), (11, None)] {
            let spec = BucketSpec { start: Some(Rate::per_second(50.0)), ..BucketSpec::default() };
            let mut core = under_pressure(spec, &second(80, 0, 1.0), Nanos::from_secs(periods));
            core.follow(LOWER_HALVES_SECONDS, Demand::LowerAtOnce);
            assert_eq!(core.rate, rate, "{periods} periods");
        }
    }

    #[test]
    fn without_counts_nothing_is_lowered() {
        let mut core = under_pressure(BucketSpec::default(), &Signals::default(), Nanos::ZERO);
        core.follow(1.0, Demand::LowerAtOnce);
        assert_eq!(core.pin(Demand::Least), None);
        assert!(!core.headroom(core.rate).exhausted, "nothing is known");
    }
}
