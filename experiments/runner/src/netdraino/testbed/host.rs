// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemons of a run are told.

use super::setting::{Attack, Control, Setting};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;
use tidegate_lab::{Pushback, Road, RoadHost, Sections};

/// The paper's servers know no first attempts; routers of the product have its default.
const PUBLISHED: &str = "token_bucket";
const DEFAULT: &str = "fresh_first";
/// A rate that no load reaches: a router's own limit must be looser than S0's.
const FREE: f64 = 100_000.0;

/// Routers within so many links of S0.
pub(super) fn within(setting: &Setting) -> Vec<RoadHost> {
    let within = |host: &RoadHost| f64::from(host.hops()) <= setting.hops;
    RoadHost::ROUTERS.into_iter().filter(within).collect()
}

/// Who may limit whom. S0 is told of all routers, also of one in whose place somebody else stands.
pub(super) fn pushback(road: &Road<'_>, program: &Path, setting: &Setting) -> Result<Pushback> {
    let name = |host: RoadHost| (host, host.name());
    let neighbour = setting.neighbour.then(|| name(RoadHost::S1));
    let services: Vec<_> = [name(RoadHost::S0)].into_iter().chain(neighbour).collect();
    road.pushback(program, &services, &within(setting)).context("certificates and grants")
}

/// Services and other sections of a router.
pub(super) fn router(
    setting: &Setting,
    host: RoadHost,
    peers: Option<&Pushback>,
) -> (Value, Sections) {
    let free = setting.control != Control::Naive;
    let rate = if free { FREE } else { setting.s0_rate };
    let policy = if setting.control == Control::OutOfBand { DEFAULT } else { PUBLISHED };
    let mut services = service((RoadHost::S0, policy), "enforce", (rate, None));
    if setting.neighbour {
        let more = service((RoadHost::S1, policy), "enforce", (FREE, None));
        services[RoadHost::S1.name()] = more[RoadHost::S1.name()].clone();
    }
    let mut sections = marked(setting);
    if let Some(cluster) = peers.and_then(|peers| peers.router(host)) {
        sections.others.insert("cluster".into(), cluster.clone());
    }
    if setting.control == Control::Flowspec {
        sections = sections.importing();
    }
    (services, sections)
}

/// The same of S0.
pub(super) fn server(setting: &Setting, peers: Option<&Pushback>) -> (Value, Sections) {
    let counts_only = matches!(setting.control, Control::None | Control::InBand);
    let mode = if counts_only { "shadow" } else { "enforce" };
    let pushed = setting.control == Control::OutOfBand;
    let takes = (pushed && setting.udp_mbit > 0.0).then_some(setting.s0_datagrams);
    let services = service((RoadHost::S0, PUBLISHED), mode, (setting.s0_rate, takes));
    let mut sections = marked(setting);
    if let Some(peers) = peers {
        sections.others.insert("cluster".into(), peers.server.clone());
    }
    if setting.control == Control::Flowspec {
        sections = sections.exporting(setting.speaker.name(), RoadHost::S0.name());
    }
    (services, sections)
}

/// Where marks are forged, daemons set and read them, and clear them where clients are.
fn marked(setting: &Setting) -> Sections {
    let mut sections = Sections::default();
    if setting.attack == Attack::Marks {
        sections.border = true;
        let marks = json!({"router_bit": 1, "server_bit": 2, "mark": true});
        sections.others.insert("in_band".into(), marks);
    }
    sections
}

/// The section `services`, with the service of a server: silent drops, as the paper's. S0 says how many datagrams it
/// takes where it may limit routers.
fn service(
    (host, policy): (RoadHost, &str),
    mode: &str,
    (rate, datagrams): (f64, Option<f64>),
) -> Value {
    let mut service = json!({
        "mode": mode,
        "listen": [host.target().to_string()],
        "policy": {"name": policy, "action": "drop"},
        "control": {"name": "fixed", "rate": rate},
    });
    if let Some(datagrams) = datagrams {
        service["datagrams"] = json!(datagrams);
    }
    json!({host.name(): service})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the published mode nothing of the product limits; with FlowSpec S0 announces and R2 imports.
    #[test]
    fn each_host_is_told_its_part() {
        let of = |control: Control| Setting { control, ..Setting::default() };
        let (services, sections) = server(&of(Control::InBand), None);
        assert_eq!(services["s0"]["mode"], json!("shadow"));
        assert_eq!(sections, Sections::default());
        let (services, sections) = server(&of(Control::Flowspec), None);
        assert_eq!(services["s0"]["mode"], json!("enforce"));
        assert_eq!(sections.others["flowspec"]["export"], json!([{"service": "s0"}]));
        let (_, sections) = router(&of(Control::Flowspec), RoadHost::R2, None);
        assert!(sections.xdp && sections.others["flowspec"]["import"]["peer"] == json!("r3"));
        let (services, _) = router(&of(Control::Naive), RoadHost::R0, None);
        assert_eq!(services["s0"]["control"]["rate"], json!(100.0));
        assert_eq!(services["s0"]["policy"]["name"], json!(PUBLISHED));
        let (services, _) = router(&of(Control::OutOfBand), RoadHost::R2, None);
        assert_eq!(services["s0"]["policy"]["name"], json!(DEFAULT));
    }

    #[test]
    fn marks_are_cleared_where_they_are_forged() {
        let forged = Setting {
            control: Control::OutOfBand,
            attack: Attack::Marks,
            neighbour: true,
            ..Setting::default()
        };
        let (services, sections) = router(&forged, RoadHost::R0, None);
        assert!(sections.border && services.get("s1").is_some());
        assert_eq!(sections.others["in_band"]["mark"], json!(true));
    }
}
