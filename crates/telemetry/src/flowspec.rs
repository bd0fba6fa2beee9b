// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What routers are told by BGP FlowSpec, for people.

use crate::table::{plain, render_rows};
use std::fmt::Write as _;
use tidegate_model::snapshot::{FlowspecState, RouteState, Snapshot};

const TITLES: [&str; 5] = ["route", "service", "wanted", "told", "withheld"];

/// The speaker, its sessions and its routes; empty where there are none.
#[must_use]
pub fn flowspec_lines(snapshot: &Snapshot) -> String {
    let Some(state) = &snapshot.flowspec else { return String::new() };
    let FlowspecState { speaker, shadow, up, started, refused, .. } = state;
    let how = match (shadow, up) {
        (true, _) => "shadow: nothing is announced".to_owned(),
        (false, true) => format!("up, started {started} time(s), {refused} refusal(s) of routes"),
        (false, false) => format!("down, started {started} time(s)"),
    };
    let mut text = format!("flowspec ({}): {how}\n", plain(speaker));
    for peer in state.peers.iter().filter(|_| !shadow) {
        let session = match peer.up {
            Some(true) => "established",
            Some(false) => "no session",
            None => "not known",
        };
        let _ = writeln!(text, "  router {} ({}): {session}", plain(&peer.name), peer.address);
    }
    if !state.routes.is_empty() {
        let titles = TITLES.map(String::from).to_vec();
        let rows: Vec<_> = std::iter::once(titles).chain(state.routes.iter().map(cells)).collect();
        text.push_str(&render_rows(&rows, &[false, false, true, true, false]));
    }
    text
}

fn cells(route: &RouteState) -> Vec<String> {
    let rate = |rate: Option<f64>| {
        rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0} {}/s", plain(&route.unit)))
    };
    let withheld = if route.withheld.is_empty() { "-".to_owned() } else { plain(&route.withheld) };
    vec![plain(&route.rule), plain(&route.service), rate(route.wanted), rate(route.told), withheld]
}
