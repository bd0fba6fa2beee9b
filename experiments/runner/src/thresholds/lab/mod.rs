// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same experiments on a real Apache behind real proxies.
//!
//! ```text
//!  clients, CPU 1 ── rt ──┬─ hook of the server's tidegate (drop, combined)
//!                         └─► proxy :8000, CPU 1 ─► Apache :8080, CPU 0: 253 wait, the rest "too busy"
//!                               │ gate: gap              │ monitor: onset, abatement
//!                               └◄─ feedback ────────────┴─► by UDP to clients that add a gap
//! ```
//!
//! A second of the paper is 45 / C seconds here, so that loads, gaps and times are those of the paper in
//! units of a request's work; results are in the paper's units. C is measured before each run, and
//! the loads of that run follow it ([decision 38](../../../../../docs/decisions/0038-thresholds-in-the-lab.md)).

mod bench;
mod feedback;
mod load;
mod product;
mod rows;
mod run;

pub use run::{Options, run};

use super::setting::{Control, Setting, Throttle};
use crate::setting::Changes;
use anyhow::{Result, ensure};
use serde::Deserialize;

/// The lab's server serves so many times as many requests per second as the paper's, as near as its
/// work can be set: then the kernel's first retransmission, after 1 s, is the paper's, after 1.5 s.
pub(super) const FASTER: f64 = 1.5;

/// The `lab` section of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lab {
    /// What is compared.
    pub variants: Vec<LabVariant>,
    /// Values of x instead of the scenario's; empty for those.
    #[serde(default)]
    pub at: Vec<f64>,
    /// Rounds of a full run.
    pub rounds: u32,
    /// Minutes after which a full run begins no other run.
    pub minutes: f64,
    /// Seconds of the paper from the start of the controlled clients to the measured part, and its
    /// length.
    pub warm_s: f64,
    /// See `warm_s`.
    pub seconds: f64,
    /// The same in a quick run, which has one round.
    pub quick: Quick,
}

/// How much a quick run makes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    /// Values of x.
    pub at: Vec<f64>,
    /// Variants.
    pub variants: Vec<String>,
    /// See [`Lab::warm_s`].
    pub warm_s: f64,
    /// See [`Lab::seconds`].
    pub seconds: f64,
}

/// One of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabVariant {
    /// Its name.
    pub name: String,
    /// Which proxy stands before the server.
    #[serde(default)]
    pub proxy: Proxy,
    /// What the gate does beside, or instead of, the setting's control.
    #[serde(default)]
    pub gate: Gating,
    /// Values of x; empty for all.
    #[serde(default)]
    pub at: Vec<f64>,
    /// Keys of the setting that differ.
    #[serde(default)]
    pub set: Changes,
}

/// Which proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proxy {
    /// tidegate's own: who is early waits.
    #[default]
    Own,
    /// Envoy, by gRPC: who is early is refused.
    Envoy,
    /// HAProxy, by SPOE: the same.
    Haproxy,
}

/// What the gate does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gating {
    /// What the setting says: with `gap-minimum` it keeps the gap while the server's monitor says so.
    #[default]
    Feedback,
    /// The same by remote limits: the server's tidegate gives the gate the rate of the gap while the
    /// monitor says so, and the policy `gap` keeps it.
    Remote,
    /// The default policy and controller, with three priorities.
    Default,
    /// The policy `threshold` with a discard threshold for each priority.
    Discard,
}

impl Lab {
    /// The values of x at which a variant is run.
    pub(super) fn points<'a>(&'a self, usual: &'a [f64], quick: bool) -> &'a [f64] {
        match (quick, self.at.is_empty()) {
            (true, _) => &self.quick.at,
            (false, true) => usual,
            (false, false) => &self.at,
        }
    }

    fn runs(&self, variant: &LabVariant, x: f64, quick: bool) -> bool {
        let named = !quick || self.quick.variants.contains(&variant.name);
        named && (variant.at.is_empty() || variant.at.iter().any(|at| (at - x).abs() < 1e-9))
    }

    /// Whether the section can be run.
    ///
    /// # Errors
    /// Names what contradicts itself.
    pub(super) fn check(&self) -> Result<()> {
        let rounds = f64::from(self.rounds);
        crate::setting::within("lab.rounds", rounds, (1.0, 100.0))?;
        crate::setting::within("lab.minutes", self.minutes, (1.0, 600.0))?;
        for (name, value) in [("warm_s", self.warm_s), ("quick.warm_s", self.quick.warm_s)] {
            crate::setting::within(name, value, (1.0, 600.0))?;
        }
        for (name, value) in [("seconds", self.seconds), ("quick.seconds", self.quick.seconds)] {
            crate::setting::within(name, value, (5.0, 600.0))?;
        }
        for name in &self.quick.variants {
            let known = self.variants.iter().any(|variant| variant.name == *name);
            ensure!(known, "lab.quick.variants: {name} is no variant");
        }
        Ok(())
    }
}

impl LabVariant {
    /// A server that nobody protects, behind tidegate's own proxy.
    fn plain() -> Self {
        let (proxy, gate) = (Proxy::Own, Gating::Feedback);
        Self { name: "none".into(), proxy, gate, at: Vec::new(), set: Changes::new() }
    }

    /// Whether the lab can run this setting.
    ///
    /// # Errors
    /// Names what it has not.
    pub(super) fn check(&self, setting: &Setting) -> Result<()> {
        let name = &self.name;
        let clients = setting.controlled_clients();
        ensure!(clients < u32::from(load::PREFIXES), "{name}: {clients} controlled clients");
        ensure!(setting.monitor_s <= 0.0, "{name}: the lab's monitor has a period of its own");
        let plain = setting.severities.len() == 1 && setting.shared_node;
        ensure!(plain, "{name}: the lab has one severity and one control node");
        let throttles = matches!(setting.control, Control::Throttle | Control::Combined);
        let node = throttles && setting.throttle == Throttle::GapMinimum;
        let added = throttles && setting.throttle == Throttle::GapAdded;
        ensure!(!throttles || node || added, "{name}: the lab has gaps only");
        ensure!(!(node && setting.priorities), "{name}: one gap for two ladders");
        let fits = match self.gate {
            Gating::Feedback => true,
            Gating::Remote => node && setting.control == Control::Throttle,
            Gating::Default | Gating::Discard => setting.control == Control::None,
        };
        ensure!(fits, "{name}: the gate has one policy, and the server one tidegate");
        Ok(())
    }
}
