// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who was admitted and has not asked yet.
//!
//! Between the SYN and the first request lie one to three round trips of the client, half a second
//! and more where clients are far. Who is on that way is work already; a controller that does not
//! know it admits too much, then nobody, and swings.
//!
//! The delay is learned while calm, as the lag at which the counts of admitted and of asking
//! connections are most alike, tick by tick: arrivals vary by chance, and who asks varies alike,
//! later. Levels need not be known, so those that never ask, and those of before the start, do no
//! harm. Of those on their way only the share counts that asked before.
//!
//! A server under pressure lets them wait for the handshake of TLS before they can ask. That is a
//! queue of its own, in which they are in flight, and no way. So a tick teaches only when nothing was
//! alarmed for some time, before it and after: an overload shows in the counts before it is alarmed.

use super::history::{History, Sums};
use super::scale::LASTING_TICKS;

/// Longest lag that is looked for, in ticks.
pub(super) const LAGS: usize = 20;
/// Connections after which older ones have lost most of their weight.
const MEMORY: f64 = 2048.0;
/// Fewest connections that say something.
const SEEN_MIN: f64 = 256.0;
/// The difference at the lag must be below this share of that at no lag; chance alone makes them
/// alike.
const CLEARLY: f64 = 0.7;

/// The lag from admission to the first request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coming {
    /// Squared differences by lag, averaged.
    differences: [f64; LAGS + 1],
    /// Connections that asked, and whose handshake was completed: of them this share asks.
    seen: f64,
    proved: f64,
    lag: usize,
    /// Ticks without an alarm, up to now.
    calm: usize,
    /// What a process before has learned, in seconds, until enough was seen.
    before_s: Option<f64>,
}

impl Coming {
    /// Takes a tick of `history`, whose last one was calm, or was not.
    pub(super) fn learn(&mut self, history: &History, calm: bool) {
        self.calm = if calm { self.calm.saturating_add(1) } else { 0 };
        if self.calm.min(history.len()) <= LASTING_TICKS + LAGS {
            return;
        }
        let tick = |back: usize| history.between(LASTING_TICKS + back + 1, LASTING_TICKS + back);
        let Sums { asked, proved, .. } = tick(0);
        let keep = libm::exp(-asked / MEMORY);
        self.seen = keep * self.seen + asked;
        self.proved = keep * self.proved + proved;
        for (lag, difference) in self.differences.iter_mut().enumerate() {
            let off = asked - tick(lag).entering;
            *difference = keep * *difference + off * off;
        }
        if self.seen < SEEN_MIN {
            return;
        }
        let least = (0..=LAGS).min_by(|a, b| self.differences[*a].total_cmp(&self.differences[*b]));
        let clear = |lag: &usize| self.differences[*lag] < CLEARLY * self.differences[0];
        self.lag = least.filter(clear).unwrap_or(0);
        self.before_s = None;
    }

    /// The lag in ticks as long as those of late.
    fn lag(&self, history: &History) -> usize {
        let Some(before_s) = self.before_s else { return self.lag };
        let tick_s = history.last(1).seconds;
        if tick_s > 0.0 { ((before_s / tick_s).round() as usize).min(LAGS) } else { 0 }
    }

    /// The lag in seconds, for the process that comes next.
    pub(super) fn kept(&self, history: &History) -> f64 {
        self.before_s.unwrap_or_else(|| self.delay_s(history))
    }

    /// Goes on from there, until enough was seen.
    pub(super) const fn take(&mut self, delay_s: f64) {
        self.before_s = Some(delay_s);
    }

    /// Seconds from admission to the first request, where that is longer than a tick.
    pub(super) fn delay_s(&self, history: &History) -> f64 {
        let lag = self.lag(history);
        if lag > 1 { history.last(lag).seconds } else { 0.0 }
    }

    /// Share of those who complete their handshake that ask.
    fn asking(&self) -> f64 {
        if self.seen < SEEN_MIN { 1.0 } else { self.seen / self.proved.max(self.seen) }
    }

    /// Connections on their way.
    pub(super) fn jobs(&self, history: &History, near_ticks: usize) -> f64 {
        let lag = self.lag(history);
        if lag > 1 {
            self.asking() * history.last(lag).entering
        } else {
            // Those who ask at once differ by what a tick cuts off. How many of the admitted are real
            // is an estimate beside a flood; who has completed the handshake is counted.
            let Sums { proved, asked, .. } = history.last(near_ticks);
            proved - asked
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look like chance: a linear congruential generator (Knuth).
    fn arrivals(ticks: usize, mean: u64) -> Vec<f64> {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        (0..ticks).map(|_| (mean + next() % (mean / 2) + next() % (mean / 2)) as f64).collect()
    }

    fn learned(lag: usize, never: f64, ticks: usize) -> (Coming, History) {
        let admitted = arrivals(ticks, 20);
        let (mut coming, mut history) = (Coming::default(), History::default());
        for tick in 0..ticks {
            let asked = if tick >= lag { admitted[tick - lag] } else { 5.0 };
            let entering = admitted[tick] + never;
            let proved = entering;
            history.push(Sums { seconds: 0.1, entering, asked, proved, ..Sums::default() });
            coming.learn(&history, true);
        }
        (coming, history)
    }

    #[test]
    fn the_lag_is_found_whatever_it_is_and_whoever_never_asks() {
        for lag in [0, 1, 2, 3, 7, LAGS] {
            for never in [0.0, 6.0] {
                let (coming, history) = learned(lag, never, 200);
                let told = if lag > 1 { 0.1 * lag as f64 } else { 0.0 };
                let delay_s = coming.delay_s(&history);
                assert!((delay_s - told).abs() < 1e-9, "lag {lag}, {never}: {delay_s}");
                if lag > 1 {
                    let on_their_way = history.last(lag).entering - never * lag as f64;
                    let jobs = coming.jobs(&history, 10);
                    assert!((jobs / on_their_way - 1.0).abs() < 0.1, "{jobs} of {on_their_way}");
                }
            }
        }
    }

    /// A crowd comes, and the server answers handshakes as it can; that is alarmed half a second later.
    #[test]
    fn the_onset_of_an_overload_teaches_nothing() {
        let (mut coming, mut history) = learned(0, 0.0, 200);
        for tick in 0..100 {
            let entering = 80.0;
            history.push(Sums {
                seconds: 0.1,
                entering,
                asked: 25.0,
                proved: entering,
                ..Sums::default()
            });
            coming.learn(&history, tick < 5);
        }
        assert!(coming.delay_s(&history) <= 0.0, "{}", coming.delay_s(&history));
        assert!((coming.asking() - 1.0).abs() < 1e-9, "all of them will ask");
    }

    #[test]
    fn little_seen_and_a_lag_beyond_all_tell_nothing() {
        let (coming, history) = learned(3, 0.0, LAGS + 4);
        assert!(coming.delay_s(&history) <= 0.0);
        let mut goes_on = Coming::default();
        goes_on.take(0.4);
        goes_on.learn(&history, true);
        assert!((goes_on.delay_s(&history) - 0.4).abs() < 1e-9, "it stands until enough was seen");
        assert!((goes_on.kept(&history) - 0.4).abs() < 1e-9);
        // the next process has ticks of another length
        let mut slower = History::default();
        (0..10).for_each(|_| slower.push(Sums { seconds: 0.2, entering: 3.0, ..Sums::default() }));
        assert!((goes_on.delay_s(&slower) - 0.4).abs() < 1e-9);
        assert!((goes_on.jobs(&slower, 10) - 6.0).abs() < 1e-9);
        let (coming, history) = learned(LAGS + 5, 0.0, 400);
        assert!(coming.delay_s(&history) <= 0.0, "{}", coming.delay_s(&history));
    }
}
