// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probes beyond a full limit in flight.
//!
//! Thousands of long polls at once fill the limit in flight of calm, and none of them ends. From then
//! on nobody is let in, so nothing completes, so nothing shows that the server would answer at once: the
//! limit would stay full for as long as the polls stay. A hung server looks the same from here. The
//! difference shows in who comes next, and only if somebody may. So where the limit refuses, next to
//! nothing completes, and the server uses no CPU and has accepted all that came, a few more are let in,
//! again and again. One answer as fast as ever settles it: what stays is harmless (see harmless.rs).
//! Behind a server that hangs, what piles up meanwhile is at most some hundred a second.

use super::DefaultController;
use crate::history::Sums;
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// Where no more of the CPU is used, the server does nothing.
const PROBE_CPU: f64 = 0.1;
/// For so long, three ticks. Then a probe comes in each such time.
const PROBE_SECONDS: f64 = 0.3;
/// So much of the guard.
const PROBE_GUARD: f64 = 0.125;

/// The limit in flight, and whether it holds off anything.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    /// Seconds for which it has refused beside an idle server.
    shut_s: f64,
    /// Jobs that probes have added since, for as long as nothing completes.
    jobs: f64,
}

impl Probe {
    /// Jobs beyond the limit that may be tried.
    pub(super) const fn jobs(&self) -> f64 {
        self.jobs
    }

    /// Takes so many seconds in which the limit refused beside an idle server.
    fn shut(&mut self, seconds: f64, guard: f64) {
        self.shut_s += seconds;
        if self.shut_s >= PROBE_SECONDS {
            self.jobs += (PROBE_GUARD * guard).ceil();
            self.shut_s = 0.0;
        }
    }
}

impl DefaultController {
    /// Takes a tick; `free` as in harmless.rs.
    pub(super) fn probe(&mut self, sums: &Sums, signals: &Signals, free: bool, age_max: Nanos) {
        let cpu = signals.resource.cpu.and_then(|cpu| cpu.within(age_max));
        let queue = signals.queue.accept.and_then(|queue| queue.within(age_max));
        let idle = free
            && cpu.is_some_and(|cpu| cpu.get() < PROBE_CPU)
            && queue.is_some_and(|queue| queue.length == 0);
        if self.shed.is_some() || !self.stall.is_on() {
            let settled = self.probe.jobs > 0.0 || self.harmless.follows();
            self.probe = Probe::default();
            if settled && idle && self.shed.is_none() && self.answers_fast(sums) {
                self.harmless.found(self.waiting());
                self.usual = self.usual.max(self.harmless.jobs);
            }
            return;
        }
        if idle && sums.turned_away > 0.0 {
            self.probe.shut(sums.seconds, self.guard());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DefaultController;
    use super::super::harmless::tests::{calm, tick};
    use crate::{Controller, Mode};
    use tidegate_model::signals::Signals;
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
        s.resource.cpu = Some(tidegate_model::signals::Reading::fresh(Share::new(0.02)));
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
        let mut limit = controller.last.waiting_max.expect("a limit in flight");
        let mut waiting = 2;
        let each = |n: u64| {
            let admitted = came.min(limit.saturating_sub(waiting));
            let answered = admitted * honest / 100;
            waiting += admitted - answered;
            let signals = idle(400 + n, (came, admitted, answered), waiting);
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
        let ticks = crowd(&mut controller, 1_000, 9, 30);
        assert!(ticks[2].1 < 100, "the limit is full: {ticks:?}");
        // From then on a guard in each tick.
        assert!(ticks[15..].iter().all(|(_, admitted)| *admitted > 200), "{ticks:?}");
    }

    /// With 200/s it used 0.3 of the CPU, so it reaches 667/s: an eighth of 0.8 of that in each probe.
    #[test]
    fn behind_a_server_that_hangs_little_piles_up() {
        let mut controller = calm();
        let ticks = crowd(&mut controller, 1_000, 0, 100);
        let (first, last) = (ticks[2].0, ticks[99].0);
        assert!(last - first <= 34 * 67, "{first}, {last}");
    }
}
