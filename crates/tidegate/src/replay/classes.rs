// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a client's address to its class, as the dataplane finds it: the longest source prefix.

use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;
use tidegate_config::{CLASS_DEFAULT, Config, ServiceConfig};
use tidegate_model::PRIORITY_DEFAULT;
use tidegate_sim::world::Arrival;
use tidegate_units::Nanos;

/// The name under which clients that are exempt are counted.
pub(crate) const EXEMPT: &str = "exempt clients";

/// A class as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) name: String,
    pub(crate) priority: u8,
}

/// All prefixes of one length and family, and what they stand for.
#[derive(Debug)]
struct Length {
    bits: u8,
    v6: bool,
    prefixes: HashMap<u128, u8>,
}

/// The classes of a service.
#[derive(Debug)]
pub(crate) struct Classes {
    /// Those of the configuration, then `default`, then those who are exempt.
    pub(crate) all: Vec<Class>,
    sources: Vec<Length>,
    never: Vec<Length>,
    /// Whether it matters who has completed a connection before.
    proves: bool,
}

impl Classes {
    pub(crate) fn new(config: &Config, service: &ServiceConfig) -> Self {
        let mut all: Vec<Class> = service
            .classes
            .iter()
            .map(|class| Class { name: class.name.clone(), priority: class.priority })
            .collect();
        all.push(Class { name: CLASS_DEFAULT.to_owned(), priority: PRIORITY_DEFAULT });
        all.push(Class { name: EXEMPT.to_owned(), priority: 0 });
        let mut sources = Vec::new();
        for (index, class) in service.classes.iter().enumerate() {
            class.sources.iter().for_each(|net| add(&mut sources, net, index as u8));
        }
        let mut never = Vec::new();
        config.exempt.sources.iter().for_each(|net| add(&mut never, net, 0));
        sort(&mut sources);
        sort(&mut never);
        let caps = &config.replies;
        let proves = caps.rst_per_second > 0 && caps.rst_per_second_proved > 0;
        Self { all, sources, never, proves }
    }

    /// What a client is; one without an address is of the default class.
    pub(crate) fn of(&self, client: Option<IpAddr>) -> Arrival {
        let last = self.all.len() - 1;
        let exempt = client.is_some_and(|ip| find(&self.never, ip).is_some());
        let named = client.and_then(|ip| find(&self.sources, ip)).map_or(last - 1, usize::from);
        let class = if exempt { last } else { named };
        let priority = self.all[class].priority;
        let source = client.filter(|_| self.proves).map(source);
        Arrival { class: class as u8, priority, exempt, source, ..Arrival::at(Nanos::ZERO) }
    }

    /// Whether addresses make a difference.
    pub(crate) fn need_addresses(&self) -> bool {
        !self.sources.is_empty() || !self.never.is_empty()
    }
}

/// The number of a source: an address, of IPv6 a /64.
fn source(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(ip) => 0xffff_0000_0000 | u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
    }
}

fn add(lengths: &mut Vec<Length>, net: &IpNet, class: u8) {
    let (bits, v6) = (net.prefix_len(), matches!(net, IpNet::V6(_)));
    let found = lengths.iter().position(|l| (l.bits, l.v6) == (bits, v6));
    let index = found.unwrap_or_else(|| {
        lengths.push(Length { bits, v6, prefixes: HashMap::new() });
        lengths.len() - 1
    });
    let key = key(net.addr(), bits);
    lengths[index].prefixes.entry(key).or_insert(class);
}

/// The longest first.
fn sort(lengths: &mut [Length]) {
    lengths.sort_by_key(|l| std::cmp::Reverse(l.bits));
}

/// The first `bits` of an address, and nothing behind them.
fn key(ip: IpAddr, bits: u8) -> u128 {
    let (value, width) = match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    value.checked_shr(u32::from(width - bits)).unwrap_or(0)
}

fn find(lengths: &[Length], ip: IpAddr) -> Option<u8> {
    let ip = ip.to_canonical();
    let same = lengths.iter().filter(|l| l.v6 == ip.is_ipv6());
    same.into_iter().find_map(|l| l.prefixes.get(&key(ip, l.bits)).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};

    #[test]
    fn the_longest_prefix_decides_and_exempt_goes_before_all() {
        let text = "interfaces: [{name: lo}]\nexempt: {sources: [198.51.100.9]}\nservices:\n  \
            web:\n    mode: enforce\n    listen: [\"*:80\"]\n    classes:\n      \
            - {name: partners, sources: [198.51.100.0/24, \"2001:db8::/32\"], priority: 2}\n      \
            - {name: gold, sources: [198.51.100.128/25], priority: 0}\n";
        let config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let classes = Classes::new(&config, &config.services[0]);
        for (client, name, priority) in [
            ("198.51.100.1", "partners", 2),
            ("198.51.100.200", "gold", 0),
            ("::ffff:198.51.100.200", "gold", 0),
            ("198.51.100.9", EXEMPT, 0),
            ("198.51.101.1", "default", 7),
            ("2001:db8::1", "partners", 2),
            ("2001:db9::1", "default", 7),
        ] {
            let found = classes.of(client.parse().ok());
            let class = &classes.all[usize::from(found.class)];
            assert_eq!((class.name.as_str(), found.priority), (name, priority), "{client}");
            assert_eq!(found.exempt, name == EXEMPT);
        }
        assert_eq!(classes.of(None).class, 2, "no address: default");
    }

    #[test]
    fn a_source_is_an_address_or_a_64_where_it_matters_who_came_before() {
        let text = "interfaces: [{name: lo}]\nservices:\n  web:\n    mode: enforce\n    \
            listen: [\"*:80\"]\n";
        let of = |answers: &str, client: &str| {
            let registry = Registry::new(["fresh_first"], ["default"]);
            let config = parse(&format!("{text}{answers}"), &registry).unwrap();
            Classes::new(&config, &config.services[0]).of(client.parse().ok()).source
        };
        for (a, b, same) in [
            ("198.51.100.1", "::ffff:198.51.100.1", true),
            ("198.51.100.1", "198.51.100.2", false),
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff::9", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
        ] {
            assert_eq!(of("", a) == of("", b), same, "{a} {b}");
        }
        assert_eq!(of("", "nobody"), None);
        for none in ["replies: {rst_per_second_proved: 0}\n", "replies: {rst_per_second: 0}\n"] {
            assert_eq!(of(none, "198.51.100.1"), None, "{none}");
        }
    }
}
