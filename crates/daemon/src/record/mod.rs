// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record: what happened to services, for whoever looks later. Sums over time ([`Meter`]) are
//! for metrics. Nothing is decided by any of it.

mod meter;

use meter::{Look, Meter};
use std::collections::BTreeMap;
use tidegate_config::{Config, ServiceConfig};
use tidegate_model::Mode;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::record::Sums;
use tidegate_model::signals::Signals;
use tidegate_model::totals::ServiceTotals;
use tidegate_sense::Sensed;
use tidegate_units::Nanos;

/// A service, or one of its request buckets.
type Subject = (String, Option<String>);

/// What a tick showed of all services, in the order of the configuration.
pub(crate) struct Seen<'a> {
    pub(crate) now: Nanos,
    pub(crate) config: &'a Config,
    pub(crate) released: bool,
    pub(crate) sensed: &'a [Sensed],
    pub(crate) limits: &'a [ServiceLimits],
    /// Services whose tightest limit is a peer's.
    pub(crate) remote: &'a dyn Fn(usize) -> bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Record {
    meters: BTreeMap<Subject, Meter>,
    /// As they were last read, by name of the service.
    totals: BTreeMap<String, ServiceTotals>,
}

impl Record {
    /// Takes a tick.
    pub(crate) fn see(&mut self, seen: &Seen<'_>) {
        let services = seen.config.services.iter().zip(seen.sensed).zip(seen.limits).enumerate();
        for (index, ((service, sensed), limits)) in services {
            let shadow = seen.released || service.mode == Mode::Shadow;
            let signals = &sensed.signals;
            let counts = signals.balance.counts.map(|r| r.value).unwrap_or_default();
            let look = Look {
                now: seen.now,
                period: signals.period,
                why: &limits.why,
                shadow,
                remote: (seen.remote)(index),
                offered: counts.offered,
                refused: counts.refused,
            };
            let meter = self.meters.entry((service.name.clone(), None)).or_default();
            meter.measure(signals);
            meter.see(&look);
            self.see_buckets(seen, (service, signals, limits));
            if let Some(totals) = &sensed.totals {
                self.totals.insert(service.name.clone(), totals.clone());
            }
        }
    }

    fn see_buckets(
        &mut self,
        seen: &Seen<'_>,
        (service, signals, limits): (&ServiceConfig, &Signals, &ServiceLimits),
    ) {
        let Some(requests) = &service.requests else { return };
        let shadow = seen.released || requests.mode_within(service.mode) == Mode::Shadow;
        let buckets = requests.buckets.iter().zip(&signals.buckets).zip(&limits.buckets);
        for ((bucket, signals_of), limits) in buckets {
            let counts = signals_of.counts.map(|r| r.value).unwrap_or_default();
            let look = Look {
                now: seen.now,
                period: signals.period,
                why: &limits.why,
                shadow,
                remote: false,
                offered: counts.offered.iter().sum(),
                refused: counts.refused.iter().sum(),
            };
            let subject = (service.name.clone(), Some(bucket.name.clone()));
            self.meters.entry(subject).or_default().see(&look);
        }
    }

    /// Another configuration: what it does not have any more is forgotten.
    pub(crate) fn follow(&mut self, config: &Config) {
        let service = |name: &str| config.services.iter().find(|service| service.name == name);
        self.meters.retain(|(name, bucket), _| {
            let requests = service(name).map(|service| &service.requests);
            match (requests, bucket) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(requests), Some(bucket)) => requests
                    .as_ref()
                    .is_some_and(|requests| requests.buckets.iter().any(|b| b.name == *bucket)),
            }
        });
        self.totals.retain(|name, _| service(name).is_some());
    }

    /// What a service, or one of its buckets, went through.
    pub(crate) fn sums(&self, service: &str, bucket: Option<&str>) -> Sums {
        let subject = (service.to_owned(), bucket.map(str::to_owned));
        self.meters.get(&subject).map(|meter| meter.sums().clone()).unwrap_or_default()
    }

    /// The totals of a service as they were last read.
    pub(crate) fn totals(&self, service: &str) -> Option<&ServiceTotals> {
        self.totals.get(service)
    }
}
