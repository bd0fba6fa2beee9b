// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sender of a response: slow start, congestion avoidance, one reduction a window, selective
//! acknowledgements, a retransmission time-out that doubles (RFC 5681, RFC 6298 in outline).
//!
//! Not here: delayed acknowledgements, a measured round trip (the time-out is never below its
//! minimum, and this network's round trips are), loss of acknowledgements, pacing, and spurious
//! retransmissions.

use tidegate_units::Nanos;

/// Payload of a full packet in bytes (1500 less headers and timestamps).
pub(super) const SEGMENT: u64 = 1448;
/// Headers of a packet in bytes: IP and TCP with timestamps, and what Ethernet adds on the wire
/// (header, checksum, preamble, gap).
pub(super) const HEADERS: u32 = 52 + 38;
/// Segments at the start (RFC 2581, Linux 2.4).
const WINDOW_START: f64 = 2.0;
/// Segments that the client's window takes: 64 KB.
const WINDOW_MAX: f64 = 44.0;
/// Segments after a time-out.
const WINDOW_LOSS: f64 = 1.0;
/// Segments that a reduction leaves at least.
const WINDOW_MIN: f64 = 2.0;
/// Packets that must overtake a lost one before it counts as lost.
const OVERTAKEN: u32 = 3;
/// Linux's least time-out.
const RTO_MIN: Nanos = Nanos::from_millis(200);
/// Its largest.
const RTO_MAX: Nanos = Nanos::from_secs(60);

/// See the module. Packets of a flow stay in order, so that an acknowledgement tells which of the
/// earlier ones are missing.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// Segments that were never sent.
    fresh: u64,
    /// Payload of the last one.
    last: u32,
    /// Segments known to be lost.
    again: u64,
    /// Sent, neither acknowledged nor known to be lost.
    outstanding: u64,
    /// Of these: dropped, which the sender does not know yet.
    lost: u64,
    /// Serial of the first of them.
    lost_first: u64,
    /// Acknowledgements of later ones.
    overtaken: u32,
    /// Not acknowledged yet.
    left: u64,
    serial: u64,
    window: f64,
    threshold: f64,
    /// Serial from which a loss is a new reason to slow down.
    recovered: u64,
    progress: Nanos,
    rto: Nanos,
}

impl Flow {
    /// A response of so many bytes, of which nothing is sent yet.
    pub(super) fn new(bytes: u64, now: Nanos) -> Self {
        let segments = bytes.div_ceil(SEGMENT).max(1);
        Self {
            fresh: segments,
            last: bytes.saturating_sub((segments - 1) * SEGMENT) as u32,
            again: 0,
            outstanding: 0,
            lost: 0,
            lost_first: 0,
            overtaken: 0,
            left: segments,
            serial: 0,
            window: WINDOW_START,
            threshold: WINDOW_MAX,
            recovered: 0,
            progress: now,
            rto: RTO_MIN,
        }
    }

    /// The next packet that may go: its serial and its bytes on the wire.
    pub(super) fn next(&mut self) -> Option<(u64, u32)> {
        let room = (self.outstanding as f64) < self.window.floor();
        if !room || self.again + self.fresh == 0 {
            return None;
        }
        let mut payload = SEGMENT as u32;
        if self.again > 0 {
            self.again -= 1;
        } else {
            self.fresh -= 1;
            payload = if self.fresh == 0 { self.last } else { payload };
        }
        self.outstanding += 1;
        self.serial += 1;
        Some((self.serial, payload + HEADERS))
    }

    /// The interface has dropped this packet: the sender will find out.
    pub(super) fn dropped(&mut self, serial: u64) {
        if self.lost == 0 {
            (self.lost_first, self.overtaken) = (serial, 0);
        }
        self.lost += 1;
    }

    /// This packet was acknowledged; whether it was the last.
    pub(super) fn acknowledged(&mut self, now: Nanos, serial: u64) -> bool {
        self.outstanding -= 1;
        self.left -= 1;
        (self.progress, self.rto) = (now, RTO_MIN);
        let step = if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        self.window = (self.window + step).min(WINDOW_MAX);
        if self.lost > 0 && serial > self.lost_first {
            self.overtaken += 1;
            if self.overtaken >= OVERTAKEN {
                self.reduce();
            }
        }
        self.left == 0
    }

    /// Losses are known: they are sent again, and the window is halved once for what was under way.
    fn reduce(&mut self) {
        let new = self.lost_first > self.recovered;
        self.forget_lost();
        if new {
            self.threshold = (self.window / 2.0).max(WINDOW_MIN);
            self.window = self.threshold;
            self.recovered = self.serial;
        }
    }

    fn forget_lost(&mut self) {
        self.again += self.lost;
        self.outstanding -= self.lost;
        (self.lost, self.overtaken) = (0, 0);
    }

    /// When the time-out fires, if nothing happens before.
    pub(super) fn due(&self) -> Nanos {
        self.progress + self.rto
    }

    /// The time-out has fired. Where nothing is lost (packets wait in the interface) it only starts
    /// again.
    pub(super) fn timeout(&mut self, now: Nanos) {
        self.progress = now;
        if self.lost == 0 {
            return;
        }
        self.forget_lost();
        self.threshold = (self.window / 2.0).max(WINDOW_MIN);
        self.window = WINDOW_LOSS;
        self.recovered = self.serial;
        self.rto = Nanos(self.rto.0.saturating_mul(2)).min(RTO_MAX);
    }

    /// Whether the books agree: every segment is somewhere.
    pub(super) fn is_sound(&self) -> bool {
        self.left == self.fresh + self.again + self.outstanding && self.lost <= self.outstanding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(flow: &mut Flow) -> Vec<u64> {
        std::iter::from_fn(|| flow.next().map(|(serial, _)| serial)).collect()
    }

    #[test]
    fn the_window_opens_and_the_last_packet_is_short() {
        let mut flow = Flow::new(10 * SEGMENT + 5, Nanos::ZERO);
        assert_eq!(drain(&mut flow), [1, 2]);
        assert!(!flow.acknowledged(Nanos(1), 1) && !flow.acknowledged(Nanos(1), 2));
        assert_eq!(drain(&mut flow), [3, 4, 5, 6]);
        for serial in 3..=6 {
            flow.acknowledged(Nanos(2), serial);
        }
        let mut bytes = Vec::new();
        while let Some((_, size)) = flow.next() {
            bytes.push(size);
        }
        assert_eq!((bytes.len(), bytes[4]), (5, 5 + HEADERS));
        assert!((7..=10).all(|serial| !flow.acknowledged(Nanos(3), serial)));
        assert!(flow.acknowledged(Nanos(3), 11) && flow.is_sound());
    }

    /// Three later packets reveal a loss; it is sent again, and the window is halved once.
    #[test]
    fn a_loss_with_packets_behind_it_is_found_at_once() {
        let mut flow = Flow::new(100 * SEGMENT, Nanos::ZERO);
        let mut all = drain(&mut flow);
        while flow.window < 10.0 {
            for serial in all {
                flow.acknowledged(Nanos(1), serial);
            }
            all = drain(&mut flow);
        }
        let window = flow.window;
        flow.dropped(all[0]);
        flow.dropped(all[1]);
        flow.acknowledged(Nanos(2), all[2]);
        flow.acknowledged(Nanos(2), all[3]);
        assert_eq!(flow.again, 0);
        flow.acknowledged(Nanos(2), all[4]);
        assert_eq!(flow.again, 2);
        assert!((flow.window - (window + 3.0) / 2.0).abs() < 1e-9, "{}", flow.window);
        assert!(flow.is_sound());
    }

    /// A loss at the end is found by the time-out, which doubles while nothing comes through.
    #[test]
    fn a_lost_tail_waits_for_the_time_out() {
        let mut flow = Flow::new(2 * SEGMENT, Nanos::ZERO);
        assert_eq!(drain(&mut flow), [1, 2]);
        flow.dropped(2);
        flow.acknowledged(Nanos(5), 1);
        assert_eq!(flow.due(), Nanos(5) + RTO_MIN);
        let at = flow.due();
        flow.timeout(at);
        assert_eq!(drain(&mut flow), [3]);
        flow.dropped(3);
        assert_eq!(flow.due(), at + RTO_MIN + RTO_MIN);
        flow.timeout(flow.due());
        assert_eq!(drain(&mut flow), [4]);
        assert!(flow.acknowledged(Nanos::SECOND, 4) && flow.is_sound());
    }
}
