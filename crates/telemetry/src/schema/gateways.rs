// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of gateways.

use super::{Metric, counter, gauge};
use tidegate_model::snapshot::{GatewaysState, Snapshot};

/// Every metric of gateways, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    gauge(
        "gateway_served",
        "",
        "1 while the listeners of a gateway are open.",
        &["gateway", "adapter"],
        |s, out| {
            each(s, |state| {
                for gateway in &state.gateways {
                    out(&[&gateway.name, &gateway.adapter], gateway.problem.is_empty().into());
                }
            });
        },
    ),
    counter(
        "gateway_reports",
        "messages",
        "Reports of what became of requests: completed ended one in flight, late came when it was not in flight any more, unknown was about no request that is known.",
        &["outcome"],
        |s, out| {
            each(s, |state| {
                let reports = &state.reports;
                out(&["completed"], reports.completed.into());
                out(&["late"], reports.late.into());
                out(&["unknown"], reports.unknown.into());
            });
        },
    ),
    counter(
        "gateway_untracked",
        "requests",
        "Requests that passed and found no room in the table of those in flight.",
        &[],
        |s, out| each(s, |state| out(&[], state.reports.untracked.into())),
    ),
    counter(
        "gateway_misunderstood",
        "messages",
        "Messages at the listeners of gateways that were not understood: counted, and nothing else.",
        &[],
        |s, out| each(s, |state| out(&[], state.misunderstood.into())),
    ),
];

fn each(snapshot: &Snapshot, visit: impl FnMut(&GatewaysState)) {
    snapshot.gateways.iter().for_each(visit);
}
