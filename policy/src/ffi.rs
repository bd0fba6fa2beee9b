// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parameters, memory, events and verdicts of a policy, and the one call. With chain.rs,
//! request.rs, lease.rs, senders.rs, in_flight.rs and min_rate.rs the only unsafe code here.
#![allow(unsafe_code, reason = "the policies are C")]

use crate::abi::{self, Event, Params, PolicyParams, Verdict as RawVerdict};
use crate::{Policy, Reason};
use tidegate_units::Nanos;
use zerocopy::{Immutable, IntoBytes};

/// Where `struct tg_state` has the rungs of thresholds.
const RUNG_AT: usize = 40;
/// Words of `struct tg_state`.
const WORDS: usize = size_of::<abi::State>() / 8;

impl Params {
    /// Parameters that admit everything, under the name of a policy.
    #[must_use]
    pub const fn no_limit(policy: Policy) -> Self {
        let u = PolicyParams { _bindgen_opaque_blob: [0; _] };
        Self { policy: policy as u32, pad: 0, u }
    }

    /// Whose parameters these are.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let known = Policy::ALL.iter().copied().find(|policy| *policy as u32 == self.policy);
        known.unwrap_or(Policy::TokenBucket)
    }

    /// The number that stands for the policy: as written by another version, it may be none of these.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.policy
    }

    pub(crate) fn new<T: IntoBytes + Immutable>(policy: Policy, body: &T) -> Self {
        const { assert!(size_of::<T>() <= size_of::<PolicyParams>()) };
        let mut params = Self::no_limit(policy);
        let bytes = body.as_bytes();
        params.u.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        params
    }
}

/// The memory of one policy (`struct tg_state`); zero is fresh.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    words: Box<[u64]>,
}

impl State {
    /// A state that has seen nothing.
    #[must_use]
    pub fn fresh() -> Self {
        Self { words: vec![0; WORDS].into_boxed_slice() }
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut abi::State {
        self.words.as_mut_ptr().cast()
    }

    /// As it lies in the kernel's map.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.words.as_bytes()
    }

    /// Of a state of [`Policy::Threshold`], as it lies in the kernel's map: the rung of each priority.
    /// `None` if there are too few bytes.
    #[must_use]
    pub fn rungs(bytes: &[u8]) -> Option<[u8; abi::PRIORITIES]> {
        bytes.get(RUNG_AT..)?.first_chunk().copied()
    }

    /// A state with these bytes; `None` if it is not their size.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words =
            bytes.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes));
        (bytes.len() == 8 * WORDS).then(|| Self { words: words.collect() })
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.words.iter().filter(|word| **word != 0).count();
        write!(f, "State({used} of {} words used)", self.words.len())
    }
}

impl Event {
    /// An event of the highest priority at this time, its key derived from the time.
    #[must_use]
    pub const fn at(now_ns: u64) -> Self {
        let key = now_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { now_ns, key, random: 0, priority: 0, pad: 0, spared: 0, level: 0, pad_end: 0 }
    }

    /// The same with this time.
    #[must_use]
    pub const fn when(mut self, now: Nanos) -> Self {
        self.now_ns = now.0;
        self
    }
}

/// What is done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum VerdictKind {
    /// Let it in.
    Admit = abi::TG_ADMIT as u8,
    /// Refuse it silently.
    Drop = abi::TG_DROP as u8,
    /// Refuse it with an answer.
    Reject = abi::TG_REJECT as u8,
    /// Let it in later.
    Delay = abi::TG_DELAY as u8,
}

impl VerdictKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Admit, Self::Drop, Self::Reject, Self::Delay];

    /// The name in counters and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::Delay => "delay",
        }
    }
}

/// A verdict with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What to do.
    pub kind: VerdictKind,
    /// Why.
    pub reason: Reason,
    /// Whether the event is known to be a copy of a SYN that was refused.
    pub repeated: bool,
    /// When it is to be let in, from now on; above zero only for [`VerdictKind::Delay`].
    pub delay: Nanos,
}

impl From<RawVerdict> for Verdict {
    fn from(raw: RawVerdict) -> Self {
        Self {
            kind: VerdictKind::ALL[usize::from(raw.kind & 3)],
            reason: Reason::from_number(raw.reason).unwrap_or(Reason::None),
            repeated: raw.repeated != 0,
            delay: Nanos::from_micros(raw.delay_us.into()),
        }
    }
}

impl From<&Verdict> for RawVerdict {
    fn from(verdict: &Verdict) -> Self {
        Self {
            kind: verdict.kind as u8,
            reason: verdict.reason as u8,
            repeated: verdict.repeated.into(),
            pad: 0,
            delay_us: u32::try_from(verdict.delay.0 / 1000).unwrap_or(u32::MAX),
        }
    }
}

/// Asks the policy of `params` for its verdict on one event.
#[must_use]
pub fn admit(params: &Params, state: &mut State, event: &Event) -> Verdict {
    let mut raw = RawVerdict::default();
    // SAFETY: the state has the size and alignment of the C one and is exclusively borrowed; the
    // policies stay inside what they are given.
    unsafe { abi::tg_native_admit(params, state.as_mut_ptr(), event, &mut raw) };
    raw.into()
}

/// The same without the reason: for hosts that ask millions of times a second.
#[must_use]
#[inline]
pub fn evaluate(params: &Params, state: &mut State, event: &Event) -> VerdictKind {
    let mut raw = RawVerdict::default();
    // SAFETY: as in `admit`.
    unsafe { abi::tg_native_admit(params, state.as_mut_ptr(), event, &mut raw) };
    VerdictKind::ALL[usize::from(raw.kind & 3)]
}
