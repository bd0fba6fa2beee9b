// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One daemon for one set of pins: two with different control sockets would not know of each
//! other and fight over the limits. The lock is on the directory of the pins and ends with the
//! process, however that ends.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// How long a predecessor that said goodbye may take to end.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
/// How often it is looked for.
const PAUSE: Duration = Duration::from_millis(20);

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _directory: OwnedFd,
}

impl Lock {
    /// Takes the lock; `None` if somebody has it.
    ///
    /// # Errors
    /// When the directory cannot be opened, for example because it does not exist yet.
    pub(crate) fn take(pins: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(pins, flags, Mode::empty())?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _directory: directory })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether somebody has it; nobody has one that is not there.
    pub(crate) fn is_taken(pins: &Path) -> bool {
        matches!(Self::take(pins), Ok(None))
    }

    /// Takes the lock from a predecessor that is ending.
    pub(crate) async fn inherit(pins: &Path) -> io::Result<Option<Self>> {
        for _ in 0..GOODBYE_MAX.as_millis() / PAUSE.as_millis() {
            if let Some(lock) = Self::take(pins)? {
                return Ok(Some(lock));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!Lock::is_taken(&dir.path().join("nothing")));
        let lock = Lock::take(dir.path()).unwrap();
        assert!(lock.is_some() && Lock::is_taken(dir.path()));
        drop(lock);
        assert!(!Lock::is_taken(dir.path()));
    }
}
