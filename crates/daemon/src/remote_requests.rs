// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits on requests, where they are enforced.
//!
//! | what | how |
//! | --- | --- |
//! | a service that routes lead to | as a whole, beside its own limits, in the form in which the limit came (gate) |
//! | a request bucket, at a gateway or of hooks | the tighter rate of the two holds |
//! | a service with request rules at hooks | divided among its buckets by what comes to each |

use crate::remote::only_shown;
use std::collections::BTreeSet;
use tidegate_config::{BucketConfig, Config};
use tidegate_control::apart::leave_out_refused;
use tidegate_control::fleet::remote::join::{self, Takes, left_out};
use tidegate_control::fleet::remote::{Flow, Grant, InForce, Inbound, Part, Protected};
use tidegate_model::limits::{BucketLimits, ServiceLimits};
use tidegate_model::remote::Unit;
use tidegate_model::signals::{Counts, Signals};
use tidegate_model::{Mode, RANKS};
use tidegate_sense::Sensed;
use tidegate_units::Nanos;

/// See the head of this file.
pub(crate) struct RemoteRequests {
    pub(crate) inbound: Inbound,
    places: Vec<Place>,
    /// By place.
    in_force: Vec<Option<InForce>>,
    /// Places whose remote limit was the tighter one in the round before.
    binds: BTreeSet<usize>,
}

/// What is limited: a service, or a bucket of it, by their places in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    service: usize,
    bucket: Option<usize>,
}

impl Default for RemoteRequests {
    fn default() -> Self {
        Self {
            inbound: Inbound::of(Unit::Requests),
            places: Vec::new(),
            in_force: Vec::new(),
            binds: BTreeSet::new(),
        }
    }
}

impl RemoteRequests {
    /// Follows another configuration. `services` are those of connections, in its order.
    pub(crate) fn follow(&mut self, config: &Config, grants: &[Grant], services: &[Protected]) {
        let (mut places, mut protected) = (Vec::new(), Vec::new());
        for (at, (service, of)) in config.services.iter().zip(services).enumerate() {
            let routed = config.is_routed(&service.name);
            if routed {
                places.push(Place { service: at, bucket: None });
                protected.push(Protected { priorities: true, ..of.clone() });
            }
            let buckets = service.requests.iter().flat_map(|requests| &requests.buckets);
            for (bucket, planned) in buckets.enumerate() {
                places.push(Place { service: at, bucket: Some(bucket) });
                let part = Part { name: planned.name.clone(), shares: !routed };
                let min_rate = planned.min_rate;
                protected.push(Protected { min_rate, bucket: Some(part), ..of.clone() });
            }
        }
        // Limits for congested routers are of connections and datagrams.
        let plain = |grant: &Grant| Grant { when_congested: Vec::new(), ..grant.clone() };
        let grants: Vec<Grant> = grants.iter().map(plain).collect();
        self.inbound.follow(&grants, protected);
        self.in_force = vec![None; places.len()];
        self.places = places;
        self.binds.clear();
    }

    /// A round: what holds until the next.
    pub(crate) fn tick(
        &mut self,
        (now, period): (Nanos, Nanos),
        of: (&Config, bool),
        sensed: &[Sensed],
    ) {
        let flow = |(at, place): (usize, &Place)| self.flow(period, of, (at, *place), sensed);
        let flows: Vec<Option<Flow>> = self.places.iter().enumerate().map(flow).collect();
        let decided = self.inbound.tick(now, period, &flows);
        for ((place, was), is) in self.places.iter().zip(&self.in_force).zip(&decided) {
            log(of.0, *place, (*was, *is));
        }
        self.in_force = decided;
    }

    fn flow(
        &self,
        period: Nanos,
        (config, released): (&Config, bool),
        (at, place): (usize, Place),
        sensed: &[Sensed],
    ) -> Option<Flow> {
        let service = config.services.get(place.service)?;
        let signals = &sensed.get(place.service)?.signals;
        let shown = released || only_shown(service);
        let Some(bucket) = place.bucket else {
            let Counts { offered, admitted: passed, refused_remote, .. } =
                signals.balance.counts?.value;
            let refused = refused_remote.unwrap_or_default();
            return Some(Flow { offered, repeated: 0, passed, refused, shadow: shown });
        };
        let counts = signals.buckets.get(bucket)?.counts?.value;
        let mode = service.requests.as_ref()?.mode_within(service.mode);
        let shadow = shown || mode == Mode::Shadow;
        let [offered, refused] = [counts.offered, counts.refused].map(sum);
        let passed = if shadow { offered } else { offered.saturating_sub(refused) };
        let rate = self.in_force.get(at).copied().flatten().map(|limit| limit.rate);
        let most = left_out(offered, rate, period);
        let refused = if self.binds.contains(&at) { refused.min(most) } else { 0 };
        Some(Flow { offered, repeated: 0, passed, refused, shadow })
    }

    /// Puts them beside, or into, what the controllers decided.
    pub(crate) fn join(&mut self, config: &Config, own: &mut [ServiceLimits]) {
        self.binds.clear();
        for (at, (place, in_force)) in self.places.iter().zip(&self.in_force).enumerate() {
            let service = config.services.get(place.service);
            let (Some(remote), Some(service), Some(limits)) =
                (in_force, service, own.get_mut(place.service))
            else {
                continue;
            };
            let binds = match place.bucket {
                None => join::requests(limits, remote),
                Some(bucket) => {
                    let buckets = service.requests.iter().flat_map(|of| &of.buckets);
                    let planned: Vec<&BucketConfig> = buckets.collect();
                    if limits.buckets.len() < planned.len() {
                        limits.buckets.resize_with(planned.len(), BucketLimits::default);
                    }
                    let one = planned.get(bucket).zip(limits.buckets.get_mut(bucket));
                    one.is_some_and(|(planned, own)| join::bucket(own, remote, takes(planned)))
                }
            };
            if binds {
                self.binds.insert(at);
            }
        }
    }

    /// Whether a limit of a peer is the tightest of a service's requests.
    pub(crate) fn holds(&self, service: usize) -> bool {
        let whole = Place { service, bucket: None };
        self.bound().any(|place| place == whole)
    }

    /// Leaves out of the signals of a service what limits of peers have refused of its buckets.
    /// There the tighter of two limits holds, so all that was refused is the peer's.
    pub(crate) fn leave_out(&self, service: usize, signals: &mut Signals) {
        let own = self.bound().filter(|place| place.service == service);
        for bucket in own.filter_map(|place| place.bucket) {
            if let Some(counts) = signals.buckets.get_mut(bucket).and_then(|b| b.counts.as_mut()) {
                leave_out_refused(&mut counts.value);
            }
        }
    }

    /// Whether one of a service's buckets is bound.
    pub(crate) fn holds_bucket(&self, service: usize) -> bool {
        self.bound().any(|place| place.service == service && place.bucket.is_some())
    }

    fn bound(&self) -> impl Iterator<Item = Place> {
        self.binds.iter().filter_map(|at| self.places.get(*at).copied())
    }

    /// The places of a service.
    pub(crate) fn of(&self, service: usize) -> Vec<usize> {
        let places = self.places.iter().enumerate();
        places.filter(|(_, place)| place.service == service).map(|(at, _)| at).collect()
    }
}

fn sum(by_rank: [u64; RANKS]) -> u64 {
    by_rank.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
}

fn takes(planned: &BucketConfig) -> Takes {
    let share = planned.policy_name() == "percent";
    Takes { rate: planned.takes_rate(), share, burst: planned.burst }
}

/// One line for each beginning and each end.
fn log(config: &Config, place: Place, turn: (Option<InForce>, Option<InForce>)) {
    let Some(service) = config.services.get(place.service) else { return };
    let mut buckets = service.requests.iter().flat_map(|requests| &requests.buckets);
    let bucket = place.bucket.and_then(|at| buckets.nth(at)).map(|bucket| bucket.name.as_str());
    let (service, bucket) = (&service.name, bucket.unwrap_or_default());
    match turn {
        (None, Some(limit)) => {
            let (form, priority) = (limit.form.name(), limit.priority);
            let rate = limit.rate;
            tracing::info!(service, bucket, %rate, form, priority, "remote limit on requests begins");
        }
        (Some(_), None) => tracing::info!(service, bucket, "remote limit on requests is over"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{ControlledResource, PolicyConfig};

    #[test]
    fn what_a_policy_takes_of_a_limit_is_the_configurations() {
        for (name, rate, share) in [
            (None, true, false),
            (Some("percent"), true, true),
            (Some("gap"), true, false),
            (Some("threshold"), false, false),
        ] {
            let name = name.map(str::to_owned);
            let policy = name.clone().map(|name| PolicyConfig { name, ..PolicyConfig::default() });
            let bucket = BucketConfig {
                burst: 8,
                policy,
                ..BucketConfig::new("all", ControlledResource::Cpu)
            };
            assert_eq!(takes(&bucket), Takes { rate, share, burst: 8 }, "{name:?}");
        }
    }
}
