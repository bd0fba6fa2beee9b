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
    let all = addresses()?.into_iter().filter(comes).map(|(_, net)| net.addr());
    Ok(all.take(NODE_ADDRESSES_MAX).collect())
}

/// The addresses of the caller's network namespace, but for those of a single link (every link has one), each
/// with its network and the number of its interface.
pub(crate) fn addresses() -> io::Result<Vec<(u32, IpNet)>> {
    let mut found = Vec::new();
    let question = request(RTM_GETADDR, NLM_F_DUMP, &[0; IFADDRMSG], &[]);
    Route::open(None)?.ask(&question, |kind, message| {
        if kind == RTM_NEWADDR
            && message.len() >= IFADDRMSG
            && let Some(address) = nested(&message[IFADDRMSG..], IFA_ADDRESS).and_then(ip)
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
