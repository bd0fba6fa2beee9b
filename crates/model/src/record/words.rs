// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happened, in sentences.

use super::{By, What};
use tidegate_units::Nanos;

impl What {
    /// All of it in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let lasts = |lasts: &Option<Nanos>| match lasts {
            Some(lasts) => format!(" for {lasts}"),
            None => String::new(),
        };
        match self {
            Self::SheddingBegan(began) => began.sentence(),
            Self::SheddingEnded(ended) => ended.sentence(),
            Self::Mode { service, mode, percent, before, lasts: span, by } => {
                let (mode, before, by) = (mode.name(), before.name(), by.words());
                let share = percent.map(|percent| format!(" for {percent} % of the sources"));
                let share = share.unwrap_or_default();
                format!("{service}: {mode}{share}{} {by} (before: {before})", lasts(span))
            }
            Self::Release { on: true, lasts: span, by } => {
                format!("released{} {}: everything passes", lasts(span), by.words())
            }
            Self::Release { on: false, by, .. } => {
                format!("limits are in force again {}", by.words())
            }
            Self::Reload { generation, changes } if changes.is_empty() => {
                format!("reloaded: configuration {generation}, no difference")
            }
            Self::Reload { generation, changes } => {
                format!("reloaded: configuration {generation}: {}", changes.join("; "))
            }
            Self::CongestionBegan { interface, signs } => {
                format!("{interface}: congestion began: {}", signs.join(", "))
            }
            Self::CongestionEnded { interface, lasted } => {
                format!("{interface}: congestion ended after {lasted}")
            }
            Self::ConnectionsLimited { .. }
            | Self::ConnectionsUnlimited { .. }
            | Self::DatagramsLimited { .. }
            | Self::DatagramsUnlimited { .. } => self.of_remote_limits(),
            Self::CrowdBegan { .. }
            | Self::CrowdEnded { .. }
            | Self::CrowdLimited { .. }
            | Self::CrowdUnlimited { .. }
            | Self::RouterHeard { .. }
            | Self::RouterLost { .. }
            | Self::BusConnected { .. }
            | Self::BusLost { .. } => self.of_crowds(),
            Self::HooksLost { interface, why, open } => {
                let open = if *open { ", and nothing is limited there" } else { "" };
                format!("interface {interface}: hooks are lost{open}: {why}")
            }
            Self::HooksAttached { interface } => {
                format!("interface {interface}: hooks are attached again")
            }
            Self::PinsMade { path } => {
                format!("pins below {path} were removed by somebody else and are made again")
            }
            Self::RouteAnnounced { .. }
            | Self::RouteWithdrawn { .. }
            | Self::RuleImported { .. }
            | Self::MoreRulesImported { .. }
            | Self::RoutesUnlisted { .. }
            | Self::RulesEnded { .. } => self.of_routers(),
            Self::Started { version, took_over: true } => format!("tidegate {version} took over"),
            Self::Started { version, .. } => format!("tidegate {version} started"),
            Self::Stopped { kept: true } => "stopped; hooks and limits stay for the next".into(),
            Self::Stopped { .. } => "stopped; everything passes".into(),
        }
    }

    /// Limits of peers; else nothing.
    fn of_remote_limits(&self) -> String {
        match self {
            Self::ConnectionsLimited { service, rate } => {
                format!("{service}: a peer limits connections to {rate:.1}/s")
            }
            Self::ConnectionsUnlimited { service, lasted, offered, refused } => {
                format!(
                    "{service}: no peer limits connections any more, after {lasted}: {offered} SYNs came, {refused} \
                     refused"
                )
            }
            Self::DatagramsLimited { service, rate } => {
                format!("{service}: a peer limits datagrams to {rate:.1}/s")
            }
            Self::DatagramsUnlimited { service, lasted, offered, refused, would_refuse } => {
                let more = match would_refuse {
                    0 => String::new(),
                    n => format!("; {n} beyond the limit passed"),
                };
                format!(
                    "{service}: datagrams are not limited any more, after {lasted}: {offered} came, {refused} \
                     refused{more}"
                )
            }
            _ => String::new(),
        }
    }

    /// What routers are told, and what they tell; else nothing.
    fn of_routers(&self) -> String {
        match self {
            Self::RouteAnnounced { service, route, rate, why, shadow } => {
                let done = if *shadow { "would be told" } else { "are told" };
                format!("{service}: routers {done} {rate} {route}: {why}")
            }
            Self::RouteWithdrawn { service, route, why, shadow } => {
                let done = if *shadow { "would be" } else { "is" };
                format!("{service}: the route {route} {done} withdrawn: {why}")
            }
            Self::RuleImported { peer, rule, rate, shadow } => {
                let done = if *shadow { "would let" } else { "lets" };
                format!("the router {peer} {done} {rate} {rule} pass")
            }
            Self::MoreRulesImported { peer, count, within, .. } => {
                format!(
                    "{count} more rule(s) of the router {peer} begin or change{}",
                    past(*within)
                )
            }
            Self::RoutesUnlisted { peer, why } => {
                format!("routes of the router {peer} are not known: {why}")
            }
            Self::RulesEnded { peer, count, within, .. } => {
                format!("{count} rule(s) of the router {peer} ended{}", past(*within))
            }
            _ => String::new(),
        }
    }
}

/// For a number that is told late.
fn past(within: Option<Nanos>) -> String {
    within.map(|within| format!(" in the last {:.0} s", within.as_secs_f64())).unwrap_or_default()
}

impl By {
    const fn words(self) -> &'static str {
        match self {
            Self::Operator => "by command",
            Self::Time => "as its time is over",
            Self::File => "by the file",
            Self::Pins => "as what is pinned says",
            Self::Guard => "by the daemon, for refusals rose while the service was calm",
        }
    }
}
