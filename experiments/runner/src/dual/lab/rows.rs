// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a load's report and tidegate's own counts to the experiment's metrics.

use super::Answer;
use crate::abacus::stats::mean_ci95;
use crate::dual::course::Tick;
use crate::results::Row;
use serde_json::Value;
use std::collections::BTreeMap;
use tidegate_lab::{Counts, LoadReport, SlotReport, StreamReport};

/// Name and unit of a metric, with its value.
pub(crate) type Metric = (&'static str, &'static str, f64);
/// The stream of SURGE requests, that of one large file beside it, and the measured part.
pub(super) const SURGE: &str = "surge";
pub(super) const LARGE: &str = "large";
pub(super) const MEASURED: &str = "measured";

/// What was seen of one run.
pub(super) struct Seen<'a> {
    pub(super) report: &'a LoadReport,
    /// The measured part, in seconds since the start.
    pub(super) span: (f64, f64),
    /// SYNs refused by tidegate in it; none where it does not run.
    pub(super) syn_refused: Option<u64>,
    pub(super) answer: Answer,
}

fn inside((from, to): (f64, f64)) -> impl Fn(&&SlotReport) -> bool {
    move |slot| slot.start >= from - 1e-6 && slot.start < to - 1e-6
}

/// Answers that ended in the span, per second.
fn answered(stream: &StreamReport, span: (f64, f64)) -> f64 {
    let slots = stream.slots.iter().filter(inside(span));
    let count: u64 = slots.map(|slot| slot.ended.counts.answered).sum();
    count as f64 / (span.1 - span.0).max(1e-9)
}

/// Requests that were refused by their header, as their clients saw it.
fn by_header(counts: &Counts, answer: Answer) -> u64 {
    match answer {
        Answer::Busy => counts.refused_http,
        Answer::Reset => counts.broken,
    }
}

/// The metrics of one run: throughput by what ended in the measured part, times and shares by what
/// began in it.
pub(super) fn metrics(seen: &Seen<'_>) -> Vec<Metric> {
    let mut found = Vec::new();
    let (span, seconds) = (seen.span, (seen.span.1 - seen.span.0).max(1e-9));
    if let Some(stream) = seen.report.stream(SURGE)
        && let Some(phase) = stream.phase(MEASURED)
    {
        let (totals, counts) = (&phase.totals, phase.totals.counts);
        let share = |count: u64| count as f64 / counts.offered.max(1) as f64;
        let protected = seen.syn_refused.is_some();
        let header = if protected { by_header(&counts, seen.answer) } else { 0 };
        let syn = share(seen.syn_refused.unwrap_or(0)).min(1.0);
        found.extend([
            ("throughput", "1/s", answered(stream, span)),
            ("response_time", "s", totals.perceived.mean),
            ("response_p99", "s", totals.perceived.p99),
            ("refused_header", "share", share(header)),
            ("refused_syn", "share", syn),
            ("refused", "share", (share(header) + syn).min(1.0)),
            ("not_connected", "share", share(counts.no_handshake + counts.refused_connect)),
            ("failed", "share", share(counts.failed)),
            ("offered", "1/s", counts.offered as f64 / seconds),
        ]);
        if let Some(dynamic) = stream.kind("dynamic") {
            found.push(("throughput_dynamic", "1/s", answered(dynamic, span)));
        }
        let sessions = totals.sessions;
        if sessions.ended > 0 {
            let completed = sessions.completed as f64 / sessions.ended as f64;
            found.push(("completed", "share", completed));
            found.push(("sessions_offered", "1/s", sessions.ended as f64 / seconds));
        }
    }
    if let Some(stream) = seen.report.stream(LARGE)
        && let Some(phase) = stream.phase(MEASURED)
    {
        let counts = phase.totals.counts;
        let refused = by_header(&counts, seen.answer) as f64 / counts.offered.max(1) as f64;
        found.extend([
            ("large_offered", "1/s", counts.offered as f64 / seconds),
            ("large_throughput", "1/s", answered(stream, span)),
            ("large_response_time", "s", phase.totals.perceived.mean),
            ("large_refused_header", "share", refused),
        ]);
        let both = seen.report.streams.iter().map(|stream| answered(stream, span)).sum();
        found.push(("both_throughput", "1/s", both));
    }
    found
}

/// Name of a variant at one share of dynamic requests, where rows are by load: `control-10`.
pub(super) fn of_share(variant: &str, share: f64) -> String {
    format!("{variant}-{}", (share * 100.0).round())
}

/// Executed refusals of SYNs in a snapshot, since the dataplane's state was made.
pub(super) fn syn_refused(snapshot: &Value) -> u64 {
    let counts = snapshot["services"][0]["counts"].as_array();
    let refused = counts.into_iter().flatten().filter(|row| {
        row["shadow"] == false && (row["verdict"] == "drop" || row["verdict"] == "reject")
    });
    refused.filter_map(|row| row["count"].as_u64()).sum()
}

/// What a snapshot says of one moment; what it does not say is 0 or none.
pub(super) fn tick(snapshot: &Value, at_s: f64) -> Tick {
    let service = &snapshot["services"][0];
    let (limits, signals) = (&service["limits"], &service["signals"]);
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    Tick {
        at_s,
        syn_rate: limits["rate"].as_f64(),
        cgi_rate: limits["buckets"][0]["rate"].as_f64(),
        cpu: number(&signals["resource"]["cpu"]["value"]),
        accept_queue: number(&signals["queue"]["accept"]["value"]["length"]),
        // A running total here; `course` makes differences of it.
        refused_syn: syn_refused(snapshot) as f64,
        throughput: 0.0,
    }
}

/// The interface queue of a snapshot in packets, if it has one.
pub(super) fn interface_queue(snapshot: &Value) -> Option<f64> {
    snapshot["services"][0]["signals"]["queue"]["interface"]["value"]["length"].as_f64()
}

/// The course second by second: what tidegate said, and what the clients got meanwhile.
pub(super) fn course(report: &LoadReport, said: &[Tick]) -> Vec<Tick> {
    let Some(stream) = report.stream(SURGE) else { return Vec::new() };
    let mut before = 0.0;
    said.iter()
        .map(|tick| {
            let refused_syn = (tick.refused_syn - before).max(0.0);
            before = tick.refused_syn;
            let throughput = answered(stream, (tick.at_s - 1.0, tick.at_s));
            Tick { throughput, refused_syn, ..*tick }
        })
        .collect()
}

/// Variant, name of x, bits of x, metric.
type Place = (String, String, u64, &'static str);
/// Unit and values.
type Values = (&'static str, Vec<f64>);

/// Values by variant, place and metric, over the rounds.
#[derive(Debug, Default)]
pub(super) struct Table {
    values: BTreeMap<Place, Values>,
}

impl Table {
    pub(super) fn add(&mut self, variant: &str, (x_name, x): (&str, f64), metric: Metric) {
        let key = (variant.to_owned(), x_name.to_owned(), x.to_bits(), metric.0);
        self.values.entry(key).or_insert_with(|| (metric.1, Vec::new())).1.push(metric.2);
    }

    /// Means over the rounds with their intervals; of a drift, the largest.
    pub(super) fn rows(&self, experiment: &str) -> Vec<Row> {
        let row = |(key, (unit, values)): (&Place, &Values)| {
            let (value, ci95) = if key.3.ends_with("drift") {
                (values.iter().copied().fold(f64::NAN, f64::max), None)
            } else {
                mean_ci95(values)
            };
            Row {
                experiment: experiment.into(),
                world: "lab".into(),
                variant: key.0.clone(),
                x_name: key.1.clone(),
                x: f64::from_bits(key.2),
                metric: key.3.into(),
                unit: (*unit).into(),
                value,
                ci95,
                runs: values.len() as u32,
            }
        };
        self.values.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Only what was really refused counts, and absent readings give no row.
    #[test]
    fn snapshots_are_read_as_the_daemon_writes_them() {
        let count = |verdict: &str, shadow: bool, count: u64| {
            json!({"class": "default", "verdict": verdict, "shadow": shadow, "reason": "rate",
                   "count": count})
        };
        let snapshot = json!({"services": [{
            "counts": [count("admit", false, 9), count("drop", false, 3), count("reject", false, 2),
                       count("drop", true, 50)],
            "limits": {"rate": null, "buckets": [{"rate": 70.5}]},
            "signals": {"resource": {"cpu": {"value": 0.5, "age": 0}}, "queue": {}},
        }]});
        assert_eq!(syn_refused(&snapshot), 5);
        let tick = tick(&snapshot, 3.0);
        assert_eq!((tick.syn_rate, tick.cgi_rate, tick.cpu), (None, Some(70.5), 0.5));
        assert_eq!((tick.refused_syn, interface_queue(&snapshot)), (5.0, None));
    }

    #[test]
    fn rounds_become_means_with_intervals() {
        let mut table = Table::default();
        for value in [1.0, 3.0] {
            table.add("none", ("load", 0.5), ("throughput", "1/s", value));
        }
        table.add("none", ("load", 1.0), ("throughput", "1/s", 7.0));
        for drift in [0.1, 0.3, 0.03] {
            table.add("none", ("load", 2.0), ("onset_later_drift", "share", drift));
        }
        let rows = table.rows("dual-admission/fig4");
        assert_eq!((rows[0].value, rows[0].runs, rows[0].ci95.is_some()), (2.0, 2, true));
        assert_eq!((rows[1].value, rows[1].runs, rows[1].ci95), (7.0, 1, None));
        assert_eq!((rows[2].value, rows[2].runs, rows[2].ci95), (0.3, 3, None), "the largest");
    }
}
