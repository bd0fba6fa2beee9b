// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is told of request buckets, and read of rules.

use tidegate_policy::{ParamsError, Reason, RequestLimits};
use tidegate_units::Rate;

/// What the control loop decided for one bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketParams {
    /// Index of the service in the plan.
    pub service: usize,
    /// Place of the bucket in the service's `requests.buckets`.
    pub bucket: usize,
    /// Of the bucket's policy. Whether refusals are executed is the plan's.
    pub limits: RequestLimits,
}

impl BucketParams {
    /// A token bucket of `rate` requests per second (`None`: no limit) and `burst` requests. A request of
    /// each rank must leave `reserve` tokens: protected, new, persistent; not falling, each below the
    /// burst.
    ///
    /// # Errors
    /// When rate, burst or reserve are out of range.
    pub fn tokens(
        (service, bucket): (usize, usize),
        rate: Option<Rate>,
        burst: u32,
        reserve: [u32; 3],
    ) -> Result<Self, ParamsError> {
        Ok(Self { service, bucket, limits: RequestLimits::bucket(rate, burst, reserve)? })
    }
}

/// How often a rule of a service matched, and what became of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Index of the service.
    pub service: usize,
    /// Place of the rule in `requests.rules`.
    pub rule: usize,
    /// Admitted.
    pub admitted: u64,
    /// Refused, and the refusal executed.
    pub refused: u64,
    /// Refused, and only counted.
    pub shadowed: u64,
    /// Refused, but passed because the lease has run out.
    pub lease: u64,
    /// Answers that were sent again.
    pub repeated: u64,
    /// Refused, but passed or dropped because the answer could not be sent.
    pub failed: u64,
    /// Of what was admitted: handed to the server, and followed.
    pub begun: u64,
    /// Of these: answered, or their connection ended, or cannot be followed any more.
    pub ended: u64,
    /// Answers whose first byte was seen.
    pub started: u64,
    /// Time from their requests to their first bytes, summed.
    pub started_ns: u64,
    /// Answers whose last byte was seen.
    pub answered: u64,
    /// Time from their requests to their last bytes, summed.
    pub answered_ns: u64,
}

/// How many segments of a service with rules no rule of their own evaluated, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestReason {
    /// Index of the service.
    pub service: usize,
    /// Why.
    pub reason: Reason,
    /// How many segments.
    pub count: u64,
}
