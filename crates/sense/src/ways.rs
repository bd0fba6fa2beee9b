// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By which way a client is reached: what it is that a connection comes from.
//!
//! The kernel's routes say it, asked for one address at a time. Links are listed seldom: for that the kernel
//! takes a lock that who changes interfaces holds.

use crate::link::{LinkFacts, links};
use crate::netlink::{Route, nested, request, u32_at};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use tidegate_units::Nanos;

/// linux/rtnetlink.h
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_LOCAL: u8 = 2;
/// The route as it is in the table, with the length of its network.
const RTM_F_FIB_MATCH: u32 = 0x2000;
/// Length of `rtmsg`.
const RTMSG: usize = 12;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Errors that say that there is no route: ENETUNREACH, EHOSTUNREACH.
const NO_ROUTE: [i32; 2] = [101, 113];

/// So long answers are kept.
const KEPT: Nanos = Nanos::from_secs(30);
/// Most answers that are kept.
const KEPT_MAX: usize = 4096;
/// So long after the links were listed they are not listed again, whatever is new.
const LINKS_EVERY: Nanos = Nanos::from_secs(5);

/// What a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// This host, or a container or virtual machine on it.
    Inside,
    /// Somebody who is reached by this interface; empty: by none that is known.
    Outside(String),
    /// It cannot be said at the moment.
    Unknown,
}

/// Whoever knows that.
pub(crate) trait WaySource {
    /// What has this address.
    fn way(&mut self, now: Nanos, address: IpAddr) -> Way;
}

/// The kernel, in our own network namespace.
#[derive(Default)]
pub(crate) struct Ways {
    route: Option<Route>,
    known: BTreeMap<IpAddr, Way>,
    began: Option<Nanos>,
    links: BTreeMap<u32, (String, Kind)>,
    listed: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A bridge that leads to containers and virtual machines of this host, and nowhere else.
    InnerBridge,
    /// One end of a pair.
    Veth,
    Other,
}

/// What a route says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answer {
    local: bool,
    index: u32,
    gateway: bool,
    bits: u8,
}

impl WaySource for Ways {
    fn way(&mut self, now: Nanos, address: IpAddr) -> Way {
        if self.began.is_none_or(|began| now.since(began) >= KEPT) || self.known.len() >= KEPT_MAX {
            self.known.clear();
            self.began = Some(now);
        }
        if let Some(way) = self.known.get(&address) {
            return way.clone();
        }
        let way = match self.ask(now, address) {
            Ok(way) => way,
            Err(error) if error.raw_os_error().is_some_and(|code| NO_ROUTE.contains(&code)) => {
                Way::Outside(String::new())
            }
            Err(_) => {
                self.route = None;
                return Way::Unknown;
            }
        };
        if way != Way::Unknown {
            self.known.insert(address, way.clone());
        }
        way
    }
}

impl Ways {
    fn ask(&mut self, now: Nanos, address: IpAddr) -> io::Result<Way> {
        if address.is_loopback() {
            return Ok(Way::Inside);
        }
        let route = match &mut self.route {
            Some(route) => route,
            none => none.insert(Route::open(None)?),
        };
        let answer = ask(route, address, 0)?;
        if answer.local {
            return Ok(Way::Inside);
        }
        let unknown = !self.links.contains_key(&answer.index);
        let old = |every: Nanos| self.listed.is_none_or(|listed| now.since(listed) >= every);
        if old(KEPT) || unknown && old(LINKS_EVERY) {
            self.listed = Some(now);
            // What was known before is better than nothing.
            if let Ok(all) = links(Path::new("/sys")) {
                self.links = all.iter().map(|of| (of.index, kind(of, &all))).collect();
            }
        }
        Ok(match self.links.get(&answer.index) {
            None => Way::Unknown,
            Some((_, Kind::InnerBridge)) => Way::Inside,
            Some((_, Kind::Veth)) if !answer.gateway && is_alone(route, address)? => Way::Inside,
            Some((name, _)) => Way::Outside(name.clone()),
        })
    }
}

fn kind(link: &LinkFacts, all: &[LinkFacts]) -> (String, Kind) {
    let kind = match link.kind.as_deref() {
        Some("bridge") if link.is_inner_bridge(all) => Kind::InnerBridge,
        Some("veth") => Kind::Veth,
        _ => Kind::Other,
    };
    (link.name.clone(), kind)
}

/// Whether the route is one to this address alone: so containers are reached that have a link each.
fn is_alone(route: &mut Route, address: IpAddr) -> io::Result<bool> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    Ok(ask(route, address, RTM_F_FIB_MATCH)?.bits == bits)
}

fn ask(route: &mut Route, address: IpAddr, flags: u32) -> io::Result<Answer> {
    let (family, bytes) = match address {
        IpAddr::V4(ip) => (AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AF_INET6, ip.octets().to_vec()),
    };
    let mut fixed = [0; RTMSG];
    (fixed[0], fixed[1]) = (family, (bytes.len() * 8) as u8);
    fixed[8..].copy_from_slice(&flags.to_ne_bytes());
    let question = request(RTM_GETROUTE, 0, &fixed, &[(RTA_DST, &bytes)]);
    let mut answer = Answer::default();
    route.ask(&question, |kind, message| {
        if kind == RTM_NEWROUTE && message.len() >= RTMSG {
            let of = |attribute| nested(&message[RTMSG..], attribute);
            answer = Answer {
                local: message[7] == RTN_LOCAL,
                index: of(RTA_OIF).map_or(0, |oif| u32_at(oif, 0)),
                gateway: of(RTA_GATEWAY).or_else(|| of(RTA_VIA)).is_some(),
                bits: message[1],
            };
        }
    })?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn ip(arguments: &str) {
        let status = Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.unwrap().success(), "ip {arguments}");
    }

    /// Ends with drop.
    struct Space(String);

    impl Drop for Space {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
        }
    }

    /// Needs root.
    #[test]
    fn what_is_of_this_host_or_its_containers_is_inside_and_all_others_come_by_an_interface() {
        let space = Space(format!("tgw{}", std::process::id()));
        ip(&format!("netns add {}", space.0));
        for line in [
            "link set lo up",
            "link add c0 type veth peer name c1",
            "link add u0 type veth peer name u1",
            "link add b0 type bridge",
            "link add p0 type veth peer name p1",
            "link set p0 master b0",
            "address add 192.0.2.1/24 dev u0",
            "address add 198.51.100.1/32 dev lo",
            "address add 172.17.0.1/16 dev b0",
            "link set c0 up",
            "link set c1 up",
            "link set u0 up",
            "link set u1 up",
            "link set p0 up",
            "link set p1 up",
            "link set b0 up",
            "route add 10.0.0.7/32 dev c0",
            "route add default via 192.0.2.254",
        ] {
            ip(&format!("-n {} {line}", space.0));
        }
        let path = Path::new("/run/netns").join(&space.0);
        let found = crate::in_namespace(Some(&path), || {
            let mut ways = Ways::default();
            let addresses = [
                "127.0.0.1",
                "192.0.2.1",
                "198.51.100.1",
                "172.17.0.9",
                "10.0.0.7",
                "10.0.0.8",
                "192.0.2.9",
                "203.0.113.5",
                "2001:db8::1",
            ];
            Ok(addresses.map(|of| (of, ways.way(Nanos::ZERO, of.parse().unwrap()))))
        });
        let by = |name: &str| Way::Outside(name.to_owned());
        let wanted = [
            Way::Inside,
            Way::Inside,
            Way::Inside,
            Way::Inside,
            Way::Inside,
            by("u0"),
            by("u0"),
            by("u0"),
            by(""),
        ];
        for ((address, way), wanted) in found.unwrap().into_iter().zip(wanted) {
            assert_eq!(way, wanted, "{address}");
        }
    }
}
