// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules as tables for people.

use crate::table::{count, plain, rate, render_rows};
use tidegate_model::RANKS;
use tidegate_model::signals::{BucketSignals, Reading, Times};
use tidegate_model::snapshot::{BucketState, RequestsState, ServiceState, Snapshot};
use tidegate_units::Nanos;

/// Rates of one bucket in the last tick, per second; `None` where nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BucketFigures {
    /// Demand, what was refused included.
    pub offered: Option<f64>,
    /// Refused; in shadow mode what would have been.
    pub refused: Option<f64>,
    /// Completed.
    pub ended: Option<f64>,
}

/// The rates of one bucket in the last tick, which took `period`.
#[must_use]
pub fn bucket_figures(signals: &BucketSignals, period: Nanos) -> BucketFigures {
    let seconds = period.as_secs_f64();
    let counts = signals.counts.map(|reading| reading.value).filter(|_| seconds > 0.0);
    let Some(counts) = counts else { return BucketFigures::default() };
    let sum = |ranks: [u64; RANKS]| ranks.into_iter().fold(0, u64::saturating_add);
    let per_second = |count: u64| Some(count as f64 / seconds);
    BucketFigures {
        offered: per_second(sum(counts.offered)),
        refused: per_second(sum(counts.refused)),
        ended: per_second(counts.ended),
    }
}

const BUCKET_TITLES: [&str; 11] = [
    "service",
    "bucket",
    "resource",
    "control",
    "mode",
    "offered/s",
    "refused/s",
    "limit/s",
    "in flight",
    "first byte p99",
    "completed p99",
];

/// The cells of a bucket, in the order of the titles.
fn bucket_cells(
    (service, requests): (&ServiceState, &RequestsState),
    bucket: &BucketState,
) -> Vec<String> {
    let figures = bucket_figures(&bucket.signals, service.signals.period);
    let p99 = |times: Option<Reading<Times>>| match times {
        Some(times) if times.value.count > 0 => times.value.p99.to_string(),
        _ => "-".into(),
    };
    let bound = if requests.mode == "shadow" && figures.refused > Some(0.0) { "<=" } else { "" };
    vec![
        plain(&service.name),
        plain(&bucket.name),
        plain(&bucket.resource),
        plain(&bucket.controller),
        plain(&requests.mode),
        rate(figures.offered),
        format!("{bound}{}", rate(figures.refused)),
        bucket.limits.rate.map_or_else(|| "none".into(), |limit| rate(Some(limit.get()))),
        count(bucket.signals.in_flight.map(|reading| reading.value)),
        p99(bucket.signals.first_byte),
        p99(bucket.signals.end),
    ]
}

/// The buckets of all services (of one, if named); empty where there are none.
#[must_use]
pub fn buckets_table(snapshot: &Snapshot, only: Option<&str>) -> String {
    let mut rows = vec![BUCKET_TITLES.map(String::from).to_vec()];
    for (service, requests) in with_rules(snapshot, only) {
        rows.extend(requests.buckets.iter().map(|b| bucket_cells((service, requests), b)));
    }
    let right: Vec<bool> = (0..BUCKET_TITLES.len()).map(|column| column >= 5).collect();
    if rows.len() > 1 { render_rows(&rows, &right) } else { String::new() }
}

/// What the rules of all services counted since their state was made, and what was sensed of their
/// requests; empty where there are none.
#[must_use]
pub fn rules_table(snapshot: &Snapshot) -> String {
    let titles = [
        "service",
        "rule",
        "bucket",
        "action",
        "met",
        "refused",
        "would be",
        "repeated",
        "in flight",
        "completed/s",
        "first byte",
        "completed in",
    ];
    let mean = |time: Option<Reading<Nanos>>| {
        time.map_or_else(|| "-".to_owned(), |reading| reading.value.to_string())
    };
    let mut rows = vec![titles.map(String::from).to_vec()];
    for (service, requests) in with_rules(snapshot, None) {
        for rule in &requests.rules {
            let named = if rule.name == rule.rule { "" } else { &*format!("{}: ", rule.name) };
            let (counts, signals) = (rule.counts, rule.signals);
            rows.push(vec![
                plain(&service.name),
                plain(&format!("{named}{}", rule.rule)),
                rule.bucket.as_deref().map_or_else(|| "admits".into(), plain),
                if rule.bucket.is_some() { plain(&rule.action) } else { "-".into() },
                counts.met().to_string(),
                counts.refused.to_string(),
                counts.shadowed.saturating_add(counts.lease).to_string(),
                counts.repeated.to_string(),
                count(signals.in_flight.map(|reading| reading.value)),
                rate(signals.responses.map(|reading| reading.value.get())),
                mean(signals.first_byte),
                mean(signals.end),
            ]);
        }
    }
    let right: Vec<bool> = (0..titles.len()).map(|column| column >= 4).collect();
    if rows.len() > 1 { render_rows(&rows, &right) } else { String::new() }
}

/// One line a service: what passed without being evaluated, most first; empty where there is nothing.
#[must_use]
pub fn unevaluated_lines(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for (service, requests) in with_rules(snapshot, None) {
        let mut counts: Vec<_> = requests.unevaluated.iter().filter(|u| u.count > 0).collect();
        counts.sort_by_key(|unevaluated| std::cmp::Reverse(unevaluated.count));
        let shown: Vec<String> =
            counts.iter().map(|u| format!("{} {}", plain(&u.reason), u.count)).collect();
        if !shown.is_empty() {
            lines.push(format!("{}: not evaluated: {}", plain(&service.name), shown.join(", ")));
        }
    }
    lines
}

fn with_rules<'a>(
    snapshot: &'a Snapshot,
    only: Option<&'a str>,
) -> impl Iterator<Item = (&'a ServiceState, &'a RequestsState)> {
    let wanted = move |service: &&ServiceState| only.is_none_or(|name| name == service.name);
    let services = snapshot.services.iter().filter(wanted);
    services.filter_map(|service| Some((service, service.requests.as_ref()?)))
}
