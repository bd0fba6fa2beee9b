// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Beyond a full limit in flight that nobody leaves.
//!
//! Thousands of long polls at once fill the limit in flight of calm, and none of them ends. From then
//! on nobody is let in, so nothing completes, so nothing shows that the server would answer at once: the
//! limit would stay full for as long as the polls stay. A flash crowd looks different: its completions go
//! on at the capacity. A server that stands still does, too: it leaves connections in the accept queue.
//!
//! So where the limit is full, nothing completes for longer than chance and a response take, the accept
//! queue is empty and the CPU is not short, those in flight may hold nothing (see harmless.rs). A
//! dependency that hangs looks the same, and the difference shows in who comes next. The controller
//! raises the limit: by what the server has answered within the objective, or by as many as are known
//! to hold nothing. It does so again once new connections have been answered. While none is, it raises
//! it by an eighth of that, after times that double: behind a dependency that hangs, eight such steps pile
//! up in a minute. If there is an alarm, and half of those in flight are known, it ends.

use super::detector::Actuator;
use super::evidence::lossy;
use super::scale::{LASTING_SECONDS, SILENT_COMPLETIONS};
use super::{Detector, Tick};
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// The limit counts as full from this share of it on.
const FULL_SHARE: f64 = 0.875;
/// Silence in response times.
const SILENT_RESPONSES: f64 = 3.0;
/// Of the connections that asked since the limit was raised, this share has to be answered.
const ANSWERED_SHARE: f64 = 1.0 / 128.0;
/// While an alarm sets the limit, so many of those in flight have to be known to hold nothing.
const KNOWN_SHARE: f64 = 0.5;
/// Seconds to the first raise that nothing has confirmed; twice as many to each next one.
const TRY_SECONDS: f64 = 0.3;
/// Such a raise, in what the server has answered within the objective.
const TRY_HEADROOM: f64 = 0.125;
/// A raise that nobody needs is gone after so many seconds.
const OPEN_SECONDS: f64 = 0.3;

/// The limit in flight, and what is let in beyond it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    /// Connections that asked, and got their first response in time, since the last raise.
    asked: f64,
    answered: f64,
    /// Seconds without a completion at a full limit, in calm and in an alarm.
    silent_s: f64,
    alarm_s: f64,
    /// Seconds since the last raise at a full limit, and how many were not confirmed.
    tried_s: f64,
    tries: u32,
    /// Seconds for which the limit has not been full.
    open_s: f64,
    /// Jobs beyond the headroom.
    beyond: f64,
}

impl Probe {
    /// Whether an alarm's limit holds off nothing.
    pub(super) fn in_vain(&self) -> bool {
        self.alarm_s >= LASTING_SECONDS
    }

    /// Jobs beyond the headroom that may be tried.
    pub(super) const fn beyond(&self) -> f64 {
        self.beyond
    }

    /// Whether enough of the new connections were answered.
    fn is_confirmed(&self) -> bool {
        self.answered >= 1.0 && self.answered >= ANSWERED_SHARE * self.asked
    }
}

impl Detector {
    /// Takes a tick, and the limit on the jobs in flight; `free` as in harmless.rs.
    pub(super) fn probe(
        &mut self,
        tick: &Tick,
        signals: &Signals,
        (limit, free): (Option<u64>, bool),
        age_max: Nanos,
    ) {
        let sums = &tick.sums;
        if self.actuator == Actuator::Rules || sums.with_repeated() == 0.0 {
            return;
        }
        self.probe.asked += sums.asked;
        if sums.responses > 0.0 && sums.medians_s <= self.objective_s * sums.responses {
            self.probe.answered += sums.answered;
        }
        let queue = signals.queue.accept.and_then(|queue| queue.within(age_max));
        let full = |most: u64| tick.waiting >= FULL_SHARE * most as f64;
        let shut = free
            && queue.is_some_and(|queue| queue.length == 0)
            && limit.is_some_and(full)
            && sums.turned_away > 0.0
            && sums.completed == 0.0
            && !lossy(&self.history);
        if !shut {
            self.probe.silent_s = 0.0;
            self.probe.alarm_s = 0.0;
            self.probe.open_s += sums.seconds;
            if self.probe.open_s >= OPEN_SECONDS {
                self.probe.beyond = 0.0;
                self.probe.tries = 0;
            }
            return;
        }
        self.probe.open_s = 0.0;
        if self.episode.is_some() {
            // A server that works for clients who left completes nothing, either.
            let known = self.harmless.jobs > KNOWN_SHARE * tick.waiting;
            self.probe.alarm_s = if known { self.probe.alarm_s + sums.seconds } else { 0.0 };
            return;
        }
        self.probe.silent_s += sums.seconds;
        self.probe.tried_s += sums.seconds;
        let response_s = self.baseline.known_s().unwrap_or(self.objective_s);
        if self.peak * self.probe.silent_s < SILENT_COMPLETIONS
            || self.probe.silent_s < SILENT_RESPONSES * response_s
        {
            return;
        }
        if self.probe.is_confirmed() {
            let more = self.harmless.jobs.max(self.headroom_of_peak());
            self.harmless.found(tick.waiting);
            self.usual = self.usual.max(tick.waiting);
            self.probe = Probe { beyond: (more - self.headroom()).max(0.0), ..Probe::default() };
        } else if self.probe.tried_s >= TRY_SECONDS * f64::from(1_u32 << self.probe.tries.min(16)) {
            let step = (TRY_HEADROOM * self.headroom_of_peak()).ceil();
            let full = (tick.waiting - self.usual - self.headroom()).max(self.probe.beyond);
            let tries = self.probe.tries + 1;
            self.probe = Probe { beyond: full + step, tries, ..Probe::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::harmless::tests::{calm, tick};
    use crate::{Controller, DefaultController, Mode};
    use tidegate_model::signals::{Reading, Signals};
    use tidegate_units::Share;

    /// A tick of a server that uses no CPU: so many came, were admitted, and completed.
    fn idle(n: u64, (came, admitted, completed): (u64, u64, u64), waiting: u64) -> Signals {
        let mut s = tick(n, (came, completed, waiting), 10);
        if let Some(counts) = &mut s.balance.counts {
            counts.value.admitted = admitted;
            counts.value.refused = came - admitted;
            if let Some(connections) = &mut counts.value.connections {
                connections.replied = admitted;
                connections.proved = admitted;
                connections.asked = admitted;
            }
        }
        s.resource.cpu = Some(Reading::fresh(Share::new(0.02)));
        s
    }

    /// A crowd in front of the limit in flight: those who never end fill it, `honest` of 100 others
    /// are answered at once if they are let in. Jobs in flight, and who was let in, tick by tick.
    fn crowd(
        controller: &mut DefaultController,
        came: u64,
        honest: u64,
        ticks: u64,
    ) -> Vec<(u64, u64)> {
        crowd_of(controller, (came, 0), honest, ticks)
    }

    /// The same; of those who come so many come again.
    fn crowd_of(
        controller: &mut DefaultController,
        (came, again): (u64, u64),
        honest: u64,
        ticks: u64,
    ) -> Vec<(u64, u64)> {
        let mut limit = controller.last.waiting_max.expect("a limit in flight");
        let mut waiting = 2;
        let each = |n: u64| {
            let admitted = came.min(limit.saturating_sub(waiting));
            let answered = admitted * honest / 100;
            waiting += admitted - answered;
            let mut signals = idle(400 + n, (came, admitted, answered), waiting);
            if let Some(counts) = &mut signals.balance.counts {
                counts.value.repeated = again;
            }
            let limits = controller.tick(&signals, Mode::Enforce);
            assert!(!limits.why.shedding, "tick {n}: {}", limits.why.text);
            limit = limits.waiting_max.expect("a limit in flight");
            (waiting, admitted)
        };
        (0..ticks).map(each).collect()
    }

    #[test]
    fn polls_that_fill_the_limit_at_once_do_not_shut_out_the_others() {
        let mut controller = calm();
        let ticks = crowd(&mut controller, 1_000, 9, 35);
        assert!(ticks[2].1 < 100, "the limit is full: {ticks:?}");
        let (waiting, _) = ticks[34];
        assert!(waiting > 10_000, "{ticks:?}");
    }

    #[test]
    fn nor_do_they_where_only_repeated_syns_come() {
        let ticks = crowd_of(&mut calm(), (1_000, 1_000), 9, 35);
        assert!(ticks[2].1 < 100, "the limit is full: {ticks:?}");
        assert!(ticks[34].0 > 10_000, "{ticks:?}");
    }

    /// A source that is refused for itself says nothing of the limit.
    #[test]
    fn a_limit_that_is_not_full_is_not_raised() {
        let mut controller = calm();
        let before = controller.last.waiting_max;
        for n in 0..100 {
            controller.tick(&idle(400 + n, (20, 0, 0), 2), Mode::Enforce);
        }
        assert!(
            controller.detector.probe.beyond() == 0.0,
            "{before:?} {:?}",
            controller.last.waiting_max
        );
    }

    /// What was answered before the hang confirms the first raise. Then an eighth of 256 after 0.3, 0.6,
    /// 1.2, 2.4 and 4.8 s.
    #[test]
    fn behind_a_server_that_hangs_little_piles_up() {
        let mut controller = calm();
        let ticks = crowd(&mut controller, 1_000, 0, 100);
        let (first, last) = (ticks[2].0, ticks[99].0);
        assert!(last - first <= 256 + 312 + 6 * 32, "{first}, {last}");
    }

    /// Polls that were known before an alarm raise its ceiling, so it never seems to hold off little. New ones fill the limit, and nothing
    /// completes: it ends because most of those in flight hold nothing.
    #[test]
    fn an_alarm_ends_whose_limit_is_full_of_polls() {
        let mut controller = calm();
        let polls = crowd(&mut controller, 1_000, 9, 35)[34].0;
        let known = controller.detector.harmless.jobs;
        assert!(known > 5_000.0, "{known}");
        let (mut n, mut waiting) = (500, polls);
        let limits = loop {
            (n, waiting) = (n + 1, waiting + 180);
            assert!(n < 700, "no alarm");
            let mut signals = tick(n, (200, 20, waiting), 500);
            signals.resource.cpu = Some(Reading::fresh(Share::new(1.0)));
            let limits = controller.tick(&signals, Mode::Enforce);
            if limits.why.shedding {
                break limits;
            }
        };
        let mut limit = limits.waiting_max.expect("a limit in flight");
        let ended = (1..300).find(|after| {
            let limits = controller.tick(&idle(n + after, (1_000, 0, 0), limit), Mode::Enforce);
            limit = limits.waiting_max.unwrap_or(limit);
            !limits.why.shedding
        });
        assert!(ended.is_some_and(|ticks| ticks < 100), "{ended:?} {limit}");
    }
}
