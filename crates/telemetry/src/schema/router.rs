// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of what a router measures and limits.

use super::{Metric, Sink, counter, gauge};
use tidegate_model::router::{DestinationState, RouterState};
use tidegate_model::snapshot::Snapshot;
use tidegate_units::Nanos;

/// Every metric of a router, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    gauge(
        "router_connections",
        "",
        "Connections that the router follows; absent without the key router.",
        &[],
        |s, out| each(s, |r| out(&[], r.connections.into())),
    ),
    gauge("router_destinations", "", "Destinations that the router has found.", &[], |s, out| {
        each(s, |r| out(&[], r.known.into()))
    }),
    counter(
        "router_syns",
        "",
        "SYNs to a destination by state: first, repeated (a copy of one that was seen).",
        &["destination", "state"],
        |s, out| {
            of_each(s, |d| {
                out(&[&d.address, "first"], d.counts.syns.into());
                out(&[&d.address, "repeated"], d.counts.syns_repeated.into());
            })
        },
    ),
    counter(
        "router_admitted",
        "connections",
        "Connections to a destination whose handshake was completed.",
        &["destination"],
        |s, out| of_each(s, |d| out(&[&d.address], d.counts.admitted.into())),
    ),
    counter(
        "router_exchanges",
        "",
        "Exchanges of a destination by state: begun, completed, given-up (ended without their response), \
         resumed (completed ones whose response went on after a pause: they complete once more).",
        &["destination", "state"],
        |s, out| {
            of_each(s, |d| {
                out(&[&d.address, "begun"], d.counts.begun.into());
                out(&[&d.address, "completed"], d.counts.completed.into());
                out(&[&d.address, "given-up"], d.counts.given_up.into());
                out(&[&d.address, "resumed"], d.counts.resumed.into());
            })
        },
    ),
    counter(
        "router_payload",
        "bytes",
        "Bytes of payload of a destination by state: sent (each once), again (sent before), delivered (acknowledged).",
        &["destination", "state"],
        |s, out| {
            of_each(s, |d| {
                out(&[&d.address, "sent"], d.counts.sent_bytes.into());
                out(&[&d.address, "again"], d.counts.again_bytes.into());
                out(&[&d.address, "delivered"], d.counts.delivered_bytes.into());
            })
        },
    ),
    gauge(
        "router_exchange",
        "seconds",
        "How long exchanges of a destination took in the last five seconds: quantiles 0.5 and 0.99, by size of the response \
         in bytes (below); all: of any size. A quantile is the end of a bucket, of which a power of two has four.",
        &["destination", "below", "quantile"],
        |s, out| of_each(s, |d| took(d, out)),
    ),
    gauge(
        "router_fastest_rate",
        "bytes_per_second",
        "Mean rate of the fastest tenth of the connections of a destination in its last interval; absent where none was \
         sent anything.",
        &["destination"],
        |s, out| {
            of_each(s, |d| {
                let fastest = d.last.iter().filter_map(|last| last.fastest);
                fastest.for_each(|rate| out(&[&d.address], rate.into()));
            })
        },
    ),
    gauge(
        "router_flash_crowd",
        "",
        "1 while there is a flash crowd at a destination: more comes than usual, and responses are slow.",
        &["destination"],
        |s, out| {
            each(s, |r| r.crowds.iter().for_each(|crowd| out(&[&crowd.destination], 1_u64.into())));
        },
    ),
    gauge(
        "router_hot_spot_share",
        "ratio",
        "Share of the requests of a flash crowd that are for the one host, or path of a host, that most ask for; absent \
         without the key hot_spots, and where no packet shows one. Status says which it is: names that clients write \
         are no labels.",
        &["destination"],
        |s, out| {
            each(s, |r| {
                for crowd in &r.crowds {
                    let most = crowd.hot_spots.iter().map(|hot| hot.share).reduce(f64::max);
                    most.iter().for_each(|share| out(&[&crowd.destination], (*share).into()));
                }
            });
        },
    ),
    counter(
        "router_flash_crowd",
        "seconds",
        "How long there were flash crowds, those of all destinations added up.",
        &[],
        |s, out| each(s, |r| out(&[], r.crowds_time.as_secs_f64().into())),
    ),
    counter(
        "router_flash_crowds",
        "",
        "Flash crowds that began, at all destinations.",
        &[],
        |s, out| each(s, |r| out(&[], r.crowds_total.into())),
    ),
    counter(
        "router_limited",
        "syns",
        "SYNs to a destination beyond its limit by state: refused, would-refuse (passed, in shadow or as the lease \
         ended).",
        &["destination", "state"],
        |s, out| {
            of_each(s, |d| {
                out(&[&d.address, "refused"], d.counts.refused.into());
                out(&[&d.address, "would-refuse"], d.counts.would_refuse.into());
            })
        },
    ),
    counter(
        "router_reset",
        "syns",
        "Of the refused SYNs to a destination, those that were replied to with a RST.",
        &["destination"],
        |s, out| of_each(s, |d| out(&[&d.address], d.counts.reset.into())),
    ),
    gauge(
        "router_limit_rate",
        "per_second",
        "New connections per second that pass the limit of a destination with a flash crowd, or would; absent \
         without a limit.",
        &["destination"],
        |s, out| {
            each(s, |r| {
                for crowd in &r.crowds {
                    crowd.limit.iter().for_each(|rate| out(&[&crowd.destination], (*rate).into()));
                }
            });
        },
    ),
    counter(
        "router_limit_allowed",
        "connections",
        "The rates of limits added up over time, those of all destinations: the new connections that they would \
         have let pass.",
        &[],
        |s, out| each(s, |r| out(&[], r.limits_allowed.into())),
    ),
    counter(
        "router_limit",
        "seconds",
        "How long there were limits, those of all destinations added up.",
        &[],
        |s, out| each(s, |r| out(&[], r.limits_time.as_secs_f64().into())),
    ),
    gauge(
        "router_limit_share",
        "ratio",
        "This router's part of the demand of a destination, by which several routers divide its limit; absent where it \
         is not divided.",
        &["destination"],
        |s, out| {
            each(s, |r| {
                for crowd in &r.crowds {
                    crowd.part.iter().for_each(|p| out(&[&crowd.destination], p.share.into()));
                }
            });
        },
    ),
    gauge(
        "router_shared_report_age",
        "seconds",
        "Time since the last report of another router with which this one shares.",
        &["peer"],
        |s, out| {
            each(s, |r| {
                for other in &r.sharing {
                    let age = other.age.map(|age| age.as_secs_f64());
                    age.into_iter().for_each(|age| out(&[&other.router], age.into()));
                }
            });
        },
    ),
    counter(
        "router_unmeasured",
        "",
        "What was not measured, by reason: connections, handshakes and destinations without room, SYNs to \
         what is unknown.",
        &["reason"],
        |s, out| {
            each(s, |r| r.losses.iter().for_each(|l| out(&[&l.reason], l.count.into())));
        },
    ),
];

fn each(snapshot: &Snapshot, visit: impl FnMut(&RouterState)) {
    snapshot.router.iter().for_each(visit);
}

/// All destinations together, and the busiest by themselves: no more than the snapshot has.
fn of_each(snapshot: &Snapshot, mut visit: impl FnMut(&DestinationState)) {
    each(snapshot, |router| {
        std::iter::once(&router.all).chain(&router.destinations).for_each(&mut visit);
    });
}

/// Quantiles of the last interval: of all exchanges of a destination, and of each size.
fn took(destination: &DestinationState, out: Sink<'_>) {
    let address = destination.address.as_str();
    let mut each = |below: &str, took: [Option<Nanos>; 2]| {
        for (quantile, took) in ["0.5", "0.99"].into_iter().zip(took) {
            let s = took.map(Nanos::as_secs_f64);
            s.into_iter().for_each(|s| out(&[address, below, quantile], s.into()));
        }
    };
    let Some(last) = &destination.last else { return };
    each("all", [last.median, last.p99]);
    for one in &last.sizes {
        let below = one.below_bytes.map_or("+Inf".into(), |bytes| bytes.to_string());
        each(&below, [Some(one.median), Some(one.p99)]);
    }
}
