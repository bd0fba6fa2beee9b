// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting of the experiments on dual admission control, for both worlds: load, controllers,
//! rules, interface. The defaults are those of section 3 of the paper.
//!
//! Rates that the paper gives absolutely (1000/s at the start, at least 10/s a rule, gains) are
//! kept in its unit, at a server that answers [`Setting::paper_capacity`] requests with 20 %
//! dynamic ones; a world whose server has another capacity scales them by it.

use crate::setting::within;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tidegate_workload::{Process, SurgeSpec};

/// Most pieces of a load.
const STEPS_MAX: usize = 100;

/// What is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Nothing.
    None,
    /// The paper's: P on the CPU, PD on the interface queue, PD on the listen queue.
    Paper,
    /// Ours: what tidegate does when nobody configures a controller.
    Default,
}

/// What a load of 1 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// The capacity of the server with this mix of requests.
    Mix,
    /// Its capacity with the same requests, none of them dynamic.
    Static,
}

/// A request rule with a bucket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// `/cgi-bin/`, for the CPU.
    Cgi,
    /// `/islarge/`, for the outgoing interface.
    Large,
    /// `/`, for the CPU: everything that no other rule is for.
    Any,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setting {
    /// Offered SURGE requests, in multiples of `unit`.
    pub load: f64,
    /// What a load of 1 is.
    pub unit: Unit,
    /// Instead of one load: pieces of (seconds, load), measured after the first `warm_s` of them.
    pub steps: Vec<(f64, f64)>,
    /// How arrivals are spread.
    pub arrivals: Process,
    /// Share of the requests for small files that are dynamic.
    pub dynamic: f64,
    /// The files; its `dynamic` is not looked at.
    pub files: SurgeSpec,
    /// What is in force.
    pub control: Control,
    /// Whether the paper's SYN controller is held for ever when its queue is empty, as printed;
    /// else it is the one that we ship.
    pub published_hold: bool,
    /// Which request rules there are.
    pub rules: Vec<Rule>,
    /// Bucket of SYN policing, in SYNs.
    pub burst_syn: u32,
    /// Buckets of the request rules, in requests.
    pub burst_header: u32,
    /// Reference of the CPU.
    pub cpu_reference: f64,
    /// The rate of SYN policing at the start, per second of the paper.
    pub syn_start: f64,
    /// Rates of the request rules at the start, per second of the paper.
    pub header_start: f64,
    /// Least rate of a request rule, per second of the paper.
    pub minimum: f64,
    /// Capacity of the paper's server with 20 % dynamic requests, per second.
    pub paper_capacity: f64,
    /// Share of the outgoing interface that the SURGE load takes (payload, at `load`); 0: the
    /// interface is no bottleneck.
    pub interface_share: f64,
    /// Packets that its queue holds.
    pub interface_queue: u32,
    /// Requests for one large file beside the SURGE load: the share of the interface that they
    /// ask for (payload).
    pub large_load: f64,
    /// Size of that file in bytes.
    pub large_size: u64,
    /// A client gives up if it is not connected after so long (seconds; as the paper's traffic
    /// generator); 0: it tries on until `timeout_s`.
    pub connect_timeout_s: f64,
    /// A client gives up after so long, from its intended start (seconds).
    pub timeout_s: f64,
    /// Half the load grows to the load in so long, before everything else (seconds): nobody is
    /// taken by surprise. Not with `steps`.
    pub ramp_s: f64,
    /// The load is measured from here, after the ramp (seconds).
    pub warm_s: f64,
    /// And for so long (seconds); with `steps`, their sum counts.
    pub seconds: f64,
    /// Requests of a session; 1: no sessions. All but the first carry a cookie.
    pub session_requests: u32,
    /// Pause between an answer and the session's next request (seconds).
    pub think_s: f64,
    /// Whether the rules refuse requests with a session's cookie last.
    pub protect: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            load: 1.0,
            unit: Unit::Mix,
            steps: Vec::new(),
            arrivals: Process::Constant,
            dynamic: 0.2,
            files: SurgeSpec::default(),
            control: Control::None,
            published_hold: true,
            rules: vec![Rule::Cgi],
            burst_syn: 20,
            burst_header: 5,
            cpu_reference: 0.9,
            syn_start: 1000.0,
            header_start: 75.0,
            minimum: 10.0,
            paper_capacity: 375.0,
            interface_share: 0.0,
            interface_queue: 100,
            large_load: 0.0,
            large_size: 142_000,
            connect_timeout_s: 0.5,
            timeout_s: 10.0,
            ramp_s: 0.0,
            warm_s: 60.0,
            seconds: 120.0,
            session_requests: 1,
            think_s: 1.0,
            protect: false,
        }
    }
}

impl Setting {
    /// Seconds from the beginning of a run from which on it is measured.
    #[must_use]
    pub fn measured_from(&self) -> f64 {
        if self.steps.is_empty() { self.ramp_s + self.warm_s } else { self.warm_s }
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// Names the first key that is out of its range.
    pub fn check(&self) -> Result<()> {
        within("load", self.load, (0.0, 100.0))?;
        for (seconds, load) in &self.steps {
            within("steps: seconds", *seconds, (0.0, 1e5))?;
            within("steps: load", *load, (0.0, 100.0))?;
        }
        ensure!(self.steps.len() <= STEPS_MAX, "steps: at most {STEPS_MAX}");
        let whole: f64 = self.steps.iter().map(|(seconds, _)| seconds).sum();
        ensure!(
            self.steps.is_empty() || self.warm_s < whole,
            "steps: nothing is left to measure after warm_s"
        );
        within("dynamic", self.dynamic, (0.0, 1.0))?;
        within("cpu_reference", self.cpu_reference, (0.01, 1.0))?;
        within("syn_start", self.syn_start, (1.0, 1e9))?;
        within("header_start", self.header_start, (1.0, 1e9))?;
        within("minimum", self.minimum, (1.0, 1e9))?;
        within("paper_capacity", self.paper_capacity, (1.0, 1e9))?;
        within("interface_share", self.interface_share, (0.0, 10.0))?;
        within("large_load", self.large_load, (0.0, 10.0))?;
        ensure!(
            self.large_load <= 0.0 || self.interface_share > 0.0,
            "large_load is a share of the interface: interface_share must be set"
        );
        within("connect_timeout_s", self.connect_timeout_s, (0.0, 1e3))?;
        within("timeout_s", self.timeout_s, (0.1, 1e3))?;
        within("ramp_s", self.ramp_s, (0.0, 1e5))?;
        within("warm_s", self.warm_s, (0.0, 1e5))?;
        within("seconds", self.seconds, (1.0, 1e5))?;
        within("session_requests", f64::from(self.session_requests), (1.0, 100.0))?;
        within("think_s", self.think_s, (0.0, 1e3))?;
        within("burst_syn", f64::from(self.burst_syn), (1.0, 1e6))?;
        within("burst_header", f64::from(self.burst_header), (1.0, 1e6))?;
        within("interface_queue", f64::from(self.interface_queue), (1.0, 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::merged;
    use serde_json::{Value, json};

    #[test]
    fn later_changes_win_and_strangers_are_refused() {
        let changes = |value: Value| value.as_object().cloned().unwrap();
        let base = changes(json!({"load": 2, "control": "paper"}));
        let point = changes(json!({"load": 3, "steps": [[50, 0.8], [20, 2.2]]}));
        let setting: Setting = merged(&[&base, &point]).unwrap();
        assert_eq!((setting.load, setting.control), (3.0, Control::Paper));
        assert!(setting.check().is_ok());
        assert!(merged::<Setting>(&[&changes(json!({"laod": 1}))]).is_err());
        let bad: Setting = merged(&[&changes(json!({"dynamic": 2}))]).unwrap();
        assert!(bad.check().unwrap_err().to_string().contains("dynamic"));
    }
}
