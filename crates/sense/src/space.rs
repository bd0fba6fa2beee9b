// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where servers listen: our own network namespace, and those of containers that the configuration
//! names.
//!
//! What is asked of another namespace is opened while there are privileges to enter it, and kept: a
//! socket stays in the namespace in which it was made. It also keeps that namespace alive, so it is
//! closed as soon as the process or file that names the namespace is another.

use crate::connections::{ConnectionSource, Diag};
use crate::defer::counter;
use crate::file::Probe;
use crate::listeners::{Listener, ListenerSource, SockDiag};
use crate::netns::in_namespace;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tidegate_model::Namespace;
use tidegate_units::Nanos;

/// Who finds the file that stands for a namespace at the moment.
pub type FindNamespace = fn(&Namespace) -> io::Result<PathBuf>;

/// How often it is looked whether a namespace is still the one that was opened, and tried again to open
/// one.
const LOOK_EVERY: Nanos = Nanos::from_secs(2);

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

/// What a namespace was opened by: its file, and which one that was.
#[derive(PartialEq, Eq)]
struct Identity {
    path: PathBuf,
    mark: u64,
}

impl Identity {
    /// The file of a process is read by nobody without privileges: then it is the process that counts, by
    /// the time of its start.
    fn of(path: PathBuf) -> io::Result<Self> {
        let process = path.parent().and_then(Path::parent).filter(|_| path.starts_with("/proc"));
        let mark = match process {
            Some(process) => {
                let text = fs::read_to_string(process.join("stat"))?;
                let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
                fields.split(' ').nth(19).and_then(|start| start.parse().ok()).unwrap_or_default()
            }
            None => fs::metadata(&path)?.ino(),
        };
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
        Self { namespace, all, listed, grew: false, open: None, looked: None }
    }

    /// Lists the listeners, and looks whether connections were opened; first, where it is due, whether
    /// the namespace is still the same.
    pub(crate) fn tick(&mut self, now: Nanos, find: FindNamespace, buffer: &mut [u8]) {
        if let Some(namespace) = &self.namespace
            && self.looked.is_none_or(|looked| now.since(looked) >= LOOK_EVERY)
        {
            self.looked = Some(now);
            let found = find(namespace).and_then(Identity::of);
            if let Err(error) = follow(&mut self.open, found) {
                self.listed =
                    Err(io::Error::new(error.kind(), format!("namespace {namespace}: {error}")));
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

    /// Who lists connections there.
    pub(crate) fn connections(&mut self) -> Option<&mut (dyn ConnectionSource + Send + 'static)> {
        self.open.as_mut().map(|open| &mut *open.connections)
    }
}

/// Closes what was opened of another namespace, and opens this one. One of whose process another of the
/// same cgroup has taken the place is opened anew if that is permitted; else it is kept while it lives.
fn follow(open: &mut Option<Open>, found: io::Result<Identity>) -> io::Result<()> {
    let known = open.as_ref().and_then(|open| open.identity.as_ref());
    if let (Some(known), Ok(found)) = (known, &found)
        && known == found
    {
        return Ok(());
    }
    let lives = known.is_some_and(|known| {
        Identity::of(known.path.clone()).is_ok_and(|now| now.mark == known.mark)
    });
    let fresh = found.and_then(Open::enter);
    match fresh {
        Ok(fresh) => *open = Some(fresh),
        Err(_) if lives => {}
        Err(error) => {
            *open = None;
            return Err(error);
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
