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

use crate::account::Account;
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;
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

/// Gives up all capabilities, for good, but for that to bind low ports (`binds`); and becomes a user, if
/// there is one to become. To be called before any other thread exists: each thread has its own, and
/// inherits those of the one that starts it.
///
/// # Errors
/// When the system refuses; nothing is worse than before then.
pub(crate) fn drop_all(binds: bool, account: Option<&Account>) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    if let Some(account) = account {
        // Who stops being root loses all of them at once, without this.
        rustix::thread::set_keep_capabilities(binds)?;
        account.become_it()?;
    }
    let had = rustix::thread::capabilities(None)?.permitted;
    let bind = if binds { CapabilitySet::NET_BIND_SERVICE } else { CapabilitySet::empty() };
    let kept = had.intersection(bind);
    let kept =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, kept)?;
    Ok(())
}

/// Whether a proxy of this configuration listens where that is a privilege.
pub(crate) fn binds(config: &Config) -> bool {
    config.gateways.iter().any(|gateway| match gateway.listen {
        Endpoint::Ip(address) => gateway.adapter == Adapter::Proxy && address.port() < 1024,
        Endpoint::Unix(_) => false,
    })
}
