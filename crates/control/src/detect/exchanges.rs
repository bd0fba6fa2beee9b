// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections and exchanges: one unit for what is compared, and how many of one make the other.
//!
//! Capacity, what is in flight and response times are of exchanges; what can be refused are
//! connections. A connection that comes brings some exchanges with it. How many is seen in two ways:
//! in those that have ended, which is right but late, and in what completes beside what gets its
//! first response, which is right once the connections that are in are of all ages. An overload makes
//! the second too small (its connections are young), long ones that never end the first; so the
//! larger of the two counts.
//!
//! # Arrivals
//! A client counts once: when its connection asks, or when its first attempt is turned away. A dropped
//! SYN comes back up to six times, and these repeated SYNs are no arrivals. How many first attempts were
//! turned away is not counted. What counts is all that were turned away, less all repeated SYNs of the
//! tick, or zero. That is a lower bound, smaller than the exact number by the repeated SYNs that were
//! admitted. Those ask, so their clients are arrivals anyway; the exact number would count them twice.
//! What is left says by how many more clients wait for their next attempt. Each SYN counts where the
//! policy does not know repeated ones. In shadow mode nobody is turned away.
//!
//! Release and echo ask whether all that comes would fit. A repeated SYN would come in then, so they
//! add them again: see `Sums::with_repeated`.
//!
//! # Connections that stay
//! Of the exchanges that are not the first of their connection, those of connections that come and go are
//! no more than connections bring that ended, or as many as came would bring. The larger counts: in an
//! onset hardly any has ended, and where new ones are refused those that are in still end. What completes
//! beyond that is of connections that stay: resident.rs says what follows.

use super::history::{History, Sums};
use super::scale::{EVENTS_MIN, RATE_EVENTS};
use crate::period_s;
use tidegate_model::signals::{Counts, Signals};

/// Fewest ends that say something.
const ENDS_MIN: f64 = 8.0;
/// Before so many have ended, connections that come and go are believed to have as many exchanges at most:
/// more than a page has, and fewer than servers allow (100 and 1,000 in Apache and nginx).
const EACH_UNKNOWN: f64 = 64.0;
/// Seconds in which exchanges and first responses are averaged before they are compared: longer than
/// connections live, or each wave of them would look like another kind.
pub(super) const RATIO_SECONDS: f64 = 20.0;
/// A connection counts as at most this many exchanges: from there on, none need be admitted for those
/// that are in to be enough.
const EACH_MAX: f64 = 10_000.0;
/// See [`RATE_EVENTS`].
const TICKS: usize = 100;

/// What was seen of connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exchanges {
    ends: f64,
    ended_exchanges: f64,
    answered: f64,
    completed: f64,
    /// Exchanges of connections that ended, without the first of each.
    ended_later: f64,
    /// First exchanges of their connections that are in flight.
    first: f64,
}

impl Exchanges {
    /// Puts the counts of a tick, behind `history`, into one unit.
    pub(super) fn see(&mut self, tick: Sums, counts: &Counts, history: &History) -> Sums {
        let Some(connections) = counts.connections else {
            // Each exchange is a connection; what is nowhere was lost.
            let known =
                tick.turned_away_first + tick.completed + float(counts.unseen) + tick.growth;
            return Sums { answered: tick.completed, lost: tick.offered - known, ..tick };
        };
        let ended = float(connections.ended);
        let keep = libm::exp(-ended / RATE_EVENTS);
        self.ends = keep * self.ends + ended;
        self.ended_exchanges = keep * self.ended_exchanges + float(connections.ended_exchanges);
        let keep = libm::exp(-tick.seconds / RATIO_SECONDS);
        self.answered = keep * self.answered + float(connections.answered);
        self.completed = keep * self.completed + tick.completed;
        let ended_later = float(connections.ended_exchanges.saturating_sub(connections.ended));
        self.ended_later = keep * self.ended_later + ended_later;
        let share = proved_share(history);
        let turned_away_first = tick.turned_away_first * share;
        Sums {
            offered: float(connections.asked) + turned_away_first,
            first: tick.first * share,
            turned_away: tick.turned_away * share,
            turned_away_first,
            answered: float(connections.answered),
            lost: float(connections.lost),
            ignored: float(counts.admitted) - float(connections.replied),
            entering: float(counts.admitted) * share,
            asked: float(connections.asked),
            replied: float(connections.replied),
            proved: float(connections.proved),
            ..tick
        }
    }

    /// Takes who sent a first request in a tick, and who was answered, with so many in flight at its end.
    /// What was missed shows as soon as few are in flight.
    pub(super) fn follow_first(&mut self, counts: &Counts, waiting: f64) {
        let Some(connections) = counts.connections else { return };
        let gone = float(connections.answered) + float(connections.lost);
        self.first = (self.first + float(connections.asked) - gone).clamp(0.0, waiting);
    }

    /// First exchanges of their connections that are in flight.
    pub(super) const fn first(&self) -> f64 {
        self.first
    }

    /// Exchanges that a connection brings, at least one; those that stay are left out.
    pub(super) fn each(&self) -> f64 {
        let known = self.answered >= EVENTS_MIN;
        let ratio = if known { 1.0 + self.turning() / self.answered } else { 1.0 };
        ratio.max(self.ended_each().unwrap_or(1.0)).clamp(1.0, EACH_MAX)
    }

    /// The share of later exchanges whose connections stay.
    pub(super) fn staying(&self) -> f64 {
        let later = self.later();
        if later < EVENTS_MIN { 0.0 } else { 1.0 - self.turning() / later }
    }

    /// The part of all exchanges that have completed on connections that stay.
    pub(super) fn staying_part(&self) -> f64 {
        self.staying() * self.later() / self.completed.max(EVENTS_MIN)
    }

    /// Exchanges that were not the first of their connection.
    fn later(&self) -> f64 {
        (self.completed - self.answered).max(0.0)
    }

    /// Those of them whose connections come and go.
    fn turning(&self) -> f64 {
        let each = self.ended_each().unwrap_or(EACH_UNKNOWN);
        self.later().min(self.ended_later.max((each - 1.0) * self.answered))
    }

    /// Exchanges that connections had that ended.
    fn ended_each(&self) -> Option<f64> {
        (self.ends >= ENDS_MIN).then(|| self.ended_exchanges / self.ends)
    }
}

impl Exchanges {
    /// Exchanges that a connection brings, and how many first responses that is known from.
    pub(super) fn kept(&self) -> (f64, f64) {
        (self.each(), self.answered)
    }

    /// Goes on from there.
    pub(super) fn take(&mut self, each: f64, answered: f64) {
        (self.answered, self.completed) = (answered, answered * each);
    }
}

/// A tick's counts as floats, bounded so that sums stay exact.
pub(super) fn sums(signals: &Signals, counts: &Counts, growth: f64) -> Sums {
    let times = signals.time.first_byte.map(|t| t.value).unwrap_or_default();
    let turned_away = counts.offered.saturating_sub(counts.admitted);
    let turned_away_first = turned_away.saturating_sub(counts.repeated);
    Sums {
        seconds: period_s(signals),
        offered: float(counts.offered - (turned_away - turned_away_first)),
        first: float(counts.offered.saturating_sub(counts.repeated)),
        refused: float(counts.refused),
        turned_away: float(turned_away),
        turned_away_first: float(turned_away_first),
        completed: float(counts.done()),
        response_s: times.sum.as_secs_f64(),
        responses: float(times.count),
        medians_s: times.p50.as_secs_f64() * float(times.count),
        growth,
        ..Sums::default()
    }
}

/// A count, bounded likewise.
pub(super) fn float(n: u64) -> f64 {
    n.min(1 << 40) as f64
}

/// Share of those that the server replied to who complete their handshake: what of the refused would
/// have been work. Spoofed SYNs do not.
fn proved_share(history: &History) -> f64 {
    let lately = history.replying(RATE_EVENTS, TICKS);
    if lately.replied < RATE_EVENTS {
        1.0
    } else {
        (lately.proved / lately.replied).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Controller, DefaultController, DefaultSpec, Mode};
    use tidegate_model::signals::{ConnectionCounts, Family, Reading, Times};
    use tidegate_units::Nanos;

    const CONNECTIONS: ConnectionCounts = ConnectionCounts {
        replied: 0,
        proved: 0,
        asked: 0,
        answered: 0,
        lost: 0,
        ended: 0,
        ended_exchanges: 0,
    };

    /// Clients that came, of so many SYNs, of which so many were repeated and so many were admitted; and
    /// the SYNs that would come in. `connections`: whether connections are counted.
    fn came((offered, repeated, admitted): (u64, u64, u64), connections: bool) -> (f64, f64) {
        let asked = ConnectionCounts { asked: admitted, ..CONNECTIONS };
        let counts = Counts {
            offered,
            repeated,
            admitted,
            refused: offered - admitted,
            connections: connections.then_some(asked),
            ..Counts::default()
        };
        let tick = sums(&Signals::default(), &counts, 0.0);
        let sums = Exchanges::default().see(tick, &counts, &History::default());
        assert_eq!((sums.turned_away, sums.lost), ((offered - admitted) as f64, lost(&counts)));
        (sums.offered, sums.with_repeated())
    }

    /// Nothing completes here, so without counts of connections what was admitted is nowhere.
    fn lost(counts: &Counts) -> f64 {
        if counts.connections.is_some() { 0.0 } else { counts.admitted as f64 }
    }

    #[test]
    fn a_client_is_an_arrival_once() {
        for connections in [true, false] {
            for (syns, arrivals) in [
                ((100, 0, 40), 100.0),
                ((100, 30, 40), 70.0),
                // more are repeated than were turned away: the rest was admitted, and asks
                ((100, 80, 40), 40.0),
                ((100, 100, 0), 0.0),
                ((100, 30, 100), 100.0),
            ] {
                assert_eq!(came(syns, connections), (arrivals, 100.0), "{syns:?} {connections}");
            }
        }
    }

    /// Of those that are refused as many would have been work as complete their handshake: with nine in ten spoofed, a tenth.
    #[test]
    fn of_the_refused_those_count_that_would_have_asked() {
        let tick =
            |replied| Sums { seconds: 0.1, replied, proved: 0.1 * replied, ..Sums::default() };
        let mut history = History::default();
        history.push(tick(20.0));
        assert!((proved_share(&history) - 1.0).abs() < 1e-9, "few say nothing");
        (0..10).for_each(|_| history.push(tick(100.0)));
        assert!((proved_share(&history) - 0.1).abs() < 1e-9);
        (0..150).for_each(|_| history.push(tick(0.0)));
        assert!((proved_share(&history) - 1.0).abs() < 1e-9, "nor what was 15 s ago");
    }

    /// Beside 20 clients in each tick, who are served, 30 repeated SYNs of a burst are refused. Whether
    /// more seems to come than completes, within so many ticks.
    fn is_unbalanced(tells: bool, ticks: u64) -> bool {
        let mut controller = DefaultController::new(DefaultSpec::default());
        let period = Nanos::from_millis(100);
        let took = Nanos::from_millis(10);
        let tick = |n: u64| {
            let again = if n < 400 { 0 } else { 30 };
            let mut s = Signals { now: Nanos(period.0 * n), period, ..Signals::default() };
            let connections = ConnectionCounts {
                replied: 20,
                proved: 20,
                asked: 20,
                answered: 20,
                ended: 20,
                ended_exchanges: 20,
                ..CONNECTIONS
            };
            s.balance.counts = Some(Reading::fresh(Counts {
                offered: 20 + again,
                repeated: if tells { again } else { 0 },
                admitted: 20,
                refused: again,
                completed: 20,
                connections: Some(connections),
                ..Counts::default()
            }));
            let times = Times { count: 20, sum: Nanos(took.0 * 20), p50: took, p99: took };
            s.time.waiting = Some(Reading::fresh(1));
            s.time.first_byte = Some(Reading::fresh(times));
            s
        };
        (0..400 + ticks)
            .map(|n| controller.tick(&tick(n), Mode::Enforce).why.alarmed)
            .any(|alarmed| alarmed.contains(&Family::Balance))
    }

    #[test]
    fn repeated_syns_are_no_imbalance() {
        assert!(!is_unbalanced(true, 70));
        assert!(is_unbalanced(false, 70), "each SYN counts where repeated ones are not known");
    }
}
