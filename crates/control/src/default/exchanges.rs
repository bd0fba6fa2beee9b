// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections and exchanges: one unit for what is compared, and how many of one make the other.
//!
//! Capacity, what is in flight and response times are of exchanges; what can be refused are
//! connections. A connection that comes brings some exchanges with it. How many is seen in two ways:
//! in those that have ended, which is right but late, and in what completes beside what gets its
//! first response, which is right once the connections that are in are of all ages. An overload makes
//! the second too small (its connections are young), long ones that never end the first; so the
//! larger of the two counts.

use super::float;
use crate::history::{History, Sums};
use tidegate_model::signals::Counts;

/// Ends after which older ones have lost most of their weight.
const ENDS: f64 = 64.0;
/// Fewest ends that say something.
const ENDS_MIN: f64 = 8.0;
/// Seconds in which exchanges and first responses are averaged before they are compared: longer than
/// connections live, or each wave of them would look like another kind.
const RATIO_SECONDS: f64 = 20.0;
/// Fewest first responses in it that say something.
const ANSWERED_MIN: f64 = 16.0;
/// A connection counts as at most this many exchanges: from there on, none need be admitted for those
/// that are in to be enough.
const EACH_MAX: f64 = 10_000.0;
/// SYN-ACKs in a window whose share of completed handshakes is known, and ticks at most.
const REPLIED: f64 = 64.0;
/// See [`REPLIED`].
const TICKS: usize = 100;

/// What was seen of connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exchanges {
    ends: f64,
    ended_exchanges: f64,
    answered: f64,
    completed: f64,
}

impl Exchanges {
    /// Puts the counts of a tick, behind `history`, into one unit.
    pub(super) fn see(&mut self, tick: Sums, counts: &Counts, history: &History) -> Sums {
        let Some(connections) = counts.connections else {
            // Each exchange is a connection; what is nowhere was lost.
            let known = tick.turned_away + tick.completed + float(counts.unseen) + tick.growth;
            return Sums { answered: tick.completed, lost: tick.offered - known, ..tick };
        };
        let ended = float(connections.ended);
        let keep = libm::exp(-ended / ENDS);
        self.ends = keep * self.ends + ended;
        self.ended_exchanges = keep * self.ended_exchanges + float(connections.ended_exchanges);
        let keep = libm::exp(-tick.seconds / RATIO_SECONDS);
        self.answered = keep * self.answered + float(connections.answered);
        self.completed = keep * self.completed + tick.completed;
        let share = proved_share(history);
        let turned_away = tick.turned_away * share;
        Sums {
            offered: float(connections.asked) + turned_away,
            first: tick.first * share,
            turned_away,
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

    /// Exchanges that a connection brings, at least one.
    pub(super) fn each(&self) -> f64 {
        let known = self.answered >= ANSWERED_MIN;
        let ratio = if known { self.completed / self.answered } else { 1.0 };
        let ended = if self.ends >= ENDS_MIN { self.ended_exchanges / self.ends } else { 1.0 };
        ratio.max(ended).clamp(1.0, EACH_MAX)
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

/// Share of those that the server replied to who complete their handshake: what of the refused would
/// have been work. Spoofed SYNs do not.
fn proved_share(history: &History) -> f64 {
    let lately = history.replying(REPLIED, TICKS);
    if lately.replied < REPLIED { 1.0 } else { (lately.proved / lately.replied).clamp(0.0, 1.0) }
}
