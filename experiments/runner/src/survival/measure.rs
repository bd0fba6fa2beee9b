// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a load's report to the experiment's metrics.

use crate::results::Row;
use tidegate_lab::{SlotReport, StreamReport, Totals};

/// So many normal slots in a row are the recovery's end.
const NORMAL_SLOTS: usize = 4;

/// Name and unit of a metric, with its value.
pub(crate) type Metric = (&'static str, &'static str, f64);

/// Identifies the rows of one run.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) experiment: String,
    pub(crate) variant: String,
    pub(crate) x_name: &'static str,
    pub(crate) x: f64,
}

impl Point {
    pub(crate) fn row(&self, (metric, unit, value): Metric) -> Row {
        Row {
            experiment: self.experiment.clone(),
            world: "lab".into(),
            variant: self.variant.clone(),
            x_name: self.x_name.into(),
            x: self.x,
            metric: metric.into(),
            unit: unit.into(),
            value,
            ci95: None,
            runs: 1,
        }
    }
}

/// A span of the run, in seconds since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

impl Span {
    fn slots(self, stream: &StreamReport) -> impl Iterator<Item = &SlotReport> {
        let inside =
            move |slot: &&SlotReport| slot.start >= self.from - 1e-6 && slot.start < self.to - 1e-6;
        stream.slots.iter().filter(inside)
    }

    fn seconds(self) -> f64 {
        self.to - self.from
    }
}

/// The metrics of one load: throughput by what ended in it, times and shares by what started in it.
pub(crate) fn of_load(stream: &StreamReport, totals: &Totals, span: Span) -> Vec<Metric> {
    let rate = |count: fn(&SlotReport) -> u64| {
        span.slots(stream).map(count).sum::<u64>() as f64 / span.seconds()
    };
    vec![
        ("goodput", "1/s", rate(|slot| slot.ended.counts.good)),
        ("answered", "1/s", rate(|slot| slot.ended.counts.answered)),
        ("offered", "1/s", totals.counts.offered as f64 / span.seconds()),
        ("p50", "s", totals.service.p50),
        ("p99", "s", totals.service.p99),
        ("p99_perceived", "s", totals.perceived.p99),
        ("refused", "share", totals.refused_share()),
        ("failed", "share", totals.failed_share()),
    ]
}

/// What has to be normal for a recovery to be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Normal {
    /// The times of those who were admitted.
    Times,
    /// These, and nobody is refused or fails.
    All,
}

/// Seconds from the beginning of `after` to the first of [`NORMAL_SLOTS`] slots in a row in which
/// somebody who came was answered, the p99 of those is not above `normal_p99` (and nobody who came
/// is refused, where that belongs to it); the whole span if there is no such row.
pub(crate) fn recovery(stream: &StreamReport, after: Span, normal_p99: f64, of: Normal) -> f64 {
    let slots: Vec<&SlotReport> = after.slots(stream).collect();
    let normal = |slot: &&SlotReport| {
        let counts = &slot.started.counts;
        let served = counts.refused == 0 && counts.failed == 0;
        let normal = counts.answered > 0 && slot.started.service.p99 <= normal_p99;
        normal && (served || of == Normal::Times)
    };
    let at = slots.windows(NORMAL_SLOTS).position(|row| row.iter().all(normal));
    at.map_or(after.seconds(), |index| slots[index].start - after.from)
}

/// Both recoveries.
pub(crate) fn recoveries(stream: &StreamReport, after: Span, normal_p99: f64) -> [Metric; 2] {
    [("recovery", Normal::All), ("recovery_p99", Normal::Times)]
        .map(|(name, of)| (name, "s", recovery(stream, after, normal_p99, of)))
}

/// Seconds from the beginning of `after` to the end of the last slot in which somebody's attempts
/// ended who had been refused, newcomer or of the crowd before: with `reject` the refusal itself,
/// with `drop` the answer or the giving up that came after it.
pub(crate) fn refusals_end(stream: &StreamReport, after: Span) -> Metric {
    let slots: Vec<&SlotReport> = after.slots(stream).collect();
    let last = slots.iter().rposition(|slot| slot.ended.counts.refused > 0);
    let end =
        last.map(|at| slots.get(at + 1).map_or(after.seconds(), |next| next.start - after.from));
    ("refusals_end", "s", end.unwrap_or(0.0))
}

/// The largest p99 of those who came in one slot of the span.
pub(crate) fn worst(stream: &StreamReport, span: Span) -> f64 {
    span.slots(stream).map(|slot| slot.started.service.p99).fold(0.0, f64::max)
}

/// The course of one run: goodput, p99 of what ended and refusals, a value a second.
pub(crate) fn course(stream: &StreamReport, point: &Point, until: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut second = 0.0;
    while second < until {
        let span = Span { from: second, to: second + 1.0 };
        let sum = |count: fn(&SlotReport) -> u64| span.slots(stream).map(count).sum::<u64>() as f64;
        let p99 = span.slots(stream).map(|slot| slot.ended.service.p99).fold(0.0, f64::max);
        let point = Point { x_name: "time_s", x: second, ..point.clone() };
        rows.push(point.row(("goodput", "1/s", sum(|slot| slot.ended.counts.good))));
        rows.push(point.row(("offered", "1/s", sum(|slot| slot.started.counts.offered))));
        rows.push(point.row(("refused", "1/s", sum(|slot| slot.started.counts.refused))));
        rows.push(point.row(("p99", "s", p99)));
        second += 1.0;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_lab::{Counts, Percentiles, SlotPart};

    fn slot(start: f64, refused: u64, p99: f64) -> SlotReport {
        let part = SlotPart {
            counts: Counts { offered: 10, good: 10, answered: 10, refused, ..Counts::NONE },
            service: Percentiles { p99, ..Percentiles::default() },
            perceived: Percentiles::default(),
        };
        SlotReport { start, started: part, ended: part }
    }

    fn stream(slots: Vec<SlotReport>) -> StreamReport {
        let (name, total) = ("crowd".into(), Totals::default());
        StreamReport { name, total, phases: vec![], slots, kinds: vec![] }
    }

    /// The recovery ends where four normal slots begin; one slow slot among normal ones starts the
    /// count again; no such row is the whole span. Who is only refused delays the one, not the other.
    #[test]
    fn recovery_needs_a_row_of_normal_slots() {
        let after = Span { from: 10.0, to: 15.0 };
        let times = |slow: &[usize], refused: &[usize]| {
            let slots = (0..30).map(|i| {
                let p99 = if slow.contains(&i) { 0.5 } else { 0.01 };
                slot(i as f64 / 2.0, u64::from(refused.contains(&i)), p99)
            });
            let stream = stream(slots.collect());
            recoveries(&stream, after, 0.1).map(|(_, _, seconds)| seconds)
        };
        let close = |a: [f64; 2], b: [f64; 2]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(close(times(&[], &[]), [0.0, 0.0]));
        assert!(close(times(&[20], &[21]), [1.0, 0.5]));
        assert!(close(times(&[20, 23], &[]), [2.0, 2.0]));
        let all: Vec<usize> = (20..30).collect();
        assert!(close(times(&all, &[]), [5.0, 5.0]));
        assert!(close(times(&[], &all), [5.0, 0.0]), "who is admitted is served well");
    }

    /// Whoever serves nobody is not normal.
    #[test]
    fn a_slot_without_answers_is_not_normal() {
        let after = Span { from: 10.0, to: 15.0 };
        let mut stream = stream((0..30).map(|i| slot(f64::from(i) / 2.0, 0, 0.0)).collect());
        stream.slots[20].started.counts.answered = 0;
        let seconds = recoveries(&stream, after, 0.1).map(|(_, _, seconds)| seconds);
        assert!(seconds.iter().all(|s| (s - 0.5).abs() < 1e-9), "{seconds:?}");
    }

    /// Refusals end with the slot in which the last attempts of a refused client ended, whenever it
    /// had come; without one they have ended.
    #[test]
    fn refusals_end_with_the_last_of_the_crowd() {
        let after = Span { from: 10.0, to: 15.0 };
        let mut stream = stream((0..30).map(|i| slot(f64::from(i) / 2.0, 0, 0.01)).collect());
        assert!(refusals_end(&stream, after).2.abs() < 1e-9);
        stream.slots[19].ended.counts.refused = 3;
        assert!(refusals_end(&stream, after).2.abs() < 1e-9, "before the fall");
        for (slot, end) in [(20, 0.5), (24, 2.5), (29, 5.0)] {
            stream.slots[slot].ended.counts.refused = 1;
            assert!((refusals_end(&stream, after).2 - end).abs() < 1e-9, "{slot}");
        }
    }

    /// Throughput counts what ended inside of the span, per second of it.
    #[test]
    fn throughput_is_of_what_ended_in_the_span() {
        let stream = stream((0..10).map(|i| slot(f64::from(i) / 2.0, 0, 0.01)).collect());
        let metrics = of_load(&stream, &Totals::default(), Span { from: 1.0, to: 3.0 });
        let goodput = metrics.iter().find(|m| m.0 == "goodput").unwrap().2;
        assert!((goodput - 20.0).abs() < 1e-9);
    }
}
