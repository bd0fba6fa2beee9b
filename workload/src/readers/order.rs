// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts lines that are a little out of order in order, and finds those that are more than that.

use super::error::What;
use super::parse::Line;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use tidegate_units::Nanos;

/// Most lines held while later ones may still belong before them.
pub const PENDING_MAX: usize = 1 << 18;
/// A line so far ahead of all before it has a wrong time: believed, it would make all that follow
/// go back.
const AHEAD_MAX: i64 = 30 * 86_400 * 1_000_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Order {
    slack: i64,
    newest: i64,
    /// Time of the last line handed out.
    passed: i64,
    pending: BinaryHeap<Reverse<Pending>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Pending {
    line: Line,
    number: u64,
}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.line.when, self.number).cmp(&(other.line.when, other.number))
    }
}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Order {
    pub(crate) fn new(slack: Nanos) -> Self {
        Self {
            slack: i64::try_from(slack.0).unwrap_or(i64::MAX),
            newest: i64::MIN,
            passed: i64::MIN,
            pending: BinaryHeap::new(),
        }
    }

    /// Takes a line in; or says what is wrong with its time.
    pub(crate) fn push(&mut self, line: Line, number: u64) -> Result<(), What> {
        if line.when < self.passed {
            return Err(What::Back(Nanos(self.passed.abs_diff(line.when))));
        }
        if self.newest.saturating_sub(line.when) > self.slack {
            return Err(What::Back(Nanos(self.newest.abs_diff(line.when))));
        }
        if self.newest != i64::MIN && line.when.saturating_sub(self.newest) > AHEAD_MAX {
            return Err(What::Ahead(Nanos(self.newest.abs_diff(line.when))));
        }
        self.newest = self.newest.max(line.when);
        self.pending.push(Reverse(Pending { line, number }));
        Ok(())
    }

    /// The next line, once nothing can come before it any more, or no more lines can be held.
    pub(crate) fn due(&mut self) -> Option<(Line, u64)> {
        let Reverse(first) = self.pending.peek()?;
        let is_settled = self.newest.saturating_sub(first.line.when) >= self.slack;
        if is_settled || self.pending.len() >= PENDING_MAX { self.rest() } else { None }
    }

    /// The next line, when no more will come.
    pub(crate) fn rest(&mut self) -> Option<(Line, u64)> {
        let Reverse(Pending { line, number }) = self.pending.pop()?;
        self.passed = line.when;
        Some((line, number))
    }
}
