// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The `lab` section of a scenario.

use serde::Deserialize;

/// What only the lab needs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lab {}
