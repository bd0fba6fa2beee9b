// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a client's address to what a configuration says of it: the longest prefix wins.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Values by prefix. A look-up costs one step for each length of prefix, however many there are.
#[derive(Clone, Debug)]
pub(crate) struct Prefixes<T> {
    v4: BTreeMap<u8, HashMap<Ipv4Net, T>>,
    v6: BTreeMap<u8, HashMap<Ipv6Net, T>>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self { v4: BTreeMap::new(), v6: BTreeMap::new() }
    }
}

impl<T: Copy> Prefixes<T> {
    /// Of these prefixes; of one that stands there twice the first counts.
    pub(crate) fn new(of: impl IntoIterator<Item = (IpNet, T)>) -> Self {
        let mut all = Self::default();
        for (prefix, value) in of {
            match prefix.trunc() {
                IpNet::V4(net) => {
                    all.v4.entry(net.prefix_len()).or_default().entry(net).or_insert(value);
                }
                IpNet::V6(net) => {
                    all.v6.entry(net.prefix_len()).or_default().entry(net).or_insert(value);
                }
            }
        }
        all
    }

    /// The value of the longest prefix that contains this address. An IPv4 address that is written as
    /// an IPv6 one is an IPv4 address.
    pub(crate) fn get(&self, address: IpAddr) -> Option<T> {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.iter().rev().find_map(|(length, nets)| {
                let net = Ipv4Net::new(address, *length).ok()?.trunc();
                nets.get(&net).copied()
            }),
            IpAddr::V6(address) => self.v6.iter().rev().find_map(|(length, nets)| {
                let net = Ipv6Net::new(address, *length).ok()?.trunc();
                nets.get(&net).copied()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_in_both_families() {
        let prefixes = Prefixes::new(
            [("10.0.0.0/8", 1), ("10.1.0.0/16", 2), ("10.1.2.3/32", 3), ("2001:db8::/32", 4)]
                .map(|(prefix, value)| (prefix.parse().unwrap(), value)),
        );
        for (address, value) in [
            ("10.9.9.9", Some(1)),
            ("10.1.9.9", Some(2)),
            ("10.1.2.3", Some(3)),
            ("::ffff:10.1.2.3", Some(3)),
            ("11.0.0.1", None),
            ("2001:db8::1", Some(4)),
            ("2001:db9::1", None),
        ] {
            assert_eq!(prefixes.get(address.parse().unwrap()), value, "{address}");
        }
    }
}
