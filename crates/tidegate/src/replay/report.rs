// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result as data: what `-o json` prints and docs/replay.md describes. A change that is more
//! than a new field raises [`SCHEMA`].

use serde::Serialize;
use tidegate_model::totals::Histogram;
use tidegate_sim::whatif::bins::Bin;
use tidegate_sim::whatif::course::{ClassCount, Course};

/// Name and version of the document.
pub(crate) const SCHEMA: &str = "tidegate-replay/1";

/// The document.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    pub(crate) input: Input,
    pub(crate) service: Service,
    pub(crate) model: Model,
    pub(crate) without: Total,
    pub(crate) with: Total,
    pub(crate) classes: Vec<ClassRow>,
    pub(crate) episodes: Vec<EpisodeRow>,
    pub(crate) episodes_more: u64,
    pub(crate) period_s: f64,
    pub(crate) periods: Vec<PeriodRow>,
    pub(crate) notes: Vec<String>,
}

/// What was read.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Input {
    pub(crate) log: String,
    pub(crate) format: &'static str,
    pub(crate) lines: u64,
    pub(crate) skipped: u64,
    pub(crate) skipped_why: String,
    pub(crate) cut: Option<String>,
    pub(crate) begins_unix_s: Option<f64>,
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
}

/// What was asked: a service of a configuration.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) policy: String,
    pub(crate) action: &'static str,
    pub(crate) controller: String,
    pub(crate) objective_s: f64,
}

/// The modelled server and its clients.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Model {
    pub(crate) workers: usize,
    pub(crate) cpus: u32,
    pub(crate) accept_queue: usize,
    pub(crate) service_time_s: f64,
    pub(crate) shape: &'static str,
    pub(crate) bound: &'static str,
    pub(crate) capacity_per_s: f64,
    pub(crate) clients: String,
    pub(crate) timeout_s: f64,
    pub(crate) scale: f64,
    pub(crate) speed: f64,
    pub(crate) seed: u64,
}

/// What became of all clients.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Total {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    pub(crate) refusals: u64,
    pub(crate) ignored: u64,
    pub(crate) answered: u64,
    pub(crate) good: u64,
    pub(crate) failed: u64,
    pub(crate) p50_s: Option<f64>,
    pub(crate) p99_s: Option<f64>,
}

/// What became of one class.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClassRow {
    pub(crate) name: String,
    pub(crate) priority: u8,
    pub(crate) without: ClassTotal,
    pub(crate) with: ClassTotal,
}

/// One class in one world.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClassTotal {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    pub(crate) answered: u64,
    pub(crate) good: u64,
    pub(crate) failed: u64,
    pub(crate) p50_s: Option<f64>,
    pub(crate) p99_s: Option<f64>,
}

/// A time of refusing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EpisodeRow {
    pub(crate) from_s: f64,
    pub(crate) to_s: f64,
    pub(crate) offered: u64,
    pub(crate) refused: u64,
    pub(crate) refusals: u64,
    pub(crate) why: String,
}

/// One period.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PeriodRow {
    pub(crate) at_s: f64,
    pub(crate) limit_per_s: Option<f64>,
    pub(crate) without: Total,
    pub(crate) with: Total,
}

/// A quantile in seconds; nothing of nothing.
fn quantile(times: &Histogram, share: f64) -> Option<f64> {
    (times.count > 0).then(|| times.quantile(share).as_secs_f64())
}

impl From<&Bin> for Total {
    fn from(bin: &Bin) -> Self {
        Self {
            offered: bin.offered,
            admitted: bin.admitted,
            refused: bin.refused,
            refusals: bin.refusals,
            ignored: bin.ignored,
            answered: bin.answered,
            good: bin.good,
            failed: bin.failed,
            p50_s: quantile(&bin.times, 0.5),
            p99_s: quantile(&bin.times, 0.99),
        }
    }
}

impl From<&ClassCount> for ClassTotal {
    fn from(count: &ClassCount) -> Self {
        Self {
            offered: count.offered,
            admitted: count.admitted,
            refused: count.refused,
            answered: count.answered,
            good: count.good,
            failed: count.failed,
            p50_s: quantile(&count.times, 0.5),
            p99_s: quantile(&count.times, 0.99),
        }
    }
}

/// The episodes of a course.
pub(crate) fn episodes(course: &Course) -> Vec<EpisodeRow> {
    let row = |e: &tidegate_sim::whatif::episodes::Episode| EpisodeRow {
        from_s: e.from.as_secs_f64(),
        to_s: e.to.as_secs_f64(),
        offered: e.offered,
        refused: e.refused,
        refusals: e.refusals,
        why: e.why.clone(),
    };
    course.episodes.all().iter().map(row).collect()
}

/// The periods of both courses, side by side. Where one goes on for longer (or has wider periods,
/// because its last client ended later), both are brought to the wider ones.
pub(crate) fn periods(without: &Course, with: &Course) -> (f64, Vec<PeriodRow>) {
    let width = without.bins.width().max(with.bins.width());
    let (mut left, mut right) = (without.bins.clone(), with.bins.clone());
    left.widen(width);
    right.widen(width);
    let width_s = width.as_secs_f64();
    let empty = Bin::default();
    let count = left.all().len().max(right.all().len());
    let row = |i: usize| {
        let (without, with) =
            (left.all().get(i).unwrap_or(&empty), right.all().get(i).unwrap_or(&empty));
        let at_s = i as f64 * width_s;
        PeriodRow { at_s, limit_per_s: with.limit(), without: without.into(), with: with.into() }
    };
    (width_s, (0..count).map(row).collect())
}
