// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One daemon for one interface. Two with different pins and control sockets do not know of each
//! other: both would count each SYN, and both would take tokens for it.
//!
//! So a daemon locks its interfaces. A lock is a name of a socket that the kernel keeps for each
//! network namespace (an abstract one): one process has it, it ends with that process, however that
//! ends, and it says which process that is, across mount and PID namespaces. Who runs and is refused
//! sends a byte there, so that the one that holds the lock can tell its operator.
//!
//! A successor waits for the locks of its predecessor: its sockets are made at the start, within
//! their namespaces, and get their names later. That needs no privileges.

use crate::kernel::plan;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with,
};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tidegate_config::{Config, InterfaceConfig, namespace_path};
use tidegate_sense::in_namespace;
use tidegate_units::{BootClock, Clock, Nanos};

/// Who knocks at a time.
const KNOCKS_MAX: usize = 8;
/// What one that runs and is refused sends.
const KNOCK: &[u8] = b"r";
/// For so long it is told that somebody else wanted an interface.
const TOLD_FOR: Nanos = Nanos::from_secs(60);
/// So long a predecessor may keep its locks after it said that it leaves.
const LEAVES_WITHIN: Nanos = Nanos::from_secs(5);
/// A holder that ends while it is looked for makes room: so often it is tried.
const TRIES: u32 = 3;
/// `USER_HZ`: the unit of times in /proc, the same wherever we run.
const USER_HZ: u64 = 100;
/// Longest command line that is shown, in bytes.
const COMMAND_MAX: usize = 120;

/// A process that holds a lock, or wanted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// `None`: it is in a PID namespace that cannot be seen from here.
    pid: Option<u32>,
    user: u32,
    /// How long it has run.
    age: Option<Nanos>,
    command: String,
}

impl Holder {
    /// Whoever is at the other end of a connection.
    fn of(socket: &OwnedFd) -> io::Result<Self> {
        // Not rustix's: its process ids are never 0, and those of another PID namespace are.
        let peer = getsockopt(socket, PeerCredentials)?;
        let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0);
        let process = pid.map(|pid| PathBuf::from(format!("/proc/{pid}")));
        let age = process.as_deref().and_then(age);
        let command = process.as_deref().map(command).unwrap_or_default();
        Ok(Self { pid, user: peer.uid(), age, command })
    }

    /// Anybody may take a name; a daemon is started by root, or by whoever started this one.
    fn counts(&self) -> bool {
        self.user == 0 || self.user == rustix::process::geteuid().as_raw()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "pid {pid}")?,
            None => f.write_str("a process in another PID namespace")?,
        }
        if let Some(age) = self.age {
            write!(f, ", started {} ago", words(age))?;
        }
        if self.command.is_empty() { Ok(()) } else { write!(f, ": {}", self.command) }
    }
}

/// A span for people.
fn words(span: Nanos) -> String {
    let seconds = span.as_secs_f64() as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// How long a process has run.
fn age(process: &Path) -> Option<Nanos> {
    let text = std::fs::read_to_string(process.join("stat")).ok()?;
    // Behind the name, which may contain anything, comes the third field; the start is the 22nd.
    let began: u64 = text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let began = Nanos(began.saturating_mul(1_000_000_000 / USER_HZ));
    Some(BootClock.now().since(began))
}

fn command(process: &Path) -> String {
    let mut bytes = std::fs::read(process.join("cmdline")).unwrap_or_default();
    bytes.truncate(COMMAND_MAX);
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.chars().filter(|c| !c.is_control()).collect::<String>().trim_end().to_owned()
}

/// An interface belongs to another daemon.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: {by}")]
pub struct Held {
    /// The interface, with its namespace.
    interface: String,
    /// Who has it, and what to do.
    by: String,
}

impl Held {
    /// Of hooks that somebody keeps in force without a lock.
    pub(crate) fn unlocked(alive: &tidegate_bpf::InForce) -> Self {
        let age = alive.age;
        let by = format!(
            "hooks of another tidegate, with other pins, are in force there (its last heartbeat is {age} \
             old); stop it, or wait until 10 s after its end"
        );
        Self { interface: alive.interface.clone(), by }
    }
}

/// What is said of an interface that somebody has.
pub(crate) fn sentence(holder: &Holder) -> String {
    format!(
        "another tidegate protects it already ({holder}); one daemon has all services of an interface: \
         add yours to its file, or stop it"
    )
}

/// The lock on one interface.
#[derive(Debug)]
struct InterfaceLock {
    interface: InterfaceConfig,
    /// With its name, or to be given it.
    socket: OwnedFd,
    held: bool,
}

fn address(interface: &InterfaceConfig) -> io::Result<SocketAddrUnix> {
    let name = format!("tidegate/interface/{}", interface.name);
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The interface, with its namespace.
fn shown(interface: &InterfaceConfig) -> String {
    match &interface.namespace {
        Some(namespace) => format!("{} in {namespace}", interface.name),
        None => interface.name.clone(),
    }
}

/// The interfaces that get hooks.
fn wanted(config: &Config) -> Vec<InterfaceConfig> {
    plan(config).config.interfaces
}

fn is_same(a: &InterfaceConfig, b: &InterfaceConfig) -> bool {
    (&a.name, &a.namespace) == (&b.name, &b.namespace)
}

/// Runs `work` where the interface is.
fn within<T: Send>(
    interface: &InterfaceConfig,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let path = interface.namespace.as_ref().map(namespace_path).transpose()?;
    in_namespace(path.as_deref(), work)
}

/// Who holds the lock on an interface; to be called within its namespace. With `knocks` it hears that
/// somebody wanted it.
fn ask(interface: &InterfaceConfig, knocks: bool) -> io::Result<Option<Holder>> {
    let socket = socket()?;
    match connect(&socket, &address(interface)?) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => return Ok(None),
        // Nobody takes the calls: its process stands still, or somebody fills its queue. Whose it is
        // cannot be told. It must keep nobody out; hooks that are in force are found all the same.
        Err(Errno::AGAIN) => {
            let command = "it takes no calls".to_owned();
            return Ok(Some(Holder { pid: None, user: u32::MAX, age: None, command }));
        }
        Err(error) => return Err(error.into()),
    }
    if knocks {
        // Who has gone needs no news.
        let _ = send(&socket, KNOCK, SendFlags::NOSIGNAL);
    }
    Holder::of(&socket).map(Some)
}

/// Interfaces that another daemon has than the one at the control socket, which a start would succeed,
/// and who that is.
pub(crate) fn held_by_others(config: &Config) -> Vec<(String, Holder)> {
    let ours = at(&config.daemon.socket);
    let other = |interface: &InterfaceConfig| {
        let holder = within(interface, || ask(interface, false)).ok()??;
        let succeeds = ours.as_ref().is_some_and(|ours| ours.pid == holder.pid);
        (holder.counts() && !succeeds).then(|| (interface.name.clone(), holder))
    };
    wanted(config).iter().filter_map(other).collect()
}

/// The daemon at a control socket.
fn at(path: &Path) -> Option<Holder> {
    let socket = socket().ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    Holder::of(&socket).ok()
}

impl InterfaceLock {
    /// InterfaceLocks an interface, or prepares to lock it after `predecessor` (a process id as we see it).
    /// `None`: it cannot be locked, and that is logged.
    fn take(interface: &InterfaceConfig, predecessor: Option<u32>) -> Result<Option<Self>, Held> {
        let tried = within(interface, || {
            let mut lock = Self { interface: interface.clone(), socket: socket()?, held: false };
            let mut holder = None;
            for _ in 0..TRIES {
                if lock.attempt()? {
                    return Ok((lock, None));
                }
                holder = ask(interface, predecessor.is_none())?;
                if holder.is_some() {
                    break;
                }
            }
            Ok((lock, holder))
        });
        let interface = shown(interface);
        let (lock, holder) = match tried {
            Ok(tried) => tried,
            Err(error) => {
                tracing::warn!(interface, %error, "cannot lock the interface for this daemon");
                return Ok(None);
            }
        };
        let Some(holder) = holder else { return Ok(Some(lock)) };
        // One that cannot be seen from here hands over: it is the one that does.
        if predecessor.is_some_and(|pid| holder.pid.is_none_or(|by| by == pid)) {
            return Ok(Some(lock));
        }
        if !holder.counts() {
            tracing::warn!(interface, "its lock is held by {holder}, which is no daemon of root");
            return Ok(None);
        }
        Err(Held { interface, by: sentence(&holder) })
    }

    /// Gives the socket its name; whether it is ours now.
    fn attempt(&mut self) -> io::Result<bool> {
        if self.held {
            return Ok(true);
        }
        match bind(&self.socket, &address(&self.interface)?) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        listen(&self.socket, KNOCKS_MAX as i32)?;
        self.held = true;
        Ok(true)
    }

    /// One that wanted the interface and was refused.
    fn refused(&self) -> Option<Holder> {
        let calls = std::iter::repeat_with(|| accept_with(&self.socket, SocketFlags::CLOEXEC));
        let mut refused = None;
        for call in calls.take(KNOCKS_MAX) {
            let Ok(call) = call else { break };
            let mut byte = [0];
            let heard = recv(&call, &mut byte, RecvFlags::DONTWAIT).is_ok_and(|(_, n)| n == 1);
            // Those who only look send nothing.
            let from = Holder::of(&call).ok().filter(|from| heard && from.counts());
            refused = from.or(refused);
        }
        refused
    }
}

/// The locks of a daemon.
#[derive(Debug, Default)]
pub(crate) struct InterfaceLocks {
    all: Vec<InterfaceLock>,
    /// Since when it waits for what its predecessor has.
    waits: Option<Nanos>,
    /// Who was refused last, and when.
    told: Option<(Nanos, String)>,
    /// What is not ours, by interface.
    others: Vec<(InterfaceConfig, String)>,
}

impl InterfaceLocks {
    /// InterfaceLocks all interfaces of a configuration; those that `predecessor` has are had later.
    ///
    /// # Errors
    /// When another daemon has one. Then none is locked.
    pub(crate) fn take(config: &Config, predecessor: Option<u32>) -> Result<Self, Held> {
        let mut locks = Self::default();
        locks.add(config, predecessor)?;
        Ok(locks)
    }

    fn add(&mut self, config: &Config, predecessor: Option<u32>) -> Result<(), Held> {
        let mut more: Vec<InterfaceLock> = Vec::new();
        for interface in &wanted(config) {
            let known = |lock: &InterfaceLock| is_same(&lock.interface, interface);
            if !self.all.iter().chain(&more).any(known) {
                more.extend(InterfaceLock::take(interface, predecessor)?);
            }
        }
        self.all.extend(more);
        Ok(())
    }

    /// InterfaceLocks what a configuration has more than the one before.
    ///
    /// # Errors
    /// When another daemon has one. Then nothing has changed.
    pub(crate) fn follow(&mut self, config: &Config) -> Result<(), Held> {
        self.add(config, None)
    }

    /// Gives back what the configuration that is followed does not have.
    pub(crate) fn keep(&mut self, config: &Config) {
        let wanted = wanted(config);
        self.all.retain(|lock| wanted.iter().any(|i| is_same(i, &lock.interface)));
    }

    /// Takes what a predecessor has left, and hears who was refused.
    pub(crate) fn look(&mut self, now: Nanos) {
        self.others.clear();
        let since = *self.waits.get_or_insert(now);
        for lock in &mut self.all {
            let interface = &lock.interface;
            if lock.held {
                if let Some(by) = lock.refused() {
                    let text = format!(
                        "another tidegate ({by}) wanted interface {}, which this one has, and was refused",
                        shown(interface)
                    );
                    self.told = Some((now, text));
                }
            } else if !lock.attempt().unwrap_or(false) && now.since(since) > LEAVES_WITHIN {
                // Later there are no privileges to look into other namespaces.
                let by = within(&lock.interface, || ask(&lock.interface, false)).ok().flatten();
                let by =
                    by.map_or_else(|| "a process that is not known".into(), |by| by.to_string());
                let text = format!(
                    "interface {}: another tidegate has it, too ({by}): both limit it; stop one",
                    shown(&lock.interface)
                );
                self.others.push((lock.interface.clone(), text));
            }
        }
        if self.told.as_ref().is_some_and(|(at, _)| now.since(*at) > TOLD_FOR) {
            self.told = None;
        }
    }

    /// What an operator should know.
    pub(crate) fn doubts(&self) -> impl Iterator<Item = String> {
        let told = self.told.iter().map(|(_, text)| text.clone());
        self.others.iter().map(|(_, text)| text.clone()).chain(told)
    }

    /// That another daemon limits an interface, too.
    pub(crate) fn shared(&self, name: &str, namespace: &str) -> Option<&str> {
        let is = |interface: &InterfaceConfig| {
            let of = interface.namespace.as_ref().map(ToString::to_string).unwrap_or_default();
            interface.name == name && of == namespace
        };
        let other = self.others.iter().find(|(interface, _)| is(interface));
        other.map(|(_, text)| text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};

    /// Names that no other test and no daemon has.
    fn config(interfaces: &[&str]) -> Config {
        let names = interfaces.iter().map(|name| format!("{{name: {name}}}"));
        let names = names.collect::<Vec<_>>().join(", ");
        let text = format!(
            "interfaces: [{names}]\nservices: {{web: {{mode: enforce, listen: ['*:80']}}}}\n\
             daemon: {{socket: /nonexistent/tidegate-locks}}\n"
        );
        parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
    }

    #[test]
    fn an_interface_has_one_daemon_and_whoever_is_refused_hears_which() {
        let (ours, both) = (config(&["tgq0"]), config(&["tgq1", "tgq0"]));
        let mut locks = InterfaceLocks::take(&ours, None).unwrap();
        let refused = InterfaceLocks::take(&both, None).unwrap_err().to_string();
        let pid = format!("pid {}", std::process::id());
        assert!(refused.contains("interface tgq0: ") && refused.contains(&pid), "{refused}");
        assert!(refused.contains("ago: "), "{refused}");
        drop(InterfaceLocks::take(&config(&["tgq1"]), None).unwrap());
        locks.look(Nanos::SECOND);
        let doubts = Vec::from_iter(locks.doubts());
        assert!(doubts.len() == 1 && doubts[0].contains("wanted interface tgq0"), "{doubts:?}");
        locks.look(Nanos::SECOND + TOLD_FOR + Nanos(1));
        assert_eq!(locks.doubts().count(), 0);
        drop(locks);
        assert!(InterfaceLocks::take(&both, None).is_ok(), "a lock ends with its process");
    }

    #[test]
    fn who_only_looks_is_no_news() {
        let ours = config(&["tgq2"]);
        let mut locks = InterfaceLocks::take(&ours, None).unwrap();
        let held = held_by_others(&ours);
        assert!(held.len() == 1 && held[0].1.pid == Some(std::process::id()), "{held:?}");
        locks.look(Nanos::SECOND);
        assert_eq!(locks.doubts().count(), 0);
        drop(locks);
        assert_eq!(held_by_others(&ours), []);
    }

    #[test]
    fn a_successor_has_the_locks_once_its_predecessor_has_gone() {
        let ours = config(&["tgq3"]);
        let before = InterfaceLocks::take(&ours, None).unwrap();
        let mut locks = InterfaceLocks::take(&ours, Some(std::process::id())).unwrap();
        locks.look(Nanos::SECOND);
        assert_eq!(locks.doubts().count(), 0, "it may take its time");
        locks.look(Nanos::SECOND + LEAVES_WITHIN + Nanos(1));
        assert!(locks.shared("tgq3", "").is_some_and(|text| text.contains("both limit it")));
        assert_eq!(locks.shared("tgq4", ""), None);
        drop(before);
        locks.look(Nanos::from_secs(9));
        assert_eq!((locks.doubts().count(), locks.shared("tgq3", "")), (0, None));
        assert!(InterfaceLocks::take(&ours, Some(1)).is_err(), "another one than its predecessor");
    }

    #[test]
    fn a_reload_locks_and_gives_back() {
        let (one, two) = (config(&["tgq5"]), config(&["tgq5", "tgq6"]));
        let mut locks = InterfaceLocks::take(&one, None).unwrap();
        let other = InterfaceLocks::take(&config(&["tgq6"]), None).unwrap();
        assert!(locks.follow(&two).is_err() && locks.all.len() == 1);
        drop(other);
        locks.follow(&two).unwrap();
        assert!(InterfaceLocks::take(&config(&["tgq6"]), None).is_err());
        locks.keep(&one);
        assert!(InterfaceLocks::take(&config(&["tgq6"]), None).is_ok());
    }

    #[test]
    fn spans_are_told_in_the_unit_that_fits() {
        for (seconds, text) in [(3, "3 s"), (180, "3 min"), (7200, "2 h"), (200_000, "2 days")] {
            assert_eq!(words(Nanos::from_secs(seconds)), text);
        }
    }
}
