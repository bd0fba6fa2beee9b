// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A setting as a configuration of tidegate.

use super::{Answer, Lab, SynAction};
use crate::dual::{Control, Rule, Setting};
use serde_json::{Map, Value, json};
use tidegate_lab::ProductConfig;

/// The cookie of an ongoing session.
pub(super) const SESSION_COOKIE: &str = "session";
/// K_P of the paper's controllers: CPU, queues; K_D of queues (section 3, "Parameter settings").
const GAIN_CPU: f64 = 0.2;
const GAIN_QUEUE: f64 = 1.0 / 16.0;
const DERIVATIVE_GAIN: f64 = 0.25;
/// Reference of the interface queue, as a share of its length: 35 of 100.
const INTERFACE_REFERENCE: f64 = 0.35;
/// Reference of the listen queue, in connections.
const LISTEN_QUEUE: u32 = 100;

/// How much larger the server is, and how much faster its interface, than the paper's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) server: f64,
    pub(super) interface: f64,
}

/// The configuration; none where nothing is in force.
pub(super) fn config(setting: &Setting, lab: &Lab, scale: Scale) -> Option<ProductConfig> {
    let action = match lab.syn_action {
        SynAction::Drop => "drop",
        SynAction::Reject => "reject",
    };
    let control = match setting.control {
        Control::None => return None,
        Control::Default => json!({"name": "default"}),
        Control::Paper => json!({
            "name": "syn",
            "rate": rate(setting.syn_start * scale.server),
            "burst": setting.burst_syn,
            "accept_queue": LISTEN_QUEUE,
            "cpu": setting.cpu_reference,
            "gain": GAIN_QUEUE * scale.server,
            "derivative_gain": DERIVATIVE_GAIN * scale.server,
            "variant": variant(setting),
        }),
    };
    let mut web = json!({
        "mode": "enforce",
        "listen": ["*:80"],
        "policy": {"name": "token_bucket", "action": action},
        "control": control,
    });
    if !setting.rules.is_empty() {
        web["requests"] = requests(setting, lab, scale);
    }
    Some(ProductConfig { services: json!({"web": web}), ..ProductConfig::one("web", &[]) })
}

/// As published, or as we ship them.
const fn variant(setting: &Setting) -> &'static str {
    if setting.published_hold { "published" } else { "released" }
}

fn rate(per_second: f64) -> String {
    format!("{:.3}/s", per_second.max(1.0))
}

fn requests(setting: &Setting, lab: &Lab, scale: Scale) -> Value {
    let mut buckets = Map::new();
    let mut rules = Vec::new();
    let answer = match lab.answer {
        Answer::Busy => "503",
        Answer::Reset => "reset",
    };
    for rule in &setting.rules {
        let (name, path, resource, scale) = match rule {
            Rule::Cgi => ("cgi", "/cgi-bin/", "cpu", scale.server),
            Rule::Large => ("large", "/islarge/", "bandwidth", scale.interface),
            Rule::Any => ("any", "/", "cpu", scale.server),
        };
        buckets.insert(
            name.to_owned(),
            json!({
                "resource": resource,
                "min_rate": rate(setting.minimum * scale),
                "burst": setting.burst_header,
                "control": bucket_control(*rule, setting, scale),
            }),
        );
        let mut line = json!({"path": path, "bucket": name, "action": answer});
        if setting.protect {
            line["protect"] = json!([{"name": SESSION_COOKIE}]);
            line["close_persistent"] = json!(true);
        }
        rules.push(line);
    }
    let published = setting.control == Control::Paper && setting.published_hold;
    // In the paper both work side by side, always.
    let syn_policing = if published { "always" } else { "last-resort" };
    json!({"buckets": buckets, "rules": rules, "syn_policing": syn_policing})
}

fn bucket_control(rule: Rule, setting: &Setting, scale: f64) -> Value {
    let start = rate(setting.header_start * scale);
    match (setting.control, rule) {
        (Control::Paper, Rule::Cgi | Rule::Any) => json!({
            "name": "p", "rate": start, "reference": setting.cpu_reference, "gain": GAIN_CPU * scale,
            "variant": variant(setting),
        }),
        (Control::Paper, Rule::Large) => json!({
            "name": "pd", "rate": start, "reference": INTERFACE_REFERENCE,
            "gain": GAIN_QUEUE * scale, "derivative_gain": DERIVATIVE_GAIN * scale,
            "variant": variant(setting),
        }),
        (Control::None | Control::Default, _) => json!({"name": "default"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing in force needs no tidegate; the paper's figures are scaled; protection names the
    /// cookie that the load's sessions carry.
    #[test]
    fn settings_become_configurations() {
        let setting = |control| Setting { control, ..Setting::default() };
        let (lab, same) = (Lab::default(), Scale { server: 1.0, interface: 1.0 });
        let twice = Scale { server: 2.0, interface: 3.0 };
        assert!(config(&setting(Control::None), &lab, same).is_none());
        let paper = config(&setting(Control::Paper), &lab, twice).unwrap().services;
        let requests = &paper["web"]["requests"];
        let syn = &paper["web"]["control"];
        assert_eq!((&syn["rate"], &syn["gain"]), (&json!("2000.000/s"), &json!(0.125)));
        assert_eq!((&syn["derivative_gain"], &syn["variant"]), (&json!(0.5), &json!("published")));
        assert_eq!(requests["buckets"]["cgi"]["min_rate"], "20.000/s");
        assert_eq!(requests["buckets"]["cgi"]["control"]["gain"], 0.4);
        assert_eq!(requests["buckets"]["cgi"]["control"]["variant"], "published");
        assert_eq!(requests["syn_policing"], "always");
        let shipped = Setting { published_hold: false, ..setting(Control::Paper) };
        let shipped = config(&shipped, &lab, twice).unwrap().services["web"].clone();
        assert_eq!(shipped["control"]["variant"], "released");
        assert_eq!(shipped["requests"]["syn_policing"], "last-resort");
        assert_eq!(requests["rules"][0]["action"], "503");
        let large = Setting { rules: vec![Rule::Large], ..setting(Control::Paper) };
        let services = config(&large, &lab, twice).unwrap().services;
        let bucket = &services["web"]["requests"]["buckets"]["large"];
        assert_eq!(bucket["min_rate"], "30.000/s", "as the interface");
        let both = Setting {
            protect: true,
            rules: vec![Rule::Cgi, Rule::Large],
            ..setting(Control::Default)
        };
        let services = config(&both, &lab, same).unwrap().services;
        let rules = &services["web"]["requests"]["rules"];
        assert_eq!(rules[1]["path"], "/islarge/");
        assert_eq!(rules[1]["protect"][0]["name"], SESSION_COOKIE);
        let bare = Setting { rules: vec![], ..setting(Control::Default) };
        assert!(config(&bare, &lab, same).unwrap().services["web"].get("requests").is_none());
    }
}
