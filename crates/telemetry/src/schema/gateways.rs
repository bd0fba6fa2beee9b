// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of gateways.

use super::{Metric, Number, counter, gauge};
use tidegate_model::snapshot::{GatewaysState, ProxyCounts, ResponseCounts, Snapshot};
use tidegate_units::Nanos;

/// Names of the hundreds of a status.
const STATUSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Every metric of gateways, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    gauge(
        "gateway_served",
        "",
        "1 while the listeners of a gateway are open.",
        &["gateway", "adapter"],
        |s, out| {
            each(s, |state| {
                for gateway in &state.gateways {
                    out(&[&gateway.name, &gateway.adapter], gateway.problem.is_empty().into());
                }
            });
        },
    ),
    counter(
        "gateway_reports",
        "messages",
        "Reports of what became of requests: completed ended one in flight, late came when it was not in flight any more, unknown was about no request that is known.",
        &["outcome"],
        |s, out| {
            each(s, |state| {
                let reports = &state.reports;
                out(&["completed"], reports.completed.into());
                out(&["late"], reports.late.into());
                out(&["unknown"], reports.unknown.into());
            });
        },
    ),
    counter(
        "gateway_completed",
        "responses",
        "Responses that gateways have reported, by the hundreds of their status; none where the client left before there was one.",
        &["service", "status"],
        |s, out| {
            each(s, |state| {
                for of in &state.responses {
                    for (status, count) in STATUSES.iter().zip(of.by_hundreds) {
                        out(&[&of.service, status], count.into());
                    }
                }
            });
        },
    ),
    counter(
        "gateway_unreported",
        "requests",
        "Requests that passed and were not reported for 2 min, or not before their place was needed. A report that comes after all counts as late.",
        &["service"],
        |s, out| responses(s, |of| out(&[&of.service], of.unreported.into())),
    ),
    counter(
        "gateway_report_delay",
        "seconds",
        "What lay between the ends of responses and their reports, in all: by the responses that were reported the mean.",
        &["service"],
        |s, out| responses(s, |of| out(&[&of.service], Nanos(of.delay_ns).as_secs_f64().into())),
    ),
    counter(
        "gateway_untracked",
        "requests",
        "Requests that passed and found no room in the table of those in flight.",
        &[],
        |s, out| each(s, |state| out(&[], state.reports.untracked.into())),
    ),
    counter(
        "gateway_misunderstood",
        "messages",
        "Messages at the listeners of gateways that were not understood: counted, and nothing else.",
        &[],
        |s, out| each(s, |state| out(&[], state.misunderstood.into())),
    ),
    counter(
        "gateway_handshakes_failed",
        "connections",
        "Connections to a gateway with TLS that were closed in their handshake: no certificate, a wrong one, no TLS, or too slow.",
        &["gateway"],
        |s, out| {
            each(s, |state| {
                for gateway in &state.gateways {
                    if let Some(tls) = &gateway.tls {
                        out(&[&gateway.name], tls.handshakes_failed.into());
                    }
                }
            });
        },
    ),
    gauge(
        "proxy_connections",
        "",
        "Connections of clients at tidegate's own proxy.",
        &["gateway"],
        |s, out| proxies(s, |gateway, proxy| out(&[gateway], proxy.connections.into())),
    ),
    counter(
        "proxy_connection",
        "seconds",
        "Connections of clients at tidegate's own proxy, summed over time: the rate is the mean number.",
        &["gateway"],
        |s, out| proxies(s, |gateway, proxy| out(&[gateway], seconds(proxy.connections_ms))),
    ),
    counter(
        "proxy_connections_lost",
        "connections",
        "Connections of clients at tidegate's own proxy that came to nothing: turned-away where there are as many as may be, handshake where TLS failed.",
        &["gateway", "outcome"],
        |s, out| {
            proxies(s, |gateway, proxy| {
                out(&[gateway, "turned-away"], proxy.turned_away.into());
                out(&[gateway, "handshake"], proxy.handshakes_failed.into());
            });
        },
    ),
    counter(
        "proxy_failures",
        "requests",
        "Requests at tidegate's own proxy that it answered itself: malformed by 4xx or 501, unreachable and broken (servers) by 502, timed-out by 504, full (all connections to servers in use) by 503. Refusals of the gate are not among them.",
        &["gateway", "outcome"],
        |s, out| {
            proxies(s, |gateway, proxy| {
                out(&[gateway, "malformed"], proxy.malformed.into());
                out(&[gateway, "unreachable"], proxy.unreachable.into());
                out(&[gateway, "broken"], proxy.broken.into());
                out(&[gateway, "timed-out"], proxy.timed_out.into());
                out(&[gateway, "full"], proxy.full.into());
            });
        },
    ),
    gauge(
        "proxy_queue_requests",
        "",
        "Requests in the queue of tidegate's own proxy.",
        &["gateway"],
        |s, out| proxies(s, |gateway, proxy| out(&[gateway], proxy.waiting.into())),
    ),
    counter(
        "proxy_queue_request",
        "seconds",
        "Requests in the queue of tidegate's own proxy, summed over time: the rate is the mean number.",
        &["gateway"],
        |s, out| proxies(s, |gateway, proxy| out(&[gateway], seconds(proxy.waiting_ms))),
    ),
    counter(
        "proxy_queue_left",
        "requests",
        "Requests that left the queue of tidegate's own proxy: served when it was their turn, full where there was no room, too-long after the longest wait, client where the client left.",
        &["gateway", "outcome"],
        |s, out| {
            proxies(s, |gateway, proxy| {
                out(&[gateway, "served"], proxy.waited.into());
                out(&[gateway, "full"], proxy.queue_full.into());
                out(&[gateway, "too-long"], proxy.waited_too_long.into());
                out(&[gateway, "client"], proxy.left_queue.into());
            });
        },
    ),
    counter(
        "proxy_queue_waited",
        "seconds",
        "How long requests that were served waited in the queue of tidegate's own proxy, in all.",
        &["gateway"],
        |s, out| {
            proxies(s, |gateway, proxy| {
                out(&[gateway], Nanos(proxy.waited_ns).as_secs_f64().into())
            })
        },
    ),
];

fn seconds(ms: u64) -> Number {
    Nanos::from_millis(ms).as_secs_f64().into()
}

fn responses(snapshot: &Snapshot, mut visit: impl FnMut(&ResponseCounts)) {
    each(snapshot, |state| state.responses.iter().for_each(&mut visit));
}

fn proxies(snapshot: &Snapshot, mut visit: impl FnMut(&str, &ProxyCounts)) {
    each(snapshot, |state| {
        for gateway in &state.gateways {
            gateway.proxy.iter().for_each(|proxy| visit(&gateway.name, proxy));
        }
    });
}

fn each(snapshot: &Snapshot, visit: impl FnMut(&GatewaysState)) {
    snapshot.gateways.iter().for_each(visit);
}
