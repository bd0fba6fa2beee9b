// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of hosts that report to each other and limit each other.

use super::{Metric, Number, Sink, counter, gauge};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_model::remote::Unit;
use tidegate_model::snapshot::{PeerState, RemoteState, RemoteSum, Snapshot};
use tidegate_model::totals::DatagramTotals;

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
    counter(
        "peer_limits",
        "messages",
        "Remote limits that were accepted from a peer, or sent to it.",
        PEER,
        |s, out| each(s, |p| out(&[&p.name, &p.role], p.limits.into())),
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
    gauge(
        "remote_limit_rate",
        "per_second",
        "Remote limit in force: role from is a limit that the peer gives to this host, to one that this host gives to the peer. Of several scopes the tightest; absent without a limit.",
        REMOTE,
        |s, out| {
            remote(s, |labels, of| {
                let rates = of.iter().filter_map(|limit| Some(limit.rate?.get()));
                if let Some(least) = rates.reduce(f64::min) {
                    out(labels, least.into());
                }
            })
        },
    ),
    gauge(
        "remote_limit_validity",
        "seconds",
        "How long it is still valid; absent once it has expired and opens in steps.",
        REMOTE,
        |s, out| {
            remote(s, |labels, of| {
                let left = of.iter().filter_map(|limit| Some(limit.left?.as_secs_f64()));
                if let Some(longest) = left.reduce(f64::max) {
                    out(labels, longest.into());
                }
            })
        },
    ),
    counter(
        "remote_limit_allowed",
        "syns",
        "Admissions that a remote limit allowed: the limit, summed over time. Of several scopes the tightest.",
        REMOTE,
        |s, out| sums(s, |labels, sum| out(labels, sum.allowed.into())),
    ),
    counter(
        "remote_limit_in_force",
        "seconds",
        "How long there was a remote limit.",
        REMOTE,
        |s, out| sums(s, |labels, sum| out(labels, sum.in_force.as_secs_f64().into())),
    ),
    counter(
        "remote_limit_offered",
        "syns",
        "New work that came to the scope of remote limits where they are enforced, with what was refused; for role to as the peer says.",
        REMOTE,
        |s, out| remote(s, |labels, of| out(labels, most(of, |limit| limit.offered).into())),
    ),
    counter(
        "remote_limit_refused",
        "syns",
        "Of this refused because of a remote limit; in shadow mode what would have been.",
        REMOTE,
        |s, out| remote(s, |labels, of| out(labels, most(of, |limit| limit.refused).into())),
    ),
    gauge(
        "remote_limit_kind",
        "",
        "1 while there is a remote limit: what it counts (connections, datagrams, requests), its kind (rate, loss, gap), and the priority from which on it refuses (0: all).",
        &["service", "peer", "role", "counts", "kind", "priority"],
        kinds,
    ),
    gauge(
        "request_limit_rate",
        "per_second",
        "Remote limit on requests in force; else as tidegate_remote_limit_rate_per_second.",
        REMOTE,
        |s, out| {
            remote_in(s, Unit::Requests, |labels, of| {
                let rates = of.iter().filter_map(|limit| Some(limit.rate?.get()));
                if let Some(least) = rates.reduce(f64::min) {
                    out(labels, least.into());
                }
            })
        },
    ),
    counter(
        "request_limit_allowed",
        "requests",
        "Requests that a remote limit allowed: the limit, summed over time. Of several scopes the tightest.",
        REMOTE,
        |s, out| sums_in(s, Unit::Requests, |labels, sum| out(labels, sum.allowed.into())),
    ),
    counter(
        "request_limit_in_force",
        "seconds",
        "How long there was a remote limit on requests.",
        REMOTE,
        |s, out| {
            sums_in(s, Unit::Requests, |labels, sum| {
                out(labels, sum.in_force.as_secs_f64().into());
            })
        },
    ),
    counter(
        "request_limit_offered",
        "requests",
        "Requests that came to the scope of remote limits where they are enforced, with what was refused; for role to as the peer says.",
        REMOTE,
        |s, out| {
            remote_in(s, Unit::Requests, |labels, of| {
                out(labels, most(of, |limit| limit.offered).into());
            })
        },
    ),
    counter(
        "request_limit_refused",
        "requests",
        "Of these refused because of a remote limit; in shadow mode what would have been.",
        REMOTE,
        |s, out| {
            remote_in(s, Unit::Requests, |labels, of| {
                out(labels, most(of, |limit| limit.refused).into());
            })
        },
    ),
    gauge(
        "datagram_limit_rate",
        "per_second",
        "Remote limit on datagrams (UDP) in force; else as tidegate_remote_limit_rate_per_second.",
        REMOTE,
        |s, out| {
            remote_in(s, Unit::Datagrams, |labels, of| {
                let rates = of.iter().filter_map(|limit| Some(limit.rate?.get()));
                if let Some(least) = rates.reduce(f64::min) {
                    out(labels, least.into());
                }
            })
        },
    ),
    counter(
        "datagram_limit_allowed",
        "datagrams",
        "Datagrams that a remote limit allowed: the limit, summed over time. Of several scopes the tightest.",
        REMOTE,
        |s, out| sums_in(s, Unit::Datagrams, |labels, sum| out(labels, sum.allowed.into())),
    ),
    counter(
        "datagram_limit_in_force",
        "seconds",
        "How long there was a remote limit on datagrams.",
        REMOTE,
        |s, out| {
            sums_in(s, Unit::Datagrams, |labels, sum| {
                out(labels, sum.in_force.as_secs_f64().into());
            })
        },
    ),
    counter(
        "service_offered",
        "datagrams",
        "Datagrams that came for a service, with those that were refused; absent where they are not counted.",
        &["service"],
        |s, out| datagrams(s, |name, of| out(&[name], of.offered.into())),
    ),
    counter(
        "service_refused",
        "datagrams",
        "Of these refused because of a remote limit; with shadow=\"true\" they passed: shadow mode, a source outside a canary, or a lease that ends.",
        &["service", "shadow"],
        |s, out| {
            datagrams(s, |name, of| {
                out(&[name, "false"], of.refused.into());
                out(&[name, "true"], of.spared.into());
            })
        },
    ),
];

const REMOTE: &[&str] = &["service", "peer", "role"];

fn remote(snapshot: &Snapshot, visit: impl FnMut(&[&str], &[&RemoteState])) {
    remote_in(snapshot, Unit::Connections, visit);
}

/// The limits of each service, peer and role. Scopes are no label: a peer may name many.
fn remote_in(snapshot: &Snapshot, unit: Unit, mut visit: impl FnMut(&[&str], &[&RemoteState])) {
    for service in &snapshot.services {
        let mut by_peer: BTreeMap<(&str, &str), Vec<&RemoteState>> = BTreeMap::new();
        for limit in service.remote.iter().filter(|limit| limit.unit == unit) {
            by_peer.entry((&limit.peer, &limit.role)).or_default().push(limit);
        }
        for ((peer, role), limits) in &by_peer {
            visit(&[&service.name, peer, role], limits);
        }
    }
}

/// Of several scopes of one kind there is one sample.
fn kinds(snapshot: &Snapshot, out: Sink<'_>) {
    for service in &snapshot.services {
        let of = |limit: &RemoteState| {
            let kind = limit.restriction?.form().name();
            Some((limit.peer.clone(), limit.role.clone(), limit.unit.name(), kind, limit.priority))
        };
        let kinds: BTreeSet<_> = service.remote.iter().filter_map(of).collect();
        for (peer, role, counts, kind, priority) in kinds {
            let priority = priority.to_string();
            out(&[&service.name, &peer, &role, counts, kind, &priority], Number::Count(1));
        }
    }
}

fn sums(snapshot: &Snapshot, visit: impl FnMut(&[&str], &RemoteSum)) {
    sums_in(snapshot, Unit::Connections, visit);
}

fn sums_in(snapshot: &Snapshot, unit: Unit, mut visit: impl FnMut(&[&str], &RemoteSum)) {
    for service in &snapshot.services {
        for sum in service.remote_sums.iter().filter(|sum| sum.unit == unit) {
            visit(&[&service.name, &sum.peer, &sum.role], sum);
        }
    }
}

fn datagrams(snapshot: &Snapshot, mut visit: impl FnMut(&str, &DatagramTotals)) {
    for service in &snapshot.services {
        if let Some(of) = service.totals.as_ref().and_then(|totals| totals.datagrams.as_ref()) {
            visit(&service.name, of);
        }
    }
}

/// Scopes of one service see the same work.
fn most(limits: &[&RemoteState], of: impl Fn(&RemoteState) -> u64) -> u64 {
    limits.iter().map(|limit| of(limit)).max().unwrap_or_default()
}

fn each(snapshot: &Snapshot, visit: impl FnMut(&PeerState)) {
    snapshot.peers.iter().for_each(visit);
}
