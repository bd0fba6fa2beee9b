// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of hosts that report to each other.

use super::{Metric, counter, gauge};
use tidegate_model::snapshot::{PeerState, Snapshot};

const PEER: &[&str] = &["peer", "role"];

/// Every metric of peers, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    gauge(
        "peer_up",
        "",
        "1 while a session is up; role is reports (to this host) or receives (from it).",
        PEER,
        |s, out| each(s, |p| out(&[&p.name, &p.role], p.up.into())),
    ),
    counter(
        "peer_reports",
        "messages",
        "Reports that were accepted from a peer, or sent to it.",
        PEER,
        |s, out| each(s, |p| out(&[&p.name, &p.role], p.reports.into())),
    ),
    gauge(
        "peer_report_age",
        "seconds",
        "Time since the last of them; absent before the first.",
        PEER,
        |s, out| {
            each(s, |p| {
                if let Some(age) = p.age {
                    out(&[&p.name, &p.role], age.as_secs_f64().into());
                }
            })
        },
    ),
    gauge("peer_epoch", "", "Number of the session with the peer.", PEER, |s, out| {
        each(s, |p| out(&[&p.name, &p.role], p.epoch.into()))
    }),
    gauge("peer_sequence", "", "Number of the last report in the session.", PEER, |s, out| {
        each(s, |p| out(&[&p.name, &p.role], p.sequence.into()))
    }),
    counter(
        "peer_refused",
        "messages",
        "Messages and sessions that were refused, by reason (docs/cluster.md); peer unknown is whoever was refused before it was recognised.",
        &["peer", "role", "reason"],
        |s, out| {
            each(s, |p| {
                for refused in &p.refused {
                    out(&[&p.name, &p.role, &refused.reason], refused.count.into());
                }
            })
        },
    ),
];

fn each(snapshot: &Snapshot, visit: impl FnMut(&PeerState)) {
    snapshot.peers.iter().for_each(visit);
}
