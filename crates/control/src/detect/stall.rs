// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A moment in which nothing completes, and what a server could reach with all of its CPU.
//!
//! A server that completes nothing at all for a moment is not overloaded: it collects garbage, or
//! stands still with its machine. Its CPU is full and what is in flight grows, as in a flash crowd,
//! but a crowd's completions go on at the capacity. Refusing does not end a stall, and what has piled
//! up is served within the objective afterwards, if it is no more than the server does in that time.
//! So a stall widens the limit by what usually comes in its time, up to that, and is no alarm until
//! what it left has drained. Not by more: the handshakes of a crowd silence a server with one
//! thread, too.

use super::evidence::busy;
use super::history::Sums;
use super::scale::{OBJECTIVE_SHARE, SILENT_COMPLETIONS};
use tidegate_model::signals::Resource;
use tidegate_units::Nanos;

/// Below this share of CPU used, completions over it are no estimate of what could be reached.
const REACH_CPU_MIN: f64 = 0.1;
/// Seconds in which it is averaged.
const REACH_SECONDS: f64 = 3.0;
/// What a stall left has drained after this many times its length, at two thirds of the capacity.
const STALL_DRAINS: f64 = 2.0;
/// However long it was, the limit in flight let no more pile up than [`OBJECTIVE_SHARE`] of work: at
/// two thirds of the capacity that has drained after so many objectives.
const STALL_DRAINS_MAX: f64 = 3.0 * OBJECTIVE_SHARE;

/// What the server would complete with all of its CPU: completions over the share in use (the
/// utilization law). Too much where something else is the bottleneck, so it only ever narrows. A server
/// that works in one thread has no more than that thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    /// Averages of completions per second, of the share of CPU, and of the larger of that and the share of
    /// the thread.
    completed: f64,
    cpu: f64,
    used: f64,
}

impl Reach {
    /// Takes a tick; without the CPU's share what was learned is gone: it must not narrow for ever.
    pub(super) fn learn(&mut self, sums: &Sums, resource: &Resource, age_max: Nanos) {
        let cpu = resource.cpu.and_then(|cpu| cpu.within(age_max));
        let Some((cpu, used)) = cpu.zip(busy(resource, age_max)) else {
            *self = Self::default();
            return;
        };
        let (cpu, used) = (cpu.get(), used.get());
        let keep = libm::exp(-sums.seconds / REACH_SECONDS);
        self.completed = keep * self.completed + (1.0 - keep) * sums.rate();
        self.cpu = keep * self.cpu + (1.0 - keep) * cpu;
        self.used = keep * self.used + (1.0 - keep) * used;
    }

    /// Completions per second with all of its CPU.
    pub(super) fn rate(&self) -> Option<f64> {
        (self.cpu >= REACH_CPU_MIN).then(|| self.completed / self.cpu)
    }

    /// The same with all that it works in.
    pub(super) fn own_rate(&self) -> Option<f64> {
        (self.used >= REACH_CPU_MIN).then(|| self.completed / self.used)
    }
}

/// A moment in which nothing completes, and what it leaves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall {
    /// Completions per second before it, and seconds without any.
    rate: f64,
    silent_s: f64,
    /// Jobs that usually come in its time, and until the next tick.
    piles: f64,
    /// Seconds in which what the last stall left may still drain.
    drains_s: f64,
}

impl Stall {
    /// Takes a tick; `lately` completions per second were usual before it, and `owes` says whether
    /// the server has anything to do: without, silence is no stall.
    pub(super) fn see(&mut self, tick: &Sums, lately: f64, owes: bool) {
        if tick.completed > 0.0 || !owes {
            let left_s = if self.is_on() { STALL_DRAINS * self.silent_s } else { self.drains_s };
            self.drains_s = (left_s - tick.seconds).max(0.0);
            (self.rate, self.silent_s) = (lately, 0.0);
        } else {
            self.silent_s += tick.seconds;
            let piles = self.rate * (self.silent_s + tick.seconds);
            // What the last one left may drain still.
            self.piles = if self.drains_s > 0.0 { self.piles.max(piles) } else { piles };
        }
    }

    /// Jobs that piled up because of it, if no more come than usual.
    pub(super) const fn piles(&self) -> f64 {
        self.piles
    }

    /// What it left drains within this objective's multiple, however long it was.
    pub(super) fn bound(&mut self, objective_s: f64) {
        self.drains_s = self.drains_s.min(STALL_DRAINS_MAX * objective_s);
    }

    /// Whether nothing completes.
    pub(super) fn is_silent(&self) -> bool {
        self.silent_s > 0.0
    }

    /// Whether nothing completes, and for so long that it is no chance.
    pub(super) fn is_on(&self) -> bool {
        self.rate * self.silent_s >= SILENT_COMPLETIONS
    }

    /// Whether it is on, or what it left may still drain.
    pub(super) fn holds(&self) -> bool {
        self.is_on() || self.drains_s > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::Reading;
    use tidegate_units::Share;

    fn tick(completed: f64) -> Sums {
        Sums { seconds: 0.1, completed, ..Sums::default() }
    }

    /// At 60/s two silent ticks are no chance; what the stall left may drain for twice its length.
    #[test]
    fn silence_beyond_chance_is_a_stall_and_holds_while_it_drains() {
        let mut stall = Stall::default();
        stall.see(&tick(6.0), 60.0, true);
        stall.see(&tick(0.0), 60.0, true);
        assert!(stall.is_silent() && !stall.holds(), "one tick may be chance");
        for silent in 1..=10 {
            stall.see(&tick(0.0), 60.0, true);
            assert!(stall.is_on(), "{silent}");
        }
        let mut held = 0;
        for _ in 0..100 {
            stall.see(&tick(6.0), 60.0, true);
            assert!(!stall.is_on());
            held += u32::from(stall.holds());
        }
        assert!((20..=22).contains(&held), "1.1 s of stall, held for {held} ticks");
    }

    /// A night without clients, and the first one in the morning.
    #[test]
    fn silence_without_work_is_no_stall_and_a_long_one_is_bounded() {
        let mut stall = Stall::default();
        stall.see(&tick(20.0), 200.0, true);
        (0..300_000).for_each(|_| stall.see(&tick(0.0), 0.0, false));
        stall.see(&tick(1.0), 0.0, true);
        assert!(!stall.holds());
        stall.see(&tick(20.0), 200.0, true);
        (0..6_000).for_each(|_| stall.see(&tick(0.0), 200.0, true));
        assert!(stall.is_on(), "ten minutes with work");
        stall.see(&tick(20.0), 200.0, true);
        stall.bound(1.0);
        let mut held = 0;
        for _ in 0..100 {
            stall.see(&tick(20.0), 200.0, true);
            held += u32::from(stall.holds());
        }
        assert!((22..=24).contains(&held), "{held} ticks");
    }

    #[test]
    fn a_slow_server_is_silent_without_a_stall() {
        let mut stall = Stall::default();
        stall.see(&tick(1.0), 1.0, true);
        (0..100).for_each(|_| stall.see(&tick(0.0), 1.0, true));
        assert!(!stall.holds());
        (0..40).for_each(|_| stall.see(&tick(0.0), 1.0, true));
        assert!(stall.holds());
    }

    /// Its thread is nine tenths busy on a machine with four CPUs.
    #[test]
    fn one_thread_reaches_what_it_can_and_not_what_all_cpus_could() {
        let mut reach = Reach::default();
        let share = |share| Some(Reading::fresh(Share::new(share)));
        let uses = |cpu, busiest_thread| Resource { cpu, busiest_thread, ..Resource::default() };
        let mut learn = |resource: Resource, ticks| {
            (0..ticks).for_each(|_| reach.learn(&tick(18.0), &resource, Nanos::SECOND));
            (reach.own_rate(), reach.rate())
        };
        let near =
            |rate: Option<f64>, to: f64| rate.is_some_and(|rate| (rate - to).abs() < to / 100.0);
        let (own, all) = learn(uses(share(0.225), share(0.9)), 200);
        assert!(near(own, 200.0) && near(all, 800.0), "{own:?} {all:?}");
        let (own, _) = learn(uses(share(0.9), share(0.2)), 200);
        assert!(near(own, 200.0), "{own:?}");
        assert_eq!(learn(uses(None, share(0.9)), 1), (None, None), "nothing is known");
    }
}
