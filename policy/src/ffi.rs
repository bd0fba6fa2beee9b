// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C structures as Rust sees them, and the one call. With chain.rs,
//! request.rs, lease.rs, senders.rs, in_flight.rs and min_rate.rs the only unsafe code here.
#![allow(unsafe_code, reason = "the policies are C")]

use crate::{Policy, Reason};
use tidegate_units::Nanos;

/// Priorities that a policy tells apart; 0 is the highest.
pub(crate) const PRIORITIES: usize = 8;
/// Retransmissions that an Abacus schedule may hold (`TG_ABACUS_STEPS_MAX`).
pub(crate) const STEPS_MAX: usize = 12;
/// Length of the table of an exact one (`TG_EXACT_TABLE`), of which as many are used.
pub(crate) const EXACT_TABLE: usize = 16;
/// Severities of a threshold's ladder (`TG_SEVERITIES`).
pub(crate) const SEVERITIES: usize = 3;
/// Size of `struct tg_params` behind its first eight bytes.
const PARAMS_BODY: usize = 136;
/// Size of `struct tg_state`.
pub(crate) const STATE_SIZE: usize = 524_336;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Bucket {
    pub(crate) rate_milli: u64,
    pub(crate) depth: u64,
    pub(crate) full_ns: u64,
    pub(crate) reserve: [u64; PRIORITIES],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct TokenBucket {
    pub(crate) bucket: Bucket,
    pub(crate) action: u32,
    pub(crate) pad: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct FreshFirst {
    pub(crate) bucket: Bucket,
    pub(crate) fresh_reserve: u64,
    pub(crate) action: u32,
    pub(crate) pad: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Abacus {
    pub(crate) bucket: Bucket,
    pub(crate) period_ns: u64,
    pub(crate) room_milli: u32,
    pub(crate) lambda_start_milli: u32,
    pub(crate) window: u16,
    pub(crate) steps: u16,
    pub(crate) schedule: [u16; STEPS_MAX],
    pub(crate) ewma_shift: u8,
    pub(crate) pad: [u8; 3],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AbacusExact {
    pub(crate) bucket: Bucket,
    pub(crate) period_ns: u64,
    pub(crate) room_milli: u32,
    pub(crate) window: u16,
    pub(crate) steps: u16,
    pub(crate) schedule: [u16; EXACT_TABLE],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AbacusLearned {
    pub(crate) bucket: Bucket,
    pub(crate) slot_ns: u64,
    pub(crate) crowd_q32: u32,
    pub(crate) reject_milli: u32,
    pub(crate) steps: u16,
    pub(crate) gap: [u8; 16],
    pub(crate) pad: [u8; 6],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Threshold {
    pub(crate) abatement: [u32; PRIORITIES],
    pub(crate) onset: [u32; PRIORITIES],
    pub(crate) discard: [u32; PRIORITIES],
    pub(crate) rise: [u32; SEVERITIES],
    pub(crate) throttle: [u32; SEVERITIES + 1],
    pub(crate) harder: [u8; PRIORITIES],
    pub(crate) in_force: u8,
    pub(crate) kind: u8,
    pub(crate) preferred: u8,
    pub(crate) action: u8,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Gap {
    pub(crate) bucket: Bucket,
    pub(crate) wait: u64,
    pub(crate) start: u64,
    pub(crate) us_factor: u32,
    pub(crate) us_shift_in: u8,
    pub(crate) us_shift_out: u8,
    pub(crate) action: u8,
    pub(crate) pad: u8,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Percent {
    pub(crate) period_ns: u64,
    pub(crate) share: u32,
    pub(crate) action: u32,
    pub(crate) mix: [u8; PRIORITIES],
}

/// Parameters of one policy (`struct tg_params`), ready for the kernel's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Params {
    policy: u32,
    pad: u32,
    body: [u8; PARAMS_BODY],
}

impl Params {
    /// Parameters that admit everything, under the name of a policy.
    #[must_use]
    pub const fn no_limit(policy: Policy) -> Self {
        Self { policy: policy as u32, pad: 0, body: [0; PARAMS_BODY] }
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

    /// As the kernel's map takes them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: repr(C), 8 + 136 bytes without padding (checked in tests), all plain integers.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    pub(crate) fn new<T: Copy>(policy: Policy, body: &T) -> Self {
        const { assert!(size_of::<T>() <= PARAMS_BODY && align_of::<T>() <= 8) };
        let mut params = Self::no_limit(policy);
        // SAFETY: T is one of the plain repr(C) structures above without padding, and fits.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(body).cast(), size_of::<T>()) };
        params.body[..bytes.len()].copy_from_slice(bytes);
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
        Self { words: vec![0; STATE_SIZE / 8].into_boxed_slice() }
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u64 {
        self.words.as_mut_ptr()
    }

    /// As it lies in the kernel's map.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: u64s are plain bytes, and the length is theirs.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), STATE_SIZE) }
    }

    /// A state with these bytes; `None` if it is not their size.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words =
            bytes.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes));
        (bytes.len() == STATE_SIZE).then(|| Self { words: words.collect() })
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.words.iter().filter(|word| **word != 0).count();
        write!(f, "State({used} of {} words used)", self.words.len())
    }
}

/// One arrival (`struct tg_event`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// When it arrived, nanoseconds of a monotonic clock; may stand still or go back.
    pub now_ns: u64,
    /// Seeded hash of the tuple and the initial sequence number: the same for all copies of a SYN.
    pub key: u64,
    /// 32 random bits.
    pub random: u32,
    /// 0 (highest) to 7; other values count modulo 8.
    pub priority: u8,
    /// Always zero.
    pub pad: u8,
    /// What is not charged of a token, in 1/65536 of it: 0, but in a flood of spoofed senders
    /// ([`crate::Senders::weigh`]).
    pub spared: u16,
    /// How much work waits, in the unit of the thresholds: the length of a queue, or the virtual
    /// waiting time. 0: the host program measures none.
    pub level: u32,
    /// Always zero.
    pub pad_end: u32,
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
    Admit = 0,
    /// Refuse it silently.
    Drop = 1,
    /// Refuse it with an answer.
    Reject = 2,
    /// Let it in later.
    Delay = 3,
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

/// As C has it.
#[derive(Default)]
#[repr(C)]
pub(crate) struct RawVerdict {
    kind: u8,
    reason: u8,
    repeated: u8,
    pad: u8,
    delay_us: u32,
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

// SAFETY: both functions are defined in shim.c with these signatures.
unsafe extern "C" {
    fn tg_native_admit(p: *const Params, s: *mut u64, e: *const Event, v: *mut RawVerdict);
    #[cfg(test)]
    fn tg_native_layout(index: usize) -> usize;
    #[cfg(test)]
    fn tg_native_number(index: usize) -> usize;
}

/// Asks the policy of `params` for its verdict on one event.
#[must_use]
pub fn admit(params: &Params, state: &mut State, event: &Event) -> Verdict {
    let mut raw = RawVerdict::default();
    // SAFETY: the structures have the sizes of their C twins (checked in tests), the state is
    // aligned to 8 and exclusively borrowed, and the policies stay inside what they are given.
    unsafe { tg_native_admit(params, state.words.as_mut_ptr(), event, &mut raw) };
    raw.into()
}

/// The same without the reason: for hosts that ask millions of times a second.
#[must_use]
#[inline]
pub fn judge(params: &Params, state: &mut State, event: &Event) -> VerdictKind {
    let mut raw = RawVerdict::default();
    // SAFETY: as in `admit`.
    unsafe { tg_native_admit(params, state.words.as_mut_ptr(), event, &mut raw) };
    VerdictKind::ALL[usize::from(raw.kind & 3)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Execution, Lease};
    use std::mem::offset_of;

    #[test]
    fn rust_and_c_see_the_same_structures() {
        let ours = [
            size_of::<Params>(),
            STATE_SIZE,
            size_of::<Event>(),
            size_of::<RawVerdict>(),
            offset_of!(Params, body),
            offset_of!(Bucket, reserve),
            offset_of!(TokenBucket, action),
            offset_of!(FreshFirst, fresh_reserve),
            offset_of!(FreshFirst, action),
            offset_of!(Abacus, period_ns),
            offset_of!(Abacus, room_milli),
            offset_of!(Abacus, window),
            offset_of!(Abacus, schedule),
            offset_of!(Abacus, ewma_shift),
            offset_of!(AbacusExact, period_ns),
            offset_of!(AbacusExact, room_milli),
            offset_of!(AbacusExact, window),
            offset_of!(AbacusExact, schedule),
            offset_of!(AbacusLearned, slot_ns),
            offset_of!(AbacusLearned, crowd_q32),
            offset_of!(AbacusLearned, steps),
            offset_of!(AbacusLearned, gap),
            size_of::<Threshold>(),
            offset_of!(Threshold, discard),
            offset_of!(Threshold, rise),
            offset_of!(Threshold, throttle),
            offset_of!(Threshold, harder),
            offset_of!(Threshold, action),
            size_of::<Gap>(),
            offset_of!(Gap, wait),
            offset_of!(Gap, start),
            offset_of!(Gap, us_factor),
            offset_of!(Gap, us_shift_out),
            offset_of!(Gap, action),
            size_of::<Percent>(),
            offset_of!(Percent, share),
            offset_of!(Percent, action),
            offset_of!(Percent, mix),
            offset_of!(RawVerdict, delay_us),
            offset_of!(Event, random),
            offset_of!(Event, priority),
            offset_of!(Event, spared),
            offset_of!(Event, level),
        ];
        let chain = crate::chain::layout().into_iter().chain(crate::request::layout());
        let ours: Vec<usize> = ours.into_iter().chain(chain).collect();
        // SAFETY: reads a constant table; any index is allowed.
        let theirs: Vec<usize> = (0..ours.len()).map(|i| unsafe { tg_native_layout(i) }).collect();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn rust_and_c_have_the_same_numbers() {
        let lease = [Lease::WHOLE.strength() as usize, 0, 1, 2];
        let numbers = crate::chain::NUMBERS.into_iter().chain(crate::request::NUMBERS);
        let ours: Vec<usize> = numbers.chain(lease).collect();
        // SAFETY: reads a constant table; any index is allowed.
        let theirs: Vec<usize> = (0..ours.len()).map(|i| unsafe { tg_native_number(i) }).collect();
        assert_eq!(ours, theirs);
        let executions = [Execution::Executed, Execution::Shadowed, Execution::Spared];
        assert_eq!(executions, [0, 1, 2].map(Execution::from_number));
    }
}
