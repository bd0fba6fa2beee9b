// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The default controller: for a server of which nothing is known.
//!
//! # What it measures
//! Each tick: arrivals A, completions D, jobs in flight N (exact), mean response times, CPU, accept
//! queue. From them, **while calm only** (a baseline learned under load sheds healthy users):
//! - the baseline r0: mean response time of windows of some hundred answers (see history.rs and
//!   the constants below). The mean, not the minimum: with many workers and a heavy tail, capacity
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
//! Alarmed: jobs in flight are held at a target N* = idle + (3/2)·μ·r0 + Q: what keeps all of an
//! unknown number of workers busy, a half more because r0 is an estimate, and a small standing
//! queue Q that rides out chance. Two actuators, and a fence at a full accept queue:
//! - rate = μ + (N* − N)/τ, with μ the completions per second under saturation. A rate, not only a
//!   ceiling, so that the policy can give tokens to first attempts before repeated SYNs;
//! - a ceiling on the jobs in flight, N* + 1.5·Q, in line with the packets: exact, without delay.
//!
//! Without a baseline (started in mid-crisis) r0 begins at N/μ and is halved for as long as
//! completions do not fall. Where completions are far below what was seen before (a slower
//! dependency needs more jobs in flight; or the server lost capacity), N* is raised by half for a
//! while: if completions follow, it stays; if not, it goes back, and the next try comes later.
//! What is admitted is never slowed further than by that half.
//!
//! # When it lets go
//! When offered load has been below 0.97·μ for long enough to be no chance (a CUSUM), or when the
//! limits have refused nothing for a while. Coming back soon makes the next release
//! slower, so that a load around the capacity does not swing. Signals that are missing never
//! tighten: old ones freeze the limits, lost ones release them. In shadow nothing is shed: then the
//! rate is the measured completion rate, and no ceiling is set.
//!
//! # Sources
//! Little's law; CoDel (RFC 8289): the standing queue, not the passing one; BBR: capacity measured
//! under saturation, round trip while idle; TCP Vegas: excess in packets; Breakwater (OSDI 2020):
//! admission by credits around measured capacity; Page 1954: cumulative sums; spec: lessons.

use crate::evidence::{Standing, balance, lossy};
use crate::history::{History, Sums, TICKS_MAX};
use crate::{Controller, FREEZE_PERIODS, Freshness, Mode, RATE_CEILING, Watch, bounded, period_s};
use tidegate_model::limits::{ServiceLimits, Why};
use tidegate_model::signals::{Counts, Family, Signals};
use tidegate_units::Nanos;

/// Answers in a window of the baseline: a mean within 13 % at a coefficient of variation of 3.
const BASELINE_ANSWERS: f64 = 512.0;
/// A slow server's window ends after this many seconds with at least [`BASELINE_ANSWERS_MIN`].
const BASELINE_SECONDS: f64 = 5.0;
/// Fewest answers in a window.
const BASELINE_ANSWERS_MIN: f64 = 16.0;
/// Standard errors added to a window's mean: the least of many windows must not be below the
/// truth, because the jobs that keep the server busy are counted by it.
const BASELINE_ERRORS: f64 = 2.0;
/// Seconds of calm in which a baseline follows upward: slow enough that half a minute at the very
/// capacity moves it by 5 % of the gap.
const BASELINE_UP_SECONDS: f64 = 600.0;
/// Weights of a window in the measured variability: queues make times look more alike than they
/// are, never less, so it rises fast, and falls slowly and only by windows without one.
const SPREAD_WEIGHT_UP: f64 = 0.2;
/// See [`SPREAD_WEIGHT_UP`].
const SPREAD_WEIGHT_DOWN: f64 = 0.02;
/// Answers in a tick below which its median says nothing.
const SPREAD_ANSWERS_MIN: f64 = 4.0;
/// Variability above this (a coefficient of variation of 5) is taken for this.
const SPREAD_MAX: f64 = 25.0;
/// Share of μ·r0 added to the target, because r0 errs low (its percentile above) by up to a third
/// (a heavy tail in few answers).
const TARGET_SLACK: f64 = 0.5;
/// Standing queue while shedding, in jobs: with one job in service, an M/M/1/16 offered twice its
/// capacity is busy in all but 1e-5 of the time.
const QUEUE_MAX: f64 = 16.0;
/// Largest bucket while shedding, in tokens.
const SHED_BURST_MAX: f64 = 1024.0;
/// Fewest jobs of standing queue, for servers so slow that more would exceed the objective.
const QUEUE_MIN: f64 = 2.0;
/// The standing queue may take this share of the objective.
const QUEUE_OBJECTIVE: f64 = 0.25;
/// All jobs in flight may take this share of the objective, unless the server needs more to be busy.
const TARGET_OBJECTIVE: f64 = 0.8;
/// Excess for an alarm, in jobs: with a second family. At 0.9 load its chance is 1.5 %.
const EXCESS_MIN: f64 = 40.0;
/// Deviations of the number in service (Poisson: √(μ·r0)) that the excess must exceed as well.
const EXCESS_DEVIATIONS: f64 = 4.0;
/// For a fast server this share of the objective is no trouble yet.
const EXCESS_OBJECTIVE: f64 = 0.1;
/// At this multiple of the alarm's excess chance is out of the question at 0.9 load (0.9^90).
const EXCESS_LARGE: f64 = 2.25;
/// CPU that has been used up for this many times what the excess takes at the peak rate is no
/// burst; more than one, because the peak may not be the capacity.
const OVERDUE: f64 = 2.0;
/// The guard while calm: at least this many jobs above the usual, whatever the server: what a
/// healthy burst may bring before its server has shown how fast it is.
const GUARD_MIN: f64 = 256.0;
/// The guard in objectives of capacity.
const GUARD_OBJECTIVE: f64 = 0.8;
/// Seconds in which "the usual" follows.
const USUAL_SECONDS: f64 = 2.0;
/// Seconds in which the idle are learned.
const IDLE_SECONDS: f64 = 10.0;
/// Idle below this share of N (and these many jobs) are noise of the two averages.
const IDLE_SHARE_MIN: f64 = 0.2;
/// See [`IDLE_SHARE_MIN`].
const IDLE_MIN: f64 = 4.0;
/// Departures in the time constant of the correction: limits vary by 1/√(2·64) = 9 %,
/// and by what μ varies (12 % tick by tick is measured, below 10 % over a second).
const TAU_DEPARTURES: f64 = 64.0;
/// Seconds of that time constant at least: three ticks, so that the delay of one keeps it stable.
const TAU_SECONDS_MIN: f64 = 0.3;
/// Departures over which μ is averaged, and seconds at least.
const MU_DEPARTURES: f64 = 64.0;
/// See [`MU_DEPARTURES`].
const MU_SECONDS_MIN: f64 = 1.0;
/// Seconds in which μ doubles while the server is short of work that is being refused.
const MU_DOUBLING_SECONDS: f64 = 0.5;
/// The ceiling in standing queues above the target: three deviations of N under the rate, so that
/// the rate decides and not the ceiling, which does not know first attempts from repeated ones.
const CEILING_QUEUES: f64 = 1.5;
/// While shedding, the rate never falls below this share of μ: the queue drains by the ceiling.
const RATE_SHARE_MIN: f64 = 0.5;
/// Load below this share of μ is no overload.
const RELEASE_SHARE: f64 = 0.97;
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
/// Completions in one trial (of a higher or lower target): two of them differ
/// by 6 % by chance.
const TRIAL_COMPLETIONS: f64 = 512.0;
/// Seconds of a trial, at least and at most.
const TRIAL_SECONDS: (f64, f64) = (1.0, 30.0);
/// Completions below this share of the peak ask for a trial.
const TRIAL_SHARE: f64 = 0.8;
/// A trial raises the target by this share.
const TRIAL_RAISE: f64 = 1.0;
/// Completions must follow by this share: 2.4 deviations.
const TRIAL_FOLLOW: f64 = 0.15;
/// Seconds to the next trial after a failed one; doubles up to [`TRIAL_PAUSE_MAX`].
const TRIAL_PAUSE: f64 = 5.0;
/// See [`TRIAL_PAUSE`].
const TRIAL_PAUSE_MAX: f64 = 60.0;
/// Completions that must show in a step of the search without a baseline, and its seconds.
const SEARCH_COMPLETIONS: f64 = 128.0;
/// See [`SEARCH_COMPLETIONS`].
const SEARCH_SECONDS: f64 = 0.5;
/// The search goes on while completions hold this share of the best; a wrong stop costs some
/// waiting, a step too far costs completions.
const SEARCH_HOLD: f64 = 0.75;
/// Completions in a window of the peak (its largest errs by 3/√512 = 13 %), and ticks at least.
const PEAK_COMPLETIONS: f64 = 512.0;
/// See [`PEAK_COMPLETIONS`].
const PEAK_TICKS_MIN: usize = 10;
/// Failed steps after which the search ends: one may be chance.
const SEARCH_FAILED_MAX: u32 = 2;
/// The whole accept queue, in 1/1024: the limit in line while shedding.
const ACCEPT_QUEUE_FULL_Q10: u32 = 1024;
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
    baseline: Baseline,
    usual: f64,
    peak: f64,
    shed: Option<Shed>,
    released_at: Option<Nanos>,
    release_arrivals: f64,
    since: Nanos,
    waiting_before: Option<f64>,
    /// Largest excess since the CPU has been used up.
    excess_max: f64,
    last: ServiceLimits,
}

/// What is learned while calm.
#[derive(Clone, Debug, Default)]
struct Baseline {
    r0_s: Option<f64>,
    /// Squared coefficient of variation of response times.
    spread: f64,
    window: Window,
    waiting: f64,
    explained: f64,
}

/// Response times of some ticks, with what tells their error: the means of single ticks vary as
/// the times do, over their number.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    seconds: f64,
    sum_s: f64,
    answers: f64,
    squares: f64,
    ticks: f64,
    /// Mean and median of ticks with [`SPREAD_ANSWERS_MIN`] answers, both times their number.
    means_s: f64,
    medians_s: f64,
}

impl Window {
    fn add(&mut self, tick: &Sums, median_s: f64) {
        self.seconds += tick.seconds;
        if tick.responses > 0.0 {
            self.sum_s += tick.response_s;
            self.answers += tick.responses;
            self.squares += tick.response_s * tick.response_s / tick.responses;
            self.ticks += 1.0;
        }
        if tick.responses >= SPREAD_ANSWERS_MIN {
            self.means_s += tick.response_s;
            self.medians_s += tick.responses * median_s;
        }
    }

    fn enough(&self) -> bool {
        self.ticks > 1.0
            && (self.answers >= BASELINE_ANSWERS
                || self.seconds >= BASELINE_SECONDS && self.answers >= BASELINE_ANSWERS_MIN)
    }

    /// Mean and its standard error in seconds.
    fn mean(&self) -> (f64, f64) {
        let mean = self.sum_s / self.answers;
        let variance = ((self.squares - self.sum_s * mean) / (self.ticks - 1.0)).max(0.0);
        (mean, (variance / self.answers).sqrt())
    }

    /// Squared coefficient of variation: mean over median is √(1 + cv²) for log-normal times, and
    /// near it for constant and exponential ones. Taken tick by tick, a queue cancels out, and no
    /// single huge answer is needed to see a heavy tail.
    fn spread(&self) -> Option<f64> {
        let ratio = self.means_s / self.medians_s;
        ratio.is_finite().then(|| (ratio * ratio - 1.0).clamp(0.0, SPREAD_MAX))
    }
}

impl Baseline {
    fn learn(&mut self, tick: &Sums, median_s: f64, waiting: f64) {
        let keep = (-tick.seconds / IDLE_SECONDS).exp();
        self.waiting = keep * self.waiting + (1.0 - keep) * waiting;
        let explained = tick.response_s / tick.seconds;
        self.explained = keep * self.explained + (1.0 - keep) * explained;
        self.window.add(tick, median_s);
        if !self.window.enough() {
            return;
        }
        let window = std::mem::take(&mut self.window);
        let (mean, error) = window.mean();
        let upper = mean + BASELINE_ERRORS * error;
        let before = self.r0_s.unwrap_or(f64::MAX);
        if upper <= before {
            self.r0_s = Some(upper);
        } else {
            let weight = 1.0 - (-window.seconds / BASELINE_UP_SECONDS).exp();
            self.r0_s = Some(before + weight * (upper - before));
        }
        if let Some(spread) = window.spread().filter(|s| *s > self.spread || mean < before) {
            let weight = if spread > self.spread { SPREAD_WEIGHT_UP } else { SPREAD_WEIGHT_DOWN };
            self.spread += weight * (spread - self.spread);
        }
    }

    /// How much longer queues are than with exponential times (Pollaczek and Khinchine).
    fn variability(&self) -> f64 {
        ((1.0 + self.spread) / 2.0).max(1.0)
    }

    /// Jobs in flight that no throughput explains.
    fn idle(&self) -> f64 {
        let unexplained = self.waiting - self.explained;
        (unexplained - IDLE_SHARE_MIN * self.waiting - IDLE_MIN).max(0.0)
    }
}

/// The state while shedding.
#[derive(Clone, Debug)]
struct Shed {
    mu: f64,
    /// Factor on the completions that a comparison takes.
    variability: f64,
    r0_s: f64,
    idle: f64,
    /// Completions per second that the search has seen.
    best: f64,
    /// The search for a baseline, where there is none.
    search: Option<Search>,
    trial: Trial,
    /// Arrivals missing to 0.97·μ.
    missing: f64,
    /// Seconds and arrivals since the last refusal.
    unused_s: f64,
    unused: f64,
    families: Vec<Family>,
}

/// The search for a baseline: halve r0 while completions hold.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    /// Best completions per second so far.
    best: f64,
    /// Failed steps; two end the search.
    failed: u32,
}

/// A try whether more jobs in flight give more completions.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Jobs added while it lasts, and completions per second before it.
    on: Option<(f64, f64)>,
    /// Seconds until the present state has had its effect: two response times.
    settle_s: f64,
    /// Seconds and completions in the present state.
    seconds: f64,
    completed: f64,
    pause_s: f64,
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
            baseline: Baseline::default(),
            usual: 0.0,
            peak: 0.0,
            shed: None,
            released_at: None,
            release_arrivals: RELEASE_ARRIVALS,
            since: Nanos::ZERO,
            waiting_before: None,
            excess_max: 0.0,
            last: ServiceLimits::default(),
        }
    }

    /// Completions per second lately.
    fn throughput(&self) -> f64 {
        self.history.recent(MU_DEPARTURES, 3, 64).rate()
    }

    fn learn(&mut self, tick: &Tick) {
        let dt = tick.sums.seconds;
        let keep = (-dt / USUAL_SECONDS).exp();
        self.usual = keep * self.usual + (1.0 - keep) * tick.waiting;
        self.peak *= (-dt * std::f64::consts::LN_2 / PEAK_HALF_LIFE).exp();
        if self.history.len() >= PEAK_TICKS_MIN {
            let lately = self.history.recent(PEAK_COMPLETIONS, PEAK_TICKS_MIN, TICKS_MAX).rate();
            self.peak = self.peak.max(lately);
        }
    }

    /// Jobs beyond what an unsaturated server holds, and how many of them are an alarm.
    fn excess(&self, waiting: f64) -> (f64, f64) {
        let throughput = self.throughput();
        let held = throughput * self.baseline.r0_s.unwrap_or(0.0);
        let alarm = (EXCESS_MIN * self.baseline.variability() + EXCESS_DEVIATIONS * held.sqrt())
            .max(EXCESS_OBJECTIVE * self.objective_s * throughput);
        (waiting - self.baseline.idle() - held, alarm)
    }

    /// The families that report trouble, and whether they are enough to shed.
    fn alarm(&self, waiting: f64) -> (Vec<Family>, bool) {
        let (excess, alarm) = self.excess(waiting);
        let time = excess > alarm;
        let (resource, queue) = (self.standing.resource(), self.standing.queue());
        let beyond_chance = excess > EXCESS_LARGE * alarm;
        let losing = lossy(&self.history);
        let unbalanced = losing || balance(&self.history, waiting);
        // A burst uses up the CPU as well, but not for much longer than it takes to work it off.
        let overdue = self.standing.resource_s() * self.peak > OVERDUE * self.excess_max;
        let families = [
            (resource, Family::Resource),
            (queue, Family::Queue),
            (time, Family::Time),
            (unbalanced, Family::Balance),
        ];
        let on = families.iter().filter(|f| f.0).map(|f| f.1).collect();
        let standing = excess > QUEUE_MAX;
        let shed = time && unbalanced
            || queue && standing && unbalanced
            || time && resource && beyond_chance && overdue
            || standing && losing && (resource || time);
        (on, shed)
    }

    /// Nothing is learned while anything is alarmed; without a baseline, in-flight says nothing yet.
    fn may_learn(&self, families: &[Family]) -> bool {
        let known = self.baseline.r0_s.is_some();
        families.iter().all(|family| *family == Family::Time && !known)
    }

    fn begin(&mut self, tick: &Tick, families: Vec<Family>) {
        let mu = self.throughput().max(1.0);
        let soon =
            self.released_at.is_some_and(|at| tick.now.since(at).as_secs_f64() < RETURN_SECONDS);
        self.release_arrivals = if soon {
            (self.release_arrivals * RELEASE_FACTOR).min(RELEASE_ARRIVALS_MAX)
        } else {
            RELEASE_ARRIVALS
        };
        let r0_s = self.baseline.r0_s;
        self.shed = Some(Shed {
            mu,
            r0_s: r0_s.unwrap_or((tick.waiting / mu).min(self.objective_s) / 2.0),
            variability: self.baseline.variability(),
            idle: self.baseline.idle(),
            best: 0.0,
            search: r0_s.is_none().then_some(Search::default()),
            trial: Trial { on: None, settle_s: 0.0, seconds: 0.0, completed: 0.0, pause_s: 0.0 },
            missing: 0.0,
            unused_s: 0.0,
            unused: 0.0,
            families,
        });
        self.since = tick.now;
    }

    /// Ends the shedding if its cause is gone.
    fn end_if_over(&mut self, now: Nanos) {
        let over = self.shed.as_ref().is_some_and(|shed| {
            shed.missing >= self.release_arrivals
                || shed.unused_s >= UNUSED_SECONDS && shed.unused >= UNUSED_ARRIVALS
        });
        if !over {
            return;
        }
        if let Some(Shed { search: None, r0_s, .. }) = self.shed.take() {
            self.baseline.r0_s.get_or_insert(r0_s);
        }
        self.released_at = Some(now);
        self.since = now;
        self.history = History::default();
    }

    /// Limits while calm: the guard alone.
    fn calm(&self, families: Vec<Family>) -> ServiceLimits {
        let guard = (GUARD_MIN * self.baseline.variability())
            .max(GUARD_OBJECTIVE * self.objective_s * self.peak);
        let known = self.peak > 0.0 && self.baseline.r0_s.is_some();
        let text = format!(
            "calm: {:.1}/s completed, {:.0} usually in flight, baseline {:.1} ms, variability {:.1}",
            self.throughput(),
            self.usual,
            self.baseline.r0_s.unwrap_or(0.0) * 1e3,
            self.baseline.variability(),
        );
        ServiceLimits {
            waiting_max: known.then(|| (self.usual + guard).ceil() as u64),
            why: Why { shedding: false, since: self.since, alarmed: families, text },
            ..ServiceLimits::default()
        }
    }

    /// Limits while shedding.
    fn shedding(&self, shed: &Shed, waiting: f64, mode: Mode) -> ServiceLimits {
        let queue = shed.queue(self.objective_s);
        let target = shed.target(self.objective_s);
        let tau = (TAU_DEPARTURES / shed.mu).max(TAU_SECONDS_MIN);
        let correction = if mode == Mode::Shadow { 0.0 } else { (target - waiting) / tau };
        let rate = bounded((shed.mu + correction).max(RATE_SHARE_MIN * shed.mu));
        let ceiling = shed.ceiling(self.objective_s).round().max(1.0) as u64;
        let text = format!(
            "shedding: capacity {:.1}/s, {waiting:.0} in flight, target {target:.0} \
             (baseline {:.1} ms), rate {rate}",
            shed.mu,
            shed.r0_s * 1e3,
        );
        ServiceLimits {
            rate: Some(rate),
            burst: queue.ceil().clamp(2.0, SHED_BURST_MAX) as u32,
            waiting_max: (mode == Mode::Enforce).then_some(ceiling),
            // A full accept queue loses what comes, in silence, after the handshake.
            accept_queue_max_q10: ACCEPT_QUEUE_FULL_Q10,
            why: Why { shedding: true, since: self.since, alarmed: shed.families.clone(), text },
            ..ServiceLimits::default()
        }
    }
}

impl Shed {
    /// The standing queue in jobs.
    fn queue(&self, objective_s: f64) -> f64 {
        // A fast server's departures vary by √(μ·τ) while the rate is corrected.
        let noise = 2.0 * (self.mu * TAU_SECONDS_MIN / 2.0).sqrt();
        QUEUE_MAX.max(noise).min(QUEUE_OBJECTIVE * objective_s * self.mu).max(QUEUE_MIN)
    }

    /// N*: the jobs in flight to hold.
    fn target(&self, objective_s: f64) -> f64 {
        let busy = self.mu * self.r0_s * (1.0 + TARGET_SLACK);
        let tried = self.trial.on.map_or(0.0, |(jobs, _)| jobs);
        self.cap(self.idle + busy + self.queue(objective_s), objective_s) + tried
    }

    /// The ceiling on the jobs in flight.
    fn ceiling(&self, objective_s: f64) -> f64 {
        let above = self.target(objective_s) + CEILING_QUEUES * self.queue(objective_s);
        let tried = self.trial.on.map_or(0.0, |(jobs, _)| jobs);
        self.cap(above - tried, objective_s) + tried
    }

    /// Keeps the server's own wait inside the objective, where that leaves it enough to do.
    fn cap(&self, jobs: f64, objective_s: f64) -> f64 {
        let busy = self.mu * self.r0_s + QUEUE_MIN;
        jobs.min(self.idle + busy.max(TARGET_OBJECTIVE * objective_s * self.mu))
    }

    fn observe(&mut self, tick: &Tick, peak: f64, objective_s: f64) {
        let Sums { seconds, offered, refused, completed, .. } = tick.sums;
        let short = tick.waiting < self.target(objective_s) / 2.0;
        if short && refused > 0.0 {
            // We refuse, and the server has hardly anything to do: μ is too low, not measured.
            self.mu = (self.mu * (seconds / MU_DOUBLING_SECONDS).exp2()).min(RATE_CEILING);
        } else if !short {
            let span = (MU_DEPARTURES / self.mu).max(MU_SECONDS_MIN);
            let weight = 1.0 - (-seconds / span).exp();
            self.mu = (self.mu + weight * (completed / seconds - self.mu)).max(1.0);
        }
        self.missing = (self.missing + RELEASE_SHARE * self.mu * seconds - offered).max(0.0);
        let unbalanced = self.families.contains(&Family::Balance);
        let used = refused > 0.0 || unbalanced;
        self.unused_s = if used { 0.0 } else { self.unused_s + seconds };
        self.unused = if used { 0.0 } else { self.unused + offered };
        if self.trial.settle_s > 0.0 {
            self.trial.settle_s -= seconds;
        } else {
            self.trial.seconds += seconds;
            self.trial.completed += completed;
        }
        if self.search.is_some() {
            self.search_step(tick.waiting, objective_s);
        } else {
            self.trial_step(tick.waiting, peak, objective_s);
        }
    }

    /// Without a baseline: halve r0 while completions hold.
    fn search_step(&mut self, waiting: f64, objective_s: f64) {
        let span = self.trial.seconds;
        if waiting > self.target(objective_s) + self.queue(objective_s) && span < TRIAL_SECONDS.1 {
            // Still working down what was there: nothing to be learned yet.
            self.trial.completed = 0.0;
            self.trial.seconds = 0.0;
            return;
        }
        // Below the standing queue nothing is to be gained.
        let (busy, queue) = (self.mu * self.r0_s, self.queue(objective_s));
        let wanted = SEARCH_COMPLETIONS * self.variability;
        let enough = self.trial.seconds >= SEARCH_SECONDS && self.trial.completed >= wanted
            || self.trial.seconds >= TRIAL_SECONDS.1;
        let Some(search) = self.search.as_mut().filter(|_| enough) else { return };
        let rate = self.trial.completed / self.trial.seconds;
        let held = rate >= SEARCH_HOLD * search.best;
        search.best = search.best.max(rate);
        search.failed += u32::from(!held);
        let over = search.failed >= SEARCH_FAILED_MAX || busy <= queue;
        if !held {
            self.r0_s = (self.r0_s * 2.0).min(objective_s);
        } else if !over {
            self.r0_s /= 2.0;
        }
        if over {
            self.best = search.best;
            self.search = None;
        }
        (self.trial.seconds, self.trial.completed) = (0.0, 0.0);
    }

    fn trial_step(&mut self, waiting: f64, peak: f64, objective_s: f64) {
        let span = (TRIAL_COMPLETIONS * self.variability / self.mu)
            .clamp(TRIAL_SECONDS.0, TRIAL_SECONDS.1);
        let rate = self.trial.completed / self.trial.seconds;
        match self.trial.on {
            None if self.trial.seconds < self.trial.pause_s.max(span) => return,
            None => {
                let used_up = self.families.contains(&Family::Resource);
                if self.mu < TRIAL_SHARE * peak.max(self.best) && self.unused_s <= 0.0 && !used_up {
                    let target = self.target(objective_s).max(waiting);
                    let jobs = target * (1.0 + TRIAL_RAISE) - self.target(objective_s);
                    self.trial.on = Some((jobs, rate));
                    self.trial.settle_s =
                        (2.0 * self.target(objective_s) / self.mu).min(TRIAL_SECONDS.1);
                }
            }
            Some(_) if self.trial.seconds < span => return,
            Some((jobs, before)) => {
                self.trial.on = None;
                if rate >= before * (1.0 + TRIAL_FOLLOW) {
                    self.r0_s += jobs / self.mu;
                    self.trial.pause_s = 0.0;
                } else {
                    self.trial.pause_s =
                        (self.trial.pause_s * 2.0).clamp(TRIAL_PAUSE, TRIAL_PAUSE_MAX);
                }
            }
        }
        (self.trial.seconds, self.trial.completed) = (0.0, 0.0);
    }
}

impl Controller for DefaultController {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        let counts = signals.balance.counts;
        let waiting = signals.time.waiting;
        let seen = self
            .counts
            .see(counts.map(|c| c.age), signals.period)
            .max(self.waiting.see(waiting.map(|w| w.age), signals.period));
        let (Freshness::Fresh, Some(counts), Some(waiting)) = (seen, counts, waiting) else {
            return self.blind(seen, signals.now);
        };
        let waiting = waiting.value.min(1 << 40) as f64;
        let growth = waiting - self.waiting_before.replace(waiting).unwrap_or(0.0);
        let sums = Sums { growth, ..sums(signals, &counts.value) };
        let tick = Tick { now: signals.now, sums, waiting };
        self.history.push(tick.sums);
        self.standing.see(signals, Nanos(signals.period.0.saturating_mul(FREEZE_PERIODS)));
        self.learn(&tick);
        let excess = self.excess(tick.waiting).0;
        let busy = self.standing.resource_s() > 0.0;
        self.excess_max = if busy { self.excess_max.max(excess) } else { 0.0 };
        let (families, alarm) = self.alarm(tick.waiting);
        if let Some(shed) = &mut self.shed {
            shed.families = families.clone();
            shed.observe(&tick, self.peak, self.objective_s);
            self.end_if_over(tick.now);
        } else if alarm {
            self.begin(&tick, families.clone());
        } else if self.may_learn(&families) {
            let median = signals.time.first_byte.map_or(Nanos::ZERO, |t| t.value.p50);
            self.baseline.learn(&tick.sums, median.as_secs_f64(), tick.waiting);
        }
        self.last = match &self.shed {
            Some(shed) => self.shedding(shed, tick.waiting, mode),
            None => self.calm(families),
        };
        self.last.clone()
    }
}

impl DefaultController {
    /// Without signals: keep for a while, then let go.
    fn blind(&mut self, seen: Freshness, now: Nanos) -> ServiceLimits {
        if seen == Freshness::Lost {
            if self.shed.take().is_some() {
                self.since = now;
            }
            self.history = History::default();
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
fn sums(signals: &Signals, counts: &Counts) -> Sums {
    let float = |n: u64| n.min(1 << 40) as f64;
    let times = signals.time.first_byte.map(|t| t.value).unwrap_or_default();
    Sums {
        seconds: period_s(signals),
        offered: float(counts.offered),
        refused: float(counts.refused),
        completed: float(counts.completed),
        response_s: times.sum.as_secs_f64(),
        responses: float(times.count),
        growth: 0.0,
    }
}
