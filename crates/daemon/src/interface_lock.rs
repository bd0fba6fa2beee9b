// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One daemon for one interface. Two with different pins and control sockets do not know of each
//! other: both would count each SYN, and both would take tokens for it.
//!
//! So a daemon locks its interfaces. A lock is a name of a socket that the kernel keeps for each
//! network namespace (an abstract one): one process has it, it ends with that process, however that
//! ends, and it says which process that is, across mount and PID namespaces. Who runs and is refused
//! sends a byte there, so that the one that holds the lock can tell its operator.
//!
//! Any process may take a name. Only a daemon's ([`Daemons`]) keeps another one out or makes it unready.
//!
//! A successor waits for the locks of its predecessor: its sockets are made at the start, within
//! their namespaces, and get their names later. That needs no privileges.

use crate::kernel::plan;
use crate::neighbours::{self, Neighbours};
use crate::others::{Daemons, Holder, ask_by, at, heard, socket};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, listen};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tidegate_config::{Config, InterfaceConfig, namespace_path};
use tidegate_sense::in_namespace;
use tidegate_units::Nanos;

/// Who knocks at a time.
const KNOCKS_MAX: usize = 8;
/// For so long it is told that somebody else wanted an interface.
const TOLD_FOR: Nanos = Nanos::from_secs(60);
/// So long a predecessor may keep its locks after it said that it leaves.
const LEAVES_WITHIN: Nanos = Nanos::from_secs(5);
/// A holder that ends while it is looked for makes room, and one that has just begun does not listen yet:
/// so often it is tried, and so long is waited in between.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);
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
        Self { interface: alive.interface.clone(), by: unlocked(alive) }
    }
}

/// What is said of hooks that somebody keeps in force without a lock.
pub(crate) fn unlocked(alive: &tidegate_bpf::InForce) -> String {
    let age = alive.age;
    format!(
        "hooks of another tidegate, with other pins, are in force there (its last heartbeat is {age} \
         old); stop it, or wait until 10 s after its end"
    )
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
    /// Asks who has the name, of the same namespace.
    asks: OwnedFd,
    /// Who answered it.
    answered: Option<Holder>,
    held: bool,
}

fn name(interface: &InterfaceConfig) -> String {
    format!("tidegate/interface/{}", interface.name)
}

fn address(interface: &InterfaceConfig) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name(interface).as_bytes())?)
}

/// The interface, with its namespace.
fn shown(interface: &InterfaceConfig) -> String {
    match &interface.namespace {
        Some(namespace) => format!("{} in {namespace}", interface.name),
        None => interface.name.clone(),
    }
}

/// The interfaces that get hooks.
pub(crate) fn wanted(config: &Config) -> Vec<InterfaceConfig> {
    plan(config).config.interfaces
}

fn is_same(a: &InterfaceConfig, b: &InterfaceConfig) -> bool {
    (&a.name, &a.namespace) == (&b.name, &b.namespace)
}

/// Runs `work` where the interface is.
pub(crate) fn within<T: Send>(
    interface: &InterfaceConfig,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let path = interface.namespace.as_ref().map(namespace_path).transpose()?;
    in_namespace(path.as_deref(), work)
}

/// Who holds the lock on an interface; to be called within its namespace. With `knocks` it hears that
/// somebody wanted it.
fn ask(interface: &InterfaceConfig, knocks: bool) -> io::Result<Option<Holder>> {
    ask_by(&socket()?, &address(interface)?, |_| knocks)
}

/// Interfaces that another daemon has than the one at the control socket, which a start would succeed,
/// and who that is.
pub(crate) fn held_by_others(config: &Config) -> Vec<(String, Holder)> {
    let (ours, daemons) = (at(&config.daemon.socket), Daemons::of(config));
    let other = |interface: &InterfaceConfig| {
        let holder = within(interface, || ask(interface, false)).ok()??;
        let succeeds = ours.as_ref().is_some_and(|ours| ours.pid == holder.pid);
        (daemons.have(&holder) && !succeeds).then(|| (interface.name.clone(), holder))
    };
    wanted(config).iter().filter_map(other).collect()
}

impl InterfaceLock {
    /// Locks an interface, or prepares to lock it after `predecessor` (a process id as we see it), or after
    /// one that is no daemon. `None`: it cannot be locked, and that is logged.
    fn take(
        interface: &InterfaceConfig,
        daemons: &Daemons,
        predecessor: Option<u32>,
    ) -> Result<Option<Self>, Held> {
        let tried = within(interface, || {
            let (interface, socket, asks) = (interface.clone(), socket()?, socket()?);
            let mut lock = Self { interface, socket, asks, answered: None, held: false };
            for _ in 0..TRIES {
                if lock.attempt()? {
                    return Ok((lock, None));
                }
                let holder = ask(&lock.interface, predecessor.is_none())?;
                if holder.is_some() {
                    return Ok((lock, holder));
                }
                std::thread::sleep(PAUSE);
            }
            Ok((lock, None))
        });
        let interface = shown(interface);
        let (lock, holder) = match tried {
            Ok(tried) => tried,
            Err(error) => {
                tracing::warn!(interface, %error, "cannot lock the interface for this daemon");
                return Ok(None);
            }
        };
        // One that cannot be seen from here hands over: it is the one that does.
        let leaves =
            |holder: &Holder| predecessor.is_some_and(|pid| holder.pid.is_none_or(|by| by == pid));
        match holder.filter(|holder| daemons.have(holder) && !leaves(holder)) {
            Some(holder) => Err(Held { interface, by: sentence(&holder) }),
            None => Ok(Some(lock)),
        }
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
        (self.held, self.answered) = (true, None);
        Ok(true)
    }

    /// Who has the name instead. Later there are no privileges to enter another namespace: there the
    /// socket that was made at the start asks until it is answered, and the answer holds.
    fn holder(&mut self) -> Option<Holder> {
        if self.interface.namespace.is_none() {
            return ask(&self.interface, false).ok().flatten();
        }
        if self.answered.is_none() {
            let address = address(&self.interface).ok()?;
            self.answered = ask_by(&self.asks, &address, |_| false).ok().flatten();
        }
        self.answered.clone()
    }
}

/// The locks of a daemon.
#[derive(Debug, Default)]
pub(crate) struct InterfaceLocks {
    all: Vec<InterfaceLock>,
    daemons: Daemons,
    /// Since when it waits for what its predecessor has.
    waits: Option<Nanos>,
    /// Who was refused last, and when.
    told: Option<(Nanos, String)>,
    /// What this daemon limits, for others to see.
    neighbours: Neighbours,
    /// Another daemon that limits the same, and since when it is told.
    beside: Option<(Option<Nanos>, String)>,
    /// What is another daemon's, by interface.
    others: Vec<(InterfaceConfig, String)>,
    /// Names that processes have which are no daemons, one sentence each.
    taken: Vec<String>,
}

impl InterfaceLocks {
    /// Locks all interfaces of a configuration; those that `predecessor` has are had later.
    ///
    /// # Errors
    /// When another daemon has one. Then none is locked.
    pub(crate) fn take(config: &Config, predecessor: Option<u32>) -> Result<Self, Held> {
        let mut locks = Self::default();
        locks.add(config, predecessor)?;
        locks.meet(config, predecessor);
        Ok(locks)
    }

    /// Tells daemons on other interfaces that this one limits the same, and the operator of them.
    fn meet(&mut self, config: &Config, predecessor: Option<u32>) {
        let own = Some(std::process::id());
        let but = |by: &Holder| by.pid == own || predecessor.is_some() && by.pid == predecessor;
        for beside in neighbours::beside(config, true, but) {
            let text = beside.sentence();
            tracing::warn!(service = beside.service, "{text}");
            self.beside = Some((None, text));
        }
        self.neighbours.follow(config);
    }

    fn add(&mut self, config: &Config, predecessor: Option<u32>) -> Result<(), Held> {
        let mut more: Vec<InterfaceLock> = Vec::new();
        let daemons = Daemons::of(config);
        for interface in &wanted(config) {
            let known = |lock: &InterfaceLock| is_same(&lock.interface, interface);
            if !self.all.iter().chain(&more).any(known) {
                more.extend(InterfaceLock::take(interface, &daemons, predecessor)?);
            }
        }
        self.all.extend(more);
        self.daemons = daemons;
        Ok(())
    }

    /// Locks what a configuration has more than the one before.
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
        self.meet(config, None);
    }

    /// Takes what a predecessor has left, and hears who was refused.
    pub(crate) fn look(&mut self, now: Nanos) {
        self.others.clear();
        self.taken.clear();
        let since = *self.waits.get_or_insert(now);
        for lock in &mut self.all {
            let interface = shown(&lock.interface);
            if lock.held {
                if let Some(by) = heard(&lock.socket, KNOCKS_MAX, &self.daemons) {
                    let text = format!(
                        "another tidegate ({by}) wanted interface {interface}, which this one has, and was refused"
                    );
                    self.told = Some((now, text));
                }
                continue;
            }
            if lock.attempt().unwrap_or(false) || now.since(since) <= LEAVES_WITHIN {
                continue;
            }
            match lock.holder().filter(|holder| self.daemons.have(holder)) {
                Some(by) => {
                    let text = format!(
                        "interface {interface}: another tidegate has it, too ({by}): both limit it; stop one"
                    );
                    self.others.push((lock.interface.clone(), text));
                }
                None => self.taken.push(format!(
                    "interface {interface}: the name of its lock, @{}, is taken by a process that is no tidegate \
                     (`ss -xlp`, /proc/net/unix): a second tidegate is not kept away; end that process",
                    name(&lock.interface)
                )),
            }
        }
        if let Some(text) = self.neighbours.heard(&self.daemons) {
            self.beside = Some((None, text));
        }
        self.told.take_if(|(at, _)| now.since(*at) > TOLD_FOR);
        self.beside.take_if(|(at, _)| now.since(*at.get_or_insert(now)) > TOLD_FOR);
    }

    /// What an operator should know.
    pub(crate) fn doubts(&self) -> impl Iterator<Item = String> {
        let told = self.told.iter().map(|(_, text)| text.clone());
        let told = told.chain(self.beside.iter().map(|(_, text)| text.clone()));
        let others = self.others.iter().map(|(_, text)| text.clone());
        others.chain(self.taken.iter().cloned()).chain(told)
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

    /// A socket with the name of a lock, of a user: what the kernel says of it is as of `listen`, and
    /// users are those of a thread.
    fn squat(interface: &str, user: u32, listens: bool) -> OwnedFd {
        let interface = wanted(&config(&[interface])).remove(0);
        let take = move || {
            let user = rustix::process::Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let taken = socket().unwrap();
            bind(&taken, &address(&interface).unwrap()).unwrap();
            if listens {
                listen(&taken, 16).unwrap();
            }
            taken
        };
        std::thread::spawn(take).join().unwrap()
    }

    /// Needs root.
    #[test]
    fn a_name_that_no_daemon_has_keeps_nobody_out_and_is_told() {
        const NOBODY: u32 = 65_534;
        for (interface, user, listens) in
            [("tgq7", NOBODY, false), ("tgq8", NOBODY, true), ("tgq9", 0, false)]
        {
            let ours = config(&[interface]);
            let squatter = squat(interface, user, listens);
            assert_eq!(held_by_others(&ours), [], "{interface}");
            let mut locks = InterfaceLocks::take(&ours, None).unwrap();
            locks.look(Nanos::SECOND);
            locks.look(Nanos::SECOND + LEAVES_WITHIN + Nanos(1));
            assert_eq!(locks.shared(interface, ""), None, "{interface}: it stays ready");
            let doubts = Vec::from_iter(locks.doubts());
            assert!(doubts.len() == 1 && doubts[0].contains("is no tidegate"), "{doubts:?}");
            drop(squatter);
            locks.look(Nanos::from_secs(9));
            assert_eq!(locks.doubts().count(), 0, "{interface}");
            assert!(InterfaceLocks::take(&ours, None).is_err(), "{interface}: now it is locked");
        }
    }

    /// A successor gets its locks after it became `daemon.user`. Needs root.
    #[test]
    fn a_lock_of_the_user_of_daemons_counts() {
        let (mut ours, interface) = (config(&["tgq10"]), "tgq10");
        let _theirs = squat(interface, 65_534, true);
        assert!(InterfaceLocks::take(&ours, None).is_ok(), "nobody's is not known as a daemon's");
        ours.daemon.user = Some("nobody".into());
        assert_eq!(held_by_others(&ours).len(), 1);
        assert!(InterfaceLocks::take(&ours, None).is_err());
        let mut locks = InterfaceLocks::take(&ours, Some(std::process::id())).unwrap();
        locks.look(Nanos::SECOND);
        locks.look(Nanos::SECOND + LEAVES_WITHIN + Nanos(1));
        assert!(locks.shared(interface, "").is_some(), "and it has not gone");
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
}
