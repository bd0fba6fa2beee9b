// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments on a real Apache: SURGE's files, tidegate as a process or nothing, loads that
//! scale with the capacity measured beside them.
//!
//! ```text
//!  each round:   C ─ x₁: none ─ C ─ control ─ C ─ default ─ C ─ x₂: control ─ C ─ default ─ C …
//!  each run:     fresh Apache, fresh tidegate, the same requests at the same times
//! ```
//!
//! Each run lies between two measurements of the capacity, which it is compared with; where that
//! drifts by more than [`Lab::drift_max`] the run is made again, up to [`Lab::tries`] times; the
//! steadiest is kept, and its `drift` with it. All variants of one x have the loads of the capacity
//! before the first. A run's rates, gains and minimum are those of the paper times C / 375 (with
//! 20 % dynamic requests), because they belong to a server's size; those of large files times what
//! the interface carries over 100 Mbit/s.

mod bench;
mod onset;
mod pairs;
mod plan;
mod product;
mod rows;
mod run;

pub(super) use pairs::check;
pub use run::{Options, run};

use crate::abacus::Variant;
use crate::setting::Changes;
use serde::Deserialize;

/// The `lab` section of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lab {
    /// Rounds of a full run: each makes every point of every variant once, or one search for the onset,
    /// or one pair at each load.
    pub rounds: u32,
    /// Rounds of a quick one.
    pub quick_rounds: u32,
    /// Values of x instead of the scenario's; empty for those.
    pub at: Vec<f64>,
    /// Values of x in a quick run instead of the scenario's; empty for those.
    pub quick: Vec<f64>,
    /// Changes to the setting that only the lab makes.
    pub set: Changes,
    /// The scenario's variants that are run; empty for all.
    pub variants: Vec<String>,
    /// The search for the onset instead of the scenario's: a run here takes as long as it says.
    pub onset: Option<super::Onset>,
    /// The same in a quick run.
    pub quick_onset: Option<super::Onset>,
    /// Loads at which two x are compared in pairs of runs instead of a search for the onset; empty for
    /// the search.
    pub pairs: Vec<f64>,
    /// How long the load grows before everything else (seconds), instead of the setting's.
    pub ramp_s: Option<f64>,
    /// Seconds before the measured part, and its length, instead of the setting's.
    pub warm_s: Option<f64>,
    /// See `warm_s`.
    pub seconds: Option<f64>,
    /// The same in a quick run.
    pub quick_warm_s: f64,
    /// See `quick_warm_s`.
    pub quick_seconds: f64,
    /// In a quick run all pieces of a load with steps are shorter by this factor.
    pub quick_steps: f64,
    /// Largest drift of the capacity from before to after a run; with more it is made again.
    pub drift_max: f64,
    /// How often, before the steadiest of these is kept and its drift said.
    pub tries: u32,
    /// Windows of one second of a measurement of the capacity.
    pub windows: u32,
    /// Clients of that closed loop; without it they are searched once.
    pub clients: Option<u32>,
    /// Whether Apache starts programs through a daemon (mod_cgid) instead of by its own fork.
    pub cgi_daemon: bool,
    /// CPU time of a dynamic request beyond its start, in milliseconds.
    pub cgi_ms: f64,
    /// Hashes that every request costs Apache: CPU time of files. The paper's server answered 1.6
    /// times as many requests when none was dynamic; without them today's answers 3 to 4 times as
    /// many.
    pub checks: u32,
    /// CPU time that every request costs Apache besides, in milliseconds by the process's clock.
    /// Unlike `checks` it hardly depends on how fast the machine is at the moment.
    pub work_ms: f64,
    /// The server gets this share of its CPU.
    pub cpu_share: Option<f64>,
    /// `MaxRequestWorkers`.
    pub workers: u32,
    /// `ListenBacklog`.
    pub backlog: u32,
    /// Whether sessions keep their connections.
    pub keep_alive: bool,
    /// What tidegate does with the SYNs that it refuses.
    pub syn_action: SynAction,
    /// How it answers refused requests.
    pub answer: Answer,
}

/// What becomes of a refused SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SynAction {
    /// Silently, as in the paper: the client waits and tries again, or gives up.
    Drop,
    /// RST.
    Reject,
}

/// What becomes of a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Answer {
    /// A complete 503.
    #[serde(rename = "503")]
    Busy,
    /// RST, as in the paper.
    #[serde(rename = "reset")]
    Reset,
}

impl Default for Lab {
    fn default() -> Self {
        Self {
            rounds: 3,
            quick_rounds: 1,
            at: Vec::new(),
            quick: Vec::new(),
            set: Changes::new(),
            variants: Vec::new(),
            onset: None,
            quick_onset: None,
            pairs: Vec::new(),
            ramp_s: None,
            warm_s: None,
            seconds: None,
            quick_warm_s: 5.0,
            quick_seconds: 6.0,
            quick_steps: 0.2,
            drift_max: crate::judge::DRIFT_MAX,
            tries: 3,
            windows: 10,
            clients: None,
            cgi_daemon: false,
            cgi_ms: 0.0,
            checks: 0,
            work_ms: 0.0,
            cpu_share: None,
            workers: 150,
            backlog: 1024,
            keep_alive: false,
            syn_action: SynAction::Drop,
            answer: Answer::Busy,
        }
    }
}

impl Lab {
    /// Rounds.
    #[must_use]
    pub fn rounds(&self, quick: bool) -> u32 {
        if quick { self.quick_rounds.max(1) } else { self.rounds.max(1) }
    }

    /// Whether a variant of the scenario is run.
    fn runs(&self, variant: &Variant) -> bool {
        self.variants.is_empty() || self.variants.contains(&variant.name)
    }

    /// The part of a run that is measured: from and to, in seconds since its start.
    fn span(&self, setting: &super::Setting, quick: bool) -> (f64, f64) {
        if !setting.steps.is_empty() {
            let whole: f64 = setting.steps.iter().map(|(seconds, _)| seconds).sum();
            let shorter = self.shorter(quick);
            return (setting.warm_s * shorter, whole * shorter);
        }
        if quick {
            return (self.quick_warm_s, self.quick_warm_s + self.quick_seconds);
        }
        let from = self.ramp(setting, quick) + self.warm_s.unwrap_or(setting.warm_s);
        (from, from + self.seconds.unwrap_or(setting.seconds))
    }

    /// How long the load grows before everything else; a quick run has no time for it.
    fn ramp(&self, setting: &super::Setting, quick: bool) -> f64 {
        if quick || !setting.steps.is_empty() {
            return 0.0;
        }
        self.ramp_s.unwrap_or(setting.ramp_s)
    }

    /// By how much the pieces of a load with steps are shorter.
    fn shorter(&self, quick: bool) -> f64 {
        if quick { self.quick_steps } else { 1.0 }
    }
}
