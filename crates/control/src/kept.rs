// SPDX-License-Identifier: Apache-2.0 OR MIT
//! State of the process before is validated like input from outside.

use serde_json::Value;

/// A number of `value` within these bounds.
pub(crate) fn number(value: &Value, name: &str, bounds: (f64, f64)) -> Option<f64> {
    within(value.get(name)?, bounds)
}

/// The number that this is, if it is one within these bounds.
pub(crate) fn within(value: &Value, (least, most): (f64, f64)) -> Option<f64> {
    value.as_f64().filter(|n| n.is_finite() && *n >= least && *n <= most)
}
