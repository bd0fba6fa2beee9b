// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals of what the gate counts.

use tidegate_model::signals::{Balance, ConnectionCounts, Counts, Reading, Time, Times};
use tidegate_model::totals::{Histogram, ServiceTotals};
use tidegate_units::Nanos;

/// As `tidegate-sense` makes signals of totals.
pub(crate) fn since(now: &ServiceTotals, before: &ServiceTotals) -> (Time, Balance) {
    let times = |now: &Histogram, before: &Histogram| {
        let since = now.since(before);
        let (p50, p99) = (since.quantile(0.5), since.quantile(0.99));
        Some(Reading::fresh(Times { count: since.count, sum: Nanos(since.sum_ns), p50, p99 }))
    };
    let (is, was) = (&now.connections, &before.connections);
    let connections = ConnectionCounts {
        replied: is.replied - was.replied,
        proved: is.proved - was.proved,
        asked: is.asked - was.asked,
        answered: is.answered - was.answered,
        lost: is.lost - was.lost,
        ended: is.ended - was.ended,
        ended_exchanges: is.ended_exchanges - was.ended_exchanges,
    };
    let counts = Counts {
        offered: now.offered - before.offered,
        repeated: 0,
        admitted: now.admitted - before.admitted,
        refused: now.refused - before.refused,
        refused_remote: None,
        completed: now.first_byte.count - before.first_byte.count,
        unknown: now.unknown - before.unknown,
        unseen: now.unseen - before.unseen,
        connections: Some(connections),
    };
    let time = Time {
        waiting: Some(Reading::fresh(now.waiting)),
        open: Some(Reading::fresh(now.open)),
        silent: Some(Reading::fresh(now.silent)),
        slow: Some(Reading::fresh(now.slow)),
        proxy_turn: now.proxy_turn.map(Reading::fresh),
        first_byte: times(&now.first_byte, &before.first_byte),
        end: times(&now.end, &before.end),
    };
    (time, Balance { counts: Some(Reading::fresh(counts)) })
}
