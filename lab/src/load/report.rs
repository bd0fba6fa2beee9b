// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results of a load: one schema for progress, totals and time series.

use super::ask::KINDS;
use super::hist::{Hist, Percentiles};
use super::plan::LoadPlan;
use super::tally::{Done, Outcome, Part, ShardResult, StreamTally, Tally};
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

/// How many arrivals became what. Each arrival is one distinct client.
///
/// `answered + failed = offered`, and the causes of failure add up:
/// `failed = refused_connect + refused_http + other_status + no_handshake + no_answer + broken +
/// errors`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All arrivals.
    pub offered: u64,
    /// Complete 200 answers within the objective of the intended start.
    pub good: u64,
    /// Complete 200 answers within the client's time-out.
    pub answered: u64,
    /// Clients that met a refusal, whatever came of them later: RST or ICMP to the SYN, first SYN
    /// unanswered, or status 503 or 429. Who refused (product, rival, kernel) it does not say.
    pub refused: u64,
    /// Clients that never got a 200.
    pub failed: u64,
    /// RST or ICMP to the SYN.
    pub refused_connect: u64,
    /// First SYN unanswered: the handshake took 0.9 s or more, or never came about.
    pub syn_repeated: u64,
    /// Answers of status 503 or 429.
    pub refused_http: u64,
    /// Complete answers of other statuses than 200, 503 and 429.
    pub other_status: u64,
    /// Clients that gave up before the handshake was complete.
    pub no_handshake: u64,
    /// Clients that gave up waiting for the rest of the answer.
    pub no_answer: u64,
    /// Connections that ended before the answer was complete.
    pub broken: u64,
    /// Arrivals that the generator itself could not serve; any of them makes the run void.
    pub errors: u64,
    /// Requests on a connection that had served one before.
    pub reused: u64,
}

impl Counts {
    /// Nothing yet.
    pub const NONE: Self = Self {
        offered: 0,
        good: 0,
        answered: 0,
        refused: 0,
        failed: 0,
        refused_connect: 0,
        syn_repeated: 0,
        refused_http: 0,
        other_status: 0,
        no_handshake: 0,
        no_answer: 0,
        broken: 0,
        errors: 0,
        reused: 0,
    };

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.good += other.good;
        self.answered += other.answered;
        self.refused += other.refused;
        self.failed += other.failed;
        self.refused_connect += other.refused_connect;
        self.syn_repeated += other.syn_repeated;
        self.refused_http += other.refused_http;
        self.other_status += other.other_status;
        self.no_handshake += other.no_handshake;
        self.no_answer += other.no_answer;
        self.broken += other.broken;
        self.errors += other.errors;
        self.reused += other.reused;
    }
}

/// Sessions that are over, by their start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    /// All of them.
    pub ended: u64,
    /// All of whose requests were answered by 200 within the client's time-out.
    pub completed: u64,
}

impl Sessions {
    /// None yet.
    pub const NONE: Self = Self { ended: 0, completed: 0 };

    /// Adds others.
    pub const fn add(&mut self, other: &Self) {
        self.ended += other.ended;
        self.completed += other.completed;
    }
}

/// Totals of one stream over one phase or over the whole run, by intended start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Length in seconds.
    pub seconds: f64,
    /// Arrivals by what became of them.
    #[serde(flatten)]
    pub counts: Counts,
    /// Good answers per second of the phase.
    pub goodput: f64,
    /// Handshake complete to last byte, of 200 answers (kept connections: from the intended start).
    pub service: Percentiles,
    /// Intended start to last byte, of 200 answers.
    pub perceived: Percentiles,
    /// Actual start to handshake complete, of new connections.
    pub handshake: Percentiles,
    /// Handshake complete to first byte, of 200 answers.
    pub first_byte: Percentiles,
    /// Sessions, where the stream has them.
    #[serde(default)]
    pub sessions: Sessions,
}

impl Totals {
    fn of(tally: &Tally, span: Nanos) -> Self {
        let seconds = span.as_secs_f64();
        Self {
            seconds,
            counts: tally.counts,
            goodput: if seconds > 0.0 { tally.counts.good as f64 / seconds } else { 0.0 },
            service: tally.service.percentiles(),
            perceived: tally.perceived.percentiles(),
            handshake: tally.handshake.percentiles(),
            first_byte: tally.first_byte.percentiles(),
            sessions: tally.sessions,
        }
    }

    /// Share of the clients that met a refusal; 0 without arrivals.
    #[must_use]
    pub fn refused_share(&self) -> f64 {
        self.counts.refused as f64 / self.counts.offered.max(1) as f64
    }

    /// Share of the clients that never got a 200; 0 without arrivals.
    #[must_use]
    pub fn failed_share(&self) -> f64 {
        self.counts.failed as f64 / self.counts.offered.max(1) as f64
    }

    /// 200 answers per second of the phase, good or late.
    #[must_use]
    pub fn answered_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.counts.answered as f64 / self.seconds } else { 0.0 }
    }
}

/// One phase of one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    /// Its name.
    pub name: String,
    /// Seconds since the start of the run.
    pub start: f64,
    /// Its totals.
    #[serde(flatten)]
    pub totals: Totals,
}

/// Part of a step of the time series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotPart {
    /// Arrivals by what became of them.
    #[serde(flatten)]
    pub counts: Counts,
    /// As in [`Totals`].
    pub service: Percentiles,
    /// As in [`Totals`].
    pub perceived: Percentiles,
}

impl SlotPart {
    fn of(part: &Part) -> Self {
        let (service, perceived) = (part.service.percentiles(), part.perceived.percentiles());
        Self { counts: part.counts, service, perceived }
    }
}

/// One step of the time series of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotReport {
    /// Seconds since the start of the run.
    pub start: f64,
    /// What was to start in this slot, and what became of it later.
    pub started: SlotPart,
    /// What ended in this slot, whenever it started: throughput over time.
    pub ended: SlotPart,
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Its name.
    pub name: String,
    /// The whole run.
    pub total: Totals,
    /// The plan's phases.
    pub phases: Vec<PhaseReport>,
    /// The time series, without gaps from the start.
    pub slots: Vec<SlotReport>,
    /// The same by kind of request (`small`, `large`, `dynamic`), where requests are drawn.
    #[serde(default)]
    pub kinds: Vec<StreamReport>,
}

impl StreamReport {
    /// The phase of a name.
    #[must_use]
    pub fn phase(&self, name: &str) -> Option<&PhaseReport> {
        self.phases.iter().find(|p| p.name == name)
    }

    /// What became of the requests of a kind.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<&Self> {
        self.kinds.iter().find(|kind| kind.name == name)
    }
}

/// A scripted event that took place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventDone {
    /// Its name.
    pub name: String,
    /// When it was to happen, in seconds since the start of the run.
    pub planned: f64,
    /// When it began.
    pub at: f64,
    /// How long it took, in seconds.
    pub took: f64,
    /// Why it failed; `None` when it did not.
    pub error: Option<String>,
}

/// A whole load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// When the run started, on the machine's monotonic clock: to align other records.
    pub started: Nanos,
    /// How many processes made the load.
    pub shards: u32,
    /// How late arrivals started after their intended time.
    pub lag: Percentiles,
    /// CPU time of all load processes in each second of the run: near 1 s on their one CPU the
    /// generator is the bottleneck.
    #[serde(default)]
    pub cpu: Vec<Nanos>,
    /// Why the run must not be judged; empty when it may.
    pub void: Vec<String>,
    /// The streams, in the order of the plan.
    pub streams: Vec<StreamReport>,
    /// Scripted events.
    pub events: Vec<EventDone>,
}

impl LoadReport {
    /// The stream of a name.
    #[must_use]
    pub fn stream(&self, name: &str) -> Option<&StreamReport> {
        self.streams.iter().find(|s| s.name == name)
    }

    pub(crate) fn of(plan: &LoadPlan, started: Nanos, results: &[ShardResult]) -> Self {
        let mut lag = Hist::fine();
        let empty = |s: &super::Stream| StreamTally::new(plan, s.mix.is_some());
        let mut sums: Vec<StreamTally> = plan.streams.iter().map(empty).collect();
        for result in results {
            lag.add(&result.lag);
            sums.iter_mut().zip(&result.streams).for_each(|(sum, part)| sum.add(part));
        }
        let streams: Vec<_> = plan
            .streams
            .iter()
            .zip(&sums)
            .map(|(spec, sum)| stream_report(plan, &spec.name, sum))
            .collect();
        let mut void = reasons_void(plan, &lag, &streams);
        void.extend(
            results.iter().find_map(|r| r.error.as_ref().map(|e| format!("not tried: {e}"))),
        );
        let shards = results.len() as u32;
        let (lag, cpu) = (lag.percentiles(), cpu_sum(results));
        Self { started, shards, lag, cpu, void, streams, events: Vec::new() }
    }

    /// That it may be judged, and everything that was scripted was done.
    ///
    /// # Errors
    /// What keeps it from that.
    pub fn sound(&self) -> Result<(), String> {
        let failed = self.events.iter().filter_map(|event| {
            let error = event.error.as_ref()?;
            Some(format!("{} at {}: {error}", event.name, event.at))
        });
        let all: Vec<String> = self.void.iter().cloned().chain(failed).collect();
        if all.is_empty() { Ok(()) } else { Err(all.join("; ")) }
    }

    /// The largest share of one CPU that the generator took in a second.
    #[must_use]
    pub fn cpu_peak(&self) -> f64 {
        self.cpu.iter().map(|used| used.as_secs_f64()).fold(0.0, f64::max)
    }
}

/// Second by second over all processes.
fn cpu_sum(results: &[ShardResult]) -> Vec<Nanos> {
    let seconds = results.iter().map(|r| r.cpu.len()).max().unwrap_or(0);
    let at = |second: usize| {
        results.iter().filter_map(|r| r.cpu.get(second)).fold(Nanos::ZERO, |sum, cpu| sum + *cpu)
    };
    (0..seconds).map(at).collect()
}

fn stream_report(plan: &LoadPlan, name: &str, sum: &StreamTally) -> StreamReport {
    let phase = |(phase, tally): (&super::Phase, &Tally)| PhaseReport {
        name: phase.name.clone(),
        start: phase.start.as_secs_f64(),
        totals: Totals::of(tally, phase.end - phase.start),
    };
    let slot = |(index, slot): (usize, &super::tally::Slot)| SlotReport {
        start: plan.slot.as_secs_f64() * index as f64,
        started: SlotPart::of(&slot.started),
        ended: SlotPart::of(&slot.ended),
    };
    StreamReport {
        name: name.to_owned(),
        total: sum.phases.last().map(|t| Totals::of(t, plan.duration())).unwrap_or_default(),
        phases: plan.phases.iter().zip(&sum.phases).map(phase).collect(),
        slots: sum.slots.iter().enumerate().map(slot).collect(),
        kinds: KINDS
            .iter()
            .zip(&sum.kinds)
            .map(|((_, name), kind)| stream_report(plan, name, kind))
            .collect(),
    }
}

fn reasons_void(plan: &LoadPlan, lag: &Hist, streams: &[StreamReport]) -> Vec<String> {
    let mut void = Vec::new();
    let late = lag.quantile(0.99);
    if late > plan.lag_bound {
        void.push(format!("arrivals started late: p99 {late}, bound {}", plan.lag_bound));
    }
    for stream in streams.iter().filter(|s| s.total.counts.errors > 0) {
        let errors = stream.total.counts.errors;
        void.push(format!("stream {}: {errors} arrivals could not be tried", stream.name));
    }
    void
}

/// What happened in the last second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Seconds since the start of the run, a whole number.
    pub second: u64,
    /// The streams, in the order of the plan.
    pub streams: Vec<StreamProgress>,
}

/// One stream in the last second, by end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamProgress {
    /// Its name.
    pub name: String,
    /// Arrivals that started.
    pub started: u64,
    /// What ended.
    pub counts: Counts,
    /// Requests under way.
    pub in_flight: u64,
    /// Times of the answers that ended (see [`Totals`]).
    pub service: Hist,
    /// Times of the answers that ended (see [`Totals`]).
    pub perceived: Hist,
}

impl StreamProgress {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            started: 0,
            counts: Counts::NONE,
            in_flight: 0,
            service: Hist::coarse(),
            perceived: Hist::coarse(),
        }
    }

    pub(crate) fn done(&mut self, done: &Done, objective: Nanos) {
        self.counts.add(&done.counts(objective));
        if done.outcome == Outcome::Answer(200) {
            self.service.record(done.service());
            self.perceived.record(done.ended - done.intended);
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.counts.add(&other.counts);
        self.in_flight += other.in_flight;
        self.service.add(&other.service);
        self.perceived.add(&other.perceived);
    }
}
