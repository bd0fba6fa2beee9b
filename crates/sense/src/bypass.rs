// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that come to a service past our hooks.
//!
//! A hook on the port of a bridge, behind a program of somebody else that ends the chain, on an
//! interface that the traffic does not come by: it is attached, everything looks well, and nothing
//! is protected. The kernel knows better. It counts the connections that it opened for listeners
//! (Tcp PassiveOpens, one small file); only where that number grows while a hook saw no SYN of a
//! service is it looked at whose they are, and only then the connections of its ports are listed.
//!
//! Not counted: what comes from this host itself (it goes by the loopback device), and sources that
//! are exempt, whose SYNs no service counts.

use crate::connections::{CONNECTIONS_MAX, Connection, ConnectionSource};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidegate_model::snapshot::Bypassed;
use tidegate_units::Nanos;

/// How often it is looked.
pub(crate) const LOOK_EVERY: Nanos = Nanos::from_secs(2);
/// So long no SYN was seen before anything is said: a SYN comes up to some seconds before the
/// connection that it opens (retransmitted handshakes, deferred accept).
const UNSEEN_MIN: Nanos = Nanos::from_secs(10);
/// So many connections at least: less may be late ones of SYNs that were seen.
const CONNECTIONS_MIN: u64 = 5;
/// What was found counts for so long, unless a SYN is seen.
const HOLD: Nanos = Nanos::from_secs(60);
/// Most ports of one service that are listed.
const PORTS_MAX: usize = 16;

/// What is known of one service.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    /// When a hook saw a SYN last, or it was begun to look.
    seen: Option<Nanos>,
    /// The connections of each port when they were listed last.
    known: BTreeMap<u16, Listed>,
    /// New connections, by when they were found.
    found: VecDeque<(Nanos, u64)>,
}

#[derive(Debug, Default)]
struct Listed {
    connections: BTreeSet<Connection>,
    cut: bool,
}

/// What a look needs.
pub(crate) struct Look<'a> {
    pub(crate) now: Nanos,
    /// Ports of the service's listeners.
    pub(crate) ports: &'a BTreeSet<u16>,
    pub(crate) exempt: &'a [IpNet],
    pub(crate) source: &'a mut dyn ConnectionSource,
}

impl Bypass {
    /// A hook saw SYNs of this service.
    pub(crate) fn saw(&mut self, now: Nanos) {
        *self = Self { seen: Some(now), ..Self::default() };
    }

    /// The kernel has opened connections since the last look, for whomever.
    pub(crate) fn look(&mut self, look: &mut Look<'_>) {
        self.seen.get_or_insert(look.now);
        let mut count = 0;
        for port in look.ports.iter().take(PORTS_MAX) {
            // What cannot be listed is no evidence.
            let Ok(listed) = look.source.list(*port) else { continue };
            let now = Listed::of(&listed);
            if let Some(before) = self.known.insert(*port, now) {
                let counts = |c: &&Connection| {
                    let local = c.remote == c.local || c.remote.is_loopback();
                    !local && !look.exempt.iter().any(|net| net.contains(&c.remote))
                };
                count += new(&before, &listed).filter(counts).count() as u64;
            }
        }
        if count > 0 {
            self.found.push_back((look.now, count));
        }
    }

    /// What came past the hooks of late.
    pub(crate) fn found(&mut self, now: Nanos) -> Option<Bypassed> {
        while self.found.front().is_some_and(|(at, _)| now.since(*at) > HOLD) {
            self.found.pop_front();
        }
        let unseen = now.since(self.seen?);
        let connections = self.found.iter().map(|(_, count)| count).sum();
        (unseen >= UNSEEN_MIN && connections >= CONNECTIONS_MIN)
            .then(|| Bypassed { connections, span: unseen.min(HOLD) })
    }
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
    fn after(looks: u64, each: u16, world: &mut World, bypass: &mut Bypass) -> Option<Bypassed> {
        let mut now = bypass.seen.unwrap_or(Nanos::SECOND);
        for _ in 0..looks {
            world.opened += each;
            now += LOOK_EVERY;
            let ports = BTreeSet::from([80]);
            let exempt = ["203.0.113.0/24".parse().unwrap()];
            bypass.look(&mut Look { now, ports: &ports, exempt: &exempt, source: world });
        }
        bypass.found(now)
    }

    fn world(from: [u8; 4]) -> World {
        World { from, opened: 1000, open: 100, fails: false }
    }

    #[test]
    fn connections_that_no_hook_saw_are_found_after_a_while_and_never_before() {
        let found = |looks, each| {
            let mut bypass = Bypass::default();
            bypass.saw(Nanos::SECOND);
            after(looks, each, &mut world(FAR), &mut bypass)
        };
        assert_eq!(found(4, 50), None, "8 s");
        // The first look says what was there before.
        assert_eq!(found(5, 50).map(|b| (b.connections, b.span)), Some((200, UNSEEN_MIN)));
        assert_eq!(found(5, 1), None, "4 connections");
        assert_eq!(found(6, 1).map(|b| b.connections), Some(5));
        assert_eq!(found(5, 0), None, "old connections are none");
    }

    #[test]
    fn one_syn_that_is_seen_is_enough_and_without_news_it_is_over_in_time() {
        let mut bypass = Bypass::default();
        let mut world = world(FAR);
        bypass.saw(Nanos::SECOND);
        let found = after(6, 50, &mut world, &mut bypass);
        assert!(found.is_some());
        let last = Nanos::SECOND + Nanos(6 * LOOK_EVERY.0);
        assert!(bypass.found(last + HOLD).is_some());
        assert!(bypass.found(last + HOLD + Nanos(1)).is_none());
        after(6, 50, &mut world, &mut bypass);
        bypass.saw(last);
        assert_eq!(bypass.found(last), None);
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
            let mut bypass = Bypass::default();
            bypass.saw(Nanos::SECOND);
            assert_eq!(after(9, 50, &mut world, &mut bypass), None, "{from:?}");
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
