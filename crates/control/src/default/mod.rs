// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The default controller: for a server of which nothing is known.
//!
//! # What it measures
//! Each tick: connections that came, exchanges completed D, exchanges in flight N (exact), mean
//! response times, CPU, accept queue (see exchanges.rs for the units). From them, **while calm only** (a baseline learned under load sheds healthy users):
//! - the baseline r0: mean response time of windows of some hundred answers (see history.rs and
//!   baseline.rs). The mean, not the minimum: with many workers and a heavy tail, capacity
//!   times the minimum is far fewer jobs than the server needs;
//! - the idle: jobs in flight that Little's law does not explain (N above D·R): connections opened
//!   and never used must not look like load;
//! - the peak of D: the capacity that was seen.
//!
//! # When it alarms
//! An excess E = N − idle − D·r0 above what a healthy server shows, **and** a second family: a
//! lasting imbalance of arrivals and completions (see evidence.rs), or CPU used up for longer than it
//! takes to work off a burst. A standing accept queue takes the place of the excess where the
//! imbalance lasts. And where a quarter of the arrivals is neither answered nor in flight.
//! Everything is measured in departures, so it scales: at 0.9 load the jobs in a CPU-shared or
//! single server exceed n with chance 0.9^n, whatever its speed. An accept queue with a long
//! response time is one family in two places (a slow dependency looks so) and no alarm.
//!
//! # What it sets
//! Calm: no rate; only a guard on the jobs in flight, at what the server can answer within the
//! objective on top of what it usually holds, which bounds what can pile up between two ticks.
//!
//! Where connections that send nothing hold the workers there is no alarm: refusing others frees no
//! worker (see held.rs).
//!
//! Calm or alarmed: one connection in ten objectives, and at most one a second, is admitted whatever
//! the guard, the ceiling and the fence say. Else nothing is learned of a server that hangs.
//!
//! Alarmed: jobs in flight are held at a target N* = idle + (3/2)·μ·r0 + Q: what keeps all of an
//! unknown number of workers busy, a half more because r0 is an estimate, and a small standing
//! queue Q that rides out chance. Two actuators, and a fence at a full accept queue:
//! - rate = μ/k + (N* − N)/τ, with μ the exchanges completed per second under saturation and k the
//!   exchanges that a connection brings; who was let in and has not asked yet counts into N. A rate,
//!   not only a ceiling, so that the policy can give tokens to first attempts before repeated SYNs;
//! - a ceiling on the jobs in flight, N* + 1.5·Q, in line with the packets: exact, without delay.
//!   While a server starts workers, for which connections wait, it decides alone (see seats.rs).
//!
//! When first attempts alone are clearly below the capacity and only repeated SYNs exceed it, the
//! overload of new work is over: rate = 0.85·μ/k at most, so that everybody is served as at that load
//! while the refused come back (see echo.rs).
//!
//! Without a baseline (started in mid-crisis) r0 begins at N/2μ, or at what the first answers in calm
//! said, and is halved for as long as completions do not fall. Where completions are far below what was seen before (a slower
//! dependency needs more jobs in flight; or the server lost capacity), N* is raised by half for a
//! while: if completions follow, it stays; if not, it goes back, and the next try comes later.
//! What is admitted is never slowed further than by that half.
//!
//! # When it lets go
//! When offered load has been below 0.97·μ/k for long enough to be no chance (a CUSUM), when the
//! limits have refused nothing for a while, or when the ceiling holds nothing off while the server is
//! free and fast (long polls: no queue that refusals shorten). Coming back soon makes the next release
//! slower, so that a load around the capacity does not swing. Signals that are missing never
//! tighten: old ones freeze the limits, lost ones release them. In shadow nothing is shed: then the
//! rate is the measured completion rate, and no ceiling is set.
//!
//! # Sources
//! Little's law; CoDel (RFC 8289): the standing queue, not the passing one; BBR: capacity measured
//! under saturation, round trip while idle; TCP Vegas: excess in packets; Breakwater (OSDI 2020):
//! admission by credits around measured capacity; Page 1954: cumulative sums.

mod alarm;
mod baseline;
mod coming;
mod echo;
mod exchanges;
mod guard;
mod harmless;
mod kept;
mod probe;
mod seats;
mod shed;
mod silent;
mod trial;

pub(crate) use self::alarm::Overload;
use self::baseline::Baseline;
use self::coming::Coming;
use self::echo::Echo;
use self::exchanges::Exchanges;
use self::guard::{Reach, Stall};
use self::harmless::{HARMLESS_SECONDS, Harmless};
use self::probe::Probe;
use self::seats::Seats;
use self::shed::{Done, QUEUE_MAX, Search, Shed};
use self::silent::Silent;
use self::trial::Trial;
use crate::evidence::Standing;
use crate::held::{Held, HeldWorkers};
use crate::history::{History, Sums, TICKS_MAX};
use crate::{Controller, Freshness, Mode, Watch, age_max, bounded, period_s};
use tidegate_model::RATE_FLOOR;
use tidegate_model::limits::{Pending, ServiceLimits, Why};
use tidegate_model::signals::{Counts, Family, Signals};
use tidegate_units::{Nanos, Rate};

/// Largest bucket while shedding, in tokens.
const SHED_BURST_MAX: f64 = 1024.0;
/// Seconds in which "the usual" follows.
const USUAL_SECONDS: f64 = 2.0;
/// Departures in the time constant of the correction: limits vary by 1/√(2·64) = 9 %,
/// and by what μ varies (12 % tick by tick is measured, below 10 % over a second).
const TAU_DEPARTURES: f64 = 64.0;
/// Seconds of that time constant at least: three ticks, so that the delay of one keeps it stable.
const TAU_SECONDS_MIN: f64 = 0.3;
/// The same in cycles of a connection, from one request to the next.
const TAU_CYCLES: f64 = 2.0;
/// Departures, and ticks at least, that tell whether completions follow what is let in.
const LATELY_DEPARTURES: f64 = 8.0;
/// See [`LATELY_DEPARTURES`].
const LATELY_TICKS: usize = 5;
/// Ticks that tell what completions were before a stall.
const BEFORE_TICKS: usize = 11;
/// Ticks in which who was admitted is expected to ask, where the delay is not longer than a tick.
const COMING_TICKS: usize = 10;
/// Departures over which μ is averaged, and seconds at least.
const MU_DEPARTURES: f64 = 64.0;
/// While shedding, the rate never falls below this share of μ: the queue drains by the ceiling.
const RATE_SHARE_MIN: f64 = 0.5;
/// In so many objectives one connection is admitted even if the other limits are full (decision 20).
/// Whoever serves anybody within the objective serves one in each with a single worker, so this is a
/// tenth of the least capacity that is worth protecting.
const MIN_RATE_OBJECTIVES: f64 = 10.0;
/// While workers are started, the rate is at least so many times the departures, or the
/// standing queue of other servers each second.
const SEATS_AHEAD: f64 = 4.0;
/// Arrivals missing for a release; grows by [`RELEASE_FACTOR`] when the alarm comes back soon.
const RELEASE_ARRIVALS: f64 = 32.0;
/// Twice as slow, at most [`RELEASE_ARRIVALS_MAX`].
const RELEASE_FACTOR: f64 = 2.0;
/// See [`RELEASE_FACTOR`].
const RELEASE_ARRIVALS_MAX: f64 = 256.0;
/// An alarm within this many seconds of the release is the same overload.
const RETURN_SECONDS: f64 = 30.0;
/// Seconds and arrivals without a refusal after which the limits are gone.
const UNUSED_SECONDS: f64 = 1.0;
/// See [`UNUSED_SECONDS`].
const UNUSED_ARRIVALS: f64 = 32.0;
/// The same in lives of a connection: the clients that are in now think, and come back.
const UNUSED_LIVES: f64 = 2.0;
/// Completions in a window of the peak (its largest errs by 3/√512 = 13 %), and ticks at least.
const PEAK_COMPLETIONS: f64 = 512.0;
/// See [`PEAK_COMPLETIONS`].
const PEAK_TICKS_MIN: usize = 10;
/// A tick longer than this follows a gap.
const GAP_MIN: Nanos = Nanos::from_millis(1500);
/// The whole accept queue, in 1/1024: the limit in line while shedding.
const ACCEPT_QUEUE_FULL_Q10: u32 = 1024;
/// Seconds without a refusal after which the limit of calm is as it was before, at most.
const FULL_SECONDS_MAX: f64 = 2.0;
/// Seconds in which the peak of completions fades to half.
const PEAK_HALF_LIFE: f64 = 60.0;

/// What an operator may say; nothing here depends on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultSpec {
    /// What a good answer may take: 1 s. From 10 ms to 60 s.
    pub objective: Nanos,
}

impl Default for DefaultSpec {
    fn default() -> Self {
        Self { objective: Nanos::SECOND }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct DefaultController {
    objective_s: f64,
    history: History,
    standing: Standing,
    counts: Watch,
    waiting: Watch,
    seen: Freshness,
    baseline: Baseline,
    usual: f64,
    peak: f64,
    reach: Reach,
    stall: Stall,
    shed: Option<Shed>,
    released_at: Option<Nanos>,
    release_arrivals: f64,
    since: Nanos,
    waiting_before: Option<f64>,
    exchanges: Exchanges,
    coming: Coming,
    silent: Silent,
    /// Seconds in which the limit of calm has refused, less those in which it did not.
    full_s: f64,
    harmless: Harmless,
    probe: Probe,
    seats: Seats,
    held: Held,
    /// Largest excess since the CPU has been used up.
    excess_max: f64,
    last: ServiceLimits,
    /// Its knowledge serves another actuator: see alarm.rs.
    watched: bool,
}

/// One tick's numbers.
struct Tick {
    now: Nanos,
    sums: Sums,
    waiting: f64,
}

impl DefaultController {
    /// A controller that has seen nothing.
    #[must_use]
    pub fn new(spec: DefaultSpec) -> Self {
        Self {
            objective_s: spec.objective.as_secs_f64().clamp(0.01, 60.0),
            history: History::default(),
            standing: Standing::default(),
            counts: Watch::default(),
            waiting: Watch::default(),
            seen: Freshness::Frozen,
            baseline: Baseline::default(),
            usual: 0.0,
            peak: 0.0,
            reach: Reach::default(),
            stall: Stall::default(),
            shed: None,
            released_at: None,
            release_arrivals: RELEASE_ARRIVALS,
            since: Nanos::ZERO,
            waiting_before: None,
            exchanges: Exchanges::default(),
            coming: Coming::default(),
            silent: Silent::default(),
            full_s: 0.0,
            harmless: Harmless::default(),
            probe: Probe::default(),
            seats: Seats::default(),
            held: Held::default(),
            excess_max: 0.0,
            last: ServiceLimits::default(),
            watched: false,
        }
    }

    /// Completions per second lately.
    fn throughput(&self) -> f64 {
        self.history.recent(MU_DEPARTURES, 3, 64).rate()
    }

    /// The same without the last tick.
    fn throughput_before(&self) -> f64 {
        self.history.between(BEFORE_TICKS, 1).rate()
    }

    fn learn(&mut self, tick: &Tick) {
        let dt = tick.sums.seconds;
        let before = self.throughput_before();
        self.stall.see(&tick.sums, before, tick.waiting > self.harmless.jobs);
        self.stall.bound(self.objective_s);
        if !self.stall.is_on() {
            let keep = libm::exp(-dt / USUAL_SECONDS);
            self.usual = keep * self.usual + (1.0 - keep) * tick.waiting;
        }
        self.harmless.jobs = self.harmless.jobs.min(tick.waiting);
        self.peak *= libm::exp(-dt * std::f64::consts::LN_2 / PEAK_HALF_LIFE);
        if self.history.len() >= PEAK_TICKS_MIN {
            let lately = self.history.recent(PEAK_COMPLETIONS, PEAK_TICKS_MIN, TICKS_MAX).rate();
            self.peak = self.peak.max(lately);
        }
    }

    /// Nothing is learned while anything is alarmed; without a baseline, in-flight says nothing yet.
    fn may_learn(&self, families: &[Family]) -> bool {
        let known = self.baseline.r0_s.is_some();
        families.iter().all(|family| *family == Family::Time && !known)
    }

    fn begin(&mut self, tick: &Tick, families: Vec<Family>) {
        self.probe = Probe::default();
        let reach = if self.standing.cpu_full() { self.reach.own_rate() } else { None };
        let mu = self.throughput().max(reach.unwrap_or(0.0)).max(1.0);
        let soon =
            self.released_at.is_some_and(|at| tick.now.since(at).as_secs_f64() < RETURN_SECONDS);
        self.release_arrivals = if soon {
            (self.release_arrivals * RELEASE_FACTOR).min(RELEASE_ARRIVALS_MAX)
        } else {
            RELEASE_ARRIVALS
        };
        self.shed = Some(self.shed_at(mu, self.baseline.r0_s, tick.waiting, families));
        self.since = tick.now;
    }

    /// The beginning of an overload.
    fn shed_at(&self, mu: f64, r0_s: Option<f64>, waiting: f64, families: Vec<Family>) -> Shed {
        Shed {
            mu,
            r0_s: r0_s.unwrap_or_else(|| {
                let most = (waiting / mu).min(self.objective_s) / 2.0;
                self.baseline.early_s.map_or(most, |early| early.min(most))
            }),
            variability: self.baseline.variability(),
            idle: self.baseline.idle().max(self.harmless.jobs),
            best: 0.0,
            search: r0_s.is_none().then_some(Search::default()),
            trial: Trial::default(),
            missing: 0.0,
            unused_s: 0.0,
            unused: 0.0,
            families,
            watched: self.watched,
            shadow: false,
            each: self.exchanges.each(),
            in_vain_s: 0.0,
            cycle_s: 0.0,
            life_s: 0.0,
            coming: self.coming.jobs(&self.history, COMING_TICKS),
            delay_s: self.coming.delay_s(&self.history),
            seats: self.seats.short(),
            grows: self.seats.grow(),
            echo: Echo::default(),
        }
    }

    /// The daemon stood still, or the machine did: limits go on from what is in flight now.
    fn after_gap(&mut self, signals: &Signals, waiting: f64, mode: Mode) -> ServiceLimits {
        self.history = History::default();
        self.standing = Standing::default();
        self.probe = Probe::default();
        self.waiting_before = Some(waiting);
        self.last = match &mut self.shed {
            Some(shed) => {
                shed.fresh_start();
                let shed = shed.clone();
                self.shedding(&shed, waiting, mode)
            }
            None => self.calm(Vec::new()),
        };
        self.last.why.text.push_str(", after a gap");
        self.since = self.since.max(signals.now);
        self.last.clone()
    }

    /// Ends the shedding if its cause is gone.
    fn end_if_over(&mut self, now: Nanos) {
        let in_vain = self.probe.in_vain()
            || self.shed.as_ref().is_some_and(|shed| shed.in_vain_s >= HARMLESS_SECONDS);
        let over = self.shed.as_ref().is_some_and(|shed| {
            let unused_s = UNUSED_SECONDS.max(UNUSED_LIVES * shed.life_s);
            in_vain
                || self.held.lasts()
                || shed.missing >= self.release_arrivals
                || shed.unused_s >= unused_s && shed.unused >= UNUSED_ARRIVALS
        });
        if !over {
            return;
        }
        if in_vain {
            self.harmless.found(self.staying(self.waiting()).jobs);
            self.usual = self.usual.max(self.harmless.jobs);
        }
        if let Some(Shed { search: None, r0_s, .. }) = self.shed.take() {
            self.baseline.r0_s.get_or_insert(r0_s);
        }
        self.probe = Probe::default();
        self.released_at = Some(now);
        self.since = now;
        self.history = History::default();
    }

    /// What is admitted past full limits. A short objective says nothing of how many there are, so the
    /// rate's own floor is the most.
    fn min_rate(&self) -> Rate {
        let rate = 1.0 / (MIN_RATE_OBJECTIVES * self.objective_s);
        Rate::per_second(rate.min(RATE_FLOOR))
    }

    /// Limits while calm: the guard alone.
    fn calm(&self, families: Vec<Family>) -> ServiceLimits {
        let guard = self.guard() + self.probe.beyond();
        let known = self.peak > 0.0 && self.baseline.known_s().is_some();
        let text = format!(
            "calm: {:.1}/s completed, {:.0} usually in flight, baseline {:.1} ms, variability {:.1}",
            self.throughput(),
            self.usual,
            self.baseline.known_s().unwrap_or(0.0) * 1e3,
            self.baseline.variability(),
        );
        let max = (self.usual + guard).ceil();
        let low = self.guard_low(guard).filter(|low| known && (low.most as f64) < max);
        ServiceLimits {
            waiting_max: known.then_some(max as u64),
            waiting_low: low,
            pending: low.map_or_else(Pending::default, |_| self.silent.pending(&self.history)),
            min_rate: Some(self.min_rate()),
            why: Why { shedding: false, since: self.since, alarmed: families, text },
            ..ServiceLimits::default()
        }
    }

    /// Limits while shedding.
    fn shedding(&self, shed: &Shed, waiting: f64, mode: Mode) -> ServiceLimits {
        let queue = shed.queue(self.objective_s);
        let target = shed.target(self.objective_s);
        // A connection brings its exchanges with it: what it adds in flight is one.
        let departures = shed.mu / shed.each;
        // Those who think come back: nobody new is let in for them meanwhile.
        let tau = (TAU_DEPARTURES / shed.mu).max(TAU_SECONDS_MIN).max(TAU_CYCLES * shed.cycle_s);
        // What was let in and has not asked yet will: where handshakes take long, it is many, and as
        // many as come during one delay have to be on their way.
        let ahead = (waiting + shed.coming).max(0.0);
        let wanted = target + shed.on_their_way();
        let correction = if mode == Mode::Shadow { 0.0 } else { (wanted - ahead) / tau };
        let mut rate = (departures + correction).max(RATE_SHARE_MIN * departures);
        if shed.grows && mode == Mode::Enforce {
            // The accept queue tells at once of a worker that was started; what is completed, later.
            rate = rate.max(SEATS_AHEAD * departures.max(QUEUE_MAX));
        }
        // In shadow no queue drains by what we decide.
        let surplus = if mode == Mode::Shadow { 0.0 } else { ahead - wanted + queue / 2.0 };
        let surplus = surplus.max(0.0) / tau;
        let rate = bounded(shed.echo.limit(surplus).map_or(rate, |most| rate.min(most)));
        // Who is refused now would have asked only when so many more have been answered.
        let ceiling = shed.ceiling(self.objective_s) + shed.on_their_way();
        let ceiling = ceiling.round().max(1.0) as u64;
        let text = format!(
            "shedding: capacity {:.1}/s, {:.1} exchanges a connection, {waiting:.0} in flight, \
             target {target:.0} (baseline {:.1} ms), rate {rate}{}",
            shed.mu,
            shed.each,
            shed.r0_s * 1e3,
            if shed.echo.is_on() { ", only repeated SYNs are too many" } else { "" },
        );
        ServiceLimits {
            rate: Some(rate),
            burst: queue.ceil().clamp(2.0, SHED_BURST_MAX) as u32,
            waiting_max: (mode == Mode::Enforce).then_some(ceiling),
            // A full accept queue loses what comes, in silence, after the handshake.
            accept_queue_max_q10: ACCEPT_QUEUE_FULL_Q10,
            min_rate: Some(self.min_rate()),
            why: Why { shedding: true, since: self.since, alarmed: shed.families.clone(), text },
            ..ServiceLimits::default()
        }
    }
}

impl Controller for DefaultController {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        let counts = signals.balance.counts;
        let waiting = signals.time.waiting;
        self.seen = self
            .counts
            .see(counts.map(|c| c.age), signals.period)
            .max(self.waiting.see(waiting.map(|w| w.age), signals.period));
        let (Freshness::Fresh, Some(counts), Some(waiting)) = (self.seen, counts, waiting) else {
            return self.blind(signals.now);
        };
        let waiting = float(waiting.value);
        if signals.period > GAP_MIN {
            // The daemon stood still: what came meanwhile says nothing of a second.
            return self.after_gap(signals, waiting, mode);
        }
        let growth = waiting - self.waiting_before.replace(waiting).unwrap_or(waiting);
        let sums =
            self.exchanges.see(sums(signals, &counts.value, growth), &counts.value, &self.history);
        let tick = Tick { now: signals.now, sums, waiting };
        self.history.push(tick.sums);
        let age_max = age_max(signals);
        self.standing.see(signals, age_max);
        self.learn(&tick);
        let harmless = self.see_harmless(&tick, signals, age_max);
        let excess = self.excess(tick.waiting).0;
        let busy = self.standing.resource_s() > 0.0;
        self.excess_max = if busy { self.excess_max.max(excess) } else { 0.0 };
        let (families, alarm) = self.alarm(&tick);
        let each = self.exchanges.each();
        let done = Done {
            peak: self.peak,
            rate: self.throughput(),
            lately: self.history.recent(LATELY_DEPARTURES, LATELY_TICKS, TICKS_MAX).rate(),
        };
        let open = signals.time.open.zip(signals.time.silent);
        self.see_connections(&tick, signals, age_max);
        if let Some(shed) = &mut self.shed {
            shed.families = families.clone();
            shed.shadow = mode == Mode::Shadow;
            shed.connections(each, open.map(|(open, silent)| (open.value, silent.value)));
            shed.coming = self.coming.jobs(&self.history, COMING_TICKS);
            shed.delay_s = self.coming.delay_s(&self.history);
            shed.seats = self.seats.short();
            shed.grows = self.seats.grow();
            shed.effect(&tick, harmless, self.objective_s);
            shed.repeats(&tick, &self.history);
            shed.observe(&tick, &done, self.objective_s);
            self.end_if_over(tick.now);
        } else if alarm && !self.held.lasts() {
            self.begin(&tick, families.clone());
        } else if self.may_learn(&families) {
            if !self.stall.is_silent() {
                self.reach.learn(&tick.sums, &signals.resource, age_max);
            }
            let median = signals.time.first_byte.map_or(Nanos::ZERO, |t| t.value.p50);
            self.baseline.learn(&tick.sums, median.as_secs_f64(), tick.waiting);
        }
        let full = self.shed.is_none() && tick.sums.refused > 0.0;
        // It leaks: where few come, most ticks have no refusal.
        let seconds = if full { tick.sums.seconds } else { -tick.sums.seconds };
        self.full_s = (self.full_s + seconds).clamp(0.0, FULL_SECONDS_MAX);
        let calm = self.shed.is_none() && families.is_empty() && !self.stall.is_on();
        self.coming.learn(&self.history, calm);
        self.last = match &self.shed {
            Some(shed) => self.shedding(shed, tick.waiting, mode),
            None => self.calm(families),
        };
        self.last.clone()
    }

    fn grounded(&self) -> bool {
        self.seen == Freshness::Fresh
    }

    fn save(&self) -> Option<serde_json::Value> {
        self.kept()
    }

    fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        self.take(&value, age).is_some()
    }
}

impl DefaultController {
    /// Takes who is silent, who waits for a worker, and who holds one.
    fn see_connections(&mut self, tick: &Tick, signals: &Signals, age_max: Nanos) {
        self.silent.see(signals.time.silent.and_then(|silent| silent.within(age_max)));
        let queued = signals.queue.accept.and_then(|queue| queue.within(age_max));
        let queued = queued.map(|queue| float(queue.length));
        self.seats.see(tick, queued, self.exchanges.each(), self.standing.resource());
        self.held.see(HeldWorkers::of(signals, age_max), tick.sums.seconds);
    }

    /// Without signals: keep for a while, then let go.
    fn blind(&mut self, now: Nanos) -> ServiceLimits {
        if self.seen == Freshness::Lost {
            if self.shed.take().is_some() {
                self.since = now;
            }
            self.history = History::default();
            self.probe = Probe::default();
            let text = "no limits: counts or in-flight have been unknown for long".to_owned();
            let why = Why { shedding: false, since: self.since, alarmed: Vec::new(), text };
            self.last = ServiceLimits { why, ..ServiceLimits::default() };
        } else {
            self.last.why.text = "held: counts or in-flight are not known now".to_owned();
        }
        self.last.clone()
    }
}

/// A tick's counts as floats, bounded so that sums stay exact.
fn sums(signals: &Signals, counts: &Counts, growth: f64) -> Sums {
    let times = signals.time.first_byte.map(|t| t.value).unwrap_or_default();
    let turned_away = counts.offered.saturating_sub(counts.admitted);
    let turned_away_first = turned_away.saturating_sub(counts.repeated);
    Sums {
        seconds: period_s(signals),
        offered: float(counts.offered - (turned_away - turned_away_first)),
        first: float(counts.offered.saturating_sub(counts.repeated)),
        refused: float(counts.refused),
        turned_away: float(turned_away),
        turned_away_first: float(turned_away_first),
        completed: float(counts.done()),
        response_s: times.sum.as_secs_f64(),
        responses: float(times.count),
        medians_s: times.p50.as_secs_f64() * float(times.count),
        growth,
        ..Sums::default()
    }
}

fn float(n: u64) -> f64 {
    n.min(1 << 40) as f64
}
