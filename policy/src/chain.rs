// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole decision about a new connection, for native host programs (`policy/chain/chain.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::ffi::RawVerdict;
use crate::lease::{Execution, Lease};
use crate::{Action, Event, InFlight, MinRate, Noted, Params, Policy, Reason, Senders, Verdict};

/// `TG_LIMITS_SHADOW`.
const SHADOW: u32 = 1;
/// `TG_LIMITS_REJECT`.
const REJECT: u32 = 2;
/// `TG_LIMITS_AUTO`.
const AUTO: u32 = 4;
/// Words of `struct tg_chain`: lock, state of the limits, state of the policy.
const WORDS: usize = 2 + crate::ffi::STATE_SIZE / 8;

/// The limits of one service (`struct tg_limits`), as the chain takes them; the default limits nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Limits {
    flags: u32,
    /// Refuse while the accept queue is at this share of its limit or above, in 1/1024; 0: never.
    pub accept_queue_max_q10: u32,
    /// Connections that may be in flight.
    pub in_flight: InFlight,
    /// Connections that a source may hold, silent or slow, before it opens no more; 0: no limit.
    pub source_max: u32,
    min_rate_us: u32,
    pad: [u32; 3],
    /// Parameters of the policy.
    pub params: Params,
}

impl Limits {
    /// The limits of a policy, and no others.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self {
            flags: 0,
            accept_queue_max_q10: 0,
            in_flight: InFlight::default(),
            source_max: 0,
            min_rate_us: 0,
            pad: [0; 3],
            params,
        }
    }

    /// What is done with the refused.
    pub fn set_action(&mut self, action: Action) {
        let bits = match action {
            Action::Drop => 0,
            Action::Reject => REJECT,
            Action::Auto => REJECT | AUTO,
        };
        self.flags = self.flags & !(REJECT | AUTO) | bits;
    }

    /// Whether refusals are only counted.
    pub fn set_shadow(&mut self, shadow: bool) {
        self.flags = self.flags & !SHADOW | if shadow { SHADOW } else { 0 };
    }

    /// So many pass the limits on the accept queue and in flight, even if they are full.
    pub fn set_min_rate(&mut self, rate: Option<MinRate>) {
        self.min_rate_us = rate.map_or(0, MinRate::interval_us);
    }

    /// Other limits, and what is done with the refused as it was.
    #[must_use]
    pub const fn with_mode_of(self, other: &Self) -> Self {
        Self { flags: other.flags, ..self }
    }

    /// As the kernel's map takes them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: repr(C), 48 + 144 bytes without padding (checked in tests), all plain integers.
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

impl Default for Limits {
    fn default() -> Self {
        Self::new(Params::no_limit(Policy::TokenBucket))
    }
}

/// The accept queue of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Connections in it.
    pub length: u32,
    /// Its limit.
    pub limit: u32,
}

/// What the chain is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The arrival.
    pub event: Event,
    /// The accept queue, where there is a listener.
    pub queue: Option<AcceptQueue>,
    /// Connections that wait for a response.
    pub waiting: u64,
    /// Connections that have said nothing.
    pub silent: u64,
    /// Its source may open no more connections.
    pub over: bool,
}

/// How a verdict is carried out here and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// The source is known to be a single client: with `auto` it may be rejected.
    pub single: bool,
    /// A delay can be carried out; else who is to wait is admitted at once.
    pub waits: bool,
    /// How strong the limits are.
    pub lease: Lease,
    /// 16 random bits, where the lease has begun to end.
    pub random: u32,
}

impl Default for Circumstances {
    /// A single client, a lease that holds, nobody who can wait.
    fn default() -> Self {
        Self { single: true, waits: false, lease: Lease::WHOLE, random: 0 }
    }
}

/// What the chain says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is done, or would be.
    pub verdict: Verdict,
    /// Whether a refusal is carried out.
    pub execution: Execution,
    /// It goes on to the server.
    pub passes: bool,
    /// What is noted of the SYN, should it pass.
    pub noted: Noted,
}

/// `struct tg_ask`.
#[derive(Default)]
#[repr(C)]
struct RawAsk {
    event: Event,
    service: u64,
    waiting: i64,
    silent: i64,
    queue: [u32; 3],
    over: u32,
    verdict: RawVerdict,
    flags: u32,
    noted: u8,
    execution: u8,
    waits: u8,
    pad: u8,
}

/// `struct tg_native`.
#[repr(C)]
struct Native {
    limits: *const Limits,
    chain: *mut u64,
    senders: *mut u64,
}

// SAFETY: all are defined in shim.c with these signatures.
unsafe extern "C" {
    fn tg_native_decide(host: *const Native, ask: *mut RawAsk) -> i32;
    fn tg_native_execute(ask: *mut RawAsk, single: i32, strength: u32, random: u32);
    fn tg_native_replies(ask: *const RawAsk) -> i32;
    fn tg_native_silent(ask: *mut RawAsk, reason: u8);
    fn tg_native_passes(ask: *const RawAsk) -> i32;
}

/// Limits and memory of one service.
#[derive(Clone, Debug)]
pub struct Chain {
    limits: Limits,
    words: Box<[u64]>,
    senders: Senders,
}

impl Default for Chain {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Chain {
    /// A chain that has seen nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, words: vec![0; WORDS].into_boxed_slice(), senders: Senders::default() }
    }

    /// Other limits; what was seen stays.
    pub const fn set(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The limits in force.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What is known of the senders of SYNs.
    pub const fn senders(&mut self) -> &mut Senders {
        &mut self.senders
    }

    /// Decides. `reply` is asked only for what is to be refused with a reply: whether one may be sent,
    /// or the reason why not; it is told whether most SYNs are spoofed.
    pub fn decide(
        &mut self,
        ask: &Ask,
        how: &Circumstances,
        reply: impl FnOnce(bool) -> Result<(), Reason>,
    ) -> Decision {
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut raw = RawAsk {
            event: ask.event,
            waiting: gauge(ask.waiting),
            silent: gauge(ask.silent),
            queue: ask.queue.map_or([0; 3], |queue| [queue.length, queue.limit, 1]),
            over: ask.over.into(),
            waits: how.waits.into(),
            ..RawAsk::default()
        };
        let host = Native {
            limits: &raw const self.limits,
            chain: self.words.as_mut_ptr(),
            senders: self.senders.as_mut_ptr(),
        };
        // SAFETY: all structures are twins of the C ones (checked in tests), live through the call and
        // are exclusively borrowed; the chain stays inside what it is given.
        unsafe {
            tg_native_decide(&raw const host, &raw mut raw);
            let Circumstances { single, lease, random, .. } = *how;
            tg_native_execute(&raw mut raw, single.into(), lease.strength(), random);
        }
        // SAFETY: reads a twin of the C structure.
        if unsafe { tg_native_replies(&raw const raw) } != 0
            && let Err(reason) = reply(raw.event.spared != 0)
        {
            // SAFETY: as above, and it is changed by nobody else.
            unsafe { tg_native_silent(&raw mut raw, reason as u8) };
        }
        Decision {
            // SAFETY: as above.
            passes: unsafe { tg_native_passes(&raw const raw) } != 0,
            noted: Noted::new(raw.event.now_ns, raw.noted),
            execution: Execution::from_number(raw.execution),
            verdict: raw.verdict.into(),
        }
    }
}

/// Flags, in the order of shim.c.
#[cfg(test)]
pub(crate) const NUMBERS: [usize; 3] = [SHADOW as usize, REJECT as usize, AUTO as usize];

#[cfg(test)]
pub(crate) fn layout() -> [usize; 12] {
    use std::mem::offset_of;
    [
        size_of::<Limits>(),
        offset_of!(Limits, in_flight),
        offset_of!(Limits, source_max),
        offset_of!(Limits, params),
        WORDS * 8,
        size_of::<RawAsk>(),
        offset_of!(RawAsk, waiting),
        offset_of!(RawAsk, queue),
        offset_of!(RawAsk, over),
        offset_of!(RawAsk, verdict),
        offset_of!(RawAsk, noted),
        offset_of!(RawAsk, execution),
    ]
}
