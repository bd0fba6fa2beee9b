// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The detector: a tick of signals becomes a [`Load`]. mod.rs tells how.

use super::baseline::Baseline;
use super::coming::Coming;
use super::episode::{Episode, Search};
use super::evidence::Standing;
use super::exchanges::{Exchanges, float, sums};
use super::fall::Delay;
use super::harmless::Harmless;
use super::held::{Held, HeldWorkers};
use super::history::{History, Sums, TICKS_MAX};
use super::load::{Calm, Load};
use super::probe::Probe;
use super::refusals::Refusals;
use super::resident::Resident;
use super::scale::{
    ENOUGH_ARRIVALS, LASTING_SECONDS, LASTING_TICKS, LONG_SECONDS, MEAN_EVENTS, RATE_EVENTS,
};
use super::seats::Seats;
use super::silent::Silent;
use super::stall::{Reach, Stall};
use super::usual::Prompt;
use crate::{Freshness, Mode, Watch, age_max};
use tidegate_model::limits::Cause;
use tidegate_model::signals::{Counts, Family, Reading, Signals};
use tidegate_units::Nanos;

/// Seconds in which "the usual" follows.
const USUAL_SECONDS: f64 = 2.0;
/// Ticks that tell what completions were before a stall.
const BEFORE_TICKS: usize = 11;
/// Where an alarm comes back soon after its end, the arrivals that end the next one are so many times as
/// many, at most [`RELEASE_ARRIVALS_MAX`].
const RELEASE_FACTOR: f64 = 2.0;
/// See [`RELEASE_FACTOR`].
const RELEASE_ARRIVALS_MAX: f64 = 256.0;
/// Limits that refuse nobody end after so many lives of a connection: the clients that are in now think,
/// and come back.
const UNUSED_LIVES: f64 = 2.0;
/// A tick longer than this follows a gap.
const GAP_MIN: Nanos = Nanos::from_millis(1500);
/// Seconds in which the peak of completions fades to half.
pub(super) const PEAK_HALF_LIFE: f64 = 60.0;

/// Whether the daemon stood still before this tick: what came meanwhile says nothing of a second.
pub(crate) fn is_gap(signals: &Signals) -> bool {
    signals.period > GAP_MIN
}

/// Whose refusals act upon the overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actuator {
    /// A limit on SYNs: what completes is what it lets in.
    Syns,
    /// Request rules: what they refuse is another kind of work than what completes.
    Rules,
}

/// Finds out how overloaded a service is.
#[derive(Clone, Debug)]
pub struct Detector {
    pub(crate) objective_s: f64,
    pub(super) actuator: Actuator,
    pub(super) history: History,
    pub(super) standing: Standing,
    counts: Watch,
    waiting: Watch,
    seen: Freshness,
    pub(super) baseline: Baseline,
    /// Jobs usually in flight.
    pub(super) usual: f64,
    pub(super) peak: f64,
    pub(super) reach: Reach,
    pub(super) stall: Stall,
    /// The overload, while there is one.
    pub(super) episode: Option<Episode>,
    released_at: Option<Nanos>,
    release_arrivals: f64,
    pub(super) since: Nanos,
    pub(super) in_flight: Option<f64>,
    pub(super) exchanges: Exchanges,
    pub(super) resident: Resident,
    pub(super) coming: Coming,
    pub(super) silent: Silent,
    /// Seconds of a turn of a proxy's loop; `None`: no gateway.
    pub(super) turn_s: Option<f64>,
    /// What was so while responses were not late; `None`: no gateway, or not yet.
    pub(super) prompt: Option<Prompt>,
    /// How long jobs waited in the last overload: see fall.rs.
    pub(super) delay: Option<Delay>,
    pub(super) harmless: Harmless,
    pub(super) probe: Probe,
    seats: Seats,
    held: Held,
    /// Largest excess since the CPU has been used up.
    pub(super) excess_max: f64,
}

/// One tick's numbers.
pub(super) struct Tick {
    pub(super) now: Nanos,
    pub(super) sums: Sums,
    pub(super) waiting: f64,
}

impl Detector {
    /// A detector that has seen nothing, for limits on SYNs. A good response takes no longer than
    /// `objective`; from 10 ms to 60 s.
    #[must_use]
    pub fn new(objective: Nanos) -> Self {
        Self {
            objective_s: objective.as_secs_f64().clamp(0.01, 60.0),
            actuator: Actuator::Syns,
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
            episode: None,
            released_at: None,
            release_arrivals: ENOUGH_ARRIVALS,
            since: Nanos::ZERO,
            in_flight: None,
            exchanges: Exchanges::default(),
            resident: Resident::default(),
            coming: Coming::default(),
            silent: Silent::default(),
            turn_s: None,
            prompt: None,
            delay: None,
            harmless: Harmless::default(),
            probe: Probe::default(),
            seats: Seats::default(),
            held: Held::default(),
            excess_max: 0.0,
        }
    }

    /// The same for request rules: by what it says they refuse.
    #[must_use]
    pub fn of_rules(objective: Nanos) -> Self {
        Self { actuator: Actuator::Rules, ..Self::new(objective) }
    }

    /// How loaded the service is, by what was sensed in a tick; `limit` is the one on the jobs in
    /// flight that was in force.
    pub fn tick(
        &mut self,
        signals: &Signals,
        mode: Mode,
        limit: Option<u64>,
        refusals: Refusals,
    ) -> Load {
        let counts = signals.balance.counts.map(|counts| Reading {
            value: refusals.told_to(self.actuator, counts.value),
            age: counts.age,
        });
        let waiting = signals.time.waiting;
        self.seen = self
            .counts
            .see(counts.map(|c| c.age), signals.period)
            .max(self.waiting.see(waiting.map(|w| w.age), signals.period));
        match (self.seen, counts, waiting) {
            (Freshness::Fresh, Some(counts), Some(waiting)) if is_gap(signals) => {
                self.exchanges.follow_first(&counts.value, float(waiting.value));
                self.after_gap(signals.now, float(waiting.value))
            }
            (Freshness::Fresh, Some(counts), Some(waiting)) => {
                self.see(signals, mode, limit, (&counts.value, float(waiting.value)))
            }
            (Freshness::Lost, ..) => self.lost(signals.now),
            _ => Load::Unknown,
        }
    }

    /// Whether all that it decides by was young enough to act upon in the last tick.
    pub(crate) fn is_fresh(&self) -> bool {
        self.seen == Freshness::Fresh
    }

    /// Completions per second lately.
    pub(super) fn throughput(&self) -> f64 {
        self.history.recent(RATE_EVENTS, 3, 64).rate()
    }

    /// Takes a tick of which all is known.
    fn see(
        &mut self,
        signals: &Signals,
        mode: Mode,
        limit: Option<u64>,
        (counts, waiting): (&Counts, f64),
    ) -> Load {
        let growth = waiting - self.in_flight.replace(waiting).unwrap_or(waiting);
        let sums = self.exchanges.see(sums(signals, counts, growth), counts, &self.history);
        let tick = Tick { now: signals.now, sums, waiting };
        self.exchanges.follow_first(counts, waiting);
        if self.actuator == Actuator::Syns {
            self.resident.see(&self.exchanges, waiting, sums.seconds);
        }
        self.history.push(tick.sums);
        let age_max = age_max(signals);
        self.standing.see(signals, age_max);
        let turn = signals.time.proxy_turn.and_then(|turn| turn.within(age_max));
        self.turn_s = turn.map(|turn| turn.as_secs_f64());
        self.learn(&tick);
        // A gateway shows no CPU: what that would tell is told by what completes.
        let blind = self.turn_s.is_some() && signals.resource.cpu.is_none();
        if blind {
            self.restore_usual(tick.now, tick.sums.seconds);
        }
        let harmless = self.see_harmless(&tick, signals, limit, age_max);
        let excess = self.excess(tick.waiting).0;
        let busy = self.standing.resource_s() > 0.0;
        self.excess_max = if busy { self.excess_max.max(excess) } else { 0.0 };
        let (families, cause) = self.alarm(&tick);
        self.see_connections(&tick, signals, counts, age_max);
        if let Some(episode) = &mut self.episode {
            if blind && self.actuator == Actuator::Syns {
                episode.falls.go_on();
            }
            self.follow(&tick, signals, harmless, (mode, &families));
            self.end_if_over(tick.now);
        } else if cause.is_some() && !self.held.lasts() {
            self.begin(&tick, families.clone(), cause, blind);
        } else if self.may_learn(&families) {
            if !self.stall.is_silent() {
                self.reach.learn(&tick.sums, &signals.resource, age_max);
            }
            let median = signals.time.first_byte.map_or(Nanos::ZERO, |t| t.value.p50);
            self.baseline.learn(&tick.sums, median.as_secs_f64(), tick.waiting);
        }
        let calm = self.episode.is_none() && families.is_empty() && !self.stall.is_on();
        self.coming.learn(&self.history, calm);
        self.load(families, tick.sums.refused > 0.0)
    }

    fn learn(&mut self, tick: &Tick) {
        let dt = tick.sums.seconds;
        let before = self.history.between(BEFORE_TICKS, 1).rate();
        self.stall.see(&tick.sums, before, tick.waiting > self.harmless.jobs);
        self.stall.bound(self.objective_s);
        if !self.stall.is_on() {
            let keep = libm::exp(-dt / USUAL_SECONDS);
            self.usual = keep * self.usual + (1.0 - keep) * tick.waiting;
        }
        self.harmless.jobs = self.harmless.jobs.min(tick.waiting);
        self.peak *= libm::exp(-dt * std::f64::consts::LN_2 / PEAK_HALF_LIFE);
        if self.history.len() >= LASTING_TICKS {
            let lately = self.history.recent(MEAN_EVENTS, LASTING_TICKS, TICKS_MAX).rate();
            self.peak = self.peak.max(lately);
        }
    }

    /// Takes who is silent, who waits for a worker, and who holds one.
    fn see_connections(&mut self, tick: &Tick, signals: &Signals, counts: &Counts, age_max: Nanos) {
        self.silent.see(signals.time.silent.and_then(|silent| silent.within(age_max)));
        let queued = signals.queue.accept.and_then(|queue| queue.within(age_max));
        let queued = queued.map(|queue| float(queue.length));
        self.seats.see(tick, queued, self.exchanges.each(), self.standing.resource());
        let asked = counts.connections.map_or(0, |all| all.asked);
        self.held.see(HeldWorkers::with_asked(signals, asked, age_max), tick.sums.seconds);
    }

    /// Nothing is learned while anything is alarmed; without a baseline, in-flight says nothing yet.
    fn may_learn(&self, families: &[Family]) -> bool {
        let known = self.baseline.r0_s.is_some();
        families.iter().all(|family| *family == Family::Time && !known)
    }

    /// An overload begins.
    fn begin(&mut self, tick: &Tick, families: Vec<Family>, cause: Option<Cause>, blind: bool) {
        self.probe = Probe::default();
        let reach = if self.standing.cpu_full() { self.reach.own_rate() } else { None };
        let mu = self.throughput().max(reach.unwrap_or(0.0)).max(1.0);
        let soon =
            self.released_at.is_some_and(|at| tick.now.since(at).as_secs_f64() < LONG_SECONDS);
        self.release_arrivals = if soon {
            (self.release_arrivals * RELEASE_FACTOR).min(RELEASE_ARRIVALS_MAX)
        } else {
            ENOUGH_ARRIVALS
        };
        let episode = self.episode_at(mu, self.baseline.r0_s, tick.waiting);
        let episode = if blind { self.begin_fall(episode, tick) } else { episode };
        self.episode = Some(Episode { families, cause, ..episode });
        self.since = tick.now;
    }

    /// The beginning of an overload of this capacity, with so many in flight.
    pub(super) fn episode_at(&self, mu: f64, r0_s: Option<f64>, waiting: f64) -> Episode {
        let known_s = r0_s.unwrap_or_else(|| {
            let most = (waiting / mu).min(self.objective_s) / 2.0;
            self.baseline.early_s.map_or(most, |early| early.min(most))
        });
        Episode {
            variability: self.baseline.variability(),
            idle: self.baseline.idle().max(self.harmless.jobs),
            resident: self.resident,
            search: r0_s.is_none().then_some(Search::default()),
            actuator: self.actuator,
            each: self.exchanges.each(),
            coming: self.coming.jobs(&self.history, LASTING_TICKS),
            delay_s: self.coming.delay_s(&self.history),
            turn_s: self.turn_s.unwrap_or(0.0),
            seats: self.seats.short(),
            grows: self.seats.grow(),
            ..Episode::new(mu, known_s)
        }
    }

    /// Takes a tick of an overload.
    fn follow(
        &mut self,
        tick: &Tick,
        signals: &Signals,
        harmless: bool,
        (mode, families): (Mode, &[Family]),
    ) {
        let (each, resident) = (self.exchanges.each(), self.resident);
        let open = signals.time.open.zip(signals.time.silent);
        let Some(episode) = &mut self.episode else { return };
        episode.families = families.to_vec();
        episode.shadow = mode == Mode::Shadow;
        (episode.resident, episode.turn_s) = (resident, self.turn_s.unwrap_or(0.0));
        episode.connections(each, open.map(|(open, silent)| (open.value, silent.value)));
        episode.coming = self.coming.jobs(&self.history, LASTING_TICKS);
        episode.delay_s = self.coming.delay_s(&self.history);
        episode.seats = self.seats.short();
        episode.grows = self.seats.grow();
        episode.effect(tick, harmless, self.objective_s);
        episode.repeats(tick, &self.history, self.objective_s);
        episode.observe(tick, self.peak, self.objective_s);
    }

    /// Ends the overload if its cause is gone.
    fn end_if_over(&mut self, now: Nanos) {
        let in_vain = self.probe.in_vain()
            || self.episode.as_ref().is_some_and(|episode| episode.in_vain_s >= LASTING_SECONDS);
        let over = self.episode.as_ref().is_some_and(|episode| {
            let unused_s = LASTING_SECONDS.max(UNUSED_LIVES * episode.life_s);
            in_vain
                || self.held.lasts()
                || episode.fewer_come(self.release_arrivals, self.objective_s)
                || !episode.falls.confirms()
                    && episode.unused_s >= unused_s
                    && episode.unused >= ENOUGH_ARRIVALS
        });
        if !over {
            return;
        }
        if in_vain {
            self.harmless.found(self.staying(self.in_flight.unwrap_or(0.0)).jobs);
            self.usual = self.usual.max(self.harmless.jobs);
        }
        if let Some(episode) = self.episode.take() {
            self.keep_delay(&episode, now);
            if episode.search.is_none() {
                self.baseline.r0_s.get_or_insert(episode.known_s());
            }
        }
        self.probe = Probe::default();
        self.released_at = Some(now);
        self.since = now;
        self.history = History::default();
    }

    /// The daemon stood still, or the machine did: it goes on from what is in flight now.
    fn after_gap(&mut self, now: Nanos, waiting: f64) -> Load {
        self.history = History::default();
        self.standing = Standing::default();
        self.probe = Probe::default();
        self.in_flight = Some(waiting);
        if let Some(episode) = &mut self.episode {
            episode.fresh_start();
        }
        let load = self.load(Vec::new(), false);
        self.since = self.since.max(now);
        load
    }

    /// Without signals for long.
    fn lost(&mut self, now: Nanos) -> Load {
        if let Some(episode) = self.episode.take() {
            self.keep_delay(&episode, now);
            self.since = now;
        }
        self.history = History::default();
        self.probe = Probe::default();
        Load::Lost(self.since)
    }

    fn load(&self, evidence: Vec<Family>, refused: bool) -> Load {
        let in_flight = self.in_flight.unwrap_or(0.0);
        match &self.episode {
            Some(episode) => {
                Load::Overload(episode.overload(self.since, in_flight, self.objective_s))
            }
            None => Load::Calm(Calm {
                since: self.since,
                evidence,
                completes: self.throughput(),
                usual: self.usual,
                baseline_s: self.baseline.known_s(),
                variability: self.baseline.variability(),
                headroom: self.headroom(),
                tried: self.probe.beyond(),
                excess: self.excess(0.0).1,
                beyond_chance: self.beyond_chance(),
                peak: (self.history.len() >= LASTING_TICKS).then_some(self.peak),
                known: self.peak > 0.0 && self.baseline.known_s().is_some(),
                stalls: self.stall.holds() && self.turn_s.is_none(),
                piles: self
                    .turn_s
                    .filter(|_| self.stall.holds())
                    .map_or(0.0, |_| self.stall.piles()),
                refused,
                pending: self.silent.pending(&self.history),
            }),
        }
    }
}
