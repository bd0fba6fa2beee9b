// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate detach`: detaches what daemons left. Not beside one that runs: it would put its hooks on
//! again.

use crate::lock::Lock;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_bpf::{Error, Removal, Whose, remove_all};
use tidegate_units::{Clock, MonotonicClock};

/// Why nothing was detached.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    /// A daemon is in charge of the pins.
    #[error("a daemon is in charge of the pins at {}; stop it first (systemctl stop tidegate)", .0.display())]
    InCharge(PathBuf),
    /// The pins cannot be looked at.
    #[error("the pins at {}: {source}", path.display())]
    Pins {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not say what is there.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// Detaches everything that belongs to the pins, and with `orphans` also what belongs to nobody; with
/// `look_only` it is only said.
///
/// # Errors
/// When somebody is in charge, or nothing can be found out; then nothing was changed.
pub fn detach(pins: &Path, orphans: bool, look_only: bool) -> Result<Removal, DetachError> {
    let path = || pins.to_path_buf();
    let _lock = match Lock::take(pins) {
        Ok(Some(lock)) => Some(lock),
        Ok(None) => return Err(DetachError::InCharge(path())),
        // Nothing is pinned there: filters may be left all the same.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(DetachError::Pins { path: path(), source }),
    };
    let whose = if orphans { Whose::Orphans } else { Whose::Pins };
    Ok(remove_all(pins, (whose, MonotonicClock.now()), look_only)?)
}
