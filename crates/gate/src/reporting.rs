// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How well the proxies of one service report: of how many requests nothing is ever reported, and how late
//! reports come. It is for people: no limit follows from it (that is [`crate::reports`]).
//!
//! Requests are counted by the span of 10 s in which they passed, and lost ones in that of their own. The
//! share is that of spans whose requests are all reported or given up. So neither a burst nor a pause
//! changes it.

use crate::flight::AGE_MAX;
use tidegate_model::totals::Histogram;
use tidegate_units::Nanos;

/// Length of a span.
const SPAN: Nanos = Nanos::from_secs(10);
/// So many spans later each request was reported or is given up, at whatever tick that is found.
const SETTLED: u64 = AGE_MAX.0 / SPAN.0 + 2;
/// The share is that of so many spans.
const SPANS_TOLD: u64 = 3;
/// Spans that are remembered, with the present one.
const SPANS: usize = (SETTLED + SPANS_TOLD) as usize;
/// Fewer lost requests, or fewer reports in a span, say nothing.
const LEAST: u64 = 16;
/// From this share on reports are lost: a few requests may last longer than they are followed.
const LOST_SHARE: f64 = 0.1;
/// From this median on reports are late: more than twice that of a log that is flushed every 200 ms, half
/// of that of one that is flushed every second.
const LATE: Nanos = Nanos::from_millis(250);

/// How well a service is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reporting {
    /// Requests that passed and were not reported for 2 min, or not before their place was needed; so far.
    pub unreported: u64,
    /// What lay between the ends of responses and their reports, so far.
    pub delay: Nanos,
    /// The share of them among those that passed 2 to 3 min ago, from 0.1 on; `None`: it is less, or none
    /// of the newer ones is reported either.
    pub lost: Option<f64>,
    /// By how much half of the reports of the last 10 s were late, from 250 ms on.
    pub late: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    passed: u64,
    lost: u64,
}

/// The spans of one service.
#[derive(Default)]
pub(crate) struct Spans {
    spans: [Span; SPANS],
    /// Number of the present one.
    present: u64,
    /// Requests that had passed at the last tick.
    passed: u64,
    /// Delays of reports before the present span.
    before: Histogram,
    unreported: u64,
    lost: Option<f64>,
    late: Option<Nanos>,
}

impl Spans {
    /// Once a tick: how many requests have passed, and the delays of all reports.
    pub(crate) fn tick(&mut self, now: Nanos, passed: u64, delays: &Histogram) {
        let present = now.0 / SPAN.0;
        if present > self.present {
            self.begin(present);
            self.judge(delays);
        }
        let more = passed.saturating_sub(std::mem::replace(&mut self.passed, passed));
        self.spans[place(self.present)].passed += more;
    }

    /// A request that passed then is given up.
    pub(crate) fn lose(&mut self, started: Nanos) {
        self.unreported += 1;
        if let Some(span) = self.of(started) {
            span.lost += 1;
        }
    }

    /// It is reported after all.
    pub(crate) fn find(&mut self, started: Nanos) {
        if let Some(span) = self.of(started) {
            span.lost = span.lost.saturating_sub(1);
        }
    }

    /// What is told; the sum of delays is not known here.
    pub(crate) fn told(&self) -> Reporting {
        let Self { unreported, lost, late, .. } = *self;
        Reporting { unreported, delay: Nanos::ZERO, lost, late }
    }

    /// The span of this time, while it is remembered.
    fn of(&mut self, started: Nanos) -> Option<&mut Span> {
        let number = started.0 / SPAN.0;
        let known = number <= self.present && self.present - number < SPANS as u64;
        known.then(|| &mut self.spans[place(number)])
    }

    /// The span with this number begins; those between had no tick.
    fn begin(&mut self, present: u64) {
        let fresh = (present - self.present).min(SPANS as u64);
        for number in present + 1 - fresh..=present {
            self.spans[place(number)] = Span::default();
        }
        self.present = present;
    }

    fn judge(&mut self, delays: &Histogram) {
        let told = SETTLED..SETTLED + SPANS_TOLD;
        let (mut passed, mut lost) = (0, 0);
        for number in told.filter_map(|back| self.present.checked_sub(back)) {
            let span = self.spans[place(number)];
            (passed, lost) = (passed + span.passed, lost + span.lost);
        }
        let share = lost as f64 / passed.max(lost).max(1) as f64;
        self.lost = (lost >= LEAST && share >= LOST_SHARE).then_some(share);
        let new = delays.since(&self.before);
        self.before.clone_from(delays);
        let median = new.quantile(0.5);
        self.late = (new.count >= LEAST && median >= LATE).then_some(median);
    }
}

const fn place(number: u64) -> usize {
    (number % SPANS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Ticks every second until then; so many pass in each, and so many of these are given up after 2 min.
    struct World {
        spans: Spans,
        now: u64,
        passed: u64,
        delays: Histogram,
        /// When those passed that are not given up yet, and how many of them are lost.
        lost: VecDeque<(u64, u64)>,
    }

    impl World {
        fn new() -> Self {
            let (spans, delays) = (Spans::default(), Histogram::default());
            Self { spans, now: 100_000, passed: 0, delays, lost: VecDeque::new() }
        }

        fn run(&mut self, seconds: u64, (passed, lost): (u64, u64), late_ms: u64) -> Reporting {
            for _ in 0..seconds {
                self.now += 1;
                let late = Nanos::from_millis(late_ms);
                (lost..passed).for_each(|_| self.delays.record(late));
                self.passed += passed;
                self.spans.tick(Nanos::from_secs(self.now), self.passed, &self.delays);
                self.lost.push_back((self.now, lost));
                while let Some((at, lost)) = self.lost.front().copied() {
                    if self.now - at <= AGE_MAX.0 / Nanos::SECOND.0 {
                        break;
                    }
                    (0..lost).for_each(|_| self.spans.lose(Nanos::from_secs(at)));
                    self.lost.pop_front();
                }
            }
            self.spans.told()
        }
    }

    #[test]
    fn the_share_is_told_of_those_that_passed_together_and_ends() {
        let mut world = World::new();
        assert_eq!(world.run(120, (100, 30), 10).lost, None, "they may still be reported");
        let told = world.run(60, (100, 30), 10);
        assert!(told.lost.is_some_and(|share| (share - 0.3).abs() < 0.02), "{told:?}");
        assert!(told.unreported >= 1700, "{told:?}");
        let after = world.run(130, (100, 0), 10);
        assert!(after.lost.is_some(), "the last of them passed 130 s ago: {after:?}");
        assert_eq!(world.run(30, (100, 0), 10).lost, None);
    }

    /// A tenth is too much, less is not; 16 are enough, 15 are not.
    #[test]
    fn the_bounds_of_the_share() {
        for (of, told) in [((100, 10), true), ((100, 9), false), ((1, 1), true), ((0, 0), false)] {
            assert_eq!(World::new().run(200, of, 10).lost.is_some(), told, "{of:?}");
        }
        for (lost, told) in [(16, true), (15, false)] {
            let mut world = World::new();
            world.run(1, (20, lost), 10);
            assert_eq!(world.run(139, (0, 0), 0).lost.is_some(), told, "{lost}");
        }
    }

    /// Few are lost of many; then hardly anybody comes, while those many are given up.
    #[test]
    fn a_burst_and_a_pause_are_no_loss() {
        let mut world = World::new();
        for _ in 0..20 {
            assert_eq!(world.run(15, (2000, 20), 10).lost, None);
            assert_eq!(world.run(15, (1, 0), 10).lost, None);
        }
        assert_eq!(world.run(10_000, (0, 0), 0).lost, None);
        assert_eq!(world.run(15, (2000, 20), 10).lost, None);
    }

    #[test]
    fn who_is_reported_after_all_is_not_lost() {
        let mut world = World::new();
        world.run(140, (100, 30), 10);
        let at = Nanos::from_secs(world.now - 130);
        let lost = |spans: &mut Spans| spans.of(at).unwrap().lost;
        let before = lost(&mut world.spans);
        (0..before + 1).for_each(|_| world.spans.find(at));
        assert_eq!(lost(&mut world.spans), 0);
        for at in [0, world.now - 400, world.now + 400] {
            world.spans.find(Nanos::from_secs(at));
            world.spans.lose(Nanos::from_secs(at));
        }
        assert!(world.spans.spans.iter().all(|span| span.lost <= span.passed));
    }

    #[test]
    fn late_is_half_of_the_reports_of_ten_seconds() {
        let late = |ms| World::new().run(20, (100, 0), ms).late;
        assert_eq!((late(0), late(200)), (None, None));
        assert!(late(1000).is_some_and(|by| (0.9..1.1).contains(&by.as_secs_f64())));
        let mut world = World::new();
        for _ in 0..10 {
            world.run(9, (100, 0), 50);
            assert_eq!(world.run(1, (400, 0), 2000).late, None, "fewer than half");
        }
        assert!(world.run(20, (100, 0), 500).late.is_some());
        assert_eq!(world.run(20, (100, 0), 50).late, None, "it is over");
        assert_eq!(world.run(20, (1, 0), 2000).late, None, "ten say nothing");
    }
}
