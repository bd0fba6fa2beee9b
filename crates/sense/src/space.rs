// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where servers listen: our own network namespace, and those of containers that the configuration
//! names.
//!
//! What is asked of another namespace is opened while there are privileges to enter it, and kept: a
//! socket stays in the namespace in which it was made. It also keeps that namespace alive, so it is
//! closed as soon as the name leads to another one. Which one it is can be seen without privileges, so that a
//! container is still known when its first process is another, and its restart is noticed.

use crate::connections::{ConnectionSource, Diag};
use crate::defer::counter;
use crate::file::Probe;
use crate::listeners::{Listener, ListenerSource, SockDiag};
use crate::netns::in_namespace;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tidegate_model::Namespace;
use tidegate_units::Nanos;

/// Who finds the file that stands for a namespace at the moment.
pub type FindNamespace = fn(&Namespace) -> io::Result<PathBuf>;

/// How often it is looked whether a namespace is still the one that was opened, and tried again to open
/// one.
const LOOK_EVERY: Nanos = Nanos::from_secs(2);

/// Why a container that came after the start of the daemon is not looked at, and what to do.
const BARRED: &str = "it came after the start of the daemon (a container that was started again, or a reload \
    that names it), which gave up its privileges and cannot enter that network namespace: neither the server's \
    accept queue nor connections past the hooks are seen. Start the daemon anew: under systemd \
    `systemctl restart tidegate`, elsewhere `tidegate run` beside it, which takes over without a gap; with \
    `--keep-privileges` it enters by itself";

/// One network namespace.
pub(crate) struct Space {
    /// `None`: our own.
    pub(crate) namespace: Option<Namespace>,
    /// Its listeners as of this tick.
    pub(crate) all: Vec<Listener>,
    /// Whether they could be listed.
    pub(crate) listed: io::Result<()>,
    /// Whether it has opened connections since the last look.
    pub(crate) grew: bool,
    /// It is known which one it is, and it cannot be entered without privileges.
    barred: bool,
    open: Option<Open>,
    looked: Option<Nanos>,
}

/// What is asked there.
struct Open {
    listeners: Box<dyn ListenerSource + Send>,
    connections: Box<dyn ConnectionSource + Send>,
    opened: Opened,
    identity: Option<Identity>,
}

/// What a namespace was opened by: its file, and which one that is.
struct Identity {
    path: PathBuf,
    mark: u64,
}

impl Identity {
    /// Nobody without privileges reads a process's `ns/net`. What its namespace counts can be seen by
    /// all, and the file of each namespace has an inode of its own: while we hold a socket there, no other one
    /// gets that number.
    fn of(path: PathBuf) -> io::Result<Self> {
        let of_process = path.starts_with("/proc") && path.ends_with("ns/net");
        let process = path.parent().and_then(Path::parent).filter(|_| of_process);
        let file = process.map_or_else(|| path.clone(), |process| process.join("net/snmp"));
        let mark = fs::metadata(file)?.ino();
        Ok(Self { path, mark })
    }
}

impl Space {
    /// Our own.
    pub(crate) fn own(listeners: Box<dyn ListenerSource + Send>, proc: &Path) -> Self {
        let opened = Opened::new(Probe::new(proc.join("net/snmp")));
        let open = Open { listeners, connections: Box::new(Diag), opened, identity: None };
        Self { open: Some(open), ..Self::of(None) }
    }

    pub(crate) fn of(namespace: Option<Namespace>) -> Self {
        let (all, listed) = (Vec::new(), Ok(()));
        Self { namespace, all, listed, grew: false, barred: false, open: None, looked: None }
    }

    /// Lists the listeners, and looks whether connections were opened; first, where it is due, whether
    /// the namespace is still the same.
    pub(crate) fn tick(&mut self, now: Nanos, find: FindNamespace, buffer: &mut [u8]) {
        if let Some(namespace) = &self.namespace
            && self.looked.is_none_or(|looked| now.since(looked) >= LOOK_EVERY)
        {
            self.looked = Some(now);
            let found = find(namespace).and_then(Identity::of);
            let known = found.is_ok();
            let followed = follow(&mut self.open, found);
            self.barred = known && is_denied(&followed);
            if let Err(error) = followed {
                let why = if self.barred { BARRED.to_owned() } else { error.to_string() };
                self.listed =
                    Err(io::Error::new(error.kind(), format!("namespace {namespace}: {why}")));
            }
        }
        self.grew = false;
        let Some(open) = &mut self.open else {
            self.all.clear();
            return;
        };
        self.listed = open.listeners.list(&mut self.all);
        if self.listed.is_err() {
            self.all.clear();
        }
        self.grew = open.opened.grew(now, buffer);
    }

    /// Why it cannot be entered although it is there; empty: it is entered, gone, or nobody may know which
    /// one it is (`hidepid`), which a restart does not change.
    pub(crate) fn barred(&self) -> String {
        let error = self.listed.as_ref().err().filter(|_| self.barred);
        error.map(ToString::to_string).unwrap_or_default()
    }

    /// Who lists connections there.
    pub(crate) fn connections(&mut self) -> Option<&mut (dyn ConnectionSource + Send + 'static)> {
        self.open.as_mut().map(|open| &mut *open.connections)
    }
}

fn is_denied(followed: &io::Result<()>) -> bool {
    followed.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Closes what was opened of another namespace, and opens this one. Another process of the same
/// namespace changes nothing. What is open is kept while only nobody knows which one it should be.
fn follow(open: &mut Option<Open>, found: io::Result<Identity>) -> io::Result<()> {
    let known = open.as_mut().and_then(|open| open.identity.as_mut());
    match (known, found) {
        (Some(known), Ok(found)) if known.mark == found.mark => {
            *known = found;
            return Ok(());
        }
        (Some(known), Err(_))
            if Identity::of(known.path.clone()).is_ok_and(|now| now.mark == known.mark) => {}
        (_, found) => {
            *open = None;
            *open = Some(found.and_then(Open::enter)?);
        }
    }
    Ok(())
}

impl Open {
    fn enter(identity: Identity) -> io::Result<Self> {
        let path = identity.path.as_path();
        let snmp = in_namespace(Some(path), || fs::File::open("/proc/thread-self/net/snmp"))?;
        Ok(Self {
            listeners: Box::new(SockDiag::open(Some(path))?),
            connections: Box::new(crate::connections::Kept::open(path)?),
            opened: Opened::new(Probe::of(snmp)),
            identity: Some(identity),
        })
    }
}

/// Connections that the kernel has opened for the listeners of a namespace.
struct Opened {
    probe: Probe,
    looked: Option<Nanos>,
    count: Option<u64>,
}

impl Opened {
    fn new(probe: Probe) -> Self {
        Self { probe, looked: None, count: None }
    }

    /// Whether it is time to look, and there are more than at the last look.
    fn grew(&mut self, now: Nanos, buffer: &mut [u8]) -> bool {
        if self.looked.is_some_and(|looked| now.since(looked) < crate::bypass::LOOK_EVERY) {
            return false;
        }
        self.looked = Some(now);
        let text = self.probe.read(buffer).ok();
        let count = text.and_then(|text| counter(text, "Tcp:", "PassiveOpens"));
        let before = std::mem::replace(&mut self.count, count);
        matches!((before, count), (Some(before), Some(now)) if now > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Ends with drop.
    struct Process(Child);

    impl Process {
        /// In a network namespace of its own, or in that of another process (needs root).
        fn new(beside: Option<&Self>) -> Self {
            let mut command = match beside {
                None => Command::new("unshare"),
                Some(_) => Command::new("nsenter"),
            };
            let net = beside.map_or("--net".into(), |other| format!("--net={}", other.path()));
            let process = Self(command.arg(net).args(["sleep", "60"]).spawn().unwrap());
            let name = format!("/proc/{}/comm", process.0.id());
            // It is there once it is the program that it ends as.
            while fs::read_to_string(&name).unwrap().trim() != "sleep" {
                std::thread::yield_now();
            }
            process
        }

        fn path(&self) -> String {
            format!("/proc/{}/ns/net", self.0.id())
        }

        fn found(&self) -> io::Result<Identity> {
            Identity::of(self.path().into())
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn mark(open: Option<&Open>) -> Option<u64> {
        Some(open?.identity.as_ref()?.mark)
    }

    #[test]
    fn a_restart_in_another_namespace_is_found_and_another_process_of_the_same_is_none() {
        let (first, mut open) = (Process::new(None), None);
        let beside = Process::new(Some(&first));
        follow(&mut open, first.found()).unwrap();
        let own = mark(open.as_ref()).unwrap();
        assert_eq!(beside.found().unwrap().mark, own);
        // The first process of the container has ended, and nobody may enter any more.
        follow(&mut open, beside.found()).unwrap();
        drop(first);
        let nobody = || Err(io::Error::from(io::ErrorKind::NotFound));
        follow(&mut open, nobody()).unwrap();
        assert_eq!(mark(open.as_ref()), Some(own), "one of its processes lives");
        // Another namespace, which cannot be entered: it must not be taken for the one before, although
        // that has a process.
        let other = Identity { path: "/proc/0/ns/net".into(), mark: own + 1 };
        assert!(follow(&mut open, Ok(other)).is_err() && open.is_none());
        let again = Process::new(None);
        follow(&mut open, again.found()).unwrap();
        assert_eq!(mark(open.as_ref()), Some(again.found().unwrap().mark));
        assert_ne!(mark(open.as_ref()), Some(own));
        drop(again);
        assert!(follow(&mut open, nobody()).is_err() && open.is_none(), "it has ended");
    }

    /// A container that has ended is a usual thing. Where nobody may know which namespace it is, a
    /// restart does not help.
    #[test]
    fn what_is_gone_or_hidden_is_not_barred() {
        let denied: FindNamespace = |_| Err(ErrorKind::PermissionDenied.into());
        let gone: FindNamespace = |_| Err(ErrorKind::NotFound.into());
        for find in [denied, gone] {
            let mut space = Space::of(Some(Namespace::Pid(1)));
            space.tick(Nanos::SECOND, find, &mut [0; 4096]);
            assert!(space.listed.is_err());
            assert_eq!(space.barred(), "");
        }
        let mut space = Space::of(Some(Namespace::Pid(1)));
        let denied = Err(ErrorKind::PermissionDenied.into());
        (space.barred, space.listed) = (is_denied(&denied), denied);
        assert!(!space.barred().is_empty());
    }
}
