// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processor sharing: all requests present progress equally, and the one that wants least of what
//! is left finishes next. A virtual clock keeps what each of them has had, so that a step costs
//! O(log n) however many there are.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Share {
    /// Value of the virtual clock at which this request has had its time.
    finish: f64,
    request: usize,
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Share {}
impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Share {
    /// Reversed, so that the heap gives the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.finish.total_cmp(&self.finish).then(other.request.cmp(&self.request))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Seconds that each request present has had since the beginning.
    virtual_s: f64,
    shares: BinaryHeap<Share>,
}

impl Sharing {
    /// Requests present.
    pub(crate) fn len(&self) -> usize {
        self.shares.len()
    }

    /// Each of them has had so many seconds more.
    pub(crate) fn run(&mut self, each_s: f64) {
        self.virtual_s += each_s;
    }

    /// A request wants so many seconds. Whether it is the next to finish.
    pub(crate) fn begin(&mut self, request: usize, s: f64) -> bool {
        let finish = self.virtual_s + s;
        let first = self.shares.peek().is_none_or(|next| finish < next.finish);
        self.shares.push(Share { finish, request });
        first
    }

    /// Seconds that the next to finish still wants; negative by what it had too much.
    pub(crate) fn left(&self) -> Option<f64> {
        self.shares.peek().map(|next| next.finish - self.virtual_s)
    }

    /// Takes out one that has had its time.
    pub(crate) fn finished(&mut self) -> Option<usize> {
        let next = self.shares.peek()?;
        if next.finish > self.virtual_s {
            return None;
        }
        self.shares.pop().map(|share| share.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever wants least finishes first, whenever it came; of equals the lower number.
    #[test]
    fn the_least_finishes_first() {
        let mut sharing = Sharing::default();
        assert!(sharing.begin(1, 3.0) && sharing.left() == Some(3.0));
        sharing.run(1.0);
        assert!(sharing.begin(2, 1.0) && !sharing.begin(3, 2.0));
        assert_eq!((sharing.len(), sharing.finished()), (3, None));
        sharing.run(1.0);
        assert_eq!((sharing.finished(), sharing.finished()), (Some(2), None));
        sharing.run(1.0);
        assert_eq!(
            (sharing.finished(), sharing.finished(), sharing.finished()),
            (Some(1), Some(3), None)
        );
        assert_eq!(sharing.left(), None);
    }
}
