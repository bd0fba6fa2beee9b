// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where limits go: an outlet, and what the owner knows of what is in force there.
//!
//! The kernel ([`crate::kernel`]) is an outlet, and so is the gate. Both get the same generation, so they
//! are one outlet to the owner (planes.rs). Limits for peers go another way ([`crate::remote`]): each of
//! them gets a part.

use crate::plane::PlaneError;
use std::collections::BTreeSet;
use tidegate_bpf::{Imported, ImportedHits};
use tidegate_config::Config;
use tidegate_model::limits::{BucketLimits, Limits, ServiceLimits};
use tidegate_model::{Canary, Mode};

/// Limits that stay in force while others are written, by their place in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Services, their request buckets apart.
    pub services: BTreeSet<usize>,
    /// Request buckets: the service, and the bucket.
    pub buckets: BTreeSet<(usize, usize)>,
}

impl Kept {
    /// All services of a configuration that hooks serve, and all their request buckets: a gateway begins
    /// without limits, so that nothing is in force there that could be kept.
    #[must_use]
    pub fn all(config: &Config) -> Self {
        let mut kept = Self::default();
        let services = config.services.iter().enumerate();
        for (at, service) in services.filter(|(_, service)| !config.is_routed(&service.name)) {
            kept.services.insert(at);
            let buckets = service.requests.as_ref().map_or(0, |requests| requests.buckets.len());
            kept.buckets.extend((0..buckets).map(|bucket| (at, bucket)));
        }
        kept
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.buckets.is_empty()
    }

    /// Keeps only what `others` keep, too.
    pub fn retain(&mut self, others: &Self) {
        self.services.retain(|service| others.services.contains(service));
        self.buckets.retain(|bucket| others.buckets.contains(bucket));
    }
}

/// A service without limits, because its policy refused what was decided, and why.
pub type Refused = (String, String);

/// Where limits go.
pub trait Outlet {
    /// Writes the limits of all services, in the order of the configuration, except those that are
    /// kept. Returns the services that have none, because their policy refused them.
    ///
    /// # Errors
    /// When not all of them could be written; the caller writes all again.
    fn set_limits(
        &mut self,
        config: &Config,
        limits: &Limits,
        kept: &Kept,
    ) -> Result<Vec<Refused>, PlaneError>;

    /// Number of the limits in force. It also grows when the outlet follows another configuration.
    fn generation(&self) -> u64;

    /// Whether the limits in force are an earlier process's, with its lease; to be asked before
    /// anything is written. Limits whose lease has ended are not in force.
    fn adopted(&self) -> bool;

    /// Renews the lease.
    ///
    /// # Errors
    /// When it could not be renewed; after 3 s the limits begin to open.
    fn heartbeat(&mut self) -> Result<(), PlaneError>;

    /// Whose refusals of a service (by its index) are executed: nobody's, or those of a share of the
    /// sources; the others are only counted.
    ///
    /// # Errors
    /// When it was not written. The caller sets the mode before again, so that no later write
    /// brings this one.
    fn set_mode(&mut self, service: usize, mode: Mode, canary: Canary) -> Result<(), PlaneError>;

    /// Puts rules of a router in force, all at once, in place of those of before.
    ///
    /// # Errors
    /// When they were not written; then those of before hold.
    fn set_imported(&mut self, _imported: &Imported) -> Result<(), PlaneError> {
        Ok(())
    }

    /// Ends them all, by another way than [`Self::set_imported`].
    ///
    /// # Errors
    /// When they hold on.
    fn clear_imported(&mut self) -> Result<(), PlaneError> {
        Ok(())
    }

    /// What those in force have matched and refused.
    ///
    /// # Errors
    /// When it could not be read.
    fn imported_hits(&self) -> Result<Vec<ImportedHits>, PlaneError> {
        Ok(Vec::new())
    }

    /// The kill switch.
    ///
    /// # Errors
    /// When it could not be set.
    fn release(&mut self, on: bool) -> Result<(), PlaneError>;

    /// Whether the kill switch is on.
    ///
    /// # Errors
    /// When it could not be read.
    fn released(&self) -> Result<bool, PlaneError>;
}

/// What is in force at one outlet, as far as its owner wrote it.
#[derive(Default)]
pub(crate) struct InForce {
    generation: u64,
    /// With what was kept.
    written: Option<(Vec<ServiceLimits>, Kept)>,
    refused: Vec<Refused>,
}

impl InForce {
    /// Nothing was written yet; the process before used numbers up to this one.
    pub(crate) fn after(generation: u64) -> Self {
        Self { generation, ..Self::default() }
    }

    /// Number of the limits that were written last.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// The services that got no limits by the last write.
    pub(crate) fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The outlet may have lost its limits: the next [`Self::write`] writes all of them.
    pub(crate) fn forget(&mut self) {
        self.written = None;
    }

    /// Writes the limits of all services under a new number if any of them changed.
    ///
    /// # Errors
    /// When they could not be written; the next call writes all of them.
    pub(crate) fn write(
        &mut self,
        outlet: &mut dyn Outlet,
        config: &Config,
        (services, kept): (Vec<ServiceLimits>, Kept),
    ) -> Result<(), PlaneError> {
        let unchanged = self.written.as_ref().is_some_and(|(written, beside)| {
            *beside == kept
                && written.len() == services.len()
                && written.iter().zip(&services).all(|(a, b)| same(a, b))
        });
        if unchanged {
            return Ok(());
        }
        self.written = None;
        // The number is used up even by a write that failed half-way: it only grows.
        self.generation = self.generation.max(outlet.generation()) + 1;
        let limits = Limits { generation: self.generation, services };
        self.refused = outlet.set_limits(config, &limits, &kept)?;
        self.written = Some((limits.services, kept));
        Ok(())
    }
}

/// Whether the dataplane has to be told: the reasons alone are not written.
fn same(a: &ServiceLimits, b: &ServiceLimits) -> bool {
    let bucket = |(a, b): (&BucketLimits, &BucketLimits)| {
        (a.rate, a.loss) == (b.rate, b.loss) && a.burst == b.burst && a.reserve == b.reserve
    };
    (a.rate, a.loss, a.per_request) == (b.rate, b.loss, b.per_request)
        && a.burst == b.burst
        && (a.waiting_max, a.waiting_low, a.pending) == (b.waiting_max, b.waiting_low, b.pending)
        && a.onset == b.onset
        && a.accept_queue_max_q10 == b.accept_queue_max_q10
        && a.source_max == b.source_max
        && (a.min_rate, a.copies, a.until) == (b.min_rate, b.copies, b.until)
        && a.datagrams == b.datagrams
        && a.requests == b.requests
        && a.reserve == b.reserve
        && a.buckets.len() == b.buckets.len()
        && a.buckets.iter().zip(&b.buckets).all(bucket)
}

/// What an outlet of a test has nothing to say of.
#[cfg(test)]
macro_rules! says_nothing_else {
    () => {
        fn adopted(&self) -> bool {
            false
        }

        fn heartbeat(&mut self) -> Result<(), $crate::plane::PlaneError> {
            Ok(())
        }

        fn set_mode(
            &mut self,
            _: usize,
            _: tidegate_model::Mode,
            _: tidegate_model::Canary,
        ) -> Result<(), $crate::plane::PlaneError> {
            Ok(())
        }

        fn release(&mut self, _: bool) -> Result<(), $crate::plane::PlaneError> {
            Ok(())
        }

        fn released(&self) -> Result<bool, $crate::plane::PlaneError> {
            Ok(false)
        }
    };
}

#[cfg(test)]
pub(crate) use says_nothing_else;

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};
    use tidegate_units::Rate;

    /// An outlet without interfaces, as a gateway would be: remembers the numbers that it took.
    #[derive(Default)]
    struct Gateway {
        taken: Vec<u64>,
        fails: bool,
    }

    impl Outlet for Gateway {
        fn set_limits(
            &mut self,
            _: &Config,
            limits: &Limits,
            _: &Kept,
        ) -> Result<Vec<Refused>, PlaneError> {
            if self.fails {
                return Err(PlaneError("refused by the test".into()));
            }
            self.taken.push(limits.generation);
            Ok(vec![("shop".into(), "no such schedule".into())])
        }

        fn generation(&self) -> u64 {
            self.taken.last().copied().unwrap_or_default()
        }

        crate::outlet::says_nothing_else!();
    }

    #[test]
    fn an_outlet_is_written_what_it_did_not_take_and_others_are_left_alone() {
        let mut outlets = [
            (Gateway::default(), InForce::default()),
            (Gateway { fails: true, ..Gateway::default() }, InForce::after(41)),
        ];
        let text = "interfaces: [{name: lo}]\nservices: {shop: {mode: shadow, listen: ['*:80']}}\n";
        let config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let write = |outlets: &mut [(Gateway, InForce)], rate: f64| {
            let rate = Some(Rate::per_second(rate));
            let limits = vec![ServiceLimits { rate, ..ServiceLimits::default() }];
            let write = |(outlet, in_force): &mut (Gateway, InForce)| {
                in_force.write(outlet, &config, (limits.clone(), Kept::default())).is_ok()
            };
            outlets.iter_mut().map(write).collect::<Vec<bool>>()
        };
        assert_eq!(write(&mut outlets, 5.0), [true, false]);
        assert!(outlets[1].1.refused().is_empty());
        outlets[1].0.fails = false;
        for rate in [5.0, 5.0, 6.0] {
            assert_eq!(write(&mut outlets, rate), [true, true]);
        }
        let taken = outlets.each_ref().map(|(outlet, _)| outlet.taken.as_slice());
        assert_eq!(taken, [&[1, 2], &[43, 44]], "the number of a write that fails is used up");
        assert_eq!(outlets[1].1.refused()[0].0, "shop");
        outlets[0].1.forget();
        assert_eq!(write(&mut outlets, 6.0), [true, true]);
        assert_eq!(
            outlets.map(|(outlet, in_force)| (outlet.taken.len(), in_force.generation)),
            [(3, 3), (2, 44)]
        );
    }
}
