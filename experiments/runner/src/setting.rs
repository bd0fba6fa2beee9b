// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What experiments have in common whose points are settings: keys with defaults, changes to them, and
//! how they are run in virtual time.

use anyhow::{Result, ensure};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Keys and values that differ from the defaults.
pub type Changes = Map<String, Value>;

/// How to run in virtual time.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the experiment, for the rows.
    pub experiment: String,
    /// Whether the quick number of runs and points is enough.
    pub quick: bool,
    /// Seed.
    pub seed: u64,
    /// Threads; 0: one a core. The result does not depend on them.
    pub threads: usize,
}

/// The defaults with changes, the later ones first in force.
///
/// # Errors
/// For keys that there are not and values that do not fit.
pub fn merged<T: DeserializeOwned>(changes: &[&Changes]) -> Result<T, serde_json::Error> {
    let mut all = Changes::new();
    for change in changes {
        all.extend(change.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    serde_json::from_value(Value::Object(all))
}

/// Whether a value of a setting is in its range, ends included.
///
/// # Errors
/// Names the key, if it is not.
pub fn within(name: &str, value: f64, (low, high): (f64, f64)) -> Result<()> {
    ensure!((low..=high).contains(&value), "{name} is {value}, from {low} to {high} wanted");
    Ok(())
}
