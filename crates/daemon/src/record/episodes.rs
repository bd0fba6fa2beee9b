// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From ticks to events: what was measured when shedding began, and what came of it at its end.

use super::meter::Episode;
use super::{Subject, log};
use std::collections::BTreeMap;
use tidegate_model::Mode;
use tidegate_model::limits::{BucketLimits, ServiceLimits, Why};
use tidegate_model::record::{self, Began, Ended, Event, Figures, Moment, Outcome, What};
use tidegate_model::signals::BucketSignals;
use tidegate_model::snapshot::{ReasonCount, VerdictCount};
use tidegate_model::totals::{BucketTotals, Histogram, ServiceTotals};
use tidegate_sense::Sensed;

/// Verdicts that are no refusal.
const ADMIT: &str = "admit";

/// What a tick shows of one subject.
pub(crate) struct Accounts<'a> {
    figures: Figures,
    totals: Option<&'a ServiceTotals>,
    /// The place of the bucket in the configuration in force; `None`: the service itself.
    bucket: Option<usize>,
    pub(crate) verdicts: &'a [VerdictCount],
}

impl<'a> Accounts<'a> {
    pub(crate) fn of_service(
        sensed: &'a Sensed,
        limits: &ServiceLimits,
        verdicts: &'a [VerdictCount],
    ) -> Self {
        let signals = &sensed.signals;
        let times = signals.time.first_byte.map(|r| r.value).filter(|times| times.count > 0);
        let figures = Figures {
            limit: limits.rate.map(|rate| rate.get()),
            in_flight: signals.time.waiting.map(|r| r.value),
            accept_queue: signals.queue.accept.map(|r| r.value.length),
            cpu: signals.resource.cpu.map(|r| r.value.get()),
            p50: times.map(|times| times.p50),
            p99: times.map(|times| times.p99),
            ..Figures::default()
        };
        Self { figures, totals: sensed.totals.as_ref(), bucket: None, verdicts }
    }

    pub(crate) fn of_bucket(
        (sensed, signals): (&'a Sensed, &BucketSignals),
        limits: &BucketLimits,
        place: usize,
    ) -> Self {
        let times = signals.first_byte.map(|r| r.value).filter(|times| times.count > 0);
        let figures = Figures {
            limit: limits.rate.map(|rate| rate.get()),
            in_flight: signals.in_flight.map(|r| r.value),
            cpu: sensed.signals.resource.cpu.map(|r| r.value.get()),
            p50: times.map(|times| times.p50),
            p99: times.map(|times| times.p99),
            ..Figures::default()
        };
        Self { figures, totals: sensed.totals.as_ref(), bucket: Some(place), verdicts: &[] }
    }

    /// What the totals say of the subject.
    fn count(&self, totals: &ServiceTotals) -> Option<Count> {
        match self.bucket {
            None => Some(Count::Service(Box::new(totals.clone()))),
            Some(place) => Some(Count::Bucket(Box::new(totals.buckets.get(place)?.clone()))),
        }
    }

    /// The event of a begin; `lately`: what came and was refused in about a second.
    pub(crate) fn began(
        &self,
        subject: &Subject,
        episode: &Episode,
        (why, (offered, refused)): (&Why, (f64, f64)),
    ) -> What {
        let began = Began {
            episode: named(subject, episode),
            families: why.alarmed.clone(),
            why: why.text.clone(),
            figures: Figures { offered, refused, ..self.figures },
        };
        let what = What::SheddingBegan(began);
        log::tell(&what);
        what
    }
}

fn named((service, bucket): &Subject, episode: &Episode) -> record::Episode {
    let mode = if episode.shadow { Mode::Shadow } else { Mode::Enforce };
    let (service, bucket) = (service.clone(), bucket.clone());
    record::Episode { service, bucket, mode, cause: episode.cause }
}

/// Ends of the episodes that are open at the end of a history: of a process that was killed.
pub(crate) fn interrupted(events: &[Event], now: &Moment) -> Vec<What> {
    let mut open = BTreeMap::new();
    for event in events {
        match &event.what {
            What::SheddingBegan(began) => {
                open.insert(began.episode.subject(), (&event.at, &began.episode));
            }
            What::SheddingEnded(ended) => {
                open.remove(&ended.episode.subject());
            }
            _ => {}
        }
    }
    let end = |(at, episode): (&Moment, &record::Episode)| {
        let same_boot = at.boot == now.boot;
        let lasted = if same_boot { now.up.since(at.up) } else { now.unix.since(at.unix) };
        let (episode, outcome) = (episode.clone(), Outcome::default());
        let (cut, removed, killed) = (true, false, true);
        let what = What::SheddingEnded(Ended { episode, lasted, cut, removed, killed, outcome });
        log::tell(&what);
        what
    };
    open.into_values().map(end).collect()
}

/// What ends an episode before the overload is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The process ends, or is succeeded.
    Process,
    /// A reload removed the service or the bucket.
    Removed,
}

/// What was counted of one subject. Of a bucket nothing else: a reload may give it another place.
#[derive(Clone, Debug)]
enum Count {
    Service(Box<ServiceTotals>),
    Bucket(Box<BucketTotals>),
}

/// What was counted when an episode began, and in the last tick in which it was on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Baseline {
    before: Option<Count>,
    last: Option<Count>,
    verdicts: Vec<VerdictCount>,
    last_verdicts: Vec<VerdictCount>,
}

impl Baseline {
    /// `before`: the totals of the tick before, in which nothing was shed yet, in the order of the
    /// configuration in force.
    pub(crate) fn new(before: Option<&ServiceTotals>, accounts: &Accounts<'_>) -> Self {
        Self {
            before: before.or(accounts.totals).and_then(|totals| accounts.count(totals)),
            verdicts: accounts.verdicts.to_vec(),
            ..Self::default()
        }
    }

    /// The episode is on.
    pub(crate) fn keep(&mut self, accounts: &Accounts<'_>) {
        if let Some(count) = accounts.totals.and_then(|totals| accounts.count(totals)) {
            self.last = Some(count);
        }
        self.last_verdicts = accounts.verdicts.to_vec();
    }

    /// The event of an end. `verdicts`: as of now, for they are read more rarely than the totals.
    pub(crate) fn ended(
        mut self,
        subject: &Subject,
        episode: &Episode,
        verdicts: Option<&[VerdictCount]>,
    ) -> What {
        if let Some(verdicts) = verdicts {
            self.last_verdicts = verdicts.to_vec();
        }
        self.end(subject, episode, None)
    }

    /// The event of an episode that is cut off.
    pub(crate) fn cut(self, subject: &Subject, episode: &Episode, by: Cut) -> What {
        self.end(subject, episode, Some(by))
    }

    fn end(self, subject: &Subject, episode: &Episode, by: Option<Cut>) -> What {
        let lasted = episode.last.since(episode.began);
        let (episode, outcome) = (named(subject, episode), self.outcome());
        let (cut, removed) = (by.is_some(), by == Some(Cut::Removed));
        let ended = Ended { episode, lasted, cut, removed, killed: false, outcome };
        let what = What::SheddingEnded(ended);
        log::tell(&what);
        what
    }

    fn outcome(&self) -> Outcome {
        match (&self.before, &self.last) {
            (Some(Count::Service(before)), Some(Count::Service(last))) => {
                let refused_by = refused_by(&self.last_verdicts, &self.verdicts);
                Outcome { refused_by, ..of_service(last, before) }
            }
            (Some(Count::Bucket(before)), Some(Count::Bucket(last))) => of_bucket(last, before),
            _ => Outcome::default(),
        }
    }
}

fn of_service(last: &ServiceTotals, before: &ServiceTotals) -> Outcome {
    let times = last.first_byte.since(&before.first_byte);
    Outcome {
        offered: last.offered.saturating_sub(before.offered),
        admitted: last.admitted.saturating_sub(before.admitted),
        refused: last.refused.saturating_sub(before.refused),
        refused_by: Vec::new(),
        completed: times.count + last.unknown.saturating_sub(before.unknown),
        p50: quantile(&times, 0.5),
        p99: quantile(&times, 0.99),
    }
}

fn of_bucket(last: &BucketTotals, before: &BucketTotals) -> Outcome {
    let grown = |last: &[u64], before: &[u64]| -> u64 {
        last.iter().zip(before).map(|(last, before)| last.saturating_sub(*before)).sum()
    };
    let times = last.first_byte.since(&before.first_byte);
    Outcome {
        offered: grown(&last.offered, &before.offered),
        admitted: last.begun.saturating_sub(before.begun),
        refused: grown(&last.refused, &before.refused),
        refused_by: Vec::new(),
        completed: last.ended.saturating_sub(before.ended),
        p50: quantile(&times, 0.5),
        p99: quantile(&times, 0.99),
    }
}

fn quantile(times: &Histogram, share: f64) -> Option<tidegate_units::Nanos> {
    (times.count > 0).then(|| times.quantile(share))
}

/// Refusals by reason, the most frequent first.
fn refused_by(last: &[VerdictCount], before: &[VerdictCount]) -> Vec<ReasonCount> {
    let mut by: Vec<ReasonCount> = Vec::new();
    for now in last.iter().filter(|count| count.verdict != ADMIT) {
        let same = |then: &&VerdictCount| {
            (&then.class, &then.verdict, &then.reason, then.shadow)
                == (&now.class, &now.verdict, &now.reason, now.shadow)
        };
        let then = before.iter().find(same).map_or(0, |then| then.count);
        let more = now.count.saturating_sub(then);
        match by.iter_mut().find(|by| by.reason == now.reason) {
            Some(known) => known.count += more,
            None => by.push(ReasonCount { reason: now.reason.clone(), count: more }),
        }
    }
    by.retain(|by| by.count > 0);
    by.sort_by_key(|by| std::cmp::Reverse(by.count));
    by
}
