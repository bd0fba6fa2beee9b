// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The decision about a request that has a rule, for native host programs
//! (`policy/chain/request.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::ffi::{PRIORITIES, RawVerdict};
use crate::lease::Execution;
use crate::{Action, BucketSpec, Circumstances, Event, Params, ParamsError, Policy, Verdict};
use tidegate_units::Rate;

/// `TG_BUCKET_SHADOW`.
const SHADOW: u32 = 1;
/// `TG_BUCKET_LIMITED`.
const LIMITED: u32 = 2;
/// `TG_RANKS`.
const RANKS: usize = 3;
/// Words of `struct tg_request_chain`.
const WORDS: usize = 16;

/// What a request is in the bucket of its rule, in the order of who is refused last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// It has what its rule protects.
    Protected = 0,
    /// Any other: the first of its connection, and later ones where the rule does not close.
    New = 1,
    /// A later one of its connection, where the rule closes.
    Persistent = 2,
}

/// The limits of one bucket (`struct tg_request_limits`); the default limits nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct RequestLimits {
    flags: u32,
    pad: u32,
    params: Params,
}

impl RequestLimits {
    /// A token bucket; without a rate no limit. `reserve`: tokens that a request of each rank must
    /// leave, not falling, each below the burst.
    ///
    /// # Errors
    /// When rate, burst or reserve are out of range.
    pub fn bucket(
        rate: Option<Rate>,
        burst: u32,
        reserve: [u32; RANKS],
    ) -> Result<Self, ParamsError> {
        let Some(rate) = rate else { return Ok(Self::default()) };
        let mut spec = BucketSpec::new(rate, burst, Action::Reject);
        spec.reserve = [reserve[RANKS - 1]; PRIORITIES];
        spec.reserve[..RANKS].copy_from_slice(&reserve);
        Ok(Self { flags: LIMITED, pad: 0, params: Params::token_bucket(&spec)? })
    }

    /// The limits of a policy that serves requests; `None` for another.
    #[must_use]
    pub fn new(params: Params) -> Option<Self> {
        let limited = params != Params::no_limit(params.policy());
        let flags = if limited { LIMITED } else { 0 };
        params.policy().serves_requests().then_some(Self { flags, pad: 0, params })
    }

    /// Says whether refusals are only counted.
    pub fn set_shadow(&mut self, shadow: bool) {
        self.flags = self.flags & !SHADOW | if shadow { SHADOW } else { 0 };
    }

    /// Other limits, and shadow as it was.
    #[must_use]
    pub const fn with_mode_of(self, other: &Self) -> Self {
        Self { flags: self.flags & !SHADOW | other.flags & SHADOW, ..self }
    }

    /// Whether refusals are only counted.
    #[must_use]
    pub const fn shadow(&self) -> bool {
        self.flags & SHADOW != 0
    }

    /// Whether there is a limit.
    #[must_use]
    pub const fn limited(&self) -> bool {
        self.flags & LIMITED != 0
    }

    /// Parameters of the policy.
    #[must_use]
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// As the kernel's map takes them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: repr(C), 8 + 144 bytes without padding (checked in tests), all plain integers.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// From the kernel's map; `None` if there are too few bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the length is checked, the read needs no alignment, any bytes are a value.
        (bytes.len() >= size_of::<Self>())
            .then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { flags: 0, pad: 0, params: Params::no_limit(Policy::TokenBucket) }
    }
}

// SAFETY: all are defined in shim.c with these signatures.
unsafe extern "C" {
    fn tg_native_request(
        limits: *const RequestLimits,
        chain: *mut u64,
        event: *const Event,
        waits: i32,
        verdict: *mut RawVerdict,
    );
    fn tg_native_request_execution(
        limits: *const RequestLimits,
        verdict: *const RawVerdict,
        strength: u32,
        random: u32,
    ) -> i32;
    fn tg_native_rank(protected: i32, first: i32, closes: i32) -> u32;
}

impl Rank {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Protected, Self::New, Self::Persistent];

    /// The rank of a request. `closes`: so its rule says.
    #[must_use]
    pub fn of(protected: bool, first: bool, closes: bool) -> Self {
        // SAFETY: computes with its arguments only.
        let rank = unsafe { tg_native_rank(protected.into(), first.into(), closes.into()) };
        Self::ALL[rank as usize % Self::ALL.len()]
    }
}

/// Limits and memory of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestChain {
    limits: RequestLimits,
    words: [u64; WORDS],
}

impl RequestChain {
    /// Other limits; what was seen stays, but for what another policy has seen.
    pub const fn set(&mut self, limits: RequestLimits) {
        self.limits = limits;
    }

    /// The limits in force.
    #[must_use]
    pub const fn limits(&self) -> &RequestLimits {
        &self.limits
    }

    /// What the bucket says to a request of this rank, and whether that is carried out: only a refusal
    /// may not be. A request has no action that depends on a single client, so `how` is not asked for
    /// it.
    pub fn decide(
        &mut self,
        event: &Event,
        rank: Rank,
        how: &Circumstances,
    ) -> (Verdict, Execution) {
        let event = Event { priority: rank as u8, ..*event };
        let (limits, mut raw) = (&raw const self.limits, RawVerdict::default());
        let Circumstances { waits, lease, random, .. } = *how;
        // SAFETY: the structures are twins of the C ones (checked in tests), and are exclusively borrowed.
        let execution = unsafe {
            tg_native_request(limits, self.words.as_mut_ptr(), &event, waits.into(), &raw mut raw);
            tg_native_request_execution(limits, &raw const raw, lease.strength(), random)
        };
        (Verdict::from(raw), Execution::from_number(execution as u8))
    }
}

/// Flags and ranks, in the order of shim.c.
#[cfg(test)]
pub(crate) const NUMBERS: [usize; 3] = [SHADOW as usize, LIMITED as usize, RANKS];

#[cfg(test)]
pub(crate) fn layout() -> [usize; 3] {
    [size_of::<RequestLimits>(), std::mem::offset_of!(RequestLimits, params), WORDS * 8]
}
