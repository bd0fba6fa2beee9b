// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of a router's interfaces to its servers.

use super::{Metric, counter, gauge};
use tidegate_model::snapshot::{LinkState, Snapshot};

const LINK: &[&str] = &["interface"];

/// Every metric of links, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    gauge(
        "link_congested",
        "",
        "1 while the way to the servers behind an interface (side: servers) is congested.",
        LINK,
        |s, out| each(s, |l| out(&[&l.interface], l.congested.into())),
    ),
    gauge(
        "link_sign",
        "",
        "1 for each sign of congestion in the last second: queue, drops, rate (docs/cluster.md).",
        &["interface", "sign"],
        |s, out| {
            each(s, |l| l.signs.iter().for_each(|sign| out(&[&l.interface, sign], true.into())))
        },
    ),
    counter(
        "link_congested",
        "seconds",
        "How long the way to the servers behind an interface was congested, while the interface could be read.",
        LINK,
        |s, out| each(s, |l| out(&[&l.interface], l.sums.congested.as_secs_f64().into())),
    ),
    counter(
        "link_sign",
        "seconds",
        "How long each sign of congestion was there.",
        &["interface", "sign"],
        |s, out| {
            each(s, |l| {
                for (sign, time) in ["queue", "drops", "rate"].into_iter().zip(l.sums.signs) {
                    out(&[&l.interface, sign], time.as_secs_f64().into());
                }
            })
        },
    ),
    counter("link_sent", "bytes", "Bytes sent to the servers.", LINK, |s, out| {
        each(s, |l| out(&[&l.interface], l.sums.sent.into()))
    }),
    counter("link_congestion", "episodes", "How often congestion began.", LINK, |s, out| {
        each(s, |l| out(&[&l.interface], u64::from(l.episodes).into()))
    }),
    gauge(
        "link_sent",
        "bytes_per_second",
        "Bytes per second sent to the servers, over the last second; absent while not known.",
        LINK,
        |s, out| {
            each(s, |l| {
                if let Some(sent) = l.sent {
                    out(&[&l.interface], sent.into());
                }
            })
        },
    ),
    gauge(
        "link_capacity",
        "bytes_per_second",
        "Bytes per second that the shaper, or the card, can send; absent where that is not known.",
        LINK,
        |s, out| {
            each(s, |l| {
                if let Some(capacity) = l.capacity {
                    out(&[&l.interface], capacity.into());
                }
            })
        },
    ),
];

fn each(snapshot: &Snapshot, visit: impl FnMut(&LinkState)) {
    snapshot.links.iter().for_each(visit);
}
