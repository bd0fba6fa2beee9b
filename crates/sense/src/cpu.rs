// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of the CPU time that a service may use is used.
//!
//! Two measurements over a sliding window:
//!
//! - *own*: CPU time of the service's cgroup and interrupts on its CPUs, over the time that its
//!   CPUs and its quota allow. Exact, but blind to what others take away.
//! - *busy*: the share of time in which its CPUs were not idle, whoever used them, softirqs
//!   included. This is all there is for a service without a cgroup of its own.
//!
//! Others' use counts against the service only as far as the service waited for it: with its
//! pressure (PSI) known, the result is `max(own, min(busy, own + pressure))`, so a batch job that
//! yields to the service is no overload and a neighbour that does not yield is one. Without
//! pressure, or without a cgroup, it is `max(own, busy)`: but what niced tasks use (a batch job; the
//! column `nice` of `/proc/stat`) is there for a service that does not yield itself, and counts only as
//! far as threads of the service waited for a CPU. A nice value of 1 yields little, and then they wait.
//!
//! `/proc/stat` counts in steps of 10 ms, so at a tick of 100 ms one CPU moves in steps of 10 %:
//! over [`WINDOW`] the steps are 2 % for one CPU and less for more.

use crate::stat::CpuSum;
use std::collections::VecDeque;
use tidegate_units::{Nanos, Share};

/// Span that a reading is the mean of.
const WINDOW: Nanos = Nanos::from_millis(500);
/// No reading over less than this: the steps would be larger than the signal.
const WINDOW_MIN: Nanos = Nanos::from_millis(250);
/// A hole in the samples longer than this (the daemon was stopped) starts the window anew: a mean
/// over the hole is no news.
const GAP_MAX: Nanos = Nanos::from_millis(1500);
/// Most samples kept; the window holds 50 at the shortest tick of 10 ms.
const SAMPLES_MAX: usize = 64;

/// Counters of one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Nanos,
    pub(crate) sum: CpuSum,
    /// CPU time of the service's cgroups; `None` when it has none or they could not be read.
    pub(crate) used_ns: Option<u64>,
}

/// What is known beside the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside {
    /// CPUs that the service may use.
    pub(crate) quota: Option<f64>,
    /// Share of time in which its group waited for a CPU.
    pub(crate) pressure: Option<Share>,
    /// The same of its threads; `None` where they yield to others themselves, or it is not known.
    pub(crate) waited: Option<Share>,
}

/// The window of one service.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    samples: VecDeque<Sample>,
}

impl Cpu {
    /// Forgets the past: the service moved to other CPUs or groups.
    pub(crate) fn reset(&mut self) {
        self.samples.clear();
    }

    /// Takes a sample in and gives the utilisation over the window.
    pub(crate) fn tick(&mut self, sample: Sample, beside: Beside) -> Option<Share> {
        if let Some(last) = self.samples.back()
            && (sample.at.since(last.at) > GAP_MAX || last.sum.cpus != sample.sum.cpus)
        {
            self.reset();
        }
        self.samples.push_back(sample);
        // Keep one sample that is as old as the window or older.
        while self.samples.len() > SAMPLES_MAX
            || self.samples.get(1).is_some_and(|second| sample.at.since(second.at) >= WINDOW)
        {
            self.samples.pop_front();
        }
        let first = self.samples.front()?;
        let span = sample.at.since(first.at);
        if span < WINDOW_MIN || sample.sum.cpus == 0 {
            return None;
        }
        Some(Share::new(combine(first, &sample, beside)))
    }
}

fn combine(first: &Sample, last: &Sample, beside: Beside) -> f64 {
    let Beside { quota, pressure, waited } = beside;
    let span = last.at.since(first.at).0 as f64;
    let cpus = f64::from(last.sum.cpus);
    let idle = last.sum.idle_ns.saturating_sub(first.sum.idle_ns) as f64;
    let busy = (1.0 - idle / (span * cpus)).max(0.0);
    // Where the group's pressure is known it says all of this better.
    let yields = waited.filter(|_| pressure.is_none());
    let busy = yields.map_or(busy, |waited| {
        let niced = last.sum.nice_ns.saturating_sub(first.sum.nice_ns) as f64 / (span * cpus);
        let others = (busy - niced).max(0.0);
        busy.min(others + waited.get())
    });
    let used = first.used_ns.zip(last.used_ns).and_then(|(then, now)| now.checked_sub(then));
    let Some(used) = used else { return busy };
    let irq = last.sum.irq_ns.saturating_sub(first.sum.irq_ns) as f64;
    // A quota is of the group's own time; interrupts take theirs from the CPUs.
    let allowed = span * quota.map_or(cpus, |quota| quota.min(cpus));
    let own = (used as f64 / allowed).max((used as f64 + irq) / (span * cpus));
    let contended = pressure.map_or(busy, |pressure| busy.min(own + pressure.get()));
    own.max(contended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    /// A world of CPUs in which `busy` CPUs' worth of time is used, `own` of it by the service.
    struct World {
        at: Nanos,
        idle: f64,
        used: f64,
        nice: f64,
        /// CPUs' worth of interrupts.
        irq: f64,
    }

    impl World {
        fn sample(&mut self, cpus: u32, busy: f64, own: Option<f64>) -> Sample {
            self.niced(cpus, busy, own, 0.0)
        }

        /// Of what is busy, so much is niced.
        fn niced(&mut self, cpus: u32, busy: f64, own: Option<f64>, niced: f64) -> Sample {
            let tick = 100e6;
            self.nice += niced * tick;
            self.at += Nanos::from_millis(100);
            self.idle += (f64::from(cpus) - busy) * tick;
            self.used += own.unwrap_or_default() * tick;
            Sample {
                at: self.at,
                // In steps of 10 ms, as the kernel shows it.
                sum: CpuSum {
                    cpus,
                    idle_ns: (self.idle / 1e7) as u64 * 10_000_000,
                    irq_ns: (self.irq * self.at.0 as f64 / 1e7) as u64 * 10_000_000,
                    nice_ns: (self.nice / 1e7) as u64 * 10_000_000,
                },
                used_ns: own.map(|_| self.used as u64),
            }
        }
    }

    fn settled(
        cpus: u32,
        busy: f64,
        own: Option<f64>,
        quota: Option<f64>,
        psi: Option<f64>,
    ) -> f64 {
        let mut world = World::default();
        let mut cpu = Cpu::default();
        let mut last = None;
        for _ in 0..20 {
            let pressure = psi.map(Share::new);
            let beside = Beside { quota, pressure, waited: None };
            last = cpu.tick(world.sample(cpus, busy, own), beside);
        }
        last.unwrap().get()
    }

    /// Interrupts of 2.56 CPUs on a machine of 64 take none of a quota of 2; on one of 4 they leave little.
    #[test]
    fn interrupts_take_their_time_from_cpus_and_not_from_a_quota() {
        for (cpus, irq, own, expected) in [(64, 2.56, 0.1, 0.05), (4, 2.56, 0.8, 0.84)] {
            let (mut world, mut cpu) = (World { irq, ..World::default() }, Cpu::default());
            let beside = Beside { quota: Some(2.0), pressure: Some(Share::ZERO), waited: None };
            let mut tick = || cpu.tick(world.sample(cpus, irq + own, Some(own)), beside);
            let got = (0..20).map(|_| tick()).last().flatten().unwrap().get();
            assert!((got - expected).abs() < 0.03, "{cpus}: {got}, expected {expected}");
        }
    }

    #[test]
    fn the_combination_for_every_kind_of_service() {
        // cpus, busy, own, quota, pressure → utilisation
        let table = [
            ("pinned to one CPU and saturating it", 1, 1.0, None, None, None, 1.0),
            ("half busy, no cgroup", 2, 1.0, None, None, None, 0.5),
            ("its cgroup uses all", 2, 2.0, Some(2.0), None, Some(0.9), 1.0),
            (
                "its quota is used up on an idle machine",
                4,
                0.5,
                Some(0.5),
                Some(0.5),
                Some(0.6),
                1.0,
            ),
            ("a batch job that yields", 2, 2.0, Some(0.4), None, Some(0.02), 0.22),
            ("a neighbour that does not yield", 2, 2.0, Some(1.0), None, Some(0.95), 1.0),
            ("pressure unknown: busy is busy", 2, 2.0, Some(0.4), None, None, 1.0),
            ("idle", 2, 0.0, Some(0.0), None, Some(0.0), 0.0),
        ];
        for (what, cpus, busy, own, quota, pressure, expected) in table {
            let got = settled(cpus, busy, own, quota, pressure);
            assert!((got - expected).abs() < 0.025, "{what}: {got}, expected {expected}");
        }
    }

    #[test]
    fn what_niced_tasks_use_is_there_for_a_service_that_does_not_wait_for_it() {
        // cpus, busy, own, niced, pressure, waited → utilisation
        let table = [
            ("a batch job at nice 19", 2, 2.0, None, 1.6, None, Some(0.01), 0.21),
            ("at its end beside it", 2, 2.0, None, 0.03, None, Some(0.9), 1.0),
            ("a nice value of 1 takes half", 2, 2.0, None, 0.9, None, Some(0.9), 1.0),
            ("waiting is not known", 2, 2.0, None, 1.6, None, None, 1.0),
            ("its group has no pressure file", 2, 2.0, Some(0.3), 1.7, None, Some(0.02), 0.17),
            ("and uses more than that", 2, 2.0, Some(1.9), 0.1, None, Some(0.02), 0.96),
            ("pressure is known", 2, 2.0, Some(0.4), 1.6, Some(0.02), Some(1.0), 0.22),
            ("nothing is niced", 2, 2.0, None, 0.0, None, Some(0.0), 1.0),
        ];
        for (what, cpus, busy, own, niced, pressure, waited, expected) in table {
            let (mut world, mut cpu) = (World::default(), Cpu::default());
            let (pressure, waited) = (pressure.map(Share::new), waited.map(Share::new));
            let beside = Beside { quota: None, pressure, waited };
            let mut last = None;
            for _ in 0..20 {
                last = cpu.tick(world.niced(cpus, busy, own, niced), beside);
            }
            let got = last.unwrap().get();
            assert!((got - expected).abs() < 0.025, "{what}: {got}, expected {expected}");
        }
    }

    #[test]
    fn no_reading_before_the_window_is_wide_enough_and_none_over_a_hole() {
        let mut world = World::default();
        let mut cpu = Cpu::default();
        let readings: Vec<bool> = (0..5)
            .map(|_| cpu.tick(world.sample(1, 1.0, None), Beside::default()).is_some())
            .collect();
        assert_eq!(readings, [false, false, false, true, true]);
        world.at += Nanos::from_secs(30);
        assert!(cpu.tick(world.sample(1, 1.0, None), Beside::default()).is_none());
    }

    #[test]
    fn a_load_that_ends_is_forgotten_within_the_window() {
        let mut world = World::default();
        let mut cpu = Cpu::default();
        for _ in 0..20 {
            cpu.tick(world.sample(1, 1.0, None), Beside::default());
        }
        let after: Vec<f64> = (0..6)
            .map(|_| cpu.tick(world.sample(1, 0.0, None), Beside::default()).unwrap().get())
            .collect();
        assert!(after[0] > 0.7 && after[4] < 0.05, "{after:?}");
    }
}
