// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of options of congested routers in packets.

use super::{Metric, counter};
use tidegate_model::in_band::InBandState;
use tidegate_model::snapshot::Snapshot;

/// Every one of them, in the order in which they are exported.
pub(crate) const METRICS: &[Metric] = &[
    counter(
        "in_band_options",
        "packets",
        "As a congested router: packets that should get its option (in_band.option), by outcome: added, no-room. Absent without in_band.mark.",
        &["outcome"],
        |s, out| {
            of(s, |state| {
                out(&["added"], state.added.into());
                out(&["no-room"], state.no_room.into());
            });
        },
    ),
    counter(
        "in_band_router",
        "packets",
        "As a server that refuses: about how many packets have passed a congested router, by what its options say: a lower bound, of packets that can carry one.",
        &["peer"],
        |s, out| {
            of(s, |state| {
                for said in &state.routers {
                    out(&[&said.router], said.packets_ever.into());
                }
            });
        },
    ),
    counter(
        "in_band_unknown_routers",
        "",
        "As a server that refuses: entries in options with the address of no router under report_to.",
        &[],
        |s, out| of(s, |state| out(&[], state.unknown_routers.into())),
    ),
];

fn of(snapshot: &Snapshot, visit: impl FnMut(&InBandState)) {
    snapshot.in_band.iter().for_each(visit);
}
