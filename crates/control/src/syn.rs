// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The SYN controller of dual admission control (Voigt and Gunningberg; section 2.3, equation 2).
//!
//! A proportional derivative controller on the length q of the accept queue sets the rate of SYNs:
//!
//! ```text
//!     rate(t+1) = rate(t) + K_P·(reference − q(t)) − K_D·(q(t) − q(t−1))
//! ```
//!
//! Printed with a plus before K_D; the text says that the derivative *reacts faster*, so a growing
//! queue must lower the rate and the derivative acts on the error. It is held while the queue is
//! below its reference and its length has not changed, and raised only while the CPU is below its
//! reference. K_P is per second and is scaled by the sampling interval; K_D acts on a difference
//! that is itself proportional to the interval, and stays.
//!
//! Taken literally that hold never lets go: with the queue empty and unchanged the rate stays where
//! the crowd pushed it. That is [`SynVariant::Published`]. [`SynVariant::Released`], which we ship,
//! raises the rate in that state too while something is refused, at the same proportional law.

use crate::{BURST_MAX, Controller, Freshness, Mode, Watch, bounded, period_s};
use tidegate_model::limits::{ServiceLimits, Why};
use tidegate_model::signals::{Family, Signals};
use tidegate_units::{Nanos, Rate, Share};

/// Whether the hold lets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynVariant {
    /// As printed: held for ever while the queue is empty and unchanged.
    Published,
    /// Raised while it refuses and the signals are calm.
    Released,
}

/// The parameters; the defaults are the paper's (section 3, "Parameter settings").
#[derive(Clone, Debug, PartialEq)]
pub struct SynSpec {
    /// K_P in admissions per second per connection and second: 1/16.
    pub gain_p: f64,
    /// K_D in admissions per second per connection: 1/4.
    pub gain_d: f64,
    /// Wanted length as a share of the accept queue's limit: 100 of 1024 in the paper.
    pub reference: Share,
    /// The rate is raised only while the CPU is below this: 0.90.
    pub cpu_reference: Share,
    /// Rate at the start: 1000/s.
    pub rate_start: Rate,
    /// The rate never exceeds this (the paper names no ceiling; ours keeps a calm year finite).
    pub rate_max: Rate,
    /// Bucket: 20 SYNs.
    pub burst: u32,
    /// Whether the hold lets go.
    pub variant: SynVariant,
}

impl Default for SynSpec {
    fn default() -> Self {
        Self {
            gain_p: 1.0 / 16.0,
            gain_d: 0.25,
            reference: Share::new(100.0 / 1024.0),
            cpu_reference: Share::new(0.90),
            rate_start: Rate::per_second(1000.0),
            rate_max: Rate::per_second(1e6),
            burst: 20,
            variant: SynVariant::Released,
        }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Syn {
    spec: SynSpec,
    rate: f64,
    length: Option<f64>,
    watch: Watch,
    seen: Freshness,
    shedding: bool,
    since: Nanos,
}

impl Syn {
    /// A controller that has seen nothing. Gains that are negative or not finite count as zero.
    #[must_use]
    pub fn new(mut spec: SynSpec) -> Self {
        let clean = |gain: f64| if gain.is_finite() { gain.max(0.0) } else { 0.0 };
        (spec.gain_p, spec.gain_d) = (clean(spec.gain_p), clean(spec.gain_d));
        let rate = spec.rate_start.get();
        Self {
            spec,
            rate,
            length: None,
            watch: Watch::default(),
            seen: Freshness::Frozen,
            shedding: false,
            since: Nanos::ZERO,
        }
    }

    /// One step of the control law; returns the queue's reference.
    fn step(&mut self, signals: &Signals, length: f64, limit: f64) -> f64 {
        let reference = (self.spec.reference.get() * limit).max(1.0);
        let before = self.length.replace(length).unwrap_or(length);
        let refused = signals.balance.counts.is_some_and(|c| c.value.refused > 0);
        let held = length < reference && length == before;
        let freed = self.spec.variant == SynVariant::Released && refused;
        if held && !freed {
            return reference;
        }
        let change = self.spec.gain_p * period_s(signals) * (reference - length)
            - self.spec.gain_d * (length - before);
        // A CPU that could not be read does not keep the rate down.
        let busy = signals.resource.cpu.is_some_and(|c| c.value >= self.spec.cpu_reference);
        if change <= 0.0 || !busy {
            self.rate = bounded(self.rate + change).get().min(self.spec.rate_max.get().max(1.0));
        }
        reference
    }
}

impl Controller for Syn {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        let accept = signals.queue.accept;
        self.seen = self.watch.see(accept.map(|a| a.age), signals.period);
        let text = match (accept, self.seen) {
            (Some(queue), Freshness::Fresh) => {
                let (length, limit) = (queue.value.length as f64, queue.value.limit as f64);
                let reference = self.step(signals, length, limit);
                format!("accept queue {length:.0} of {limit:.0}, reference {reference:.0}")
            }
            (_, Freshness::Lost) => {
                self.length = None;
                self.rate = self.rate.max(self.spec.rate_start.get());
                "accept queue unknown for long: back to the initial rate or above".to_owned()
            }
            _ => "accept queue unknown: held".to_owned(),
        };
        let counts = signals.balance.counts.map(|c| c.value).unwrap_or_default();
        if mode == Mode::Shadow {
            // Nothing is shed, so the queue does not answer to the rate: what the server completes
            // is a rate that it can do.
            self.rate = self.rate.max(counts.completed as f64 / period_s(signals));
        }
        if (counts.refused > 0) != self.shedding {
            self.shedding = counts.refused > 0;
            self.since = signals.now;
        }
        let rate = bounded(self.rate);
        let alarmed = if self.shedding { vec![Family::Queue] } else { Vec::new() };
        ServiceLimits {
            rate: Some(rate),
            burst: self.spec.burst.clamp(1, BURST_MAX),
            why: Why {
                shedding: self.shedding,
                since: self.since,
                alarmed,
                text: format!("{text}; rate {rate}"),
            },
            ..ServiceLimits::default()
        }
    }

    fn resume(&mut self, completions: Rate) {
        self.rate = bounded(self.rate.max(completions.get())).get();
        self.rate = self.rate.min(self.spec.rate_max.get().max(1.0));
    }

    fn grounded(&self) -> bool {
        self.seen == Freshness::Fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{AcceptQueue, Counts, Reading};

    fn signals(length: u64, refused: u64, cpu: f64, period: Nanos) -> Signals {
        let mut s = Signals { period, ..Signals::default() };
        s.queue.accept = Some(Reading::fresh(AcceptQueue { length, limit: 1024 }));
        s.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
        s.balance.counts = Some(Reading::fresh(Counts { refused, ..Counts::default() }));
        s
    }

    fn rates(variant: SynVariant, series: &[(u64, u64, f64)], period: Nanos) -> Vec<f64> {
        let mut syn = Syn::new(SynSpec { variant, ..SynSpec::default() });
        let tick = |(length, refused, cpu): &(u64, u64, f64)| {
            let limits = syn.tick(&signals(*length, *refused, *cpu, period), Mode::Enforce);
            limits.rate.map_or(0.0, Rate::get)
        };
        series.iter().map(tick).collect()
    }

    #[test]
    fn a_growing_queue_lowers_the_rate_by_both_terms() {
        let rates = rates(SynVariant::Published, &[(0, 0, 0.5), (500, 0, 1.0)], Nanos::SECOND);
        // −(500 − 100)/16 − 500/4 = −25 − 125
        assert_eq!(rates, [1000.0, 850.0]);
    }

    #[test]
    fn the_published_hold_never_lets_go_and_the_shipped_one_does() {
        let mut series = vec![(0, 0, 0.5), (600, 100, 1.0), (0, 100, 0.95)];
        series.extend(vec![(0, 100, 0.5); 100]);
        let published = rates(SynVariant::Published, &series, Nanos::SECOND);
        assert_eq!(published[3], published[102], "held for ever");
        let released = rates(SynVariant::Released, &series, Nanos::SECOND);
        // 100/16 a second
        assert!((released[102] - released[3] - 99.0 * 6.25).abs() < 1e-6);
    }

    #[test]
    fn the_rate_is_raised_only_while_the_cpu_is_below_its_reference() {
        let series = [(50, 10, 0.95), (40, 10, 0.95), (30, 10, 0.85)];
        let rates = rates(SynVariant::Released, &series, Nanos::SECOND);
        assert_eq!(rates[0], 1000.0);
        assert_eq!(rates[1], 1000.0);
        assert!(rates[2] > 1000.0);
    }

    #[test]
    fn ten_ticks_of_100_ms_do_what_one_of_1_s_does() {
        let slow = rates(SynVariant::Released, &[(0, 0, 0.5), (300, 0, 1.0)], Nanos::SECOND);
        let steps: Vec<_> = (0..=10).map(|k| (k * 30, 0, 1.0)).collect();
        let fast = rates(SynVariant::Released, &steps, Nanos::from_millis(100));
        // The same derivative; the proportional term sees the queue on its way.
        assert!((slow[1] - fast[10]).abs() < 15.0, "{} and {}", slow[1], fast[10]);
    }
}
