// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tidegate is told in each variant: at the server's interface, and as the proxy's gate.

use super::super::setting::{Control, Setting, Throttle};
use super::load::{self, BEHIND, Client, EDGE};
use super::{Gating, LabVariant};
use serde_json::{Value, json};
use tidegate_lab::ProductConfig;
use tidegate_units::Nanos;

/// A threshold that no level reaches.
const NEVER: u32 = 1_000_000;
/// Requests that wait, and the one in service: what is in flight is one more than the paper's queue.
const IN_SERVICE: u32 = 1;

/// Half of another threshold where none is given.
fn half(own: u32, of: u32) -> u32 {
    if own > 0 { own } else { (of / 2).max(1) }
}

/// tidegate at the interface, where the setting drops SYNs.
pub(super) fn at_interface(setting: &Setting) -> Option<ProductConfig> {
    let above = |threshold: u32| threshold + IN_SERVICE;
    let ladder = match setting.control {
        Control::None | Control::Throttle => return None,
        Control::Drop => json!({
            "abatement": above(half(setting.abatement, setting.discard)),
            "discard": above(setting.discard),
        }),
        // Dropping ends below the onset.
        Control::Combined => {
            json!({"abatement": above(setting.onset), "discard": above(setting.discard)})
        }
        Control::DropShare => {
            let share = |share: f64| format!("{}%", share * 100.0);
            json!({
                "abatement": above(half(setting.abatement, setting.onset)),
                "severities": [
                    {"onset": above(setting.onset), "share": share(setting.shares.0)},
                    {"onset": NEVER, "share": share(setting.shares.1)},
                ],
                "extra_severity": 1,
            })
        }
    };
    let mut policy = json!({"name": "threshold", "action": "drop", "level": "in-flight"});
    for (key, value) in ladder.as_object().into_iter().flatten() {
        policy[key] = value.clone();
    }
    // The uncontrolled client is preferred where a share is dropped, and never discarded else.
    policy["priorities"] = if setting.control == Control::DropShare {
        policy["preferred"] = json!(0);
        json!([{"priority": 1, "extra_severity": 0}])
    } else {
        json!([{"priority": 0, "discard": NEVER}])
    };
    let class = |(index, client): (u8, Client)| {
        json!({
            "name": format!("client{index}"),
            "sources": [format!("{}/16", load::prefix(index))],
            "priority": client.priority(),
        })
    };
    let classes: Vec<Value> = (0_u8..).zip(load::clients(setting)).map(class).collect();
    let web = json!({
        "mode": "enforce", "listen": [format!("*:{EDGE}")], "policy": policy,
        "control": {"name": "fixed"}, "classes": classes,
    });
    let services = json!({"web": web});
    Some(ProductConfig { services, ..ProductConfig::one("web", &[]) })
}

/// What the gate limits: services, routes, and the own proxy's queue.
pub(super) struct Gated {
    pub(super) services: Value,
    pub(super) routes: Value,
    pub(super) queue: Option<(u32, Nanos)>,
    /// Whom the server's monitor turns on and off.
    pub(super) told: Told,
}

/// Who is in force while the server's monitor says that somebody is throttled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nobody,
    Gate,
    /// The server's tidegate, which gives the gate a remote limit.
    Server,
}

/// A rate that no load reaches: tidegate's own limits must be looser than the remote one.
const FREE: f64 = 100_000.0;
/// What the gate limits, for the server as well.
pub(super) const SHOP: &str = "shop";

/// The server's tidegate where it only tells the gate: a limit set by hand, the rate of the gap. No
/// connection of its service comes by the interface.
pub(super) fn at_server(setting: &Setting, faster: f64, cluster: &Value) -> ProductConfig {
    let rate = (faster * 1e3 / setting.gap_ms * 1e3).round() / 1e3;
    let control = json!({"name": "fixed", "rate": rate});
    let services = json!({
        SHOP: {"mode": "enforce", "listen": [format!("*:{BEHIND}")], "control": control},
    });
    let others = json!({"cluster": cluster});
    ProductConfig { services, others, ..ProductConfig::one(SHOP, &[]) }
}

/// The gate of a variant, if it has one.
pub(super) fn at_gate(variant: &LabVariant, setting: &Setting, faster: f64) -> Option<Gated> {
    let throttles = matches!(setting.control, Control::Throttle | Control::Combined);
    let node = throttles && setting.throttle == Throttle::GapMinimum;
    let (queue, nobody) = (None, Told::Nobody);
    match variant.gate {
        Gating::Feedback | Gating::Remote if node => {
            let gap = setting.gap_ms * 1e3 / faster;
            let (mut policy, mut control) =
                (json!({"name": "gap", "tolerance": 0}), json!({"name": "fixed"}));
            let told = if variant.gate == Gating::Remote {
                control["rate"] = json!(FREE);
                Told::Server
            } else {
                policy["gap"] = json!(format!("{gap:.0}us"));
                Told::Gate
            };
            let shop = json!({"mode": "enforce", "policy": policy, "control": control});
            // One gap more: who comes last may find the first of the queue just gone.
            let wait = gap * f64::from(setting.node_queue + 1) / 1e6;
            let queue = Some((setting.node_queue.max(1), Nanos::from_secs_f64(wait)));
            Some(Gated {
                services: json!({"open": {"mode": "shadow"}, "shop": shop}),
                routes: json!([
                    {"host": Client::Uncontrolled.host(), "service": "open"},
                    {"service": "shop"},
                ]),
                queue,
                told,
            })
        }
        Gating::Feedback | Gating::Remote => None,
        Gating::Default => {
            let services = json!({"shop": {"mode": "enforce"}});
            Some(Gated { services, routes: by_priority(), queue, told: nobody })
        }
        Gating::Discard => {
            let above = |threshold: u32| threshold + IN_SERVICE;
            // Of the lowest as its ladder says; each higher one's ends where the one below it begins.
            let (low, high) = (setting.low_onset, setting.onset);
            let policy = json!({
                "name": "threshold", "level": "in-flight",
                "abatement": above(half(setting.low_abatement, low)), "discard": above(low),
                "priorities": [
                    {"priority": 1, "abatement": above(low), "discard": above(high)},
                    {"priority": 0, "abatement": above(high), "discard": above(setting.discard)},
                ],
            });
            let shop = json!({"mode": "enforce", "policy": policy, "control": {"name": "fixed"}});
            let services = json!({"shop": shop});
            Some(Gated { services, routes: by_priority(), queue, told: nobody })
        }
    }
}

fn by_priority() -> Value {
    let route = |client: Client| json!({"host": client.host(), "service": "shop", "priority": client.priority()});
    json!([route(Client::Uncontrolled), route(Client::High), route(Client::Low),
           {"service": "shop", "priority": 7}])
}

/// The own proxy as it is where the gate limits nothing.
pub(super) fn open() -> Gated {
    Gated {
        services: json!({"open": {"mode": "shadow"}}),
        routes: json!([{"service": "open"}]),
        queue: None,
        told: Told::Nobody,
    }
}

/// SYNs that were dropped, by a status of tidegate at the interface.
pub(super) fn dropped(status: &Value) -> f64 {
    let counts = status.pointer("/services/0/counts").and_then(Value::as_array);
    let refused = |count: &&Value| count["verdict"] == "drop" && count["shadow"] != true;
    counts.map_or(f64::NAN, |all| {
        all.iter().filter(refused).filter_map(|count| count["count"].as_f64()).sum()
    })
}
