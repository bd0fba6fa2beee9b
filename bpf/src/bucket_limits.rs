// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits of request buckets: their part of what is in force.

use crate::BucketParams;
use crate::abi::{BucketParams as RawParams, Plain};
use crate::abi_request::{self as abi, BucketLimitsRaw};

/// One token in the policies' unit.
const TOKEN: u64 = 1_000_000_000_000;
/// Largest bucket, in tokens (`TG_BURST_MAX`).
const BURST_MAX: u32 = 1_000_000;
/// Largest rate, in thousandths of a token per second (`TG_RATE_MILLI_MAX`).
const RATE_MILLI_MAX: u64 = 1_000_000_000_000;

/// The limits of all request buckets, by their number.
#[derive(Clone, Debug)]
pub(crate) struct BucketLimits(Vec<BucketLimitsRaw>);

impl BucketLimits {
    /// From what is in force, or none.
    pub(crate) fn read(rows: &[Vec<u8>]) -> Self {
        let mut entries = vec![BucketLimitsRaw::default(); abi::BUCKETS_MAX];
        for (value, entry) in rows.iter().zip(&mut entries) {
            *entry = BucketLimitsRaw::read(value).unwrap_or_default();
        }
        Self(entries)
    }

    /// As the kernel has them.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        self.0.iter().map(|entry| entry.bytes().to_vec())
    }

    #[cfg(test)]
    pub(crate) fn limited(&self, number: u32) -> bool {
        self.0[number as usize].bucket.rate_milli != 0
    }

    /// Forgets the limit of a bucket: everything is admitted until one is set.
    pub(crate) fn reset(&mut self, number: u32) {
        if let Some(entry) = self.0.get_mut(number as usize) {
            *entry = BucketLimitsRaw { flags: entry.flags, ..BucketLimitsRaw::default() };
        }
    }

    /// Forgets all limits.
    pub(crate) fn reset_all(&mut self) {
        (0..self.0.len() as u32).for_each(|number| self.reset(number));
    }

    /// Changes whether refusals of a bucket are executed.
    pub(crate) fn shadow(&mut self, number: u32, shadow: bool) {
        if let Some(entry) = self.0.get_mut(number as usize) {
            entry.flags = if shadow { abi::BUCKET_SHADOW } else { 0 };
        }
    }

    /// Takes what the control loop decided, as [`compile`] made it.
    pub(crate) fn set(&mut self, number: u32, limit: &BucketLimitsRaw) {
        if let Some(entry) = self.0.get_mut(number as usize) {
            *entry = BucketLimitsRaw { flags: entry.flags, ..*limit };
        }
    }
}

/// From what the control loop says to what the kernel computes with; what is wrong, in words.
pub(crate) fn compile(params: &BucketParams) -> Result<BucketLimitsRaw, String> {
    let Some(rate) = params.rate else {
        return Ok(BucketLimitsRaw::default());
    };
    let rate_milli = rate.as_milli();
    if rate_milli == 0 || rate_milli > RATE_MILLI_MAX {
        return Err(format!("rate {rate}: must be above 0 and at most 1e9/s"));
    }
    if params.burst == 0 || params.burst > BURST_MAX {
        return Err(format!("burst {}: must be 1 to {BURST_MAX} requests", params.burst));
    }
    let rising = params.reserve.windows(2).all(|pair| pair[0] <= pair[1]);
    if !rising || params.reserve.iter().any(|tokens| *tokens >= params.burst) {
        let (reserve, burst) = (params.reserve, params.burst);
        return Err(format!("reserve {reserve:?}: must not fall and stay below the burst {burst}"));
    }
    let depth = u64::from(params.burst) * TOKEN;
    Ok(BucketLimitsRaw {
        bucket: RawParams { rate_milli, depth, full_ns: depth.div_ceil(rate_milli) },
        reserve: params.reserve.map(|tokens| u64::from(tokens) * TOKEN),
        ..BucketLimitsRaw::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_policy::{Action, BucketSpec, Params};
    use tidegate_units::Rate;

    fn params(rate: f64, burst: u32, reserve: [u32; 3]) -> BucketParams {
        BucketParams { service: 0, bucket: 0, rate: Some(Rate::per_second(rate)), burst, reserve }
    }

    /// The same bucket as the policies have: both go through one piece of C.
    #[test]
    fn a_bucket_is_what_the_policy_computes_with() {
        for (rate, burst) in [(0.001, 1), (10.0, 5), (333.333, 20), (1e9, 1_000_000)] {
            let raw = compile(&params(rate, burst, [0; 3])).unwrap();
            let spec = BucketSpec::new(Rate::per_second(rate), burst, Action::Drop);
            let policy = Params::token_bucket(&spec).unwrap();
            let found = policy.as_bytes().windows(24).any(|bytes| bytes == raw.bucket.bytes());
            assert!(found, "{rate} {burst}: {raw:?}");
        }
        let raw = compile(&params(1.0, 5, [0, 1, 4])).unwrap();
        assert_eq!(raw.reserve, [0, TOKEN, 4 * TOKEN]);
    }

    #[test]
    fn bounds_on_both_sides() {
        let none = BucketParams { rate: None, ..params(1.0, 0, [9, 1, 2]) };
        assert_eq!(compile(&none).unwrap().bucket.rate_milli, 0, "no limit has no bounds");
        let cases = [
            (params(0.0004, 1, [0; 3]), "rate"),
            (params(1.1e9, 1, [0; 3]), "rate"),
            (params(1.0, 0, [0; 3]), "burst 0"),
            (params(1.0, 1_000_001, [0; 3]), "burst 1000001"),
            (params(1.0, 5, [0, 2, 1]), "reserve"),
            (params(1.0, 5, [0, 0, 5]), "reserve"),
        ];
        for (params, text) in cases {
            let error = compile(&params).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        compile(&params(1.0, 5, [4, 4, 4])).unwrap();
    }
}
