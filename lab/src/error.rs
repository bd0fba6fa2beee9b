// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong in the lab; every message names the step and what the system said.

use std::io;

/// Why the lab could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program that builds or serves the lab ended badly.
    #[error("{what}: {status}: {said}")]
    Command {
        /// The command line.
        what: String,
        /// How it ended.
        status: String,
        /// What it wrote, shortened.
        said: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// Something did not happen in time.
    #[error("{what}: not within {limit_s} s{said}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in seconds.
        limit_s: f64,
        /// The last lines of the log concerned, or nothing.
        said: String,
    },
    /// The machine lacks what is needed.
    #[error("missing: {0}")]
    Missing(String),
    /// A plan, a phase or an option contradicts itself.
    #[error("wrong plan: {0}")]
    Plan(String),
    /// A process of the load generator failed.
    #[error("load generator: {0}")]
    Load(String),
    /// The product did not behave as a process should.
    #[error("product: {0}")]
    Product(String),
}

impl LabError {
    /// For `map_err`: wraps an I/O error with what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The lab's result type.
pub type Result<T> = std::result::Result<T, LabError>;
