// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An overload while it lasts: capacity and target. What corrects them is in trial.rs.

use super::Tick;
use super::bursts::Bursts;
use super::detector::Actuator;
use super::echo::Echo;
use super::fall::Falls;
use super::harmless::HARMLESS_CEILINGS;
use super::history::{History, Sums};
use super::load::Overload;
use super::resident::Resident;
use super::scale::{LASTING_SECONDS, LONG_SECONDS, OBJECTIVE_SHARE, RATE_EVENTS, SOON_SECONDS};
use super::trial::Trial;
use crate::RATE_CEILING;
use tidegate_model::limits::Cause;
use tidegate_model::signals::Family;
use tidegate_units::Nanos;

/// Seconds in which limits are corrected at least: three ticks, so that the delay of one keeps it stable.
pub(crate) const TAU_SECONDS_MIN: f64 = 0.3;

/// Share of μ·r0 added to the target, because r0 errs low by up to a third
/// (a heavy tail in few responses).
const TARGET_SLACK: f64 = 0.5;
/// Standing queue while shedding, in jobs: with one job in service, an M/M/1/16 offered twice its
/// capacity is busy in all but 1e-5 of the time.
pub(crate) const QUEUE_MAX: f64 = 16.0;
/// Fewest jobs of standing queue, for servers so slow that more would exceed the objective, and for
/// connections that wait for a worker.
const QUEUE_MIN: f64 = 2.0;
/// The standing queue may take this share of the objective.
const QUEUE_OBJECTIVE: f64 = 0.25;
/// The ceiling in standing queues above the target: three deviations of N under the rate, so that
/// the rate decides and not the ceiling, which does not know first attempts from repeated ones.
const CEILING_QUEUES: f64 = 1.5;
/// Turns of a proxy's loop in which an admitted request is in flight without being at the server: the proxy
/// reads the verdict in one, connects or takes a connection, sends, reads the response and reports it in others.
const PROXY_TURNS: f64 = 5.0;
/// All of them take at most so many objectives: more would leave no time for the server.
const PROXY_OBJECTIVE: f64 = 0.25;
/// Load below this share of μ is no overload.
const RELEASE_SHARE: f64 = 0.97;
/// Completions that must show in a step of the search without a baseline.
const SEARCH_COMPLETIONS: f64 = 128.0;
/// The search goes on while completions hold this share of the best; a wrong stop costs some
/// waiting, a step too far costs completions.
const SEARCH_HOLD: f64 = 0.75;
/// Failed steps after which the search ends: one may be chance.
const SEARCH_FAILED_MAX: u32 = 2;

/// The state of an overload.
#[derive(Clone, Debug)]
pub(super) struct Episode {
    /// Exchanges completed per second under saturation.
    pub(super) mu: f64,
    /// Factor on the completions that a comparison takes.
    pub(super) variability: f64,
    pub(super) r0_s: f64,
    /// Jobs in flight that cost the server nothing.
    pub(super) idle: f64,
    /// Those of connections that stay.
    pub(super) resident: Resident,
    /// Completions per second that the search has seen.
    pub(super) best: f64,
    /// The search for a baseline, where there is none.
    pub(super) search: Option<Search>,
    pub(super) trial: Trial,
    /// Whether jobs only wait: see fall.rs.
    pub(super) falls: Falls,
    /// Arrivals missing to 0.97·μ.
    pub(super) missing: f64,
    /// How bursty they come.
    pub(super) bursts: Bursts,
    /// Seconds and arrivals since the last refusal.
    pub(super) unused_s: f64,
    pub(super) unused: f64,
    /// What it was seen by at first, and the families that report a problem now.
    pub(super) cause: Option<Cause>,
    pub(super) families: Vec<Family>,
    /// Who refuses by this knowledge.
    pub(super) actuator: Actuator,
    /// Nobody executes these limits.
    pub(super) shadow: bool,
    /// Exchanges that a connection brings.
    pub(super) each: f64,
    /// Seconds in which the ceiling held nothing off: see [`Self::effect`].
    pub(super) in_vain_s: f64,
    /// Seconds from one request of a connection to its next.
    pub(super) cycle_s: f64,
    /// Seconds that a connection lives.
    pub(super) life_s: f64,
    /// Connections that were let in and have not asked yet, and how long that takes them.
    pub(super) coming: f64,
    /// See `coming`.
    pub(super) delay_s: f64,
    /// Seconds that a turn of a proxy's loop takes.
    pub(super) turn_s: f64,
    /// Whether connections wait for a worker: see seats.rs.
    pub(super) seats: bool,
    /// Whether more and more of them find one.
    pub(super) grows: bool,
    pub(super) echo: Echo,
}

/// The search for a baseline: halve r0 while completions hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search {
    /// Best completions per second so far.
    pub(super) best: f64,
    /// Failed steps; two end the search.
    pub(super) failed: u32,
}

impl Episode {
    /// One of a server with this capacity, whose jobs take so many seconds; nothing else is known.
    pub(super) fn new(mu: f64, r0_s: f64) -> Self {
        Self {
            mu,
            variability: 1.0,
            r0_s,
            idle: 0.0,
            resident: Resident::default(),
            best: 0.0,
            search: None,
            trial: Trial::default(),
            falls: Falls::default(),
            missing: 0.0,
            bursts: Bursts::default(),
            unused_s: 0.0,
            unused: 0.0,
            cause: None,
            families: Vec::new(),
            actuator: Actuator::Syns,
            shadow: false,
            each: 1.0,
            in_vain_s: 0.0,
            cycle_s: 0.0,
            life_s: 0.0,
            coming: 0.0,
            delay_s: 0.0,
            turn_s: 0.0,
            seats: false,
            grows: false,
            echo: Echo::default(),
        }
    }

    /// What is said of it, with so many jobs in flight.
    pub(super) fn overload(&self, since: Nanos, in_flight: f64, objective_s: f64) -> Overload {
        Overload {
            since,
            cause: self.cause,
            evidence: self.families.clone(),
            in_flight,
            capacity: self.mu,
            each: self.each,
            departures: self.departures(objective_s),
            staying: self.resident.jobs,
            baseline_s: self.r0_s,
            waits: self.falls.wait(self.r0_s),
            target: self.target(objective_s),
            tried: self.trial.jobs(),
            queue: self.queue(objective_s),
            ceiling: self.ceiling(objective_s),
            cycle_s: self.cycle_s,
            coming: self.coming,
            on_their_way: self.on_their_way(objective_s),
            in_proxies: self.in_proxies(objective_s),
            a_turn: self.a_turn(objective_s),
            workers_grow: self.grows,
            echo: self.echo,
        }
    }

    /// The standing queue in jobs.
    pub(super) fn queue(&self, objective_s: f64) -> f64 {
        if self.seats {
            return QUEUE_MIN;
        }
        // A fast server's departures vary by √(μ·τ) while the rate is corrected.
        let noise = 2.0 * (self.mu * TAU_SECONDS_MIN / 2.0).sqrt();
        let queue =
            QUEUE_MAX.max(noise).min(QUEUE_OBJECTIVE * objective_s * self.mu).max(QUEUE_MIN);
        queue.max(self.beside_resident(objective_s))
    }

    /// As many beside those that stay, so that newcomers get half of the server; no more than newcomers
    /// complete within the objective. That is what they really complete: requests that cost nothing, on
    /// connections that stay, do not raise it.
    fn beside_resident(&self, objective_s: f64) -> f64 {
        let newcomers = self.mu * (1.0 - self.resident.part);
        self.resident.jobs.min(OBJECTIVE_SHARE * objective_s * newcomers)
    }

    /// Jobs in flight that refusing does not bring down.
    pub(super) fn stays(&self) -> f64 {
        self.idle.max(self.resident.jobs)
    }

    /// The part of the capacity that newcomers have with the target in flight.
    fn newcomers(&self, objective_s: f64) -> f64 {
        let jobs = 1.0 - (self.resident.jobs / self.target(objective_s)).min(1.0);
        jobs * self.resident.pace()
    }

    /// Connections per second that complete with the target in flight.
    pub(super) fn departures(&self, objective_s: f64) -> f64 {
        self.newcomers(objective_s) * self.mu / self.each
    }

    /// N*: the jobs in flight to hold.
    pub(super) fn target(&self, objective_s: f64) -> f64 {
        let busy = self.mu * self.r0_s * (1.0 + TARGET_SLACK);
        let tried = self.trial.jobs();
        self.cap(self.stays() + busy + self.queue(objective_s), objective_s) + tried
    }

    /// Jobs that complete during one turn of a proxy's loop.
    fn a_turn(&self, objective_s: f64) -> f64 {
        self.mu * self.turn_s.min(PROXY_OBJECTIVE * objective_s)
    }

    /// Jobs that are in proxies, and not at the server, while as many come as complete. If they all were at the
    /// server after all, what it has to do would still be inside the objective.
    pub(super) fn in_proxies(&self, objective_s: f64) -> f64 {
        let jobs = self.mu * (PROXY_TURNS * self.turn_s).min(PROXY_OBJECTIVE * objective_s);
        let most = self.stays() + OBJECTIVE_SHARE * objective_s * self.mu;
        jobs.min((most - self.ceiling(objective_s)).max(0.0))
    }

    /// Connections that are on their way while as many come as complete.
    pub(super) fn on_their_way(&self, objective_s: f64) -> f64 {
        self.departures(objective_s) * self.delay_s + self.in_proxies(objective_s)
    }

    /// The ceiling on the jobs in flight.
    pub(super) fn ceiling(&self, objective_s: f64) -> f64 {
        let above = self.target(objective_s) + CEILING_QUEUES * self.queue(objective_s);
        let tried = self.trial.jobs();
        self.cap(above - tried, objective_s) + tried
    }

    /// Keeps the server's own wait inside the objective, where that leaves it enough to do.
    pub(super) fn cap(&self, jobs: f64, objective_s: f64) -> f64 {
        // Jobs that only wait make no queue: more of them let in find out what completes then.
        let slack = if self.falls.wait(self.r0_s) { TARGET_SLACK } else { 0.0 };
        let busy = self.mu * self.r0_s * (1.0 + slack) + QUEUE_MIN;
        jobs.min(self.stays() + busy.max(OBJECTIVE_SHARE * objective_s * self.mu))
    }

    /// What was counted towards a release or a trial was counted of another time.
    pub(super) fn fresh_start(&mut self) {
        (self.missing, self.unused_s, self.unused) = (0.0, 0.0, 0.0);
        self.trial.again();
        self.falls.again();
        self.echo = Echo::default();
        self.bursts = Bursts::default();
    }

    /// Whether so many fewer come than complete that it is no chance: `enough` are missing, or more where they come in
    /// batches, up to what completes in half a second.
    pub(super) fn fewer_come(&self, enough: f64, objective_s: f64) -> bool {
        let half_a_second = SOON_SECONDS * RELEASE_SHARE * self.departures(objective_s);
        self.missing >= (enough * self.bursts.factor()).min(enough.max(half_a_second))
    }

    /// Whether the ceiling has an effect: far more in flight than it lets in, while the server is
    /// free and fast, is no queue that refusals shorten.
    pub(super) fn effect(&mut self, tick: &Tick, harmless: bool, objective_s: f64) {
        let ceiling = self.ceiling(objective_s) + self.in_proxies(objective_s);
        let in_vain = harmless && tick.waiting > HARMLESS_CEILINGS * ceiling;
        self.in_vain_s = if in_vain { self.in_vain_s + tick.sums.seconds } else { 0.0 };
    }

    /// Takes what is known of connections: exchanges each, those that are open and those that are
    /// silent.
    pub(super) fn connections(&mut self, each: f64, levels: Option<(u64, u64)>) {
        self.each = each;
        let alive = levels.map_or(0, |(open, silent)| open.saturating_sub(silent)) as f64;
        self.cycle_s = if each > 1.0 { (alive / self.mu).min(LONG_SECONDS) } else { 0.0 };
        self.life_s = (self.cycle_s * self.each).min(LONG_SECONDS);
    }

    /// Takes who came in a tick, the last one of `history`, first and again.
    pub(super) fn repeats(&mut self, tick: &Tick, history: &History, objective_s: f64) {
        if self.actuator == Actuator::Syns {
            let mu = self.newcomers(objective_s) * self.mu;
            self.echo.see(&tick.sums, history, (mu, self.each));
        }
    }

    /// Takes a tick; the most completions per second that were ever seen for some time are `peak`.
    pub(super) fn observe(&mut self, tick: &Tick, peak: f64, objective_s: f64) {
        let Sums { seconds, offered, refused, completed, .. } = tick.sums;
        self.idle = self.idle.min(tick.waiting);
        let target = self.target(objective_s);
        // Who is in a proxy is not at the server, as far as that is known.
        let idle = tick.waiting < target / 2.0;
        let short = tick.waiting < (target + self.in_proxies(objective_s)) / 2.0;
        // A queue at both ends of the tick kept the server busy meanwhile.
        let stood = tick.waiting - tick.sums.growth.max(0.0);
        let held_back = self.echo.is_on() && stood < target - self.queue(objective_s) / 2.0;
        if held_back {
            // What completes is what is let in.
        } else if short && refused > 0.0 && self.actuator == Actuator::Syns && !self.falls.are_on()
        {
            // We refuse, and the server has hardly anything to do: μ is too low, not measured.
            let doubling_s = SOON_SECONDS.max(self.life_s);
            let most = if idle { RATE_CEILING } else { peak.max(self.mu) };
            self.mu = (self.mu * libm::exp2(seconds / doubling_s)).min(most);
        } else if !short || self.falls.are_on() {
            let span = (RATE_EVENTS / self.mu).max(LASTING_SECONDS);
            let weight = 1.0 - libm::exp(-seconds / span);
            self.mu = self.falls.capacity(self.mu, completed / seconds, weight).max(1.0);
        }
        let departures = self.departures(objective_s);
        // Who comes again now would come in now, if the limits went.
        let pressing = tick.sums.with_repeated();
        self.missing = (self.missing + RELEASE_SHARE * departures * seconds - pressing).max(0.0);
        self.bursts.see(&tick.sums, pressing);
        if self.actuator == Actuator::Rules || self.falls.confirms() {
            // What is refused is another kind of work than what is completed, or what could be completed is not known: no comparison.
            self.missing = 0.0;
        }
        let unbalanced = self.families.contains(&Family::Balance);
        let used = refused > 0.0 || unbalanced;
        self.unused_s = if used { 0.0 } else { self.unused_s + seconds };
        self.unused = if used { 0.0 } else { self.unused + offered };
        self.trial.see(&tick.sums);
        if self.search.is_some() {
            self.search_step(tick.waiting, objective_s);
        } else if !self.fall_step(&tick.sums, tick.waiting, peak, objective_s) {
            self.trial_step(tick.waiting, peak, objective_s);
        }
    }

    /// Without a baseline: halve r0 while completions hold.
    pub(super) fn search_step(&mut self, waiting: f64, objective_s: f64) {
        let (span, completed) = self.trial.seen();
        let held = self.target(objective_s) + self.in_proxies(objective_s);
        if waiting > held + self.queue(objective_s) && span < LONG_SECONDS {
            // Still working down what was there: nothing to be learned yet.
            self.trial.restart();
            return;
        }
        // Below the standing queue nothing is to be gained.
        let (busy, queue) = (self.mu * self.r0_s, self.queue(objective_s));
        let wanted = SEARCH_COMPLETIONS * self.variability;
        let enough = span >= SOON_SECONDS && completed >= wanted || span >= LONG_SECONDS;
        let Some(search) = self.search.as_mut().filter(|_| enough) else { return };
        let rate = completed / span;
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
        self.trial.restart();
    }
}
