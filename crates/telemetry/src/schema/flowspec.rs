// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of limits that routers are told, and of rules that they tell (BGP FlowSpec).

use super::{Metric, counter, gauge};
use tidegate_model::snapshot::{FlowspecState, ImportState, ImportedState, Snapshot};

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
    gauge(
        "flowspec_imported_rules",
        "",
        "Rules of a router that hold at this host; absent without the key import.",
        &["peer"],
        |s, out| imports(s, |of| out(&[&of.peer], (of.rules.len() as u64).into())),
    ),
    gauge(
        "flowspec_import_heard",
        "",
        "1 while the router has a session and the speaker lists what it sends; absent without the key import.",
        &["peer"],
        |s, out| imports(s, |of| out(&[&of.peer], of.heard.into())),
    ),
    counter(
        "flowspec_imported_rejected",
        "routes",
        "Routes of a router that did not become rules, by reason.",
        &["peer", "reason"],
        |s, out| {
            imports(s, |of| {
                for refused in &of.refused {
                    out(&[&of.peer, &refused.reason], refused.count.into());
                }
            })
        },
    ),
    counter(
        "flowspec_imported_matched",
        "packets",
        "Packets that a rule of a router matched first.",
        &["peer", "rule"],
        |s, out| rules(s, |peer, rule| out(&[peer, &rule.rule], rule.packets.into())),
    ),
    counter(
        "flowspec_imported_matched",
        "bytes",
        "Bytes of these packets.",
        &["peer", "rule"],
        |s, out| rules(s, |peer, rule| out(&[peer, &rule.rule], rule.bytes.into())),
    ),
    counter(
        "flowspec_imported_refused",
        "packets",
        "Of these, packets above the rule's rates; in shadow mode they passed.",
        &["peer", "rule"],
        |s, out| rules(s, |peer, rule| out(&[peer, &rule.rule], rule.refused.into())),
    ),
];

fn imports(snapshot: &Snapshot, visit: impl FnMut(&ImportState)) {
    snapshot.flowspec.iter().filter_map(|f| f.import.as_ref()).for_each(visit);
}

fn rules(snapshot: &Snapshot, mut visit: impl FnMut(&str, &ImportedState)) {
    imports(snapshot, |of| of.rules.iter().for_each(|rule| visit(&of.peer, rule)));
}

fn each(snapshot: &Snapshot, visit: impl FnMut(&FlowspecState)) {
    snapshot.flowspec.iter().for_each(visit);
}
