// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One daemon for one set of pins: two with different control sockets, or two that start at the
//! same time, would not know of each other and fight over the limits. The lock is on the directory
//! of the pins and ends with the process, however that ends. Who starts without a predecessor has
//! it before the first pin and until the last is removed.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tidegate_bpf::shown_pins;

/// How long a predecessor that said goodbye may take to end.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
/// How often it is looked whether the directory is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked for.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the directory is made anew where a daemon that ends removes it.
const TRIES: u32 = 8;

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    directory: OwnedFd,
    /// It was said that the directory is gone for good.
    said: bool,
}

/// What somebody did to the directory.
#[derive(Debug)]
enum Lost {
    /// It was removed, and is made again.
    Made,
    /// It was removed, and only its descriptor leads there: whoever became another user reaches no other.
    Gone,
    /// Another daemon has made it again before us.
    Taken,
    /// It cannot be made again.
    Not(io::Error),
}

impl Lock {
    /// Takes the lock; `None` if somebody has it.
    ///
    /// # Errors
    /// When the directory cannot be opened, for example because it does not exist (yet, or any
    /// more: a daemon that ends removes it before it lets the lock go).
    pub(crate) fn take(pins: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(pins, flags, Mode::empty())?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let (ours, there) = (fstat(&directory)?, stat(pins)?);
        if ours.st_nlink == 0 || (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Some(Self { directory, said: false }))
    }

    /// Takes the lock before anything is pinned, and makes the directory for that; `None` if
    /// somebody has it.
    ///
    /// # Errors
    /// When there can be no such directory.
    pub(crate) fn found(pins: &Path) -> io::Result<Option<Self>> {
        for _ in 0..TRIES {
            make(pins)?;
            match Self::take(pins) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                taken => return taken,
            }
        }
        Ok(None)
    }

    /// Gives the lock back, and the directory where nothing is in it.
    pub(crate) fn give_back(self, pins: &Path) {
        // Fails while something is in it, and then it stays.
        let _ = std::fs::remove_dir(pins);
    }

    /// Holds it for ever. Where somebody removes the directory, the lock on what is there no more
    /// excludes nobody: it is made again, and locked.
    pub(crate) async fn stay(mut self, pins: &Path) -> ! {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(lost) = self.look(pins) else { continue };
            let path = shown_pins(pins);
            let path = path.display();
            match lost {
                Lost::Made => {
                    tracing::warn!(%path, "the directory of the pins was removed; it is made again");
                }
                Lost::Gone => tracing::warn!(
                    %path,
                    "the directory of the pins was removed, and the daemon's user cannot make it again: \
                     limits hold, and a second daemon is not kept away; `systemctl restart tidegate`"
                ),
                Lost::Taken => {
                    tracing::warn!(%path, "another daemon uses the pins now; stop one");
                }
                Lost::Not(error) => {
                    tracing::debug!(%path, %error, "the directory of the pins is gone");
                }
            }
        }
    }

    /// Looks whether the directory is there, and makes it again.
    fn look(&mut self, pins: &Path) -> Option<Lost> {
        if self.is_there(pins) {
            return None;
        }
        // By a name another one is found, or none.
        if stat(pins).is_ok_and(|there| there.st_nlink == 0) {
            return (!std::mem::replace(&mut self.said, true)).then_some(Lost::Gone);
        }
        Some(match Self::found(pins) {
            Ok(Some(anew)) => {
                *self = anew;
                Lost::Made
            }
            Ok(None) => Lost::Taken,
            Err(error) => Lost::Not(error),
        })
    }

    /// Whether it is on the directory that has this name. A descriptor leads to one that was removed, too.
    fn is_there(&self, pins: &Path) -> bool {
        let of = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let (ours, there) = (fstat(&self.directory), stat(pins));
        ours.is_ok_and(|ours| ours.st_nlink > 0 && there.is_ok_and(|there| of(ours) == of(there)))
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

/// Makes the directory. Without a BPF filesystem nothing can be made below its place: then one is
/// mounted there. Where there is one it is left as it is: what it refuses (a name with a dot) is
/// refused.
fn make(pins: &Path) -> io::Result<()> {
    let made = std::fs::create_dir_all(pins);
    let Err(error) = made else { return Ok(()) };
    // The mount point is a directory that is empty for ever: nothing is found in it, not even a place
    // for something new. Elsewhere in /sys it is not permitted.
    if !matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) {
        return Err(error);
    }
    tidegate_bpf::prepare_pins(pins).map_err(io::Error::other)?;
    std::fs::create_dir_all(pins)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BPF filesystem takes no name with a dot. What is pinned there must not vanish behind another
    /// one for that.
    #[test]
    fn a_bpf_filesystem_that_refuses_is_not_mounted_over() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        let dir = tempfile::tempdir().unwrap();
        mount("bpf", dir.path(), "bpf", MountFlags::empty(), None).unwrap();
        std::fs::create_dir(dir.path().join("marker")).unwrap();
        let refused = Lock::found(&dir.path().join("a.b"));
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let there = format!(" {} ", dir.path().display());
        let kept = dir.path().join("marker").is_dir();
        unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        assert!(refused.is_err() && kept);
        assert_eq!(mounts.lines().filter(|line| line.contains(&there)).count(), 1);
    }

    /// A machine on which nobody has mounted one yet: this test again, in a mount namespace of its own.
    #[test]
    fn without_a_bpf_filesystem_one_is_mounted() {
        const PLACE: &str = "/sys/fs/bpf";
        const ALONE: &str = "TIDEGATE_TEST_LOCK_ALONE";
        if std::env::var_os(ALONE).is_some() {
            let pins = Path::new(PLACE).join("tidegate-lock-test");
            assert!(std::fs::create_dir(&pins).is_err(), "one is mounted already");
            let lock = Lock::found(&pins).unwrap();
            assert!(lock.is_some() && pins.is_dir());
            return;
        }
        let again = "while umount -l /sys/fs/bpf 2>/dev/null; do :; done; exec \"$@\"";
        let output = std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", again, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "lock::tests::without_a_bpf_filesystem_one_is_mounted"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Lock::take(&dir.path().join("nothing")).is_err());
        let lock = Lock::take(dir.path()).unwrap();
        assert!(lock.is_some() && Lock::take(dir.path()).unwrap().is_none());
        drop(lock);
        assert!(Lock::take(dir.path()).unwrap().is_some());
    }

    #[test]
    fn who_is_first_makes_the_directory_and_gives_it_back_where_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let pins = dir.path().join("pins");
        let lock = Lock::found(&pins).unwrap().unwrap();
        assert!(Lock::found(&pins).unwrap().is_none(), "the second of two that start together");
        lock.give_back(&pins);
        assert!(!pins.exists());
        let lock = Lock::found(&pins).unwrap().unwrap();
        std::fs::write(pins.join("something"), "").unwrap();
        lock.give_back(&pins);
        assert!(pins.join("something").exists(), "what is in use stays");
    }

    /// A daemon that ends removes the directory before it lets the lock go: a lock on what is not
    /// there any more would exclude nobody.
    #[test]
    fn a_lock_on_a_directory_that_was_removed_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let pins = dir.path().join("pins");
        let ending = Lock::found(&pins).unwrap().unwrap();
        std::fs::remove_dir(&pins).unwrap();
        let next = Lock::found(&pins).unwrap();
        assert!(next.is_some());
        drop(ending);
        assert!(
            Lock::found(&pins).unwrap().is_none(),
            "the one that holds is the one that is there"
        );
    }

    #[test]
    fn a_directory_that_is_removed_is_made_again_or_it_is_told_once_that_it_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let pins = dir.path().join("pins");
        let mut lock = Lock::found(&pins).unwrap().unwrap();
        assert!(lock.look(&pins).is_none());
        std::fs::remove_dir(&pins).unwrap();
        assert!(matches!(lock.look(&pins), Some(Lost::Made)));
        assert!(lock.look(&pins).is_none() && Lock::found(&pins).unwrap().is_none());

        let reached = crate::account::Reached::open(&pins).unwrap();
        let at = reached.path();
        assert!(lock.look(&at).is_none());
        std::fs::remove_dir(&pins).unwrap();
        assert!(matches!(lock.look(&at), Some(Lost::Gone)));
        assert!(lock.look(&at).is_none(), "it was said");
        drop(lock);
        assert!(Lock::take(&at).is_err(), "a lock there would exclude nobody");
    }
}
