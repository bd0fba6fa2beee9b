// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel counts of destinations, and the limits that it is given.

use tidegate_bpf::policy::BucketSpec;
use tidegate_bpf::{Error, RouterLimited, RouterTimes};
use tidegate_model::Mode;
use tidegate_model::router::DestinationCounts;
use tidegate_units::Nanos;

/// What the kernel counts of a destination, by its place.
pub(in crate::kernel) trait Counted {
    fn counts(&self, place: usize) -> Option<DestinationCounts>;
    fn times(&self, place: usize) -> Option<RouterTimes>;
    /// How often sweeps saw an exchange that takes too long.
    fn overdue(&self, place: usize) -> Option<u64>;
    /// From how long on it does; zero: none does.
    fn set_overdue_after(&self, place: usize, after: Nanos) -> Result<(), Error>;
    /// Handshakes whose notes were overwritten, in all.
    fn overwritten(&self) -> Result<u64, Error>;
    /// What the limit of a destination has done.
    fn limited(&self, place: usize) -> Option<RouterLimited>;
    /// Limits new connections to a destination, or does not any more.
    fn set_limit(&self, place: usize, limit: Option<&BucketSpec>) -> Result<(), Error>;
    /// Whether the limit of a destination has an Abacus filter; `None`: no class wants one.
    fn has_filter(&self, place: usize) -> Option<bool>;
    /// The lease on all limits, and how they hold; `None`: they do not.
    fn renew(&self, now: Nanos, mode: Option<Mode>) -> Result<(), Error>;
}

impl Counted for tidegate_bpf::Router {
    fn counts(&self, place: usize) -> Option<DestinationCounts> {
        self.counts(place)
    }

    fn times(&self, place: usize) -> Option<RouterTimes> {
        self.times(place)
    }

    fn overdue(&self, place: usize) -> Option<u64> {
        self.overdue(place)
    }

    fn set_overdue_after(&self, place: usize, after: Nanos) -> Result<(), Error> {
        self.set_overdue_after(place, after)
    }

    fn overwritten(&self) -> Result<u64, Error> {
        Ok(self.losses()?.handshakes)
    }

    fn limited(&self, place: usize) -> Option<RouterLimited> {
        self.limited(place)
    }

    fn set_limit(&self, place: usize, limit: Option<&BucketSpec>) -> Result<(), Error> {
        self.set_limit(place, limit)
    }

    fn has_filter(&self, place: usize) -> Option<bool> {
        self.has_filter(place)
    }

    fn renew(&self, now: Nanos, mode: Option<Mode>) -> Result<(), Error> {
        self.renew(now, mode)
    }
}
