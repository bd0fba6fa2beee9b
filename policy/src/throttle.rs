// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parameters of the policies that throttle: thresholds on a level, a gap, a share. Every bound and
//! every division is here, as in params.rs.

use crate::abi::{
    BURST_MAX, GapParams, LEVEL_NONE, PRIORITIES, PercentParams, SEVERITIES, TG_THROTTLE_GAP,
    TG_THROTTLE_NONE, TG_THROTTLE_SHARE, TOKEN, ThresholdParams,
};
use crate::{Action, BucketSpec, Params, ParamsError, Policy};
use std::fmt;
use tidegate_units::{Nanos, Rate, Share};

/// Severity that a priority may have above that of its rung: with it, the first rung is the last.
const HARDER_MAX: u8 = SEVERITIES as u8 - 1;
/// Longest gap, so that it fits 32 bits in microseconds.
const GAP_MAX: Nanos = Nanos::from_secs(3600);
/// Longest wait of one request.
const WAIT_MAX: Nanos = Nanos::from_secs(60);
/// Requests that may be in the bucket of a gap at once.
const CONTENT_MAX: u64 = BURST_MAX as u64;
/// Thousandth of a token, in picotokens.
const MILLI_TOKEN: u64 = TOKEN / 1000;

/// The ladder of one priority, in the unit of the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Throttling ends below it; at least 1.
    pub abatement: u32,
    /// Throttling begins at it.
    pub onset: u32,
    /// All are refused from it on, until the level is below the last onset.
    pub discard: Option<u32>,
    /// Severity above that of the rung; 0 to 2.
    pub harder: u8,
}

impl Thresholds {
    fn is_ladder(self, rise: u32) -> bool {
        let top = self.onset.saturating_add(rise);
        let rises = (1..=self.onset).contains(&self.abatement) && top < LEVEL_NONE;
        let discards = self.discard.is_none_or(|discard| top <= discard && discard < LEVEL_NONE);
        rises && discards && self.harder <= HARDER_MAX
    }

    /// Whether a higher priority may have these beside a lower one that has those.
    fn is_above(self, lower: Self) -> bool {
        let discard = |one: Self| one.discard.unwrap_or(LEVEL_NONE);
        self.abatement >= lower.abatement
            && self.onset >= lower.onset
            && discard(self) >= discard(lower)
            && self.harder <= lower.harder
    }
}

/// What is done from onset to discard, one value for each severity, not falling.
#[derive(Clone, Debug, PartialEq)]
pub enum Throttle {
    /// Nothing: only discards.
    None,
    /// This share is refused.
    Share(Vec<Share>),
    /// At least so much time between two that are let through; 1 µs to 1 h.
    Gap(Vec<Nanos>),
}

impl Throttle {
    fn values(&self) -> Vec<u32> {
        match self {
            Self::None => vec![0],
            Self::Share(shares) => shares.iter().map(|share| share_q16(*share)).collect(),
            Self::Gap(gaps) => gaps.iter().map(|gap| (gap.0 / 1000) as u32).collect(),
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::None => TG_THROTTLE_NONE as u8,
            Self::Share(_) => TG_THROTTLE_SHARE as u8,
            Self::Gap(_) => TG_THROTTLE_GAP as u8,
        }
    }

    /// As many as there are severities, in range, not falling.
    fn is_valid(&self, severities: usize) -> bool {
        let in_range = match self {
            Self::Gap(gaps) => {
                gaps.iter().all(|gap| *gap >= Nanos::from_micros(1) && *gap <= GAP_MAX)
            }
            _ => true,
        };
        let values = self.values();
        in_range && values.len() == severities && values.windows(2).all(|two| two[0] <= two[1])
    }
}

/// Thresholds on a level, per priority.
#[derive(Clone, Debug, PartialEq)]
pub struct ThresholdSpec {
    /// One ladder for each priority, 0 the highest. A higher one has thresholds at least as high.
    pub priorities: [Thresholds; PRIORITIES],
    /// From the onset to that of the second and third severity; rising, at most 2.
    pub rises: Vec<u32>,
    /// What is done from onset to discard.
    pub throttle: Throttle,
    /// Bit i: priority i is never throttled, only discarded. The highest priorities.
    pub preferred: u8,
    /// What is done with a refused event.
    pub action: Action,
}

impl ThresholdSpec {
    /// The same ladder for all priorities, one severity.
    #[must_use]
    pub fn new(thresholds: Thresholds, throttle: Throttle, action: Action) -> Self {
        let priorities = [thresholds; PRIORITIES];
        Self { priorities, rises: Vec::new(), throttle, preferred: 0, action }
    }

    /// Dropping at the interface (section 4.2 of the paper): all are refused from `discard` on,
    /// until the level is below `abatement`.
    #[must_use]
    pub fn dropping(abatement: u32, discard: u32, action: Action) -> Self {
        let onset = abatement;
        let ladder = Thresholds { abatement, onset, discard: Some(discard), harder: 0 };
        Self::new(ladder, Throttle::None, action)
    }

    /// Throttling (section 4.3): from `onset` on, until the level is below `abatement`.
    #[must_use]
    pub fn throttling(abatement: u32, onset: u32, throttle: Throttle, action: Action) -> Self {
        let ladder = Thresholds { abatement, onset, discard: None, harder: 0 };
        Self::new(ladder, throttle, action)
    }

    /// Both (section 4.4): dropping ends below the onset.
    #[must_use]
    pub fn combined(
        (abatement, onset, discard): (u32, u32, u32),
        throttle: Throttle,
        action: Action,
    ) -> Self {
        let ladder = Thresholds { abatement, onset, discard: Some(discard), harder: 0 };
        Self::new(ladder, throttle, action)
    }

    fn check(&self) -> Result<(), ThrottleError> {
        let rising = self.rises.windows(2).all(|two| two[0] < two[1]);
        let severities = 1 + self.rises.len();
        if !rising || severities > SEVERITIES || self.rises.first() == Some(&0) {
            return Err(ThrottleError::Rises(self.rises.clone()));
        }
        if !self.throttle.is_valid(severities) {
            return Err(ThrottleError::Values(self.throttle.clone(), severities));
        }
        let top = self.rises.last().copied().unwrap_or(0);
        for (priority, ladder) in self.priorities.iter().enumerate() {
            if !ladder.is_ladder(top) {
                return Err(ThrottleError::Ladder(priority, *ladder, top));
            }
        }
        if let Some(at) = self.priorities.windows(2).position(|two| !two[0].is_above(two[1])) {
            return Err(ThrottleError::Order(at));
        }
        if self.preferred & self.preferred.wrapping_add(1) != 0 {
            return Err(ThrottleError::Preferred(self.preferred));
        }
        Ok(())
    }
}

/// A gap: the leaky bucket of RFC 7415, section 3.5.
#[derive(Clone, Debug, PartialEq)]
pub struct GapSpec {
    /// 1/T: requests per second; above 0.
    pub rate: Rate,
    /// TAU of each priority in thousandths of T; not rising from priority 0 to 7.
    pub tau_milli: [u32; PRIORITIES],
    /// TAU0 in thousandths of T: what the bucket holds when control begins; at most the least TAU.
    pub tau0_milli: u32,
    /// How long a request may wait instead of being refused; 0 where the host program cannot wait,
    /// at most 1 min.
    pub wait_max: Nanos,
    /// What is done with a refused event.
    pub action: Action,
}

impl GapSpec {
    /// Without priorities: TAU = 4 T (section 3.5.1), TAU0 = 0, nobody waits.
    #[must_use]
    pub const fn new(rate: Rate, action: Action) -> Self {
        Self { rate, tau_milli: [4000; PRIORITIES], tau0_milli: 0, wait_max: Nanos::ZERO, action }
    }

    /// Two priorities (section 3.5.2): TAU2 = 10 T for the `high` highest, TAU1 = TAU2 / 2 for the
    /// others.
    #[must_use]
    pub fn two_priorities(rate: Rate, high: usize, action: Action) -> Self {
        let tau = |priority| if priority < high { 10_000 } else { 5000 };
        Self { tau_milli: std::array::from_fn(tau), ..Self::new(rate, action) }
    }

    /// At least this time between two requests: TAU = 0. The rate is rounded down to a thousandth of
    /// a request per second, so the gap is never shorter.
    #[must_use]
    pub fn least(gap: Nanos, action: Action) -> Self {
        let milli = TOKEN / gap.0.max(1);
        let rate = Rate::per_second(milli as f64 / 1e3);
        Self { tau_milli: [0; PRIORITIES], ..Self::new(rate, action) }
    }

    /// The most that the bucket holds and the part of it that waits, in picotokens.
    fn depth(&self) -> Result<(u64, u64), ThrottleError> {
        let falling = self.tau_milli.windows(2).all(|two| two[0] >= two[1]);
        if !falling || self.tau0_milli > self.tau_milli[PRIORITIES - 1] {
            return Err(ThrottleError::Tolerance(self.tau_milli, self.tau0_milli));
        }
        let tau = u64::from(self.tau_milli[0]) * MILLI_TOKEN;
        let wait = u128::from(self.wait_max.0) * u128::from(self.rate.as_milli());
        let depth = u128::from(TOKEN + tau) + wait;
        if self.wait_max > WAIT_MAX || depth > u128::from(CONTENT_MAX * TOKEN) {
            return Err(ThrottleError::Wait(self.wait_max, (depth / u128::from(TOKEN)) as u64));
        }
        Ok((depth as u64, wait as u64))
    }
}

/// The factor and the two shifts that make microseconds of the picotokens that drain in them (see
/// `tg_gap_delay_us`), for up to `most` picotokens.
fn microseconds(most: u64, rate_milli: u64) -> (u32, u8, u8) {
    let shift_in = 32_u32.saturating_sub(most.leading_zeros());
    let per_us = u128::from(rate_milli) * 1000;
    let factor = |shift_out: u32| (1_u128 << (shift_in + shift_out)).div_ceil(per_us);
    // 31 bits beside the 32 of the picotokens: their product fits 64
    let shift_out = (0..64).rev().find(|out| factor(*out) < 1 << 31).unwrap_or(0);
    (factor(shift_out) as u32, shift_in as u8, shift_out as u8)
}

/// A share of all that arrives: the loss algorithm of RFC 7339, section 7.2.
#[derive(Clone, Debug, PartialEq)]
pub struct PercentSpec {
    /// Refused of all that arrives, in steps of 1/65536 (rounded down); 0: no limit.
    pub share: Share,
    /// How long arrivals are counted before the shares of the priorities are computed again; 100 ms
    /// to 1 h.
    pub period: Nanos,
    /// Percent of all arrivals that each priority has, believed until counted; 100 together.
    pub mix: [u8; PRIORITIES],
    /// What is done with a refused event.
    pub action: Action,
}

impl PercentSpec {
    /// As the RFC suggests: 5 s, and at first 80 % in the category that is reduced first. That is
    /// priority 7, which everybody has whom no class names.
    #[must_use]
    pub const fn new(share: Share, action: Action) -> Self {
        let mix = [20, 0, 0, 0, 0, 0, 0, 80];
        Self { share, period: Nanos::from_secs(5), mix, action }
    }
}

/// In 1/65536, rounded down.
fn share_q16(share: Share) -> u32 {
    (share.get() * 65_536.0).floor() as u32
}

/// A table that repeats its last value.
fn repeated<const N: usize>(values: &[u32]) -> [u32; N] {
    std::array::from_fn(|at| values.get(at).or(values.last()).copied().unwrap_or(0))
}

impl Params {
    /// Thresholds on a level, per priority.
    ///
    /// # Errors
    /// When thresholds, severities or the preferred priorities are not in order, or out of range.
    pub fn threshold(spec: &ThresholdSpec) -> Result<Self, ParamsError> {
        spec.check()?;
        let rises: Vec<u32> = std::iter::once(0).chain(spec.rises.iter().copied()).collect();
        let by_severity: Vec<u32> = std::iter::once(0).chain(spec.throttle.values()).collect();
        let body = ThresholdParams {
            abatement: spec.priorities.map(|ladder| ladder.abatement),
            onset: spec.priorities.map(|ladder| ladder.onset),
            discard: spec.priorities.map(|ladder| ladder.discard.unwrap_or(LEVEL_NONE)),
            rise: repeated(&rises),
            throttle: repeated(&by_severity),
            harder: spec.priorities.map(|ladder| ladder.harder),
            in_force: 1,
            kind: spec.throttle.kind(),
            preferred: spec.preferred,
            action: spec.action.code(),
        };
        Ok(Self::new(Policy::Threshold, &body))
    }

    /// The leaky bucket of RFC 7415.
    ///
    /// # Errors
    /// When the rate, the tolerances or the wait are out of range.
    pub fn gap(spec: &GapSpec) -> Result<Self, ParamsError> {
        let (depth, wait) = spec.depth()?;
        let (mut bucket, _) = BucketSpec::new(spec.rate, 1, spec.action).compile()?;
        bucket.depth = depth;
        bucket.full_ns = depth.div_ceil(bucket.rate_milli);
        let reserve = spec.tau_milli.map(|tau| depth - TOKEN - u64::from(tau) * MILLI_TOKEN);
        let (us_factor, us_shift_in, us_shift_out) = microseconds(wait, bucket.rate_milli);
        let body = GapParams {
            bucket,
            reserve,
            wait,
            start: u64::from(spec.tau0_milli) * MILLI_TOKEN,
            us_factor,
            us_shift_in,
            us_shift_out,
            action: spec.action.code(),
            pad: 0,
        };
        Ok(Self::new(Policy::Gap, &body))
    }

    /// The loss algorithm of RFC 7339.
    ///
    /// # Errors
    /// When the period or the mix are out of range.
    pub fn percent(spec: &PercentSpec) -> Result<Self, ParamsError> {
        if spec.period < Nanos::from_millis(100) || spec.period > Nanos::from_secs(3600) {
            return Err(ThrottleError::CountingPeriod(spec.period).into());
        }
        if spec.mix.iter().map(|percent| u32::from(*percent)).sum::<u32>() != 100 {
            return Err(ThrottleError::Mix(spec.mix).into());
        }
        let body = PercentParams {
            period_ns: spec.period.0,
            share: share_q16(spec.share),
            action: spec.action.code().into(),
            mix: spec.mix,
        };
        Ok(Self::new(Policy::Percent, &body))
    }
}

/// Why parameters of a policy that throttles were not accepted.
#[derive(Clone, Debug, PartialEq)]
pub enum ThrottleError {
    /// Not a ladder: priority, its thresholds, from its onset to that of the last severity.
    Ladder(usize, Thresholds, u32),
    /// This priority has a threshold below one of the next, or is throttled harder.
    Order(usize),
    /// Not rising, starting at 0, or more than 2.
    Rises(Vec<u32>),
    /// Not as many as severities, falling, or a gap out of range.
    Values(Throttle, usize),
    /// Not the highest priorities.
    Preferred(u8),
    /// Rising with the priority's number, or TAU0 above the least.
    Tolerance([u32; PRIORITIES], u32),
    /// Above 1 min, or more than 1,000,000 requests of tolerance and wait.
    Wait(Nanos, u64),
    /// Not 100 ms to 1 h.
    CountingPeriod(Nanos),
    /// Not 100 % together.
    Mix([u8; PRIORITIES]),
}

impl fmt::Display for ThrottleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ladder(priority, ladder, rise) => write!(
                f,
                "thresholds of priority {priority}, {ladder:?} and a last onset {rise} above the \
                 first: must be 1 <= abatement <= onset, last onset <= discard < {}, harder 0 to 2",
                u32::MAX
            ),
            Self::Order(priority) => write!(
                f,
                "thresholds of priority {priority}: must not be below those of priority {}, nor \
                 `harder` above its",
                priority + 1
            ),
            Self::Rises(rises) => {
                write!(f, "rises {rises:?}: must be at most 2 rising numbers above 0")
            }
            Self::Values(throttle, severities) => write!(
                f,
                "throttle {throttle:?}: must be {severities} values, one for each severity, that \
                 do not fall; a gap is 1 us to 1 h"
            ),
            Self::Preferred(mask) => write!(
                f,
                "preferred {mask:#010b}: must be the highest priorities, bit 0 (priority 0) first"
            ),
            Self::Tolerance(tau, tau0) => write!(
                f,
                "tolerance {tau:?}, {tau0} at the start (thousandths of a gap): must not rise from \
                 priority 0 to 7, and the start be at most the least"
            ),
            Self::Wait(wait, content) => write!(
                f,
                "wait {wait}: must be at most {WAIT_MAX}, and with the tolerance at most \
                 {CONTENT_MAX} requests, not {content}"
            ),
            Self::CountingPeriod(period) => {
                write!(f, "period {period}: must be 100 ms to 1 h")
            }
            Self::Mix(mix) => write!(f, "mix {mix:?}: must be 100 % together"),
        }
    }
}

impl From<ThrottleError> for ParamsError {
    fn from(error: ThrottleError) -> Self {
        Self::Throttle(error)
    }
}
