// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU: the kernel's work first, the rest shared equally by the requests that want it, one core
//! each at the most.

use crate::sharing::Sharing;
use tidegate_units::Nanos;

/// See the module.
#[derive(Debug)]
pub(super) struct Cpu {
    cores: f64,
    sharing: Sharing,
    /// Kernel work that is still to be done, in CPU seconds.
    kernel_s: f64,
    then: Nanos,
    used_s: f64,
    pressed_s: f64,
    epoch: u64,
}

impl Cpu {
    pub(super) fn new(cores: u32) -> Self {
        Self {
            cores: f64::from(cores.max(1)),
            sharing: Sharing::default(),
            kernel_s: 0.0,
            then: Nanos::ZERO,
            used_s: 0.0,
            pressed_s: 0.0,
            epoch: 0,
        }
    }

    /// Lets the clocks run to `now`.
    fn advance(&mut self, now: Nanos) {
        let dt = now.since(self.then).as_secs_f64();
        self.then = self.then.max(now);
        let kernel = self.kernel_s.min(dt * self.cores);
        self.kernel_s -= kernel;
        let left = dt * self.cores - kernel;
        let n = self.sharing.len() as f64;
        if n > 0.0 {
            self.sharing.run(left / n.max(self.cores));
        }
        self.used_s += kernel + left * n.min(self.cores) / self.cores;
        self.pressed_s += if n > self.cores { dt } else { 0.0 };
    }

    /// Kernel work: it goes first. The next completion comes later than planned; its timer finds
    /// that out.
    pub(super) fn kernel(&mut self, now: Nanos, seconds: f64) {
        self.advance(now);
        self.kernel_s += seconds;
    }

    /// A request wants so many seconds. A timer to set, if it is the next to finish.
    pub(super) fn begin(&mut self, now: Nanos, request: usize, s: f64) -> Option<(Nanos, u64)> {
        self.advance(now);
        if self.sharing.begin(request, s) { self.plan(now) } else { None }
    }

    /// A timer of this epoch has fired: who has finished, and the next timer to set.
    pub(super) fn fire(
        &mut self,
        now: Nanos,
        epoch: u64,
        finished: &mut Vec<usize>,
    ) -> Option<(Nanos, u64)> {
        if epoch != self.epoch {
            return None;
        }
        self.advance(now);
        finished.extend(std::iter::from_fn(|| self.sharing.finished()));
        self.plan(now)
    }

    /// The timer for the next request that finishes; earlier timers become void.
    fn plan(&mut self, now: Nanos) -> Option<(Nanos, u64)> {
        self.epoch += 1;
        let left = self.sharing.left()?;
        let n = self.sharing.len() as f64;
        let user = left.max(0.0) * n.max(self.cores);
        let seconds = (user + self.kernel_s) / self.cores;
        // Rounded up, so that the virtual clock has got there when the timer fires.
        Some((now + Nanos::from_secs_f64(seconds) + Nanos(1), self.epoch))
    }

    /// CPU seconds used, and seconds in which a request waited for CPU, since the beginning.
    pub(super) fn used(&mut self, now: Nanos) -> (f64, f64) {
        self.advance(now);
        (self.used_s, self.pressed_s)
    }

    /// Requests that want it.
    pub(super) fn present(&self) -> usize {
        self.sharing.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests of 1 s share a core: the first ends when both have had their half of it, and
    /// half a second of kernel work delays everybody by as much.
    #[test]
    fn requests_share_and_the_kernel_goes_first() {
        let mut cpu = Cpu::new(1);
        let mut finished = Vec::new();
        let first = cpu.begin(Nanos::ZERO, 1, 1.0).unwrap();
        assert_eq!(first.0, Nanos(1_000_000_001));
        assert!(cpu.begin(Nanos::ZERO, 2, 1.5).is_none(), "not the next to finish");
        cpu.kernel(Nanos::ZERO, 0.5);
        let (mut at, mut epoch) = first;
        let mut ends = Vec::new();
        for _ in 0..10 {
            let next = cpu.fire(at, epoch, &mut finished);
            ends.extend(finished.drain(..).map(|request| (request, at.as_secs_f64())));
            let Some(next) = next else { break };
            (at, epoch) = next;
        }
        assert_eq!(ends.len(), 2);
        assert!((ends[0].1 - 2.5).abs() < 1e-6 && ends[0].0 == 1, "{ends:?}");
        assert!((ends[1].1 - 3.0).abs() < 1e-6 && ends[1].0 == 2, "{ends:?}");
        assert!((cpu.used(Nanos::from_secs(10)).0 - 3.0).abs() < 1e-6);
    }

    /// Two cores: two requests do not disturb each other, three do.
    #[test]
    fn a_request_has_one_core_at_the_most() {
        let mut cpu = Cpu::new(2);
        let first = cpu.begin(Nanos::ZERO, 1, 1.0).unwrap();
        cpu.begin(Nanos::ZERO, 2, 1.0);
        let mut finished = Vec::new();
        cpu.fire(first.0, first.1, &mut finished);
        assert_eq!(finished, [1, 2]);
        assert!((cpu.used(first.0).0 - 2.0).abs() < 1e-6);
        assert_eq!(cpu.present(), 0);
    }
}
