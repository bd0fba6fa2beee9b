// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last ticks as running sums, so that any window of them costs two look-ups.

use std::collections::VecDeque;

/// Ticks remembered: 51 s at 100 ms, the window in which a server of 5/s shows twice its capacity.
pub(crate) const TICKS_MAX: usize = 512;

/// Sums since the beginning, at the end of one tick.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Seconds.
    pub(crate) seconds: f64,
    /// Clients that came with a request: connections that sent one, and first attempts that were
    /// turned away (see `turned_away_first`).
    pub(crate) offered: f64,
    /// SYNs that are not known to be repeated, of them those that complete handshakes likewise.
    pub(crate) first: f64,
    /// SYNs refused; in shadow: what would have been.
    pub(crate) refused: f64,
    /// Of them, those that were really turned away, as far as their like is known to complete
    /// handshakes.
    pub(crate) turned_away: f64,
    /// Of these, first attempts: as many more clients wait for their next attempt. See exchanges.rs.
    pub(crate) turned_away_first: f64,
    /// Exchanges completed.
    pub(crate) completed: f64,
    /// Connections that got their first response.
    pub(crate) answered: f64,
    /// Connections that sent a request, and ended without a response.
    pub(crate) lost: f64,
    /// SYNs that were admitted, less those that the server replied to.
    pub(crate) ignored: f64,
    /// Connections that were admitted, as far as their like is known to complete handshakes, and those
    /// that sent their first request.
    pub(crate) entering: f64,
    /// See `entering`.
    pub(crate) asked: f64,
    /// SYNs that the server replied to, and handshakes that their clients completed.
    pub(crate) replied: f64,
    /// See `replied`.
    pub(crate) proved: f64,
    /// Growth of the exchanges in flight.
    pub(crate) growth: f64,
    /// Response times of those with one, in seconds, and their number.
    pub(crate) response_s: f64,
    /// Number of response times.
    pub(crate) responses: f64,
    /// Medians of single ticks, times that number.
    pub(crate) medians_s: f64,
}

impl Sums {
    fn plus(self, o: Self) -> Self {
        Self {
            seconds: self.seconds + o.seconds,
            offered: self.offered + o.offered,
            first: self.first + o.first,
            refused: self.refused + o.refused,
            turned_away: self.turned_away + o.turned_away,
            turned_away_first: self.turned_away_first + o.turned_away_first,
            completed: self.completed + o.completed,
            answered: self.answered + o.answered,
            lost: self.lost + o.lost,
            ignored: self.ignored + o.ignored,
            entering: self.entering + o.entering,
            asked: self.asked + o.asked,
            replied: self.replied + o.replied,
            proved: self.proved + o.proved,
            growth: self.growth + o.growth,
            response_s: self.response_s + o.response_s,
            responses: self.responses + o.responses,
            medians_s: self.medians_s + o.medians_s,
        }
    }

    fn minus(self, o: Self) -> Self {
        Self {
            seconds: self.seconds - o.seconds,
            offered: self.offered - o.offered,
            first: self.first - o.first,
            refused: self.refused - o.refused,
            turned_away: self.turned_away - o.turned_away,
            turned_away_first: self.turned_away_first - o.turned_away_first,
            completed: self.completed - o.completed,
            answered: self.answered - o.answered,
            lost: self.lost - o.lost,
            ignored: self.ignored - o.ignored,
            entering: self.entering - o.entering,
            asked: self.asked - o.asked,
            replied: self.replied - o.replied,
            proved: self.proved - o.proved,
            growth: self.growth - o.growth,
            response_s: self.response_s - o.response_s,
            responses: self.responses - o.responses,
            medians_s: self.medians_s - o.medians_s,
        }
    }

    /// Completions per second; zero over no time.
    pub(crate) fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.completed / self.seconds } else { 0.0 }
    }

    /// What came and did not complete: what is in flight since, what was turned away, and what
    /// was lost. With one request a connection this is arrivals less completions; with more, each
    /// connection still counts once, and so does a client whose SYN comes again and again.
    pub(crate) fn excess(&self) -> f64 {
        self.growth + self.turned_away_first + self.lost()
    }

    /// What would come in if nobody were turned away: beside `offered`, SYNs that come again.
    pub(crate) fn with_repeated(&self) -> f64 {
        self.offered - self.turned_away_first + self.turned_away
    }

    /// Connections that were neither answered nor refused, and do not wait either: SYNs that the
    /// server's full queue ignored, clients that left without a response.
    pub(crate) fn lost(&self) -> f64 {
        self.lost + self.ignored.max(0.0)
    }
}

/// The ring.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// Cumulative, oldest first; begins with the sums before the oldest tick.
    sums: VecDeque<Sums>,
}

impl Default for History {
    fn default() -> Self {
        Self { sums: VecDeque::from([Sums::default()]) }
    }
}

impl History {
    /// Adds one tick.
    pub(crate) fn push(&mut self, tick: Sums) {
        let last = self.sums.back().copied().unwrap_or_default();
        self.sums.push_back(last.plus(tick));
        if self.sums.len() > TICKS_MAX + 1 {
            self.sums.pop_front();
            self.rebase();
        }
    }

    /// Ticks remembered.
    pub(crate) fn len(&self) -> usize {
        self.sums.len() - 1
    }

    /// Sums of the ticks from `from` to `to` ticks ago (0 is now); `from` is cut to what is there.
    pub(crate) fn between(&self, from: usize, to: usize) -> Sums {
        let end = self.sums.len() - 1 - to.min(self.len());
        let begin = self.sums.len() - 1 - from.min(self.len());
        if begin >= end { Sums::default() } else { self.sums[end].minus(self.sums[begin]) }
    }

    /// Sums of the last `ticks` ticks.
    pub(crate) fn last(&self, ticks: usize) -> Sums {
        self.between(ticks, 0)
    }

    /// Sums of the shortest window with at least `offered` arrivals; `None` if there are fewer.
    pub(crate) fn since_offered(&self, offered: f64) -> Option<Sums> {
        let found = self.sums.partition_point(|sums| {
            self.sums.back().is_some_and(|last| last.offered - sums.offered >= offered)
        });
        (found > 0).then(|| self.last(self.len() + 1 - found))
    }

    /// Sums of the shortest window of at least `ticks_min` ticks with at least `completed`
    /// completions, or of `ticks_max` ticks.
    pub(crate) fn recent(&self, completed: f64, ticks_min: usize, ticks_max: usize) -> Sums {
        let mut ticks = ticks_min;
        while ticks < ticks_max.min(self.len()) && self.last(ticks).completed < completed {
            ticks += 1;
        }
        self.last(ticks)
    }

    /// Sums of the shortest window of at least so many seconds, or of all ticks.
    pub(crate) fn lasting(&self, seconds: f64) -> Sums {
        self.shortest(TICKS_MAX, |sums| sums.seconds >= seconds)
    }

    /// Sums of the shortest window with so many response times, or of `ticks_max` ticks.
    pub(crate) fn responding(&self, responses: f64, ticks_max: usize) -> Sums {
        self.shortest(ticks_max, |sums| sums.responses >= responses)
    }

    /// Sums of the shortest window with so many SYN-ACKs, or of `ticks_max` ticks.
    pub(crate) fn replying(&self, replied: f64, ticks_max: usize) -> Sums {
        self.shortest(ticks_max, |sums| sums.replied >= replied)
    }

    fn shortest(&self, ticks_max: usize, enough: impl Fn(&Sums) -> bool) -> Sums {
        let longest = ticks_max.min(self.len());
        (1..longest)
            .map(|ticks| self.last(ticks))
            .find(enough)
            .unwrap_or_else(|| self.last(longest))
    }

    /// Keeps the sums small, so that differences stay exact for ever: once an hour is enough, and
    /// it costs a pass over the ring.
    fn rebase(&mut self) {
        let base = self.sums[0];
        if base.offered + base.turned_away + base.completed + base.seconds < 1e12 {
            return;
        }
        for sums in &mut self.sums {
            *sums = sums.minus(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_sum_of_its_ticks_also_after_the_ring_is_full() {
        let mut history = History::default();
        for i in 0..2000 {
            history.push(Sums { seconds: 0.1, offered: f64::from(i), ..Sums::default() });
        }
        assert_eq!(history.len(), TICKS_MAX);
        assert!((history.last(3).offered - (1999.0 + 1998.0 + 1997.0)).abs() < 1e-6);
        assert!((history.between(3, 1).offered - (1998.0 + 1997.0)).abs() < 1e-6);
        assert!((history.last(10_000).seconds - 51.2).abs() < 1e-6);
    }
}
