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
use crate::history::Sums;
use tidegate_units::Share;

/// At least this many jobs above the usual, whatever the server: what a healthy burst may bring
/// before its server has shown how fast it is.
const GUARD_MIN: f64 = 256.0;
/// The limit in objectives of capacity.
const GUARD_OBJECTIVE: f64 = 0.8;
/// The same where the CPU tells what the server can reach. What a crowd brings in before the loop
/// has seen it is slow for everybody in it: a third of the objective leaves room for a burst and
/// keeps that second short.
const GUARD_REACH_OBJECTIVE: f64 = 0.33;
/// The limit there in jobs at least: at 0.9 load a single server exceeds it with chance 0.9^128,
/// one in a million.
const GUARD_REACH_MIN: f64 = 128.0;
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
/// utilization law). Too much where something else is the bottleneck, so it only ever narrows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    /// Averages of completions per second and of the share of CPU.
    completed: f64,
    cpu: f64,
}

impl Reach {
    /// Takes a tick; without the CPU's share what was learned is gone: it must not narrow for ever.
    pub(super) fn learn(&mut self, sums: &Sums, cpu: Option<Share>) {
        let Some(cpu) = cpu.map(Share::get) else {
            *self = Self::default();
            return;
        };
        let keep = libm::exp(-sums.seconds / REACH_SECONDS);
        self.completed = keep * self.completed + (1.0 - keep) * sums.rate();
        self.cpu = keep * self.cpu + (1.0 - keep) * cpu;
    }

    pub(super) fn rate(&self) -> Option<f64> {
        (self.cpu >= REACH_CPU_MIN).then(|| self.completed / self.cpu)
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
        let Some(rate) = self.reach.rate() else { return blind };
        let objective = GUARD_REACH_OBJECTIVE * self.objective_s * rate;
        let guard = blind.min((GUARD_REACH_MIN * variability).max(objective));
        if !self.stall.holds() {
            return guard;
        }
        let most = blind.max(GUARD_OBJECTIVE * self.objective_s * rate);
        (guard + self.stall.piles()).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::harmless::tests::{calm, tick as signals};
    use super::*;
    use crate::{Controller, Mode};

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
