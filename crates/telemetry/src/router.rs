// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a router measures of the destinations behind it, for people.

use crate::table::{plain, render_rows};
use std::fmt::Write as _;
use tidegate_model::Mode;
use tidegate_model::router::{CrowdState, DestinationState, HotSpotState, RouterState};
use tidegate_model::sharing::{PartState, SharingState};
use tidegate_model::snapshot::Snapshot;
use tidegate_units::Nanos;

const TITLES: [&str; 10] = [
    "destination",
    "syns/s",
    "admitted/s",
    "exchanges/s",
    "in flight",
    "median",
    "p99",
    "Mbit/s",
    "fastest Mbit/s",
    "again %",
];

/// Most flash crowds that have a line each.
const CROWDS_MAX: usize = 4;

/// Connections, losses, flash crowds, and the busiest destinations; empty where nothing is measured.
#[must_use]
pub fn router_lines(snapshot: &Snapshot) -> String {
    let Some(state) = &snapshot.router else { return String::new() };
    let RouterState { connections, connections_max, known, known_max, sample, .. } = state;
    let sampled = if *sample > 1 { format!(", one in {sample} sampled") } else { String::new() };
    let mut text = format!(
        "router: {connections} of {connections_max} connections, {known} of {known_max} destinations{sampled}\n"
    );
    if !state.problem.is_empty() {
        let _ = writeln!(text, "  not measured: {}", plain(&state.problem));
    }
    let losses: Vec<_> = state.losses.iter().filter(|loss| loss.count > 0).collect();
    if !losses.is_empty() {
        let each = losses.iter().map(|l| format!("{} {}", l.count, plain(&l.reason)));
        let _ = writeln!(text, "  missed: {}", each.collect::<Vec<_>>().join(", "));
    }
    if !state.crowds_missed.is_empty() {
        let _ = writeln!(text, "  {}", plain(&state.crowds_missed));
    }
    if !state.limits_open.is_empty() {
        let _ = writeln!(text, "  {}", plain(&state.limits_open));
    }
    for other in &state.sharing {
        let _ = writeln!(text, "  {}", sharing_line(other));
    }
    for crowd in state.crowds.iter().take(CROWDS_MAX) {
        let _ = writeln!(text, "  {}", crowd_line(crowd));
        text.push_str(&limit_line(crowd, state.limit_mode));
        text.push_str(&hot_line(&crowd.hot_spots));
    }
    if let Some(more @ 1..) = state.crowds.len().checked_sub(CROWDS_MAX) {
        let _ = writeln!(text, "  and flash crowds at {more} more destinations");
    }
    let titles = TITLES.map(String::from).to_vec();
    let destinations = std::iter::once(&state.all).chain(&state.destinations).map(cells);
    let rows: Vec<_> = std::iter::once(titles).chain(destinations).collect();
    let right: Vec<bool> = (0..TITLES.len()).map(|column| column > 0).collect();
    text.push_str(&render_rows(&rows, &right));
    text
}

/// What its limit does, or why it has none.
fn limit_line(crowd: &CrowdState, mode: Option<Mode>) -> String {
    let CrowdState { limit, unlimited, refused, reset, would_refuse, .. } = crowd;
    let Some(rate) = limit else {
        return match unlimited.as_str() {
            "" => String::new(),
            why => format!("    not limited: {}\n", plain(why)),
        };
    };
    let part = crowd.part.map(part_text).unwrap_or_default();
    let reset = match reset {
        0 => String::new(),
        n => format!(" ({n} with a RST)"),
    };
    let mut text = match mode {
        Some(Mode::Enforce) => {
            format!(
                "    limited to {rate:.1} new connections/s, {refused} SYNs refused{reset}{part}\n"
            )
        }
        _ => {
            format!(
                "    shadow: limit of {rate:.1} new connections/s, {would_refuse} SYNs would be refused{part}\n"
            )
        }
    };
    if crowd.abacus == Some(false) {
        text.push_str(
            "    all Abacus filters are taken: clients with the action abacus are dropped\n",
        );
    }
    text
}

/// What it asks for.
fn hot_line(hot_spots: &[HotSpotState]) -> String {
    let of = |HotSpotState { host, path, share }: &HotSpotState| {
        format!("{}{} {:.0} %", plain(host), plain(path), share * 100.0)
    };
    match hot_spots {
        [] => String::new(),
        all => format!("    asks for {}\n", all.iter().map(of).collect::<Vec<_>>().join(", ")),
    }
}

/// Its part of what several routers divide.
fn part_text(part: PartState) -> String {
    let PartState { routers, whole, share } = part;
    let share = share * 100.0;
    format!("; {share:.0} % of the demand at {routers} routers, {whole:.1}/s in all")
}

/// What is known of another router.
fn sharing_line(other: &SharingState) -> String {
    let SharingState { router, age, destinations, crowds } = other;
    let router = plain(router);
    match age {
        Some(age) => {
            format!(
                "shares with {router}: {destinations} destinations, {crowds} flash crowds, {age} ago"
            )
        }
        None => format!("shares with {router}: not heard yet"),
    }
}

fn crowd_line(crowd: &CrowdState) -> String {
    let CrowdState { destination, lasts, why, demand, slow, .. } = crowd;
    let (destination, why, slow) = (plain(destination), plain(why), slow * 100.0);
    format!(
        "flash crowd at {destination} for {lasts}: {why}; {demand:.1} exchanges/s, {slow:.0} % slow"
    )
}

fn cells(destination: &DestinationState) -> Vec<String> {
    let last = destination.last.as_ref();
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let number =
        |value: Option<f64>, times: f64| or_dash(value.map(|v| format!("{:.1}", v * times)));
    let time = |time: Option<Nanos>| or_dash(time.map(|time| time.to_string()));
    vec![
        plain(&destination.address),
        number(last.map(|l| l.syns), 1.0),
        number(last.map(|l| l.admitted), 1.0),
        number(last.map(|l| l.completed), 1.0),
        destination.counts.in_flight().to_string(),
        time(last.and_then(|l| l.median)),
        time(last.and_then(|l| l.p99)),
        number(last.map(|l| l.delivered), 8e-6),
        number(last.and_then(|l| l.fastest), 8e-6),
        number(last.and_then(|l| l.again), 100.0),
    ]
}
