// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file itself: bounded, UTF-8, read once.

use super::error::{ConfigError, ConfigErrors, Place};
use super::shape::Places;
use super::types::Config;
use super::{Registry, parse_located};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest configuration file, in bytes.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;

/// A configuration file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Its path.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It is wrong.
    #[error("{0}")]
    Invalid(#[from] ConfigErrors),
}

/// Reads, parses and checks a file.
///
/// # Errors
/// When it cannot be read, and every fault that [`super::parse`] finds.
pub fn load(path: &Path, registry: &Registry) -> Result<Config, LoadError> {
    load_located(path, registry).map(|(config, _)| config)
}

/// [`load`], and the places of all keys.
///
/// # Errors
/// As [`load`].
pub fn load_located(path: &Path, registry: &Registry) -> Result<(Config, Places), LoadError> {
    let name = path.display().to_string();
    let bytes = read(path).map_err(|source| LoadError::Read { path: name.clone(), source })?;
    let parsed = as_text(&bytes).and_then(|text| parse_located(text, registry));
    parsed.map_err(|errors| LoadError::Invalid(errors.in_file(name)))
}

/// One byte more than allowed is enough to know that it is too long.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(CONFIG_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes as text.
pub(super) fn as_text(bytes: &[u8]) -> Result<&str, ConfigErrors> {
    std::str::from_utf8(bytes).map_err(|e| {
        let before = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let found = bytes.get(e.valid_up_to()).copied().unwrap_or_default();
        let message = format!("found the byte {found:#04x}; the file must be UTF-8 text");
        ConfigError::new(Place { line, column }, "", message).into()
    })
}
