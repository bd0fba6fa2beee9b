// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One course: every load of a run after the other, with a lower load between, and what each of them gave.

use super::scenario::{Extent, Scenario};
use crate::rivals::Shape;
use crate::survival::measure::{Metric, Normal, Span, of_load, recovery, worst};
use anyhow::{Context, Result};
use std::cell::RefCell;
use tidegate_lab::{Arrive, Group, LoadPlan, LoadReport, Phase, Script, Server};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::{Profile, Segment};

/// Length of the slots of the time series.
pub(super) const SLOT: Nanos = Nanos::from_millis(500);
/// The stream of all clients.
pub(super) const CROWD: &str = "crowd";
/// The onset of a step, in seconds.
const ONSET_S: f64 = 2.0;
/// What the p99 of a recovery is compared with, in seconds: a quarter of the objective.
const NORMAL_P99: f64 = 0.25;
/// Ticks of /proc/stat a second: USER_HZ is part of the kernel's interface.
const TICKS: f64 = 100.0;

/// A load of the course, with what comes after it; seconds since the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) shape: Shape,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) until: f64,
}

impl Piece {
    /// What counts of it, in whole slots.
    fn counted(&self) -> Span {
        let slot = SLOT.as_secs_f64();
        let from = self.from + self.shape.counts_from() * (self.to - self.from);
        Span { from: (from / slot).ceil() * slot, to: self.to }
    }

    fn name(&self) -> String {
        self.shape.to_string()
    }
}

/// The loads of an arm, one after the other.
pub(super) fn pieces(extent: &Extent, shapes: &[Shape]) -> Vec<Piece> {
    let mut at = extent.before_s;
    let place = |shape: &Shape| {
        let (lasts, after) = extent.lasts(*shape);
        let piece = Piece { shape: *shape, from: at, to: at + lasts, until: at + lasts + after };
        at = piece.until;
        piece
    };
    shapes.iter().map(place).collect()
}

/// The plan of a course but for its stream, and its arrivals.
pub(super) fn plan(
    (scenario, extent): (&Scenario, &Extent),
    pieces: &[Piece],
    (capacity, seed): (f64, u64),
) -> (LoadPlan, Arrive) {
    let seconds = Nanos::from_secs_f64;
    let around = scenario.around * capacity;
    let mut segments = vec![Segment::constant(seconds(extent.before_s), around)];
    let mut phases = Vec::new();
    for piece in pieces {
        let (from, to) = match piece.shape {
            Shape::Step(x) => (x, x),
            Shape::Ramp(from, to) => (from, to),
        };
        let lasts = seconds(piece.to - piece.from);
        segments.push(Segment { lasts, from: from * capacity, to: to * capacity });
        segments.push(Segment::constant(seconds(piece.until - piece.to), around));
        let Span { from, to } = piece.counted();
        phases.push(Phase { name: piece.name(), start: seconds(from), end: seconds(to) });
    }
    let timeout = seconds(scenario.timeout_s);
    let plan = LoadPlan { seed, phases, slot: SLOT, timeout, ..LoadPlan::default() };
    (plan, Arrive::poisson(Profile::new(&segments)))
}

/// Whose CPU time is looked at, and which CPU has proxy, gate and load.
pub(super) struct Watched<'a> {
    pub(super) server: &'a Group,
    pub(super) proxy: Option<&'a Group>,
    pub(super) gate: Option<&'a Group>,
    /// The proxy, if it is not our own: it may count what it passed unasked.
    pub(super) edge: Option<&'a Server>,
    pub(super) edge_cpu: usize,
}

/// How far all of it was at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: f64,
    server: f64,
    proxy: f64,
    gate: f64,
    idle: f64,
    /// Requests that the proxy has passed without an answer of the gate; NaN: it asks none, or does not say.
    unasked: f64,
}

impl Watched<'_> {
    fn mark(&self) -> Mark {
        let used = |group: &Group| group.cpu_used().map_or(f64::NAN, Nanos::as_secs_f64);
        Mark {
            at: MonotonicClock.now().as_secs_f64(),
            server: used(self.server),
            proxy: self.proxy.map_or(0.0, used),
            gate: self.gate.map_or(0.0, used),
            idle: idle(&std::fs::read_to_string("/proc/stat").unwrap_or_default(), self.edge_cpu),
            // Last: its answer may take long, and the rest is of this moment.
            unasked: self.unasked().map_or(f64::NAN, |count| count as f64),
        }
    }

    fn unasked(&self) -> Option<u64> {
        self.edge?.unasked().ok()?
    }
}

/// Seconds that a CPU was idle, by the kernel's own count.
fn idle(stat: &str, cpu: usize) -> f64 {
    let name = format!("cpu{cpu} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name));
    // user nice system idle iowait …
    let field = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<f64>().ok());
    field.map_or(f64::NAN, |ticks| ticks / TICKS)
}

/// CPU time by load, seen at the beginning and the end of each.
#[derive(Default)]
pub(super) struct Marks {
    marks: RefCell<Vec<Mark>>,
}

impl Marks {
    /// The looks, as events of a run.
    pub(super) fn script<'a>(&'a self, pieces: &[Piece], watched: &'a Watched<'_>) -> Script<'a> {
        let ends = pieces.iter().flat_map(|piece| {
            let Span { from, to } = piece.counted();
            [from, to]
        });
        ends.fold(Script::new(), |script, at| {
            script.at(Nanos::from_secs_f64(at), "mark", move || {
                self.marks.borrow_mut().push(watched.mark());
                Ok::<(), std::convert::Infallible>(())
            })
        })
    }

    /// The shares of the load number `index`, in which so many requests were answered a second.
    fn shares(&self, index: usize, answered: f64) -> Vec<Metric> {
        let marks = self.marks.borrow();
        let (Some(from), Some(to)) = (marks.get(2 * index), marks.get(2 * index + 1)) else {
            return Vec::new();
        };
        let lasted = (to.at - from.at).max(f64::MIN_POSITIVE);
        let share = |of: fn(&Mark) -> f64| (of(to) - of(from)) / lasted;
        let unasked = Some(share(|m| m.unasked) / answered).filter(|share| share.is_finite());
        let mut shares = vec![
            ("server_cpu", "share", share(|m| m.server)),
            ("proxy_cpu", "share", share(|m| m.proxy)),
            ("gate_cpu", "share", share(|m| m.gate)),
            ("edge_idle", "share", share(|m| m.idle).min(1.0)),
        ];
        shares.extend(unasked.map(|value| ("unasked", "share", value)));
        shares
    }
}

/// What one load of a course gave.
#[derive(Clone, Debug)]
pub(super) struct Gave {
    pub(super) shape: Shape,
    pub(super) metrics: Vec<Metric>,
    /// Seconds to recover after it, where that was waited for.
    pub(super) recovery: Option<f64>,
    /// Requests, and those that were refused.
    pub(super) requests: (u64, u64),
}

/// Reads a report.
///
/// # Errors
/// When it lacks a load.
pub(super) fn read(report: &LoadReport, pieces: &[Piece], marks: &Marks) -> Result<Vec<Gave>> {
    let stream = report.stream(CROWD).context("the report lacks the crowd")?;
    let each = |(index, piece): (usize, &Piece)| {
        let name = piece.name();
        let phase = stream.phase(&name).with_context(|| format!("the report lacks {name}"))?;
        let (totals, span) = (&phase.totals, piece.counted());
        let mut metrics = of_load(stream, totals, span);
        let onset = Span { to: span.to.min(span.from + ONSET_S), ..span };
        metrics.push(("p99_onset", "s", worst(stream, onset)));
        metrics.push(("p99_settled", "s", worst(stream, Span { from: onset.to, ..span })));
        let unsent = totals.counts.no_handshake as f64 / totals.counts.offered.max(1) as f64;
        metrics.push(("unsent", "share", unsent));
        metrics.push(("load_cpu", "share", load_cpu(report, span)));
        let answered = metrics.iter().find(|m| m.0 == "answered").map_or(f64::NAN, |m| m.2);
        metrics.extend(marks.shares(index, answered));
        let after = Span { from: piece.to, to: piece.until };
        let waited = piece.until - piece.to > ONSET_S;
        let recovery = waited.then(|| recovery(stream, after, NORMAL_P99, Normal::All));
        let requests = (totals.counts.offered, totals.counts.refused);
        Ok(Gave { shape: piece.shape, metrics, recovery, requests })
    };
    pieces.iter().enumerate().map(each).collect()
}

/// The generator's mean share of a CPU in the whole seconds of a span.
fn load_cpu(report: &LoadReport, span: Span) -> f64 {
    let seconds = span.from.ceil() as usize..span.to.floor() as usize;
    let used = report.cpu.get(seconds).unwrap_or_default();
    used.iter().map(|cpu| cpu.as_secs_f64()).sum::<f64>() / used.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn scenario() -> Scenario {
        let experiment = catalog::find("product/gateways").unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    /// Loads follow each other with the lower load between, and nothing counts twice.
    #[test]
    fn a_course_goes_through_every_load_and_back() {
        let scenario = scenario();
        let shapes = [Shape::Step(0.9), Shape::Step(2.0), Shape::Ramp(0.5, 5.5)];
        let extent = Extent { ramp_s: 10.0, ..scenario.full.clone() };
        let pieces = pieces(&extent, &shapes);
        let ends: Vec<(f64, f64, f64)> = pieces.iter().map(|p| (p.from, p.to, p.until)).collect();
        assert_eq!(ends, [(3.0, 11.0, 12.0), (12.0, 17.0, 21.0), (21.0, 31.0, 35.0)]);
        let (plan, arrive) = plan((&scenario, &extent), &pieces, (1_000.0, 1));
        let spans: Vec<(f64, f64)> =
            plan.phases.iter().map(|p| (p.start.as_secs_f64(), p.end.as_secs_f64())).collect();
        // The ramp passes the capacity after a tenth of it.
        assert_eq!(spans, [(3.0, 11.0), (12.0, 17.0), (22.0, 31.0)]);
        let expected = match arrive {
            Arrive::Open { profile, .. } => profile.expected(),
            _ => 0.0,
        };
        let around = 500.0 * (3.0 + 1.0 + 4.0 + 4.0);
        assert!((expected - (around + 7_200.0 + 10_000.0 + 30_000.0)).abs() < 1.0, "{expected}");
    }

    #[test]
    fn idle_time_is_that_of_the_cpu_that_is_asked_for() {
        let stat = "cpu  9 9 9 9 9\ncpu0 1 2 3 400 5\ncpu1 1 2 3 550 5\ncpu10 1 2 3 7 5\n";
        assert!((idle(stat, 1) - 5.5).abs() < 1e-9);
        assert!((idle(stat, 0) - 4.0).abs() < 1e-9);
        assert!(idle(stat, 2).is_nan() && idle("", 0).is_nan());
    }

    /// Each load has the difference of its own two looks.
    #[test]
    fn shares_are_of_one_load() {
        let marks = Marks::default();
        let mark = |at: f64, server: f64, idle: f64, unasked: f64| Mark {
            at,
            server,
            idle,
            unasked,
            ..Mark::default()
        };
        marks.marks.borrow_mut().extend([
            mark(1.0, 0.0, 0.0, 10.0),
            mark(5.0, 4.0, 1.0, 810.0),
            mark(6.0, 4.5, 2.0, f64::NAN),
            mark(8.0, 5.5, 4.0, 9.0),
        ]);
        let find = |index: usize, name: &str| {
            marks.shares(index, 800.0).iter().find(|m| m.0 == name).map(|m| m.2)
        };
        let share = |index, name| find(index, name).unwrap();
        // 200 of 800 a second passed unasked; where the proxy did not say, nothing is known.
        assert!((share(0, "unasked") - 0.25).abs() < 1e-9);
        assert!(find(1, "unasked").is_none());
        assert!((share(0, "server_cpu") - 1.0).abs() < 1e-9);
        assert!((share(0, "edge_idle") - 0.25).abs() < 1e-9);
        assert!((share(1, "server_cpu") - 0.5).abs() < 1e-9);
        assert!(share(1, "gate_cpu").abs() < 1e-9);
        assert!(marks.shares(2, 800.0).is_empty());
    }
}
