// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is measured of a run, phase by phase, as the survival experiment defines it.

use super::{Arrival, Phase};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::{Nanos, Rate};

/// One phase of the load. Shares are of clients that began in it, rates of what ended in it, times
/// of what was admitted in it.
#[derive(Clone, Debug, Default)]
pub struct PhaseReport {
    /// Beginning of the phase.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
    /// Clients that began.
    pub began: u64,
    /// Clients that were refused at least once.
    pub refused: u64,
    /// Clients that never got a response.
    pub failed: u64,
    /// Answers within the objective.
    pub good: u64,
    /// Answers within the time-out.
    pub answered: u64,
    /// Seconds from admission to answer.
    pub took_s: Vec<f64>,
    /// Seconds from the intended start to the response.
    pub perceived_s: Vec<f64>,
}

impl PhaseReport {
    fn seconds(&self) -> f64 {
        self.to.since(self.from).as_secs_f64().max(1e-9)
    }

    /// Good answers per second.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        self.good as f64 / self.seconds()
    }

    /// Responses per second.
    #[must_use]
    pub fn answers(&self) -> f64 {
        self.answered as f64 / self.seconds()
    }

    /// Share of clients refused at least once.
    #[must_use]
    pub fn refused_share(&self) -> f64 {
        self.refused as f64 / self.began.max(1) as f64
    }

    /// Share of clients that never got a response.
    #[must_use]
    pub fn failed_share(&self) -> f64 {
        self.failed as f64 / self.began.max(1) as f64
    }

    /// A quantile (0 to 1) of the admitted's times in seconds; 0 if there were none.
    #[must_use]
    pub fn took(&self, q: f64) -> f64 {
        quantile(&self.took_s, q)
    }

    /// A quantile of the times from the intended start in seconds; 0 if there were none.
    #[must_use]
    pub fn perceived(&self, q: f64) -> f64 {
        quantile(&self.perceived_s, q)
    }
}

fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// One tick of the controller.
#[derive(Clone, Debug)]
pub struct Trace {
    /// When.
    pub at: Nanos,
    /// SYNs offered in the period.
    pub offered: u64,
    /// Of them, repeated.
    pub repeated: u64,
    /// SYNs refused in the period.
    pub refused: u64,
    /// Answers in the period.
    pub completed: u64,
    /// Connections that wait.
    pub waiting: u64,
    /// The rate, if one was set.
    pub rate: Option<f64>,
    /// The ceiling on waiting, if one was set.
    pub waiting_max: Option<u64>,
    /// Whether it sheds.
    pub shedding: bool,
    /// Why.
    pub why: String,
}

impl Trace {
    /// What one tick saw and decided.
    #[must_use]
    pub fn of(signals: &Signals, limits: &ServiceLimits) -> Self {
        let counts = signals.balance.counts.map(|c| c.value).unwrap_or_default();
        Self {
            at: signals.now,
            offered: counts.offered,
            repeated: counts.repeated,
            refused: counts.refused,
            completed: counts.completed,
            waiting: signals.time.waiting.map_or(0, |w| w.value),
            rate: limits.rate.map(Rate::get),
            waiting_max: limits.waiting_max,
            shedding: limits.why.shedding,
            why: limits.why.text.clone(),
        }
    }
}

/// Whoever wants to know what happens in a world. Nothing is told twice, and everything in the
/// order of time.
pub trait Observer {
    /// A client has come.
    fn began(&mut self, arrival: &Arrival);
    /// A client's SYN passed into the accept queue.
    fn admitted(&mut self, _now: Nanos, _arrival: &Arrival) {}
    /// A client's SYN passed and found the accept queue full: the kernel ignored it.
    fn ignored(&mut self, _now: Nanos, _arrival: &Arrival) {}
    /// A client's SYN was refused, for the `first` time or again.
    fn refused(&mut self, now: Nanos, arrival: &Arrival, first: bool);
    /// A client ended without a response.
    fn failed(&mut self, arrival: &Arrival);
    /// A client was answered; the times are now and when it was admitted. `good` means within the
    /// objective of its arrival.
    fn answered(&mut self, times: (Nanos, Nanos), arrival: &Arrival, good: bool);
    /// The controller ticked.
    fn trace(&mut self, trace: Trace);
}

/// What became of one client's first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// When it began.
    pub at: Nanos,
    /// Whether it was refused at least once.
    pub refused: bool,
    /// Whether its response was good.
    pub good: bool,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Phase by phase, and one more for what happens after the last.
    pub phases: Vec<PhaseReport>,
    /// Tick by tick.
    pub traces: Vec<Trace>,
    /// Every answer: when it ended, and seconds since its admission.
    pub answers: Vec<(Nanos, f64)>,
    /// When the last refusal happened, by phase.
    pub last_refused: Vec<Nanos>,
    /// Client by client, in the order of their beginnings: under an open load the same clients in
    /// every run of one seed.
    pub firsts: Vec<First>,
}

impl Report {
    pub(crate) fn new(phases: &[Phase]) -> Self {
        let mut all = Vec::new();
        let mut from = Nanos::ZERO;
        for phase in phases {
            let to = from + phase.lasts;
            all.push(PhaseReport { from, to, ..PhaseReport::default() });
            from = to;
        }
        all.push(PhaseReport { from, to: Nanos(u64::MAX), ..PhaseReport::default() });
        let last_refused = vec![Nanos::ZERO; all.len()];
        Self { phases: all, last_refused, ..Self::default() }
    }

    pub(crate) fn index(&self, at: Nanos) -> usize {
        self.phases.iter().position(|p| at < p.to).unwrap_or(self.phases.len() - 1)
    }

    fn first(&mut self, arrival: &Arrival) -> Option<&mut First> {
        let index = usize::try_from(arrival.number).ok()?.checked_sub(1)?;
        self.firsts.get_mut(index)
    }

    fn at(&mut self, at: Nanos) -> &mut PhaseReport {
        let index = self.index(at);
        &mut self.phases[index]
    }

    /// By phase: clients that were refused although the unprotected server would have given them
    /// a good response. Its run has the same seed, and the same open load.
    #[must_use]
    pub fn refused_falsely(&self, unprotected: &Self) -> Vec<u64> {
        let mut phases = vec![0; self.phases.len()];
        for (own, bare) in self.firsts.iter().zip(&unprotected.firsts) {
            phases[self.index(own.at)] += u64::from(own.refused && bare.good);
        }
        phases
    }

    /// All answers.
    #[must_use]
    pub fn answered_total(&self) -> u64 {
        self.phases.iter().map(|p| p.answered).sum()
    }

    /// All clients without a response.
    #[must_use]
    pub fn failed_total(&self) -> u64 {
        self.phases.iter().map(|p| p.failed).sum()
    }

    /// A quantile of the times of those who were admitted between two moments, in seconds.
    #[must_use]
    pub fn took_within(&self, from: Nanos, to: Nanos, q: f64) -> f64 {
        let admitted = |answer: &&(Nanos, f64)| {
            let at = answer.0.since(Nanos::from_secs_f64(answer.1));
            at >= from && at < to
        };
        let took: Vec<f64> = self.answers.iter().filter(admitted).map(|answer| answer.1).collect();
        quantile(&took, q)
    }

    /// Seconds from `from` until the times of the admitted are normal: the first moment (in eighths
    /// of `span`) from which on, for a whole `span`, at most 1 % of the responses (and one is always
    /// allowed) took longer than `normal_s`, the 99th percentile of the unprotected server at 0.9
    /// load. Up to `to` if there is none.
    #[must_use]
    pub fn recovery_s(&self, from: Nanos, to: Nanos, span: Nanos, normal_s: f64) -> f64 {
        let step = Nanos((span.0 / 8).max(1));
        let mut start = from;
        while start + span <= to {
            let inside = self.answers.iter().filter(|a| a.0 >= start && a.0 < start + span);
            let (mut all, mut slow) = (0_u64, 0_u64);
            for answer in inside {
                all += 1;
                slow += u64::from(answer.1 > normal_s);
            }
            if slow <= (all / 100).max(1) {
                return start.since(from).as_secs_f64();
            }
            start += step;
        }
        to.since(from).as_secs_f64()
    }
}

impl Observer for Report {
    fn began(&mut self, arrival: &Arrival) {
        self.at(arrival.at).began += 1;
        self.firsts.push(First { at: arrival.at, refused: false, good: false });
    }

    fn refused(&mut self, now: Nanos, arrival: &Arrival, first: bool) {
        self.at(arrival.at).refused += u64::from(first);
        let index = self.index(now);
        self.last_refused[index] = now;
        if let Some(first) = self.first(arrival) {
            first.refused = true;
        }
    }

    fn failed(&mut self, arrival: &Arrival) {
        self.at(arrival.at).failed += 1;
    }

    fn answered(&mut self, (now, since): (Nanos, Nanos), arrival: &Arrival, good: bool) {
        let took = now.since(since).as_secs_f64();
        let ended = self.at(now);
        ended.answered += 1;
        ended.good += u64::from(good);
        let admitted = self.at(since);
        admitted.took_s.push(took);
        admitted.perceived_s.push(now.since(arrival.at).as_secs_f64());
        self.answers.push((now, took));
        if let Some(first) = self.first(arrival) {
            first.good = good;
        }
    }

    fn trace(&mut self, trace: Trace) {
        self.traces.push(trace);
    }
}
