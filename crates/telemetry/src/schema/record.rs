// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is lost by no scrape: counts, times, and sums over time of services.

use super::{Bounds, FAMILIES, Metric, Number, SERVICE, Sink, counter, each, gauge, histogram};
use tidegate_model::limits::Cause;
use tidegate_model::record::Sums;
use tidegate_model::shadow::{Health, ShadowSums};
use tidegate_model::snapshot::{ServiceState, Snapshot};
use tidegate_model::totals::{ConnectionTotals, ServiceTotals};
use tidegate_units::Nanos;

/// All of them, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    counter(
        "service_repeated",
        "syns",
        "Of the demand, known copies of refused SYNs.",
        SERVICE,
        |s, out| totals(s, |name, t| out(&[name], t.repeated.into())),
    ),
    counter(
        "service_completed",
        "exchanges",
        "Exchanges that completed: first bytes of responses. With timed=\"false\" those whose time cannot be told from the packets: slow uploads, early data of TLS, responses to what was not recognised as a request. Absent where responses are not seen.",
        &["service", "timed"],
        |s, out| {
            answered(s, |name, t| {
                out(&[name, "true"], t.first_byte.count.into());
                out(&[name, "false"], t.unknown.into());
            })
        },
    ),
    counter(
        "service_connections",
        "connections",
        "Connections that came so far, each counted once in each: replied (SYN-ACK), proved (handshake), asked (first request), answered (first response), lost (asked and got nothing), ended (of the answered). Absent where responses are not seen.",
        &["service", "stage"],
        |s, out| {
            answered(s, |name, t| {
                for (stage, count) in stages(&t.connections) {
                    out(&[name, stage], count.into());
                }
            })
        },
    ),
    counter(
        "service_unseen",
        "connections",
        "Connections that went out of sight: the table had no room for them, they waited for a response in silence for a minute, or no server of the own proxy had them. They count as neither lost nor completed.",
        SERVICE,
        |s, out| totals(s, |name, t| out(&[name], t.unseen.into())),
    ),
    histogram(
        "service_first_byte_time",
        "Time from request to the first byte of the response, of exchanges; before the first one of a connection the handshake of TLS counts. At a gateway: the time with the server that the proxy reports.",
        SERVICE,
        Bounds::FINE,
        |s, out| answered(s, |name, t| out(&[name], &t.first_byte)),
    ),
    histogram(
        "service_connection_time",
        "Time from SYN to the end of a connection.",
        SERVICE,
        Bounds::COARSE,
        |s, out| answered(s, |name, t| out(&[name], &t.end)),
    ),
    counter(
        "service_shedding",
        "seconds",
        "How long a service shed, by cause, since the process began (with shadow=\"true\" only computed). Causes: in-flight, growth, accept-queue, cpu (an overload, by what it was seen first), reference (a law above its reference), earlier (seen by the process before), limit (more comes than a limit admits, and nothing shows an overload), remote (a peer's limit).",
        &["service", "cause", "shadow"],
        |s, out| {
            each(s, |v| {
                shedding(&v.sums, |cause, shadow, time| out(&[&v.name, cause, shadow], time));
            })
        },
    ),
    counter(
        "service_episodes",
        "",
        "How often shedding began, since the process began; pauses of less than 5 s do not count.",
        SERVICE,
        |s, out| each(s, |v| out(&[&v.name], v.sums.episodes.into())),
    ),
    counter(
        "service_shadow_offered",
        "",
        "New connections (at a gateway requests) and requests that met a rule, while refusals of the service were only counted, by its health in the minute: healthy (99th percentile of first bytes within the objective, short accept queue), overloaded, unknown (too few timed). Added once the minute is over.",
        &["service", "health"],
        |s, out| shadow(s, |sums| sums.offered.map(Number::from), out),
    ),
    counter(
        "service_shadow_refused",
        "",
        "Of them those that would have been refused. With health=\"healthy\" wrongly. `tidegate shadow report` says what follows.",
        &["service", "health"],
        |s, out| shadow(s, |sums| sums.refused.map(Number::from), out),
    ),
    counter(
        "service_shadow_watched",
        "seconds",
        "For how long.",
        &["service", "health"],
        |s, out| shadow(s, |sums| sums.span.map(|span| span.as_secs_f64().into()), out),
    ),
    gauge(
        "service_shedding_began_timestamp",
        "seconds",
        "When the last episode of shedding began, in seconds since 1970; absent if there was none.",
        SERVICE,
        |s, out| moment(s, |v| v.sums.began, out),
    ),
    gauge(
        "service_shedding_ended_timestamp",
        "seconds",
        "When the last episode that is over ended, in seconds since 1970. It is known 5 s later.",
        SERVICE,
        |s, out| moment(s, |v| v.sums.ended, out),
    ),
    counter(
        "service_alarmed",
        "seconds",
        "How long a family of signals reported a problem, since the process began.",
        &["service", "family"],
        |s, out| {
            each(s, |v| {
                for ((_, family), time) in FAMILIES.into_iter().zip(v.sums.alarmed) {
                    out(&[&v.name, family], time.as_secs_f64().into());
                }
            })
        },
    ),
];

fn totals(snapshot: &Snapshot, mut visit: impl FnMut(&str, &ServiceTotals)) {
    each(snapshot, |v| {
        if let Some(totals) = &v.totals {
            visit(&v.name, totals);
        }
    });
}

/// Each cause and mode, also those that never were: who forms a rate misses what a counter has when it
/// appears.
pub(super) fn shedding(sums: &Sums, mut out: impl FnMut(&str, &str, Number)) {
    for cause in Cause::ALL {
        for (shadow, label) in [(false, "false"), (true, "true")] {
            let known = sums.shedding.iter().find(|s| s.cause == cause && s.shadow == shadow);
            let time = known.map_or(Nanos::ZERO, |shed| shed.time);
            out(cause.name(), label, time.as_secs_f64().into());
        }
    }
}

/// Totals of services whose responses are seen.
fn answered(snapshot: &Snapshot, mut visit: impl FnMut(&str, &ServiceTotals)) {
    each(snapshot, |v| {
        if let Some(totals) = v.totals.as_ref().filter(|_| v.sees_answers) {
            visit(&v.name, totals);
        }
    });
}

fn shadow(snapshot: &Snapshot, of: impl Fn(&ShadowSums) -> [Number; 3], out: Sink<'_>) {
    each(snapshot, |v| {
        let numbers = v.shadow.as_ref().map(&of);
        for (health, number) in Health::ALL.into_iter().zip(numbers.into_iter().flatten()) {
            out(&[&v.name, health.name()], number);
        }
    });
}

fn stages(connections: &ConnectionTotals) -> [(&'static str, u64); 6] {
    [
        ("replied", connections.replied),
        ("proved", connections.proved),
        ("asked", connections.asked),
        ("answered", connections.answered),
        ("lost", connections.lost),
        ("ended", connections.ended),
    ]
}

/// A moment of the monotonic clock as a time of day, by the clocks of the snapshot.
fn moment(snapshot: &Snapshot, of: impl Fn(&ServiceState) -> Option<Nanos>, out: Sink<'_>) {
    let Some(unix) = snapshot.unix else { return };
    each(snapshot, |v| {
        if let Some(at) = of(v) {
            let unix = unix.since(snapshot.now.since(at));
            out(&[&v.name], unix.as_secs_f64().into());
        }
    });
}
