// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that were opened beyond those that hooks saw.
//!
//! From one look to the next, the connections that are new in the list of the service's ports are compared
//! with what hooks saw in the same time. The list misses those that came and went in between, and the SYNs
//! that passed are at least as many as the connections that came of them. So both errors hide a surplus, and
//! neither makes one up. The surplus counts over the looks behind any of them: a busy time before, of which
//! the list missed much, hides nothing of what comes later.

use crate::bypass::{LATE_MAX, LOOK_EVERY, Look};
use crate::connections::{CONNECTIONS_MAX, Connection};
use crate::link::ways_to;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use tidegate_model::Listen;
use tidegate_model::snapshot::Bypassed;
use tidegate_units::Nanos;

/// So long there is a surplus before anything is said.
const SPAN_MIN: Nanos = Nanos::from_secs(3);
/// So many connections at least, beside those that may be late.
const CONNECTIONS_MIN: u64 = 5;
/// And at least one of so many that were opened. Repeated SYNs and SYNs that the server had no room for
/// make what hooks saw larger, never smaller; below this, a few SYNs that hooks pass without counting them (IP
/// options, fragments) might be all.
const ONE_OF_MAX: u64 = 10;
/// What was found counts for so long, unless hooks see what comes.
pub(crate) const HOLD: Nanos = Nanos::from_secs(60);
/// After so long in which hooks saw what came, nothing is held.
const MENDED: Nanos = Nanos::from_secs(10);
/// After so long since the last look one was left out.
const SKIPPED: Nanos = Nanos(2 * LOOK_EVERY.0);
/// Most ports of one service that are listed.
const PORTS_MAX: usize = 16;
/// Of so many clients, the last ones, it is asked by which interface they come.
const CLIENTS_MAX: usize = 32;

/// What one look found.
#[derive(Clone, Copy, Debug)]
struct Looked {
    /// When it was looked, and when the time before.
    at: Nanos,
    before: Nanos,
    /// New connections, and what hooks saw, since the time before.
    listed: u64,
    seen: u64,
    /// Connections that were due the time before and may be late.
    late: u64,
}

impl Looked {
    /// Since when there may be a surplus: as long as there was none it was not looked.
    fn begin(&self) -> Nanos {
        self.before.max(Nanos(self.at.0.saturating_sub(LOOK_EVERY.0)))
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Surplus {
    /// The connections of each port when they were listed last, and when that was.
    known: BTreeMap<u16, Listed>,
    looked: Option<Nanos>,
    /// What hooks saw since, and the connections that were due then and may be late.
    seen: u64,
    late: u64,
    late_now: u64,
    /// When hooks saw something last.
    last_seen: Option<Nanos>,
    looks: VecDeque<Looked>,
    /// Who made the last of them, without repetition.
    clients: VecDeque<IpAddr>,
    /// They are in our own network namespace, and have changed since it was asked.
    own: bool,
    ask: bool,
    hooked: Vec<String>,
    /// One of the clients, and the interface by which it is reached.
    way: Option<(IpAddr, String)>,
}

#[derive(Debug, Default)]
struct Listed {
    connections: BTreeSet<Connection>,
    cut: bool,
}

impl Surplus {
    /// Begins anew.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn is_new(&self) -> bool {
        self.looked.is_none()
    }

    /// Hooks saw this since the tick before; so many connections may still be opened for it.
    pub(crate) fn saw(&mut self, now: Nanos, seen: u64, late: u64) {
        self.seen += seen;
        self.late_now = late;
        if seen > 0 {
            self.last_seen = Some(now);
        }
    }

    /// Lists, and compares with what hooks saw since the last time.
    pub(crate) fn look(&mut self, now: Nanos, look: &mut Look<'_>) {
        let listed = self.list(look);
        let (seen, late) = (std::mem::take(&mut self.seen), self.late);
        self.late = self.late_now;
        if let Some(before) = self.looked.replace(now) {
            self.looks.push_back(Looked { at: now, before, listed, seen, late });
        }
    }

    /// How many are there that were not there the time before.
    fn list(&mut self, look: &mut Look<'_>) -> u64 {
        let mut count = 0;
        self.own = look.own;
        self.hooked = look.hooked.to_vec();
        for port in look.ports.iter().take(PORTS_MAX) {
            // What cannot be listed is no evidence.
            let Ok(listed) = look.source.list(*port) else { continue };
            let listed_now = Listed::of(&listed);
            let Some(before) = self.known.insert(*port, listed_now) else { continue };
            for connection in new(&before, &listed).filter(|of| is_evidence(of, *port, look)) {
                count += 1;
                self.clients.retain(|client| *client != connection.remote);
                self.clients.push_back(connection.remote);
                self.ask = true;
            }
        }
        while self.clients.len() > CLIENTS_MAX {
            self.clients.pop_front();
        }
        count
    }

    pub(crate) fn found(&mut self, now: Nanos) -> Option<Bypassed> {
        while self.looks.front().is_some_and(|look| now.since(look.at) > HOLD) {
            self.looks.pop_front();
        }
        if self.is_mended(now) {
            self.looks.clear();
        }
        let (begin, listed, seen) = self.largest(now)?;
        let span = now.since(begin).min(HOLD);
        let (client, interface) = self.way().unzip();
        let interface = interface.unwrap_or_default();
        let client = client.or(self.clients.back().copied());
        Some(Bypassed { connections: listed - seen, seen, span, client, interface })
    }

    /// Whether hooks have seen of late what came.
    fn is_mended(&self, now: Nanos) -> bool {
        let recent = |at: Nanos| now.since(at) < MENDED;
        let (mut listed, mut seen) = (0, self.unlisted(now));
        self.last_seen.is_some_and(recent)
            && self.looks.iter().rev().take_while(|look| recent(look.at)).all(|look| {
                (listed, seen) = (listed + look.listed, seen + look.seen);
                !is_much(listed, seen)
            })
    }

    /// What hooks saw since the last look, where it was not looked again because there was no surplus. Until it
    /// is time to look, it is not known what else came.
    fn unlisted(&self, now: Nanos) -> u64 {
        let skipped = self.looked.is_some_and(|looked| now.since(looked) >= SKIPPED);
        if skipped { self.seen } else { 0 }
    }

    /// Of the looks from one of them on: since when, connections, and what hooks saw, where the surplus is
    /// the largest that counts.
    fn largest(&self, now: Nanos) -> Option<(Nanos, u64, u64)> {
        let (mut listed, mut seen, mut largest) = (0, self.unlisted(now), None);
        for look in self.looks.iter().rev() {
            (listed, seen) = (listed + look.listed, seen + look.seen);
            let late = if now.since(look.before) < LATE_MAX { look.late } else { 0 };
            let surplus = listed.saturating_sub(seen);
            let counts = surplus >= CONNECTIONS_MIN + late && is_much(listed, seen);
            let larger = largest.is_none_or(|(_, listed, seen)| surplus > listed - seen);
            if counts && larger && now.since(look.begin()) >= SPAN_MIN {
                largest = Some((look.begin(), listed, seen));
            }
        }
        largest
    }

    /// A client that comes by an interface without hooks, if there is one; else the last.
    fn way(&mut self) -> Option<(IpAddr, String)> {
        let bare = |way: &(IpAddr, String)| !self.hooked.contains(&way.1);
        if std::mem::take(&mut self.ask) && self.own && !self.way.as_ref().is_some_and(bare) {
            let clients: Vec<IpAddr> = self.clients.iter().rev().copied().collect();
            let ways = ways_to(&clients).unwrap_or_default();
            let at = ways.iter().position(bare).unwrap_or(0);
            self.way = ways.into_iter().nth(at);
        }
        self.way.clone()
    }
}

/// Whether this is more than what may be an error.
fn is_much(listed: u64, seen: u64) -> bool {
    listed > seen && (listed - seen).saturating_mul(ONE_OF_MAX) >= listed
}

/// Whether a hook should have seen its SYN.
fn is_evidence(connection: &Connection, port: u16, look: &Look<'_>) -> bool {
    let remote = connection.remote;
    // In another namespace this host's addresses are not that namespace's.
    let local =
        remote == connection.local || remote.is_loopback() || !look.own && (look.of_host)(remote);
    let among = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&remote));
    let to = |listen: &Listen| is_to(listen, port, connection.local);
    !local && !among(look.exempt) && !among(look.inner) && look.listen.iter().any(to)
}

/// Whether a connection to this end is one to where a service listens.
fn is_to(listen: &Listen, port: u16, local: IpAddr) -> bool {
    let every = |address: IpAddr| address.is_unspecified() || address.to_canonical() == local;
    listen.port == port && listen.address.is_none_or(every)
}

impl Listed {
    fn of(connections: &[Connection]) -> Self {
        let cut = connections.len() >= CONNECTIONS_MAX;
        Self { connections: connections.iter().copied().collect(), cut }
    }
}

/// Connections that were not there before. Where the list before was cut off, only those in front of
/// one that was in it: behind that, they may have been there.
fn new<'a>(before: &'a Listed, now: &'a [Connection]) -> impl Iterator<Item = &'a Connection> {
    let known = |connection: &Connection| before.connections.contains(connection);
    let end = if before.cut { now.iter().rposition(known).unwrap_or(0) } else { now.len() };
    now[..end].iter().filter(move |connection| !known(connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_the_end_of_a_list_that_was_cut_off_nothing_is_new() {
        let connection = |remote_port| Connection {
            local: [192, 0, 2, 1].into(),
            remote: [198, 51, 100, 7].into(),
            remote_port,
        };
        let list = |ports: &[u16]| ports.iter().map(|port| connection(*port)).collect::<Vec<_>>();
        let count = |cut, now: &[u16]| {
            let before = Listed { cut, ..Listed::of(&list(&[10, 20, 30, 40])) };
            new(&before, &list(now)).count()
        };
        assert_eq!(count(false, &[10, 15, 20, 30, 40, 50, 60]), 3);
        assert_eq!(count(true, &[10, 15, 20, 30, 40, 50, 60]), 1, "50 and 60 may be old");
        assert_eq!(count(true, &[50, 60]), 0);
    }
}
