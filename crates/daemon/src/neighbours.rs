// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Daemons beside this one, on other interfaces, that limit the same addresses.
//!
//! Neither is refused: a service may be reached by several interfaces. But each admits as much as if it
//! were alone, so together they admit too much. So a daemon shows what it limits, as it shows its
//! interfaces ([`crate::interface_lock`]): by a name of a socket for each listen address, in the network
//! namespaces of its interfaces. Nothing is locked by these, so each daemon has names of its own.

use crate::interface_lock::{wanted, within};
use crate::others::{Daemons, Holder, ask_by, heard, socket};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, listen};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use tidegate_config::{Config, InterfaceConfig};
use tidegate_model::{Listen, Namespace};

/// Addresses that a daemon shows; of more than these nobody is told.
const SHOWN_MAX: usize = 128;
/// Names that are looked at in a namespace.
const FOUND_MAX: usize = 1024;
/// Two process ids may be the same in two PID namespaces: so many have room.
const ALIKE_MAX: u32 = 8;
/// Who calls one address at a time.
const CALLS_MAX: usize = 4;
const PREFIX: &str = "tidegate/listen/";

/// An address that is limited, shown in a namespace.
#[derive(Debug)]
struct Shown {
    namespace: Option<Namespace>,
    listen: Listen,
    socket: OwnedFd,
}

/// What a daemon shows.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    shown: Vec<Shown>,
}

/// Another daemon that limits an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    /// The service of ours.
    pub(crate) service: String,
    /// Index in its `listen`.
    pub(crate) index: usize,
    /// What the other one limits.
    theirs: Listen,
    /// Who it is.
    by: Holder,
}

impl Beside {
    /// All of it in one sentence.
    pub(crate) fn sentence(&self) -> String {
        sentence(self.theirs, &self.by)
    }
}

fn sentence(listen: Listen, by: &Holder) -> String {
    format!(
        "another tidegate ({by}) limits {listen} on another interface: each admits as much as if it were alone; \
         one file with both interfaces limits them together"
    )
}

/// One interface of each namespace in which there are some.
fn namespaces(config: &Config) -> Vec<InterfaceConfig> {
    let mut of: Vec<InterfaceConfig> = Vec::new();
    for interface in wanted(config) {
        if of.iter().all(|known| known.namespace != interface.namespace) {
            of.push(interface);
        }
    }
    of
}

fn listens(config: &Config) -> impl Iterator<Item = (&str, usize, Listen)> {
    config.services.iter().flat_map(|service| {
        let of = |(index, listen): (usize, &Listen)| (&*service.name, index, *listen);
        service.listen.iter().enumerate().map(of)
    })
}

/// Whether one packet may be for both.
fn overlap(a: Listen, b: Listen) -> bool {
    let mut entries = a.entries();
    let either = |(of, port)| b.matches(of, port) > 0;
    entries.any(either) || b.entries().any(|(of, port)| a.matches(of, port) > 0)
}

/// Names of daemons in the calling thread's namespace, each once.
fn names() -> io::Result<BTreeMap<String, Listen>> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix")?;
    let of = |line: &str| {
        let name = line.split_once('@')?.1;
        let listen = name.strip_prefix(PREFIX)?.rsplit_once('/')?.0.parse().ok()?;
        Some((name.to_owned(), listen))
    };
    Ok(table.lines().filter_map(of).take(FOUND_MAX).collect())
}

/// Daemons on other interfaces that limit addresses of this configuration, in the namespaces that can be
/// entered. `but`: those who are no others. With `knocks` they hear of it.
pub(crate) fn beside(
    config: &Config,
    knocks: bool,
    but: impl Fn(&Holder) -> bool + Sync,
) -> Vec<Beside> {
    let daemons = Daemons::of(config);
    let look = || {
        let mut found = Vec::new();
        for (name, theirs) in names()? {
            let ours = listens(config).find(|(_, _, ours)| overlap(*ours, theirs));
            let Some((service, index, _)) = ours else { continue };
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
            let other = |by: &Holder| daemons.have(by) && !but(by);
            let holder = ask_by(&socket()?, &address, |by| knocks && other(by))?;
            let of = |by| Beside { service: service.to_owned(), index, theirs, by };
            found.extend(holder.filter(other).map(of));
        }
        Ok(found)
    };
    let within = |interface: &InterfaceConfig| {
        within(interface, look).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot look for other daemons");
            Vec::new()
        })
    };
    namespaces(config).iter().flat_map(within).collect()
}

impl Neighbours {
    /// Shows what a configuration limits, and nothing else. In a namespace that cannot be entered any more
    /// stays what was shown before.
    pub(crate) fn follow(&mut self, config: &Config) {
        let mut wanted = Vec::new();
        for interface in namespaces(config) {
            wanted.extend(listens(config).map(|(_, _, listen)| (interface.clone(), listen)));
        }
        wanted.truncate(SHOWN_MAX);
        let is = |shown: &Shown, (interface, listen): &(InterfaceConfig, Listen)| {
            shown.namespace == interface.namespace && shown.listen == *listen
        };
        self.shown.retain(|shown| wanted.iter().any(|one| is(shown, one)));
        for one in &wanted {
            if self.shown.iter().any(|shown| is(shown, one)) {
                continue;
            }
            let (interface, listen) = one;
            match within(interface, || show(*listen)) {
                Ok(socket) => {
                    let (namespace, listen) = (interface.namespace.clone(), *listen);
                    self.shown.push(Shown { namespace, listen, socket });
                }
                Err(error) => tracing::debug!(%listen, %error, "not shown to other daemons"),
            }
        }
    }

    /// What was heard of daemons that came since.
    pub(crate) fn heard(&self, daemons: &Daemons) -> Option<String> {
        let of = |shown: &Shown| {
            let by = heard(&shown.socket, CALLS_MAX, daemons)?;
            Some(sentence(shown.listen, &by))
        };
        // All are heard, so that no queue is full.
        self.shown.iter().filter_map(of).fold(None, |_, last| Some(last))
    }
}

/// A socket with the first free name of an address.
fn show(shown: Listen) -> io::Result<OwnedFd> {
    let (socket, pid) = (socket()?, std::process::id());
    for number in 0..ALIKE_MAX {
        let name = format!("{PREFIX}{shown}/{pid}-{number}");
        match bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
            Ok(()) => {
                listen(&socket, CALLS_MAX as i32)?;
                return Ok(socket);
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};

    /// Ports that no other test and no daemon has.
    fn config(interface: &str, listens: &str) -> Config {
        let text = format!(
            "interfaces: [{{name: {interface}}}]\nservices:\n  web: {{mode: enforce, listen: [{listens}]}}\n"
        );
        parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
    }

    fn nobody(_: &Holder) -> bool {
        false
    }

    /// Needs root.
    #[test]
    fn two_that_limit_one_address_hear_of_each_other() {
        let daemons = Daemons::of(&config("tgn0", "'*:64998'"));
        for (first, second, overlaps) in [
            ("*:64990", "*:64990", true),
            ("*:64991", "192.0.2.1:64991", true),
            ("192.0.2.1:64992", "*:64992", true),
            ("192.0.2.1:64993", "192.0.2.2:64993", false),
            ("0.0.0.0:64994", "[2001:db8::1]:64994", false),
            ("*:64995", "*:64996", false),
        ] {
            let mut ours = Neighbours::default();
            ours.follow(&config("tgn0", &format!("'{first}'")));
            let file = config("tgn1", &format!("'*:64997', '{second}'"));
            let looked = beside(&file, false, nobody);
            assert_eq!(looked.len(), usize::from(overlaps), "{first}, {second}: {looked:?}");
            assert_eq!(ours.heard(&daemons), None, "who only looks is no news");
            let found = beside(&file, true, nobody);
            assert!(found.iter().all(|one| (&*one.service, one.index) == ("web", 1)), "{found:?}");
            assert_eq!(ours.heard(&daemons).is_some(), overlaps, "{first}, {second}");
            let own = std::process::id();
            assert_eq!(beside(&file, true, |by| by.pid == Some(own)), [], "no others");
            drop(ours);
            assert_eq!(beside(&file, false, nobody), []);
        }
    }

    #[test]
    fn what_is_shown_follows_the_configuration() {
        let mut ours = Neighbours::default();
        let ports = || BTreeMap::from_iter(names().unwrap()).into_values().map(|l| l.port);
        let shown = |port: u16| ports().filter(|shown| *shown == port).count();
        ours.follow(&config("tgn0", "'*:64980', '*:64981'"));
        ours.follow(&config("tgn2", "'*:64981', '*:64982'"));
        assert_eq!([64_980, 64_981, 64_982].map(shown), [0, 1, 1]);
        let mut alike = Neighbours::default();
        alike.follow(&config("tgn3", "'*:64982'"));
        assert_eq!(shown(64_982), 2, "with the same process id, as of two PID namespaces");
    }
}
