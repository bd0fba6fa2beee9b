// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of request rules.

use super::record::shedding;
use super::{Bounds, Metric, Number, Sink, counter, gauge, histogram};
use tidegate_model::RANKS;
use tidegate_model::signals::BucketSignals;
use tidegate_model::snapshot::{
    BucketState, Followed, RequestsState, RuleServed, RuleState, Snapshot,
};
use tidegate_model::totals::BucketTotals;

/// The names of the ranks: who is refused last comes first.
pub(crate) const RANK_NAMES: [&str; RANKS] = ["protected", "new", "persistent"];

const RULE: &[&str] = &["service", "rule", "name", "bucket"];
const BUCKET: &[&str] = &["service", "bucket"];
const BUCKET_RANK: &[&str] = &["service", "bucket", "rank"];

/// Every metric of request rules, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    gauge(
        "requests_mode",
        "",
        "1 for the mode in force of the service's request rules.",
        &["service", "mode"],
        |s, out| each(s, |service, r| out(&[service, &r.mode], Number::Count(1))),
    ),
    counter(
        "requests_rule_outcomes",
        "requests",
        "What became of the requests that met a rule: admitted, refused, shadowed (refused, and only counted), lease (refused, and passed because the lease had run out), repeated (the reply packet was sent again), failed (refused, and the reply packet could not be sent).",
        &["service", "rule", "name", "bucket", "outcome"],
        |s, out| {
            each(s, |service, r| {
                for (index, rule) in r.rules.iter().enumerate() {
                    let (index, bucket) = (index.to_string(), rule.bucket.as_deref());
                    for (outcome, count) in rule.counts.named() {
                        let bucket = bucket.unwrap_or_default();
                        out(&[service, &index, &rule.name, bucket, outcome], count.into());
                    }
                }
            })
        },
    ),
    gauge(
        "requests_rule_in_flight",
        "requests",
        "Requests of a rule that the server has and has not responded to yet.",
        RULE,
        |s, out| rules(s, out, |rule| rule.signals.in_flight.map(|r| r.value as f64)),
    ),
    counter(
        "requests_rule_in_flight_request",
        "seconds",
        "Requests of a rule in flight, summed over time, also over reloads that keep the rule: the rate is the mean number.",
        RULE,
        |s, out| rules(s, out, |rule| rule.signals.in_flight.map(|_| rule.in_flight_sum)),
    ),
    counter(
        "requests_rule_answered",
        "requests",
        "Requests of a rule whose response was complete.",
        RULE,
        |s, out| served(s, out, |served| served.answered.into()),
    ),
    counter(
        "requests_rule_first_bytes",
        "requests",
        "Requests of a rule whose response has begun.",
        RULE,
        |s, out| served(s, out, |served| served.started.into()),
    ),
    counter(
        "requests_rule_first_byte_time",
        "seconds",
        "Time from these requests to the first byte of their responses, summed: over their number it is the mean.",
        RULE,
        |s, out| served(s, out, |served| served.started_time.as_secs_f64().into()),
    ),
    counter(
        "requests_rule_response_time",
        "seconds",
        "Time from the completed requests of a rule to the last byte of their responses, summed.",
        RULE,
        |s, out| served(s, out, |served| served.answered_time.as_secs_f64().into()),
    ),
    gauge(
        "requests_rule_signal_age",
        "seconds",
        "How old a signal of a rule is; one that is not known is absent.",
        &["service", "rule", "name", "bucket", "signal"],
        |s, out| {
            each(s, |service, r| {
                for (index, rule) in r.rules.iter().enumerate() {
                    let index = index.to_string();
                    let [service, index, name, bucket] = labels(service, &index, rule);
                    for (signal, age) in rule.signals.ages() {
                        out(&[service, index, name, bucket, signal], age.as_secs_f64().into());
                    }
                }
            })
        },
    ),
    counter(
        "requests_bucket_offered",
        "requests",
        "Requests that came to a bucket, what was refused included, by rank: protected by a cookie, new (every other), persistent (of these the later ones of a connection, where the rule closes).",
        BUCKET_RANK,
        |s, out| buckets(s, |service, b| ranks((service, b), b.offered, out)),
    ),
    counter(
        "requests_bucket_refused",
        "requests",
        "Of these refused, by rank; in shadow mode what would have been.",
        BUCKET_RANK,
        |s, out| buckets(s, |service, b| ranks((service, b), b.refused, out)),
    ),
    gauge(
        "requests_bucket_limit_rate",
        "per_second",
        "Requests per second that a bucket admits; absent without a limit.",
        BUCKET,
        |s, out| {
            buckets(s, |service, b| {
                optional((service, b), b.limits.rate.map(|rate| rate.get()), out)
            })
        },
    ),
    gauge(
        "requests_bucket_limit_burst",
        "requests",
        "Depth of a bucket; absent without a limit.",
        BUCKET,
        |s, out| {
            buckets(s, |service, b| {
                optional((service, b), b.limits.rate.map(|_| f64::from(b.limits.burst)), out)
            })
        },
    ),
    gauge(
        "requests_bucket_shedding",
        "",
        "1 while a bucket refuses (in shadow mode: while it would).",
        BUCKET,
        |s, out| {
            buckets(s, |service, b| {
                out(&[service, &b.name], b.limits.why.shedding.into());
            })
        },
    ),
    gauge(
        "requests_bucket_in_flight",
        "requests",
        "Requests of a bucket that the server has and has not responded to yet.",
        BUCKET,
        |s, out| {
            buckets(s, |service, b| {
                let value = b.signals.in_flight.map(|reading| reading.value as f64);
                optional((service, b), value, out)
            })
        },
    ),
    counter(
        "requests_bucket_shedding",
        "seconds",
        "How long a bucket refused, by cause and mode, since the process began (with shadow=\"true\" only computed).",
        &["service", "bucket", "cause", "shadow"],
        |s, out| {
            buckets(s, |service, b| {
                shedding(&b.sums, |cause, shadow, time| {
                    out(&[service, &b.name, cause, shadow], time);
                });
            })
        },
    ),
    counter(
        "requests_bucket_completed",
        "requests",
        "Requests of a bucket that the server had and that have their response, or whose connection ended.",
        BUCKET,
        |s, out| totals(s, |labels, t| out(labels, t.ended.into())),
    ),
    histogram(
        "requests_bucket_first_byte_time",
        "Time from a request to the first byte of its response.",
        BUCKET,
        Bounds::FINE,
        |s, out| totals(s, |labels, t| out(labels, &t.first_byte)),
    ),
    histogram(
        "requests_bucket_response_time",
        "Time from a request to the last byte of its response.",
        BUCKET,
        Bounds::FINE,
        |s, out| totals(s, |labels, t| out(labels, &t.end)),
    ),
    gauge(
        "requests_bucket_signal_age",
        "seconds",
        "How old a signal of a bucket is; one that could not be read is absent.",
        &["service", "bucket", "signal"],
        |s, out| {
            buckets(s, |service, b| {
                for (name, age) in ages(&b.signals) {
                    out(&[service, &b.name, name], age.into());
                }
            })
        },
    ),
    counter(
        "requests_unevaluated",
        "segments",
        "Segments with data, of services with request rules, that passed without being evaluated, by reason (docs/reasons.md).",
        &["service", "reason"],
        |s, out| {
            each(s, |service, r| {
                for unevaluated in &r.unevaluated {
                    out(&[service, &unevaluated.reason], unevaluated.count.into());
                }
            })
        },
    ),
    gauge(
        "requests_defer_accept",
        "",
        "1 where the kernel held an empty ACK back for at least half of the handshakes, nearly all of them the service's: with TCP_DEFER_ACCEPT a refused request costs the server nothing. 0 where for none; absent if not known.",
        &["service"],
        |s, out| {
            each(s, |service, r| {
                if let Some(on) = r.defer_accept {
                    out(&[service], on.into());
                }
            })
        },
    ),
    gauge(
        "requests_followed",
        "connections",
        "Connections whose requests are followed, of all services.",
        &[],
        |s, out| followed(s, |_, f| out(&[], f.connections.into())),
    ),
    counter(
        "requests_followed_connection",
        "seconds",
        "Connections whose requests are followed, summed over time.",
        &[],
        |s, out| followed(s, |r, _| out(&[], r.followed_sum.into())),
    ),
    gauge(
        "requests_followed_limit",
        "connections",
        "Connections that can be followed at once; above, requests of new ones pass without being evaluated.",
        &[],
        |s, out| followed(s, |_, f| out(&[], f.limit.into())),
    ),
];

fn each(snapshot: &Snapshot, mut visit: impl FnMut(&str, &RequestsState)) {
    for service in &snapshot.services {
        if let Some(requests) = &service.requests {
            visit(&service.name, requests);
        }
    }
}

/// The values of a rule's labels.
fn labels<'a>(service: &'a str, index: &'a str, rule: &'a RuleState) -> [&'a str; 4] {
    [service, index, &rule.name, rule.bucket.as_deref().unwrap_or_default()]
}

fn rules(snapshot: &Snapshot, out: Sink<'_>, value: impl Fn(&RuleState) -> Option<f64>) {
    each(snapshot, |service, requests| {
        for (index, rule) in requests.rules.iter().enumerate() {
            let index = index.to_string();
            if let Some(value) = value(rule) {
                out(&labels(service, &index, rule), value.into());
            }
        }
    });
}

fn served(snapshot: &Snapshot, out: Sink<'_>, value: impl Fn(&RuleServed) -> Number) {
    each(snapshot, |service, requests| {
        for (index, rule) in requests.rules.iter().enumerate() {
            let index = index.to_string();
            out(&labels(service, &index, rule), value(&rule.counts.served));
        }
    });
}

/// The totals of each bucket.
fn totals(snapshot: &Snapshot, mut visit: impl FnMut(&[&str], &BucketTotals)) {
    for service in &snapshot.services {
        let buckets = service.requests.iter().flat_map(|requests| &requests.buckets);
        let totals = service.totals.iter().flat_map(|totals| &totals.buckets);
        for (bucket, totals) in buckets.zip(totals) {
            visit(&[&service.name, &bucket.name], totals);
        }
    }
}

fn buckets(snapshot: &Snapshot, mut visit: impl FnMut(&str, &BucketState)) {
    each(snapshot, |service, requests| {
        requests.buckets.iter().for_each(|bucket| visit(service, bucket));
    });
}

fn followed(snapshot: &Snapshot, mut visit: impl FnMut(&RequestsState, Followed)) {
    let states = snapshot.services.iter().filter_map(|service| service.requests.as_ref());
    if let Some((state, followed)) = states.filter_map(|r| Some((r, r.followed?))).next() {
        visit(state, followed);
    }
}

fn ranks((service, bucket): (&str, &BucketState), counts: [u64; RANKS], out: Sink<'_>) {
    for (rank, count) in RANK_NAMES.into_iter().zip(counts) {
        out(&[service, &bucket.name, rank], count.into());
    }
}

fn optional((service, bucket): (&str, &BucketState), value: Option<f64>, out: Sink<'_>) {
    if let Some(value) = value {
        out(&[service, &bucket.name], value.into());
    }
}

fn ages(signals: &BucketSignals) -> impl Iterator<Item = (&'static str, f64)> {
    let all = [
        ("counts", signals.counts.map(|r| r.age)),
        ("in_flight", signals.in_flight.map(|r| r.age)),
        ("first_byte", signals.first_byte.map(|r| r.age)),
        ("end", signals.end.map(|r| r.age)),
    ];
    all.into_iter().filter_map(|(name, age)| Some((name, age?.as_secs_f64())))
}
