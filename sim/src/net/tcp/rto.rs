// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The retransmission time-out (RFC 6298), and timers that can be moved.

use super::spec::TcpSpec;
use tidegate_units::Nanos;

/// Smoothed round-trip time and its variation. Shares are shifts, so times stay whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rto {
    smoothed: Option<(Nanos, Nanos)>,
    base: Nanos,
    /// How often it has doubled since the last measurement (Karn).
    backoff: u32,
    min: Nanos,
    margin: Nanos,
    max: Nanos,
}

/// More doublings than any time-out needs to reach its maximum.
const BACKOFF_MAX: u32 = 20;

impl Rto {
    pub(super) fn new(spec: &TcpSpec) -> Self {
        let TcpSpec { rto_initial, rto_min, rto_margin, rto_max, .. } = *spec;
        let (smoothed, backoff) = (None, 0);
        Self {
            smoothed,
            base: rto_initial,
            backoff,
            min: rto_min,
            margin: rto_margin,
            max: rto_max,
        }
    }

    /// A round trip that was not ambiguous (section 2, α 1/8, β 1/4).
    pub(super) fn sample(&mut self, trip: Nanos) {
        let (smooth, vary) = match self.smoothed {
            None => (trip, Nanos(trip.0 / 2)),
            Some((smooth, vary)) => {
                let error = trip.0.abs_diff(smooth.0);
                let vary = Nanos(vary.0 - vary.0 / 4 + error / 4);
                (Nanos(smooth.0 - smooth.0 / 8 + trip.0 / 8), vary)
            }
        };
        self.smoothed = Some((smooth, vary));
        let margin = Nanos(vary.0.saturating_mul(4)).max(self.margin);
        self.base = (smooth + margin).max(self.min);
        self.backoff = 0;
    }

    /// It has fired (5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// A SYN was sent again: without a measurement, data begin with 3 s (5.7).
    pub(super) fn after_lost_syn(&mut self) {
        self.base = self.base.max(Nanos::from_secs(3));
        self.backoff = 0;
    }

    pub(super) fn get(&self) -> Nanos {
        Nanos(self.base.0.saturating_mul(1 << self.backoff)).min(self.max)
    }

    pub(super) fn smoothed(&self) -> Option<Nanos> {
        self.smoothed.map(|(smooth, _)| smooth)
    }
}

/// A timer with one event in the queue, however often it is moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer {
    due: Option<Nanos>,
    /// When the event comes that counts.
    scheduled: Option<Nanos>,
}

impl Timer {
    pub(super) const fn is_set(&self) -> bool {
        self.due.is_some()
    }

    pub(super) const fn stop(&mut self) {
        self.due = None;
    }

    /// Sets it; returns when an event is to be scheduled, if one is.
    #[must_use]
    pub(super) fn set(&mut self, due: Nanos) -> Option<Nanos> {
        self.due = Some(due);
        if self.scheduled.is_some_and(|scheduled| scheduled <= due) {
            return None;
        }
        self.scheduled = Some(due);
        Some(due)
    }

    /// Its event has come: whether it fires, and when the next event is to be scheduled.
    #[must_use]
    pub(super) fn comes(&mut self, now: Nanos) -> (bool, Option<Nanos>) {
        if self.scheduled != Some(now) {
            return (false, None); // it was moved forward, and that event has come before
        }
        self.scheduled = None;
        match self.due {
            Some(due) if due <= now => {
                self.due = None;
                (true, None)
            }
            Some(due) => {
                self.scheduled = Some(due);
                (false, Some(due))
            }
            None => (false, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn the_time_out_is_that_of_the_rfc() {
        let spec = TcpSpec { rto_min: MS(10), ..TcpSpec::rfc() };
        let mut rto = Rto::new(&spec);
        assert_eq!(rto.get(), Nanos::SECOND);
        rto.sample(MS(80)); // 80 + 4 · 40
        assert_eq!(rto.get(), MS(240));
        rto.sample(MS(160)); // variation 30 + 20, smoothed 70 + 20
        assert_eq!(rto.get(), MS(90 + 4 * 50));
        rto.back_off();
        rto.back_off();
        assert_eq!(rto.get(), MS(4 * 290));
        (0..100).for_each(|_| rto.back_off());
        assert_eq!(rto.get(), spec.rto_max);
        rto.sample(MS(90));
        assert!(rto.get() < MS(290), "a measurement ends the doubling");

        let mut rto = Rto::new(&TcpSpec::today());
        (0..100).for_each(|_| rto.sample(MS(80)));
        assert_eq!(rto.get().0.div_ceil(1_000_000), 280, "80 and the margin of Linux");
    }

    #[test]
    fn a_timer_that_is_moved_fires_once() {
        let mut timer = Timer::default();
        assert_eq!(timer.set(Nanos(10)), Some(Nanos(10)));
        assert_eq!(timer.set(Nanos(20)), None, "later: the event in the queue will look");
        assert_eq!(timer.comes(Nanos(10)), (false, Some(Nanos(20))));
        assert_eq!(timer.set(Nanos(15)), Some(Nanos(15)), "earlier: a new event");
        assert_eq!(timer.comes(Nanos(15)), (true, None));
        assert_eq!(timer.comes(Nanos(20)), (false, None), "the old event is void");
        assert!(!timer.is_set());
    }
}
