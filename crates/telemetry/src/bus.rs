// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bus over which routers share, for people.

use crate::table::plain;
use tidegate_model::sharing::BusState;
use tidegate_model::snapshot::Snapshot;

/// Whether it is connected and since when, and what was counted; empty where there is none.
#[must_use]
pub fn bus_lines(snapshot: &Snapshot) -> String {
    let Some(bus) = &snapshot.bus else { return String::new() };
    let BusState { servers, subject, up, lasts, sent, unsent, taken, .. } = bus;
    let (servers, subject) = (plain(&servers.join(", ")), plain(subject));
    let state = if *up { "connected" } else { "not connected" };
    let mut text = format!("bus {subject} at {servers}: {state} for {lasts}\n");
    let unsent = if *unsent > 0 { format!(", {unsent} not sent") } else { String::new() };
    text.push_str(&format!("  reports: {sent} sent{unsent}, {taken} taken\n"));
    if !bus.refused.is_empty() {
        let each = bus.refused.iter().map(|r| format!("{} {}", plain(&r.reason), r.count));
        text.push_str(&format!("  refused: {}\n", each.collect::<Vec<_>>().join(", ")));
    }
    if !bus.problem.is_empty() {
        text.push_str(&format!("  problem: {}\n", plain(&bus.problem)));
    }
    text
}
