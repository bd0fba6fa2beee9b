// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what was seen of a run to metrics, in the paper's units: what is per second is divided by how much
//! faster the lab's server is, and times are multiplied by it.

use super::super::setting::{Control, Setting};
use super::bench::Capacity;
use super::load::{Client, MEASURED, Span, clients};
use tidegate_lab::{Change, Counts, LoadReport, QueueSeen, StreamReport};

/// Name, unit, value.
pub(super) type Metric = (String, &'static str, f64);

/// What was read at the two ends of the measured part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// On the machine's clock: the look may have been late.
    pub(super) at_s: f64,
    /// CPU time of the server, in seconds.
    pub(super) cpu: f64,
    /// SYNs dropped at the interface.
    pub(super) dropped: f64,
}

/// What was seen of one run.
pub(super) struct Seen<'a> {
    pub(super) setting: &'a Setting,
    pub(super) report: &'a LoadReport,
    pub(super) span: Span,
    pub(super) marks: (Mark, Mark),
    pub(super) queue: &'a [QueueSeen],
    pub(super) changes: &'a [Change],
    pub(super) capacity: Capacity,
    /// CPU time of "too busy", in seconds.
    pub(super) busy_s: f64,
}

/// Requests of some clients.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// What ended while it was measured.
    good: u64,
    refused: u64,
    gave_up: u64,
    /// What began then, and what became of it.
    offered: u64,
    refused_of: u64,
    answered_of: u64,
    response_s: f64,
}

impl Seen<'_> {
    fn seconds(&self) -> f64 {
        self.span.to - self.span.from
    }

    /// All metrics.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let all = self.sum(|_| true);
        let mut metrics = self.whole(&all);
        metrics.extend(self.of_class("uncontrolled", |c| c == Client::Uncontrolled));
        metrics.extend(self.of_class("controlled", |c| c != Client::Uncontrolled));
        if self.setting.priorities || self.setting.control == Control::DropShare {
            metrics.extend(self.of_class("high", |c| c == Client::High));
            metrics.extend(self.of_class("low", |c| c == Client::Low));
            metrics.push(("inverted".into(), "share", self.inverted()));
        }
        metrics
    }

    fn whole(&self, all: &Sum) -> Vec<Metric> {
        let (seconds, faster) = (self.seconds(), self.capacity.faster(self.setting));
        let rate = |count: f64| count / seconds / faster;
        let of_capacity = all.good as f64 / seconds / self.capacity.rate;
        let (served, busy) = self.by_server();
        let (begin, end) = self.marks;
        let cpu = (end.cpu - begin.cpu) / (end.at_s - begin.at_s).max(1e-9);
        let busy_cpu = busy / seconds * self.busy_s;
        let explained = served / seconds / self.capacity.rate * self.capacity.cpu + busy_cpu;
        let (throttled, onsets) = self.throttled();
        [
            ("offered", "1/s", rate(all.offered as f64)),
            ("throughput", "1/s", rate(all.good as f64)),
            ("of_capacity", "ratio", of_capacity),
            ("response_time", "s", mean(all) * faster),
            ("busy", "1/s", rate(busy)),
            ("busy_cpu", "share", busy_cpu),
            ("node_busy", "1/s", rate((all.refused as f64 - busy).max(0.0))),
            ("syns_dropped", "1/s", rate(end.dropped - begin.dropped)),
            ("gave_up", "1/s", rate(all.gave_up as f64)),
            ("cpu", "share", cpu),
            ("unexplained_cpu", "share", (cpu - explained).abs()),
            ("queue", "requests", self.waiting()),
            ("throttled", "share", throttled),
            ("onsets", "1/min", rate(onsets) * 60.0),
            ("capacity", "1/s", self.capacity.rate),
            ("busy_ms", "ms", self.busy_s * 1e3 * faster),
        ]
        .map(|(name, unit, value)| (name.to_owned(), unit, value))
        .into()
    }

    fn of_class(&self, class: &str, is: impl Fn(Client) -> bool) -> Vec<Metric> {
        let sum = self.sum(is);
        let faster = self.capacity.faster(self.setting);
        let rate = |count: u64| count as f64 / self.seconds() / faster;
        let refused = sum.refused_of as f64 / sum.offered.max(1) as f64;
        vec![
            (format!("throughput_{class}"), "1/s", rate(sum.good)),
            (format!("offered_{class}"), "1/s", rate(sum.offered)),
            (format!("response_time_{class}"), "s", mean(&sum) * faster),
            (format!("refused_{class}"), "share", refused),
        ]
    }

    fn streams(&self, is: impl Fn(Client) -> bool) -> Vec<&StreamReport> {
        let all = clients(self.setting).into_iter().zip(&self.report.streams);
        all.filter(|(client, _)| is(*client)).map(|(_, stream)| stream).collect()
    }

    fn sum(&self, is: impl Fn(Client) -> bool) -> Sum {
        let mut sum = Sum::default();
        for stream in self.streams(is) {
            for slot in stream.slots.iter().filter(|slot| self.inside(slot.start)) {
                let Counts { answered, refused_http, failed, .. } = slot.ended.counts;
                sum.good += answered;
                sum.refused += refused_http;
                sum.gave_up += failed - refused_http;
            }
            let Some(phase) = stream.phase(MEASURED) else { continue };
            let Counts { offered, answered, refused_http, .. } = phase.totals.counts;
            sum.offered += offered;
            sum.refused_of += refused_http;
            sum.answered_of += answered;
            sum.response_s += phase.totals.perceived.mean * answered as f64;
        }
        sum
    }

    fn inside(&self, start: f64) -> bool {
        start >= self.span.from - 1e-6 && start < self.span.to - 1e-6
    }

    /// Requests of a higher priority that were refused in a slot in which one of a lower was let through,
    /// over all that were offered.
    fn inverted(&self) -> f64 {
        let all = [Client::Uncontrolled, Client::High, Client::Low]
            .map(|class| self.streams(|client| client == class));
        let slots = self.report.streams.first().map_or(&[][..], |stream| &stream.slots);
        let (mut wrong, mut offered) = (0, 0);
        for (slot, _) in slots.iter().enumerate().filter(|(_, slot)| self.inside(slot.start)) {
            let counts = all.each_ref().map(|streams| of_slot(streams, slot));
            let mut below = 0;
            for (sent, refused) in counts.into_iter().rev() {
                offered += sent;
                wrong += if below > 0 { refused } else { 0 };
                below += sent - refused;
            }
        }
        wrong as f64 / offered.max(1) as f64
    }

    /// The span on the machine's clock.
    fn times(&self) -> (f64, f64) {
        let started = self.report.started.as_secs_f64();
        (started + self.span.from, started + self.span.to)
    }

    /// Requests served and told "too busy", by the server's own count.
    fn by_server(&self) -> (f64, f64) {
        let (from, to) = self.times();
        let at = |time: f64| self.queue.iter().find(|seen| seen.at_s >= time).or(self.queue.last());
        at(from).zip(at(to)).map_or((f64::NAN, f64::NAN), |(first, last)| {
            (f64::from(last.served - first.served), f64::from(last.busy - first.busy))
        })
    }

    /// Requests that wait, on average.
    fn waiting(&self) -> f64 {
        let (from, to) = self.times();
        let inside = self.queue.iter().filter(|seen| seen.at_s >= from && seen.at_s < to);
        let all: Vec<f64> = inside.map(|seen| f64::from(seen.waiting)).collect();
        all.iter().sum::<f64>() / all.len() as f64
    }

    /// The share of the time in which anybody was throttled, and how often that began.
    fn throttled(&self) -> (f64, f64) {
        let (from, to) = self.times();
        let (mut since, mut on, mut began) = (None::<f64>, 0.0, 0.0);
        for (at, ladders) in self.changes {
            let any = ladders.iter().any(|throttled| *throttled);
            match since {
                None if any => {
                    since = Some(*at);
                    began += f64::from(u8::from((from..to).contains(at)));
                }
                Some(start) if !any => {
                    on += (at.min(to) - start.max(from)).max(0.0);
                    since = None;
                }
                _ => {}
            }
        }
        on += since.map_or(0.0, |start| (to - start.max(from)).max(0.0));
        (on / (to - from), began)
    }
}

/// Requests that began in a slot, and those of them that were refused.
fn of_slot(streams: &[&StreamReport], slot: usize) -> (u64, u64) {
    let slots = streams.iter().filter_map(|stream| stream.slots.get(slot));
    slots.fold((0, 0), |(sent, refused), slot| {
        let Counts { offered, refused_http, .. } = slot.started.counts;
        (sent + offered, refused + refused_http)
    })
}

fn mean(sum: &Sum) -> f64 {
    sum.response_s / sum.answered_of.max(1) as f64
}
