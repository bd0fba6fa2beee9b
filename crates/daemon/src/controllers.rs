// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the words of the configuration to controllers.

mod buckets;

pub use buckets::make_bucket;

use tidegate_bpf::policy::Policy;
use tidegate_config::{
    BURST_DEFAULT, ControlConfig, ControlVariant, LevelSignal, PolicyConfig, ServiceConfig,
};
use tidegate_control::fleet::{Bounds, Operator, Terms};
use tidegate_control::{
    Between, Controller, DefaultController, DefaultSpec, Fixed, SynByLength, SynSpec, SynVariant,
    Wants,
};
use tidegate_model::RATE_MIN;
use tidegate_units::Rate;

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
        (SYN, _) => Box::new(between(Box::new(syn(control)), control)),
        _ => {
            let spec = DefaultSpec { objective: service.objective };
            Box::new(between(Box::new(DefaultController::new(spec)), control))
        }
    }
}

/// What the configuration says of a service, beside its controllers.
#[must_use]
pub fn terms(config: &ServiceConfig) -> Terms {
    let rules = config.requests.as_ref().map(|requests| requests.mode_within(config.mode));
    let shadow = tidegate_model::Mode::Shadow;
    Terms {
        operator: operator(config),
        back_ends: config.backends.len(),
        wants: wants(config),
        reserve: config.reserved(),
        rules_in_shadow: rules == Some(shadow),
        shadow: config.mode == shadow,
        canary: !config.canary.is_all(),
    }
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
    let by_hand = control.name == FIXED;
    let service = Bounds {
        min_rate: control.min_rate.unwrap_or(Rate::per_second(RATE_MIN)),
        own: if by_hand { control.rate } else { control.ceiling },
        burst: control.burst.unwrap_or(BURST_DEFAULT),
        by_hand,
    };
    let buckets = config.requests.iter().flat_map(|requests| &requests.buckets);
    Operator { service, buckets: buckets.map(buckets::bounds).collect() }
}

fn between(inner: Box<dyn Controller>, control: &ControlConfig) -> Between {
    let burst = control.burst.unwrap_or(BURST_DEFAULT);
    Between::new(inner, (control.min_rate, control.ceiling), burst)
}

/// The published controller with what an operator said of it.
fn syn(control: &ControlConfig) -> SynByLength {
    let mut spec = SynSpec::default();
    spec.rate_start = control.rate.unwrap_or(spec.rate_start);
    spec.burst = control.burst.unwrap_or(spec.burst);
    spec.min_rate = control.min_rate.unwrap_or(spec.min_rate);
    spec.rate_max = control.ceiling.unwrap_or(spec.rate_max);
    spec.cpu_reference = control.cpu.unwrap_or(spec.cpu_reference);
    spec.gain_p = control.gain.unwrap_or(spec.gain_p);
    spec.gain_d = control.derivative_gain.unwrap_or(spec.gain_d);
    spec.variant = match control.variant.unwrap_or_default() {
        ControlVariant::Published => SynVariant::Published,
        ControlVariant::Released => SynVariant::Released,
    };
    SynByLength::new(spec, control.accept_queue.unwrap_or(ACCEPT_QUEUE_DEFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_control::{Beside, Mode};
    use tidegate_model::signals::{AcceptQueue, ConnectionCounts, Counts, Reading, Signals, Times};
    use tidegate_units::{Nanos, Share};

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

    /// Limits that count who is there are passed at the operator's minimum rate, or the controller's own.
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
