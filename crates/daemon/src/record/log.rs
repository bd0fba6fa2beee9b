// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Begin and end of shedding in the log: the sentence for people, and its figures as fields.
//!
//! The fields begin with `shed.`: a log for people leaves them out, since the sentence says them; one in JSON
//! has them, so that a log store can choose by service, cause or figure. Times are in seconds.

use tidegate_model::Mode;
use tidegate_model::record::{Began, Ended, What};
use tidegate_units::Nanos;

/// Writes the line of a begin or an end.
pub(super) fn tell(what: &What) {
    match what {
        What::SheddingBegan(it) => began(it, &what.sentence()),
        What::SheddingEnded(it) => ended(it, &what.sentence()),
        _ => {}
    }
}

fn began(began: &Began, sentence: &str) {
    let (episode, figures) = (&began.episode, &began.figures);
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                shed.event = "shedding-began",
                shed.service = episode.service,
                shed.bucket = episode.bucket,
                shed.mode = episode.mode.name(),
                shed.cause = episode.cause.name(),
                shed.offered_per_second = figures.offered,
                shed.refused_per_second = figures.refused,
                shed.limit_per_second = figures.limit,
                shed.in_flight = figures.in_flight,
                shed.accept_queue = figures.accept_queue,
                shed.cpu = figures.cpu,
                shed.p50_s = figures.p50.map(Nanos::as_secs_f64),
                shed.p99_s = figures.p99.map(Nanos::as_secs_f64),
                "{sentence}"
            )
        };
    }
    match episode.mode {
        Mode::Enforce => line!(warn),
        _ => line!(info),
    }
}

fn ended(ended: &Ended, sentence: &str) {
    let (episode, outcome) = (&ended.episode, &ended.outcome);
    // Nothing is known of what a process counted that was killed.
    let known = |count: u64| (!ended.killed).then_some(count);
    tracing::info!(
        shed.event = "shedding-ended",
        shed.service = episode.service,
        shed.bucket = episode.bucket,
        shed.mode = episode.mode.name(),
        shed.cause = episode.cause.name(),
        shed.lasted_s = ended.lasted.as_secs_f64(),
        shed.cut = ended.cut,
        shed.removed = ended.removed,
        shed.killed = ended.killed,
        shed.offered = known(outcome.offered),
        shed.admitted = known(outcome.admitted),
        shed.refused = known(outcome.refused),
        shed.refused_by = outcome.reasons(),
        shed.completed = known(outcome.completed),
        shed.p50_s = outcome.p50.map(Nanos::as_secs_f64),
        shed.p99_s = outcome.p99.map(Nanos::as_secs_f64),
        "{sentence}"
    );
}
