// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of congested routers in packets, for people.

use crate::table::plain;
use std::fmt::Write as _;
use tidegate_model::snapshot::Snapshot;

/// What was added, and what routers have said; empty where there was none of it.
#[must_use]
pub fn in_band_lines(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let Some(state) = snapshot.in_band.as_ref().filter(|state| !state.is_empty()) else {
        return text;
    };
    for said in &state.routers {
        let ago = snapshot.now.since(said.at);
        let _ = writeln!(
            text,
            "in band: {} ({}) was congested {ago} ago: at least about {} packets for this host have passed it, by {} options",
            plain(&said.router),
            said.address,
            said.packets,
            said.entries,
        );
    }
    if state.added > 0 || state.no_room > 0 {
        let _ = writeln!(
            text,
            "in band: {} packets got an option of this router, {} had no room for it",
            state.added, state.no_room
        );
    }
    if state.unknown_routers > 0 {
        let _ = writeln!(
            text,
            "in band: {} options were of routers that are not under report_to",
            state.unknown_routers
        );
    }
    text
}
