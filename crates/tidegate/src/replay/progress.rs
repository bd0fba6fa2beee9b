// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far the replay is, on a terminal: one line that is written over.

use super::source::Source;
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::Ordering;
use tidegate_sim::whatif::WhatIf;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Lines of the log between two looks at the clock.
const EVERY: u32 = 4096;
/// Time between two writes.
const PAUSE: Nanos = Nanos::from_millis(200);
/// Goes to the beginning of the line and erases it.
const ERASE: &str = "\r\x1b[K";

/// The share of the log that was read, where it has a length; nothing where there is no terminal.
pub(crate) struct Progress {
    terminal: bool,
    clock: MonotonicClock,
    left: Cell<u32>,
    written: Cell<Option<Nanos>>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
            clock: MonotonicClock,
            left: Cell::new(EVERY),
            written: Cell::new(None),
        }
    }

    /// A line was read.
    pub(crate) fn advance(&self, source: &Source, whatif: &WhatIf) {
        let left = self.left.get() - 1;
        self.left.set(if left == 0 { EVERY } else { left });
        if left > 0 || !self.terminal {
            return;
        }
        let now = self.clock.now();
        if self.written.get().is_none_or(|before| now.since(before) >= PAUSE) {
            self.written.set(Some(now));
            let read = source.read.load(Ordering::Relaxed);
            let text = line((read, source.size), whatif.now(), whatif.offered());
            // Whoever does not see it misses nothing.
            let _ = write!(io::stderr(), "{ERASE}{text}");
        }
    }

    /// Removes it from the screen.
    pub(crate) fn finish(&self) {
        if self.written.get().is_some() {
            let _ = write!(io::stderr(), "{ERASE}");
        }
    }
}

fn line((read, size): (u64, Option<u64>), at: Nanos, requests: u64) -> String {
    let megabytes = read as f64 / 1e6;
    let second = at.as_secs_f64();
    let share = match size {
        Some(size) if size > 0 => format!("{:3.0} %  ", 100.0 * read as f64 / size as f64),
        _ => String::new(),
    };
    format!("{share}{megabytes:.1} MB, second {second:.0}, {requests} requests")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_shown_where_the_log_has_a_length() {
        let at = Nanos::from_secs(61);
        let half = line((1_500_000, Some(3_000_000)), at, 4096);
        assert_eq!(half, " 50 %  1.5 MB, second 61, 4096 requests");
        for size in [None, Some(0)] {
            assert_eq!(line((1_500_000, size), at, 7), "1.5 MB, second 61, 7 requests");
        }
    }
}
