// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that report to each other, as a table for people.

use crate::table::{plain, render_rows};
use tidegate_model::snapshot::{PeerState, Snapshot};

const TITLES: [&str; 9] =
    ["peer", "role", "session", "version", "epoch", "reports", "last", "refused", "trouble"];

/// The peers; empty where there are none.
#[must_use]
pub fn peers_table(snapshot: &Snapshot) -> String {
    if snapshot.peers.is_empty() {
        return String::new();
    }
    let titles = TITLES.map(String::from).to_vec();
    let rows: Vec<_> = std::iter::once(titles).chain(snapshot.peers.iter().map(cells)).collect();
    let right: Vec<bool> = (0..TITLES.len()).map(|column| (3..7).contains(&column)).collect();
    render_rows(&rows, &right)
}

fn cells(peer: &PeerState) -> Vec<String> {
    let refused: Vec<String> =
        peer.refused.iter().map(|r| format!("{} {}", plain(&r.reason), r.count)).collect();
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    vec![
        plain(&peer.name),
        plain(&peer.role),
        if peer.up { "up" } else { "down" }.to_owned(),
        if peer.version == 0 { "-".to_owned() } else { peer.version.to_string() },
        peer.epoch.to_string(),
        peer.reports.to_string(),
        peer.age.map_or_else(|| "-".to_owned(), |age| age.to_string()),
        dash(refused.join(", ")),
        dash(plain(&peer.trouble)),
    ]
}
