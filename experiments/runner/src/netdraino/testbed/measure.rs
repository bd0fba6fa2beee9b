// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what was seen of a run to its metrics.

use super::cost;
use super::load::{AGENTS, MEASURED, Span, name};
use super::setting::{K, Setting};
use super::stand::{Attacked, Look, Mark, RouterLook};
use crate::testbed::{Looks, Metric};
use tidegate_lab::{LoadReport, RoadHost, StreamReport};

/// Arrivals are at the limit when they are within this share of it.
const NEAR: f64 = 1.1;
/// On average of so many seconds.
const NEAR_SECONDS: usize = 3;

/// What was seen of one run.
pub(super) struct Seen<'a> {
    pub(super) setting: &'a Setting,
    pub(super) report: &'a LoadReport,
    pub(super) span: Span,
    pub(super) marks: (Mark, Mark),
    pub(super) looks: &'a [Look],
    /// Routers whose rule is there whatever happens.
    pub(super) fixed_rules: usize,
    /// What became of an attack.
    pub(super) attacked: Option<Attacked>,
}

impl Seen<'_> {
    /// All metrics that one run gives.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let (s0, s1) = (self.answered(RoadHost::S0), self.answered(RoadHost::S1));
        let arrivals = self.rate(|look| look.arrived);
        let mut all = vec![
            ("throughput", "1/s", s0 + s1),
            ("s0", "1/s", s0),
            ("s1", "1/s", s1),
            ("s1_within_1s", "1/s", self.good(RoadHost::S1)),
            ("s1_time", "s", self.time(RoadHost::S1)),
            ("arrivals", "1/s", arrivals),
            ("over_k_rate", "ratio", arrivals / (K * self.setting.s0_rate)),
            ("s0_dropped", "1/s", self.rate(|look| look.refused)),
            ("routers_dropped", "1/s", self.rate(refused_by_routers)),
            ("limited_routers", "routers", self.limited_routers() as f64),
            ("limited", "share", self.share(|look| look.routers.iter().any(is_limited))),
            ("congested", "share", self.share(|look| look.routers.iter().any(|r| r.congested))),
        ];
        all.extend(self.link());
        all.extend(cost::of(self.marks));
        all.extend(self.held());
        all.extend(self.attacked.iter().flat_map(|attacked| cost::attack(attacked, self.looks)));
        if self.setting.udp_mbit > 0.0 {
            all.extend(self.datagrams());
        }
        if let Some(first) = self.first(limit) {
            all.push(("first_limit", "s", first));
            let near = self.within(first, |look| look.arrived, self.setting.s0_rate);
            all.extend(near.map(|seconds| ("within", "s", seconds)));
        }
        let counted = self.looks.iter().all(|look| look.datagrams.is_some());
        if let Some(first) = self.first(datagram_limit).filter(|_| counted) {
            all.push(("datagrams_first_limit", "s", first));
            let came = |look: &Look| look.datagrams.unwrap_or(0.0);
            let near = self.within(first, came, self.setting.s0_datagrams);
            all.extend(near.map(|seconds| ("datagrams_within", "s", seconds)));
        }
        all
    }

    /// The course, second by second.
    pub(super) fn course(&self) -> Vec<(f64, Vec<Metric>)> {
        let s1 = self.per_second(RoadHost::S1);
        let one = |second: usize| {
            let at = second as f64;
            let mut all = vec![
                ("arrivals_at", "1/s", self.between(|look| look.arrived, at, at + 1.0)),
                ("s1_at", "1/s", s1.get(second).copied().unwrap_or(0.0)),
            ];
            let looks = self.looks.iter().filter(|look| self.time_of(look) >= at);
            let limit = looks.map(limit).next().flatten();
            all.extend(limit.map(|limit| ("limit_at", "1/s", limit)));
            (at, all)
        };
        (0..self.span.to as usize).map(one).collect()
    }

    fn streams(&self, host: RoadHost) -> impl Iterator<Item = &StreamReport> {
        let names = (0..AGENTS).map(move |agent| name(host, agent));
        names.filter_map(|name| self.report.stream(&name))
    }

    /// Responses per second, by when they ended.
    fn answered(&self, host: RoadHost) -> f64 {
        let slots = self.streams(host).flat_map(|stream| &stream.slots);
        let inside = |start: f64| start >= self.span.from - 1e-6 && start < self.span.to - 1e-6;
        let sum: u64 =
            slots.filter(|slot| inside(slot.start)).map(|slot| slot.ended.counts.answered).sum();
        sum as f64 / self.span.seconds()
    }

    fn per_second(&self, host: RoadHost) -> Vec<f64> {
        let mut all = Vec::new();
        for stream in self.streams(host) {
            all.resize(all.len().max(stream.slots.len()), 0.0);
            for (sum, slot) in all.iter_mut().zip(&stream.slots) {
                *sum += slot.ended.counts.answered as f64;
            }
        }
        all
    }

    /// Of those that began in the measured part, the ones that were answered within the objective, per second.
    fn good(&self, host: RoadHost) -> f64 {
        let phases = self.streams(host).filter_map(|stream| stream.phase(MEASURED));
        phases.map(|phase| phase.totals.goodput).sum()
    }

    /// Their mean time until the whole response.
    fn time(&self, host: RoadHost) -> f64 {
        let phases = self.streams(host).filter_map(|stream| stream.phase(MEASURED));
        let (mut sum, mut answered) = (0.0, 0.0);
        for totals in phases.map(|phase| &phase.totals) {
            let each = totals.counts.answered as f64;
            sum += totals.perceived.mean * each;
            answered += each;
        }
        sum / f64::max(answered, 1.0)
    }

    fn looks(&self) -> Looks<'_, Look> {
        let started_s = self.report.started.as_secs_f64();
        Looks { all: self.looks, at_s: |look| look.at_s, started_s }
    }

    fn time_of(&self, look: &Look) -> f64 {
        self.looks().time_of(look)
    }

    fn between(&self, of: fn(&Look) -> f64, from: f64, to: f64) -> f64 {
        self.looks().between(of, (from, to))
    }

    /// Per second of the measured part.
    fn rate(&self, of: fn(&Look) -> f64) -> f64 {
        self.between(of, self.span.from, self.span.to)
    }

    /// Of the looks in the measured part.
    fn share(&self, is: impl Fn(&Look) -> bool) -> f64 {
        self.looks().share((self.span.from, self.span.to), is)
    }

    /// Routers that had a limit at any time.
    fn limited_routers(&self) -> usize {
        let routers = self.looks.first().map_or(0, |look| look.routers.len());
        let had = |router: &usize| self.looks.iter().any(|look| is_limited(&look.routers[*router]));
        (0..routers).filter(had).count() + self.fixed_rules
    }

    /// When a router had such a limit first, in seconds since the load began.
    fn first(&self, limit: fn(&Look) -> Option<f64>) -> Option<f64> {
        let look = self.looks.iter().find(|look| limit(look).is_some())?;
        Some(self.time_of(look))
    }

    /// Seconds after that until what arrives at S0 is at k times its rate.
    fn within(&self, first: f64, came: fn(&Look) -> f64, rate: f64) -> Option<f64> {
        let bound = NEAR * K * rate;
        let last = (self.span.to - first) as usize;
        let arrived = |second: usize| {
            let from = first + second as f64;
            self.between(came, from, from + NEAR_SECONDS as f64)
        };
        let near =
            (0..(last + 1).saturating_sub(NEAR_SECONDS)).find(|second| arrived(*second) <= bound);
        near.map(|second| second as f64)
    }

    /// A rule of FlowSpec that holds in the whole measured part: what it lets pass, and what arrives, over its rate.
    fn held(&self) -> Vec<Metric> {
        let rule = |look: &Look| {
            let router = look.routers.iter().find(|router| router.passed.is_some())?;
            Some((look.at_s, router.passed?, router.limit?))
        };
        let seen = self.looks();
        let rules: Option<Vec<(f64, f64, f64)>> =
            seen.inside((self.span.from, self.span.to)).map(rule).collect();
        let Some([(began, before, _), .., (ended, after, rate)]) = rules.as_deref() else {
            return Vec::new();
        };
        let passed = (after - before) / (ended - began).max(1e-9);
        vec![
            ("told", "1/s", *rate),
            ("rule_over_rate", "ratio", passed / rate),
            ("arrivals_over_rate", "ratio", self.rate(|look| look.arrived) / rate),
        ]
    }

    fn link(&self) -> [Metric; 2] {
        let (begin, end) = self.marks;
        let of = |count: fn(&Mark) -> u64| count(&end).saturating_sub(count(&begin)) as f64;
        let carried = self.setting.link_bytes() * (end.at_s - begin.at_s).max(1e-9);
        let (packets, dropped) = (of(|mark| mark.narrow.packets), of(|mark| mark.narrow.dropped));
        [
            ("link_used", "share", of(|mark| mark.narrow.bytes) / carried),
            ("link_lost", "share", dropped / f64::max(packets + dropped, 1.0)),
        ]
    }

    fn datagrams(&self) -> [Metric; 4] {
        let (begin, end) = self.marks;
        let seconds = (end.at_s - begin.at_s).max(1e-9);
        let of =
            |count: fn(&Mark) -> u64| count(&end).saturating_sub(count(&begin)) as f64 / seconds;
        let passed = of(|mark| mark.datagrams.passed);
        let arrived = passed + of(|mark| mark.datagrams.refused);
        [
            ("datagrams_arrived", "1/s", arrived),
            ("datagrams", "1/s", passed),
            ("datagrams_over_k_rate", "ratio", arrived / (K * self.setting.s0_datagrams)),
            ("routers_dropped_datagrams", "1/s", self.rate(datagrams_refused_by_routers)),
        ]
    }
}

fn refused_by_routers(look: &Look) -> f64 {
    look.routers.iter().map(|router| router.refused).sum()
}

fn datagrams_refused_by_routers(look: &Look) -> f64 {
    look.routers.iter().map(|router| router.refused_datagrams).sum()
}

fn is_limited(router: &RouterLook) -> bool {
    router.limit.is_some() || router.datagram_limit.is_some()
}

/// The tightest limit on datagrams that a router has.
fn datagram_limit(look: &Look) -> Option<f64> {
    look.routers.iter().filter_map(|router| router.datagram_limit).reduce(f64::min)
}

/// The tightest limit on SYNs that a router has.
fn limit(look: &Look) -> Option<f64> {
    look.routers.iter().filter_map(|router| router.limit).reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_lab::{DatagramCounts, LoadReport, ShapedCounts};
    use tidegate_units::Nanos;

    const STARTED: u64 = 1_000;

    fn report() -> LoadReport {
        LoadReport { started: Nanos::from_secs(STARTED), shards: 1, ..LoadReport::default() }
    }

    /// A look each second; so many SYNs in it, and a limit of R2 from a second on.
    fn looks(arrived: &[f64], limited_from: usize) -> Vec<Look> {
        let mut sum = 0.0;
        let mut all = Vec::new();
        for second in 0..=arrived.len() {
            let limit = (second >= limited_from).then_some(100.0);
            let router = RouterLook {
                limit,
                refused: 2.0 * second as f64,
                congested: second >= 1,
                ..RouterLook::default()
            };
            let at_s = (STARTED + second as u64) as f64;
            let routers = vec![RouterLook::default(), router];
            all.push(Look { at_s, arrived: sum, routers, ..Look::default() });
            sum += arrived.get(second).copied().unwrap_or(0.0);
        }
        all
    }

    fn with<T>(looks: &[Look], marks: (Mark, Mark), of: impl FnOnce(&Seen<'_>) -> T) -> T {
        let (setting, report) = (Setting::default(), report());
        let span = Span { from: 2.0, to: looks.len() as f64 - 1.0 };
        let (setting, report) = (&setting, &report);
        of(&Seen { setting, report, span, marks, looks, fixed_rules: 0, attacked: None })
    }

    fn value(all: &[Metric], name: &str) -> Option<f64> {
        all.iter().find(|metric| metric.0 == name).map(|metric| metric.2)
    }

    /// The rate is 100/s, k 1.2: 132 counts as near.
    #[test]
    fn arrivals_are_at_the_limit_when_three_seconds_are() {
        let within = |arrived: &[f64]| {
            with(&looks(arrived, 1), <(Mark, Mark)>::default(), |seen| {
                value(&seen.metrics(), "within")
            })
        };
        assert_eq!(within(&[0.0, 132.0, 132.0, 132.0]), Some(0.0));
        assert_eq!(within(&[0.0, 500.0, 200.0, 132.0, 130.0, 132.0]), Some(2.0));
        assert_eq!(within(&[0.0, 500.0, 200.0, 132.0, 132.0, 133.0]), None);
    }

    /// S0 takes 50 a second, so 66 counts as near; and what no hook counts is not measured.
    #[test]
    fn datagrams_have_a_time_of_their_own() {
        let mut all = looks(&[0.0; 6], 9);
        let came = [0.0, 500.0, 500.0, 66.0, 66.0, 66.0];
        let mut sum = 0.0;
        for (second, look) in all.iter_mut().enumerate() {
            look.datagrams = Some(sum);
            sum += came.get(second).copied().unwrap_or(0.0);
            look.routers[1].datagram_limit = (second >= 1).then_some(50.0);
        }
        let of = |all: &[Look], name: &str| {
            with(all, <(Mark, Mark)>::default(), |seen| value(&seen.metrics(), name))
        };
        assert_eq!(of(&all, "datagrams_first_limit"), Some(1.0));
        assert_eq!(of(&all, "datagrams_within"), Some(2.0));
        all[4].datagrams = None;
        assert_eq!(of(&all, "datagrams_within"), None);
    }

    #[test]
    fn counts_become_rates_of_the_measured_part() {
        let all = looks(&[400.0, 300.0, 100.0, 140.0], 2);
        let metrics = with(&all, <(Mark, Mark)>::default(), |seen| seen.metrics());
        for (name, wanted) in [
            ("arrivals", 120.0),
            ("over_k_rate", 1.0),
            ("routers_dropped", 2.0),
            ("limited_routers", 1.0),
            ("limited", 1.0),
            ("congested", 1.0),
            ("first_limit", 2.0),
        ] {
            assert_eq!(value(&metrics, name), Some(wanted), "{name}");
        }
        assert_eq!(value(&metrics, "datagrams"), None);
        let arrived = |look: &Look| look.arrived;
        let half = with(&all, <(Mark, Mark)>::default(), |seen| seen.looks().at(arrived, 0.25));
        assert_eq!(half, 100.0);
    }

    #[test]
    fn the_link_and_datagrams_are_counted_between_the_marks() {
        let mark = |at_s: f64, many: u64| Mark {
            at_s,
            narrow: ShapedCounts {
                bytes: 250_000 * many,
                packets: 300 * many,
                dropped: 100 * many,
            },
            datagrams: DatagramCounts { passed: 40 * many, refused: 80 * many },
            ..Mark::default()
        };
        let all = looks(&[100.0; 4], 9);
        let (used, datagrams) =
            with(&all, (mark(7.0, 1), mark(9.0, 2)), |seen| (seen.link(), seen.datagrams()));
        assert_eq!((used[0].2, used[1].2), (0.5, 0.25));
        assert_eq!([datagrams[0].2, datagrams[1].2, datagrams[2].2], [60.0, 20.0, 1.0]);
    }

    /// A rule of 100/s of which 102/s pass; and one that was not there all the time.
    #[test]
    fn a_rule_holds_its_rate_while_it_is_there() {
        let mut all = looks(&[100.0; 6], 0);
        for (second, look) in all.iter_mut().enumerate() {
            look.routers[1].passed = Some(102.0 * second as f64);
        }
        let held = |looks: &[Look]| with(looks, <(Mark, Mark)>::default(), |seen| seen.held());
        let found = held(&all);
        assert_eq!(value(&found, "told"), Some(100.0));
        assert!((value(&found, "rule_over_rate").unwrap() - 1.02).abs() < 1e-9, "{found:?}");
        assert_eq!(value(&found, "arrivals_over_rate"), Some(1.0));
        all[3].routers[1].passed = None;
        assert!(held(&all).is_empty());
    }
}
