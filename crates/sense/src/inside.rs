// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a client is this host, or a container or virtual machine on it: what those ask of a service need
//! not pass a hook.
//!
//! The kernel's routes say by which interface a client is reached; to ask for one takes no lock. Interfaces
//! are listed aside. Who cannot be classified counts as inside: that is evidence of nothing.

use crate::aside::Aside;
use crate::link::{LinkFacts, ask_way, links};
use crate::netlink::Route;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use tidegate_units::Nanos;

/// So long a list of interfaces holds.
const KEPT: Nanos = Nanos::from_secs(30);
/// Most clients that are remembered.
const KNOWN_MAX: usize = 4096;
/// Links whose other end is a container or a virtual machine, unless there is a router behind them.
const ENDS: [&str; 5] = ["veth", "macvlan", "macvtap", "ipvlan", "ipvtap"];

/// What is known of clients, in our own network namespace.
#[derive(Default)]
pub(crate) struct Inside {
    known: BTreeMap<IpAddr, bool>,
    links: Vec<LinkFacts>,
    listed: Option<Nanos>,
    listing: Aside<io::Result<Vec<LinkFacts>>>,
    route: Option<Route>,
}

impl Inside {
    /// Once a tick. `wanted`: there may be clients to classify.
    pub(crate) fn prepare(&mut self, now: Nanos, wanted: bool) {
        if let Some(found) = self.listing.answer() {
            self.links = found.unwrap_or_default();
            self.listed = Some(now);
            self.known.clear();
        }
        if wanted && self.listed.is_none_or(|listed| now.since(listed) >= KEPT) {
            self.listing.begin(|| links(Path::new("/sys")));
        }
    }

    /// Whether this client is inside, or not known.
    pub(crate) fn is_inside(&mut self, client: IpAddr) -> bool {
        if let Some(inside) = self.known.get(&client) {
            return *inside;
        }
        let inside = self.ask(client).unwrap_or_else(|_| {
            self.route = None;
            true
        });
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(client, inside);
        inside
    }

    fn ask(&mut self, client: IpAddr) -> io::Result<bool> {
        let route = match &mut self.route {
            Some(route) => route,
            none => none.insert(Route::open(None)?),
        };
        let way = ask_way(route, client)?;
        let link = self.links.iter().find(|link| link.index == way.index);
        Ok(way.local || link.is_none_or(|link| leads_inside(link, &self.links, way.routed)))
    }
}

/// Whether this link leads to somebody on this host.
fn leads_inside(link: &LinkFacts, all: &[LinkFacts], routed: bool) -> bool {
    let kind = link.kind.as_deref().unwrap_or_default();
    // A tap has an Ethernet header, a tun none: behind that there are clients of a VPN.
    let is_end = ENDS.contains(&kind) || kind == "tun" && !link.plain;
    // A bridge whose containers are gone has no port.
    let is_empty = || kind == "bridge" && all.iter().all(|port| port.master != Some(link.index));
    is_end && !routed || link.is_inner_bridge(all) || is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn link(index: u32, kind: &str, master: Option<u32>) -> LinkFacts {
        let kind = Some(kind.to_owned()).filter(|kind| !kind.is_empty());
        LinkFacts { index, kind, master, ..LinkFacts::default() }
    }

    #[test]
    fn ends_of_links_and_bridges_to_containers_lead_inside() {
        let tun = LinkFacts { plain: true, ..link(7, "tun", None) };
        let all = [
            link(1, "", None),
            link(2, "bridge", None),
            link(3, "veth", Some(2)),
            link(4, "bridge", None),
            link(5, "", Some(4)),
            link(6, "bridge", None),
            tun,
            link(8, "tun", None),
            link(9, "macvlan", None),
            link(10, "vlan", None),
        ];
        let inside = |index: u32, routed| {
            let link = all.iter().find(|link| link.index == index).unwrap();
            leads_inside(link, &all, routed)
        };
        let direct = (1..=10).filter(|index| inside(*index, false)).collect::<Vec<_>>();
        assert_eq!(direct, [2, 3, 6, 8, 9]);
        let routed = (1..=10).filter(|index| inside(*index, true)).collect::<Vec<_>>();
        assert_eq!(
            routed,
            [2, 6],
            "a container's veth may lead to a router; a bridge to them does not"
        );
    }

    /// Ends with drop.
    struct Space(String);

    impl Space {
        fn ip(&self, arguments: &str) {
            let mut command = Command::new("ip");
            let status = command.args(["-n", &self.0]).args(arguments.split(' ')).status();
            assert!(status.unwrap().success(), "ip {arguments}");
        }
    }

    impl Drop for Space {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
        }
    }

    /// Needs root.
    #[test]
    fn clients_are_classified_by_the_way_to_them_once_interfaces_are_listed() {
        let space = Space(format!("tgi{}", std::process::id()));
        assert!(Command::new("ip").args(["netns", "add", &space.0]).status().unwrap().success());
        for line in [
            "link set lo up",
            "link add u0 type veth peer name u1",
            "link add b0 type bridge",
            "link add p0 type veth peer name p1",
            "link set p0 master b0",
            "address add 192.0.2.1/24 dev u0",
            "address add 172.17.0.1/16 dev b0",
            "link set u0 up",
            "link set u1 up",
            "link set p0 up",
            "link set p1 up",
            "link set b0 up",
            "route add 198.51.100.0/24 via 192.0.2.254",
        ] {
            space.ip(line);
        }
        let path = Path::new("/run/netns").join(&space.0);
        let classified = crate::in_namespace(Some(&path), || {
            let mut inside = Inside::default();
            let far = IpAddr::from([198, 51, 100, 7]);
            let before = inside.is_inside(far);
            while inside.links.is_empty() {
                inside.prepare(Nanos::SECOND, true);
                std::thread::yield_now();
            }
            let of = ["192.0.2.1", "172.17.0.9", "192.0.2.9", "198.51.100.7", "203.0.113.5"];
            Ok((before, of.map(|of| inside.is_inside(of.parse().unwrap()))))
        });
        // No route leads to the last one.
        assert_eq!(classified.unwrap(), (true, [true, true, true, false, true]));
    }
}
