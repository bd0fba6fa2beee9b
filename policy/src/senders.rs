// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unverified senders: what a SYN costs before anybody knows whether its sender exists, for native
//! host programs (`policy/chain/senders.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::ffi::RawVerdict;
use crate::{Event, Params, State, Verdict};

/// Words of `struct tg_senders`.
const WORDS: usize = 24;

/// What is known of the senders of one service (`struct tg_senders`); zero is fresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Senders {
    words: [u64; WORDS],
}

/// What is noted of a SYN until its handshake is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    syn_ns: u64,
    flags: u8,
}

// SAFETY: all are defined in shim.c with these signatures.
unsafe extern "C" {
    fn tg_native_weigh(s: *mut u64, e: *mut Event) -> i32;
    fn tg_native_settle(s: *mut u64, e: *const Event, v: *const RawVerdict) -> u8;
    fn tg_native_replied(s: *mut u64, syn_ns: u64, noted: u8);
    fn tg_native_proved(s: *mut u64, syn_ns: u64, noted: u8);
    fn tg_native_refused(p: *const Params, s: *mut u64, e: *const Event) -> i32;
    #[cfg(test)]
    fn tg_native_senders_size() -> usize;
}

impl Noted {
    pub(crate) const fn new(syn_ns: u64, flags: u8) -> Self {
        Self { syn_ns, flags }
    }
}

impl Senders {
    pub(crate) const fn as_mut_ptr(&mut self) -> *mut u64 {
        self.words.as_mut_ptr()
    }

    /// Fills what an event costs. Whether there is a flood.
    pub fn weigh(&mut self, event: &mut Event) -> bool {
        // SAFETY: the words have the size of the C structure (checked in tests), the event is its twin.
        unsafe { tg_native_weigh(self.words.as_mut_ptr(), event) != 0 }
    }

    /// After the verdict on a weighed event: charges it if it was admitted. What is to be noted of it,
    /// should it pass.
    #[must_use]
    pub fn settle(&mut self, event: &Event, verdict: &Verdict) -> Noted {
        let raw = RawVerdict::from(verdict);
        // SAFETY: as in `weigh`.
        let flags = unsafe { tg_native_settle(self.words.as_mut_ptr(), event, &raw) };
        Noted { syn_ns: event.now_ns, flags }
    }

    /// The server has replied to it: once for each.
    pub fn replied(&mut self, noted: Noted) {
        // SAFETY: as in `weigh`.
        unsafe { tg_native_replied(self.words.as_mut_ptr(), noted.syn_ns, noted.flags) };
    }

    /// Its handshake is complete.
    pub fn proved(&mut self, noted: Noted) {
        // SAFETY: as in `weigh`.
        unsafe { tg_native_proved(self.words.as_mut_ptr(), noted.syn_ns, noted.flags) };
    }
}

/// A limit before the policy has refused this event; whether it is known to be a copy of one that
/// was refused.
pub fn refused(params: &Params, state: &mut State, event: &Event) -> bool {
    // SAFETY: as in `admit`.
    unsafe { tg_native_refused(params, state.as_mut_ptr(), event) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_and_c_agree_on_the_size() {
        // SAFETY: returns a constant.
        assert_eq!(unsafe { tg_native_senders_size() }, size_of::<Senders>());
    }
}
