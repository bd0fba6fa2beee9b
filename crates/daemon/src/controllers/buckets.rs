// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the words of a bucket's configuration to its controller.

use tidegate_config::{
    BucketConfig, BucketController as Name, ControlVariant, ControlledResource, ServiceConfig,
};
use tidegate_control::fleet::Bounds;
use tidegate_control::{
    BucketController, BucketSpec, CappedBucket, DefaultBucket, DefaultSpec, FixedBucket, Gauge,
    PaperBucket, PaperBucketSpec, Variant,
};
use tidegate_units::{Nanos, Share};

/// The controller that a bucket's configuration names.
#[must_use]
pub fn make_bucket(service: &ServiceConfig, config: &BucketConfig) -> Box<dyn BucketController> {
    let control = &config.control;
    let spec = bucket_spec(config);
    let gauge = gauge(config, service.objective);
    if !config.takes_rate() {
        return Box::new(FixedBucket::without_rate(spec));
    }
    let inner: Box<dyn BucketController> = match (control.name, control.rate) {
        // What an operator set by hand is not lifted to the minimum.
        (Name::Fixed, Some(rate)) => {
            let min_rate = if rate < spec.min_rate { rate } else { spec.min_rate };
            return Box::new(FixedBucket::new(rate, BucketSpec { min_rate, ..spec }));
        }
        (Name::P, _) => Box::new(paper(config, spec, PaperBucketSpec::p(gauge))),
        (Name::Pd, _) => Box::new(paper(config, spec, PaperBucketSpec::pd(gauge))),
        (Name::Fixed, None) => return Box::new(FixedBucket::without_rate(spec)),
        (Name::Default, _) => {
            let objective = DefaultSpec { objective: service.objective };
            Box::new(DefaultBucket::new(gauge, spec, objective))
        }
    };
    match control.ceiling {
        Some(ceiling) => Box::new(CappedBucket::new(inner, ceiling, config.burst)),
        None => inner,
    }
}

/// What the operator said of a bucket's rate; it needs no signals.
pub(super) fn bounds(config: &BucketConfig) -> Bounds {
    let control = &config.control;
    let by_hand = control.name == Name::Fixed;
    let own = if by_hand { control.rate } else { control.ceiling };
    Bounds { min_rate: config.min_rate, own, burst: config.burst, by_hand }
}

fn bucket_spec(config: &BucketConfig) -> BucketSpec {
    let default = BucketSpec::default();
    BucketSpec {
        min_rate: config.min_rate,
        maximum: config.control.ceiling.unwrap_or(default.maximum),
        start: config.control.rate,
        burst: config.burst,
    }
}

fn gauge(config: &BucketConfig, objective: Nanos) -> Gauge {
    let number = config.control.reference.unwrap_or(1.0).max(1.0);
    match config.resource {
        ControlledResource::Cpu => Gauge::Cpu,
        ControlledResource::Bandwidth => Gauge::Bandwidth,
        ControlledResource::Memory => Gauge::Memory,
        ControlledResource::Disk => Gauge::Disk,
        ControlledResource::AcceptQueue => Gauge::AcceptQueue,
        ControlledResource::InFlight => Gauge::InFlight(number as u32),
        ControlledResource::CpuPressure => Gauge::CpuPressure,
        ControlledResource::FirstByte => Gauge::FirstByte(objective),
        ControlledResource::ResponseTime => Gauge::ResponseTime(objective),
        ControlledResource::Waiting => Gauge::Waiting(number as u32),
        ControlledResource::BytesSent => Gauge::BytesSent(number as u64),
    }
}

/// Numbers are a share of their own reference: there it is always one.
fn reference(config: &BucketConfig, default: Share) -> Share {
    match config.control.reference {
        _ if config.resource.is_number() => Share::new(1.0),
        Some(reference) => Share::new(reference),
        None => default,
    }
}

fn variant(config: &BucketConfig) -> Variant {
    match config.control.variant.unwrap_or_default() {
        ControlVariant::Published => Variant::Published,
        ControlVariant::Released => Variant::Released,
    }
}

/// A law of the paper with what an operator said of it.
fn paper(config: &BucketConfig, bucket: BucketSpec, paper: PaperBucketSpec) -> PaperBucket {
    let control = &config.control;
    PaperBucket::new(PaperBucketSpec {
        bucket,
        gain_p: control.gain.unwrap_or(paper.gain_p),
        gain_d: control.derivative_gain.unwrap_or(paper.gain_d),
        reference: reference(config, paper.reference),
        variant: variant(config),
        ..paper
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};
    use tidegate_control::{Context, Mode};
    use tidegate_model::signals::{
        BucketCounts, BucketSignals, InterfaceQueue, Reading, Signals, Times,
    };
    use tidegate_units::Rate;

    fn made(bucket: &str) -> Box<dyn BucketController> {
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  web:\n    mode: enforce\n    listen: [\"*:80\"]\n    requests:\n      buckets: {{a: {bucket}}}\n      rules: [{{path: /, bucket: a}}]\n"
        );
        let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let service = &config.services[0];
        make_bucket(service, &service.requests.as_ref().unwrap().buckets[0])
    }

    /// A second with 100 requests, at this CPU, this queue, so many in flight.
    fn second(cpu: f64, queue: f64, in_flight: u64) -> Signals {
        let mut signals = Signals { period: Nanos::SECOND, ..Signals::default() };
        signals.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
        let queue = InterfaceQueue { length: queue, limit: 100.0 };
        signals.queue.interface = Some(Reading::fresh(queue));
        let counts = BucketCounts { offered: [0, 100, 0], begun: 100, ..BucketCounts::default() };
        signals.buckets.push(BucketSignals {
            counts: Some(Reading::fresh(counts)),
            in_flight: Some(Reading::fresh(in_flight)),
            ..BucketSignals::default()
        });
        signals
    }

    fn rate(bucket: &str, signals: &Signals) -> Option<f64> {
        made(bucket).tick(signals, 0, Context::alone(Mode::Enforce)).rate.map(Rate::get)
    }

    #[test]
    fn every_word_makes_its_controller_with_its_parameters() {
        let calm = second(0.5, 0.0, 1);
        let hot = second(1.0, 80.0, 40);
        for (bucket, at_rest, under_pressure) in [
            ("{resource: cpu, control: {name: fixed, rate: 3/s}}", Some(3.0), Some(3.0)),
            ("{resource: cpu}", None, None),
            ("{resource: cpu, control: {ceiling: 70}}", Some(70.0), Some(70.0)),
            // 10 % above the reference: 2/s less than what is asked for, over 0.9.
            ("{resource: cpu, control: {name: p}}", None, Some(100.0 / 0.9 - 2.0)),
            ("{resource: cpu, control: {name: p, gain: 1}}", None, Some(100.0 / 0.9 - 10.0)),
            (
                "{resource: cpu, control: {name: p, rate: 50/s, reference: 1}}",
                Some(60.0),
                Some(50.0),
            ),
            (
                "{resource: cpu, control: {name: p, rate: 50/s, variant: published}}",
                Some(58.0),
                Some(48.0),
            ),
        ] {
            let close = |found: Option<f64>, wanted: Option<f64>| match (found, wanted) {
                (Some(found), Some(wanted)) => (found - wanted).abs() < 1e-6,
                (found, wanted) => found == wanted,
            };
            assert!(close(rate(bucket, &calm), at_rest), "{bucket}: {:?}", rate(bucket, &calm));
            assert!(
                close(rate(bucket, &hot), under_pressure),
                "{bucket}: {:?}",
                rate(bucket, &hot)
            );
        }
    }

    /// Whatever is sensed can be what a bucket goes by: free at half of it, limited well above.
    #[test]
    fn every_signal_is_followed() {
        let (mut calm, mut hot) = (second(0.5, 0.0, 1), second(0.5, 0.0, 1));
        for (signals, level) in [(&mut calm, 0.25), (&mut hot, 1.2)] {
            let share = |level: f64| Some(Reading::fresh(Share::new(level)));
            let resource = &mut signals.resource;
            resource.cpu_pressure = share(level);
            (resource.memory_pressure, resource.io_pressure) = (share(level / 4.0), share(level));
            resource.bandwidth = Some(Reading::fresh(level * 1e6));
            signals.time.waiting = Some(Reading::fresh((level * 80.0) as u64));
            // The objective is a second.
            let sum = Nanos::from_secs_f64(10.0 * level);
            let times = Some(Reading::fresh(Times { count: 10, sum, ..Times::default() }));
            (signals.buckets[0].first_byte, signals.buckets[0].end) = (times, times);
        }
        for bucket in [
            "{resource: memory, control: {name: p}}",
            "{resource: disk, control: {name: p}}",
            "{resource: cpu-pressure, control: {name: p}}",
            "{resource: first-byte, control: {name: p}}",
            "{resource: response-time, control: {name: p, reference: 0.3}}",
            "{resource: bytes-sent, control: {name: p, reference: 1000000}}",
            "{resource: waiting, control: {name: pd, reference: 80}}",
        ] {
            assert_eq!(rate(bucket, &calm), None, "{bucket}");
            assert!(rate(bucket, &hot).is_some_and(|rate| rate < 111.0), "{bucket}");
            let default = bucket.replace("name: p, ", "").replace("name: pd, ", "");
            let default = default.replace(", control: {name: p}", "").replace("reference: 0.3", "");
            assert_eq!(rate(&default, &hot), None, "{default}: one tick is no overload");
        }
    }

    #[test]
    fn queues_and_requests_in_flight_are_followed() {
        let (calm, hot) = (second(0.5, 0.0, 1), second(0.5, 80.0, 40));
        for bucket in [
            "{resource: bandwidth, control: {name: pd}}",
            "{resource: in-flight, control: {name: pd, reference: 20}}",
        ] {
            assert_eq!(rate(bucket, &calm), None, "{bucket}");
            assert!(rate(bucket, &hot).is_some_and(|rate| rate < 112.0), "{bucket}");
        }
    }
}
