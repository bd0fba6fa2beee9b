// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that come to a service past our hooks, in one direction or in both.
//!
//! A hook on the port of a bridge, behind a program of somebody else that ends the chain, on one of two
//! interfaces by which clients come: it is attached, everything looks well, and some or all of the traffic
//! is not protected. The kernel knows better. It counts the connections that it opened for listeners
//! (Tcp PassiveOpens, one small file). Only where these are more than the SYNs that hooks let pass, or
//! no SYN-ACK was seen, the connections of the service's ports are listed, and compared with its SYNs
//! (`crate::surplus`).
//!
//! Not counted: what comes from this host itself (it goes by the loopback device, or into a container by
//! no hook), or from its containers, sources that are exempt, whose SYNs no service counts, and what was
//! sent to another address than the service's: two services may have one port.

use crate::connections::ConnectionSource;
use crate::surplus::Surplus;
use ipnet::IpNet;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use tidegate_model::Listen;
use tidegate_model::snapshot::Bypassed;
use tidegate_units::Nanos;

/// How often it is looked.
pub(crate) const LOOK_EVERY: Nanos = Nanos::SECOND;
/// So long after its SYN a connection may be opened (deferred accept, a handshake that is repeated).
pub(crate) const LATE_MAX: Nanos = Nanos::from_secs(10);

/// What the hooks saw of one service since the tick before; `None`: not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// SYNs.
    pub(crate) offered: Option<u64>,
    /// SYNs that passed.
    pub(crate) admitted: u64,
    /// SYNs that the server replied to.
    pub(crate) replied: Option<u64>,
    /// Connections that sent a first request.
    pub(crate) asked: u64,
}

/// What came past the hooks of one service of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Connections whose SYN no hook saw.
    pub(crate) bypassed: Option<Bypassed>,
    /// Connections whose SYN was seen, and no packet of the server.
    pub(crate) unreplied: Option<Bypassed>,
}

/// What is known of one service.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    requests: Surplus,
    replies: Surplus,
    /// A SYN has passed since the last reply was seen.
    passed: bool,
    /// SYNs that passed, and first requests, of the last [`LATE_MAX`].
    recent: VecDeque<(Nanos, u64, u64)>,
}

/// What a look needs.
pub(crate) struct Look<'a> {
    /// Ports of the service's listeners.
    pub(crate) ports: &'a BTreeSet<u16>,
    /// Where the service listens.
    pub(crate) listen: &'a [Listen],
    pub(crate) exempt: &'a [IpNet],
    /// Where this host's containers are.
    pub(crate) inner: &'a [IpNet],
    /// The interfaces with hooks.
    pub(crate) hooked: &'a [String],
    /// Whether an address is this host's.
    pub(crate) of_host: fn(IpAddr) -> bool,
    /// They are in our own network namespace, where the route to a client can be asked for.
    pub(crate) own: bool,
    pub(crate) source: &'a mut dyn ConnectionSource,
}

impl Bypass {
    /// Whether nothing was ever listed that a later list could be compared with.
    pub(crate) fn is_new(&self) -> bool {
        self.requests.is_new()
    }

    /// What the hooks saw in a tick. `look`: it is time to look again, and the kernel has opened
    /// connections since the last look, for whomever; `surplus`: more than hooks let pass.
    pub(crate) fn tick(
        &mut self,
        now: Nanos,
        seen: &Seen,
        surplus: bool,
        mut look: Option<Look<'_>>,
    ) -> Found {
        let late = self.late(now, seen);
        // What is not known is no evidence.
        if seen.offered.is_none() {
            self.requests.forget();
        } else {
            self.requests.saw(now, seen.admitted, late);
            if let Some(look) = look.as_mut().filter(|_| surplus || self.requests.is_new()) {
                self.requests.look(now, look);
            }
        }
        let unknown = seen.offered.is_none() || seen.replied.is_none();
        self.passed |= seen.admitted > 0;
        if unknown || seen.replied > Some(0) || !self.passed {
            self.passed = false;
            self.replies.forget();
        } else {
            self.replies.saw(now, 0, late);
            if let Some(look) = &mut look {
                self.replies.look(now, look);
            }
        }
        Found { bypassed: self.requests.found(now), unreplied: self.replies.found(now) }
    }

    /// How many connections may still be opened for SYNs that were seen.
    fn late(&mut self, now: Nanos, seen: &Seen) -> u64 {
        if seen.admitted > 0 || seen.asked > 0 {
            self.recent.push_back((now, seen.admitted, seen.asked));
        }
        while self.recent.front().is_some_and(|(at, ..)| now.since(*at) > LATE_MAX) {
            self.recent.pop_front();
        }
        let sum = |of: fn(&(Nanos, u64, u64)) -> u64| self.recent.iter().map(of).sum::<u64>();
        sum(|of| of.1).saturating_sub(sum(|of| of.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::Connection;
    use crate::surplus::HOLD;
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

    /// Looks `looks` times while connections come of which the hooks see nothing; what is found at the end.
    fn after(looks: u64, each: u16, world: &mut World, bypass: &mut Bypass) -> Found {
        beside(&BLIND, (LAST, looks, each), world, bypass)
    }

    /// The same while hooks see something, and since a time.
    fn beside(
        seen: &Seen,
        (since, looks, each): (Nanos, u64, u16),
        world: &mut World,
        bypass: &mut Bypass,
    ) -> Found {
        let mut found = Found::default();
        for second in 1..=looks {
            world.opened += each;
            let now = since + Nanos::from_secs(second);
            bypass.tick(now - Nanos::from_millis(100), seen, false, None);
            found = look(now, &BLIND, world, bypass);
        }
        found
    }

    fn look(now: Nanos, seen: &Seen, world: &mut World, bypass: &mut Bypass) -> Found {
        let ports = BTreeSet::from([80]);
        let exempt = ["203.0.113.0/24".parse().unwrap()];
        let inner = ["172.18.0.0/16".parse().unwrap()];
        let look = Look {
            ports: &ports,
            listen: &[world.listen.parse().unwrap()],
            exempt: &exempt,
            inner: &inner,
            hooked: &[],
            of_host: |address| address == IpAddr::from([172, 17, 0, 1]),
            own: world.own,
            source: world,
        };
        bypass.tick(now, seen, true, Some(look))
    }

    /// When a SYN was seen last, and it was looked for the first time.
    const LAST: Nanos = Nanos::SECOND;
    const SPAN_MIN: Nanos = Nanos::from_secs(3);
    const BLIND: Seen = Seen { offered: Some(0), admitted: 0, replied: Some(0), asked: 0 };
    const BUSY: Seen = seen(9);

    /// SYNs that passed, were replied to, and sent a request.
    const fn seen(syns: u64) -> Seen {
        Seen { offered: Some(syns), admitted: syns, replied: Some(syns), asked: syns }
    }

    /// A service of which the hooks saw this, and what was open then is known.
    fn begin(by: &Seen, world: &mut World) -> Bypass {
        let mut bypass = Bypass::default();
        assert_eq!(look(LAST, by, world, &mut bypass), Found::default());
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
        let found = |looks, each| {
            let mut world = world(FAR);
            let mut bypass = begin(&BUSY, &mut world);
            after(looks, each, &mut world, &mut bypass)
        };
        assert_eq!(found(2, 50), Found::default(), "2 s");
        assert_eq!(count(found(3, 50).bypassed), Some((150, SPAN_MIN)));
        assert_eq!(found(4, 1), Found::default(), "4 connections");
        assert_eq!(count(found(5, 1).bypassed), Some((5, Nanos::from_secs(5))));
        assert_eq!(found(5, 0), Found::default(), "old connections are none");
        let found = found(3, 50);
        assert_eq!(found.bypassed.unwrap().client, Some(FAR.into()));
        assert_eq!(found.unreplied, None, "no SYN was seen that a reply is owed to");
    }

    /// A second way in, beside one with hooks.
    #[test]
    fn connections_beside_those_that_hooks_see_are_found_where_they_are_a_tenth_of_all() {
        for (syns, each, looks, expected) in [
            (90, 100, 2, None),
            (90, 100, 3, Some((30, 270))),
            (90, 99, 3, None),
            (1, 2, 4, None),
            (1, 2, 5, Some((5, 5))),
            (9, 9, 60, None),
            (100, 20, 60, None),
        ] {
            let mut world = world(FAR);
            let mut bypass = begin(&seen(syns), &mut world);
            let found = beside(&seen(syns), (LAST, looks, each), &mut world, &mut bypass);
            let found = found.bypassed.map(|found| (found.connections, found.seen));
            assert_eq!(found, expected, "{syns} of {each}, {looks} looks");
        }
    }

    #[test]
    fn a_time_of_which_the_list_missed_much_hides_nothing_of_what_comes_later() {
        let mut world = world(FAR);
        let mut bypass = begin(&BUSY, &mut world);
        let busy = Nanos::from_secs(60);
        beside(&seen(500), (LAST, 60, 5), &mut world, &mut bypass);
        let found = beside(&seen(90), (LAST + busy, 3, 100), &mut world, &mut bypass);
        assert_eq!(count(found.bypassed), Some((30, SPAN_MIN)));
    }

    #[test]
    fn connections_that_may_be_late_are_waited_for() {
        let late = Seen { asked: 0, ..BUSY };
        let found = |looks, each| {
            let mut world = world(FAR);
            let mut bypass = begin(&late, &mut world);
            count(after(looks, each, &mut world, &mut bypass).bypassed)
        };
        assert_eq!(found(3, 4), None, "12, of which 9 may be late");
        assert_eq!(found(3, 5), Some((15, SPAN_MIN)));
        assert_eq!(found(9, 1), None);
        assert_eq!(found(10, 1), Some((10, LATE_MAX)), "so late is none");
    }

    #[test]
    fn replies_that_no_hook_saw_are_found_where_syns_were_seen() {
        let mute = Seen { replied: Some(0), asked: 0, ..BUSY };
        let after = |looks: u64, by: &Seen, opened: u16| {
            let mut world = world(FAR);
            let mut bypass = begin(&BUSY, &mut world);
            let found = beside(by, (LAST, looks, opened), &mut world, &mut bypass);
            assert_eq!(found.bypassed, None);
            count(found.unreplied)
        };
        // The first look says what was there before.
        assert_eq!(after(3, &mute, 9), None, "2 s");
        assert_eq!(after(4, &mute, 9), Some((27, SPAN_MIN)));
        assert_eq!(after(9, &mute, 0), None, "a full queue, or a server that is down");
        assert_eq!(after(9, &BUSY, 9), None);
        assert_eq!(after(9, &Seen { replied: None, ..mute }, 9), None, "not known");
    }

    /// A health check by the way with hooks is no excuse for the other one.
    #[test]
    fn it_is_over_once_hooks_see_what_comes_and_without_news_in_time() {
        let mut world = world(FAR);
        let mut bypass = begin(&BUSY, &mut world);
        assert!(after(6, 50, &mut world, &mut bypass).bypassed.is_some());
        let last = LAST + Nanos(6 * LOOK_EVERY.0);
        assert!(bypass.tick(last + Nanos(1), &seen(1), true, None).bypassed.is_some());
        let mut found = |after: Nanos, seen: &Seen| {
            bypass.tick(last + after, seen, false, None).bypassed.is_some()
        };
        assert!(found(HOLD, &BLIND));
        assert!(!found(HOLD + Nanos(1), &BLIND));
        let mut bypass = begin(&BUSY, &mut world);
        after(6, 50, &mut world, &mut bypass);
        let mended = beside(&BUSY, (last, 9, 9), &mut world, &mut bypass);
        assert!(mended.bypassed.is_some(), "9 s");
        let later = last + Nanos::from_secs(9);
        assert_eq!(beside(&BUSY, (later, 1, 9), &mut world, &mut bypass), Found::default());
        assert_eq!(after(1, 0, &mut world, &mut bypass), Found::default(), "for good");
    }

    #[test]
    fn without_what_hooks_saw_nothing_can_be_said() {
        let mut world = world(FAR);
        let mut bypass = begin(&BUSY, &mut world);
        assert!(after(6, 50, &mut world, &mut bypass).bypassed.is_some());
        let unknown = Seen { offered: None, ..BUSY };
        let now = LAST + Nanos::from_secs(7);
        assert_eq!(look(now, &unknown, &mut world, &mut bypass), Found::default());
        assert!(bypass.is_new(), "what is there is looked at anew");
    }

    #[test]
    fn what_is_of_this_host_or_exempt_or_cannot_be_listed_is_no_evidence() {
        for (from, fails) in [
            ([127, 0, 0, 1], false),
            ([192, 0, 2, 1], false),
            ([203, 0, 113, 9], false),
            ([172, 18, 0, 9], false),
            (FAR, true),
        ] {
            let mut world = World { fails, ..world(from) };
            let mut bypass = begin(&BUSY, &mut world);
            let found = after(9, 50, &mut world, &mut bypass);
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
            let mut bypass = begin(&BUSY, &mut world);
            let seen = after(9, 50, &mut world, &mut bypass);
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
            let mut bypass = begin(&BUSY, &mut world);
            let seen = after(9, 50, &mut world, &mut bypass);
            assert_eq!(seen.bypassed.is_some(), found, "{from:?} {own}");
        }
    }
}
