// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the words of the configuration to controllers.

mod buckets;

pub(crate) use buckets::is_fixed;
pub use buckets::make_bucket;

use tidegate_bpf::policy::Policy;
use tidegate_config::{
    BURST_DEFAULT, ControlConfig, ControlVariant, LevelSignal, PolicyConfig, ServiceConfig,
};
use tidegate_control::fleet::{Bounds, Operator};
use tidegate_control::{
    Beside, Cap, Controller, Decision, DefaultController, DefaultSpec, Fixed, Measured, Mode, Syn,
    SynSpec, SynVariant, Wants,
};
use tidegate_model::RATE_FLOOR;
use tidegate_model::limits::{BucketLimits, ServiceLimits};
use tidegate_model::signals::{Reading, Signals};
use tidegate_units::{Nanos, Rate, Share};

/// Finds the limit by itself, for a server of which nothing is known.
pub const DEFAULT: &str = "default";
/// The published SYN controller.
pub const SYN: &str = "syn";
/// A rate set by hand.
pub const FIXED: &str = "fixed";
/// The controllers that a configuration may name.
pub const NAMES: [&str; 3] = [DEFAULT, SYN, FIXED];

/// The accept queue that the published controller aims at: 100 connections (of 1024).
const ACCEPT_QUEUE_DEFAULT: u32 = 100;

/// The controller that a service's configuration names; a name that is none (the configuration's
/// own check refuses it) gets the default one.
#[must_use]
pub fn make(service: &ServiceConfig) -> Box<dyn Controller> {
    let control = &service.control;
    let burst = control.burst.unwrap_or(BURST_DEFAULT);
    match (control.name.as_str(), control.rate) {
        (FIXED, Some(rate)) => Box::new(Fixed::new(rate, burst)),
        (FIXED, None) => Box::new(Fixed::without_rate()),
        (SYN, _) => Box::new(Between::new(Box::new(SynByLength::new(control)), control)),
        _ => {
            let spec = DefaultSpec { objective: service.objective };
            Box::new(Between::new(Box::new(DefaultController::new(spec)), control))
        }
    }
}

/// What a controller wants, for the policies of this service: at least one token, the reserves of its
/// classes, and what policies need beside a rate, as it was measured.
#[must_use]
pub fn of_service(
    config: &ServiceConfig,
    measured: &mut Measured,
    signals: &Signals,
    wanted: ServiceLimits,
) -> ServiceLimits {
    let mut wanted = with_reserve(config, wanted);
    measured.complete(signals, &wants(config), &mut wanted);
    wanted
}

/// A bucket of at least one token, and the reserves of the classes.
#[must_use]
pub fn with_reserve(config: &ServiceConfig, mut wanted: ServiceLimits) -> ServiceLimits {
    wanted.burst = wanted.burst.max(1);
    wanted.reserve = config.reserve_tokens(wanted.burst);
    wanted
}

fn wants(config: &ServiceConfig) -> Wants {
    let buckets = || config.requests.iter().flat_map(|requests| &requests.buckets);
    let policies = buckets().filter_map(|bucket| bucket.policy.as_ref());
    let times = |policy: &PolicyConfig| policy.level_signal().is_some_and(LevelSignal::is_time);
    let shares = |name: &str| Policy::from_name(name) == Some(Policy::Percent);
    Wants {
        loss: shares(&config.policy.name),
        per_request: policies.chain([&config.policy]).any(times),
        buckets: buckets().map(|bucket| shares(bucket.policy_name())).collect(),
    }
}

/// What the operator said of the rates of a service and of its buckets; it needs no signals.
pub(crate) fn operator(config: &ServiceConfig) -> Operator {
    let control = &config.control;
    let fixed = control.name == FIXED;
    let service = Bounds {
        floor: control.min_rate.unwrap_or(Rate::per_second(RATE_FLOOR)),
        own: if fixed { control.rate } else { control.ceiling },
    };
    let buckets = config.requests.iter().flat_map(|requests| &requests.buckets);
    Operator { service, buckets: buckets.map(buckets::bounds).collect() }
}

/// What of it holds the service itself, whatever else does.
pub(crate) fn cap(config: &ServiceConfig) -> Option<Cap> {
    let rate = operator(config).service.own?;
    Some(Cap { rate, burst: config.control.burst.unwrap_or(BURST_DEFAULT) })
}

/// Limits where no controller decides: what the operator set by hand is added, of each back-end.
pub(crate) fn of_operator(config: &ServiceConfig, mut limits: ServiceLimits) -> ServiceLimits {
    let operator = operator(config).of_all(config.backends.len());
    if let (Some(rate), Some(cap)) = (operator.service.own, cap(config)) {
        (limits.rate, limits.burst) = (Some(rate), cap.burst);
    }
    let buckets = config.requests.iter().flat_map(|requests| &requests.buckets);
    let own = buckets.zip(&operator.buckets).map(|(bucket, bounds)| BucketLimits {
        rate: bounds.own,
        burst: bucket.burst.max(1),
        why: limits.why.clone(),
        ..BucketLimits::default()
    });
    let own: Vec<BucketLimits> = own.collect();
    let any = own.iter().any(|bucket| bucket.rate.is_some());
    limits.buckets = if any { own } else { Vec::new() };
    with_reserve(config, limits)
}

/// The operator's floor and ceiling around a controller. The floor is the least rate of the limits, too.
struct Between {
    inner: Box<dyn Controller>,
    floor: Option<Rate>,
    ceiling: Option<Rate>,
    burst: u32,
    /// It was the ceiling that held in the tick before.
    capped: bool,
}

impl Between {
    fn new(inner: Box<dyn Controller>, control: &ControlConfig) -> Self {
        let burst = control.burst.unwrap_or(BURST_DEFAULT);
        Self { inner, floor: control.min_rate, ceiling: control.ceiling, burst, capped: false }
    }
}

impl Controller for Between {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        self.decide(signals, mode, Beside::default()).limits
    }

    fn decide(&mut self, signals: &Signals, mode: Mode, beside: Beside) -> Decision {
        let mut decision = if self.capped {
            self.inner.decide(&without_refused(signals), mode, beside)
        } else {
            self.inner.decide(signals, mode, beside)
        };
        let limits = &mut decision.limits;
        if let (Some(rate), Some(floor)) = (limits.rate, self.floor)
            && rate < floor
        {
            limits.rate = Some(floor);
        }
        limits.min_rate = self.floor.or(limits.min_rate);
        self.capped = false;
        if let Some(ceiling) = self.ceiling
            && limits.rate.is_none_or(|rate| rate > ceiling)
        {
            self.capped = true;
            if limits.rate.is_none() {
                limits.burst = limits.burst.max(self.burst);
            }
            limits.rate = Some(ceiling);
        }
        decision
    }

    fn save(&self) -> Option<serde_json::Value> {
        self.inner.save()
    }

    fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        self.inner.restore(value, age)
    }
}

/// What an operator's ceiling refuses, or a peer's limit, never came: it is no sign of an overload.
pub(crate) fn without_refused(signals: &Signals) -> Signals {
    let mut signals = signals.clone();
    if let Some(Reading { value: counts, .. }) = &mut signals.balance.counts {
        (counts.offered, counts.refused, counts.repeated) = (counts.admitted, 0, 0);
    }
    signals
}

/// The published controller with its reference in connections: it knows shares of the accept
/// queue's limit, and that is known with the first reading.
struct SynByLength {
    connections: u32,
    inner: Syn,
    limit: u64,
}

impl SynByLength {
    fn new(control: &ControlConfig) -> Self {
        let mut spec = SynSpec::default();
        spec.rate_start = control.rate.unwrap_or(spec.rate_start);
        spec.burst = control.burst.unwrap_or(spec.burst);
        spec.rate_min = control.min_rate.unwrap_or(spec.rate_min);
        spec.rate_max = control.ceiling.unwrap_or(spec.rate_max);
        spec.cpu_reference = control.cpu.unwrap_or(spec.cpu_reference);
        spec.gain_p = control.gain.unwrap_or(spec.gain_p);
        spec.gain_d = control.derivative_gain.unwrap_or(spec.gain_d);
        spec.variant = match control.variant.unwrap_or_default() {
            ControlVariant::Published => SynVariant::Published,
            ControlVariant::Released => SynVariant::Released,
        };
        let connections = control.accept_queue.unwrap_or(ACCEPT_QUEUE_DEFAULT);
        Self { inner: Syn::new(spec), connections, limit: 0 }
    }
}

impl Controller for SynByLength {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        self.decide(signals, mode, Beside::default()).limits
    }

    fn decide(&mut self, signals: &Signals, mode: Mode, beside: Beside) -> Decision {
        let limit = signals.queue.accept.map_or(0, |queue| queue.value.limit);
        if self.limit == 0 && limit > 0 {
            self.limit = limit;
            // A reference above the queue's limit could never be reached: half of it at most.
            let share = (f64::from(self.connections) / limit as f64).min(0.5);
            self.inner.aim(Share::new(share));
        }
        self.inner.decide(signals, mode, beside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{AcceptQueue, ConnectionCounts, Counts, Times};

    fn service(control: &str) -> ServiceConfig {
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  web: {{mode: enforce, listen: [\"*:80\"], control: {control}}}\n"
        );
        let registry = tidegate_config::Registry::new(["fresh_first"], NAMES);
        tidegate_config::parse(&text, &registry).unwrap().services.remove(0)
    }

    #[test]
    fn every_name_makes_its_controller() {
        for (control, rate, idle_below) in [
            ("{name: fixed, rate: 200, burst: 7}", Some(200.0), None),
            ("{name: default}", None, None),
            ("{name: default, ceiling: 50}", Some(50.0), None),
            ("{name: syn, rate: 300}", Some(300.0), Some(0.97)),
            ("{name: syn, rate: 300, cpu: 0.98}", Some(300.0), Some(0.98)),
            ("{name: syn, rate: 300, variant: published}", Some(300.0), None),
        ] {
            let mut controller = make(&service(control));
            let mut signals = Signals::default();
            let queue = AcceptQueue { length: 0, limit: 1024 };
            signals.queue.accept = Some(Reading::fresh(queue));
            let decision = controller.decide(&signals, Mode::Enforce, Beside::default());
            assert_eq!(decision.limits.rate.map(Rate::get), rate, "{control}");
            assert_eq!(decision.idle_below.map(Share::get), idle_below, "{control}");
        }
    }

    /// Half a second for each of 100/s is 50 in flight, and no overload: not either while a ceiling refuses
    /// another 50/s from the first tick on.
    #[test]
    fn what_a_ceiling_refuses_is_no_sign_of_an_overload() {
        let mut controller = make(&service("{name: default, ceiling: 100}"));
        let (period, took) = (Nanos::from_millis(100), Nanos::from_millis(500));
        for tick in 0..600 {
            let mut signals = Signals { now: Nanos(period.0 * tick), period, ..Signals::default() };
            let done = if tick < 5 { 0 } else { 10 };
            let connections = ConnectionCounts {
                replied: 10,
                proved: 10,
                asked: 10,
                answered: done,
                ended: done,
                ended_exchanges: done,
                ..ConnectionCounts::default()
            };
            signals.balance.counts = Some(Reading::fresh(Counts {
                offered: 15,
                admitted: 10,
                refused: 5,
                completed: done,
                connections: Some(connections),
                ..Counts::default()
            }));
            signals.time.waiting = Some(Reading::fresh(10 * (tick + 1).min(5)));
            let sum = Nanos(took.0 * done);
            let times = Times { count: done, sum, p50: took, p99: took };
            signals.time.first_byte = Some(Reading::fresh(times));
            signals.resource.cpu = Some(Reading::fresh(Share::new(0.3)));
            let limits = controller.tick(&signals, Mode::Enforce);
            assert_eq!(limits.rate.map(Rate::get), Some(100.0), "tick {tick}: {:?}", limits.why);
            assert!(!limits.why.shedding, "tick {tick}: {:?}", limits.why);
        }
    }

    /// Limits that count who is there are passed at the operator's floor, or the controller's own.
    #[test]
    fn the_floor_is_the_least_rate_past_full_limits() {
        for (control, least) in [
            ("{name: default}", Some(0.1)),
            ("{name: default, min_rate: 20}", Some(20.0)),
            ("{name: syn, min_rate: 20}", Some(20.0)),
            ("{name: syn}", None),
            ("{name: fixed, rate: 5}", None),
        ] {
            let mut controller = make(&service(control));
            let mut signals =
                Signals { period: tidegate_units::Nanos::SECOND, ..Signals::default() };
            signals.balance.counts = Some(Reading::fresh(Counts::default()));
            signals.time.waiting = Some(Reading::fresh(0));
            let limits = controller.tick(&signals, Mode::Enforce);
            assert_eq!(limits.min_rate.map(Rate::get), least, "{control}");
        }
    }

    /// What an operator set is the end of the law's way down, too: from there the next tick counts.
    #[test]
    fn the_syn_controller_comes_back_from_the_floor_at_once() {
        let mut controller = make(&service("{name: syn, rate: 500, min_rate: 200}"));
        let mut rate_at = |length| {
            let mut signals =
                Signals { period: tidegate_units::Nanos::SECOND, ..Signals::default() };
            signals.queue.accept = Some(Reading::fresh(AcceptQueue { length, limit: 1024 }));
            let counts = Counts { refused: 10, ..Counts::default() };
            signals.balance.counts = Some(Reading::fresh(counts));
            controller.tick(&signals, Mode::Enforce).rate.map(Rate::get)
        };
        let low = (0..1000).map(|_| rate_at(1000)).last().flatten();
        assert_eq!(low, Some(200.0));
        // (100 - 900)/16 + 100/4, and 100/16 + 900/4
        assert_eq!(rate_at(900), Some(200.0));
        assert_eq!(rate_at(0), Some(200.0 + 6.25 + 225.0));
    }

    /// Gains are the server's: one that is twice as fast has twice the gains.
    #[test]
    fn the_syn_controllers_gains_are_the_operators() {
        let fall = |control: &str| {
            let mut controller = make(&service(control));
            let mut rate_at = |length| {
                let mut signals =
                    Signals { period: tidegate_units::Nanos::SECOND, ..Signals::default() };
                let queue = AcceptQueue { length, limit: 1024 };
                signals.queue.accept = Some(Reading::fresh(queue));
                controller.tick(&signals, Mode::Enforce).rate.unwrap().get()
            };
            let before = rate_at(100);
            (before - rate_at(260)).round()
        };
        // 160/16 above the aim, and 160/4 longer than before.
        assert_eq!(fall("{name: syn, rate: 500}"), 50.0);
        assert_eq!(fall("{name: syn, rate: 500, gain: 0.125, derivative_gain: 0.5}"), 100.0);
        assert_eq!(fall("{name: syn, rate: 500, derivative_gain: 0}"), 10.0);
    }

    #[test]
    fn the_syn_controller_aims_at_a_length_in_connections() {
        let mut controller = make(&service("{name: syn, rate: 100, accept_queue: 10}"));
        let mut signals = Signals { period: tidegate_units::Nanos::SECOND, ..Signals::default() };
        let rate_at = |length, controller: &mut Box<dyn Controller>, signals: &mut Signals| {
            let queue = AcceptQueue { length, limit: 1024 };
            signals.queue.accept = Some(Reading::fresh(queue));
            controller.tick(signals, Mode::Enforce).rate.unwrap().get()
        };
        let at_reference = rate_at(10, &mut controller, &mut signals);
        let above = rate_at(200, &mut controller, &mut signals);
        assert!(above < at_reference, "{above} after {at_reference}");
    }
}
