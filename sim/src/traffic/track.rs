// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the dataplane sees of one connection: turns of payload. Its counts are those of
//! [`ServiceTotals`], in their meaning.
//!
//! ```text
//!   proved ─► silent ─► (ClientHello) owed ─► (flight) quiet ─► (request) owed ─► (response) quiet ─► … closed
//!                └──────────── (request of cleartext) ──────────────┘
//! ```
//!
//! The time of the first exchange is the sum of the times in which the server owed something, so
//! that Little's law holds for the exchanges in flight.

use tidegate_model::totals::ServiceTotals;
use tidegate_units::Nanos;

/// Where a tracked connection stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    /// Not proved yet, or closed.
    #[default]
    Away,
    /// The client has sent nothing.
    Silent,
    /// The server owes something since then.
    Owed(Nanos),
    /// Nobody owes anything; before the first request it is silent, too.
    Quiet,
}

/// The tracking of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Track {
    turn: Turn,
    /// What the server has taken of the first exchange before its request: the handshake.
    owed: Nanos,
    asked: bool,
    exchanges: u64,
    proved_at: Nanos,
}

impl Track {
    /// The client's ACK was seen.
    pub(super) fn proved(&mut self, now: Nanos, totals: &mut ServiceTotals) {
        if self.turn != Turn::Away {
            return;
        }
        (self.turn, self.proved_at) = (Turn::Silent, now);
        totals.connections.proved += 1;
        totals.open += 1;
        totals.silent += 1;
    }

    /// Payload of the client that is no request: the server owes its flight.
    pub(super) fn hello(&mut self, now: Nanos, totals: &mut ServiceTotals) {
        self.begin(now, totals);
    }

    /// The server's handshake flight is out.
    pub(super) fn flight(&mut self, now: Nanos, totals: &mut ServiceTotals) {
        if let Turn::Owed(since) = self.turn {
            self.turn = Turn::Quiet;
            self.owed += now.since(since);
            totals.waiting -= 1;
            totals.silent += u64::from(!self.asked);
        }
    }

    /// A request, or the first of several at once. What comes during a response opens no turn.
    pub(super) fn request(&mut self, now: Nanos, totals: &mut ServiceTotals) {
        self.begin(now, totals);
        if !self.asked && self.turn != Turn::Away {
            self.asked = true;
            totals.connections.asked += 1;
        }
    }

    /// The first byte of a response; those to the other requests of the turn are part of it.
    pub(super) fn response(&mut self, now: Nanos, totals: &mut ServiceTotals) {
        let Turn::Owed(since) = self.turn else { return };
        self.turn = Turn::Quiet;
        totals.waiting -= 1;
        totals.first_byte.record(self.owed + now.since(since));
        self.owed = Nanos::ZERO;
        totals.connections.answered += u64::from(self.exchanges == 0);
        self.exchanges += 1;
    }

    /// A FIN or RST of either side.
    pub(super) fn closed(&mut self, now: Nanos, totals: &mut ServiceTotals) {
        match std::mem::take(&mut self.turn) {
            Turn::Away => return,
            Turn::Silent => totals.silent -= 1,
            Turn::Owed(_) => totals.waiting -= 1,
            Turn::Quiet => totals.silent -= u64::from(!self.asked),
        }
        totals.open -= 1;
        if self.exchanges > 0 {
            totals.connections.ended += 1;
            totals.connections.ended_exchanges += self.exchanges;
            totals.end.record(now.since(self.proved_at));
        } else if self.asked {
            totals.connections.lost += 1;
        }
    }

    fn begin(&mut self, now: Nanos, totals: &mut ServiceTotals) {
        match self.turn {
            Turn::Silent => totals.silent -= 1,
            Turn::Quiet => totals.silent -= u64::from(!self.asked),
            Turn::Away | Turn::Owed(_) => return,
        }
        self.turn = Turn::Owed(now);
        totals.waiting += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TLS with two requests: the handshake's turn is part of the first exchange's time, the
    /// client's own round trip is not, and all gauges return to zero.
    #[test]
    fn the_first_exchange_has_the_handshakes_time_and_gauges_return_to_zero() {
        let (mut track, mut totals) = (Track::default(), ServiceTotals::default());
        let ms = Nanos::from_millis;
        track.proved(ms(0), &mut totals);
        assert_eq!((totals.open, totals.silent, totals.waiting), (1, 1, 0));
        track.hello(ms(5), &mut totals);
        assert_eq!((totals.silent, totals.waiting), (0, 1));
        track.flight(ms(7), &mut totals);
        assert_eq!((totals.waiting, totals.connections.asked), (0, 0));
        assert_eq!(totals.silent, 1, "no request yet, and nothing owed");
        track.request(ms(50), &mut totals);
        track.request(ms(51), &mut totals);
        assert_eq!((totals.waiting, totals.connections.asked), (1, 1));
        track.response(ms(60), &mut totals);
        track.response(ms(61), &mut totals);
        assert_eq!((totals.first_byte.count, totals.first_byte.sum_ns), (1, 12_000_000));
        track.request(ms(70), &mut totals);
        track.response(ms(71), &mut totals);
        track.closed(ms(80), &mut totals);
        track.closed(ms(81), &mut totals);
        assert_eq!((totals.open, totals.silent, totals.waiting), (0, 0, 0));
        let c = totals.connections;
        assert_eq!((c.proved, c.asked, c.answered, c.ended, c.ended_exchanges), (1, 1, 1, 1, 2));
    }

    #[test]
    fn a_client_that_leaves_ends_its_waiting_and_is_no_exchange() {
        let (mut track, mut totals) = (Track::default(), ServiceTotals::default());
        track.proved(Nanos(1), &mut totals);
        track.request(Nanos(2), &mut totals);
        track.closed(Nanos(3), &mut totals);
        track.response(Nanos(4), &mut totals);
        assert_eq!((totals.open, totals.waiting, totals.first_byte.count), (0, 0, 0));
        assert_eq!((totals.connections.ended, totals.connections.lost), (0, 1));
    }
}
