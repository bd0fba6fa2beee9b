// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits on requests, where they are enforced.
//!
//! | what | how |
//! | --- | --- |
//! | a service that routes lead to | as a whole, beside its own limits, in the form in which the limit came (gate) |
//! | a request bucket, at a gateway or of hooks | the tighter rate of the two holds |
//! | a service with request rules at hooks | divided among its buckets by what comes to each |

use crate::remote::{left_out, only_shown};
use std::collections::BTreeSet;
use tidegate_config::{BucketConfig, Config};
use tidegate_control::fleet::remote::{Flow, Grant, InForce, Inbound, Part, Protected};
use tidegate_model::limits::{BucketLimits, RequestLimit, ServiceLimits, Why};
use tidegate_model::remote::{Form, Unit};
use tidegate_model::signals::{BucketCounts, Counts, Reading, Signals};
use tidegate_model::{Mode, RANKS};
use tidegate_sense::Sensed;
use tidegate_units::{Nanos, Rate};

/// A bucket keeps so much for each rank above, where its own law keeps nothing: 1/4 of it.
const KEPT_PART: u32 = 4;

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
                let floor = planned.min_rate;
                protected.push(Protected { floor, bucket: Some(part), ..of.clone() });
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
                None => {
                    limits.requests = Some(beside(remote));
                    limits.rate.is_none_or(|rate| remote.rate < rate)
                }
                Some(bucket) => {
                    let buckets = service.requests.iter().flat_map(|of| &of.buckets);
                    let planned: Vec<&BucketConfig> = buckets.collect();
                    if limits.buckets.len() < planned.len() {
                        limits.buckets.resize_with(planned.len(), BucketLimits::default);
                    }
                    let one = planned.get(bucket).zip(limits.buckets.get_mut(bucket));
                    one.is_some_and(|(planned, limits)| tighter(planned, limits, remote))
                }
            };
            if binds {
                self.binds.insert(at);
                if place.bucket.is_none() {
                    say_why(&mut limits.why, remote);
                }
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
                without_refused(&mut counts.value);
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

/// The signals of a service without what a limit of a peer on all its requests has refused; `None`: nothing.
/// What its own limits refused beside that stays, and its controller sees it.
pub(crate) fn without_remote(signals: &Signals) -> Option<Signals> {
    let remote = signals.balance.counts?.value.refused_remote.filter(|refused| *refused > 0)?;
    let mut signals = signals.clone();
    if let Some(Reading { value: counts, .. }) = &mut signals.balance.counts {
        // In shadow all passed, also those whom the limit would have refused.
        counts.offered = counts.offered.saturating_sub(remote).max(counts.admitted);
        counts.refused = counts.refused.saturating_sub(remote);
        counts.refused_remote = Some(0);
    }
    Some(signals)
}

fn without_refused(counts: &mut BucketCounts) {
    for (offered, refused) in counts.offered.iter_mut().zip(&mut counts.refused) {
        *offered = offered.saturating_sub(std::mem::take(refused));
    }
    counts.refused_first = 0;
}

fn beside(remote: &InForce) -> RequestLimit {
    let InForce { rate, burst, loss, form, priority, .. } = *remote;
    let loss = loss.filter(|_| form == Form::Loss);
    RequestLimit { form, rate, burst: burst.max(1), loss, priority }
}

/// The tighter of the two holds; whether that is the remote one.
fn tighter(planned: &BucketConfig, limits: &mut BucketLimits, remote: &InForce) -> bool {
    if !planned.takes_rate() || limits.rate.is_some_and(|rate| rate <= remote.rate) {
        return false;
    }
    if limits.rate.is_none() {
        limits.burst = planned.burst.max(1);
        let kept = limits.burst / KEPT_PART;
        limits.reserve = [0, kept, 2 * kept];
    }
    if remote.form == Form::Gap {
        // The last rank needs a full bucket, so it keeps the gap; the first may be ahead by all of it.
        let kept = std::array::from_fn(|rank| rank as u32);
        (limits.burst, limits.reserve) = (RANKS as u32, kept);
    }
    limits.rate = Some(remote.rate);
    if planned.policy_name() == "percent" {
        limits.loss = remote.loss;
    }
    say_why(&mut limits.why, remote);
    true
}

fn say_why(why: &mut Why, remote: &InForce) {
    let rate: Rate = remote.rate;
    why.text = format!("a remote limit of {rate} on requests holds; {}", why.text);
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
    use tidegate_config::ControlledResource;
    use tidegate_units::Share;

    fn remote(rate: f64, form: Form) -> InForce {
        let loss = Some(Share::new(0.5));
        InForce { rate: Rate::per_second(rate), burst: 20, loss, form, ..InForce::default() }
    }

    #[test]
    fn of_a_bucket_the_tighter_limit_holds_and_ranks_stay() {
        let planned =
            BucketConfig { burst: 8, ..BucketConfig::new("all", ControlledResource::Cpu) };
        let mut limits = BucketLimits::default();
        assert!(tighter(&planned, &mut limits, &remote(40.0, Form::Rate)));
        let seen = (limits.rate.map(Rate::get), limits.burst, limits.reserve, limits.loss);
        assert_eq!(seen, (Some(40.0), 8, [0, 2, 4], None));
        limits.reserve = [0, 1, 3];
        assert!(!tighter(&planned, &mut limits, &remote(40.0, Form::Rate)), "not below its own");
        assert!(tighter(&planned, &mut limits, &remote(30.0, Form::Loss)));
        assert_eq!((limits.rate.map(Rate::get), limits.reserve), (Some(30.0), [0, 1, 3]));
        assert!(tighter(&planned, &mut limits, &remote(20.0, Form::Gap)));
        assert_eq!((limits.burst, limits.reserve), (3, [0, 1, 2]), "the last rank, one at a time");
    }

    #[test]
    fn what_a_service_refuses_beside_a_limit_of_a_peer_is_its_own() {
        let of = |admitted, remote| {
            let counts = Counts {
                offered: 100,
                admitted,
                refused: 40,
                refused_remote: remote,
                ..Counts::default()
            };
            let mut signals = Signals::default();
            signals.balance.counts = Some(Reading::fresh(counts));
            let apart = without_remote(&signals)?.balance.counts?.value;
            Some((apart.offered, apart.admitted, apart.refused))
        };
        assert_eq!(of(60, Some(30)), Some((70, 60, 10)));
        assert_eq!(of(60, Some(40)), Some((60, 60, 0)));
        assert_eq!(of(100, Some(30)), Some((100, 100, 10)), "in shadow");
        assert_eq!((of(60, Some(0)), of(60, None)), (None, None), "all are its own");
    }

    #[test]
    fn what_a_peer_refuses_never_came() {
        let mut counts = BucketCounts {
            offered: [5, 50, 7],
            refused: [0, 20, 7],
            refused_first: 9,
            begun: 35,
            ended: 30,
        };
        without_refused(&mut counts);
        assert_eq!((counts.offered, counts.refused), ([5, 30, 0], [0; RANKS]));
        assert_eq!((counts.refused_first, counts.begun), (0, 35));
    }
}
