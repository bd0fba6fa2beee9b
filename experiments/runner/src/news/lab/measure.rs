// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what was seen of a run in the lab to its metrics: the names are those of the simulator.

use super::super::setting::{Bystanders, Control, Server, Setting};
use super::load::{BYSTANDER, MEASURED, name};
use super::stand::{DISTANCES_MS, Look, is_crowd};
use crate::testbed::{Looks, Metric};
use tidegate_lab::{LoadReport, PhaseReport};

/// A full packet.
const PACKET_BITS: f64 = 1500.0 * 8.0;
/// Of the SYNs of a second that are refused, so few are no limit in use (as in the simulator).
const HARDLY: f64 = 0.02;
/// Until a crowd has begun, and until what a daemon does is seen, seconds.
const SETTLED_S: f64 = 10.0;

/// What was seen of one run.
pub(super) struct Seen<'a> {
    pub(super) setting: &'a Setting,
    pub(super) report: &'a LoadReport,
    pub(super) looks: &'a [Look],
    /// Of the server, where it is a limit.
    pub(super) capacity: Option<f64>,
    pub(super) real: bool,
}

impl Seen<'_> {
    /// All metrics that one run gives.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut all = self.clients();
        all.extend(self.link());
        all.extend(self.arr());
        all.extend(self.beside());
        all.extend(self.control());
        all.extend(self.costs());
        all.push(("real", "share", f64::from(u8::from(self.real))));
        all
    }

    /// The course, second by second.
    pub(super) fn course(&self) -> Vec<(f64, Vec<Metric>)> {
        let last = self.looks.last().map_or(0.0, |look| self.looks().time_of(look));
        let good = self.good_at();
        let one = |second: usize| {
            let (from, to) = (second as f64, second as f64 + 1.0);
            let rate = |of: fn(&Look) -> f64| self.looks().between(of, (from, to));
            let (packets, dropped) = (rate(packets_down), rate(dropped_down));
            let mut all = vec![
                ("offered_at", "1/s", self.offered((from, to))),
                ("admitted_at", "1/s", rate(|look| look.hot.admitted)),
                ("goodput_at", "1/s", good.get(second).copied().unwrap_or(0.0)),
                ("loss_at", "share", dropped / f64::max(packets + dropped, 1.0)),
            ];
            let look = self.looks().inside((from, to)).last();
            let fastest = look.map(|look| look.hot.fastest).filter(|fastest| *fastest > 0.0);
            all.extend(fastest.map(|bytes| ("arr_at", "kbit/s", bytes * 8.0 / 1e3)));
            let limit = look.and_then(|look| look.crowd).and_then(|crowd| crowd.limit);
            all.extend(limit.map(|limit| ("limit_at", "1/s", limit)));
            (from, all)
        };
        (0..last.max(0.0) as usize).map(one).collect()
    }

    fn looks(&self) -> Looks<'_, Look> {
        let started_s = self.report.started.as_secs_f64();
        Looks { all: self.looks, at_s: |look| look.at_s, started_s }
    }

    const fn window(&self) -> (f64, f64) {
        (self.setting.from_s, self.setting.to_s)
    }

    /// Per second of the measured part.
    fn rate(&self, of: fn(&Look) -> f64) -> f64 {
        self.looks().between(of, self.window())
    }

    /// SYNs that came for the crowd's server, copies included: at a limit by hand, which is asked before they are
    /// measured, else as measured.
    fn offered(&self, span: (f64, f64)) -> f64 {
        let of: fn(&Look) -> f64 = match self.setting.control {
            Control::Static => |look: &Look| look.by_hand.0,
            _ => |look: &Look| look.hot.syns + look.hot.again,
        };
        self.looks().between(of, span)
    }

    fn refused(&self, span: (f64, f64)) -> f64 {
        self.looks().between(|look| look.by_hand.1 + look.hot.refused, span)
    }

    fn phases(&self) -> impl Iterator<Item = &PhaseReport> {
        let names = (0..DISTANCES_MS.len()).map(name);
        names.filter_map(|name| self.report.stream(&name)?.phase(MEASURED))
    }

    /// Of the crowd's clients that began in the measured part.
    fn clients(&self) -> Vec<Metric> {
        let (from, to) = self.window();
        let seconds = (to - from).max(1e-9);
        let sum = |of: fn(&PhaseReport) -> f64| self.phases().map(of).sum::<f64>();
        let came = sum(|phase| phase.totals.counts.offered as f64);
        let answered = sum(|phase| phase.totals.counts.answered as f64);
        let unconnected = sum(|phase| {
            let counts = &phase.totals.counts;
            (counts.no_handshake + counts.refused_connect) as f64
        });
        let timed_out = sum(|phase| {
            let counts = &phase.totals.counts;
            (counts.no_answer + counts.broken) as f64
        });
        let goodput = sum(|phase| phase.totals.counts.good as f64) / seconds;
        let times = |of: fn(&PhaseReport) -> f64| of_answered(self.phases(), of);
        let mut all = vec![
            ("came", "1/s", came / seconds),
            ("offered", "1/s", self.offered((from, to))),
            ("admitted", "1/s", self.rate(|look| look.hot.admitted)),
            ("goodput", "1/s", goodput),
            ("served", "1/s", answered / seconds),
            ("timed_out", "share", timed_out / (came - unconnected).max(1.0)),
            ("timed_out_of_all", "share", timed_out / came.max(1.0)),
            ("unconnected", "share", unconnected / came.max(1.0)),
            ("response_mean", "s", times(|phase| phase.totals.perceived.mean)),
            ("response_p50", "s", times(|phase| phase.totals.perceived.p50)),
        ];
        let capacity = self.capacity.filter(|_| self.setting.server != Server::Fast);
        all.extend(capacity.map(|capacity| ("of_capacity", "ratio", goodput / capacity)));
        all
    }

    /// Good responses by when they ended.
    fn good_at(&self) -> Vec<f64> {
        let mut all = Vec::new();
        for stream in (0..DISTANCES_MS.len()).filter_map(|door| self.report.stream(&name(door))) {
            all.resize(all.len().max(stream.slots.len()), 0.0);
            for (sum, slot) in all.iter_mut().zip(&stream.slots) {
                *sum += slot.ended.counts.good as f64;
            }
        }
        all
    }

    /// The bottleneck: out of R0 if not said otherwise.
    fn link(&self) -> Vec<Metric> {
        let lost = |packets: f64, dropped: f64| dropped / f64::max(packets + dropped, 1e-9);
        let down = lost(self.rate(packets_down), self.rate(dropped_down));
        let up = lost(
            self.rate(|look| look.up.packets as f64),
            self.rate(|look| look.up.dropped as f64),
        );
        let bits = self.rate(|look| look.down.bytes as f64) * 8.0;
        vec![
            ("loss", "share", down),
            ("loss_up", "share", up),
            ("link", "share", bits / (self.setting.link_mbit * 1e6)),
        ]
    }

    /// Aggregate response rate of the fastest connections, before the crowd and in the measured part.
    fn arr(&self) -> Vec<Metric> {
        let mean = |span: (f64, f64)| {
            let all = self.looks();
            let known: Vec<f64> =
                all.inside(span).map(|look| look.hot.fastest).filter(|rate| *rate > 0.0).collect();
            let sum = known.iter().sum::<f64>() * 8.0 / 1e3;
            (!known.is_empty()).then(|| sum / known.len() as f64)
        };
        let before =
            mean((self.setting.at_s / 2.0, self.setting.at_s)).filter(|_| self.has_crowd());
        let during = mean(self.window());
        let mut all = Vec::new();
        all.extend(before.map(|rate| ("arr_before", "kbit/s", rate)));
        all.extend(during.map(|rate| ("arr", "kbit/s", rate)));
        if let (Some(before), Some(during)) = (before, during) {
            all.push(("arr_fall", "share", 1.0 - during / before));
        }
        all
    }

    fn has_crowd(&self) -> bool {
        is_crowd(self.setting) && self.setting.times > 1.0
    }

    /// Bystanders: latency in the measured part, refusals in the whole run.
    fn beside(&self) -> Vec<Metric> {
        if self.setting.bystanders == Bystanders::Bulk {
            let bits = self.rate(|look| look.quiet.delivered) * 8.0;
            return vec![("bulk", "kbit/s", bits / 1e3)];
        }
        let Some(stream) = self.report.stream(BYSTANDER) else { return Vec::new() };
        let mut all = vec![
            ("bystanders", "connections", stream.total.counts.offered as f64),
            ("bystanders_failed", "connections", stream.total.counts.failed as f64),
        ];
        // Who was not seen was not refused either, and that says nothing.
        let seen = self.looks.last().filter(|look| look.quiet.syns > 0.0);
        all.extend(seen.map(|look| ("bystanders_refused", "connections", look.quiet.refused)));
        if let Some(phase) = stream.phase(MEASURED) {
            let bits = f64::from(self.setting.queue) * PACKET_BITS;
            let full_queue_s = bits / (self.setting.link_mbit * 1e6);
            let times = phase.totals.perceived;
            all.extend([
                ("bystander_mean", "s", times.mean),
                ("bystander_beyond_queue", "s", times.mean - full_queue_s),
                ("bystander_p50", "s", times.p50),
            ]);
        }
        all
    }

    /// What the product did, and when.
    fn control(&self) -> Vec<Metric> {
        if self.setting.control != Control::NewsFast || !self.has_crowd() {
            return Vec::new();
        }
        let (at, looks) = (self.setting.at_s, self.looks());
        let there = |look: &&Look| look.crowd.is_some();
        let early = looks.inside((0.0, at)).filter(there).count();
        let mut all = vec![("early_alarms", "looks", early as f64)];
        let last = looks.all.last().map_or(0.0, |look| looks.time_of(look));
        if let Some(found) = looks.inside((at, last)).find(there) {
            let after = looks.time_of(found) - at;
            all.push(("detected", "s", after));
            // The reason may change within ten seconds.
            let settled = (at + after + SETTLED_S, self.setting.to_s);
            let said: Vec<_> = looks.inside(settled).filter_map(|look| look.crowd).collect();
            let share = |is: usize| is as f64 / said.len().max(1) as f64;
            let of = |is: fn(&super::stand::CrowdLook) -> bool| {
                share(said.iter().filter(|crowd| is(crowd)).count())
            };
            all.push(("says_server", "share", of(|crowd| crowd.server)));
            all.push(("says_link", "share", of(|crowd| crowd.link)));
        }
        let limited = looks
            .share(self.window(), |look| look.crowd.is_some_and(|crowd| crowd.limit.is_some()));
        all.push(("limited", "share", limited));
        all.extend(self.release(last));
        all
    }

    /// Seconds after the end of the crowd until hardly anybody is refused, and alarms that begin later.
    fn release(&self, last: f64) -> Vec<Metric> {
        let end = self.setting.until_s;
        if end + SETTLED_S > last {
            return Vec::new();
        }
        let seconds = (last - end) as usize;
        let in_use = |second: &usize| {
            let from = end + *second as f64;
            let span = (from, from + 1.0);
            self.refused(span) > HARDLY * self.offered(span)
        };
        let free = (0..seconds).rev().find(in_use).map_or(0.0, |second| second as f64 + 1.0);
        let looks = self.looks();
        let after: Vec<bool> = looks.inside((end, last)).map(|look| look.crowd.is_some()).collect();
        let begun = after.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        vec![("full_use", "s", free), ("alarms_after", "alarms", begun as f64)]
    }

    /// What router, relay and generator cost.
    fn costs(&self) -> Vec<Metric> {
        let relay = self.looks.last().map(|look| look.relay).unwrap_or_default();
        vec![
            ("daemon_cpu", "share", self.rate(|look| look.daemon_s)),
            ("relay_late_p50", "s", relay.late_p50),
            ("relay_late_p99", "s", relay.late_p99),
            ("relay_overflowed", "frames", relay.overflowed as f64),
            ("relay_cpu", "share", self.rate(|look| look.relay.cpu)),
            ("generator_cpu", "share", self.report.cpu_peak()),
        ]
    }
}

fn packets_down(look: &Look) -> f64 {
    look.down.packets as f64
}

fn dropped_down(look: &Look) -> f64 {
    look.down.dropped as f64
}

/// The mean over streams, each weighted by its responses.
fn of_answered<'r>(
    phases: impl Iterator<Item = &'r PhaseReport>,
    of: fn(&PhaseReport) -> f64,
) -> f64 {
    let (mut sum, mut answered) = (0.0, 0.0);
    for phase in phases {
        let each = phase.totals.counts.answered as f64;
        sum += of(phase) * each;
        answered += each;
    }
    sum / f64::max(answered, 1.0)
}

#[cfg(test)]
mod tests {
    use super::super::stand::{CrowdLook, Side};
    use super::*;
    use tidegate_lab::ShapedCounts;
    use tidegate_units::Nanos;

    const STARTED: u64 = 1_000;

    fn report() -> LoadReport {
        LoadReport { started: Nanos::from_secs(STARTED), shards: 1, ..LoadReport::default() }
    }

    /// A look a second: 100 SYNs in each, a crowd and refusals between two seconds.
    fn looks(seconds: usize, (from, until): (usize, usize)) -> Vec<Look> {
        let look = |second: usize| {
            let refused = 40.0 * second.clamp(from, until).saturating_sub(from) as f64;
            let hot = Side { syns: 100.0 * second as f64, refused, ..Side::default() };
            let limit = CrowdLook { limit: Some(30.0), server: true, link: false };
            let crowd = (from..until).contains(&second).then_some(limit);
            let (bytes, packets) = (125_000 * second as u64, 300 * second as u64);
            let down = ShapedCounts { bytes, packets, dropped: packets / 3 };
            Look { at_s: (STARTED as usize + second) as f64, hot, crowd, down, ..Look::default() }
        };
        (0..=seconds).map(look).collect()
    }

    fn setting() -> Setting {
        Setting {
            control: Control::NewsFast,
            at_s: 30.0,
            ramp_s: 0.0,
            until_s: 100.0,
            lasts_s: 130.0,
            from_s: 50.0,
            to_s: 90.0,
            ..Setting::default()
        }
    }

    fn value(all: &[Metric], name: &str) -> Option<f64> {
        all.iter().find(|metric| metric.0 == name).map(|metric| metric.2)
    }

    #[test]
    fn alarms_and_release_count_from_the_ends_of_the_crowd() {
        let (setting, report, looks) = (setting(), report(), looks(130, (34, 106)));
        let seen =
            Seen { setting: &setting, report: &report, looks: &looks, capacity: None, real: false };
        let all = seen.metrics();
        for (name, wanted) in [
            ("detected", 4.0),
            ("early_alarms", 0.0),
            ("says_server", 1.0),
            ("limited", 1.0),
            ("full_use", 6.0),
            ("alarms_after", 0.0),
            ("offered", 100.0),
            ("loss", 0.25),
            ("link", 0.5),
        ] {
            assert_eq!(value(&all, name), Some(wanted), "{name}");
        }
        assert_eq!(value(&all, "of_capacity"), None);
        assert_eq!(seen.course().len(), 130);
    }

    /// Without a crowd nothing is found, and nothing is released.
    #[test]
    fn a_quiet_run_has_no_alarms() {
        let (report, looks) = (report(), looks(130, (200, 200)));
        let setting = Setting { times: 1.0, ..setting() };
        let seen =
            Seen { setting: &setting, report: &report, looks: &looks, capacity: None, real: false };
        let all = seen.metrics();
        assert_eq!((value(&all, "detected"), value(&all, "full_use")), (None, None));
    }
}
