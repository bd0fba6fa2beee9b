// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The default controller of a bucket: for a server of which nothing is known.
//!
//! # When it acts
//! When the service is overloaded, by what its detector says (two families agree; see ../../detect),
//! **and** the bucket's own resource is used up. An overload by something else is not this bucket's.
//!
//! The interface is the exception: a full one shows neither in jobs in flight (a response that has
//! begun is answered) nor in the CPU. There the two families are the queue, which has stood for half a
//! second, and the resource: what is sent is steady. A link whose queue is never empty is used up,
//! whatever its capacity.
//!
//! # What it sets
//! It holds the jobs in flight at the service's target N*, by the requests of the bucket alone. How
//! much CPU one of them takes is not known, so what acts is a *factor* on the present rate: if the
//! bucket takes the share φ of the resource, a change of the rate by 1 % changes the load by φ %, and
//! φ is never above 1. With z = (N* − N)/μ, the room in seconds of work:
//!
//! ```text
//!     steady' = steady · (1/(8τ²) · z)        rate = steady · exp(z/τ)       τ = max(64/μ, 0.5 s)
//! ```
//!
//! Then z″ + (φ/τ)·z′ + (φ/8τ²)·z = 0: stable for every φ, damped by √(2φ), above 0.4 where the
//! bucket takes a tenth of the resource. While the server is short of work that is being refused, the
//! rate doubles in 2 s instead. On the interface the same with z = (q* − q)/q* and weak gains,
//! because the queue is a mean over a second; q* is 20 ms of what is sent, a third of the limit at most.
//!
//! # When the limit is lifted
//! When nothing was refused for 3 s and the jobs in flight are fewer than half of the target (on the
//! interface, the queue is short). The end of the service's overload is not enough: it may be over by
//! what is refused, and completions without the bucket's requests are no measure of what is offered
//! with them.
//!
//! And when anything that it decides by is lost, for jobs in flight that stand still in a reading that
//! nobody renews stay above the target for ever: the bucket's counts and its resource; for a service
//! its jobs in flight and counts as well, for an interface what is sent.

use super::{BucketController, BucketSpec, Context, Core, Demand, Gauge, Headroom, share_left};
use crate::detect::{CPU_USED_UP, Overload, RATE_EVENTS};
use crate::law::DefaultSpec;
use crate::{Freshness, RATE_CEILING, Watch, period_s};
use tidegate_model::limits::BucketLimits;
use tidegate_model::signals::{InterfaceQueue, Reading, Signals};

/// Ticks for which the resource must have been used up.
const STANDING_TICKS: u32 = 3;
/// τ in seconds, at least.
const TAU_SECONDS_MIN: f64 = 0.5;
/// Jobs in flight above the target for which the law is enough, in what is completed in τ: the rate
/// is e^−½ of the steady part there; and in what is completed in the objective.
const LAW_TAUS: f64 = 0.5;
/// See [`LAW_TAUS`].
const LAW_OBJECTIVE: f64 = 0.25;
/// One over the gain of the steady part, in τ².
const STEADY: f64 = 8.0;
/// Bounds of the exponent z/τ: to a twentieth, and to double.
const PUSH: (f64, f64) = (-3.0, 0.7);
/// Seconds in which the rate doubles while the server is short of work.
const DOUBLING_SECONDS: f64 = 2.0;
/// A bucket holds what comes in this many seconds, if that is more than an operator gave it: at
/// 1000/s a bucket of five refuses by chance alone.
const BURST_SECONDS: f64 = 0.1;
/// See [`BURST_SECONDS`].
const BURST_MAX: f64 = 1024.0;
/// The steady part is at most this multiple of what is asked for.
const UNUSED_MAX: f64 = 2.0;
/// Wanted queue of the interface in seconds of what is sent.
const QUEUE_SECONDS: f64 = 0.020;
/// Bytes of a packet.
const PACKET_BYTES: f64 = 1500.0;
/// Least and most wanted length: packets, and share of the limit.
const QUEUE_PACKETS_MIN: f64 = 4.0;
/// See [`QUEUE_PACKETS_MIN`].
const QUEUE_SHARE_MAX: f64 = 1.0 / 3.0;
/// What is sent is steady at this share of the most of the last seconds.
const SENT_STEADY: f64 = 0.9;
/// Seconds in which that most fades to half.
const SENT_HALF_LIFE: f64 = 3.0;
/// Gains on the interface: of the steady part per second, and of the push.
const LINK_STEADY: f64 = 0.3;
/// See [`LINK_STEADY`].
const LINK_PUSH: f64 = 0.2;
/// Ticks for which the interface's queue must have stood.
const LINK_TICKS: u32 = 5;
/// Seconds without a refusal after which a limit ends, and departures at least.
const UNUSED_SECONDS: f64 = 3.0;
/// See [`UNUSED_SECONDS`].
const UNUSED_DEPARTURES: f64 = 128.0;

/// The controller.
#[derive(Clone, Debug)]
pub struct DefaultBucket {
    core: Core,
    gauge: Gauge,
    /// What else it decides by: jobs in flight and the service's counts, or what is sent.
    waiting: Watch,
    counts: Watch,
    sent: Watch,
    objective_s: f64,
    /// The steady part of the rate while it acts.
    steady: Option<f64>,
    /// What to hold, as it was last known.
    aim: Option<Aim>,
    /// In the last tick the jobs in flight were so near their target that the law takes them there.
    law_is_enough: bool,
    standing: u32,
    sent_peak: f64,
    unused_s: f64,
}

/// The jobs in flight to hold, and how many a second complete under saturation.
#[derive(Clone, Copy, Debug)]
struct Aim {
    capacity: f64,
    target: f64,
}

impl DefaultBucket {
    /// A controller that has seen nothing. [`BucketSpec::start`] is not used: there is no limit
    /// until there is an overload.
    #[must_use]
    pub fn new(gauge: Gauge, bucket: BucketSpec, spec: DefaultSpec) -> Self {
        Self {
            core: Core::new(BucketSpec { start: None, ..bucket }),
            gauge,
            waiting: Watch::default(),
            counts: Watch::default(),
            sent: Watch::default(),
            objective_s: spec.objective.as_secs_f64(),
            steady: None,
            aim: None,
            law_is_enough: false,
            standing: 0,
            sent_peak: 0.0,
            unused_s: 0.0,
        }
    }

    /// The freshness of what it decides by beside its level and the bucket's counts.
    fn see(&mut self, signals: &Signals) -> Freshness {
        if self.gauge.is_link() {
            return self.sent.see(sent(signals).map(|s| s.age), signals.period);
        }
        let (waiting, counts) = (signals.time.waiting, signals.balance.counts);
        let waiting = self.waiting.see(waiting.map(|w| w.age), signals.period);
        waiting.max(self.counts.see(counts.map(|c| c.age), signals.period))
    }

    /// No limit any more.
    fn stop(&mut self) {
        self.steady = None;
        self.aim = None;
        self.core.rate = None;
        self.core.under_pressure = false;
    }

    /// Begins at what is asked for; false while that is not known.
    fn begin(&mut self) -> bool {
        if self.steady.is_none() {
            self.steady = self.core.hits.per_second().map(|hits| self.core.spec.bounded(hits));
            self.unused_s = 0.0;
        }
        self.steady.is_some()
    }

    /// Multiplies the steady part by e^grow and sets the rate e^push above it.
    fn set(&mut self, grow: f64, push: f64) {
        let Some(steady) = self.steady else { return };
        let spec = self.core.spec;
        let asked = self.core.hits.per_second().map_or(RATE_CEILING, |hits| UNUSED_MAX * hits);
        let steady = spec.bounded((steady * libm::exp(grow.clamp(-1.0, 1.0))).min(asked));
        self.steady = Some(steady);
        let rate = spec.bounded(steady * libm::exp(push.clamp(PUSH.0, PUSH.1)));
        self.core.rate = Some(rate);
        self.core.burst = spec.burst.max((BURST_SECONDS * rate).min(BURST_MAX) as u32);
        self.core.under_pressure = true;
    }

    fn short_of(&self, level: f64) -> bool {
        match self.gauge {
            Gauge::Cpu => level >= CPU_USED_UP,
            Gauge::AcceptQueue => level > 0.0,
            Gauge::Bandwidth => false,
            gauge => level >= gauge.reference(),
        }
    }

    fn service(&mut self, seconds: f64, level: f64, in_flight: f64, overload: Option<&Overload>) {
        self.standing = if self.short_of(level) { self.standing.saturating_add(1) } else { 0 };
        self.law_is_enough = overload.is_some_and(|overload| self.is_near(overload, in_flight));
        let aim = overload.map(|it| Aim { capacity: it.capacity, target: it.target });
        self.aim = aim.or(self.aim);
        let due = aim.is_some() && self.standing >= STANDING_TICKS;
        if self.steady.is_none() && !(due && self.begin()) {
            return;
        }
        match self.aim {
            Some(aim) => self.hold(seconds, in_flight, aim),
            // Lowered by somebody else, without an overload of its own.
            None if self.core.refusing() => {
                self.set(std::f64::consts::LN_2 / DOUBLING_SECONDS * seconds, 0.0);
            }
            None => self.stop(),
        }
    }

    /// Whether the jobs in flight are so near their target that the law takes them there. Not by what
    /// is over, and whatever a trial adds.
    fn is_near(&self, overload: &Overload, in_flight: f64) -> bool {
        let jobs = law_jobs(overload.capacity, self.objective_s);
        in_flight - (overload.target - overload.tried) < jobs
    }

    fn hold(&mut self, seconds: f64, in_flight: f64, aim: Aim) {
        let Aim { capacity, target } = aim;
        let tau = tau_s(capacity);
        let room_s = (target - in_flight) / capacity;
        let short = in_flight < target / 2.0;
        let unused = short && !self.core.refusing();
        self.unused_s = if unused { self.unused_s + seconds } else { 0.0 };
        if self.unused_s >= UNUSED_SECONDS.max(UNUSED_DEPARTURES / capacity) {
            self.stop();
            return;
        }
        let grow = if short && self.core.refusing() {
            std::f64::consts::LN_2 / DOUBLING_SECONDS.max(RATE_EVENTS / capacity)
        } else {
            room_s / (STEADY * tau * tau)
        };
        self.set(grow * seconds, room_s / tau);
    }

    /// SYN policing asks for less. Only while it acts: otherwise its resource is not what the service
    /// is short of. And only where its own law is not enough: SYN policing holds the same N*, so what
    /// is in flight by chance, or came as a burst, would have both of them take it back.
    fn follow(&mut self, seconds: f64, demand: Demand) {
        let enough = demand == Demand::Lower && self.law_is_enough;
        if self.core.is_to_lower(demand) && !enough {
            let spec = self.core.spec;
            self.steady = self.steady.map(|steady| spec.bounded(steady * share_left(seconds)));
        }
    }

    fn link(&mut self, seconds: f64, queue: &InterfaceQueue, sent: f64) {
        let fade = libm::exp(-seconds * std::f64::consts::LN_2 / SENT_HALF_LIFE);
        self.sent_peak = (self.sent_peak * fade).max(sent);
        let most = (queue.limit * QUEUE_SHARE_MAX).max(QUEUE_PACKETS_MIN);
        let wanted = (sent * QUEUE_SECONDS / PACKET_BYTES).clamp(QUEUE_PACKETS_MIN, most);
        self.standing = if queue.length >= wanted { self.standing.saturating_add(1) } else { 0 };
        let steady = sent > 0.0 && sent >= SENT_STEADY * self.sent_peak;
        let due = self.standing >= LINK_TICKS && steady;
        if self.steady.is_none() && !(due && self.begin()) {
            return;
        }
        let room = ((wanted - queue.length) / wanted).clamp(-2.0, 1.0);
        let idle = room > 0.0 && !self.core.refusing();
        self.unused_s = if idle { self.unused_s + seconds } else { 0.0 };
        if self.unused_s >= UNUSED_SECONDS {
            self.stop();
        } else {
            self.set(LINK_STEADY * room * seconds, LINK_PUSH * room);
        }
    }
}

/// τ, in seconds.
fn tau_s(mu: f64) -> f64 {
    (RATE_EVENTS / mu).max(TAU_SECONDS_MIN)
}

/// Jobs in flight above the target for which the law is enough.
fn law_jobs(mu: f64, objective_s: f64) -> f64 {
    (LAW_TAUS * tau_s(mu)).min(LAW_OBJECTIVE * objective_s) * mu
}

/// What is sent, if that is a number.
fn sent(signals: &Signals) -> Option<Reading<f64>> {
    signals.resource.bandwidth.filter(|sent| sent.value.is_finite() && sent.value >= 0.0)
}

impl BucketController for DefaultBucket {
    fn tick(&mut self, signals: &Signals, bucket: usize, context: Context<'_>) -> BucketLimits {
        let seconds = period_s(signals);
        self.follow(seconds, context.demand);
        let level = self.gauge.level(signals, bucket);
        self.core.see(signals, bucket, self.gauge.age(signals, bucket));
        let others = self.see(signals);
        let seen = self.core.also(others);
        let name = self.gauge.name();
        let text = match (level, seen) {
            (Some(level), Freshness::Fresh) => {
                if !self.gauge.is_link() {
                    let in_flight = signals.time.waiting.map_or(0, |jobs| jobs.value);
                    let in_flight = in_flight.min(1 << 40) as f64;
                    self.service(seconds, level.value, in_flight, context.overload);
                } else if let (Some(queue), Some(sent)) = (&signals.queue.interface, sent(signals))
                {
                    self.link(seconds, &queue.value, sent.value);
                }
                let acts = if self.steady.is_some() { "overloaded" } else { "calm" };
                format!("{acts}: {name} {:.2}", level.value)
            }
            (_, Freshness::Lost) => {
                self.stop();
                self.standing = 0;
                format!("{name}, requests or load unknown for long: lifted")
            }
            _ => format!("{name}, requests or load unknown: held"),
        };
        let limits = self.core.limits(signals, context, text);
        if self.core.pinned {
            self.steady = self.core.rate;
        }
        limits
    }

    /// A demand lowers the steady part, and the law sets the rate.
    fn headroom(&self, _: Demand, _: f64) -> Headroom {
        self.core.headroom(self.core.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Detector, Load, Mode, Refusals};
    use tidegate_model::signals::{BucketCounts, BucketSignals};
    use tidegate_units::{Nanos, Rate};

    fn link_tick(length: f64, sent: Option<f64>, hits: u64, refused: u64) -> Signals {
        let mut s = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        let queue = InterfaceQueue { length, limit: 100.0 };
        s.queue.interface = Some(Reading::fresh(queue));
        s.resource.bandwidth = sent.map(Reading::fresh);
        let counts = BucketCounts {
            offered: [0, hits, 0],
            refused: [0, refused, 0],
            refused_first: refused,
            ..BucketCounts::default()
        };
        let counts = Some(Reading::fresh(counts));
        s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        s
    }

    fn run(bucket: &mut DefaultBucket, signals: &Signals, ticks: usize) -> Option<f64> {
        let ticks = 0..ticks;
        let last = ticks.map(|_| bucket.tick(signals, 0, Context::alone(Mode::Enforce))).last();
        last.and_then(|limits| limits.rate).map(Rate::get)
    }

    #[test]
    fn the_law_is_enough_for_half_of_tau_and_a_quarter_of_the_objective() {
        let table =
            [(375.0, 1.0, 93.75), (375.0, 10.0, 93.75), (375.0, 0.1, 9.375), (10.0, 1.0, 2.5)];
        for (mu, objective_s, jobs) in table {
            assert_eq!(law_jobs(mu, objective_s), jobs, "{mu}/s, {objective_s} s");
        }
    }

    /// A service of 400/s that is offered twice that, all of it by one bucket, with so many in flight.
    fn overloaded(waiting: u64) -> Signals {
        let mut s = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        s.resource.cpu = Some(Reading::fresh(tidegate_units::Share::new(1.0)));
        s.time.waiting = Some(Reading::fresh(waiting));
        let counts = tidegate_model::signals::Counts {
            offered: 80,
            admitted: 80,
            completed: 40,
            ..Default::default()
        };
        s.balance.counts = Some(Reading::fresh(counts));
        let offered = BucketCounts { offered: [0, 80, 0], ended: 40, ..BucketCounts::default() };
        let counts = Some(Reading::fresh(offered));
        s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        s
    }

    /// A tick of a bucket and of the detector of its service, with what SYN policing asks.
    fn tick(all: &mut (DefaultBucket, Detector), signals: &Signals, demand: Demand) -> Load {
        let (bucket, detector) = all;
        let refusals = Refusals::of_rules(signals, Mode::Enforce);
        let load = detector.tick(signals, Mode::Enforce, None, refusals);
        let overload = if let Load::Overload(overload) = &load { Some(overload) } else { None };
        bucket.tick(signals, 0, Context { mode: Mode::Enforce, overload, demand });
        load
    }

    /// Near the target only an accept queue that is full lowers it beyond its law, far above it both.
    #[test]
    fn a_demand_counts_beyond_what_the_law_takes_back() {
        let spec = BucketSpec::default();
        let bucket = DefaultBucket::new(Gauge::Cpu, spec, DefaultSpec::default());
        let mut all = (bucket, Detector::of_rules(Nanos::SECOND));
        let mut waiting = 0;
        let overload = loop {
            waiting += 40;
            let load = tick(&mut all, &overloaded(waiting), Demand::Nothing);
            assert!(waiting < 40 * 100, "no overload was seen");
            match load {
                Load::Overload(overload) if all.0.steady.is_some() => break overload,
                _ => {}
            }
        };
        let edge = (overload.target - overload.tried + law_jobs(overload.capacity, 1.0)) as u64;
        for (waiting, demand, lowered) in [
            (edge / 2, Demand::Nothing, false),
            (edge / 2, Demand::Lower, false),
            (edge / 2, Demand::LowerAtOnce, true),
            (4 * edge, Demand::Nothing, false),
            (4 * edge, Demand::Lower, true),
            (4 * edge, Demand::LowerAtOnce, true),
        ] {
            let mut all = all.clone();
            tick(&mut all, &overloaded(waiting), Demand::Nothing);
            let before = all.0.steady;
            all.0.follow(0.1, demand);
            assert_eq!(all.0.steady < before, lowered, "{waiting} in flight, {demand:?}");
        }
    }

    #[test]
    fn a_standing_queue_is_no_ground_while_nothing_is_known_of_what_is_sent() {
        let spec = BucketSpec::default();
        let mut bucket = DefaultBucket::new(Gauge::Bandwidth, spec, DefaultSpec::default());
        assert_eq!(run(&mut bucket, &link_tick(90.0, None, 8, 0), 50), None);
        let rate = run(&mut bucket, &link_tick(90.0, Some(12.5e6), 8, 0), 30);
        assert!(rate.is_some_and(|rate| rate < 80.0), "{rate:?}");
        assert!(bucket.headroom(Demand::Nothing, 0.0).under_pressure);
    }

    #[test]
    fn an_interface_that_is_free_again_is_not_limited_any_more() {
        let spec = BucketSpec::default();
        let mut bucket = DefaultBucket::new(Gauge::Bandwidth, spec, DefaultSpec::default());
        assert!(run(&mut bucket, &link_tick(90.0, Some(12.5e6), 8, 4), 60).is_some());
        assert_eq!(run(&mut bucket, &link_tick(0.0, Some(1e6), 1, 0), 60), None);
        assert!(!bucket.headroom(Demand::Nothing, 0.0).under_pressure);
    }
}
