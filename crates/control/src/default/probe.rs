// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Beyond a full limit in flight that nobody leaves.
//!
//! Thousands of long polls at once fill the limit in flight of calm, and none of them ends. From then
//! on nobody is let in, so nothing completes, so nothing shows that the server would answer at once: the
//! limit would stay full for as long as the polls stay. A crowd looks different: its completions go on
//! at the capacity. A server that stands still does, too: it leaves connections in the accept queue.
//!
//! So where the limit turns away all who come, nothing completes, the accept queue is empty and the CPU
//! is not short, those in flight hold nothing (see harmless.rs), and an alarm ends. Only a dependency
//! that hangs looks the same, and the difference shows in who comes next. As many more are let in as are
//! known to hold nothing, or as are answered within the objective. If any of them is answered, so are
//! the next. If none is, a few more are tried again and again: behind a dependency that hangs, a third
//! of what the server can do piles up.

use super::{DefaultController, Tick};
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// All who come, but for who is let in by chance.
const SHUT_SHARE: f64 = 0.875;
/// Where an alarm set the limit, so many of those in flight have to be known to hold nothing.
const KNOWN_SHARE: f64 = 0.5;
/// A few more are tried each so many seconds (what was let in and not used is gone after as many),
const TRY_SECONDS: f64 = 0.3;
/// so much of what it has answered within the objective.
const TRY_GUARD: f64 = 0.125;

/// The limit in flight, and what is let in beyond it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    /// Whether anybody has been answered in time since it was raised.
    answered: bool,
    /// Seconds for which nobody was, and for which the limit has not been full.
    shut_s: f64,
    open_s: f64,
    /// Jobs beyond the guard.
    beyond: f64,
}

impl Probe {
    /// Whether those in flight hold off nothing that refusals shorten.
    pub(super) fn in_vain(&self) -> bool {
        self.shut_s >= TRY_SECONDS
    }

    /// Jobs beyond the guard that may be tried.
    pub(super) const fn beyond(&self) -> f64 {
        self.beyond
    }
}

impl DefaultController {
    /// Takes a tick; `free` as in harmless.rs.
    pub(super) fn probe(&mut self, tick: &Tick, signals: &Signals, free: bool, age_max: Nanos) {
        let sums = &tick.sums;
        self.probe.answered |=
            sums.responses > 0.0 && sums.medians_s <= self.objective_s * sums.responses;
        let queue = signals.queue.accept.and_then(|queue| queue.within(age_max));
        let shut = free
            && queue.is_some_and(|queue| queue.length == 0)
            && sums.turned_away > SHUT_SHARE * sums.offered
            && sums.completed == 0.0;
        if !shut {
            self.probe.shut_s = 0.0;
            self.probe.open_s += sums.seconds;
            if self.probe.open_s >= TRY_SECONDS {
                self.probe.beyond = 0.0;
            }
            return;
        }
        self.probe.open_s = 0.0;
        if self.shed.is_some() {
            // A server that works for clients who left completes nothing, either.
            let known = self.harmless.jobs > KNOWN_SHARE * tick.waiting;
            self.probe.shut_s = if known { self.probe.shut_s + sums.seconds } else { 0.0 };
            self.probe.beyond = 0.0;
            return;
        }
        if self.probe.answered {
            let beyond = (self.harmless.jobs.max(self.guard_most()) - self.guard()).max(0.0);
            self.harmless.found(tick.waiting);
            self.usual = self.usual.max(tick.waiting);
            self.probe = Probe { beyond, ..Probe::default() };
            return;
        }
        self.probe.shut_s += sums.seconds;
        if self.probe.shut_s >= TRY_SECONDS {
            self.probe.shut_s = 0.0;
            self.probe.beyond += (TRY_GUARD * self.guard_most()).ceil();
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
        let (waiting, _) = ticks[29];
        assert!(waiting > 10_000, "{ticks:?}");
    }

    /// With 200/s it used 0.3 of the CPU, so it reaches 667/s: 0.8 of that
    /// once, and an eighth of it in each probe.
    #[test]
    fn behind_a_server_that_hangs_little_piles_up() {
        let mut controller = calm();
        let ticks = crowd(&mut controller, 1_000, 0, 100);
        let (first, last) = (ticks[2].0, ticks[99].0);
        assert!(last - first <= 534 + 33 * 67, "{first}, {last}");
    }
}
