// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit in flight of calm: what may pile up before the loop has seen it.
//!
//! A server that completes nothing at all for a moment is not overloaded: it collects garbage, or
//! stands still with its machine. Its CPU is full and what is in flight grows, as in a flash crowd,
//! but a crowd's completions go on at the capacity. Refusing does not end a stall, and what has piled
//! up is served within the objective afterwards, if it is no more than the server does in that time.
//! So a stall widens the limit by what usually comes in its time, up to that, and is no alarm until
//! what it left has drained. Not by more: the handshakes of a crowd silence a server with one
//! thread, too.

use super::DefaultController;
use crate::evidence::busy;
use crate::history::Sums;
use tidegate_model::limits::Low;
use tidegate_model::signals::Resource;
use tidegate_units::Nanos;

/// At least this many jobs above the usual, whatever the server: what a healthy burst may bring
/// before its server has shown how fast it is.
const GUARD_MIN: f64 = 256.0;
/// The limit in objectives of capacity.
const GUARD_OBJECTIVE: f64 = 0.8;
/// The same where the CPU tells what the server can reach. What a crowd brings in before the loop
/// has seen it is slow for everybody in it. A server of 1,000/s serves bursts of 200, and what comes
/// until it is seen that it completes nothing meanwhile (at half load 71, with chance).
const GUARD_REACH_OBJECTIVE: f64 = 0.28;
/// The same while what is in flight may be harmless (see harmless.rs): within the second in which that
/// is found out, so much may come.
const GUARD_SPARED_OBJECTIVE: f64 = 0.33;
/// The limit there in jobs at least: a burst of 100, and what comes until it is seen that a server which
/// shares itself among all of them completes nothing (28, with chance). At 0.9 load a single server
/// exceeds it with chance 0.9^128, one in a million.
const GUARD_REACH_MIN: f64 = 128.0;
/// The limit once it has refused, in guards at most.
const GUARD_LOW: f64 = 0.5;
/// It holds for so long: an overload is alarmed by then. What is none may be a dependency that has
/// become slow, behind which more have to be in flight.
const GUARD_LOW_SECONDS: f64 = 1.0;
/// The share of that, above the usual, at which the whole limit holds again.
const GUARD_REST: f64 = 0.5;
/// Below this share of CPU used, completions over it are no estimate of what could be reached.
const REACH_CPU_MIN: f64 = 0.1;
/// Seconds in which it is averaged.
const REACH_SECONDS: f64 = 3.0;
/// Completions that are missing in a stall: by chance once in e^12, 160,000 times, and with bursts of
/// responses still once in some hundreds.
const STALL_MISSING: f64 = 12.0;
/// What a stall left has drained after this many times its length, at two thirds of the capacity.
const STALL_DRAINS: f64 = 2.0;
/// However long it was, the limit in flight let no more pile up than [`GUARD_OBJECTIVE`] of work: at
/// two thirds of the capacity that has drained after so many objectives.
const STALL_DRAINS_MAX: f64 = 3.0 * GUARD_OBJECTIVE;

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
        self.rate * self.silent_s >= STALL_MISSING
    }

    /// Whether it is on, or what it left may still drain.
    pub(super) fn holds(&self) -> bool {
        self.is_on() || self.drains_s > 0.0
    }
}

impl DefaultController {
    /// Jobs that the server has answered within the objective, if they came at once.
    pub(super) fn guard_peak(&self) -> f64 {
        let blind = GUARD_MIN * self.baseline.variability();
        blind.max(GUARD_OBJECTIVE * self.objective_s * self.peak)
    }

    /// Jobs above the usual that are let pile up before the loop has seen them.
    pub(super) fn guard(&self) -> f64 {
        let variability = self.baseline.variability();
        let blind = self.guard_peak();
        let Some(rate) = self.reach.own_rate() else { return blind };
        let objectives =
            if self.harmless.spares() { GUARD_SPARED_OBJECTIVE } else { GUARD_REACH_OBJECTIVE };
        let objective = objectives * self.objective_s * rate;
        let guard = blind.min((GUARD_REACH_MIN * variability).max(objective));
        if !self.stall.holds() {
            return guard;
        }
        let rate = self.reach.rate().unwrap_or(rate);
        let most = blind.max(GUARD_OBJECTIVE * self.objective_s * rate);
        (guard + self.stall.piles()).min(most)
    }
}

impl DefaultController {
    /// What holds once the limit of calm has refused: no more than the excess that alarms, and half of
    /// the guard at most, until half of that is left. `None` where nobody leaves: in a stall, and while
    /// more is tried than the guard allows; and where no alarm has come in time.
    pub(super) fn guard_low(&self, guard: f64) -> Option<Low> {
        let late = self.full_s > GUARD_LOW_SECONDS;
        if late || self.stall.holds() || self.probe.beyond() > 0.0 {
            return None;
        }
        let (_, alarm) = self.excess(0.0);
        let low = alarm.min(GUARD_LOW * guard);
        let level = |jobs: f64| (self.usual + jobs).ceil() as u64;
        Some(Low { most: level(low).max(1), rest: level(low * GUARD_REST) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::harmless::tests::{calm, tick as signals};
    use super::*;
    use crate::{Controller, Mode};
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

    /// After a second of refusals it ends: what has not alarmed by then may need more in flight. As many
    /// ticks without one, and it is there again.
    #[test]
    fn the_limit_is_tight_while_it_refuses_for_a_second_at_most() {
        let mut controller = calm();
        let mut tick = |n: u64, refused: u64| {
            let mut signals = signals(400 + n, (20, 20, 2), 10);
            if let Some(counts) = &mut signals.balance.counts {
                (counts.value.offered, counts.value.refused) = (20 + refused, refused);
            }
            controller.tick(&signals, Mode::Enforce)
        };
        for n in 0..10 {
            let limits = tick(n, 1);
            assert!(!limits.why.shedding, "{}", limits.why.text);
            let (max, low) = (limits.waiting_max.unwrap(), limits.waiting_low.unwrap());
            assert!(low.rest < low.most && 2 * low.most <= max + 2, "{low:?} of {max}");
            assert!(low.rest > 2, "what is usual ends it: {low:?}");
        }
        assert_eq!([tick(10, 1), tick(11, 1)].map(|limits| limits.waiting_low), [None, None]);
        assert!(tick(12, 0).waiting_low.is_none(), "a tick without one");
        assert!((13..16).any(|n| tick(n, 0).waiting_low.is_some()));
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

    /// At 200/s, 0.3 of the CPU used: 220 jobs are let pile up, in a stall up to 533.
    #[test]
    fn a_stall_widens_the_limit_by_what_usually_comes() {
        let mut controller = calm();
        let mut waiting = 2;
        for n in 0..40 {
            waiting += 20;
            let limits = controller.tick(&signals(400 + n, (20, 0, waiting), 0), Mode::Enforce);
            let most = limits.waiting_max.expect("a limit in flight");
            assert!(most > (waiting + 20).min(500), "tick {n}: {most} for {waiting}");
            assert!(most <= (2 + 224 + 20 * (n + 2)).min(540), "tick {n}: {most}");
        }
    }
}
