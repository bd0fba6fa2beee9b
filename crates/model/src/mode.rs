// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mode of a service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether refusals are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Verdicts are computed and counted, and not executed.
    Shadow,
    /// Refusals are executed.
    Enforce,
}

impl Mode {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Enforce => "enforce",
        }
    }
}
