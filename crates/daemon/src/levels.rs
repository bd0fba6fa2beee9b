// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The level of a service as people see it: the work that waits, and what its thresholds make of it.

use crate::plane::{Counters, PlaneError, Rungs};
use tidegate_bpf::policy::Level;
use tidegate_config::{LevelSignal, ServiceConfig};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_model::snapshot::{LevelState, RequestsState};
use tidegate_params::{bucket_level, level};

/// That of the service's policy; `None`: it has no thresholds.
pub(crate) fn of_service(
    counters: &dyn Counters,
    (index, config): (usize, &ServiceConfig),
    (signals, limits): (&Signals, &ServiceLimits),
) -> Option<LevelState> {
    let signal = config.policy.level_signal()?;
    let queue = signals.queue.accept.map_or(0, |queue| queue.value.length);
    Some(state(signal, level(config, limits), (queue, signals), counters.rungs(index)))
}

/// Those of its request buckets.
pub(crate) fn of_buckets(
    counters: &dyn Counters,
    (index, config): (usize, &ServiceConfig),
    (signals, limits): (&Signals, &ServiceLimits),
    requests: &mut RequestsState,
) {
    let planned = config.requests.iter().flat_map(|requests| &requests.buckets);
    for (at, (bucket, planned)) in requests.buckets.iter_mut().zip(planned).enumerate() {
        let signal = planned.policy.as_ref().and_then(|policy| policy.level_signal());
        let of = |signal| {
            let level = bucket_level(planned, limits);
            // requests wait in no accept queue
            state(signal, level, (0, signals), counters.bucket_rungs(index, at))
        };
        bucket.level = signal.map(of);
    }
}

fn state(
    signal: LevelSignal,
    level: Level,
    (queue, signals): (u64, &Signals),
    rungs: Result<Option<Rungs>, PlaneError>,
) -> LevelState {
    let waiting = signals.time.waiting.map(|waiting| waiting.value);
    let known = level != Level::NONE && (waiting.is_some() || signal == LevelSignal::AcceptQueue);
    LevelState {
        signal: signal.name().into(),
        value: known.then(|| level.of(queue, waiting.unwrap_or(0)).into()),
        // a table that cannot be read is a warning elsewhere
        rungs: rungs.ok().flatten().unwrap_or_default(),
    }
}
