// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals become limits: pure, ticked, no I/O, no clock.
//!
//! ```text
//!   Signals ─► detect ─► how overloaded, and why ─► law ─► Limits of one host ─► fleet ─► Limits
//! ```
//!
//! - `detect`: a [`Detector`] says how overloaded a service is, and why ([`Load`]). A service has one; with request rules beside
//!   SYN policing two; with limits on requests given to gateways one more.
//! - `law`: one file a law. Of a service: [`Fixed`] (a rate set by hand), [`Syn`] (the published SYN
//!   controller of dual admission control), [`DefaultController`] (for a server of which nothing is
//!   known). Of a request bucket: [`FixedBucket`], [`PaperBucket`], [`DefaultBucket`]. [`Dual`] holds
//!   both together.
//! - [`congestion`]: whether the way from a router to its servers is congested (NetDraino).
//! - [`crowd`]: flash crowds at a router: the published detector (NEWS), and ours, each with its limit.
//! - [`fleet`]: a service as a whole ([`fleet::Governor`]): what holds whatever its controllers want; of several hosts,
//!   their signals split, their limits clamped and added; limits that hosts give each other.
//!
//! All are deterministic: the same signals give the same limits.

#[cfg(feature = "ablate")]
pub mod ablate;
pub mod apart;
pub mod congestion;
pub mod crowd;
#[cfg(not(feature = "ablate"))]
mod detect;
#[cfg(not(feature = "ablate"))]
pub mod fleet;
mod kept;
#[cfg(not(feature = "ablate"))]
mod law;
#[cfg(feature = "ablate")]
include!(concat!(env!("OUT_DIR"), "/ablate.rs"));

pub use detect::{
    Calm, Detector, HeldWorkers, IdleWorkers, Load, Misfire, Misfired, Overload, Refusals,
};
pub use law::{
    Between, BucketController, BucketSpec, Cap, CappedBucket, Context, DefaultBucket,
    DefaultController, DefaultSpec, Demand, Dual, Equation, Fixed, FixedBucket, Gauge, Headroom,
    Holders, Interaction, Measured, PaperBucket, PaperBucketSpec, Syn, SynByLength, SynSpec,
    SynVariant, Variant, Wants,
};

use tidegate_model::RATE_MIN;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::{Nanos, Rate, Share};

/// No controller sets more than this many admissions per second (the policies' own maximum).
pub const RATE_CEILING: f64 = 1e9;
/// No bucket is deeper than this many tokens (the policies' own maximum).
pub const BURST_MAX: u32 = 1_000_000;
/// A signal older than this many periods is no longer acted upon: the limits freeze.
pub const FREEZE_PERIODS: u64 = 3;
/// A signal older than this many periods is lost: the limits are released.
pub const RELEASE_PERIODS: u64 = 10;
/// A tick's period counts as at least this: no division by a period that stood still.
const PERIOD_MIN: Nanos = Nanos::from_millis(1);
/// A tick's period counts as at most this: after a pause the past says little about a second.
const PERIOD_MAX: Nanos = Nanos::from_secs(10);

/// Whether limits are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Refusals are executed.
    Enforce,
    /// Refusals are only counted: nothing that the controller does has an effect.
    Shadow,
}

/// What SYN policing is told of the request rules beside it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// Refusals that are not in the service's counts.
    pub refusals: Refusals,
    /// A rate that was lowered in vain begins here, at least: its limits, which nobody has executed
    /// for a while, are executed from now on, or they are not needed any more.
    pub resume: Option<Rate>,
}

/// What SYN policing says beside request rules.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The limits until the next tick.
    pub limits: ServiceLimits,
    /// All that they are decided by is young enough to act upon: limits that only stand are no reason
    /// to tighten anything else.
    pub fresh: bool,
    /// Nothing waits, and where all that comes would need less of the CPU than this, the limits are
    /// not needed, although they refuse. `None` while something waits, and of a controller that finds
    /// that out by itself.
    pub idle_below: Option<Share>,
}

/// Turns what was sensed into what is admitted, once a tick.
pub trait Controller: Send {
    /// The limits until the next tick. Finite, the rate between [`RATE_MIN`] and
    /// [`RATE_CEILING`], for any signals.
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits;

    /// The same where request rules refuse first: see [`Dual`]. A controller that needs none of what
    /// it is told there decides as ever.
    fn decide(&mut self, signals: &Signals, mode: Mode, _beside: Beside) -> Decision {
        Decision { limits: self.tick(signals, mode), fresh: true, idle_below: None }
    }

    /// What it has learned, in a form that [`Self::restore`] of a later version can read or refuse;
    /// `None` if it keeps nothing. At most some kilobytes.
    fn save(&self) -> Option<serde_json::Value> {
        None
    }

    /// Goes on from what another process has saved `age` ago; to be called before the first tick.
    /// False: it is of no use, and nothing of it was taken.
    fn restore(&mut self, _value: serde_json::Value, _age: Nanos) -> bool {
        false
    }
}

/// A rate inside [`RATE_MIN`] … [`RATE_CEILING`]; NaN becomes the ceiling, because a number that
/// is none must not tighten.
fn bounded(rate: f64) -> Rate {
    let rate = if rate.is_nan() { RATE_CEILING } else { rate };
    Rate::per_second(rate.clamp(RATE_MIN, RATE_CEILING))
}

/// The period of a tick in seconds, bounded.
fn period_s(signals: &Signals) -> f64 {
    signals.period.clamp(PERIOD_MIN, PERIOD_MAX).as_secs_f64()
}

/// Readings that are no older than this are young enough to act upon.
fn age_max(signals: &Signals) -> Nanos {
    Nanos(signals.period.clamp(PERIOD_MIN, PERIOD_MAX).0 * FREEZE_PERIODS)
}

/// Whether anything was measured of late: at least one family has a reading no older than this.
#[must_use]
pub fn signals_fresh(signals: &Signals, age_max: Nanos) -> bool {
    let ages = [
        signals.resource.cpu.map(|r| r.age),
        signals.resource.cpu_pressure.map(|r| r.age),
        signals.queue.accept.map(|r| r.age),
        signals.time.waiting.map(|r| r.age),
        signals.time.first_byte.map(|r| r.age),
        signals.balance.counts.map(|r| r.age),
    ];
    ages.iter().flatten().any(|age| *age <= age_max)
}

/// How much a signal's age lets the controller do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Freshness {
    /// Young enough to act upon.
    Fresh,
    /// Too old to act upon: keep what was decided.
    Frozen,
    /// So old that what was decided has no ground any more.
    Lost,
}

/// The freshness of a reading of this age; a tick without a period counts as [`PERIOD_MIN`].
fn freshness(age: Nanos, period: Nanos) -> Freshness {
    let period = period.clamp(PERIOD_MIN, PERIOD_MAX).0;
    if age.0 > period * RELEASE_PERIODS {
        Freshness::Lost
    } else if age.0 > period * FREEZE_PERIODS {
        Freshness::Frozen
    } else {
        Freshness::Fresh
    }
}

/// Remembers for how long a signal has been missing, so that a missing one ages like a stale one.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    missing: Nanos,
}

impl Watch {
    /// The freshness of a reading that is `age` old, or missing.
    fn see(&mut self, age: Option<Nanos>, period: Nanos) -> Freshness {
        self.missing = match age {
            Some(_) => Nanos::ZERO,
            None => self.missing + period.clamp(PERIOD_MIN, PERIOD_MAX),
        };
        let seen = freshness(age.unwrap_or(self.missing), period);
        if age.is_none() { seen.max(Freshness::Frozen) } else { seen }
    }
}
