// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dual admission control: request rules and SYN policing together (Voigt and Gunningberg, section
//! 2.2; docs/decisions/0007-dual-admission.md).
//!
//! SYN policing is blind: it cannot spare a session. So it is on standby for as long as request rules hold
//! the load. **On standby** it sets no rate of its own and looks at no accept queue. All that is left is an in-flight
//! limit, three times the one it has while calm: jobs that take longer than the objective whatever is refused now.
//!
//! ```text
//!               it would refuse, and rules have nothing left      it refused nothing, or need not, for long
//!   STANDBY ───────────────────────────────────────────► ACTIVE ───────────────────────────────► STANDBY
//!     it would refuse, or the accept queue is long, and    buckets whose resource is under pressure
//!     rules have something left: they are lowered          stay at their minimum
//! ```
//!
//! *It would refuse*: its controller ticks on, active or not, and is told what request rules refuse and
//! what it would have refused itself ([`Beside`]): a controller whose limits are not executed must not
//! conclude that they are not needed. Its limits are below what comes.
//! *Nothing left*: every bucket whose resource is under pressure is at its minimum, or hardly more is asked
//! for; and when what was in flight then has drained, the jobs in flight become more than by
//! chance, or do not become fewer for three seconds; or the accept queue is full. So one demand acts on
//! two actuators in a fixed order (split range): while it grows, first rules and then SYNs; while it
//! falls, first SYNs and then rules.
//!
//! *Need not*: a controller whose rate comes back slowly (the paper's: by 6/s a second) would refuse for
//! a minute after a hiccup of a second. It says below which share of the CPU it is not needed
//! ([`Decision::idle_below`]), and all that asks would stay below it, with a short accept queue,
//! where it was the CPU that activated it. On standby, all that comes is admitted, and where that leaves the queue
//! short its rate is brought back to what comes, so that nothing activates it for what is over.
//!
//! It cannot flap: while it is active the buckets stand still, so nothing but the load moves SYN policing; and
//! going to standby takes twice as long each time it was activated soon after, up to 32 s.
//!
//! What an operator set by hand ([`Cap`]) is in force always, also on standby. It is no measure of an
//! overload: what it refuses lowers no rule, activates nothing and keeps nothing active.
//!
//! Buckets are told of one [`Detector`], which sees what they refuse as refused work of the service.
//! What is asked of them goes one way, once a tick ([`Demand`]).
//!
//! [`Interaction::Published`] is the paper's: every controller on its own. The SYN rate is
//! in force always and simply stays above what comes.

mod fits;
mod needed;

use self::fits::Fits;
use self::needed::{Needed, Work, fresh, jobs};
use super::bucket::{BucketController, Context, Demand};
use crate::detect::{RATE_EVENTS, residual};
use crate::{
    Beside, Controller, Decision, Detector, Freshness, Load, Mode, Refusals, Watch, period_s,
};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::{Counts, Signals};
use tidegate_units::{Nanos, Rate};

/// An accept queue of this share of its limit, while a bucket's resource is under pressure: two families
/// that agree, so that rules need not wait for the SYN rate to come down to what arrives. The paper's
/// reference.
const QUEUE_LONG: f64 = 100.0 / 1024.0;
/// At half of its limit the accept queue is about to lose what comes. (Of a queue of 16 places, what
/// is long by [`QUEUE_LONG`] is two connections.)
const QUEUE_FULL: f64 = 0.5;
/// A CPU that was short within this many seconds before SYN policing became active is what activated it.
const SHORT_SECONDS: f64 = 3.0;
/// Seconds in which no SYN was refused, or none had to be, after which it goes to standby; doubles up to
/// [`STANDBY_SECONDS_MAX`].
const STANDBY_SECONDS: f64 = 2.0;
/// See [`STANDBY_SECONDS`].
const STANDBY_SECONDS_MAX: f64 = 32.0;
/// Activated within this many seconds after it went to standby, it is the same overload.
const RETURN_SECONDS: f64 = 30.0;
/// The in-flight limit on standby, in those while calm.
const STANDBY_IN_FLIGHT_TIMES: u64 = 3;
/// Seconds over which arrivals and completions are averaged, at least and at most; between these,
/// over [`RATE_EVENTS`].
const FLOW_SECONDS: (f64, f64) = (0.3, 3.0);

/// How the two are coupled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interaction {
    /// Not at all.
    Published,
    /// SYN policing is on standby while request rules suffice.
    Released,
}

/// A rate that an operator set by hand, or a ceiling: it holds whatever a controller thinks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cap {
    /// Admissions per second, at most.
    pub rate: Rate,
    /// The depth of its bucket, in admissions.
    pub burst: u32,
}

/// Request rules and SYN policing of one service.
pub struct Dual {
    buckets: Vec<Box<dyn BucketController>>,
    /// Says to the buckets how overloaded the service is.
    detector: Detector,
    syn: Box<dyn Controller>,
    interaction: Interaction,
    /// What the operator says that holds always.
    cap: Option<Cap>,
    rules_in_shadow: bool,
    active: bool,
    counts: Watch,
    arrivals: Flow,
    completions: Flow,
    /// What SYN policing would admit, active or not.
    rate: Option<Rate>,
    /// On standby.
    in_flight_max: Option<u64>,
    /// Where its rate begins in the next tick, at least.
    resume: Option<Rate>,
    needed: Needed,
    fits: Fits,
    /// It was the CPU that activated it.
    by_cpu: bool,
    /// While active, seconds in which nothing was refused or had to be; on standby, of a short accept queue.
    quiet_s: f64,
    standby_after_s: f64,
    standby_since: Option<Nanos>,
    since: Nanos,
}

/// A rate per second, averaged over some events.
#[derive(Clone, Copy, Debug, Default)]
struct Flow(Option<f64>);

impl Flow {
    fn see(&mut self, seconds: f64, count: u64) {
        let now = count.min(1 << 40) as f64 / seconds;
        let mean = self.0.unwrap_or(now);
        let span = (RATE_EVENTS / mean.max(1.0)).clamp(FLOW_SECONDS.0, FLOW_SECONDS.1);
        let keep = libm::exp(-seconds / span);
        self.0 = Some(keep * mean + (1.0 - keep) * now);
    }

    fn per_second(self) -> f64 {
        self.0.unwrap_or(0.0)
    }
}

impl Dual {
    /// These buckets, in the order of the configuration, with a detector of the service for them
    /// ([`Detector::of_rules`]), and this SYN policing.
    #[must_use]
    pub fn new(
        buckets: Vec<Box<dyn BucketController>>,
        detector: Detector,
        syn: Box<dyn Controller>,
        interaction: Interaction,
    ) -> Self {
        Self {
            buckets,
            detector,
            syn,
            interaction,
            cap: None,
            rules_in_shadow: false,
            active: false,
            counts: Watch::default(),
            arrivals: Flow::default(),
            completions: Flow::default(),
            rate: None,
            in_flight_max: None,
            resume: None,
            needed: Needed::default(),
            fits: Fits::default(),
            by_cpu: false,
            quiet_s: 0.0,
            standby_after_s: STANDBY_SECONDS,
            standby_since: None,
            since: Nanos::ZERO,
        }
    }

    /// SYN policing without request rules.
    #[must_use]
    pub fn alone(syn: Box<dyn Controller>) -> Self {
        let detector = Detector::of_rules(Nanos::SECOND);
        Self::new(Vec::new(), detector, syn, Interaction::Released)
    }

    /// The same with a cap.
    #[must_use]
    pub fn capped(self, cap: Option<Cap>) -> Self {
        Self { cap, ..self }
    }

    /// The buckets, for a coupling of some of these with others: see [`Self::with_buckets`].
    #[must_use]
    pub fn take_buckets(&mut self) -> Vec<Box<dyn BucketController>> {
        std::mem::take(&mut self.buckets)
    }

    /// The detector of the rules, with what it has learned.
    #[must_use]
    pub fn into_detector(self) -> Detector {
        self.detector
    }

    /// The same SYN policing beside other buckets: in force or on standby as it was; where it did not
    /// know standby, in force if it sheds.
    #[must_use]
    pub fn with_buckets(
        self,
        buckets: Vec<Box<dyn BucketController>>,
        interaction: Interaction,
        sheds: bool,
    ) -> Self {
        let active = if self.coupled() { self.active } else { sheds };
        Self { buckets, interaction, active, ..self }
    }

    /// Request rules are only counted although the service's refusals are executed: they hold
    /// nothing, so SYN policing does not wait for them.
    pub fn rules_in_shadow(&mut self, on: bool) {
        self.rules_in_shadow = on;
    }

    /// Whether SYN policing is active; always, where it knows no standby.
    #[must_use]
    pub fn active(&self) -> bool {
        self.active || !self.coupled()
    }

    fn coupled(&self) -> bool {
        self.interaction == Interaction::Released
            && !self.rules_in_shadow
            && !self.buckets.is_empty()
    }

    /// Every bucket that could help has nothing left to refuse, once this demand has been followed.
    fn exhausted(&self, demand: Demand, seconds: f64) -> bool {
        let mut headrooms = self.buckets.iter().map(|bucket| bucket.headroom(demand, seconds));
        headrooms.all(|headroom| !headroom.under_pressure || headroom.exhausted)
    }

    fn flows(&mut self, seconds: f64, counts: Option<Counts>) {
        if let Some(counts) = counts {
            self.arrivals.see(seconds, counts.offered);
            self.completions.see(seconds, counts.done());
        }
    }

    /// Whether these limits would refuse what comes.
    fn would_refuse(&self, limits: &ServiceLimits, signals: &Signals) -> bool {
        let arrivals = self.arrivals.per_second();
        let waiting = fresh(signals.time.waiting, signals).unwrap_or(0);
        limits.rate.is_some_and(|rate| rate.get() < arrivals && !self.is_cap(rate))
            || limits.why.shedding && limits.waiting_max.is_some_and(|most| waiting >= most)
    }

    /// Whether a rate is no decision of the controller's.
    fn is_cap(&self, rate: Rate) -> bool {
        self.cap.is_some_and(|cap| rate >= cap.rate)
    }

    /// Whether, while it is active, request rules alone would hold all that comes now, as far as the SYN controller
    /// cannot find that out by itself. Where it was not the CPU that was short when it became active (but a
    /// slow dependency, say), a CPU that is not used up is no reason for standby.
    fn rules_hold_all(&self, said: &Decision) -> bool {
        let used = said.idle_below.zip(self.fits.cpu());
        self.by_cpu && said.fresh && used.is_some_and(|(most, cpu)| cpu < most.get())
    }

    /// A rate that was lowered in vain begins here, at least.
    fn resume(&mut self, rate: Rate) {
        self.resume = Some(self.resume.filter(|before| *before > rate).unwrap_or(rate));
    }

    /// On standby, all that comes is admitted: what leaves the accept queue short for a while is no
    /// overload, and what a moment has lowered is no reason to become active.
    fn bring_back(&mut self, seconds: f64, said: &Decision) {
        let short = said.fresh && said.idle_below.is_some();
        self.quiet_s = if short { self.quiet_s + seconds } else { 0.0 };
        if self.quiet_s >= STANDBY_SECONDS {
            self.resume(self.fits.rate());
        }
    }

    /// Whether SYNs are refused by the in-flight limit of standby.
    fn in_flight_limit_is_reached(&self, signals: &Signals) -> bool {
        let waiting = fresh(signals.time.waiting, signals);
        self.in_flight_max.zip(waiting).is_some_and(|(most, waiting)| waiting >= most)
    }

    /// A tick while it is active, in which so many SYNs were refused.
    fn stay_active(&mut self, signals: &Signals, said: &Decision, refused: u64) {
        let not_needed = self.rules_hold_all(said);
        let by_cap = said.limits.rate.is_some_and(|rate| self.is_cap(rate));
        let none = refused == 0 || by_cap;
        let quiet = not_needed || none && !self.would_refuse(&said.limits, signals);
        self.quiet_s = if quiet { self.quiet_s + period_s(signals) } else { 0.0 };
        if self.quiet_s >= self.standby_after_s {
            if not_needed {
                self.resume(self.fits.rate());
            }
            self.turn(false, signals.now);
        }
    }

    /// A tick of standby; what is asked of the buckets.
    fn stay_on_standby(&mut self, signals: &Signals, said: &Decision) -> Demand {
        let seconds = period_s(signals);
        self.bring_back(seconds, said);
        let queue_share = queue_share(signals);
        let wants = said.fresh && self.would_refuse(&said.limits, signals);
        let demand = if self.exhausted(Demand::Nothing, seconds) {
            Demand::Nothing
        } else if queue_share >= QUEUE_FULL || self.in_flight_limit_is_reached(signals) {
            Demand::LowerAtOnce
        } else if wants || queue_share >= QUEUE_LONG {
            Demand::Lower
        } else {
            Demand::Nothing
        };
        let work = Work {
            jobs: jobs(signals),
            arrivals: self.arrivals.per_second(),
            completions: self.completions.per_second(),
            overflows: queue_share >= 1.0,
        };
        if !said.fresh {
            // Its limits only stand: nothing is on the way to more.
            self.needed = Needed::default();
        } else if !wants || !self.exhausted(demand, seconds) {
            self.needed.pause(seconds);
        } else if self.needed.tick(seconds, &work) {
            self.turn(true, signals.now);
        }
        demand
    }

    fn turn(&mut self, active: bool, now: Nanos) {
        if active {
            self.resume(Rate::per_second(self.completions.per_second()));
            let soon = self
                .standby_since
                .is_some_and(|since| now.since(since).as_secs_f64() < RETURN_SECONDS);
            self.standby_after_s = if soon {
                (2.0 * self.standby_after_s).min(STANDBY_SECONDS_MAX)
            } else {
                STANDBY_SECONDS
            };
        } else {
            self.standby_since = Some(now);
        }
        self.active = active;
        self.since = now;
        self.quiet_s = 0.0;
        self.needed = Needed::default();
        self.by_cpu = self.fits.short_within(SHORT_SECONDS);
        self.fits.turn();
    }

    /// What is left of the limits of SYN policing on standby.
    fn standby(&mut self, mut limits: ServiceLimits) -> ServiceLimits {
        if !limits.why.shedding {
            let calm = limits.waiting_max;
            self.in_flight_max = calm.map(|most| most.saturating_mul(STANDBY_IN_FLIGHT_TIMES));
        }
        let most = self.in_flight_max.map_or_else(String::new, |most| {
            format!(", but at most {most} may wait for a response")
        });
        let cap = self.cap.map(|cap| format!("; the operator's cap of {} holds", cap.rate));
        let cap = cap.unwrap_or_default();
        limits.why.text =
            format!("SYN policing is on standby{most}{cap}; it would say: {}", limits.why.text);
        limits.why.shedding = false;
        limits.why.since = self.since;
        ServiceLimits {
            rate: self.cap.map(|cap| cap.rate),
            burst: self.cap.map_or(1, |cap| cap.burst.max(1)),
            waiting_max: self.in_flight_max,
            min_rate: limits.min_rate,
            why: limits.why,
            ..ServiceLimits::default()
        }
    }

    /// What SYN policing is told: what rules refuse never came, and what its rate would have refused of
    /// the rest counts as refused while nobody executes it.
    fn beside(&mut self, signals: &Signals, counts: Option<Counts>, rules: Refusals) -> Beside {
        let rate = self.rate.filter(|_| !self.active);
        let admitted = rate.map(|rate| (rate.get() * period_s(signals)).ceil() as u64);
        let on_standby = admitted.zip(counts).map(|(admitted, counts)| {
            residual(counts, rules.executed()).offered.saturating_sub(admitted)
        });
        let refusals = Refusals { on_standby: on_standby.unwrap_or(0), ..rules };
        Beside { refusals, resume: self.resume.take() }
    }

    /// The limits of SYN policing, and what is asked of the buckets.
    fn syn(&mut self, signals: &Signals, mode: Mode) -> (ServiceLimits, Demand) {
        if !self.coupled() {
            let resume = self.resume.take();
            let beside = Beside { resume, ..Beside::default() };
            return (self.syn.decide(signals, mode, beside).limits, Demand::Nothing);
        }
        let rules = Refusals::of_rules(signals, mode);
        let counts = signals.balance.counts.map(|counts| counts.value);
        let beside = self.beside(signals, counts, rules);
        let seen = self.counts.see(signals.balance.counts.map(|c| c.age), signals.period);
        let said = self.syn.decide(signals, mode, beside);
        self.rate = said.limits.rate;
        let mut demand = Demand::Nothing;
        match seen {
            Freshness::Fresh => {
                self.flows(
                    period_s(signals),
                    counts.map(|counts| residual(counts, rules.executed())),
                );
                self.fits.see(signals);
                if self.active {
                    self.stay_active(signals, &said, counts.map_or(0, |counts| counts.refused));
                } else {
                    demand = self.stay_on_standby(signals, &said);
                }
            }
            // Nothing is known: what was decided stands, and nothing is on the way to more.
            Freshness::Frozen => self.needed = Needed::default(),
            Freshness::Lost if self.active => self.turn(false, signals.now),
            Freshness::Lost => {}
        }
        let mut limits = said.limits;
        if self.active {
            limits.why.text = format!("SYN policing is in force: {}", limits.why.text);
        } else {
            limits = self.standby(limits);
        }
        (limits, demand)
    }
}

/// How full the accept queue is; 0 where it is not known. Full, it loses what comes, and becomes no
/// longer.
fn queue_share(signals: &Signals) -> f64 {
    let queue = fresh(signals.queue.accept, signals).filter(|queue| queue.limit > 0);
    queue.map_or(0.0, |queue| queue.length as f64 / queue.limit as f64)
}

/// What SYN policing kept, beside request rules or without any.
fn syn_of(mut value: serde_json::Value) -> serde_json::Value {
    match value.get_mut("syn") {
        Some(syn) => syn.take(),
        None => value,
    }
}

impl Controller for Dual {
    /// The limits of the service and, in [`ServiceLimits::buckets`], of its buckets.
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        let (mut limits, mut demand) = self.syn(signals, mode);
        // In shadow nothing is refused: there is nothing to keep down.
        if self.active && self.coupled() && mode == Mode::Enforce {
            demand = Demand::Least;
        }
        if self.buckets.is_empty() {
            return limits;
        }
        let mode = if self.rules_in_shadow { Mode::Shadow } else { mode };
        let load = self.detector.tick(signals, mode, None, Refusals::of_rules(signals, mode));
        let overload = if let Load::Overload(overload) = &load { Some(overload) } else { None };
        let context = Context { mode, overload, demand };
        let buckets = self.buckets.iter_mut().enumerate();
        limits.buckets = buckets.map(|(n, bucket)| bucket.tick(signals, n, context)).collect();
        limits.why.shedding |= limits.buckets.iter().any(|bucket| bucket.why.shedding);
        limits
    }

    /// What the service's controller keeps, and what the detector of the rules does. Buckets keep nothing.
    fn save(&self) -> Option<serde_json::Value> {
        if self.buckets.is_empty() {
            return self.syn.save();
        }
        let (syn, rules) = (self.syn.save(), self.detector.kept());
        (syn.is_some() || rules.is_some()).then(|| serde_json::json!({"syn": syn, "rules": rules}))
    }

    /// One of the two may be of use and the other not: a file that names rules for the first time.
    fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        if self.buckets.is_empty() {
            return self.syn.restore(syn_of(value), age);
        }
        let rules = value.get("rules").is_some_and(|it| self.detector.take(it, age).is_some());
        self.syn.restore(syn_of(value), age) || rules
    }
}
