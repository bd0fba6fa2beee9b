// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what an operator or a controller says to what a policy computes with: every division and
//! every bound is here, once per change, so that there is none per packet.

use crate::abi::{
    ABACUS_PERIODS, ABACUS_STEPS_MAX, AbacusExactParams, AbacusLearnedParams, AbacusParams,
    BURST_MAX, BucketParams, FreshFirstParams, LEARNED_CALM, PRIORITIES, RATE_MILLI_MAX, TG_DROP,
    TG_REJECT, TOKEN, TokenBucketParams,
};
use crate::{Params, Policy, ThrottleError};
use std::fmt;
use tidegate_units::{Nanos, Rate};

/// Largest window of an Abacus filter, in periods.
const WINDOW_MAX: u16 = ABACUS_PERIODS - 1;
/// Longest gap that abacus_learned looks ahead, in slots: below its ring by the slots around it.
const SLOTS_MAX: u8 = 248;
/// Largest cost of a rejection, in thousandths of a slot: four bits are for fractions, one is spare.
const REJECT_MILLI_MAX: f64 = (1_u64 << 27) as f64;

/// What is done with an event that finds no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Refuse silently: the client tries again.
    Drop,
    /// Refuse with an answer: most clients give up at once.
    Reject,
    /// One of the two for each source, as the host program knows it; the policy rejects.
    Auto,
}

impl Action {
    /// `TG_DROP` or `TG_REJECT`.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Drop => TG_DROP as u8,
            Self::Reject | Self::Auto => TG_REJECT as u8,
        }
    }
}

/// A bucket: rate, depth, what happens to the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketSpec {
    /// Tokens per second; above 0.
    pub rate: Rate,
    /// Depth in tokens, 1 to 1,000,000.
    pub burst: u32,
    /// What is done without a token (an Abacus filter decides that by itself).
    pub action: Action,
    /// Tokens that an event of priority i must leave; not falling with i, below `burst`.
    pub reserve: [u32; PRIORITIES],
}

impl BucketSpec {
    /// A bucket that knows no priorities.
    #[must_use]
    pub const fn new(rate: Rate, burst: u32, action: Action) -> Self {
        Self { rate, burst, action, reserve: [0; PRIORITIES] }
    }

    /// The bucket, and what an event of each priority must leave in it.
    pub(crate) fn compile(&self) -> Result<(BucketParams, [u64; PRIORITIES]), ParamsError> {
        let rate_milli = self.rate.as_milli();
        if rate_milli == 0 || rate_milli > RATE_MILLI_MAX {
            return Err(ParamsError::Rate(self.rate));
        }
        if self.burst == 0 || self.burst > BURST_MAX {
            return Err(ParamsError::Burst(self.burst));
        }
        let rising = self.reserve.windows(2).all(|pair| pair[0] <= pair[1]);
        if !rising || self.reserve[PRIORITIES - 1] >= self.burst {
            return Err(ParamsError::Reserve(self.reserve, self.burst));
        }
        let depth = u64::from(self.burst) * TOKEN;
        let bucket = BucketParams { rate_milli, depth, full_ns: depth.div_ceil(rate_milli) };
        Ok((bucket, self.reserve.map(|tokens| u64::from(tokens) * TOKEN)))
    }

    const fn action(&self) -> u32 {
        self.action.code() as u32
    }
}

/// An Abacus filter.
#[derive(Clone, Debug, PartialEq)]
pub struct AbacusSpec {
    /// Stage one. Its action does not matter.
    pub bucket: BucketSpec,
    /// T_i: when the i-th retransmission arrives, in periods since the first SYN; rising, 1 to 12.
    pub schedule: Vec<u16>,
    /// S: how far ahead to borrow, in periods; 0 (reject all excess) to 127.
    pub window: u16,
    /// T0: 1 ms to 1 hour.
    pub period: Nanos,
    /// First estimate of the arrival rate.
    pub lambda_start: Rate,
    /// The estimate moves by 1/2^shift a period; 0 to 15, 3 as published by us.
    pub ewma_shift: u8,
}

impl AbacusSpec {
    /// The filter of the paper's evaluation: classic schedule 3, 9, 21, 45 s, T0 = 1 s.
    #[must_use]
    pub fn classic(bucket: BucketSpec, window: u16) -> Self {
        Self {
            bucket,
            schedule: vec![3, 9, 21, 45],
            window,
            period: Nanos::SECOND,
            lambda_start: Rate::ZERO,
            ewma_shift: 3,
        }
    }

    fn check(&self) -> Result<(), ParamsError> {
        check_plan(&self.schedule, self.window)?;
        check_period(self.period, self.ewma_shift)
    }
}

/// An Abacus filter that recognises retransmissions.
#[derive(Clone, Debug, PartialEq)]
pub struct AbacusExactSpec {
    /// Stage one. Its action does not matter.
    pub bucket: BucketSpec,
    /// T_i: when the i-th retransmission arrives, in periods since the first SYN; rising, 1 to 12.
    pub schedule: Vec<u16>,
    /// S: how far ahead to borrow, and the longest gap that a client is left to wait, in periods;
    /// 0 (reject all excess) to 127.
    pub window: u16,
    /// T0: 1 ms to 1 hour.
    pub period: Nanos,
}

impl AbacusExactSpec {
    /// The load of the paper's evaluation: classic schedule 3, 9, 21, 45 s, T0 = 1 s.
    #[must_use]
    pub fn classic(bucket: BucketSpec, window: u16) -> Self {
        Self { bucket, schedule: vec![3, 9, 21, 45], window, period: Nanos::SECOND }
    }

    pub(crate) fn compile(&self) -> Result<AbacusExactParams, ParamsError> {
        check_plan(&self.schedule, self.window)?;
        check_period(self.period, 0)?;
        let (bucket, reserve) = self.bucket.compile()?;
        Ok(AbacusExactParams {
            bucket,
            reserve,
            period_ns: self.period.0,
            room_milli: per_period(self.bucket.rate, self.period),
            window: self.window,
            steps: self.schedule.len() as u16,
            schedule: table(&self.schedule),
        })
    }
}

/// An Abacus filter that learns what waiting costs.
#[derive(Clone, Debug, PartialEq)]
pub struct AbacusLearnedSpec {
    /// Stage one. Its action does not matter.
    pub bucket: BucketSpec,
    /// T_i: when the i-th retransmission arrives, in periods since the first SYN; rising, 1 to 12.
    /// A client is never left to wait for a retransmission more than 62 periods away.
    pub schedule: Vec<u16>,
    /// r / h: the wait that costs as much as a rejection; 0 (reject all excess) to 33,554 periods.
    pub reject: Nanos,
    /// T0: 4 ms to 1 hour.
    pub period: Nanos,
}

impl AbacusLearnedSpec {
    /// The load of the paper's evaluation: classic schedule 3, 9, 21, 45 s, T0 = 1 s, r = 75 h.
    #[must_use]
    pub fn classic(bucket: BucketSpec) -> Self {
        Self {
            bucket,
            schedule: vec![3, 9, 21, 45],
            reject: Nanos::from_secs(75),
            period: Nanos::SECOND,
        }
    }

    /// Slots (quarters of a period) between attempts, as far as the filter looks ahead.
    fn gaps(&self) -> Vec<u8> {
        let before = std::iter::once(0).chain(self.schedule.iter().copied());
        let gaps = self.schedule.iter().zip(before).map(|(at, before)| at - before);
        let slots = |gap: u16| u8::try_from(u32::from(gap) * 4).ok();
        gaps.map_while(|gap| slots(gap).filter(|slots| *slots <= SLOTS_MAX)).collect()
    }
}

fn check_plan(schedule: &[u16], window: u16) -> Result<(), ParamsError> {
    let rising = schedule.windows(2).all(|pair| pair[0] < pair[1]);
    let first = schedule.first().copied().unwrap_or(0);
    if !rising || first == 0 || schedule.len() > ABACUS_STEPS_MAX {
        return Err(ParamsError::Schedule(schedule.to_vec()));
    }
    if window > WINDOW_MAX {
        return Err(ParamsError::Window(window));
    }
    Ok(())
}

fn check_period(period: Nanos, shift: u8) -> Result<(), ParamsError> {
    if period < Nanos::from_millis(1) || period > Nanos::from_secs(3600) || shift > 15 {
        return Err(ParamsError::Period(period, shift));
    }
    Ok(())
}

/// As the policies take a schedule: a table of fixed length.
fn table<const N: usize>(schedule: &[u16]) -> [u16; N] {
    let mut table = [0; N];
    table[..schedule.len()].copy_from_slice(schedule);
    table
}

/// Thousandths of a SYN per period, saturating.
fn per_period(rate: Rate, period: Nanos) -> u32 {
    (rate.get() * 1e3 * period.as_secs_f64()).round() as u32
}

impl Params {
    /// A plain token bucket.
    ///
    /// # Errors
    /// When rate, burst or reserve are out of range.
    pub fn token_bucket(spec: &BucketSpec) -> Result<Self, ParamsError> {
        let (bucket, reserve) = spec.compile()?;
        let body = TokenBucketParams { bucket, reserve, action: spec.action(), pad: 0 };
        Ok(Self::new(Policy::TokenBucket, &body))
    }

    /// A token bucket that serves first attempts first: half of what the lowest priority may use
    /// is kept for them.
    ///
    /// # Errors
    /// When rate, burst or reserve are out of range.
    pub fn fresh_first(spec: &BucketSpec) -> Result<Self, ParamsError> {
        let usable = spec.burst.saturating_sub(spec.reserve[PRIORITIES - 1]);
        let (bucket, reserve) = spec.compile()?;
        let body = FreshFirstParams {
            bucket,
            reserve,
            fresh_reserve: u64::from(usable / 2) * TOKEN,
            action: spec.action(),
            pad: 0,
        };
        Ok(Self::new(Policy::FreshFirst, &body))
    }

    /// An Abacus filter.
    ///
    /// # Errors
    /// When the bucket, schedule, window or period are out of range.
    pub fn abacus(spec: &AbacusSpec) -> Result<Self, ParamsError> {
        spec.check()?;
        let (bucket, reserve) = spec.bucket.compile()?;
        let body = AbacusParams {
            bucket,
            reserve,
            period_ns: spec.period.0,
            room_milli: per_period(spec.bucket.rate, spec.period),
            lambda_start_milli: per_period(spec.lambda_start, spec.period),
            window: spec.window,
            steps: spec.schedule.len() as u16,
            schedule: table(&spec.schedule),
            ewma_shift: spec.ewma_shift,
            pad: [0; 3],
        };
        Ok(Self::new(Policy::Abacus, &body))
    }

    /// An Abacus filter that recognises retransmissions.
    ///
    /// # Errors
    /// When the bucket, schedule, window or period are out of range.
    pub fn abacus_exact(spec: &AbacusExactSpec) -> Result<Self, ParamsError> {
        Ok(Self::new(Policy::AbacusExact, &spec.compile()?))
    }
}

impl Params {
    /// An Abacus filter that learns what waiting costs.
    ///
    /// # Errors
    /// When the bucket, schedule, period or cost of a rejection are out of range.
    pub fn abacus_learned(spec: &AbacusLearnedSpec) -> Result<Self, ParamsError> {
        check_plan(&spec.schedule, 0)?;
        check_period(spec.period, 0)?;
        let slot_ns = spec.period.0 / 4;
        let reject_milli = spec.reject.0 as f64 / slot_ns as f64 * 1e3;
        if slot_ns < 1_000_000 || reject_milli > REJECT_MILLI_MAX {
            return Err(ParamsError::Reject(spec.reject, spec.period));
        }
        let room_milli = spec.bucket.rate.get() * 1e3 * spec.period.as_secs_f64();
        let gaps = spec.gaps();
        let mut gap = [0; 16];
        gap[..gaps.len()].copy_from_slice(&gaps);
        let (bucket, reserve) = spec.bucket.compile()?;
        let body = AbacusLearnedParams {
            bucket,
            reserve,
            slot_ns,
            crowd_q32: (f64::from(LEARNED_CALM) / room_milli * (1_u64 << 32) as f64) as u32,
            reject_milli: reject_milli as u32,
            steps: gaps.len() as u16,
            gap,
            pad: [0; 6],
        };
        Ok(Self::new(Policy::AbacusLearned, &body))
    }
}

/// Why parameters were not accepted.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamsError {
    /// Not above 0, or above 1e9 per second.
    Rate(Rate),
    /// Not 1 to 1,000,000 tokens.
    Burst(u32),
    /// Falling, or nothing left for the lowest priority.
    Reserve([u32; PRIORITIES], u32),
    /// Empty, not rising, starting at 0, or longer than 12.
    Schedule(Vec<u16>),
    /// Above 127 periods.
    Window(u16),
    /// Period not 1 ms to 1 h, or weight shift above 15.
    Period(Nanos, u8),
    /// Cost of a rejection above 33,554 periods, or a period below 4 ms.
    Reject(Nanos, Nanos),
    /// Of a policy that throttles.
    Throttle(ThrottleError),
}

impl fmt::Display for ParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => write!(f, "rate {rate}: must be above 0 and at most 1e9/s"),
            Self::Burst(burst) => write!(f, "burst {burst}: must be 1 to {BURST_MAX} tokens"),
            Self::Reserve(reserve, burst) => write!(
                f,
                "reserve {reserve:?}: must not fall with the priority, and stay below the burst {burst}"
            ),
            Self::Schedule(schedule) => write!(
                f,
                "schedule {schedule:?}: must be 1 to {ABACUS_STEPS_MAX} rising numbers of periods above 0"
            ),
            Self::Window(window) => {
                write!(f, "window {window}: must be at most {WINDOW_MAX} periods")
            }
            Self::Period(period, shift) => write!(
                f,
                "period {period}, weight 1/2^{shift}: must be 1 ms to 1 h, and a shift of at most 15"
            ),
            Self::Reject(reject, period) => write!(
                f,
                "a rejection worth {reject} at a period of {period}: must be at most 33554 periods of 4 ms or more"
            ),
            Self::Throttle(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ParamsError {}
