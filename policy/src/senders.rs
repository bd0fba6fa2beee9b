// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unverified senders: what a SYN costs before anybody knows whether its sender exists, for native
//! host programs (`policy/chain/senders.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi::{self, Verdict as RawVerdict};
use crate::{Event, Params, State, Verdict};

/// What is known of the senders of one service (`struct tg_senders`); zero is fresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Senders {
    memory: abi::Senders,
}

/// What is noted of a SYN until its handshake is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    syn_ns: u64,
    flags: u8,
}

impl Noted {
    pub(crate) const fn new(syn_ns: u64, flags: u8) -> Self {
        Self { syn_ns, flags }
    }
}

impl Senders {
    pub(crate) const fn as_mut_ptr(&mut self) -> *mut abi::Senders {
        &raw mut self.memory
    }

    /// Fills what an event costs. Whether there is a flood.
    pub fn weigh(&mut self, event: &mut Event) -> bool {
        // SAFETY: both structures are the C ones, and are exclusively borrowed.
        unsafe { abi::tg_native_weigh(&raw mut self.memory, event) != 0 }
    }

    /// After the verdict on a weighed event: charges it if it was admitted. What is to be noted of it,
    /// should it pass.
    #[must_use]
    pub fn settle(&mut self, event: &Event, verdict: &Verdict) -> Noted {
        let raw = RawVerdict::from(verdict);
        // SAFETY: as in `weigh`.
        let flags = unsafe { abi::tg_native_settle(&raw mut self.memory, event, &raw) };
        Noted { syn_ns: event.now_ns, flags }
    }

    /// The server has replied to it: once for each.
    pub fn replied(&mut self, noted: Noted) {
        // SAFETY: as in `weigh`.
        unsafe { abi::tg_native_replied(&raw mut self.memory, noted.syn_ns, noted.flags) };
    }

    /// Its handshake is complete.
    pub fn proved(&mut self, noted: Noted) {
        // SAFETY: as in `weigh`.
        unsafe { abi::tg_native_proved(&raw mut self.memory, noted.syn_ns, noted.flags) };
    }
}

/// A limit before the policy has refused this event; whether it is known to be a copy of one that
/// was refused.
pub fn refused(params: &Params, state: &mut State, event: &Event) -> bool {
    // SAFETY: as in `admit`.
    unsafe { abi::tg_native_refused(params, state.as_mut_ptr(), event) != 0 }
}
