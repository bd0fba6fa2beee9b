// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the process may do and how urgently it is run.
//!
//! After the start the daemon holds file descriptors, not privileges: maps, links, programs and
//! netlink sockets keep working without capabilities. What does not, and how it is done instead:
//!
//! - attaching to another interface, or another hook (a reload that changes `interfaces`): under
//!   systemd `systemctl restart tidegate`, elsewhere start `tidegate run` beside it; the new process
//!   has the privileges, and takes over without a gap;
//! - looking into other users' `/proc/PID/fd` (a server that was restarted): its cgroup and its
//!   CPUs are found through the cgroup of its listener, or kept as they were.
//! - `daemon.http` on a port below 1024, which is bound when a predecessor has left it.
//!
//! A proxy (`adapter: proxy`) on a port below 1024 keeps the one capability to bind it: a reload may open
//! another.
//!
//! With `daemon.user` it is no root any more, either ([`Account`], decision 46).
//!
//! `keep_privileges` leaves everything as it is, for those who prefer it.

use crate::account::{Account, Reached, not_written};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;
use std::path::{Path, PathBuf};
use tidegate_config::{Adapter, Config, Endpoint};

/// Niceness of the daemon: a saturated CPU must not starve the loop that relieves it.
pub(crate) const NICE: i32 = -10;

/// Raises the process's priority; an error where that is not permitted.
///
/// # Errors
/// When the system refuses; the daemon then runs with the priority it has.
pub(crate) fn renice() -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, NICE)?)
}

/// Whether programs can be loaded and attached: bpf(2) and changes of interfaces are permitted.
pub(crate) fn may_attach() -> bool {
    let bpf = CapabilitySet::SYS_ADMIN.union(CapabilitySet::BPF);
    rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective.contains(CapabilitySet::NET_ADMIN) && sets.effective.intersects(bpf)
    })
}

/// Whether the process can become another user, and the next one reach what is that user's then. Else nothing
/// is given away: who stays root without capabilities could not reach it any more.
fn may_become() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::DAC_OVERRIDE;
    rustix::thread::capabilities(None).is_ok_and(|held| held.effective.contains(needed))
}

/// What became of the privileges.
pub(crate) struct GivenUp {
    /// The directory that is locked, where the user has no other way to it.
    pub(crate) reached: Option<Reached>,
    /// Why the process is not the user that it should be.
    pub(crate) not_the_user: Option<String>,
    /// The directories in which nothing can be kept now.
    pub(crate) not_written: Vec<PathBuf>,
}

/// Gives up privileges: what the configuration's user needs becomes that user's, then the process does. Who
/// has no user goes by the name of the directory that is `locked`: it may be removed, and made again.
///
/// # Errors
/// When it would have to go on with capabilities.
pub(crate) fn give_up(config: &Config, locked: &Path) -> io::Result<GivenUp> {
    let (account, mut not_the_user) = match Account::wanted(config) {
        Ok(Some(account)) if !may_become() => {
            let name = account.name();
            (
                None,
                Some(format!(
                    "cannot become {name}: CAP_SETUID, CAP_SETGID and CAP_DAC_OVERRIDE are needed"
                )),
            )
        }
        Ok(account) => (account, None),
        Err(why) => (None, Some(why)),
    };
    let reached = account.as_ref().and_then(|_| Reached::open(locked).ok());
    if let Some(account) = &account {
        account.take_over(config, locked);
        let directory = config.daemon.socket.parent().unwrap_or(Path::new("/"));
        if !account.writes(directory) {
            tracing::warn!(
                user = account.name(),
                directory = %directory.display(),
                "daemon.user: may not write there: nothing is kept for the next process"
            );
        }
    }
    let became = drop_all(binds(config), account.as_ref())?;
    let user = account.as_ref().filter(|_| became.is_ok()).map_or("as before", Account::name);
    tracing::info!(user, "gave up all capabilities");
    if let (Err(error), Some(account)) = (became, &account) {
        not_the_user = Some(format!("cannot become {}: {error}", account.name()));
    }
    let stays_root = account.is_none() || not_the_user.is_some();
    let not_written = if stays_root { not_written(config) } else { Vec::new() };
    Ok(GivenUp { reached, not_the_user, not_written })
}

/// Gives up all capabilities, for good, but for that to bind low ports (`binds`); and becomes a user, if
/// there is one to become. To be called before any other thread exists: each thread has its own, and
/// inherits those of the one that starts it.
///
/// Says whether it became the user. One that it cannot become (a unit without CAP_SETUID) costs it its
/// capabilities all the same.
///
/// # Errors
/// When the system refuses to take capabilities away. The process must not go on with them.
fn drop_all(binds: bool, account: Option<&Account>) -> io::Result<io::Result<()>> {
    rustix::thread::set_no_new_privs(true)?;
    let became = account.map_or(Ok(()), |account| {
        // Who stops being root loses all of them at once, without this.
        rustix::thread::set_keep_capabilities(binds)?;
        account.become_it()
    });
    keep_only(binds)?;
    Ok(became)
}

fn keep_only(binds: bool) -> io::Result<()> {
    let had = rustix::thread::capabilities(None)?.permitted;
    let bind = if binds { CapabilitySet::NET_BIND_SERVICE } else { CapabilitySet::empty() };
    let kept = had.intersection(bind);
    let kept =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, kept)?;
    Ok(())
}

/// Whether a proxy of this configuration listens where that is a privilege.
fn binds(config: &Config) -> bool {
    config.gateways.iter().any(|gateway| match gateway.listen {
        Endpoint::Ip(address) => gateway.adapter == Adapter::Proxy && address.port() < 1024,
        Endpoint::Unix(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs a test of this file again, as root without these capabilities, with this given to it.
    fn again(test: &str, without: &str, given: &Path) {
        let output = Command::new("setpriv")
            .args(["--bounding-set", without, "--inh-caps", without])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", &format!("privileges::tests::{test}")])
            .env(ALONE, given)
            .env("STATE_DIRECTORY", given)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    const ALONE: &str = "TIDEGATE_TEST_PRIVILEGES_ALONE";

    /// A unit that was written before `daemon.user` does not let the daemon become it. Needs root.
    #[test]
    fn a_user_that_it_cannot_become_leaves_no_capability() {
        if std::env::var_os(ALONE).is_none() {
            for without in ["-setuid", "-setgid"] {
                again("a_user_that_it_cannot_become_leaves_no_capability", without, Path::new("/"));
            }
            return;
        }
        let before = rustix::thread::capabilities(None).unwrap();
        assert!(before.effective.contains(CapabilitySet::NET_ADMIN), "{before:?}");
        let nobody = Account::of("nobody").unwrap().unwrap();
        let became = drop_all(false, Some(&nobody)).unwrap();
        assert!(became.is_err(), "the system refuses");
        let after = rustix::thread::capabilities(None).unwrap();
        let none = CapabilitySet::empty();
        assert_eq!((after.effective, after.permitted, after.inheritable), (none, none, none));
    }

    /// It stays root, and without capabilities it could not reach what is another user's. Needs root.
    #[test]
    fn what_it_writes_stays_its_own_where_it_cannot_become_the_user() {
        use std::os::unix::fs::MetadataExt;
        let owner = |path: &Path| std::fs::metadata(path).unwrap().uid();
        let Some(given) = std::env::var_os(ALONE) else {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("history"), "x").unwrap();
            for without in ["-setuid", "-setgid", "-dac_override"] {
                let test = "what_it_writes_stays_its_own_where_it_cannot_become_the_user";
                again(test, without, dir.path());
                let history = dir.path().join("history");
                assert_eq!((owner(dir.path()), owner(&history)), (0, 0), "{without}");
            }
            return;
        };
        let text = "interfaces: [{name: lo}]\nservices: {shop: {mode: shadow, listen: ['*:80']}}\n\
                    daemon: {user: nobody}\n";
        let registry = tidegate_config::Registry::new(["fresh_first"], ["default"]);
        let config = tidegate_config::parse(text, &registry).unwrap();
        let given_up = give_up(&config, Path::new(&given)).unwrap();
        assert!(given_up.not_the_user.is_some_and(|why| why.contains("cannot become nobody")));
        assert!(rustix::thread::capabilities(None).unwrap().permitted.is_empty());
        std::fs::write(Path::new(&given).join("history"), "y").unwrap();
    }
}
