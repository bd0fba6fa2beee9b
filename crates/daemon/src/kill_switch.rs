// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kill switch of a host that has only gateways: a file beside the control socket, there while it is
//! on. Like the kernel's, which is pinned, it outlives the process and not the boot.

use std::io;
use std::path::{Path, PathBuf};

pub(crate) struct KillSwitch(PathBuf);

impl KillSwitch {
    /// With a name of its own for each socket.
    pub(crate) fn beside(socket: &Path) -> Self {
        let mut path = socket.as_os_str().to_owned();
        path.push(".released");
        Self(path.into())
    }

    /// Whether it was on. What cannot be looked at counts as off: it was not put there by a daemon that
    /// can run here.
    pub(crate) fn is_on(&self) -> bool {
        std::fs::symlink_metadata(&self.0).is_ok()
    }

    /// Remembers it.
    pub(crate) fn remember(&self, on: bool) -> io::Result<()> {
        let done = if on {
            std::fs::OpenOptions::new().write(true).create_new(true).open(&self.0).map(drop)
        } else {
            std::fs::remove_file(&self.0)
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && on => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !on => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_remembered_beside_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let switch = KillSwitch::beside(&dir.path().join("control.sock"));
        assert!(!switch.is_on());
        for on in [false, true, true, false, false, true] {
            switch.remember(on).unwrap();
            assert_eq!(switch.is_on(), on);
        }
        let next = KillSwitch::beside(&dir.path().join("control.sock"));
        assert!(next.is_on(), "the process that comes next");
        assert!(!KillSwitch::beside(&dir.path().join("other.sock")).is_on());
        let away = KillSwitch::beside(&dir.path().join("away/control.sock"));
        assert!(away.remember(true).is_err() && !away.is_on());
    }
}
