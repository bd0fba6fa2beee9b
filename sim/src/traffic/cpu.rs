// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's processors, shared by the services that run on them, and what the kernel itself
//! takes from them for packets.

use crate::sharing::Sharing;
use tidegate_units::Nanos;

/// Least speed: a machine that stands still (a collection of garbage) makes no progress to speak of.
const SPEED_MIN: f64 = 1e-6;
/// Highest speed.
const SPEED_MAX: f64 = 1e6;

/// What one service has had since the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    /// CPU seconds.
    pub(super) used_s: f64,
    /// Seconds in which something of it was runnable and waited.
    pub(super) stalled_s: f64,
    /// Jobs that run or want to run.
    running: usize,
}

/// Processors under processor sharing: each job has at most one of them.
#[derive(Debug)]
pub(super) struct Cpu {
    cores: f64,
    speed: f64,
    sharing: Sharing,
    uses: Vec<Use>,
    /// CPU seconds that the kernel still has to take for packets, and those it has taken.
    debt_s: f64,
    irq_s: f64,
    epoch: u64,
    then: Nanos,
}

impl Cpu {
    pub(super) fn new(cores: u32, services: usize) -> Self {
        Self {
            cores: f64::from(cores),
            speed: 1.0,
            sharing: Sharing::default(),
            uses: vec![Use::default(); services],
            debt_s: 0.0,
            irq_s: 0.0,
            epoch: 0,
            then: Nanos::ZERO,
        }
    }

    /// Packets cost this much; the kernel takes it before anybody else.
    pub(super) fn packet(&mut self, s: f64) {
        self.debt_s += s;
    }

    pub(super) fn set_speed(&mut self, now: Nanos, speed: f64) {
        self.advance(now);
        self.speed = speed.clamp(SPEED_MIN, SPEED_MAX);
    }

    /// A job of a service wants so many seconds at full speed.
    pub(super) fn begin(&mut self, now: Nanos, service: usize, (job, s): (usize, f64)) {
        self.advance(now);
        self.sharing.begin(job, s);
        self.uses[service].running += 1;
    }

    /// A job that has had its time by now. The caller tells whose it was by [`Cpu::ended`].
    pub(super) fn finished(&mut self, now: Nanos) -> Option<usize> {
        self.advance(now);
        self.sharing.finished()
    }

    pub(super) fn ended(&mut self, service: usize) {
        self.uses[service].running -= 1;
    }

    /// When the next job finishes and the epoch of this answer: a later answer makes it void.
    pub(super) fn plan(&mut self, now: Nanos) -> Option<(Nanos, u64)> {
        self.epoch += 1;
        let n = self.sharing.len() as f64;
        let rate = self.speed * (self.cores / n).min(1.0);
        let left = (self.sharing.left()? / rate).max(0.0);
        // Rounded up, so that the virtual clock has got there when the timer fires.
        Some((now + Nanos::from_secs_f64(left) + Nanos(1), self.epoch))
    }

    pub(super) const fn current(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// What a service has had, and what the machine has used altogether, packets included.
    pub(super) fn used(&mut self, now: Nanos, service: usize) -> (Use, f64) {
        self.advance(now);
        let all: f64 = self.uses.iter().map(|of| of.used_s).sum();
        (self.uses[service], all + self.irq_s)
    }

    /// CPU seconds taken for packets.
    pub(super) const fn irq_s(&self) -> f64 {
        self.irq_s
    }

    pub(super) const fn cores(&self) -> f64 {
        self.cores
    }

    fn advance(&mut self, now: Nanos) {
        let dt = now.since(self.then).as_secs_f64();
        self.then = self.then.max(now);
        if dt <= 0.0 {
            return;
        }
        let taken = self.debt_s.min(dt * self.cores);
        self.debt_s -= taken;
        self.irq_s += taken;
        let n = self.sharing.len() as f64;
        if n <= 0.0 {
            return;
        }
        let free = self.cores - taken / dt;
        let share = (free / n).min(1.0);
        self.sharing.run(dt * self.speed * share);
        for of in self.uses.iter_mut().filter(|of| of.running > 0) {
            of.used_s += dt * share * of.running as f64;
            of.stalled_s += if n > self.cores { dt } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two services on one core: each has half, both wait for it, and packets go first.
    #[test]
    fn services_share_and_packets_go_first() {
        let mut cpu = Cpu::new(1, 2);
        let at = Nanos::from_millis;
        cpu.begin(at(0), 0, (7, 0.1));
        cpu.begin(at(0), 1, (8, 0.2));
        let (next, epoch) = cpu.plan(at(0)).unwrap();
        assert!(next >= at(200) && next <= at(201) && cpu.current(epoch));
        assert_eq!(cpu.finished(next), Some(7));
        cpu.ended(0);
        cpu.packet(0.05);
        let half = next + at(100);
        assert_eq!(cpu.finished(half), None);
        assert!((cpu.used(half, 1).0.used_s - 0.15).abs() < 1e-6);
        assert_eq!(cpu.finished(half + at(51)), Some(8));
        cpu.ended(1);
        assert!((cpu.irq_s() - 0.05).abs() < 1e-12);
        assert!((cpu.used(half + at(51), 0).0.stalled_s - 0.2).abs() < 1e-6);
    }
}
