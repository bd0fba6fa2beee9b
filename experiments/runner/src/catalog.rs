// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments that this binary carries: claim, scenario and expectation of each.

/// An experiment folder as embedded at build time.
pub(crate) struct Embedded {
    pub(crate) name: &'static str,
    pub(crate) claim: &'static str,
    pub(crate) scenario: &'static str,
    pub(crate) expect: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// `product/survival`, `abacus/fig8` …
    pub name: &'static str,
    /// claim.md.
    pub claim: &'static str,
    /// scenario.yaml.
    pub scenario: &'static str,
    /// expect.yaml.
    pub expect: &'static str,
}

impl Experiment {
    /// The first line of its claim, without the heading mark.
    #[must_use]
    pub fn title(&self) -> &'static str {
        self.claim.lines().next().unwrap_or("").trim_start_matches(['#', ' '])
    }
}

/// All experiments, by name.
pub fn all() -> impl Iterator<Item = Experiment> {
    EMBEDDED.iter().map(|e| Experiment {
        name: e.name,
        claim: e.claim,
        scenario: e.scenario,
        expect: e.expect,
    })
}

/// The experiment with this name.
///
/// # Errors
/// Names the experiments that there are.
pub fn find(name: &str) -> Result<Experiment, NoSuchExperiment> {
    all().find(|e| e.name == name).ok_or_else(|| NoSuchExperiment {
        name: name.to_string(),
        known: all().map(|e| e.name).collect::<Vec<_>>().join(", "),
    })
}

/// There is no experiment with this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no experiment {name:?}; there are: {known}")]
pub struct NoSuchExperiment {
    name: String,
    known: String,
}
