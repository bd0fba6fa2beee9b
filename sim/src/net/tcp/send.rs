// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sending half of an end: congestion control of RFC 5681 with the recovery of RFC 6582
//! (NewReno), without selective acknowledgements.
//!
//! ```text
//!              3rd duplicate ACK               ACK of all that was sent then
//!   ┌────────┐ ─────────────────► ┌──────────┐ ─────────────────────────────► ┌────────┐
//!   │  open  │                    │ recovery │   partial ACK: send the next   │  open  │
//!   └────────┘ ◄───────────────── └──────────┘   hole, stay                   └────────┘
//!        time-out, from either: window of one segment, begin again at the first hole
//! ```
//!
//! Positions count bytes from 0; a FIN takes one position behind the last byte.

use super::rto::Rto;
use super::spec::TcpSpec;
use tidegate_units::Nanos;

/// Duplicate acknowledgements that mean a loss.
const DUPLICATES: u32 = 3;

/// Payload to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) seq: u64,
    pub(super) len: u32,
    pub(super) fin: bool,
}

/// What an acknowledgement asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acked {
    /// Send the first hole again.
    pub(super) resend: bool,
    /// Start the timer again, or stop it if nothing is outstanding.
    pub(super) restart: bool,
}

/// A segment that the peer has room for.
fn segment(mss: u64, peer_window: u64) -> u64 {
    mss.min(peer_window).max(1)
}

#[derive(Clone, Debug)]
pub(super) struct Sender {
    mss: u64,
    limited_transmit: bool,
    first_window: u64,
    pub(super) rto: Rto,
    pub(super) window: u64,
    pub(super) threshold: u64,
    peer_window: u64,
    /// First position that is not acknowledged.
    pub(super) first: u64,
    /// Next position to send; goes back to `first` after a time-out.
    next: u64,
    /// Position after the last that was ever sent.
    sent: u64,
    /// Position after the last byte that was written.
    end: u64,
    /// Whether the stream ends there.
    fin: bool,
    duplicates: u32,
    /// Bytes that limited transmit has added to the flight.
    extra: u64,
    recovering: bool,
    /// A partial acknowledgement has come in this recovery.
    partial: bool,
    /// What was sent when the last loss was found (`recover` of RFC 6582).
    recover: u64,
    /// Position and time of the segment whose round trip is measured.
    timed: Option<(u64, Nanos)>,
    last: Nanos,
    /// Time-outs since the last progress.
    pub(super) timeouts: u32,
    /// Segments sent again.
    pub(super) again: u64,
}

impl Sender {
    pub(super) fn new(spec: &TcpSpec, peer_window: u64) -> Self {
        Self {
            mss: segment(spec.mss(), peer_window),
            limited_transmit: spec.limited_transmit,
            first_window: spec.first_window(false),
            rto: Rto::new(spec),
            window: spec.first_window(false),
            threshold: u64::MAX,
            peer_window: peer_window.max(1),
            first: 0,
            next: 0,
            sent: 0,
            end: 0,
            fin: false,
            duplicates: 0,
            extra: 0,
            recovering: false,
            partial: false,
            recover: 0,
            timed: None,
            last: Nanos::ZERO,
            timeouts: 0,
            again: 0,
        }
    }

    /// The handshake has ended. `trip` is its round trip, if nothing of it was sent again.
    pub(super) fn open(&mut self, now: Nanos, trip: Option<Nanos>) {
        self.last = now;
        match trip {
            Some(trip) => self.rto.sample(trip),
            None => {
                self.window = self.mss; // RFC 5681, 3.1
                self.rto.after_lost_syn();
            }
        }
    }

    /// The peer takes so much ahead.
    pub(super) fn peer(&mut self, window: u64) {
        self.peer_window = window.max(1);
        self.mss = segment(self.mss, window);
    }

    /// Adds bytes to the stream; returns the position after them. None after [`Sender::finish`].
    pub(super) fn write(&mut self, bytes: u64) -> Option<u64> {
        if self.fin {
            return None;
        }
        self.end += bytes;
        Some(self.end)
    }

    /// Nothing more will be written.
    pub(super) const fn finish(&mut self) {
        self.fin = true;
    }

    const fn limit(&self) -> u64 {
        self.end + self.fin as u64
    }

    /// Positions sent and not acknowledged.
    pub(super) const fn flight(&self) -> u64 {
        self.next - self.first
    }

    /// Whether something was sent that is not acknowledged.
    pub(super) const fn is_outstanding(&self) -> bool {
        self.sent > self.first
    }

    /// Whether the stream has ended, and the peer knows.
    pub(super) const fn has_ended(&self) -> bool {
        self.fin && self.first == self.limit()
    }

    /// The segment from `seq` on, of what is before `limit`.
    fn chunk(&self, seq: u64, limit: u64) -> Chunk {
        let bytes = self.end.min(limit) - seq.min(self.end);
        let len = bytes.min(self.mss);
        let fin = self.fin && seq + len == self.end && limit > self.end;
        Chunk { seq, len: len as u32, fin }
    }

    /// The next segment that may be sent now.
    pub(super) fn next(&mut self, now: Nanos) -> Option<Chunk> {
        if self.next >= self.limit() {
            return None;
        }
        if !self.is_outstanding() && now.since(self.last) > self.rto.get() {
            self.window = self.window.min(self.first_window); // idle: RFC 5681, 4.1
        }
        let chunk = self.chunk(self.next, self.limit());
        let size = u64::from(chunk.len) + u64::from(chunk.fin);
        let window = (self.window + self.allowance()).min(self.peer_window);
        let flight = self.flight() + u64::from(chunk.len); // a FIN needs no window of its own
        if flight > window {
            return None;
        }
        if self.duplicates > 0 && flight > self.window {
            self.extra += u64::from(chunk.len);
        }
        if self.next < self.sent {
            self.again += 1;
        } else if self.timed.is_none() {
            self.timed = Some((self.next + size, now));
        }
        self.next += size;
        self.sent = self.sent.max(self.next);
        self.last = now;
        Some(chunk)
    }

    /// Bytes beyond the window that the first two duplicate acknowledgements allow (RFC 3042).
    fn allowance(&self) -> u64 {
        let is_few = self.limited_transmit && !self.recovering && self.first >= self.recover;
        if is_few { u64::from(self.duplicates.min(DUPLICATES - 1)) * self.mss } else { 0 }
    }

    /// The first hole, to be sent again now.
    pub(super) fn resend(&mut self, now: Nanos) -> Chunk {
        let chunk = self.chunk(self.first, self.sent);
        let end = chunk.seq + u64::from(chunk.len) + u64::from(chunk.fin);
        self.next = self.next.max(end);
        self.timed = None; // Karn: whatever is measured would be ambiguous
        self.last = now;
        self.again += 1;
        chunk
    }

    /// An acknowledgement of everything before `ack`; `bare` if it carried nothing else.
    pub(super) fn acknowledge(&mut self, now: Nanos, ack: u64, bare: bool) -> Acked {
        let nothing = Acked { resend: false, restart: false };
        if ack > self.sent || ack < self.first {
            return nothing;
        }
        if ack > self.first {
            return self.progress(now, ack);
        }
        if !bare || !self.is_outstanding() {
            return nothing;
        }
        self.duplicates += 1;
        if self.recovering {
            self.window += self.mss;
        } else if self.duplicates == DUPLICATES && self.first >= self.recover {
            self.begin_recovery();
            return Acked { resend: true, restart: true };
        }
        nothing
    }

    /// Half of what is outstanding (RFC 5681, equation 4).
    fn half(&self, outstanding: u64) -> u64 {
        (outstanding / 2).max(2 * self.mss)
    }

    fn begin_recovery(&mut self) {
        // What limited transmit has added is not counted (RFC 5681, 3.2).
        self.threshold = self.half(self.flight() - self.extra);
        self.window = self.threshold + u64::from(DUPLICATES) * self.mss;
        (self.recover, self.recovering, self.partial) = (self.sent, true, false);
    }

    fn progress(&mut self, now: Nanos, ack: u64) -> Acked {
        let (acked, flight) = (ack - self.first, self.flight());
        self.first = ack;
        self.next = self.next.max(ack);
        self.timeouts = 0;
        if let Some((end, at)) = self.timed
            && end <= ack
        {
            self.rto.sample(now - at);
            self.timed = None;
        }
        (self.duplicates, self.extra) = (0, 0);
        if !self.recovering {
            self.grow(acked, flight);
            return Acked { resend: false, restart: true };
        }
        if ack >= self.recover {
            self.recovering = false;
            let outstanding = self.flight().max(self.mss);
            self.window = self.threshold.min(outstanding + self.mss);
            return Acked { resend: false, restart: true };
        }
        self.window = self.window.saturating_sub(acked).max(self.mss);
        if acked >= self.mss {
            self.window += self.mss;
        }
        let restart = !self.partial; // the impatient variant: only for the first
        self.partial = true;
        Acked { resend: true, restart }
    }

    /// One segment per acknowledgement in slow start, one per window afterwards (RFC 5681,
    /// equations 2 and 3); nothing if the window was not what limited the sender.
    fn grow(&mut self, acked: u64, flight: u64) {
        if self.window < self.threshold {
            if self.window < 2 * flight {
                self.window += acked.min(self.mss);
            }
        } else if flight + self.mss > self.window {
            self.window += (self.mss * self.mss / self.window).max(1);
        }
    }

    /// The timer has fired: the first hole is to be sent again (RFC 6298, 5.4 to 5.6).
    pub(super) fn timeout(&mut self) {
        if self.timeouts == 0 {
            self.threshold = self.half(self.flight());
        }
        self.timeouts += 1;
        self.rto.back_off();
        self.window = self.mss;
        (self.next, self.recover) = (self.first, self.sent);
        (self.recovering, self.duplicates, self.extra, self.timed) = (false, 0, 0, None);
    }

    /// Whether the positions are in order.
    pub(super) const fn is_sound(&self) -> bool {
        self.first <= self.next && self.next <= self.sent && self.sent <= self.limit()
    }
}
