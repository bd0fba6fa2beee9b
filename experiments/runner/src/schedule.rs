// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long an experiment in the lab may take, whatever the machine does meanwhile: runs are
//! repeated only while it is on time, and what does not fit is left out and said to be.

use tidegate_units::{Clock, MonotonicClock, Nanos};

/// An experiment's time in the lab.
pub(crate) const LIMIT: Nanos = Nanos::from_secs(75 * 60);

/// Steps of about the same length within a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    start: Nanos,
    /// None for whoever asked for everything.
    limit: Option<Nanos>,
    steps: u32,
    done: u32,
}

impl Schedule {
    /// Begins now.
    pub(crate) fn begin(limit: Option<Nanos>, steps: usize) -> Self {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        Self { start: MonotonicClock.now(), limit, steps, done: 0 }
    }

    /// A step is over.
    pub(crate) const fn step(&mut self) {
        self.done += 1;
    }

    /// Whether the present step may do something again.
    pub(crate) fn may_repeat(&self) -> bool {
        self.has_time_at(MonotonicClock.now())
    }

    /// Whether all the time is used.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over_at(MonotonicClock.now())
    }

    /// The present step has its share of the time, and what those before it left.
    fn has_time_at(&self, now: Nanos) -> bool {
        let share = f64::from(self.done + 1) / f64::from(self.steps.max(1));
        let used = (now - self.start).as_secs_f64();
        self.limit.is_none_or(|limit| used <= limit.as_secs_f64() * share.min(1.0))
    }

    fn is_over_at(&self, now: Nanos) -> bool {
        self.limit.is_some_and(|limit| now - self.start >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each step has its share of the time and what was left before it; at the limit all is over.
    #[test]
    fn repeats_are_for_who_is_on_time() {
        let limit = Some(Nanos::from_secs(100));
        let mut schedule = Schedule { start: Nanos::from_secs(5), limit, steps: 4, done: 0 };
        let at = |seconds: u64| Nanos::from_secs(5 + seconds);
        assert!(schedule.has_time_at(at(25)) && !schedule.has_time_at(at(26)));
        schedule.step();
        assert!(schedule.has_time_at(at(50)) && !schedule.has_time_at(at(51)));
        schedule.done = 9;
        assert!(schedule.has_time_at(at(100)) && !schedule.has_time_at(at(101)));
        assert!(!schedule.is_over_at(at(99)) && schedule.is_over_at(at(100)));
        let endless = Schedule { limit: None, ..schedule };
        assert!(endless.has_time_at(at(10_000)) && !endless.is_over_at(at(10_000)));
    }
}
