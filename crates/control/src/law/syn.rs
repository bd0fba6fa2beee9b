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
//! Taken literally that hold never ends: with the queue empty and unchanged the rate stays where
//! the crowd pushed it. That is [`SynVariant::Published`]. [`SynVariant::Released`], which we ship,
//! raises the rate in that state too while something is refused, at the same proportional law.
//!
//! The paper does not say what becomes of the rate where nobody knows the queue. While it is not known
//! the rate stands, and after [`crate::RELEASE_PERIODS`] there is none: without a queue nothing would
//! ever raise it. Known again, it begins anew at the initial rate or above.

use crate::detect::{CPU_USED_UP, busy};
use crate::{
    BURST_MAX, Beside, Controller, Decision, Freshness, Mode, RATE_CEILING, Watch, age_max,
    period_s,
};
use tidegate_model::RATE_MIN;
use tidegate_model::limits::{Cause, ServiceLimits, Why};
use tidegate_model::signals::{Family, Signals};
use tidegate_units::{Nanos, Rate, Share};

/// Whether the hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynVariant {
    /// As printed: held for ever while the queue is empty and unchanged.
    Published,
    /// Raised while it refuses and the signals are calm.
    Released,
}

/// A CPU reference above this leaves no room that could be told from none.
const IDLE_BELOW_MAX: f64 = 0.99;

/// The parameters; the defaults are the paper's (section 3, "Parameter settings").
#[derive(Clone, Debug, PartialEq)]
pub struct SynSpec {
    /// K_P in admissions per second per connection and second: 1/16.
    pub gain_p: f64,
    /// K_D in admissions per second per connection: 1/4.
    pub gain_d: f64,
    /// Wanted length as a share of the accept queue's limit: 100 of 1024 in the paper.
    pub reference: Share,
    /// The rate is raised only while the CPU, or the thread that the server works in, is below this: 0.90.
    pub cpu_reference: Share,
    /// Rate at the start: 1000/s.
    pub rate_start: Rate,
    /// The rate never falls below this, so that it is soon back: 1/s (the paper names no minimum).
    pub min_rate: Rate,
    /// The rate never exceeds this (the paper names no ceiling; ours keeps a calm year finite).
    pub rate_max: Rate,
    /// Bucket: 20 SYNs.
    pub burst: u32,
    /// Whether the hold ends.
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
            min_rate: Rate::per_second(RATE_MIN),
            rate_max: Rate::per_second(1e6),
            burst: 20,
            variant: SynVariant::Released,
        }
    }
}

impl SynSpec {
    /// A rate inside the bounds; NaN becomes the maximum, because what is no number must not
    /// tighten.
    fn bounded(&self, rate: f64) -> f64 {
        let min_rate = self.min_rate.get().clamp(RATE_MIN, RATE_CEILING);
        let ceiling = self.rate_max.get().clamp(min_rate, RATE_CEILING);
        if rate.is_nan() { ceiling } else { rate.clamp(min_rate, ceiling) }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Syn {
    spec: SynSpec,
    rate: f64,
    /// The queue has been unknown for long: no limit until it is known again.
    lifted: bool,
    length: Option<f64>,
    /// The queue's reference in connections, as of the last step.
    reference: f64,
    watch: Watch,
    shedding: bool,
    since: Nanos,
}

impl Syn {
    /// A controller that has seen nothing. Gains that are negative or not finite count as zero.
    #[must_use]
    pub fn new(mut spec: SynSpec) -> Self {
        let clean = |gain: f64| if gain.is_finite() { gain.max(0.0) } else { 0.0 };
        (spec.gain_p, spec.gain_d) = (clean(spec.gain_p), clean(spec.gain_d));
        let rate = spec.bounded(spec.rate_start.get());
        Self {
            spec,
            rate,
            lifted: false,
            length: None,
            reference: 0.0,
            watch: Watch::default(),
            shedding: false,
            since: Nanos::ZERO,
        }
    }

    /// Aims at another share of the queue's limit from now on; what was learned stays.
    pub const fn aim(&mut self, reference: Share) {
        self.spec.reference = reference;
    }

    /// One step of the control law; returns the queue's reference. `refuses`: something was refused in
    /// this tick.
    fn step(&mut self, signals: &Signals, (length, limit): (f64, f64), refuses: bool) -> f64 {
        let reference = (self.spec.reference.get() * limit).max(1.0);
        self.reference = reference;
        let before = self.length.replace(length).unwrap_or(length);
        let held = length < reference && length == before;
        let freed = self.spec.variant == SynVariant::Released && refuses;
        if held && !freed {
            return reference;
        }
        let change = self.spec.gain_p * period_s(signals) * (reference - length)
            - self.spec.gain_d * (length - before);
        // A CPU that could not be read does not keep the rate down.
        let busy = busy(&signals.resource, age_max(signals));
        let busy = busy.is_some_and(|busy| busy >= self.spec.cpu_reference);
        if change <= 0.0 || !busy {
            self.rate = self.spec.bounded(self.rate + change);
        }
        reference
    }

    fn limits(&self, text: &str) -> ServiceLimits {
        let rate = (!self.lifted).then(|| Rate::per_second(self.rate));
        let told = rate.map_or_else(|| "no limit".to_owned(), |rate| format!("rate {rate}"));
        let alarmed = if self.shedding { vec![Family::Queue] } else { Vec::new() };
        ServiceLimits {
            rate,
            burst: self.spec.burst.clamp(1, BURST_MAX),
            why: Why {
                shedding: self.shedding,
                since: self.since,
                alarmed,
                cause: self.shedding.then_some(Cause::Reference),
                text: format!("{text}; {told}"),
            },
            ..ServiceLimits::default()
        }
    }

    /// This law's way back, 1/16 a second for each free place of the queue and none at all while the
    /// CPU is at its reference, takes a minute and more. A CPU that is not used up is room, but not
    /// beside a queue at this controller's own reference.
    fn idle_below(&self) -> Option<Share> {
        let short = self.length.is_some_and(|length| length < self.reference);
        let room = CPU_USED_UP.max(self.spec.cpu_reference.get()).min(IDLE_BELOW_MAX);
        (self.spec.variant == SynVariant::Released && short).then(|| Share::new(room))
    }
}

impl Controller for Syn {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        self.decide(signals, mode, Beside::default()).limits
    }

    fn decide(&mut self, signals: &Signals, mode: Mode, beside: Beside) -> Decision {
        if let Some(rate) = beside.resume {
            self.rate = self.spec.bounded(self.rate.max(rate.get()));
        }
        let counts = signals.balance.counts.map(|c| c.value).unwrap_or_default();
        let refuses = counts.refused.max(beside.refusals.on_standby) > 0;
        let accept = signals.queue.accept;
        let seen = self.watch.see(accept.map(|a| a.age), signals.period);
        let text = match (accept, seen) {
            (Some(queue), Freshness::Fresh) => {
                self.lifted = false;
                let (length, limit) = (queue.value.length as f64, queue.value.limit as f64);
                let reference = self.step(signals, (length, limit), refuses);
                format!("accept queue {length:.0} of {limit:.0}, reference {reference:.0}")
            }
            (_, Freshness::Lost) => {
                self.length = None;
                self.lifted = true;
                self.rate = self.rate.max(self.spec.bounded(self.spec.rate_start.get()));
                "accept queue unknown for long: lifted".to_owned()
            }
            _ => "accept queue unknown: held".to_owned(),
        };
        if mode == Mode::Shadow {
            // Nothing is shed, so the queue does not answer to the rate: what the server completes
            // is a rate that it can do.
            let completed = counts.done() as f64 / period_s(signals);
            self.rate = self.spec.bounded(self.rate.max(completed));
        }
        if refuses != self.shedding {
            self.shedding = refuses;
            self.since = signals.now;
        }
        Decision {
            limits: self.limits(&text),
            fresh: seen == Freshness::Fresh,
            idle_below: self.idle_below(),
        }
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

    /// One thread at its end on a machine with 16 CPUs; then that reading is old.
    #[test]
    fn a_thread_at_its_reference_keeps_the_rate_down_as_the_cpu_does() {
        let mut syn = Syn::new(SynSpec::default());
        let mut rate = |length, age_s| {
            let mut s = signals(length, 10, 0.07, Nanos::SECOND);
            let (value, age) = (Share::new(1.0), Nanos::from_secs(age_s));
            s.resource.busiest_thread = Some(Reading { value, age });
            syn.tick(&s, Mode::Enforce).rate.map(Rate::get)
        };
        assert_eq!([rate(50, 0), rate(40, 3)], [Some(1000.0); 2]);
        assert!(rate(30, 4) > Some(1000.0));
    }

    #[test]
    fn the_rate_stays_inside_its_bounds_and_comes_back_from_them_at_once() {
        let (min_rate, rate_max) = (Rate::per_second(200.0), Rate::per_second(1200.0));
        let mut syn = Syn::new(SynSpec { min_rate, rate_max, ..SynSpec::default() });
        let mut tick = |length, refused| {
            syn.tick(&signals(length, refused, 0.5, Nanos::SECOND), Mode::Enforce).rate.unwrap()
        };
        let low = (0..1000).map(|_| tick(1000, 100)).last().unwrap();
        assert_eq!(low, min_rate);
        // 100/16 + 1000/4
        assert_eq!(tick(0, 100).get(), 200.0 + 6.25 + 250.0);
        let high = (0..1000).map(|_| tick(0, 100)).last().unwrap();
        assert_eq!(high, rate_max);
        // −100/16 − 200/4
        assert_eq!(tick(200, 100).get(), 1200.0 - 6.25 - 50.0);
    }

    #[test]
    fn bounds_hold_also_for_what_is_no_number() {
        let spec = SynSpec { rate_max: Rate::per_second(50.0), ..SynSpec::default() };
        let table = [(f64::NAN, 50.0), (f64::INFINITY, 50.0), (-1.0, 1.0), (20.0, 20.0)];
        for (rate, expected) in table {
            assert_eq!(spec.bounded(rate), expected, "{rate}");
        }
        let upside_down = SynSpec { min_rate: Rate::per_second(70.0), ..spec };
        assert_eq!(upside_down.bounded(60.0), 70.0, "the minimum wins");
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
