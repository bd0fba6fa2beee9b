// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the controller is told, as `tidegate-sense` tells it: differences of the dataplane's totals
//! over a tick, CPU over a tick, the accept queue now, the interface's queue over the last second.

use super::link::Link;
use crate::world::gate::{connections, times};
use tidegate_model::RANKS;
use tidegate_model::signals::{
    AcceptQueue, BucketCounts, BucketSignals, Counts, InterfaceQueue, Reading, Signals,
};
use tidegate_model::totals::{BucketTotals, ServiceTotals};
use tidegate_units::{Nanos, Share};

/// What is read at a tick; the dataplane's totals include those of the buckets.
pub(super) struct Seen<'a> {
    pub(super) now: Nanos,
    pub(super) totals: ServiceTotals,
    /// CPU seconds used, seconds in which a request waited for CPU, cores.
    pub(super) cpu: (f64, f64, u32),
    /// Length and limit.
    pub(super) accept: (usize, usize),
    pub(super) link: Option<&'a Link>,
}

/// What the tick before saw.
#[derive(Debug, Default)]
pub(super) struct Sense {
    at: Nanos,
    totals: ServiceTotals,
    used_s: f64,
    pressed_s: f64,
    bytes: u64,
}

impl Sense {
    /// The signals of this tick.
    pub(super) fn signals(&mut self, seen: Seen<'_>) -> Signals {
        let period = seen.now.since(self.at);
        let dt = period.as_secs_f64().max(1e-9);
        let mut s = Signals { now: seen.now, period, ..Signals::default() };
        let (used, pressed, cores) = seen.cpu;
        let cpu = (used - self.used_s) / (dt * f64::from(cores.max(1)));
        s.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
        let pressure = Share::new((pressed - self.pressed_s) / dt);
        s.resource.cpu_pressure = Some(Reading::fresh(pressure));
        let (length, limit) = (seen.accept.0 as u64, seen.accept.1 as u64);
        s.queue.accept = Some(Reading::fresh(AcceptQueue { length, limit }));
        if let Some(link) = seen.link {
            let (length, limit) = link.length();
            s.queue.interface = Some(Reading::fresh(InterfaceQueue { length, limit }));
            let sent = (link.bytes() - self.bytes) as f64 / dt;
            s.resource.bandwidth = Some(Reading::fresh(sent));
            self.bytes = link.bytes();
        }
        self.counts(&mut s, &seen.totals);
        (self.at, self.used_s, self.pressed_s) = (seen.now, used, pressed);
        self.totals = seen.totals;
        s
    }

    fn counts(&self, s: &mut Signals, totals: &ServiceTotals) {
        let before = &self.totals;
        s.time.waiting = Some(Reading::fresh(totals.waiting));
        s.time.open = Some(Reading::fresh(totals.open));
        s.time.silent = Some(Reading::fresh(totals.silent));
        let first = times(&totals.first_byte, &before.first_byte);
        s.time.first_byte = Some(Reading::fresh(first));
        s.time.end = Some(Reading::fresh(times(&totals.end, &before.end)));
        s.balance.counts = Some(Reading::fresh(Counts {
            offered: totals.offered - before.offered,
            repeated: totals.repeated - before.repeated,
            admitted: totals.admitted - before.admitted,
            refused: totals.refused - before.refused,
            completed: first.count,
            unknown: 0,
            unseen: 0,
            connections: Some(connections(&totals.connections, &before.connections)),
        }));
        let fresh = BucketTotals::default();
        s.buckets = totals
            .buckets
            .iter()
            .enumerate()
            .map(|(i, now)| bucket(now, before.buckets.get(i).unwrap_or(&fresh)))
            .collect();
    }
}

fn bucket(now: &BucketTotals, then: &BucketTotals) -> BucketSignals {
    let since = |now: &[u64; RANKS], then: &[u64; RANKS]| std::array::from_fn(|r| now[r] - then[r]);
    let counts = BucketCounts {
        offered: since(&now.offered, &then.offered),
        refused: since(&now.refused, &then.refused),
        refused_first: now.refused_first - then.refused_first,
        begun: now.begun - then.begun,
        ended: now.ended - then.ended,
    };
    BucketSignals {
        counts: Some(Reading::fresh(counts)),
        in_flight: Some(Reading::fresh(now.begun - now.ended)),
        first_byte: Some(Reading::fresh(times(&now.first_byte, &then.first_byte))),
        end: Some(Reading::fresh(times(&now.end, &then.end))),
    }
}
