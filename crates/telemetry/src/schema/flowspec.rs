// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of limits that routers are told (BGP FlowSpec).

use super::{Metric, counter, gauge};
use tidegate_model::snapshot::{FlowspecState, Snapshot};

/// Every metric of FlowSpec, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    gauge(
        "flowspec_speaker_up",
        "",
        "1 while the BGP speaker runs and answers; absent without the key flowspec, and in its shadow mode.",
        &["speaker"],
        |s, out| {
            each(s, |f| {
                if !f.shadow {
                    out(&[&f.speaker], f.up.into())
                }
            })
        },
    ),
    counter("flowspec_speaker", "starts", "How often it was started.", &["speaker"], |s, out| {
        each(s, |f| out(&[&f.speaker], f.started.into()))
    }),
    gauge(
        "flowspec_session_up",
        "",
        "1 while the session with a router is established; absent where the speaker does not tell (ExaBGP).",
        &["peer"],
        |s, out| {
            each(s, |f| {
                for peer in &f.peers {
                    if let Some(up) = peer.up {
                        out(&[&peer.name], up.into());
                    }
                }
            })
        },
    ),
    gauge(
        "flowspec_routes",
        "",
        "Routes by state: announced (in shadow mode: planned), withheld (wanted, and not announced).",
        &["state"],
        |s, out| {
            each(s, |f| {
                let announced = f.routes.iter().filter(|route| route.told.is_some()).count();
                let withheld = f.routes.len() - announced;
                out(&["announced"], (announced as u64).into());
                out(&["withheld"], (withheld as u64).into());
            })
        },
    ),
    counter(
        "flowspec_refused",
        "routes",
        "How often the speaker did not take a route.",
        &["speaker"],
        |s, out| each(s, |f| out(&[&f.speaker], f.refused.into())),
    ),
    gauge(
        "flowspec_route_rate",
        "per_second",
        "The rate of a route as routers were told, in packets or bytes.",
        &["service", "route", "unit"],
        |s, out| {
            each(s, |f| {
                for route in &f.routes {
                    if let Some(told) = route.told {
                        out(&[&route.service, &route.rule, &route.unit], told.into());
                    }
                }
            })
        },
    ),
];

fn each(snapshot: &Snapshot, visit: impl FnMut(&FlowspecState)) {
    snapshot.flowspec.iter().for_each(visit);
}
