// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two laws of dual admission control for request buckets (section 2.3, equations 1 and 2).
//!
//! ```text
//!     P:   rate(t+1) = rate(t) + K_P·(reference − level(t))                  level in percent
//!     PD:  rate(t+1) = rate(t) + K_P·(reference − q(t)) − K_D·(q(t) − q(t−1))      q in percent
//! ```
//!
//! **P** is for the CPU; the same for the pressure on memory and disk, which the paper names and does
//! not build. Held while the level is below its reference and fewer than 90 % of the allowed requests
//! came in the last second: an allowance that nobody uses must not grow. Above a K_P of 1/4 the paper
//! saw oscillations. The level is that of the last second, as in the paper, whatever the interval: a
//! tenth of a second at 100 % is no overload.
//!
//! **PD** is for a queue: that of the interface which the responses leave by, in percent of its limit,
//! because the paper's queue holds 100 packets. The derivative acts on the error, as in syn.rs, though
//! the paper prints a plus. Held while the queue is below its reference and its length (in whole
//! percent: the paper's kernel has integers) has not changed.
//!
//! K_P is per second and is scaled by the interval of the ticks; K_D acts on a difference that is
//! proportional to it.
//!
//! [`Variant::Released`] differs in this. P takes 2/s a second at the most, so from an allowance far
//! above what is asked for it would act after minutes: lowering begins at what is asked for. With a
//! shallow bucket a calm server would refuse bursts for ever, because the mean of what is asked for is
//! below 90 % of the rate: the rate is raised while it refuses as well, and after 10 s in which it was
//! neither used nor needed the limit ends. And changes of a queue that is short say nothing, so a rate
//! that nobody uses is not moved by them.

use super::hits::Mean;
use super::{BucketController, BucketSpec, Context, Core, Demand, Gauge, Headroom, Variant};
use crate::{Freshness, period_s};
use tidegate_model::limits::BucketLimits;
use tidegate_model::signals::Signals;
use tidegate_units::Share;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equation {
    /// Equation 1, on the mean of a second.
    P,
    /// Equation 2.
    Pd,
}

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperBucketSpec {
    /// The law.
    pub equation: Equation,
    /// Rates and bucket.
    pub bucket: BucketSpec,
    /// The resource.
    pub gauge: Gauge,
    /// K_P in requests per second per percent and second: 1/5 for P, 1/16 for PD.
    pub gain_p: f64,
    /// K_D in requests per second per percent: 1/4 for PD; P has none.
    pub gain_d: f64,
    /// Wanted level: 0.90 for the CPU, 0.35 for the queue of the interface.
    pub reference: Share,
    /// Whether it is followed as published.
    pub variant: Variant,
}

impl PaperBucketSpec {
    /// The paper's parameters of P for this resource.
    #[must_use]
    pub fn p(gauge: Gauge) -> Self {
        Self {
            equation: Equation::P,
            bucket: BucketSpec::default(),
            gauge,
            gain_p: 0.2,
            gain_d: 0.0,
            reference: Share::new(gauge.reference()),
            variant: Variant::Released,
        }
    }

    /// The paper's parameters of PD for this resource.
    #[must_use]
    pub fn pd(gauge: Gauge) -> Self {
        Self { equation: Equation::Pd, gain_p: 1.0 / 16.0, gain_d: 0.25, ..Self::p(gauge) }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct PaperBucket {
    spec: PaperBucketSpec,
    core: Core,
    mean: Mean,
    /// The level of the tick before, in percent.
    before: Option<f64>,
}

impl PaperBucket {
    /// A controller that has seen nothing. Gains that are negative or not finite count as zero.
    #[must_use]
    pub fn new(mut spec: PaperBucketSpec) -> Self {
        let clean = |gain: f64| if gain.is_finite() { gain.max(0.0) } else { 0.0 };
        (spec.gain_p, spec.gain_d) = (clean(spec.gain_p), clean(spec.gain_d));
        if spec.equation == Equation::P {
            spec.gain_d = 0.0;
        }
        Self { core: Core::new(spec.bucket), spec, mean: Mean::default(), before: None }
    }

    /// One step of the control law; returns the level that it acts upon.
    fn step(&mut self, seconds: f64, now: f64) -> f64 {
        let PaperBucketSpec { equation, gain_p, gain_d, variant, .. } = self.spec;
        let reference = self.spec.reference.get();
        let (level, error) = match equation {
            Equation::P => {
                let level = self.mean.push(seconds, now);
                (level, 100.0 * (reference - level))
            }
            Equation::Pd => (now, 100.0 * reference - 100.0 * now),
        };
        let length = 100.0 * level;
        let before = self.before.replace(length).unwrap_or(length);
        // For the one who asks what could be refused, a tenth of a second is enough.
        self.core.under_pressure = error <= 0.0 || equation == Equation::P && now >= reference;
        self.core.end_if_calm(variant, error > 0.0, seconds);
        let change = gain_p * seconds * error - gain_d * (length - before);
        let held = match (variant, equation) {
            (Variant::Published, Equation::P) => !self.core.used(),
            (Variant::Published, Equation::Pd) => length.round() == before.round(),
            (Variant::Released, _) => !self.core.used() && !self.core.refusing(),
        };
        // Above the reference a limit begins, if there is none, at what is asked for.
        let begins_not = error <= 0.0 && change < 0.0 && !self.core.cut(variant);
        if !(begins_not || error > 0.0 && held) {
            self.core.change(change);
        }
        level
    }
}

impl BucketController for PaperBucket {
    fn tick(&mut self, signals: &Signals, bucket: usize, context: Context<'_>) -> BucketLimits {
        let seconds = period_s(signals);
        self.core.follow(seconds, context.demand);
        let PaperBucketSpec { gauge, reference, .. } = self.spec;
        let (level, name) = (gauge.level(signals, bucket), gauge.name());
        let seen = self.core.see(signals, bucket, gauge.age(signals, bucket));
        let text = match (level, seen) {
            (Some(level), Freshness::Fresh) => {
                let level = self.step(seconds, level.value);
                format!("{name} {level:.2}, reference {:.2}", reference.get())
            }
            (_, Freshness::Lost) => {
                (self.mean, self.before) = (Mean::default(), None);
                format!("{name} or requests unknown for long: lifted")
            }
            _ => format!("{name} or requests unknown: held"),
        };
        self.core.limits(signals, context, text)
    }

    fn headroom(&self, demand: Demand, seconds: f64) -> Headroom {
        self.core.headroom(self.core.lowered(seconds, demand))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::second;
    use super::*;
    use crate::Mode;
    use tidegate_model::signals::{BucketCounts, BucketSignals, InterfaceQueue, Reading, Times};
    use tidegate_units::{Nanos, Rate};

    const ENFORCE: Context<'static> = Context::alone(Mode::Enforce);

    fn at(rate: f64, variant: Variant) -> PaperBucket {
        let bucket = BucketSpec { start: Some(Rate::per_second(rate)), ..BucketSpec::default() };
        PaperBucket::new(PaperBucketSpec { bucket, variant, ..PaperBucketSpec::p(Gauge::Cpu) })
    }

    fn after(p: &mut PaperBucket, signals: &Signals) -> f64 {
        p.tick(signals, 0, ENFORCE).rate.unwrap().get()
    }

    /// One second of P, row by row, with the paper's own examples.
    #[test]
    fn p_and_its_hold() {
        let table = [
            // rate, hits, refused, CPU, published, released
            (50.0, 30, 0, 0.60, 50.0, 50.0), // section 2.3: 30 of 50 is no reason to raise
            (50.0, 46, 0, 0.60, 56.0, 56.0), // above 90 %
            (50.0, 44, 0, 0.60, 50.0, 50.0), // below
            (50.0, 44, 1, 0.60, 50.0, 56.0), // refuses while calm: ours rises
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
        let mut p = PaperBucket::new(PaperBucketSpec::p(Gauge::Cpu));
        assert_eq!(p.tick(&second(60, 0, 0.85), 0, ENFORCE).rate, None);
        let limits = p.tick(&second(60, 0, 0.95), 0, ENFORCE);
        assert!((limits.rate.unwrap().get() - (60.0 / 0.9 - 1.0)).abs() < 1e-9);
    }

    #[test]
    fn lost_signals_let_go_and_stale_ones_hold() {
        let mut p = PaperBucket::new(PaperBucketSpec::p(Gauge::Cpu));
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
        let mut p = PaperBucket::new(PaperBucketSpec { bucket, ..PaperBucketSpec::p(Gauge::Cpu) });
        assert_eq!(p.tick(&second(30, 0, 0.5), 0, ENFORCE).rate, start);
        let mut lost = second(30, 0, 0.5);
        lost.resource.cpu.as_mut().unwrap().age = Nanos::from_secs(11);
        assert_eq!(p.tick(&lost, 0, ENFORCE).rate, None);
        assert_eq!(p.tick(&second(30, 0, 0.5), 0, ENFORCE).rate, start);
    }

    #[test]
    fn in_shadow_the_rate_stays_above_what_is_completed() {
        let mut p = PaperBucket::new(PaperBucketSpec::p(Gauge::Cpu));
        for _ in 0..100 {
            let rate =
                p.tick(&second(60, 0, 1.0), 0, Context::alone(Mode::Shadow)).rate.unwrap().get();
            assert!(rate >= 60.0, "{rate}");
        }
    }

    /// A server that answers nobody is not a fast one, and its times are not lost: the rate stands.
    /// It is lifted when the times cannot be read.
    #[test]
    fn a_server_that_answers_nobody_keeps_its_limit() {
        let gauge = Gauge::FirstByte(Nanos::SECOND);
        let bucket = BucketSpec { start: Some(Rate::per_second(50.0)), ..BucketSpec::default() };
        let mut p = PaperBucket::new(PaperBucketSpec { bucket, ..PaperBucketSpec::p(gauge) });
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
            assert_eq!(rate(Some(0), 500), slow, "{second} s without a response");
        }
        let lost = (0..60).map(|_| rate(None, 500)).last().flatten();
        assert_eq!(lost, None);
    }

    fn queue(length: f64, hits: u64, refused: u64) -> Signals {
        let mut s = second(hits, refused, 0.5);
        s.queue.interface = Some(Reading::fresh(InterfaceQueue { length, limit: 100.0 }));
        s
    }

    /// From a rate of 50/s, two seconds of PD with these lengths: what the second does to the rate.
    #[test]
    fn pd_and_its_hold() {
        let table = [
            // before, now, hits, refused, published, released
            (0.0, 0.0, 60, 10, 0.0, 35.0 / 16.0), // held for ever; ours rises
            (0.0, 0.0, 10, 0, 0.0, 0.0),
            (20.0, 10.0, 60, 10, 25.0 / 16.0 + 2.5, 25.0 / 16.0 + 2.5),
            (20.0, 10.0, 10, 0, 25.0 / 16.0 + 2.5, 0.0), // nobody uses it
            (0.0, 100.0, 60, 10, -65.0 / 16.0 - 25.0, -65.0 / 16.0 - 25.0),
            (100.0, 100.0, 60, 10, -65.0 / 16.0, -65.0 / 16.0),
            (35.0, 35.0, 60, 10, 0.0, 0.0),
        ];
        for (before, now, hits, refused, published, released) in table {
            for (variant, by) in [(Variant::Published, published), (Variant::Released, released)] {
                let start = Some(Rate::per_second(50.0));
                let bucket = BucketSpec { start, ..BucketSpec::default() };
                let spec = PaperBucketSpec::pd(Gauge::Bandwidth);
                let mut pd = PaperBucket::new(PaperBucketSpec { bucket, variant, ..spec });
                // The first second only tells the length: nothing is asked for, and no gain acts.
                pd.before = Some(before);
                let got = pd.tick(&queue(now, hits, refused), 0, ENFORCE).rate.unwrap().get();
                let expected = f64::max(50.0 + by, 10.0);
                assert!((got - expected).abs() < 1e-9, "{variant:?} {before} {now}: {got}");
            }
        }
    }

    #[test]
    fn a_limit_begins_only_above_the_reference() {
        let mut pd = PaperBucket::new(PaperBucketSpec::pd(Gauge::Bandwidth));
        for length in [0.0, 10.0, 30.0] {
            assert_eq!(pd.tick(&queue(length, 60, 0), 0, ENFORCE).rate, None, "{length}");
        }
        assert!(pd.tick(&queue(60.0, 60, 0), 0, ENFORCE).rate.is_some());
    }
}
