// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Levels of services and request buckets, summed over time: what a gauge shows at the moment of a scrape, these
//! show of all the time between two.

use super::{Metric, SERVICE, Sink, counter, each};
use tidegate_model::record::{Levels, Sums};
use tidegate_model::snapshot::Snapshot;

const BUCKET: &[&str] = &["service", "bucket"];
/// Levels that are limits: of a service, and of a request bucket, which limits no connections.
const LIMITS: &[&str] = &["limit_rate", "limit_burst", "limit_waiting"];
const BUCKET_LIMITS: &[&str] = &["limit_rate", "limit_burst"];

/// All of them, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    counter(
        "service_level_known",
        "seconds",
        "How long each level of a service was known, since the process began; of a limit how long there was one, in shadow mode, too.",
        &["service", "level"],
        |s, out| each(s, |v| known(&[&v.name], (&v.sums, LIMITS), out)),
    ),
    counter(
        "service_cpu_share",
        "seconds",
        "Share of the CPU time that the service may use, summed over time: its rate is the mean share.",
        SERVICE,
        |s, out| level(s, |levels| levels.cpu, out),
    ),
    counter(
        "service_busiest_thread_share",
        "seconds",
        "Share of a CPU that the busiest thread of the service used, summed over time.",
        SERVICE,
        |s, out| level(s, |levels| levels.busiest_thread, out),
    ),
    counter(
        "service_pressure",
        "seconds",
        "How long a task of the service waited (PSI, some), by resource.",
        &["service", "resource"],
        |s, out| {
            each(s, |v| {
                let sums = &v.sums.levels;
                let of = [sums.cpu_pressure, sums.memory_pressure, sums.io_pressure];
                for (resource, sum) in ["cpu", "memory", "io"].into_iter().zip(of) {
                    if let Some(sum) = sum {
                        out(&[&v.name, resource], sum.into());
                    }
                }
            })
        },
    ),
    counter(
        "service_waiting_connection",
        "seconds",
        "Exchanges in flight, summed over time: the rate is the mean number.",
        SERVICE,
        |s, out| level(s, |levels| levels.waiting, out),
    ),
    counter(
        "service_open_connection",
        "seconds",
        "Open connections, summed over time.",
        SERVICE,
        |s, out| level(s, |levels| levels.open, out),
    ),
    counter(
        "service_silent_connection",
        "seconds",
        "Open connections whose client has sent no request yet, summed over time.",
        SERVICE,
        |s, out| level(s, |levels| levels.silent, out),
    ),
    counter(
        "service_slow_connection",
        "seconds",
        "Open connections whose client is slow to send a request, summed over time.",
        SERVICE,
        |s, out| level(s, |levels| levels.slow, out),
    ),
    counter(
        "service_accept_queue_connection",
        "seconds",
        "Connections that wait for accept, summed over time: the rate is the mean number.",
        SERVICE,
        |s, out| level(s, |levels| levels.accept_queue, out),
    ),
    counter(
        "service_interface_queue_packet",
        "seconds",
        "Packets that wait in the interface that the responses leave by, summed over time.",
        SERVICE,
        |s, out| level(s, |levels| levels.interface_queue, out),
    ),
    counter(
        "service_sent",
        "bytes",
        "Bytes sent on the interfaces that the responses leave by, as sensed.",
        SERVICE,
        |s, out| level(s, |levels| levels.sent, out),
    ),
    counter(
        "service_limit_allowed",
        "syns",
        "Admissions that the limit on their rate allowed: the limit, summed over time. Nothing is added while there is no limit.",
        SERVICE,
        |s, out| level(s, |levels| limit(levels.limit_rate), out),
    ),
    counter(
        "service_limit_burst_syn",
        "seconds",
        "Depth of the bucket of the limit, summed over time.",
        SERVICE,
        |s, out| level(s, |levels| limit(levels.limit_burst), out),
    ),
    counter(
        "service_limit_waiting_connection",
        "seconds",
        "Most connections that may wait at once, summed over time.",
        SERVICE,
        |s, out| level(s, |levels| limit(levels.limit_waiting), out),
    ),
    counter(
        "requests_bucket_level_known",
        "seconds",
        "How long each level of a bucket was known, since the process began; of a limit how long there was one, in shadow mode, too. Level waiting: requests in flight.",
        &["service", "bucket", "level"],
        |s, out| buckets(s, |labels, sums| known(labels, (sums, BUCKET_LIMITS), out)),
    ),
    counter(
        "requests_bucket_in_flight_request",
        "seconds",
        "Requests of a bucket in flight, summed over time: the rate is the mean number.",
        BUCKET,
        |s, out| bucket_level(s, |levels| levels.waiting, out),
    ),
    counter(
        "requests_bucket_limit_allowed",
        "requests",
        "Requests that the limit of a bucket allowed: the limit, summed over time.",
        BUCKET,
        |s, out| bucket_level(s, |levels| limit(levels.limit_rate), out),
    ),
    counter(
        "requests_bucket_limit_burst_request",
        "seconds",
        "Depth of the bucket of the limit, summed over time.",
        BUCKET,
        |s, out| bucket_level(s, |levels| limit(levels.limit_burst), out),
    ),
];

fn known(labels: &[&str], (sums, limits): (&Sums, &[&str]), out: Sink<'_>) {
    for (level, seconds) in sums.known.named() {
        let seconds = if limits.contains(&level) { limit(seconds) } else { seconds };
        if let Some(seconds) = seconds {
            let labels = [labels, &[level]].concat();
            out(&labels, seconds.into());
        }
    }
}

/// What was never in force counts from zero: who forms a rate misses what a counter has when it appears.
fn limit(sum: Option<f64>) -> Option<f64> {
    Some(sum.unwrap_or_default())
}

fn level(snapshot: &Snapshot, of: impl Fn(&Levels) -> Option<f64>, out: Sink<'_>) {
    each(snapshot, |v| {
        if let Some(sum) = of(&v.sums.levels) {
            out(&[&v.name], sum.into());
        }
    });
}

fn buckets(snapshot: &Snapshot, mut visit: impl FnMut(&[&str], &Sums)) {
    each(snapshot, |v| {
        for bucket in v.requests.iter().flat_map(|requests| &requests.buckets) {
            visit(&[&v.name, &bucket.name], &bucket.sums);
        }
    });
}

fn bucket_level(snapshot: &Snapshot, of: impl Fn(&Levels) -> Option<f64>, out: Sink<'_>) {
    buckets(snapshot, |labels, sums| {
        if let Some(sum) = of(&sums.levels) {
            out(labels, sum.into());
        }
    });
}
