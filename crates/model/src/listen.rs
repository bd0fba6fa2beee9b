// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listen addresses: `address:port[/tcp]`, `[v6]:port`, `*:port`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Transport protocols. One so far: a SYN is what is evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    #[default]
    /// TCP.
    Tcp,
}

impl Protocol {
    /// The protocol's number in the IP header.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
        }
    }
}

/// One address on which a service listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listen {
    /// The address; `None` is `*`: every address of both families. `0.0.0.0` and `::` stand for
    /// every address of their family.
    pub address: Option<IpAddr>,
    /// The port, never 0.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl Listen {
    /// What it stands for in the dataplane's tables: one entry, or two for `*`. An unspecified
    /// address means every address of its family.
    pub fn entries(self) -> impl Iterator<Item = (IpAddr, u16)> {
        let both = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let (first, second) = match self.address {
            Some(address) => (address, None),
            None => (both[0], Some(both[1])),
        };
        [Some(first), second].into_iter().flatten().map(move |address| (address, self.port))
    }

    /// How closely it describes this destination: 0 not at all, 1 by the port, 2 exactly.
    #[must_use]
    pub fn matches(self, address: IpAddr, port: u16) -> u8 {
        let of = |(a, p): (IpAddr, u16)| match () {
            () if p != port || a.is_ipv4() != address.is_ipv4() => 0,
            () if a == address => 2,
            () => u8::from(a.is_unspecified()),
        };
        self.entries().map(of).max().unwrap_or_default()
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, protocol) = text.split_once('/').map_or((text, "tcp"), |(p, proto)| (p, proto));
        if protocol != "tcp" {
            return Err(format!("protocol {protocol:?} is not known; tcp is"));
        }
        let (host, port) = place.rsplit_once(':').ok_or("it has no port")?;
        let address = parse_host(host)?;
        let number = port.parse::<u16>().ok().filter(|_| port.bytes().all(|b| b.is_ascii_digit()));
        let port = number.ok_or_else(|| format!("{port:?} is no port"))?;
        if port == 0 {
            return Err("port 0 is no port".into());
        }
        Ok(Self { address, port, protocol: Protocol::Tcp })
    }
}

fn parse_host(host: &str) -> Result<Option<IpAddr>, String> {
    if host == "*" {
        return Ok(None);
    }
    let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let address = match inner {
        Some(v6) => v6.parse::<Ipv6Addr>().map(IpAddr::V6).ok(),
        None => host.parse::<Ipv4Addr>().map(IpAddr::V4).ok(),
    };
    let Some(address) = address else {
        if host.parse::<Ipv6Addr>().is_ok() || host.contains(':') {
            return Err("an IPv6 address stands in brackets, such as \"[2001:db8::1]:80\"".into());
        }
        return Err(format!("{host:?} is no address (names are not looked up)"));
    };
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(format!("write the IPv4 address itself: {v4}"));
    }
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_multicast() || broadcast {
        return Err("no TCP service listens on a multicast or broadcast address".into());
    }
    Ok(Some(address))
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            None => write!(f, "*:{}", self.port),
            Some(IpAddr::V4(a)) => write!(f, "{a}:{}", self.port),
            Some(IpAddr::V6(a)) => write!(f, "[{a}]:{}", self.port),
        }
    }
}

crate::written_as_text!(Listen, "listen");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_address_describes_a_destination_more_closely_than_a_star() {
        let star: Listen = "*:80".parse().unwrap();
        let exact: Listen = "[2001:db8::1]:80/tcp".parse().unwrap();
        let any4: Listen = "0.0.0.0:80".parse().unwrap();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!([star.matches(v6, 80), exact.matches(v6, 80), any4.matches(v6, 80)], [1, 2, 0]);
        assert_eq!([star.matches(v4, 80), exact.matches(v4, 80), any4.matches(v4, 80)], [1, 0, 1]);
        assert_eq!(star.matches(v4, 81), 0);
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in ["192.0.2.10:80", "[2001:db8::10]:80", "*:443", "0.0.0.0:1", "[::]:65535"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
    }
}
