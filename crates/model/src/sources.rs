// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the clients behind one address do with their connections.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Bits of an IPv6 address that tell one source from another.
pub const SOURCE_IPV6_BITS: u8 = 64;

/// One source of one service that has connections open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceUse {
    /// Index of the service.
    pub service: usize,
    /// The address, of IPv6 the first 64 bits.
    pub source: IpNet,
    /// Connections that are open.
    pub open: u32,
    /// Of these, those that have sent no request, or send one slowly.
    pub held: u32,
    /// Most that were open at once, lately.
    pub peak: u32,
    /// Of its last connections, those that got a response.
    pub good: u32,
    /// Of its last connections, those that ended without a request, or while it was slow.
    pub bad: u32,
    /// Exchanges that its last connections completed.
    pub exchanges: u32,
}

impl SourceUse {
    /// The source that an address belongs to.
    #[must_use]
    pub fn of(address: IpAddr) -> IpNet {
        match address.to_canonical() {
            IpAddr::V4(address) => IpNet::V4(Ipv4Net::from(address)),
            IpAddr::V6(address) => {
                let whole = Ipv6Net::from(address);
                IpNet::V6(Ipv6Net::new(address, SOURCE_IPV6_BITS).unwrap_or(whole).trunc())
            }
        }
    }

    /// Whether it completes more of its connections than not; those that wait for the server count
    /// for it. The dataplane never caps such a source (track/source.h).
    #[must_use]
    pub fn completes(&self) -> bool {
        let (good, bad) = (u64::from(self.good), u64::from(self.bad));
        good + u64::from(self.open) > bad + 2 * u64::from(self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_a_source_and_an_ipv6_prefix_of_64_bits() {
        for (address, source) in [
            ("192.0.2.7", "192.0.2.7/32"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ] {
            assert_eq!(SourceUse::of(address.parse().unwrap()).to_string(), source);
        }
    }

    #[test]
    fn what_waits_for_the_server_counts_for_its_source() {
        let source = |open, held, good, bad| SourceUse {
            service: 0,
            source: SourceUse::of([192, 0, 2, 7].into()),
            open,
            held,
            peak: open,
            good,
            bad,
            exchanges: good,
        };
        for (open, held, good, bad, completes) in [
            (10, 10, 0, 0, false),
            (10, 10, 10, 0, false),
            (10, 10, 11, 0, true),
            (30, 10, 0, 10, false),
            (31, 10, 0, 10, true),
            (1, 0, 0, 1, false),
            (1, 0, 0, 0, true),
        ] {
            let source = source(open, held, good, bad);
            assert_eq!(source.completes(), completes, "{source:?}");
        }
    }
}
