// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that come to a service past our hooks, in one direction or in both.
//!
//! A hook on the port of a bridge, behind a program of somebody else that ends the chain, on an
//! interface that the traffic does not come by: it is attached, everything looks well, and nothing
//! is protected. The kernel knows better. It counts the connections that it opened for listeners
//! (Tcp PassiveOpens, one small file). Only where that number grows while a hook saw no SYN of a
//! service, or SYNs and no SYN-ACK, the connections of its ports are listed.
//!
//! Not counted: what comes from this host itself (it goes by the loopback device, or into a container by
//! no hook), sources that are exempt, whose SYNs no service counts, and what was sent to another address
//! than the service's: two services may have one port.

use crate::connections::{CONNECTIONS_MAX, Connection, ConnectionSource};
use crate::link::way_to;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use tidegate_model::Listen;
use tidegate_model::signals::{ConnectionCounts, Counts};
use tidegate_model::snapshot::Bypassed;
use tidegate_units::Nanos;

/// How often it is looked, and how long nothing was seen before the first look.
pub(crate) const LOOK_EVERY: Nanos = Nanos::SECOND;
/// So long nothing was seen before anything is said.
const UNSEEN_MIN: Nanos = Nanos::from_secs(3);
/// So long after its SYN a connection may be opened (deferred accept, a handshake that is repeated).
pub(crate) const LATE_MAX: Nanos = Nanos::from_secs(10);
/// So many connections at least, beside those that may be late.
const CONNECTIONS_MIN: u64 = 5;
/// What was found counts for so long, unless something is seen.
const HOLD: Nanos = Nanos::from_secs(60);
/// Most ports of one service that are listed.
const PORTS_MAX: usize = 16;

/// What the hooks saw of one service since the tick before; `None`: not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// SYNs.
    pub(crate) offered: Option<u64>,
    /// SYNs that passed.
    pub(crate) admitted: u64,
    /// SYNs that the server replied to.
    pub(crate) replied: Option<u64>,
    /// Connections that the server has for certain: they cannot be late any more.
    pub(crate) opened: u64,
}

impl Seen {
    /// What was counted. `defers`: whether the server waits for a request before it takes a connection, if that is known;
    /// `full`: its accept queue was full of late. Where it does not wait and there is room, a connection is opened with its
    /// handshake; else with its first request at the latest: for what finds no room the kernel forgets the handshake,
    /// and sends its SYN-ACK again.
    pub(crate) fn of(counts: &Counts, defers: Option<bool>, full: bool) -> Self {
        let opened = |of: &ConnectionCounts| match (defers, full) {
            (Some(false), false) => of.proved.max(of.asked),
            _ => of.asked,
        };
        Self {
            offered: Some(counts.offered),
            admitted: counts.admitted,
            replied: counts.connections.as_ref().map(|of| of.replied),
            opened: counts.connections.as_ref().map_or(0, opened),
        }
    }
}

/// What came past the hooks of one service of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Connections none of whose packets was seen.
    pub(crate) bypassed: Option<Bypassed>,
    /// Connections whose SYN was seen, and no packet of the server.
    pub(crate) unreplied: Option<Bypassed>,
}

/// What is known of one service.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    requests: Sight,
    replies: Sight,
    /// A SYN has passed since the last reply was seen.
    passed: bool,
    /// SYNs that passed, and opened connections, of the last [`LATE_MAX`].
    recent: VecDeque<(Nanos, u64, u64)>,
}

/// What a look needs.
pub(crate) struct Look<'a> {
    /// Ports of the service's listeners.
    pub(crate) ports: &'a BTreeSet<u16>,
    /// Where the service listens.
    pub(crate) listen: &'a [Listen],
    pub(crate) exempt: &'a [IpNet],
    /// Whether an address is this host's.
    pub(crate) of_host: fn(IpAddr) -> bool,
    /// They are in our own network namespace.
    pub(crate) own: bool,
    pub(crate) source: &'a mut dyn ConnectionSource,
}

impl Bypass {
    /// What the hooks saw in a tick. `look`: the kernel has opened connections since the last look,
    /// for whomever, and it is time to look again.
    pub(crate) fn tick(&mut self, now: Nanos, seen: &Seen, mut look: Option<Look<'_>>) -> Found {
        let late = self.late(now, seen);
        // What is not known is no evidence.
        if seen.offered.is_none_or(|offered| offered > 0) {
            self.requests.saw(now, late);
        } else if let Some(look) = &mut look {
            self.requests.look(now, look);
        }
        let unknown = seen.offered.is_none() || seen.replied.is_none();
        self.passed |= seen.admitted > 0;
        if unknown || seen.replied > Some(0) || !self.passed {
            self.passed = false;
            self.replies.saw(now, late);
        } else if let Some(look) = &mut look {
            self.replies.look(now, look);
        }
        Found { bypassed: self.requests.found(now), unreplied: self.replies.found(now) }
    }

    /// How many connections may still be opened for SYNs that were seen.
    fn late(&mut self, now: Nanos, seen: &Seen) -> u64 {
        if seen.admitted > 0 || seen.opened > 0 {
            self.recent.push_back((now, seen.admitted, seen.opened));
        }
        while self.recent.front().is_some_and(|(at, ..)| now.since(*at) > LATE_MAX) {
            self.recent.pop_front();
        }
        let sum = |of: fn(&(Nanos, u64, u64)) -> u64| self.recent.iter().map(of).sum::<u64>();
        sum(|of| of.1).saturating_sub(sum(|of| of.2))
    }
}

/// One direction.
#[derive(Debug, Default)]
struct Sight {
    /// When something was seen last, or it was begun to look.
    seen: Option<Nanos>,
    /// Connections that were due then and may be late.
    late: u64,
    /// The connections of each port when they were listed last.
    known: BTreeMap<u16, Listed>,
    /// New connections, by when they were found.
    found: VecDeque<(Nanos, u64)>,
    /// Who made the last of them, and the interface by which that client is reached, once it was
    /// asked for.
    client: Option<IpAddr>,
    interface: Option<String>,
}

#[derive(Debug, Default)]
struct Listed {
    connections: BTreeSet<Connection>,
    cut: bool,
}

impl Sight {
    fn saw(&mut self, now: Nanos, late: u64) {
        *self = Self { seen: Some(now), late, ..Self::default() };
    }

    fn look(&mut self, now: Nanos, look: &mut Look<'_>) {
        if now.since(*self.seen.get_or_insert(now)) < LOOK_EVERY {
            return;
        }
        let mut count = 0;
        for port in look.ports.iter().take(PORTS_MAX) {
            // What cannot be listed is no evidence.
            let Ok(listed) = look.source.list(*port) else { continue };
            let listed_now = Listed::of(&listed);
            if let Some(before) = self.known.insert(*port, listed_now) {
                let counts = |c: &&Connection| {
                    // In another namespace this host's addresses are not that namespace's.
                    let local = c.remote == c.local
                        || c.remote.is_loopback()
                        || !look.own && (look.of_host)(c.remote);
                    let exempt = look.exempt.iter().any(|net| net.contains(&c.remote));
                    !local && !exempt && look.listen.iter().any(|of| is_to(of, *port, c.local))
                };
                for connection in new(&before, &listed).filter(counts) {
                    count += 1;
                    self.client = Some(connection.remote);
                }
            }
        }
        if count > 0 {
            self.found.push_back((now, count));
        }
    }

    fn found(&mut self, now: Nanos) -> Option<Bypassed> {
        while self.found.front().is_some_and(|(at, _)| now.since(*at) > HOLD) {
            self.found.pop_front();
        }
        let unseen = now.since(self.seen?);
        let connections = self.found.iter().map(|(_, count)| count).sum();
        let late = if unseen < LATE_MAX { self.late } else { 0 };
        if unseen < UNSEEN_MIN || connections < CONNECTIONS_MIN + late {
            return None;
        }
        let (client, span) = (self.client, unseen.min(HOLD));
        // Also of a container's: DNAT changes where a connection goes, and not who it is from.
        let asked = || client.and_then(|client| way_to(client).ok()).unwrap_or_default();
        let interface = self.interface.get_or_insert_with(asked).clone();
        Some(Bypassed { connections, span, client, interface })
    }
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
    use std::io;

    /// So many connections since the beginning, of which the last `open` are open.
    struct World {
        from: [u8; 4],
        opened: u16,
        open: u16,
        fails: bool,
        listen: &'static str,
        own: bool,
    }

    impl ConnectionSource for World {
        fn list(&mut self, port: u16) -> io::Result<Vec<Connection>> {
            if self.fails {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            assert_eq!(port, 80);
            let local = "192.0.2.1".parse().unwrap();
            let remote = self.from.into();
            let ports = self.opened.saturating_sub(self.open)..self.opened;
            Ok(ports.map(|remote_port| Connection { local, remote, remote_port }).collect())
        }
    }

    const FAR: [u8; 4] = [198, 51, 100, 7];

    /// Looks `looks` times while connections come; what is found at the end.
    fn after(looks: u64, each: u16, world: &mut World, bypass: &mut Bypass) -> Found {
        let (mut found, mut now) = (Found::default(), LAST);
        for _ in 0..looks {
            world.opened += each;
            now += LOOK_EVERY;
            found = look(now, &BLIND, world, bypass);
        }
        found
    }

    fn look(now: Nanos, seen: &Seen, world: &mut World, bypass: &mut Bypass) -> Found {
        let ports = BTreeSet::from([80]);
        let exempt = ["203.0.113.0/24".parse().unwrap()];
        let listen = [world.listen.parse().unwrap()];
        let of_host = |address: IpAddr| address == IpAddr::from([172, 17, 0, 1]);
        let own = world.own;
        let look =
            Look { ports: &ports, listen: &listen, exempt: &exempt, of_host, own, source: world };
        bypass.tick(now, seen, Some(look))
    }

    /// When a SYN was seen last.
    const LAST: Nanos = Nanos::SECOND;
    const BLIND: Seen = Seen { offered: Some(0), admitted: 0, replied: Some(0), opened: 0 };
    const BUSY: Seen = Seen { offered: Some(9), admitted: 9, replied: Some(9), opened: 9 };

    fn seen(by: &Seen) -> Bypass {
        let mut bypass = Bypass::default();
        bypass.tick(LAST, by, None);
        bypass
    }

    fn world(from: [u8; 4]) -> World {
        World { from, opened: 1000, open: 100, fails: false, listen: "*:80", own: true }
    }

    fn count(found: Option<Bypassed>) -> Option<(u64, Nanos)> {
        found.map(|found| (found.connections, found.span))
    }

    #[test]
    fn connections_that_no_hook_saw_are_found_after_a_while_and_never_before() {
        let found =
            |looks, each| count(after(looks, each, &mut world(FAR), &mut seen(&BUSY)).bypassed);
        assert_eq!(found(2, 50), None, "2 s");
        // The first look says what was there before.
        assert_eq!(found(3, 50), Some((100, UNSEEN_MIN)));
        assert_eq!(found(5, 1), None, "4 connections");
        assert_eq!(found(6, 1).map(|(connections, _)| connections), Some(5));
        assert_eq!(found(5, 0), None, "old connections are none");
        let found = after(3, 50, &mut world(FAR), &mut seen(&BUSY));
        assert_eq!(found.bypassed.unwrap().client, Some(FAR.into()));
        assert_eq!(found.unreplied, None, "no SYN was seen that a reply is owed to");
    }

    #[test]
    fn connections_that_may_be_late_are_waited_for() {
        let late = Seen { opened: 0, ..BUSY };
        let found = |looks, each| after(looks, each, &mut world(FAR), &mut seen(&late)).bypassed;
        assert_eq!(found(3, 6), None, "12, of which 9 may be late");
        assert_eq!(count(found(3, 7)), Some((14, UNSEEN_MIN)));
        assert_eq!(found(9, 1), None);
        assert_eq!(count(found(10, 1)), Some((9, LATE_MAX)), "so late is none");
    }

    #[test]
    fn replies_that_no_hook_saw_are_found_where_syns_were_seen() {
        let mute = Seen { replied: Some(0), opened: 0, ..BUSY };
        let after = |looks: u64, by: &Seen, opened: u16| {
            let (mut world, mut bypass) = (world(FAR), seen(&BUSY));
            let mut found = Found::default();
            for second in 1..=looks {
                world.opened += opened;
                found = look(LAST + Nanos::from_secs(second), by, &mut world, &mut bypass);
            }
            assert_eq!(found.bypassed, None);
            count(found.unreplied)
        };
        assert_eq!(after(2, &mute, 9), None, "2 s");
        assert_eq!(after(3, &mute, 9), Some((18, UNSEEN_MIN)));
        assert_eq!(after(9, &mute, 0), None, "a full queue, or a server that is down");
        assert_eq!(after(9, &BUSY, 9), None);
        assert_eq!(after(9, &Seen { replied: None, ..mute }, 9), None, "not known");
    }

    /// Clients that connect and say nothing are no excuse for 10 s, unless the server waits for their requests.
    #[test]
    fn silent_connections_of_a_server_that_does_not_wait_are_not_late() {
        let connections =
            ConnectionCounts { replied: 60, proved: 60, ..ConnectionCounts::default() };
        let silent = Counts {
            offered: 60,
            admitted: 60,
            connections: Some(connections),
            ..Counts::default()
        };
        for (defers, full, found) in [
            (Some(false), false, Some((18, UNSEEN_MIN))),
            (Some(false), true, None),
            (Some(true), false, None),
            (None, false, None),
        ] {
            let (mut world, mut bypass) = (world(FAR), seen(&Seen::of(&silent, defers, full)));
            let mute = Seen { replied: Some(0), opened: 9, ..BUSY };
            let mut last = Found::default();
            for second in 1..=3 {
                world.opened += 9;
                last = look(LAST + Nanos::from_secs(second), &mute, &mut world, &mut bypass);
            }
            assert_eq!(count(last.unreplied), found, "{defers:?} {full}");
        }
    }

    #[test]
    fn one_syn_that_is_seen_is_enough_and_without_news_it_is_over_in_time() {
        let mut bypass = seen(&BUSY);
        let mut world = world(FAR);
        assert!(after(6, 50, &mut world, &mut bypass).bypassed.is_some());
        let last = LAST + Nanos(6 * LOOK_EVERY.0);
        assert!(bypass.tick(last + HOLD, &BLIND, None).bypassed.is_some());
        assert!(bypass.tick(last + HOLD + Nanos(1), &BLIND, None).bypassed.is_none());
        assert!(after(6, 50, &mut world, &mut bypass).bypassed.is_some());
        assert_eq!(bypass.tick(last, &BUSY, None), Found::default());
    }

    #[test]
    fn what_is_of_this_host_or_exempt_or_cannot_be_listed_is_no_evidence() {
        for (from, fails) in [
            ([127, 0, 0, 1], false),
            ([192, 0, 2, 1], false),
            ([203, 0, 113, 9], false),
            (FAR, true),
        ] {
            let mut world = World { fails, ..world(from) };
            let found = after(9, 50, &mut world, &mut seen(&BUSY));
            assert_eq!(found, Found::default(), "{from:?}");
        }
    }

    /// Two services of one port: what is sent to the other one is none of ours.
    #[test]
    fn what_is_sent_to_another_address_is_no_evidence() {
        for (listen, found) in
            [("192.0.2.1:80", true), ("192.0.2.2:80", false), ("0.0.0.0:80", true), ("*:81", false)]
        {
            let mut world = World { listen, ..world(FAR) };
            let seen = after(9, 50, &mut world, &mut seen(&BUSY));
            assert_eq!(seen.bypassed.is_some(), found, "{listen}");
        }
    }

    /// A check by the userland proxy of a container comes from the host's side of the bridge.
    #[test]
    fn what_the_host_sends_into_a_container_is_no_evidence() {
        for (from, own, found) in [
            ([172, 17, 0, 1], false, false),
            ([172, 17, 0, 9], false, true),
            ([172, 17, 0, 1], true, true),
        ] {
            let mut world = World { own, ..world(from) };
            let seen = after(9, 50, &mut world, &mut seen(&BUSY));
            assert_eq!(seen.bypassed.is_some(), found, "{from:?} {own}");
        }
    }

    /// DNAT leaves the address of a client as it is, so our routes lead to those of a container, too. (The kernel takes
    /// 0.0.0.0 for this host itself, whatever its routes are.)
    #[test]
    fn the_way_to_a_client_is_named_also_if_it_came_to_a_container() {
        for own in [true, false] {
            let mut world = World { own, ..world([0, 0, 0, 0]) };
            let found = after(9, 50, &mut world, &mut seen(&BUSY)).bypassed.unwrap();
            assert_eq!(found.interface, "lo", "own: {own}");
        }
    }

    #[test]
    fn behind_the_end_of_a_list_that_was_cut_off_nothing_is_new() {
        let connection = |remote_port| Connection {
            local: [192, 0, 2, 1].into(),
            remote: FAR.into(),
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
