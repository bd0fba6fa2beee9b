// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is wrong with a configuration, and where.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Most errors that are kept of one file: more help nobody.
pub const ERRORS_MAX: usize = 100;
/// Longest piece of the file that a message repeats, in characters.
const SHOWN_MAX: usize = 60;

/// A place in the file; lines and columns count from 1, 0 is the file as a whole.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigError {
    /// Where.
    pub place: Place,
    /// The path of keys, such as `services.shop.mode`; empty for the file as a whole.
    pub path: String,
    /// What was found, what is wrong with it, what is allowed.
    pub message: String,
}

impl ConfigError {
    /// A fault at a place.
    pub fn new(place: Place, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place, path: path.into(), message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.line > 0 {
            write!(f, "{}:{}: ", self.place.line, self.place.column)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All faults that were found, in the order of the file; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigErrors {
    /// Name of the file, for people; empty when it was never in one.
    pub file: String,
    /// The faults.
    pub errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// These faults, in the order of the file, at most [`ERRORS_MAX`].
    #[must_use]
    pub fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by_key(|e| e.place);
        errors.truncate(ERRORS_MAX);
        Self { file: String::new(), errors }
    }

    /// The same, in a file of this name.
    #[must_use]
    pub fn in_file(mut self, file: impl Into<String>) -> Self {
        self.file = file.into();
        self
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self::new(vec![error])
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            match (self.file.is_empty(), error.place.line) {
                (true, _) => write!(f, "{error}")?,
                (false, 0) => write!(f, "{}: {error}", self.file)?,
                (false, _) => write!(f, "{}:{error}", self.file)?,
            }
        }
        Ok(())
    }
}

/// One step of a path: a plain key as it is, any other quoted, so that no key can steer a terminal.
pub(super) fn step(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !key.is_empty() && key.len() <= SHOWN_MAX && key.chars().all(plain) {
        key.to_owned()
    } else {
        quoted(key)
    }
}

/// A piece of the file as a message shows it: quoted, escaped, and not too long.
pub(super) fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN_MAX).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{shown:?}{more}")
}
