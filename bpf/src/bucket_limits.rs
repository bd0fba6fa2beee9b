// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits of request buckets: their part of what is in force.

use crate::abi::{self, RULE_BUCKETS_MAX};
use tidegate_model::{Canary, Mode};
use tidegate_policy::RequestLimits;
use zerocopy::IntoBytes;

/// The limits of all request buckets, by their number.
#[derive(Clone, Debug)]
pub(crate) struct BucketLimits(Vec<RequestLimits>);

impl BucketLimits {
    /// From what is in force, or none.
    pub(crate) fn read(rows: &[Vec<u8>]) -> Self {
        let mut entries = vec![RequestLimits::default(); RULE_BUCKETS_MAX];
        for (value, entry) in rows.iter().zip(&mut entries) {
            *entry = abi::read(value).unwrap_or_default();
        }
        Self(entries)
    }

    /// As the kernel has them.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        self.0.iter().map(|entry| entry.as_bytes().to_vec())
    }

    #[cfg(test)]
    pub(crate) fn limited(&self, number: u32) -> bool {
        self.0[number as usize].limited()
    }

    /// Forgets the limit of a bucket: everything is admitted until one is set.
    pub(crate) fn reset(&mut self, number: u32) {
        if let Some(entry) = self.0.get_mut(number as usize) {
            *entry = RequestLimits::default().with_mode_of(entry);
        }
    }

    /// Forgets all limits.
    pub(crate) fn reset_all(&mut self) {
        (0..self.0.len() as u32).for_each(|number| self.reset(number));
    }

    /// Changes whose refusals of a bucket are executed.
    pub(crate) fn set_mode(&mut self, number: u32, mode: Mode, canary: Canary) {
        if let Some(entry) = self.0.get_mut(number as usize) {
            entry.set_shadow(mode == Mode::Shadow);
            entry.set_canary(canary.share_q16());
        }
    }

    /// Takes what the control loop decided.
    pub(crate) fn set(&mut self, number: u32, limit: &RequestLimits) {
        if let Some(entry) = self.0.get_mut(number as usize) {
            *entry = limit.with_mode_of(entry);
        }
    }
}
