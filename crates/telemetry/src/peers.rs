// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that report to each other and limit each other, as tables for people.

use crate::table::{plain, render_rows};
use std::fmt::Write as _;
use tidegate_model::snapshot::{LinkState, PeerState, RemoteState, ServiceState, Snapshot};

const TITLES: [&str; 9] =
    ["peer", "role", "session", "version", "epoch", "reports", "last", "refused", "problem"];

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
        dash(plain(&peer.problem)),
    ]
}

const LINK_TITLES: [&str; 8] =
    ["link", "congested", "signs", "sent Mbit/s", "of", "queue %", "dropped %", "episodes"];

/// The interfaces to the servers; empty where there are none.
#[must_use]
pub fn links_table(snapshot: &Snapshot) -> String {
    if snapshot.links.is_empty() {
        return String::new();
    }
    let titles = LINK_TITLES.map(String::from).to_vec();
    let links = snapshot.links.iter().map(link_cells);
    let rows: Vec<_> = std::iter::once(titles).chain(links).collect();
    let right: Vec<bool> = (0..LINK_TITLES.len()).map(|column| column >= 3).collect();
    render_rows(&rows, &right)
}

fn link_cells(link: &LinkState) -> Vec<String> {
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let number = |value: Option<f64>, times: f64| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{:.1}", value * times))
    };
    let congested = match (link.problem.is_empty(), link.lasts) {
        (false, _) => "not known".to_owned(),
        (true, Some(lasts)) => format!("for {lasts}"),
        (true, None) => "no".to_owned(),
    };
    vec![
        plain(&link.interface),
        congested,
        dash(plain(&link.signs.join(", "))),
        number(link.sent, 8e-6),
        number(link.capacity, 8e-6),
        number(link.filled, 100.0),
        number(link.dropped, 100.0),
        link.episodes.to_string(),
    ]
}

const REMOTE_TITLES: [&str; 9] =
    ["service", "peer", "limits", "scope", "limit", "in force", "valid for", "offered", "refused"];

/// The remote limits, in both directions; empty where there are none.
#[must_use]
pub fn remote_table(snapshot: &Snapshot) -> String {
    let of_service = |service: &ServiceState| {
        let limits = service.remote.iter().map(|limit| remote_cells(&service.name, limit));
        limits.collect::<Vec<_>>()
    };
    let limits: Vec<_> = snapshot.services.iter().flat_map(of_service).collect();
    if limits.is_empty() {
        return String::new();
    }
    let titles = REMOTE_TITLES.map(String::from).to_vec();
    let rows: Vec<_> = std::iter::once(titles).chain(limits).collect();
    let right: Vec<bool> = (0..REMOTE_TITLES.len()).map(|column| column >= 5).collect();
    let mut table = render_rows(&rows, &right);
    // One law finds what all peers of a service are told.
    for service in &snapshot.services {
        let limiting =
            service.remote.iter().filter(|limit| limit.role == "to" && limit.rate.is_some());
        let why = limiting.map(|limit| limit.why.as_str()).find(|why| !why.is_empty());
        if let Some(why) = why {
            let _ = writeln!(table, "{} limits its peers: {}", plain(&service.name), plain(why));
        }
        let from = service.remote.iter().filter(|limit| limit.role != "to");
        for limit in from.filter(|limit| !limit.why.is_empty()) {
            let (peer, scope, why) = (plain(&limit.peer), plain(&limit.scope), plain(&limit.why));
            let _ = writeln!(table, "the limit of {peer} for {scope}: {why}");
        }
    }
    table
}

fn remote_cells(service: &str, limit: &RemoteState) -> Vec<String> {
    let dash = || "-".to_owned();
    let whom = if limit.role == "to" { "the peer" } else { "this host" };
    let left = match (limit.left, limit.rate) {
        (Some(left), _) => left.to_string(),
        (None, Some(_)) => format!("expired, opened {} times", limit.steps),
        (None, None) => dash(),
    };
    vec![
        plain(service),
        plain(&limit.peer),
        whom.to_owned(),
        plain(&limit.scope),
        limit.restriction.map_or_else(|| "none".to_owned(), |_| limit.words()),
        limit.rate.map_or_else(dash, |rate| rate.to_string()),
        left,
        limit.offered.to_string(),
        limit.refused.to_string(),
    ]
}
