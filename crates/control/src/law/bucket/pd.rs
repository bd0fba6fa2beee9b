// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proportional derivative controller of dual admission control (section 2.3, equation 2) on a
//! queue: that of the interface which the answers leave by.
//!
//! ```text
//!     rate(t+1) = rate(t) + K_P·(reference − q(t)) − K_D·(q(t) − q(t−1))
//! ```
//!
//! q in percent of the queue's limit: the paper's queue holds 100 packets. The derivative acts on
//! the error, as in syn.rs, though the paper prints a plus. Held while the queue is below its
//! reference and its length (in whole percent: the paper's kernel has integers) has not changed. K_P is
//! scaled by the interval of the ticks, K_D acts on a difference that is proportional to it.
//!
//! [`Variant::Released`] differs as in p.rs, and once more: changes of a queue that is short say
//! nothing, so a rate that nobody uses is not moved by them.

use super::{BucketController, BucketSpec, Context, Core, Demand, Gauge, Room, Variant};
use crate::{Freshness, period_s};
use tidegate_model::limits::BucketLimits;
use tidegate_model::signals::Signals;
use tidegate_units::Share;

/// The parameters; the paper's are the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PdSpec {
    /// Rates and bucket.
    pub bucket: BucketSpec,
    /// The queue.
    pub gauge: Gauge,
    /// K_P in requests per second per percent and second: 1/16.
    pub gain_p: f64,
    /// K_D in requests per second per percent: 1/4.
    pub gain_d: f64,
    /// Wanted length as a share of the limit: 35 of 100.
    pub reference: Share,
    /// Whether it is followed to the letter.
    pub variant: Variant,
}

impl Default for PdSpec {
    fn default() -> Self {
        Self {
            bucket: BucketSpec::default(),
            gauge: Gauge::Bandwidth,
            gain_p: 1.0 / 16.0,
            gain_d: 0.25,
            reference: Share::new(0.35),
            variant: Variant::Released,
        }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Pd {
    spec: PdSpec,
    core: Core,
    before: Option<f64>,
}

impl Pd {
    /// A controller that has seen nothing. Gains that are negative or not finite count as zero.
    #[must_use]
    pub fn new(mut spec: PdSpec) -> Self {
        let clean = |gain: f64| if gain.is_finite() { gain.max(0.0) } else { 0.0 };
        (spec.gain_p, spec.gain_d) = (clean(spec.gain_p), clean(spec.gain_d));
        Self { core: Core::new(spec.bucket), spec, before: None }
    }

    fn step(&mut self, seconds: f64, level: f64) {
        let length = 100.0 * level;
        let before = self.before.replace(length).unwrap_or(length);
        let error = 100.0 * self.spec.reference.get() - length;
        self.core.pressed = error <= 0.0;
        let change = self.spec.gain_p * seconds * error - self.spec.gain_d * (length - before);
        self.core.end_if_calm(self.spec.variant, error > 0.0, seconds);
        let held = match self.spec.variant {
            Variant::Published => length.round() == before.round(),
            Variant::Released => !self.core.used() && !self.core.refusing(),
        };
        // Above the reference a limit begins, if there is none, at what is asked for.
        if error <= 0.0 && change < 0.0 && !self.core.cut(self.spec.variant) || error > 0.0 && held
        {
            return;
        }
        self.core.change(change);
    }
}

impl BucketController for Pd {
    fn tick(&mut self, signals: &Signals, bucket: usize, context: Context<'_>) -> BucketLimits {
        self.core.squeeze(period_s(signals), context.demand);
        let level = self.spec.gauge.level(signals, bucket);
        let name = self.spec.gauge.name();
        let seen = self.core.see(signals, bucket, level.map(|l| l.age));
        let text = match (level, seen) {
            (Some(level), Freshness::Fresh) => {
                self.step(period_s(signals), level.value);
                let reference = self.spec.reference.get();
                format!("{name} {:.2} of its limit, reference {reference:.2}", level.value)
            }
            (_, Freshness::Lost) => {
                self.before = None;
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
    use tidegate_model::signals::{InterfaceQueue, Reading};
    use tidegate_units::Rate;

    const ENFORCE: Context<'static> = Context::alone(Mode::Enforce);

    fn queue(length: f64, hits: u64, refused: u64) -> Signals {
        let mut s = second(hits, refused, 0.5);
        s.queue.interface = Some(Reading::fresh(InterfaceQueue { length, limit: 100.0 }));
        s
    }

    /// From a rate of 50/s, two seconds with these lengths: what the second does to the rate.
    #[test]
    fn the_law_and_its_hold() {
        let table = [
            // before, now, hits, refused, published, released
            (0.0, 0.0, 60, 10, 0.0, 35.0 / 16.0), // held for ever; ours lets go
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
                let mut pd = Pd::new(PdSpec { bucket, variant, ..PdSpec::default() });
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
        let mut pd = Pd::new(PdSpec::default());
        for length in [0.0, 10.0, 30.0] {
            assert_eq!(pd.tick(&queue(length, 60, 0), 0, ENFORCE).rate, None, "{length}");
        }
        assert!(pd.tick(&queue(60.0, 60, 0), 0, ENFORCE).rate.is_some());
    }
}
