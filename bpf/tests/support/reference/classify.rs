// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which service, which class (crates/model, the documentation of the configuration).

use super::parse::{Segment, mapped};
use crate::support::setup::{Listen, Prefix, Setup};
use std::net::IpAddr;

/// An address as 16 bytes; IPv4 is mapped.
fn octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(a) => mapped(&a.octets()),
        IpAddr::V6(a) => a.octets(),
    }
}

/// The service at the segment's destination: an exact address wins over any address.
pub fn service_of(setup: &Setup, segment: &Segment) -> Option<usize> {
    let with = |fits: &dyn Fn(&Listen) -> bool| {
        setup.services.iter().position(|service| {
            service.listen.iter().any(|listen| listen.port == segment.dport && fits(listen))
        })
    };
    with(&|listen| listen.addr.is_some_and(|addr| octets(addr) == segment.dst))
        .or_else(|| with(&|listen| listen.addr.is_none()))
}

/// How many bits of a prefix match the address, mapped into IPv6: `None` if it does not cover it.
fn covers(prefix: &Prefix, address: &[u8; 16]) -> Option<u32> {
    let base = if prefix.addr.is_ipv4() { 96 } else { 0 };
    let bits = base + u32::from(prefix.bits);
    let difference = u128::from_be_bytes(octets(prefix.addr)) ^ u128::from_be_bytes(*address);
    (difference.leading_zeros() >= bits).then_some(bits)
}

/// Whether source or port are on the list of what is never refused.
pub fn exempt(setup: &Setup, segment: &Segment) -> bool {
    setup.exempt_ports.contains(&segment.dport)
        || setup.exempt_sources.iter().any(|prefix| covers(prefix, &segment.src).is_some())
}

/// "A request belongs to the class with the longest of the source prefixes that match it, else to
/// the one of its DSCP, else to default" – the DSCP only where it is trusted.
pub fn class_of(setup: &Setup, service: usize, segment: &Segment) -> usize {
    let classes = &setup.services[service].classes;
    let by_source = classes.iter().enumerate().flat_map(|(at, class)| {
        let sources = class.sources.iter();
        sources.filter_map(move |prefix| covers(prefix, &segment.src).map(|bits| (bits, at)))
    });
    let by_dscp = || {
        let found = classes.iter().position(|class| class.dscp == Some(segment.dscp));
        found.filter(|_| setup.trust_dscp)
    };
    by_source
        .max_by_key(|(bits, _)| *bits)
        .map(|(_, at)| at)
        .or_else(by_dscp)
        .map_or(0, |at| at + 1)
}
