// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What routers are told by BGP FlowSpec, and what they tell, for people.

use crate::table::{plain, render_rows};
use std::fmt::Write as _;
use tidegate_model::snapshot::{FlowspecState, ImportState, ImportedState, RouteState, Snapshot};

const TITLES: [&str; 5] = ["route", "service", "wanted", "told", "withheld"];
const IMPORTED: [&str; 5] = ["rule of the router", "rate", "packets", "bytes", "refused"];

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
    state.import.iter().for_each(|import| imported(import, &mut text));
    text
}

fn imported(import: &ImportState, text: &mut String) {
    let how = match (import.shadow, import.heard) {
        (_, false) => "no list of routes",
        (true, true) => "shadow: nothing is dropped",
        (false, true) => "enforced",
    };
    let refused: u64 = import.refused.iter().map(|refused| refused.count).sum();
    let (peer, rules) = (plain(&import.peer), import.rules.len());
    let _ =
        writeln!(text, "  import from {peer}: {how}, {rules} rule(s), {refused} route(s) refused");
    if !import.problem.is_empty() {
        let _ = writeln!(text, "    {}", plain(&import.problem));
    }
    for refused in &import.refused {
        let _ = writeln!(text, "    refused as {}: {}", plain(&refused.reason), refused.count);
    }
    if !import.rules.is_empty() {
        let titles = IMPORTED.map(String::from).to_vec();
        let rows: Vec<_> = std::iter::once(titles).chain(import.rules.iter().map(counts)).collect();
        text.push_str(&render_rows(&rows, &[false, true, true, true, true]));
    }
}

fn counts(rule: &ImportedState) -> Vec<String> {
    let rates = [(rule.packets_rate, "packets/s"), (rule.bytes_rate, "bytes/s")];
    let rates = rates.into_iter().filter_map(|(rate, unit)| Some(format!("{:.0} {unit}", rate?)));
    let rates = rates.collect::<Vec<_>>().join(", ");
    let rates = if rates.is_empty() { "none: passes".to_owned() } else { rates };
    let mut cells = vec![plain(&rule.rule), rates];
    cells.extend([rule.packets, rule.bytes, rule.refused].map(|count| count.to_string()));
    cells
}

fn cells(route: &RouteState) -> Vec<String> {
    let rate = |rate: Option<f64>| {
        rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0} {}/s", plain(&route.unit)))
    };
    let withheld = if route.withheld.is_empty() { "-".to_owned() } else { plain(&route.withheld) };
    vec![plain(&route.rule), plain(&route.service), rate(route.wanted), rate(route.told), withheld]
}
