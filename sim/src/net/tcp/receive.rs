// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiving half of an end: puts a stream together, and says when to acknowledge.

use std::collections::VecDeque;

/// What to do about an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Respond {
    /// Send one now.
    Now,
    /// Send one when a second segment comes, or when the timer fires.
    Later,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Receiver {
    /// Everything before this position is here.
    pub(super) next: u64,
    /// Pieces that are ahead of it: sorted, disjoint, not adjacent.
    ahead: Vec<(u64, u64)>,
    /// Segments that are not acknowledged yet.
    pending: u32,
    /// Where the peer's stream ends, once its FIN was seen.
    pub(super) fin: Option<u64>,
    /// Ends of messages, and their tags: what the peer's bytes mean.
    messages: VecDeque<(u64, u64)>,
}

impl Receiver {
    /// The peer has written a message that ends here.
    pub(super) fn expect(&mut self, end: u64, tag: u64) {
        self.messages.push_back((end, tag));
    }

    /// A message that is complete.
    pub(super) fn message(&mut self) -> Option<u64> {
        let (end, tag) = *self.messages.front()?;
        if end > self.next {
            return None;
        }
        self.messages.pop_front();
        Some(tag)
    }

    /// Whether the peer's stream has ended and is here.
    pub(super) fn has_ended(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// A segment from `seq` to `end` comes, with a FIN as its last position or without.
    pub(super) fn take(&mut self, seq: u64, end: u64, fin: bool, window: u64) -> Respond {
        if end <= self.next || end > self.next + window.max(1) {
            return Respond::Now; // nothing new, or more than there is room for
        }
        if fin {
            self.fin = Some(end - 1);
        }
        if seq > self.next {
            self.keep(seq, end);
            return Respond::Now; // a duplicate acknowledgement (RFC 5681, 4.2)
        }
        let fills = !self.ahead.is_empty();
        self.next = end;
        self.join();
        self.pending += 1;
        // RFC 1122, 4.2.3.2: at least every second segment.
        if fills || fin || self.pending >= 2 { Respond::Now } else { Respond::Later }
    }

    /// An acknowledgement goes out, by itself or with payload.
    pub(super) const fn acknowledged(&mut self) {
        self.pending = 0;
    }

    pub(super) const fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// Keeps a piece that is ahead.
    fn keep(&mut self, seq: u64, end: u64) {
        let from = self.ahead.partition_point(|piece| piece.1 < seq);
        let to = self.ahead.partition_point(|piece| piece.0 <= end);
        let touched = &self.ahead[from..to];
        let seq = touched.first().map_or(seq, |piece| piece.0.min(seq));
        let end = touched.last().map_or(end, |piece| piece.1.max(end));
        self.ahead.splice(from..to, [(seq, end)]);
    }

    /// Takes what is no longer ahead.
    fn join(&mut self) {
        let mut joined = 0;
        for (seq, end) in &self.ahead {
            if *seq > self.next {
                break;
            }
            self.next = self.next.max(*end);
            joined += 1;
        }
        self.ahead.drain(..joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_put_together_in_any_order() {
        let mut r = Receiver::default();
        r.expect(4, 7);
        assert_eq!(r.take(0, 1, false, 100), Respond::Later);
        assert_eq!(r.take(1, 2, false, 100), Respond::Now, "every second segment");
        r.acknowledged();
        assert_eq!(r.take(4, 5, false, 100), Respond::Now, "out of order");
        assert_eq!(r.take(6, 8, true, 100), Respond::Now);
        assert_eq!(r.take(2, 3, false, 100), Respond::Now, "something is still missing");
        assert_eq!((r.next, r.message()), (3, None));
        r.take(3, 4, false, 100);
        assert_eq!((r.next, r.message(), r.message()), (5, Some(7), None));
        assert!(!r.has_ended());
        r.take(5, 6, false, 100);
        assert_eq!((r.next, r.fin), (8, Some(7)));
        assert!(r.has_ended());
        assert_eq!(r.take(0, 1, false, 100), Respond::Now, "old: say where we are");
        assert_eq!(r.take(9, 200, false, 100), Respond::Now, "no room");
        assert_eq!(r.next, 8);
    }

    #[test]
    fn pieces_that_touch_become_one() {
        let mut r = Receiver::default();
        for (seq, end) in [(10, 12), (20, 22), (14, 16), (12, 14), (19, 23)] {
            r.take(seq, end, false, 100);
        }
        assert_eq!(r.ahead, [(10, 16), (19, 23)]);
    }
}
