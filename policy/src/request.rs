// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The decision about a request that has a rule, for native host programs
//! (`policy/chain/request.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi::{
    self, BUCKET_FROM_SHIFT, BUCKET_LIMITED, BUCKET_SHADOW, PRIORITIES, RANKS, RequestLimits,
};
use crate::chain::{UNKNOWN, spares, with_canary};
use crate::lease::Execution;
use crate::{
    Action, BucketSpec, Circumstances, Event, Level, Params, ParamsError, Policy, Verdict,
};
use tidegate_units::Rate;
use zerocopy::IntoBytes;

/// Where `struct tg_request_chain` has the rungs of thresholds.
const RUNG_AT: usize = 40;

/// What a request is in the bucket of its rule, in the order of who is refused last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// It has what its rule protects.
    Protected = abi::RANK_PROTECTED,
    /// Any other: the first of its connection, and later ones where the rule does not close.
    New = abi::RANK_NEW,
    /// A later one of its connection, where the rule closes.
    Persistent = abi::RANK_PERSISTENT,
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
        Ok(Self { flags: BUCKET_LIMITED, in_flight_q10: 0, params: Params::token_bucket(&spec)? })
    }

    /// The limits of a policy that serves requests; `None` for another.
    #[must_use]
    pub fn new(params: Params) -> Option<Self> {
        let limited = params != Params::no_limit(params.policy());
        let flags = if limited { BUCKET_LIMITED } else { 0 };
        params.policy().serves_requests().then_some(Self { flags, in_flight_q10: 0, params })
    }

    /// What the policy is told of the work that waits. Only requests in flight count: the connection of
    /// a request is established.
    #[must_use]
    pub const fn with_level(self, level: Level) -> Self {
        Self { in_flight_q10: level.in_flight_q10, ..self }
    }

    /// The same limits for this priority and all lower ones; those above take tokens, and are never
    /// refused. For hosts that know priorities ([`RequestChain::decide_by_priority`]).
    #[must_use]
    pub const fn from_priority(self, priority: u8) -> Self {
        let bits = (PRIORITIES as u32 - 1) << BUCKET_FROM_SHIFT;
        let from = (priority as u32) << BUCKET_FROM_SHIFT;
        Self { flags: self.flags & !bits | from & bits, ..self }
    }

    /// Says whether refusals are only counted.
    pub fn set_shadow(&mut self, shadow: bool) {
        self.flags = self.flags & !BUCKET_SHADOW | if shadow { BUCKET_SHADOW } else { 0 };
    }

    /// Of which share of the sources refusals are carried out, in 1/65536; 0: of all.
    pub const fn set_canary(&mut self, share_q16: u16) {
        self.flags = with_canary(self.flags, share_q16);
    }

    /// Other limits, and whose refusals are carried out as it was.
    #[must_use]
    pub const fn with_mode_of(self, other: &Self) -> Self {
        let flags = self.flags & !BUCKET_SHADOW | other.flags & BUCKET_SHADOW;
        Self { flags: with_canary(flags, (other.flags >> abi::CANARY_SHIFT) as u16), ..self }
    }

    /// Whether refusals are only counted.
    #[must_use]
    pub const fn shadow(&self) -> bool {
        self.flags & BUCKET_SHADOW != 0
    }

    /// Whether there is a limit.
    #[must_use]
    pub const fn limited(&self) -> bool {
        self.flags & BUCKET_LIMITED != 0
    }

    /// Parameters of the policy.
    #[must_use]
    pub const fn params(&self) -> &Params {
        &self.params
    }
}

impl Rank {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Protected, Self::New, Self::Persistent];

    /// The rank of a request. `closes`: so its rule says.
    #[must_use]
    pub fn of(protected: bool, first: bool, closes: bool) -> Self {
        // SAFETY: computes with its arguments only.
        let rank = unsafe { abi::tg_native_rank(protected.into(), first.into(), closes.into()) };
        Self::ALL[rank as usize % Self::ALL.len()]
    }
}

/// Limits and memory of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestChain {
    limits: RequestLimits,
    memory: abi::RequestChain,
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

    /// The rung of each priority on its ladder; `None`: the policy has no thresholds.
    #[must_use]
    pub fn rungs(&self) -> Option<[u8; PRIORITIES]> {
        let has = self.limits.params().policy() == Policy::Threshold;
        // of another policy's memory nothing is known
        let own = self.memory.policy == self.limits.params().number();
        has.then(|| {
            own.then(|| Self::rungs_in(self.memory.as_bytes())).flatten().unwrap_or_default()
        })
    }

    /// Of the memory of a bucket of `Policy::Threshold`, as it lies in the kernel's map: the rung of each
    /// priority. `None` if there are too few bytes.
    #[must_use]
    pub fn rungs_in(bytes: &[u8]) -> Option<[u8; PRIORITIES]> {
        bytes.get(RUNG_AT..)?.first_chunk().copied()
    }

    /// What the bucket says to a request of this rank, and whether that is carried out: only a refusal
    /// may not be. `waiting`: requests of the service that wait for a response, this one apart. A request has no action that depends on a single client, so `how` is not asked for
    /// it.
    pub fn decide(
        &mut self,
        event: &Event,
        (rank, waiting): (Rank, u64),
        how: &Circumstances,
    ) -> (Verdict, Execution) {
        self.decide_by_priority(&Event { priority: rank as u8, ..*event }, waiting, how)
    }

    /// The same for a host that knows priorities and no ranks: that of the event counts, and limits are
    /// made for eight of them.
    pub fn decide_by_priority(
        &mut self,
        event: &Event,
        waiting: u64,
        how: &Circumstances,
    ) -> (Verdict, Execution) {
        let mut event = *event;
        let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
        let (limits, mut raw) = (&raw const self.limits, abi::Verdict::default());
        let Circumstances { waits, source, lease, random, .. } = *how;
        let waits = waits && !spares(self.limits.flags, source);
        let source = source.unwrap_or(UNKNOWN);
        // SAFETY: the structures are the C ones, and are exclusively borrowed.
        let execution = unsafe {
            abi::tg_native_request(
                limits,
                &raw mut self.memory,
                &raw mut event,
                waiting,
                waits.into(),
                &raw mut raw,
            );
            abi::tg_native_request_execution(
                limits,
                &raw const raw,
                source,
                lease.strength(),
                random,
            )
        };
        (Verdict::from(raw), Execution::from_number(execution as u8))
    }
}
