// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The schema as OpenMetrics text, as points for JSON, and as a document.

use crate::schema::{Kind, LABEL_BYTES_MAX, Metric, Number, OVER_TIME, OverTime, Read, metrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use tidegate_model::snapshot::Snapshot;
use tidegate_units::Nanos;

/// The content type of [`openmetrics`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One metric with one set of labels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The exported name.
    pub name: String,
    /// Labels and their values.
    pub labels: BTreeMap<&'static str, String>,
    /// The value; of a histogram how many times it has.
    pub value: f64,
}

/// Every metric of a snapshot, for JSON.
#[must_use]
pub fn points(snapshot: &Snapshot) -> Vec<Point> {
    let mut points = Vec::new();
    for metric in metrics() {
        let name = metric.full_name();
        let mut add = |values: &[&str], value| {
            let cut = values.iter().map(|v| label(v).to_owned());
            let labels = metric.labels.iter().copied().zip(cut).collect();
            points.push(Point { name: name.clone(), labels, value });
        };
        match metric.read {
            Read::Numbers(read) => read(snapshot, &mut |values, number| {
                let value = match number {
                    Number::Count(n) => n as f64,
                    Number::Float(n) => n,
                };
                add(values, value);
            }),
            Read::Times(read, _) => {
                read(snapshot, &mut |values, times| add(values, times.count as f64));
            }
        }
    }
    points
}

/// Every metric of a snapshot as OpenMetrics text, with ages as of the snapshot.
#[must_use]
pub fn openmetrics(snapshot: &Snapshot) -> String {
    openmetrics_as_of(snapshot, snapshot.now)
}

/// Every metric of a snapshot as OpenMetrics text, with ages as of `now` (of the snapshot, if that
/// is later).
#[must_use]
pub fn openmetrics_as_of(snapshot: &Snapshot, now: Nanos) -> String {
    let mut registry = Registry::default();
    // A collector owns what it tells.
    let snapshot = Snapshot { now: now.max(snapshot.now), ..snapshot.clone() };
    registry.register_collector(Box::new(OfSnapshot(snapshot)));
    let mut page = String::new();
    // Writing into a string does not fail; if the encoder refuses, half a page is worse than none.
    match text::encode(&mut page, &registry) {
        Ok(()) => page,
        Err(fmt::Error) => "# EOF\n".into(),
    }
}

#[derive(Debug)]
struct OfSnapshot(Snapshot);

impl Collector for OfSnapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        metrics().try_for_each(|metric| encode(metric, &self.0, &mut encoder))
    }
}

fn encode(
    metric: &Metric,
    snapshot: &Snapshot,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let name = format!("tidegate_{}", metric.name);
    let unit = (!metric.unit.is_empty()).then(|| Unit::Other(metric.unit.into()));
    let kind = match metric.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let mut family = encoder.encode_descriptor(&name, metric.help, unit.as_ref(), kind)?;
    let mut result = Ok(());
    let mut keep = |written: fmt::Result| {
        if result.is_ok() {
            result = written;
        }
    };
    match metric.read {
        Read::Numbers(read) => read(snapshot, &mut |values, number| {
            let labels = pairs(metric, values);
            let point = family.encode_family(&labels);
            keep(point.and_then(|point| match (metric.kind, number) {
                (Kind::Counter, Number::Count(n)) => ConstCounter::new(n).encode(point),
                (Kind::Counter, Number::Float(n)) => ConstCounter::new(n).encode(point),
                (_, Number::Count(n)) => ConstGauge::new(n).encode(point),
                (_, Number::Float(n)) => ConstGauge::new(n).encode(point),
            }));
        }),
        Read::Times(read, bounds) => read(snapshot, &mut |values, times| {
            let buckets = bounds.of(times);
            let sum = times.sum_ns as f64 / 1e9;
            // Read while others write: the buckets are what counts.
            let count = times.buckets.iter().fold(0_u64, |sum, n| sum.saturating_add(*n));
            let labels = pairs(metric, values);
            let point = family.encode_family(&labels);
            keep(point.and_then(|mut point| {
                point.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
            }));
        }),
    }
    result
}

/// The labels of one point.
fn pairs<'a>(metric: &Metric, values: &[&'a str]) -> Vec<(&'static str, &'a str)> {
    metric.labels.iter().copied().zip(values.iter().map(|v| label(v))).collect()
}

/// A label value of bounded length, cut between characters.
fn label(value: &str) -> &str {
    let end = (0..=LABEL_BYTES_MAX.min(value.len())).rev().find(|i| value.is_char_boundary(*i));
    &value[..end.unwrap_or_default()]
}

/// What docs/metrics.md says before the tables.
const HEAD: &str = r#"# Metrics

Served as OpenMetrics text on `/metrics` (configuration: `daemon.http`). This page is made from the schema in crates/telemetry (`TIDEGATE_BLESS=1 cargo test -p tidegate-telemetry`).

Label values are bounded: services (32), classes (16 a service), peers (73), verdicts, reasons (policy/reasons.def), causes (8), stages (6), levels (15), layers, rules (1023) and buckets (128) of all services. None comes from a client.

## Over time

At a scrape of 15 s everything can still be drawn. What came, was refused or completed is a counter. A level that a gauge shows at the moment of the scrape has a counter beside it: the level, summed over each tick. The rate of that counter is the mean of the level, over any span. [Each gauge](#gauges-and-their-counters) names its counter.

| wanted | query |
| --- | --- |
| mean exchanges in flight | `rate(tidegate_service_waiting_connection_seconds_total[1m])` |
| mean limit while there was one, per second | `rate(tidegate_service_limit_allowed_syns_total[1m]) / ignoring(level) rate(tidegate_service_level_known_seconds_total{level="limit_rate"}[1m])` |
| share of the time with a limit | `rate(tidegate_service_level_known_seconds_total{level="limit_rate"}[1m])` |
| mean limit of a bucket while there was one | `rate(tidegate_requests_bucket_limit_allowed_requests_total[1m]) / ignoring(level) rate(tidegate_requests_bucket_level_known_seconds_total{level="limit_rate"}[1m])` |
| bytes per second to the servers | `rate(tidegate_link_sent_bytes_total[1m])` |
| refused per second, by reason | `sum by (service, reason) (rate(tidegate_service_verdicts_syns_total{verdict!="admit"}[1m]))` |
| 99th percentile of the time to first byte | `histogram_quantile(0.99, rate(tidegate_service_first_byte_time_seconds_bucket[1m]))` |
| alert: a service sheds | `increase(tidegate_service_shedding_seconds_total{shadow="false"}[1m]) > 0` |
| alert: a level is not known, now or ever | `group by (instance, service) (tidegate_service_mode) unless on (instance, service) rate(tidegate_service_level_known_seconds_total{level="waiting"}[1m]) >= 0.9` |

A level that is not known adds nothing to its counter, and one that never was has none: a rule that only compares its rate says nothing then, so the alert asks for services `unless` it is known. For a minute after a start nothing is known: give it `for: 2m`. Divide by `..._level_known_seconds_total` where that matters, as for limits. Sums of levels begin at zero when the daemon starts; counts of the dataplane go on.

A histogram of times has fixed bounds: each at most 12.5 % above the one before, from 131 µs to 34 s (145 series). `service_connection_time` has two an octave (51 series).

## All metrics

| metric | kind | labels | meaning |
| --- | --- | --- | --- |
"#;

/// docs/metrics.md: the schema as a table.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(HEAD);
    for metric in metrics() {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels = metric.labels.join(", ");
        let _ =
            writeln!(page, "| `{}` | {kind} | {labels} | {} |", metric.full_name(), metric.help);
    }
    page.push_str("\n## Gauges and their counters\n\n| gauge | over time |\n| --- | --- |\n");
    for (gauge, over) in OVER_TIME {
        let _ = match over {
            OverTime::Sum(counter) => {
                writeln!(page, "| `tidegate_{gauge}` | `tidegate_{counter}` |")
            }
            OverTime::Itself(why) => writeln!(page, "| `tidegate_{gauge}` | itself: {why} |"),
        };
    }
    page
}
