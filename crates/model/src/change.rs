// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One difference between two configurations, as it is shown.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The path of keys, such as `services.shop.mode`.
    pub path: String,
    /// The value before; `None` if it is new.
    pub before: Option<String>,
    /// The value after; `None` if it is gone.
    pub after: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "~ {path}: {before} -> {after}"),
            (None, Some(after)) => write!(f, "+ {path}: {after}"),
            (Some(before), None) => write!(f, "- {path}: {before}"),
            (None, None) => write!(f, "  {path}"),
        }
    }
}
