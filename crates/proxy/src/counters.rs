// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one proxy counts beside what the gate does.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_model::snapshot::ProxyCounts;

/// Counters of [`ProxyCounts`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) turned_away: AtomicU64,
    pub(crate) handshakes_failed: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) unreachable: AtomicU64,
    pub(crate) broken: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) full: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) waited: AtomicU64,
    pub(crate) waited_ns: AtomicU64,
    pub(crate) queue_full: AtomicU64,
    pub(crate) waited_too_long: AtomicU64,
    pub(crate) left_queue: AtomicU64,
}

/// One more.
pub(crate) fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Counters {
    pub(crate) fn read(&self) -> ProxyCounts {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        ProxyCounts {
            connections: of(&self.connections),
            turned_away: of(&self.turned_away),
            handshakes_failed: of(&self.handshakes_failed),
            malformed: of(&self.malformed),
            unreachable: of(&self.unreachable),
            broken: of(&self.broken),
            timed_out: of(&self.timed_out),
            full: of(&self.full),
            waiting: of(&self.waiting),
            waited: of(&self.waited),
            waited_ns: of(&self.waited_ns),
            queue_full: of(&self.queue_full),
            waited_too_long: of(&self.waited_too_long),
            left_queue: of(&self.left_queue),
            ..ProxyCounts::default()
        }
    }
}
