// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of a network namespace, by netlink.

use crate::link::{links, name_of};
use crate::netlink::{NLM_F_DUMP, Route, nested, request, u32_at};
use ipnet::IpNet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// linux/rtnetlink.h, linux/if_addr.h
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFA_ADDRESS: u16 = 1;
/// The own address, where the one above is that of the other end (point-to-point).
const IFA_LOCAL: u16 = 2;
/// Length of `ifaddrmsg`.
const IFADDRMSG: usize = 8;

/// The networks of bridges that only containers and virtual machines of this host are ports of.
pub(crate) fn inner_networks() -> io::Result<Vec<IpNet>> {
    let all = links(Path::new("/sys"))?;
    let inner: Vec<u32> =
        all.iter().filter(|link| link.is_inner_bridge(&all)).map(|link| link.index).collect();
    if inner.is_empty() {
        return Ok(Vec::new());
    }
    let of_inner = |(index, address): &(u32, IpNet)| inner.contains(index).then(|| address.trunc());
    Ok(addresses()?.iter().filter_map(of_inner).collect())
}

/// Most addresses of a node.
const NODE_ADDRESSES_MAX: usize = 64;
/// Where kube-proxy puts the addresses of Services (IPVS), which nobody comes from.
const OF_SERVICES: &str = "kube-ipvs0";

/// The addresses from which processes in the caller's network namespace come to others.
///
/// # Errors
/// When the kernel does not answer as expected.
pub fn node_addresses() -> io::Result<Vec<IpAddr>> {
    let comes = |(index, net): &(u32, IpNet)| {
        !net.addr().is_loopback() && name_of(*index).is_ok_and(|name| name != OF_SERVICES)
    };
    let all = list(own)?.into_iter().filter(comes).map(|(_, net)| net.addr());
    Ok(all.take(NODE_ADDRESSES_MAX).collect())
}

/// The addresses of the caller's network namespace, but for those of a single link (every link has one), each
/// with its network and the number of its interface.
pub(crate) fn addresses() -> io::Result<Vec<(u32, IpNet)>> {
    list(|attributes| nested(attributes, IFA_ADDRESS).and_then(ip))
}

/// The own address of an interface; `IFA_ADDRESS` is the other end's of a point-to-point link.
fn own(attributes: &[u8]) -> Option<IpAddr> {
    nested(attributes, IFA_LOCAL).or_else(|| nested(attributes, IFA_ADDRESS)).and_then(ip)
}

fn list(address: fn(&[u8]) -> Option<IpAddr>) -> io::Result<Vec<(u32, IpNet)>> {
    let mut found = Vec::new();
    let question = request(RTM_GETADDR, NLM_F_DUMP, &[0; IFADDRMSG], &[]);
    Route::open(None)?.ask(&question, |kind, message| {
        if kind == RTM_NEWADDR
            && message.len() >= IFADDRMSG
            && let Some(address) = address(&message[IFADDRMSG..])
            && let Ok(net) = IpNet::new(address, message[1])
            && !matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local())
        {
            found.push((u32_at(message, 4), net));
        }
    })?;
    Ok(found)
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::HEADER;

    #[test]
    fn the_own_address_of_a_point_to_point_link_is_not_that_of_the_other_end() {
        let attributes = |all: &[(u16, &[u8])]| request(0, 0, &[], all)[HEADER..].to_vec();
        let (here, there) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let of = |all: &[(u16, &[u8])]| own(&attributes(all));
        assert_eq!(of(&[(IFA_ADDRESS, &there), (IFA_LOCAL, &here)]), Some(here.into()));
        assert_eq!(of(&[(IFA_ADDRESS, &here)]), Some(here.into()), "IPv6 has often no other");
        assert_eq!(of(&[]), None);
    }
}
