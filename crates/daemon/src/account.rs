// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The user as whom the daemon runs after its start (`daemon.user`), and what has to be that user's first.
//!
//! The way to the pins leads through directories of root (/sys/fs/bpf has mode 0700). A directory that is
//! open is reached by its descriptor instead: [`Reached`].

use nix::unistd::{Gid, Uid, User, getgrouplist, initgroups, setresgid, setresuid};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, chownat, fstat, open};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use tidegate_config::Config;

/// Directories that a supervisor made for the daemon (systemd: `RuntimeDirectory=`, `StateDirectory=`).
const GIVEN: [&str; 2] = ["RUNTIME_DIRECTORY", "STATE_DIRECTORY"];
/// Where supervisors make directories, and those that are not theirs.
const RUN: &str = "/run";
const OF_LOGINS: &str = "/run/user";
/// Pins lie this deep.
const DEPTH_MAX: u32 = 2;

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl Account {
    /// The user of this name; `None`: there is none.
    ///
    /// # Errors
    /// When users cannot be looked up.
    pub(crate) fn of(name: &str) -> io::Result<Option<Self>> {
        let found = User::from_name(name)?;
        Ok(found.map(|User { uid, gid, .. }| Self { name: name.to_owned(), uid, gid }))
    }

    /// The user that the configuration names; without a name, the one for whom a supervisor made the
    /// directory of the control socket below /run (a unit with `User=`).
    ///
    /// # Errors
    /// When users cannot be looked up.
    pub(crate) fn configured(config: &Config) -> io::Result<Option<Self>> {
        match &config.daemon.user {
            Some(name) => Self::of(name),
            None => Self::owner(config.daemon.socket.parent().unwrap_or(Path::new("/"))),
        }
    }

    /// Whose a directory below /run is, if it is no link and not root's.
    fn owner(directory: &Path) -> io::Result<Option<Self>> {
        use std::os::unix::fs::MetadataExt;
        let made = directory.starts_with(RUN)
            && directory != Path::new(RUN)
            && !directory.starts_with(OF_LOGINS);
        let found = std::fs::symlink_metadata(directory).ok().filter(|_| made);
        let Some(found) = found.filter(|found| found.is_dir() && found.uid() != 0) else {
            return Ok(None);
        };
        let user = User::from_uid(Uid::from_raw(found.uid()))?;
        Ok(user.map(|User { name, uid, gid, .. }| Self { name, uid, gid }))
    }

    /// The configured user. Without one, or if the process is no root, it stays who it is.
    ///
    /// # Errors
    /// Why it cannot become that user. It stays root then, without capabilities: a name is no reason to
    /// leave the host without protection.
    pub(crate) fn wanted(config: &Config) -> Result<Option<Self>, String> {
        let name = config.daemon.user.as_deref();
        if !Uid::effective().is_root() {
            if let Some(user) = name {
                tracing::info!(user, "daemon.user: was not started by root, and stays who it is");
            }
            return Ok(None);
        }
        match (Self::configured(config), name) {
            (Ok(Some(account)), _) => Ok(Some(account).filter(|account| !account.uid.is_root())),
            (Ok(None), None) => Ok(None),
            (Ok(None), Some(name)) => Err(format!("no such user: {name}")),
            (Err(error), name) => {
                let whom = name.unwrap_or("whose the directory of the control socket is");
                Err(format!("{whom} cannot be looked up: {error}"))
            }
        }
    }

    /// Gives the user what the daemon writes later: the directories of the supervisor and what lies in
    /// them, and what is locked, which is where the pins are. What cannot be given is told.
    pub(crate) fn take_over(&self, config: &Config, locked: &Path) {
        for directory in given() {
            self.own_all(&directory, 1);
        }
        let depth = if config.interfaces.is_empty() { 0 } else { DEPTH_MAX };
        self.own_all(locked, depth);
    }

    fn own_all(&self, path: &Path, depth: u32) {
        if let Err(error) = self.own(path, depth) {
            tracing::warn!(path = %path.display(), %error, "daemon.user: cannot be given to the user");
        }
    }

    /// Only what is root's, and a directory, or a socket or a file with one name: whoever had the user
    /// could have put another name of a file of root's there. A group other than root's was given by
    /// somebody (`daemon.socket_group`), and stays. What is below is reached by the descriptor of its
    /// directory, which nobody can put a link in the place of.
    fn own(&self, path: &Path, depth: u32) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = open(path, flags, Mode::empty())?;
        let found = fstat(&opened)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        let ours = match kind {
            FileType::Directory => true,
            FileType::Socket | FileType::RegularFile => found.st_nlink == 1,
            _ => false,
        };
        if found.st_uid == 0 && ours {
            let uid = rustix::fs::Uid::from_raw(self.uid.as_raw());
            let gid = rustix::fs::Gid::from_raw(self.gid.as_raw());
            let gid = Some(gid).filter(|_| found.st_gid == 0);
            chownat(&opened, c"", Some(uid), gid, AtFlags::EMPTY_PATH)?;
        }
        if depth > 0 && kind == FileType::Directory {
            let here = Reached { directory: opened };
            for entry in std::fs::read_dir(here.path())?.flatten() {
                self.own_all(&here.path().join(entry.file_name()), depth - 1);
            }
        }
        Ok(())
    }

    /// From here on the process is this user's, for good; so is every thread that it has.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn become_it(&self) -> io::Result<()> {
        let name = CString::new(self.name.as_str()).map_err(io::Error::other)?;
        initgroups(&name, self.gid)?;
        setresgid(self.gid, self.gid, self.gid)?;
        setresuid(self.uid, self.uid, self.uid)?;
        Ok(())
    }

    /// This thread is the user's from here on, and no other.
    fn become_in_thread(&self) -> io::Result<()> {
        let name = CString::new(self.name.as_str()).map_err(io::Error::other)?;
        let groups = getgrouplist(&name, self.gid)?;
        let groups: Vec<_> =
            groups.iter().map(|group| rustix::fs::Gid::from_raw(group.as_raw())).collect();
        rustix::thread::set_thread_groups(&groups)?;
        let gid = rustix::fs::Gid::from_raw(self.gid.as_raw());
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        let uid = rustix::fs::Uid::from_raw(self.uid.as_raw());
        Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
    }

    /// Its number.
    pub(crate) const fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the user may write in a directory, as far as its mode says.
    pub(crate) fn writes(&self, directory: &Path) -> bool {
        writes((self.uid, self.gid), directory)
    }
}

fn writes((uid, gid): (Uid, Gid), directory: &Path) -> bool {
    std::fs::metadata(directory).is_ok_and(|found| {
        use std::os::unix::fs::MetadataExt;
        let (own, all) = (found.uid() == uid.as_raw(), found.mode() & 0o002 != 0);
        let group = found.gid() == gid.as_raw() && found.mode() & 0o020 != 0;
        own || all || group
    })
}

/// The directories of the supervisor.
fn given() -> Vec<PathBuf> {
    let all = GIVEN.iter().filter_map(std::env::var_os);
    let all = all.flat_map(|all| std::env::split_paths(&all).collect::<Vec<_>>());
    all.filter(|path| path.is_absolute()).collect()
}

/// In which of the directories for what outlives the process nobody can write once it has given up its
/// capabilities and stays root: they are another user's (a unit with `User=`, and no `daemon.user`).
pub(crate) fn not_written(config: &Config) -> Vec<PathBuf> {
    let beside = config.daemon.socket.parent().map(Path::to_path_buf);
    let all: BTreeSet<PathBuf> = given().into_iter().chain(beside).collect();
    let root = (Uid::from_raw(0), Gid::from_raw(0));
    let denied = |directory: &PathBuf| directory.is_dir() && !writes(root, directory);
    if Uid::effective().is_root() { all.into_iter().filter(denied).collect() } else { Vec::new() }
}

/// Which of these files a daemon cannot read once it is this user, or, without one, root without
/// capabilities; tried in a thread that is so. Empty for a process that is not root: it stays what it is.
///
/// # Errors
/// When that cannot be tried.
pub(crate) fn unreadable<'a>(
    account: Option<&Account>,
    files: &[&'a Path],
) -> io::Result<Vec<(&'a Path, io::Error)>> {
    if !Uid::effective().is_root() || files.is_empty() {
        return Ok(Vec::new());
    }
    let attempt = || -> io::Result<Vec<(&'a Path, io::Error)>> {
        match account {
            Some(account) => account.become_in_thread()?,
            None => {
                let none = CapabilitySet::empty();
                let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
                rustix::thread::set_capabilities(None, sets)?;
            }
        }
        // A FIFO keeps nobody waiting.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fails =
            |file: &&'a Path| Some((*file, open(*file, flags, Mode::empty()).err()?.into()));
        Ok(files.iter().filter_map(fails).collect())
    };
    std::thread::scope(|scope| {
        scope.spawn(attempt).join().unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
    })
}

/// A directory that is reached by its descriptor, whoever the process is by now.
#[derive(Debug)]
pub(crate) struct Reached {
    directory: OwnedFd,
}

impl Reached {
    /// Opens it.
    ///
    /// # Errors
    /// When it is not there, or is no directory.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: open(path, flags, Mode::empty())? })
    }

    /// Its path for this process.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.directory.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    /// "users" in the base system of each distribution.
    const USERS: u32 = 100;

    fn nobody() -> Account {
        Account::of("nobody").unwrap().unwrap()
    }

    /// What could be another name of a file of root's stays root's. Needs root.
    #[test]
    fn only_what_is_the_daemons_is_given_to_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["plain", "target", "linked"] {
            std::fs::write(path(name), "x").unwrap();
        }
        std::fs::hard_link(path("linked"), path("other-name")).unwrap();
        for name in ["socket", "shared", "linked-socket"] {
            drop(UnixListener::bind(path(name)).unwrap());
        }
        std::fs::hard_link(path("linked-socket"), path("other-socket")).unwrap();
        chown(path("shared"), None, Some(USERS)).unwrap();
        symlink(path("target"), path("symlink")).unwrap();
        std::fs::create_dir_all(path("below/deeper/deepest")).unwrap();
        nobody().own_all(dir.path(), DEPTH_MAX);
        let owner = |name: &str| std::fs::symlink_metadata(path(name)).unwrap().uid();
        let given = ["", "plain", "target", "socket", "shared", "below", "below/deeper"];
        assert!(given.iter().all(|name| owner(name) == 65_534), "{:?}", given.map(owner));
        let kept = [
            "linked",
            "other-name",
            "linked-socket",
            "other-socket",
            "symlink",
            "below/deeper/deepest",
        ];
        assert!(kept.iter().all(|name| owner(name) == 0), "{:?}", kept.map(owner));
        let group = |name: &str| std::fs::symlink_metadata(path(name)).unwrap().gid();
        let groups = ["plain", "socket", "shared"].map(group);
        assert_eq!(groups, [65_534, 65_534, USERS], "the operator's group may look");
        assert!(nobody().writes(dir.path()));
    }

    #[test]
    fn a_directory_that_is_open_is_reached_whatever_is_above_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let reached = Reached::open(&dir.path().join("a")).unwrap();
        std::fs::write(reached.path().join("b"), "x").unwrap();
        assert!(dir.path().join("a/b").is_file());
        assert!(Reached::open(&dir.path().join("nothing")).is_err());
    }

    /// Files of the user, of its group, of root alone, and of somebody else. Needs root.
    #[test]
    fn what_the_daemon_will_not_read_is_known_before() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let make = |name: &str, mode: u32, uid: u32, gid: u32| {
            let path = dir.path().join(name);
            std::fs::write(&path, "x").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            chown(&path, Some(uid), Some(gid)).unwrap();
            path
        };
        let files = [
            make("everybody", 0o644, 0, 0),
            make("own", 0o600, 65_534, 0),
            make("group", 0o640, 0, 65_534),
            make("root", 0o600, 0, 0),
            make("others", 0o600, 12_345, 12_345),
            dir.path().join("nothing"),
        ];
        let paths: Vec<&Path> = files.iter().map(std::path::PathBuf::as_path).collect();
        let names = |account: Option<&Account>| {
            let found = unreadable(account, &paths).unwrap();
            let name = |(path, _): &(&Path, io::Error)| path.file_name().unwrap().to_owned();
            found.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(Some(&nobody())), ["root", "others", "nothing"]);
        // Root without capabilities is one user of many.
        assert_eq!(names(None), ["own", "others", "nothing"]);
        assert!(Uid::effective().is_root(), "this thread is who it was");
        assert!(crate::privileges::may_attach());
    }

    /// A unit with `User=`, and a file without `daemon.user`. Needs root.
    #[test]
    fn without_a_name_it_is_whose_the_directory_of_the_socket_is() {
        let made = tempfile::tempdir_in(RUN).unwrap();
        let mut config = Config::default();
        config.daemon.socket = made.path().join("control.sock");
        assert_eq!(Account::configured(&config).unwrap(), None, "root's");
        chown(made.path(), Some(65_534), None).unwrap();
        assert_eq!(Account::configured(&config).unwrap(), Some(nobody()));
        assert_eq!(Account::wanted(&config), Ok(Some(nobody())));
        config.daemon.user = Some("root".into());
        assert_eq!(Account::wanted(&config), Ok(None), "who is named comes first");
        config.daemon.user = None;
        symlink(made.path(), made.path().join("link")).unwrap();
        config.daemon.socket = made.path().join("link/control.sock");
        assert_eq!(Account::configured(&config).unwrap(), None, "a link is no directory");
        let elsewhere = tempfile::tempdir().unwrap();
        chown(elsewhere.path(), Some(65_534), None).unwrap();
        config.daemon.socket = elsewhere.path().join("control.sock");
        assert_eq!(Account::configured(&config).unwrap(), None, "no supervisor made it");
    }

    #[test]
    fn a_user_that_is_not_there_is_none() {
        assert_eq!(Account::of("no-such-user").unwrap(), None);
    }
}
