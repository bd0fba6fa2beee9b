// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the controller is told, as `tidegate-sense` tells it: differences of the dataplane's totals
//! over a tick, CPU over a tick, the accept queue now.

use crate::world::gate::{connections, times};
use tidegate_model::RANKS;
use tidegate_model::signals::{AcceptQueue, BucketCounts, BucketSignals, Counts, Reading, Signals};
use tidegate_model::totals::{BucketTotals, ServiceTotals};
use tidegate_units::{Nanos, Share};

/// What is read at a tick.
pub(crate) struct Seen<'a> {
    pub(crate) now: Nanos,
    /// With those of the request buckets.
    pub(crate) totals: &'a ServiceTotals,
    /// CPU seconds used, seconds in which a request waited for CPU, cores.
    pub(crate) cpu: (f64, f64, u32),
    /// Length and limit.
    pub(crate) accept: (usize, usize),
}

/// What the tick before saw.
#[derive(Debug, Default)]
pub(crate) struct Sense {
    at: Nanos,
    totals: ServiceTotals,
    used_s: f64,
    pressed_s: f64,
}

impl Sense {
    /// The signals of this tick.
    pub(crate) fn signals(&mut self, seen: Seen<'_>) -> Signals {
        let period = seen.now.since(self.at);
        let dt = period.as_secs_f64().max(1e-9);
        let mut s = Signals { now: seen.now, period, ..Signals::default() };
        let (used, pressed, cores) = seen.cpu;
        let cpu = (used - self.used_s) / (dt * f64::from(cores.max(1)));
        s.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
        let pressure = Share::new((pressed - self.pressed_s) / dt);
        s.resource.cpu_pressure = Some(Reading::fresh(pressure));
        s.queue.accept = Some(Reading::fresh(accept_queue(seen.accept)));
        add_totals(&mut s, seen.totals, &self.totals);
        (self.at, self.used_s, self.pressed_s) = (seen.now, used, pressed);
        // Idle ticks are many in a long load, and copy nothing.
        if self.totals != *seen.totals {
            self.totals.clone_from(seen.totals);
        }
        s
    }
}

/// An accept queue with this length and limit.
pub(crate) const fn accept_queue((length, limit): (usize, usize)) -> AcceptQueue {
    AcceptQueue { length: length as u64, limit: limit as u64 }
}

/// Adds what grew from `before` to `totals`: times, counts, buckets.
pub(crate) fn add_totals(s: &mut Signals, totals: &ServiceTotals, before: &ServiceTotals) {
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
        refused_remote: None,
        completed: first.count,
        unknown: 0,
        unseen: 0,
        connections: Some(connections(&totals.connections, &before.connections)),
    }));
    let fresh = BucketTotals::default();
    let buckets = totals.buckets.iter().enumerate();
    let buckets = buckets.map(|(i, now)| bucket(now, before.buckets.get(i).unwrap_or(&fresh)));
    s.buckets = buckets.collect();
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
