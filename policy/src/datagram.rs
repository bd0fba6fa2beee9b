// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit on datagrams to a service, for native host programs (`policy/chain/datagram.h`).
#![allow(unsafe_code, reason = "the chain is C")]

use crate::abi::{
    self, BucketCopy, BucketParams, CANARY_SHIFT, DATAGRAMS_MERGED_MAX, DatagramChain,
    DatagramLimit, LIMITS_SHADOW, TOKEN, Verdict as RawVerdict,
};
use crate::chain::with_canary;
use crate::lease;
use crate::{Action, BucketSpec, ParamsError, Verdict};
use tidegate_units::{Nanos, Rate};

impl DatagramLimit {
    /// So many datagrams per second, and so many at once.
    ///
    /// # Errors
    /// When rate or burst are out of range.
    pub fn new(rate: Rate, burst: u32) -> Result<Self, ParamsError> {
        let (bucket, _) = BucketSpec::new(rate, burst, Action::Drop).compile()?;
        let depth = bucket.depth + u64::from(DATAGRAMS_MERGED_MAX) * TOKEN;
        let full_ns = depth.div_ceil(bucket.rate_milli);
        Ok(Self { bucket: BucketParams { depth, full_ns, ..bucket }, ..Self::default() })
    }

    /// Whether it limits anything.
    #[must_use]
    pub const fn limited(&self) -> bool {
        self.bucket.rate_milli > 0
    }

    /// When it ends if nobody says otherwise; `None`: with the lease.
    pub fn set_until(&mut self, until: Option<Nanos>) {
        self.until = lease::until(until);
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

    /// Another limit, and whose refusals are carried out as it was.
    #[must_use]
    pub const fn with_mode_of(self, other: &Self) -> Self {
        Self { flags: other.flags, ..self }
    }
}

/// A limit on datagrams and what was used of it, for so many CPUs.
#[derive(Clone, Debug)]
pub struct DatagramGate {
    limit: DatagramLimit,
    chain: DatagramChain,
    copies: Vec<BucketCopy>,
}

impl DatagramGate {
    /// With nothing used; at least one CPU.
    #[must_use]
    pub fn new(limit: DatagramLimit, cpus: usize) -> Self {
        let copies = vec![BucketCopy::default(); cpus.max(1)];
        Self { limit, chain: DatagramChain::default(), copies }
    }

    /// Another limit; what was used stays used.
    pub const fn set(&mut self, limit: DatagramLimit) {
        self.limit = limit;
    }

    /// A packet of so many datagrams, on one of the CPUs, counted modulo their number.
    pub fn admit(&mut self, cpu: usize, now: Nanos, merged: u32) -> Verdict {
        let cpu = cpu % self.copies.len();
        let (limit, chain, copy) =
            (&raw const self.limit, &raw mut self.chain, &raw mut self.copies[cpu]);
        let mut raw = RawVerdict::default();
        // SAFETY: all structures are the C ones, live through the call and are exclusively borrowed.
        unsafe { abi::tg_native_datagram_admit(limit, chain, copy, now.0, merged, &raw mut raw) };
        raw.into()
    }
}
