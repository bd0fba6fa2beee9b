// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole decision about a new connection, for native host programs (`policy/chain/chain.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi::{
    self, CANARY_SHIFT, LIMITS_AUTO, LIMITS_COPIES, LIMITS_REJECT, LIMITS_SHADOW, Limits,
    PRIORITIES, Queue,
};
use crate::lease::{self, Execution, Lease};
use crate::{Action, Event, MinRate, Noted, Params, Policy, Reason, Senders, State, Verdict};
use std::mem::offset_of;
use tidegate_units::Nanos;
use zerocopy::IntoBytes;

/// Words of `struct tg_chain`.
const WORDS: usize = size_of::<abi::Chain>() / 8;
/// Words of `struct tg_bucket_copy`.
const COPY_WORDS: usize = size_of::<abi::BucketCopy>() / 8;

impl Limits {
    /// The limits of a policy, and no others.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self { params, ..Self::default() }
    }

    /// What is done with the refused.
    pub fn set_action(&mut self, action: Action) {
        let bits = match action {
            Action::Drop => 0,
            Action::Reject => LIMITS_REJECT,
            Action::Auto => LIMITS_REJECT | LIMITS_AUTO,
        };
        self.flags = self.flags & !(LIMITS_REJECT | LIMITS_AUTO) | bits;
    }

    /// Whether refusals are only counted.
    pub fn set_shadow(&mut self, shadow: bool) {
        self.flags = self.flags & !LIMITS_SHADOW | if shadow { LIMITS_SHADOW } else { 0 };
    }

    /// Of which share of the sources refusals are carried out, in 1/65536; 0: of all.
    pub const fn set_canary(&mut self, share_q16: u16) {
        self.flags = with_canary(self.flags, share_q16);
    }

    /// See [`Self::set_canary`].
    #[must_use]
    pub const fn canary(&self) -> u16 {
        (self.flags >> CANARY_SHIFT) as u16
    }

    /// Whether copies of SYNs that passed are asked about, too, where nobody has replied to the first.
    pub fn set_copies(&mut self, asked: bool) {
        self.flags = self.flags & !LIMITS_COPIES | if asked { LIMITS_COPIES } else { 0 };
    }

    /// See [`Self::set_copies`].
    #[must_use]
    pub const fn copies(&self) -> bool {
        self.flags & LIMITS_COPIES != 0
    }

    /// When it ends if nobody says otherwise, for limits that a server gave; `None`: with the lease.
    pub fn set_until(&mut self, until: Option<Nanos>) {
        self.until = lease::until(until);
    }

    /// So many pass the limits on the accept queue and in flight, even if they are full.
    pub fn set_min_rate(&mut self, rate: Option<MinRate>) {
        self.min_rate_us = rate.map_or(0, MinRate::interval_us);
    }

    /// Other limits, and what is done with the refused as it was.
    #[must_use]
    pub const fn with_mode_of(self, other: &Self) -> Self {
        let own = self.flags & LIMITS_COPIES;
        Self { flags: other.flags & !LIMITS_COPIES | own, ..self }
    }
}

/// Nobody's source (`TG_CANARY_UNKNOWN`): it is among the chosen of no canary.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// These flags with another canary (`policy/chain/canary.h`).
pub(crate) const fn with_canary(flags: u32, share_q16: u16) -> u32 {
    flags & ((1 << CANARY_SHIFT) - 1) | (share_q16 as u32) << CANARY_SHIFT
}

/// Whether refusals of this source are only counted, for it is not among the chosen.
pub(crate) fn spares(flags: u32, source: Option<u64>) -> bool {
    // SAFETY: computes with its arguments only.
    unsafe { abi::tg_native_spares(flags, source.unwrap_or(UNKNOWN)) != 0 }
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
    /// A copy of a SYN that passed: it may still be on its way, so this one is refused in silence.
    pub copy: bool,
}

/// How a verdict is carried out here and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circumstances {
    /// The source is known to be a single client: with `auto` it may be rejected.
    pub single: bool,
    /// A seeded hash of the source, for a canary; `None`: it is not known, and is spared by one.
    pub source: Option<u64>,
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
        Self { single: true, source: None, waits: false, lease: Lease::WHOLE, random: 0 }
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

/// Limits and memory of one service.
#[derive(Clone, Debug)]
pub struct Chain {
    limits: Limits,
    words: Box<[u64]>,
    /// Of the bucket, one for each CPU.
    copies: Vec<[u64; COPY_WORDS]>,
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
        Self::with_cpus(limits, 1)
    }

    /// The same for so many CPUs, of which each has a copy of the bucket; at least one.
    #[must_use]
    pub fn with_cpus(limits: Limits, cpus: usize) -> Self {
        Self {
            limits,
            words: vec![0; WORDS].into_boxed_slice(),
            copies: vec![[0; COPY_WORDS]; cpus.max(1)],
            senders: Senders::default(),
        }
    }

    /// Other limits; what was seen stays, unless another policy saw it.
    pub fn set(&mut self, limits: Limits) {
        if limits.params.policy() != self.limits.params.policy() {
            *self = Self {
                senders: std::mem::take(&mut self.senders),
                ..Self::with_cpus(limits, self.copies.len())
            };
        }
        self.limits = limits;
    }

    /// The limits in force.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the policy counts, on all CPUs: of its four numbers most have admitted and refused first.
    #[must_use]
    pub fn counted(&self) -> [u64; 4] {
        let copies = self.copies.iter().map(|copy| &copy[offset_of!(abi::BucketCopy, stats) / 8..]);
        let shared = &self.words[offset_of!(abi::Chain, state) / 8..];
        let all = std::iter::once(shared).chain(copies);
        all.fold([0; 4], |sum, words| std::array::from_fn(|at| sum[at] + words[at]))
    }

    /// The rung of each priority on its ladder; `None`: the policy has no thresholds.
    #[must_use]
    pub fn rungs(&self) -> Option<[u8; PRIORITIES]> {
        let has = self.limits.params.policy() == Policy::Threshold;
        let state = self.words[offset_of!(abi::Chain, state) / 8..].as_bytes();
        has.then(|| State::rungs(state).unwrap_or_default())
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
        self.decide_on(0, ask, how, reply)
    }

    /// The same on one CPU of several, counted modulo their number.
    pub fn decide_on(
        &mut self,
        cpu: usize,
        ask: &Ask,
        how: &Circumstances,
        reply: impl FnOnce(bool) -> Result<(), Reason>,
    ) -> Decision {
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let queue =
            |queue: AcceptQueue| Queue { length: queue.length, limit: queue.limit, known: 1 };
        let mut raw = abi::Ask {
            event: ask.event,
            waiting: gauge(ask.waiting),
            silent: gauge(ask.silent),
            queue: ask.queue.map(queue).unwrap_or_default(),
            over: ask.over.into(),
            copy: ask.copy.into(),
            waits: (how.waits && !spares(self.limits.flags, how.source)).into(),
            ..abi::Ask::default()
        };
        let (chain, senders) = (self.words.as_mut_ptr().cast(), self.senders.as_mut_ptr());
        let cpu = cpu % self.copies.len();
        let copy = self.copies[cpu].as_mut_ptr().cast();
        // SAFETY: all structures are the C ones, live through the call and are exclusively borrowed; the
        // chain stays inside what it is given.
        unsafe {
            abi::tg_native_decide(&raw const self.limits, chain, copy, senders, &raw mut raw);
            let Circumstances { single, source, lease, random, .. } = *how;
            let source = source.unwrap_or(UNKNOWN);
            let strength = lease.strength();
            abi::tg_native_execute(&raw mut raw, source, single.into(), strength, random);
        }
        // SAFETY: reads the C structure.
        if unsafe { abi::tg_native_replies(&raw const raw) } != 0
            && let Err(reason) = reply(raw.event.spared != 0)
        {
            // SAFETY: as above, and it is changed by nobody else.
            unsafe { abi::tg_native_silent(&raw mut raw, reason as u8) };
        }
        Decision {
            // SAFETY: as above.
            passes: unsafe { abi::tg_native_passes(&raw const raw) } != 0,
            noted: Noted::new(raw.event.now_ns, raw.noted),
            execution: Execution::from_number(raw.execution),
            verdict: raw.verdict.into(),
        }
    }
}
