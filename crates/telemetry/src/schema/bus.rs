// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of the bus over which routers share.

use super::{Metric, counter, gauge};
use tidegate_model::sharing::BusState;
use tidegate_model::snapshot::Snapshot;

/// Every metric of the bus, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    gauge(
        "bus_up",
        "",
        "1 while the bus over which routers share is connected; absent without the key cluster.bus.",
        &[],
        |s, out| of(s, |bus| out(&[], u64::from(bus.up).into())),
    ),
    gauge("bus_state", "seconds", "For how long it has been connected, or not.", &[], |s, out| {
        of(s, |bus| out(&[], bus.lasts.as_secs_f64().into()));
    }),
    counter(
        "bus_connections",
        "",
        "Connections to a server of the bus that came up.",
        &[],
        |s, out| {
            of(s, |bus| out(&[], bus.connections.into()));
        },
    ),
    counter(
        "bus_reports",
        "messages",
        "Reports over the bus by state: sent, unsent (the server did not take them in time), taken (of other routers).",
        &["state"],
        |s, out| {
            of(s, |bus| {
                out(&["sent"], bus.sent.into());
                out(&["unsent"], bus.unsent.into());
                out(&["taken"], bus.taken.into());
            });
        },
    ),
    counter(
        "bus_refused",
        "messages",
        "Messages on the subject of the bus that were refused, by reason (docs/cluster.md).",
        &["reason"],
        |s, out| {
            of(s, |bus| {
                for refused in &bus.refused {
                    out(&[&refused.reason], refused.count.into());
                }
            });
        },
    ),
];

fn of(snapshot: &Snapshot, visit: impl FnMut(&BusState)) {
    snapshot.bus.iter().for_each(visit);
}
