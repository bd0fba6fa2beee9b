// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts about interfaces, for the check before attaching: by netlink, so that they are those of
//! the caller's network namespace (`/sys/class/net` shows the one in which /sys was mounted).

use crate::netlink::{NLM_F_DUMP, Route, attributes, nested, request, text, u16_at, u32_at};
use crate::netns::in_namespace;
use rustix::net::{AddressFamily, SocketType};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

/// What is known of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Largest packet in bytes, without the link's header.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// What kind of virtual interface it is (`veth`, `bridge`, `vlan` …); `None` for hardware and
    /// for the loopback.
    pub kind: Option<String>,
    /// Driver of the device behind it, where there is one.
    pub driver: Option<String>,
    /// Number of the interface below a virtual one (of a VLAN, a macvlan; of a veth the other end's), where
    /// that is in the same network namespace.
    pub lower: Option<u32>,
    /// The same of an interface of another network namespace ([`links_within`]), where the one below is in the
    /// caller's.
    pub lower_outside: Option<u32>,
    /// Number of the bridge or bond that it is a port of.
    pub master: Option<u32>,
    /// Whether its packets begin with IP, without an Ethernet header (tun, WireGuard, PPP).
    pub plain: bool,
    /// Number of the XDP program that is attached, native or generic.
    pub xdp_program: Option<u32>,
}

/// linux/rtnetlink.h, linux/if_link.h, linux/if.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
/// linux/rtnetlink.h, linux/net_namespace.h
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// Length of `rtgenmsg`, padded.
const RTGENMSG: usize = 4;
const IFF_UP: u32 = 1;
/// linux/if_arp.h
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
/// Length of `ifinfomsg`.
const IFINFO: usize = 16;

/// All interfaces of the caller's network namespace. `sys` is where /sys is (for the driver).
///
/// # Errors
/// When the kernel does not answer as expected.
pub fn links(sys: &Path) -> io::Result<Vec<LinkFacts>> {
    let listed = list(&mut Route::open(None)?, sys)?;
    Ok(listed.into_iter().map(|listed| listed.placed(None)).collect())
}

/// All interfaces of the network namespace at `path`.
///
/// # Errors
/// When it cannot be entered, or the kernel does not answer as expected.
pub fn links_within(path: &Path, sys: &Path) -> io::Result<Vec<LinkFacts>> {
    let own = fs::File::open("/proc/thread-self/ns/net")?;
    in_namespace(Some(path), || {
        let mut route = Route::open(None)?;
        let listed = list(&mut route, sys)?;
        // After the list: that gives a namespace its number, if it had none.
        let ours = number_of(&mut route, own.as_raw_fd()).unwrap_or_default();
        Ok(listed.into_iter().map(|listed| listed.placed(ours)).collect())
    })
}

/// The number by which the socket's network namespace knows another one.
fn number_of(route: &mut Route, namespace: RawFd) -> io::Result<Option<u32>> {
    let fd = namespace.to_ne_bytes();
    let question = request(RTM_GETNSID, 0, &[0; RTGENMSG], &[(NETNSA_FD, &fd)]);
    let mut number = None;
    route.ask(&question, |kind, message| {
        if kind == RTM_NEWNSID && message.len() >= RTGENMSG {
            number = nested(&message[RTGENMSG..], NETNSA_NSID).map(|id| u32_at(id, 0));
        }
    })?;
    Ok(number)
}

/// An interface, and the number of the other namespace in which the one below it is.
struct Listed {
    link: LinkFacts,
    lower_in: Option<u32>,
}

impl Listed {
    /// The interface, with the one below it where that is known: in its own namespace, or in `outside`.
    fn placed(self, outside: Option<u32>) -> LinkFacts {
        let Self { mut link, lower_in } = self;
        if lower_in.is_some() {
            link.lower_outside = link.lower.take().filter(|_| lower_in == outside);
        }
        link
    }
}

fn list(route: &mut Route, sys: &Path) -> io::Result<Vec<Listed>> {
    let all = request(RTM_GETLINK, NLM_F_DUMP, &[0; IFINFO], &[]);
    let mut found = Vec::new();
    route.ask(&all, |kind, message| {
        if kind == RTM_NEWLINK && message.len() >= IFINFO {
            found.push(facts(message, sys));
        }
    })?;
    Ok(found)
}

/// linux/rtnetlink.h
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
/// Length of `rtmsg`.
const RTMSG: usize = 12;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// A port for a socket that sends nothing.
const DISCARD: u16 = 9;

/// The name of the interface by which an address is reached from the caller's network namespace.
pub(crate) fn way_to(address: IpAddr) -> io::Result<String> {
    let (family, bytes) = match address {
        IpAddr::V4(ip) => (AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AF_INET6, ip.octets().to_vec()),
    };
    let mut fixed = [0; RTMSG];
    (fixed[0], fixed[1]) = (family, (bytes.len() * 8) as u8);
    let question = request(RTM_GETROUTE, 0, &fixed, &[(RTA_DST, &bytes)]);
    let mut index = 0;
    Route::open(None)?.ask(&question, |kind, message| {
        if kind == RTM_NEWROUTE && message.len() >= RTMSG {
            index = nested(&message[RTMSG..], RTA_OIF).map_or(0, |oif| u32_at(oif, 0));
        }
    })?;
    name_of(index)
}

/// The interface of the default route for IPv4, else for IPv6: that to an address which nobody has (RFC 5737, 3849).
#[must_use]
pub fn default_way() -> Option<String> {
    let nobody = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])];
    nobody.into_iter().find_map(|address| way_to(address).ok())
}

/// The name of an interface of the caller's network namespace. A list of all takes a lock that who changes them
/// holds; this does not.
pub(crate) fn name_of(index: u32) -> io::Result<String> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::index_to_name(&socket, index)?)
}

/// Whether an address is this host's: only then the kernel gives a packet to it the same address as its source.
/// Nothing is sent.
#[must_use]
pub fn is_of_host(address: IpAddr) -> bool {
    let any = match address {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, DISCARD))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == address)
}

impl LinkFacts {
    /// The bridge whose port to a container or a virtual machine this is: what arrives here comes from
    /// there, and connections to there leave by it.
    #[must_use]
    pub fn inner_port_of<'l>(&self, all: &'l [Self]) -> Option<&'l Self> {
        let bridge = all.iter().find(|link| Some(link.index) == self.master)?;
        let is = |link: &Self, kind: &str| link.kind.as_deref() == Some(kind);
        (is(bridge, "bridge") && (is(self, "veth") || is(self, "tun"))).then_some(bridge)
    }

    /// Whether this is a bridge that leads to containers and virtual machines of this host, and nowhere else.
    #[must_use]
    pub fn is_inner_bridge(&self, all: &[Self]) -> bool {
        let mut ports = all.iter().filter(|port| port.master == Some(self.index)).peekable();
        self.kind.as_deref() == Some("bridge")
            && ports.peek().is_some()
            && ports.all(|port| port.inner_port_of(all).is_some())
    }

    /// The interface below, by which all its traffic comes and leaves, too.
    #[must_use]
    pub fn on_top_of<'l>(&self, all: &'l [Self]) -> Option<&'l Self> {
        all.iter().find(|link| self.is_stacked() && Some(link.index) == self.lower)
    }

    /// The same where that is in the namespace of who asked ([`links_within`]), whose interfaces are `outside`.
    #[must_use]
    pub fn on_top_of_outside<'l>(&self, outside: &'l [Self]) -> Option<&'l Self> {
        outside.iter().find(|link| self.is_stacked() && Some(link.index) == self.lower_outside)
    }

    fn is_stacked(&self) -> bool {
        const KINDS: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
        self.kind.as_deref().is_some_and(|kind| KINDS.contains(&kind))
    }
}

fn facts(message: &[u8], sys: &Path) -> Listed {
    let mut link = LinkFacts {
        index: u32_at(message, 4),
        up: u32_at(message, 8) & IFF_UP != 0,
        plain: !matches!(u16_at(message, 2), ARPHRD_ETHER | ARPHRD_LOOPBACK),
        ..LinkFacts::default()
    };
    let (mut device, mut bus, mut lower_in) = (None, None, None);
    for (kind, value) in attributes(&message[IFINFO..]) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_LINK if value.len() == 4 => link.lower = Some(u32_at(value, 0)),
            IFLA_MASTER if value.len() == 4 => link.master = Some(u32_at(value, 0)),
            IFLA_LINK_NETNSID if value.len() == 4 => lower_in = Some(u32_at(value, 0)),
            IFLA_MTU if value.len() == 4 => link.mtu = u32_at(value, 0),
            IFLA_LINKINFO => link.kind = nested(value, IFLA_INFO_KIND).map(text),
            IFLA_XDP => {
                link.xdp_program = nested(value, IFLA_XDP_PROG_ID)
                    .filter(|id| id.len() == 4)
                    .map(|id| u32_at(id, 0));
            }
            IFLA_PARENT_DEV_NAME => device = Some(text(value)),
            IFLA_PARENT_DEV_BUS_NAME => bus = Some(text(value)),
            _ => {}
        }
    }
    if let (Some(bus), Some(device)) = (bus, device) {
        let path = sys.join("bus").join(bus).join("devices").join(device).join("driver");
        link.driver = fs::read_link(path)
            .ok()
            .and_then(|driver| Some(driver.file_name()?.to_str()?.to_owned()));
    }
    Listed { link, lower_in }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_known() {
        let all = links(Path::new("/sys")).unwrap();
        let lo = all.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!(way_to([127, 0, 0, 9].into()).unwrap(), "lo");
        assert!(lo.mtu >= 1500 && lo.index > 0 && lo.xdp_program.is_none_or(|id| id > 0), "{lo:?}");
    }
}
