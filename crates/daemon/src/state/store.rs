// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a state lies: a small file beside the control socket, which outlives the process and not
//! the boot.

use super::{BYTES_MAX, Here};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tidegate_units::{BootClock, Clock};

/// A place for one state.
pub trait Store {
    /// What is there; `None`: nothing. At most one byte more than it may hold, which is [`BYTES_MAX`] where
    /// nothing else is said.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>>;

    /// Puts this in its place, as a whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written; what was there before is still there.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Forgets what is there.
    ///
    /// # Errors
    /// When it is still there.
    fn remove(&mut self) -> io::Result<()>;

    /// Keeps what is there under another name, for another version of the program. The name.
    ///
    /// # Errors
    /// When it cannot be; by default.
    fn set_aside(&mut self) -> io::Result<String> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The boot and its time.
    fn here(&self) -> Here;
}

/// A file.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    boot: String,
    bytes_max: usize,
}

/// So many files are set aside; the next one is lost.
const ASIDE_MAX: u32 = 8;
/// Who may read and write it: the daemon.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

impl Directory {
    /// Beside this socket, with a name of its own for each socket.
    #[must_use]
    pub fn beside(socket: &Path) -> Self {
        let mut path = socket.as_os_str().to_owned();
        path.push(".state");
        Self::at(path.into())
    }

    /// Beside this socket, for what commands set.
    #[must_use]
    pub fn of_commands(socket: &Path) -> Self {
        let mut path = socket.as_os_str().to_owned();
        path.push(".commands");
        Self::at(path.into())
    }

    /// This file.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        // Without an id no state is of this boot but one that has none, either: on one machine the
        // file cannot tell two boots apart then, and the directory (/run) does.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { path, boot: boot.trim().to_owned(), bytes_max: BYTES_MAX }
    }

    /// The same, which may hold so many bytes.
    #[must_use]
    pub fn holding(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    /// What is written before it takes the place of the file.
    fn next(&self) -> PathBuf {
        let mut path = self.path.as_os_str().to_owned();
        path.push(".new");
        path.into()
    }
}

impl Store for Directory {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(self.bytes_max as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Without a wait for the disk: what a crash of the machine loses is of another boot anyway.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let next = self.next();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let open = || rustix::fs::open(&next, flags | OFlags::NOFOLLOW, MODE);
        let file = match open() {
            // Left by one that was killed while it wrote.
            Err(rustix::io::Errno::EXIST) => {
                std::fs::remove_file(&next)?;
                open()
            }
            opened => opened,
        };
        let written = File::from(file?).write_all(bytes);
        let placed = written.and_then(|()| std::fs::rename(&next, &self.path));
        if placed.is_err() {
            // It is in the way of nobody, and takes room of a full disk.
            let _ = std::fs::remove_file(&next);
        }
        placed
    }

    fn remove(&mut self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// What was set aside before is not lost for it.
    fn set_aside(&mut self) -> io::Result<String> {
        let mut failed = rustix::io::Errno::EXIST;
        for number in 1..=ASIDE_MAX {
            let mut other = self.path.as_os_str().to_owned();
            other.push(".other");
            if number > 1 {
                other.push(format!(".{number}"));
            }
            match renameat_with(CWD, &self.path, CWD, &other, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(PathBuf::from(other).display().to_string()),
                Err(error) => failed = error,
            }
            if failed != rustix::io::Errno::EXIST {
                break;
            }
        }
        Err(failed.into())
    }

    fn here(&self) -> Here {
        Here { boot: self.boot.clone(), now: BootClock.now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_state_is_written_whole_for_the_daemon_alone_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Directory::beside(&dir.path().join("control.sock"));
        assert_eq!(store.read().unwrap(), None);
        store.write(b"one").unwrap();
        // What a process that was killed leaves is in nobody's way.
        std::fs::write(store.next(), "half").unwrap();
        store.write(b"two").unwrap();
        assert_eq!(store.read().unwrap(), Some(b"two".to_vec()));
        let path = dir.path().join("control.sock.state");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        store.remove().unwrap();
        store.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_set_aside_is_kept_beside_what_was_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Directory::at(dir.path().join("shadow"));
        assert!(store.set_aside().is_err(), "nothing is there");
        for number in 1..=ASIDE_MAX {
            store.write(number.to_string().as_bytes()).unwrap();
            let name = store.set_aside().unwrap();
            assert_eq!(std::fs::read_to_string(name).unwrap(), number.to_string());
        }
        let kept = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((&*kept("shadow.other"), &*kept("shadow.other.2")), ("1", "2"));
        store.write(b"too many").unwrap();
        assert!(store.set_aside().is_err());
        assert_eq!(store.read().unwrap(), Some(b"too many".to_vec()));
    }

    #[test]
    fn what_is_no_file_or_too_large_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let mut store = Directory::beside(&socket);
        std::fs::create_dir(dir.path().join("s.state")).unwrap();
        assert!(store.read().is_err());
        std::fs::remove_dir(dir.path().join("s.state")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("s.state")).unwrap();
        assert!(store.read().is_err(), "a link leads anywhere");
        store.remove().unwrap();
        let huge = File::create(dir.path().join("s.state")).unwrap();
        huge.set_len(1 << 40).unwrap();
        assert_eq!(store.read().unwrap().map(|bytes| bytes.len()), Some(BYTES_MAX + 1));
        let mut nowhere = Directory::beside(Path::new("/nonexistent/tidegate/s"));
        assert!(nowhere.write(b"x").is_err());
        assert_eq!(nowhere.read().unwrap(), None);
    }
}
