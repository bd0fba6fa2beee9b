// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was seen in the last seconds, whatever the interval of the ticks.

use std::collections::VecDeque;

/// Half a millisecond: ten ticks of 100 ms are a second.
const SLACK_SECONDS: f64 = 5e-4;
/// Most ticks for each of its seconds: of 1 ms, the shortest that counts, and some more.
const TICKS_PER_SECOND_MAX: f64 = 1024.0;

/// Ticks with their lengths; the oldest that are not needed for its span are forgotten.
#[derive(Clone, Debug)]
pub(crate) struct Window<T> {
    span_s: f64,
    ticks_max: usize,
    ring: VecDeque<(f64, T)>,
}

impl<T> Window<T> {
    /// An empty one of so many seconds.
    pub(crate) fn new(span_s: f64) -> Self {
        let ticks_max = (span_s * TICKS_PER_SECOND_MAX) as usize;
        Self { span_s, ticks_max, ring: VecDeque::new() }
    }

    /// Takes what was seen in a tick of so many seconds.
    pub(crate) fn push(&mut self, seconds: f64, seen: T) {
        self.ring.push_back((seconds, seen));
        let mut length = self.seconds();
        while let Some((oldest, _)) = self.ring.front()
            && self.ring.len() > 1
            && (length - oldest > self.span_s - SLACK_SECONDS || self.ring.len() > self.ticks_max)
        {
            length -= oldest;
            self.ring.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ring.clear();
    }

    /// Seconds that it holds.
    pub(crate) fn seconds(&self) -> f64 {
        self.ring.iter().map(|(seconds, _)| seconds).sum()
    }

    /// The sum of a value over its ticks, of which it is told the lengths. Summed anew each time, so
    /// that nothing drifts.
    pub(crate) fn sum(&self, value: impl Fn(f64, &T) -> f64) -> f64 {
        self.ring.iter().map(|(seconds, seen)| value(*seconds, seen)).sum()
    }

    /// Whether it holds so many seconds, or as many ticks as it can.
    pub(crate) fn holds(&self, seconds: f64) -> bool {
        self.seconds() >= seconds - SLACK_SECONDS || self.ring.len() >= self.ticks_max
    }

    /// Whether it holds all of its span.
    pub(crate) fn full(&self) -> bool {
        self.holds(self.span_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_its_seconds_whatever_the_interval() {
        for (tick_s, ticks) in [(0.1, 10), (0.25, 4), (1.0, 1), (0.3, 4), (3.0, 1)] {
            let mut window = Window::new(1.0);
            for n in 0_u32..40 {
                assert_eq!(window.full(), n >= ticks, "tick {n} of {tick_s} s");
                window.push(tick_s, n);
            }
            let last: u32 = (40 - ticks..40).sum();
            assert_eq!(window.sum(|_, n| f64::from(*n)), f64::from(last), "{tick_s}");
            window.clear();
            assert!(!window.full() && window.seconds() == 0.0);
        }
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let mut window = Window::new(2.0);
        (0..5000).for_each(|_| window.push(1e-6, ()));
        assert!(window.ring.len() == 2048 && window.full());
    }
}
