// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is learned while calm: response time, its variability, and who only holds a connection.

use super::history::Sums;
use super::scale::{EVENTS_MIN, LASTING_SECONDS, MEAN_EVENTS, RATE_EVENTS, SPREAD_MAX};

/// A slow server's window ends after this many seconds with at least [`EVENTS_MIN`].
const BASELINE_SECONDS: f64 = 5.0;
/// Standard errors added to a window's mean: the least of many windows must not be below the
/// truth, because the jobs that keep the server busy are counted by it.
const BASELINE_ERRORS: f64 = 2.0;
/// Seconds of calm in which a baseline follows upward: slow enough that half a minute at the very
/// capacity moves it by 5 % of the gap.
const BASELINE_UP_SECONDS: f64 = 600.0;
/// Weights of a window in the measured variability: queues make times look more alike than they
/// are, never less, so it rises fast, and falls slowly and only by windows without one.
const SPREAD_WEIGHT_UP: f64 = 0.2;
/// See [`SPREAD_WEIGHT_UP`].
const SPREAD_WEIGHT_DOWN: f64 = 0.02;
/// Responses in a tick below which its median says nothing.
const SPREAD_RESPONSES_MIN: f64 = 4.0;
/// Seconds in which the idle are learned.
const IDLE_SECONDS: f64 = 10.0;
/// Idle below this share of N (and these many jobs) are noise of the two averages.
const IDLE_SHARE_MIN: f64 = 0.2;
/// See [`IDLE_SHARE_MIN`].
const IDLE_MIN: f64 = 4.0;

/// What is learned while calm.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    pub(super) r0_s: Option<f64>,
    /// What the first window says while it is not full.
    pub(super) early_s: Option<f64>,
    /// Squared coefficient of variation of response times.
    pub(super) spread: f64,
    pub(super) window: Window,
    pub(super) waiting: f64,
    pub(super) explained: f64,
}

/// Response times of some ticks, with what tells their error: the means of single ticks vary as
/// the times do, over their number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) seconds: f64,
    pub(super) sum_s: f64,
    pub(super) responses: f64,
    pub(super) squares: f64,
    pub(super) ticks: f64,
    /// Mean and median of ticks with [`SPREAD_RESPONSES_MIN`] responses, both times their number.
    pub(super) means_s: f64,
    pub(super) medians_s: f64,
}

impl Window {
    pub(super) fn add(&mut self, tick: &Sums, median_s: f64) {
        self.seconds += tick.seconds;
        if tick.responses > 0.0 {
            self.sum_s += tick.response_s;
            self.responses += tick.responses;
            self.squares += tick.response_s * tick.response_s / tick.responses;
            self.ticks += 1.0;
        }
        if tick.responses >= SPREAD_RESPONSES_MIN {
            self.means_s += tick.response_s;
            self.medians_s += tick.responses * median_s;
        }
    }

    pub(super) fn enough(&self) -> bool {
        self.ticks > 1.0
            && (self.responses >= MEAN_EVENTS
                || self.seconds >= BASELINE_SECONDS && self.responses >= EVENTS_MIN)
    }

    /// Mean and its standard error in seconds.
    pub(super) fn mean(&self) -> (f64, f64) {
        let mean = self.sum_s / self.responses;
        let variance = ((self.squares - self.sum_s * mean) / (self.ticks - 1.0)).max(0.0);
        (mean, (variance / self.responses).sqrt())
    }

    /// The mean, and what it may err by.
    pub(super) fn upper(&self) -> f64 {
        let (mean, error) = self.mean();
        mean + BASELINE_ERRORS * error
    }

    /// Squared coefficient of variation: mean over median is √(1 + cv²) for log-normal times, and
    /// near it for constant and exponential ones. Taken tick by tick, a queue cancels out, and no
    /// single huge response is needed to see a heavy tail.
    pub(super) fn spread(&self) -> Option<f64> {
        let ratio = self.means_s / self.medians_s;
        ratio.is_finite().then(|| (ratio * ratio - 1.0).clamp(0.0, SPREAD_MAX))
    }
}

impl Baseline {
    pub(super) fn learn(&mut self, tick: &Sums, median_s: f64, waiting: f64) {
        let keep = libm::exp(-tick.seconds / IDLE_SECONDS);
        self.waiting = keep * self.waiting + (1.0 - keep) * waiting;
        let explained = tick.response_s / tick.seconds;
        self.explained = keep * self.explained + (1.0 - keep) * explained;
        self.window.add(tick, median_s);
        if !self.window.enough() {
            let early =
                self.window.responses >= RATE_EVENTS && self.window.seconds >= LASTING_SECONDS;
            if early && self.r0_s.is_none() && self.early_s.is_none() {
                self.early_s = Some(self.window.upper());
            }
            return;
        }
        let window = std::mem::take(&mut self.window);
        let (mean, upper) = (window.mean().0, window.upper());
        self.early_s = None;
        let before = self.r0_s.unwrap_or(f64::MAX);
        if upper <= before {
            self.r0_s = Some(upper);
        } else {
            let weight = 1.0 - libm::exp(-window.seconds / BASELINE_UP_SECONDS);
            self.r0_s = Some(before + weight * (upper - before));
        }
        if let Some(spread) = window.spread().filter(|s| *s > self.spread || mean < before) {
            let weight = if spread > self.spread { SPREAD_WEIGHT_UP } else { SPREAD_WEIGHT_DOWN };
            self.spread += weight * (spread - self.spread);
        }
    }

    /// What one job takes, as far as it is known.
    pub(super) fn known_s(&self) -> Option<f64> {
        self.r0_s.or(self.early_s)
    }

    /// How much longer queues are than with exponential times (Pollaczek and Khinchine).
    pub(super) fn variability(&self) -> f64 {
        ((1.0 + self.spread) / 2.0).max(1.0)
    }

    /// The median that goes with the baseline: see [`Window::spread`].
    pub(super) fn median_s(&self) -> Option<f64> {
        self.r0_s.map(|mean_s| mean_s / libm::sqrt(1.0 + self.spread))
    }

    /// Jobs in flight that no throughput explains.
    pub(super) fn idle(&self) -> f64 {
        let unexplained = self.waiting - self.explained;
        (unexplained - IDLE_SHARE_MIN * self.waiting - IDLE_MIN).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tick of so many responses of this mean, seconds.
    fn tick(responses: f64, mean_s: f64) -> Sums {
        Sums { seconds: 0.1, responses, response_s: responses * mean_s, ..Sums::default() }
    }

    #[test]
    fn idle_are_those_that_no_throughput_explains_beyond_noise() {
        let idle =
            |waiting, explained| Baseline { waiting, explained, ..Baseline::default() }.idle();
        assert_eq!((idle(5.0, 2.0), idle(1000.0, 880.0)), (0.0, 0.0));
        assert!(idle(1000.0, 100.0) > 500.0 && idle(20.0, 2.0) > 5.0);
    }

    /// The median of two responses is one of them.
    #[test]
    fn few_responses_say_nothing_of_how_they_vary() {
        let window = |responses| {
            let mut window = Window::default();
            (0..100).for_each(|_| window.add(&tick(responses, 0.05), 0.02));
            window.spread()
        };
        assert_eq!(window(2.0), None);
        assert!(window(10.0).is_some_and(|spread| (5.0..5.5).contains(&spread)));
    }

    /// Windows of two ticks, whose responses take this, a little less each time.
    fn windows(baseline: &mut Baseline, n: u32, mean_s: f64, median: f64) {
        for n in 0..n {
            let mean_s = mean_s * libm::pow(0.999, f64::from(n));
            (0..2).for_each(|_| baseline.learn(&tick(300.0, mean_s), median * mean_s, 0.0));
        }
    }

    #[test]
    fn times_that_varied_once_are_not_believed_to_vary_for_ever() {
        let mut baseline = Baseline::default();
        windows(&mut baseline, 50, 0.05, 0.4);
        let most = baseline.spread;
        assert!(most > 4.0, "{most}");
        windows(&mut baseline, 1, 0.04, 1.0);
        assert!(baseline.spread > 0.9 * most, "one window may be chance");
        windows(&mut baseline, 200, 0.039, 1.0);
        assert!((0.0..0.1 * most).contains(&baseline.spread), "{}", baseline.spread);
    }

    /// The excess that is an overload grows with it: a few responses that take a thousand times as long must not hide one.
    #[test]
    fn however_much_times_vary_an_overload_shows() {
        let mut baseline = Baseline::default();
        windows(&mut baseline, 100, 0.05, 0.001);
        assert!((10.0..15.0).contains(&baseline.variability()), "{}", baseline.variability());
    }
}
