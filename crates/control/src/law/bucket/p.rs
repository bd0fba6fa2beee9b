// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proportional controller of dual admission control (section 2.3, equation 1).
//!
//! ```text
//!     rate(t+1) = rate(t) + K_P·(reference − level(t))        level in percent
//! ```
//!
//! for the CPU; the same for the pressure on memory and disk, which the paper names and does not
//! build. Held while the level is below its reference and fewer than 90 % of the allowed requests
//! came in the last second: an allowance that nobody uses must not grow. K_P is per second and is
//! scaled by the interval of the ticks; above 1/4 the paper saw oscillations. The level is that of the
//! last second, as in the paper, whatever the interval: a tenth of a second at 100 % is no overload.
//!
//! [`Variant::Released`] differs twice. The law takes 2/s a second at the most, so from an allowance
//! far above what is asked for it would act after minutes: lowering begins at what is asked for.
//! And with a shallow bucket a calm server would refuse bursts for ever, because the mean of what is
//! asked for is below 90 % of the rate: the rate is raised while it refuses as well, and after 10 s in
//! which it was neither used nor needed the limit ends.

use super::hits::Mean;
use super::{BucketController, BucketSpec, Context, Core, Demand, Gauge, Room, Variant};
use crate::{Freshness, period_s};
use tidegate_model::limits::BucketLimits;
use tidegate_model::signals::Signals;
use tidegate_units::Share;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PSpec {
    /// Rates and bucket.
    pub bucket: BucketSpec,
    /// The resource.
    pub gauge: Gauge,
    /// K_P in requests per second per percent and second: 1/5.
    pub gain: f64,
    /// Wanted level: 0.90 for the CPU.
    pub reference: Share,
    /// Whether it is followed to the letter.
    pub variant: Variant,
}

impl PSpec {
    /// The paper's parameters for this resource. Ours are the references where it names none:
    /// memory, where any waiting is slow for everybody, 0.10; disk 0.40; an accept queue as in the
    /// paper's SYN controller; the interface queue as in its bandwidth controller; half of the time for
    /// waiting for the CPU, half of what an answer may take; all of a number.
    #[must_use]
    pub fn of(gauge: Gauge) -> Self {
        let reference = match gauge {
            Gauge::Cpu => 0.90,
            Gauge::Memory => 0.10,
            Gauge::Disk => 0.40,
            Gauge::AcceptQueue => 100.0 / 1024.0,
            Gauge::Bandwidth => 0.35,
            Gauge::CpuPressure | Gauge::FirstByte(_) | Gauge::ResponseTime(_) => 0.50,
            Gauge::InFlight(_) | Gauge::Waiting(_) | Gauge::BytesSent(_) => 1.0,
        };
        Self {
            bucket: BucketSpec::default(),
            gauge,
            gain: 0.2,
            reference: Share::new(reference),
            variant: Variant::Released,
        }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct P {
    spec: PSpec,
    core: Core,
    mean: Mean,
}

impl P {
    /// A controller that has seen nothing. A gain that is negative or not finite counts as zero.
    #[must_use]
    pub fn new(mut spec: PSpec) -> Self {
        spec.gain = if spec.gain.is_finite() { spec.gain.max(0.0) } else { 0.0 };
        Self { core: Core::new(spec.bucket), spec, mean: Mean::default() }
    }

    /// One step of the control law; returns the level of the last second.
    fn step(&mut self, seconds: f64, level: f64) -> f64 {
        let reference = self.spec.reference.get();
        let now = level;
        let level = self.mean.push(seconds, level);
        let error = 100.0 * (reference - level);
        // For the one who asks what could be refused, a tenth of a second is enough.
        self.core.pressed = error <= 0.0 || now >= reference;
        self.core.end_if_calm(self.spec.variant, error > 0.0, seconds);
        if error < 0.0 {
            if self.core.cut(self.spec.variant) {
                self.core.change(self.spec.gain * seconds * error);
            }
            return level;
        }
        let released = self.spec.variant == Variant::Released && self.core.refusing();
        if self.core.used() || released {
            self.core.change(self.spec.gain * seconds * error);
        }
        level
    }
}

impl BucketController for P {
    fn tick(&mut self, signals: &Signals, bucket: usize, context: Context<'_>) -> BucketLimits {
        self.core.squeeze(period_s(signals), context.demand);
        let level = self.spec.gauge.level(signals, bucket);
        let name = self.spec.gauge.name();
        let seen = self.core.see(signals, bucket, self.spec.gauge.age(signals, bucket));
        let text = match (level, seen) {
            (Some(level), Freshness::Fresh) => {
                let level = self.step(period_s(signals), level.value);
                format!("{name} {level:.2}, reference {:.2}", self.spec.reference.get())
            }
            (_, Freshness::Lost) => {
                self.mean = Mean::default();
                format!("{name} or requests unknown for long: let go")
            }
            _ => format!("{name} or requests unknown: held"),
        };
        self.core.limits(signals, context, text)
    }

    fn room(&self, demand: Demand, seconds: f64) -> Room {
        self.core.room(self.core.lowered(seconds, demand))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::second;
    use super::*;
    use crate::Mode;
    use tidegate_model::signals::{BucketCounts, BucketSignals, Reading, Times};
    use tidegate_units::{Nanos, Rate};

    const ENFORCE: Context<'static> = Context::alone(Mode::Enforce);

    fn at(rate: f64, variant: Variant) -> P {
        let bucket = BucketSpec { start: Some(Rate::per_second(rate)), ..BucketSpec::default() };
        P::new(PSpec { bucket, variant, ..PSpec::of(Gauge::Cpu) })
    }

    fn after(p: &mut P, signals: &Signals) -> f64 {
        p.tick(signals, 0, ENFORCE).rate.unwrap().get()
    }

    /// One second of the law, row by row, with the paper's own examples.
    #[test]
    fn the_law_and_its_hold() {
        let table = [
            // rate, hits, refused, CPU, published, released
            (50.0, 30, 0, 0.60, 50.0, 50.0), // section 2.3: 30 of 50 is no reason to raise
            (50.0, 46, 0, 0.60, 56.0, 56.0), // above 90 %
            (50.0, 44, 0, 0.60, 50.0, 50.0), // below
            (50.0, 44, 1, 0.60, 50.0, 56.0), // refuses while calm: ours lets go
            (74.0, 140, 66, 1.00, 72.0, 72.0), // at most two a second (section 3.3)
            (74.0, 36, 0, 1.00, 72.0, 38.0), // ours begins at 36/0.9
            (11.0, 140, 129, 1.00, 10.0, 10.0), // the minimum
        ];
        for (rate, hits, refused, cpu, published, released) in table {
            let signals = second(hits, refused, cpu);
            let row = format!("{rate} {hits} {cpu}");
            let got = after(&mut at(rate, Variant::Published), &signals);
            assert!((got - published).abs() < 1e-9, "published, {row}: {got}");
            let got = after(&mut at(rate, Variant::Released), &signals);
            assert!((got - released).abs() < 1e-9, "released, {row}: {got}");
        }
    }

    #[test]
    fn ten_ticks_of_a_tenth_make_one_of_a_second() {
        let mut one = at(74.0, Variant::Published);
        let mut ten = at(74.0, Variant::Published);
        let mut tenth = second(14, 6, 1.0);
        tenth.period = Nanos::from_millis(100);
        let fast = (0..10).map(|_| after(&mut ten, &tenth)).last().unwrap();
        assert!((fast - after(&mut one, &second(140, 60, 1.0))).abs() < 1e-9, "{fast}");
    }

    #[test]
    fn without_a_start_there_is_no_limit_until_the_reference_is_reached() {
        let mut p = P::new(PSpec::of(Gauge::Cpu));
        assert_eq!(p.tick(&second(60, 0, 0.85), 0, ENFORCE).rate, None);
        let limits = p.tick(&second(60, 0, 0.95), 0, ENFORCE);
        assert!((limits.rate.unwrap().get() - (60.0 / 0.9 - 1.0)).abs() < 1e-9);
    }

    #[test]
    fn lost_signals_let_go_and_stale_ones_hold() {
        let mut p = P::new(PSpec::of(Gauge::Cpu));
        p.tick(&second(60, 0, 0.95), 0, ENFORCE);
        let mut stale = second(60, 30, 1.0);
        stale.resource.cpu.as_mut().unwrap().age = Nanos::from_secs(5);
        let held = p.tick(&stale, 0, ENFORCE).rate;
        assert!(held.is_some_and(|rate| rate.get() > 60.0), "{held:?}");
        stale.resource.cpu.as_mut().unwrap().age = Nanos::from_secs(11);
        assert_eq!(p.tick(&stale, 0, ENFORCE).rate, None);
    }

    /// A rate set for the start is a limit, too: it has no ground without signals either.
    #[test]
    fn lost_signals_let_go_of_a_start_and_it_begins_anew_there() {
        let start = Some(Rate::per_second(75.0));
        let bucket = BucketSpec { start, ..BucketSpec::default() };
        let mut p = P::new(PSpec { bucket, ..PSpec::of(Gauge::Cpu) });
        assert_eq!(p.tick(&second(30, 0, 0.5), 0, ENFORCE).rate, start);
        let mut lost = second(30, 0, 0.5);
        lost.resource.cpu.as_mut().unwrap().age = Nanos::from_secs(11);
        assert_eq!(p.tick(&lost, 0, ENFORCE).rate, None);
        assert_eq!(p.tick(&second(30, 0, 0.5), 0, ENFORCE).rate, start);
    }

    #[test]
    fn in_shadow_the_rate_stays_above_what_is_completed() {
        let mut p = P::new(PSpec::of(Gauge::Cpu));
        for _ in 0..100 {
            let rate =
                p.tick(&second(60, 0, 1.0), 0, Context::alone(Mode::Shadow)).rate.unwrap().get();
            assert!(rate >= 60.0, "{rate}");
        }
    }

    /// A server that answers nobody is not a fast one, and its times are not lost: the rate stands.
    /// It is let go when the times cannot be read.
    #[test]
    fn a_server_that_answers_nobody_keeps_its_limit() {
        let gauge = Gauge::FirstByte(Nanos::SECOND);
        let bucket = BucketSpec { start: Some(Rate::per_second(50.0)), ..BucketSpec::default() };
        let mut p = P::new(PSpec { bucket, ..PSpec::of(gauge) });
        let mut rate = |answered: Option<u64>, in_flight| {
            let sum = Nanos::from_secs(answered.unwrap_or(0));
            let times = answered.map(|count| Times { count, sum, ..Times::default() });
            let counts = BucketCounts { offered: [0, 60, 0], ..BucketCounts::default() };
            let bucket = BucketSignals {
                counts: Some(Reading::fresh(counts)),
                in_flight: Some(Reading::fresh(in_flight)),
                first_byte: times.map(Reading::fresh),
                ..BucketSignals::default()
            };
            let buckets = vec![bucket];
            let signals = Signals { period: Nanos::SECOND, buckets, ..Signals::default() };
            p.tick(&signals, 0, ENFORCE).rate.map(Rate::get)
        };
        let slow = (0..3).map(|_| rate(Some(20), 20)).last().flatten();
        assert!(slow.is_some_and(|rate| rate < 50.0), "{slow:?}");
        for second in 0..60 {
            assert_eq!(rate(Some(0), 500), slow, "{second} s without an answer");
        }
        let lost = (0..60).map(|_| rate(None, 500)).last().flatten();
        assert_eq!(lost, None);
    }
}
