// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the destinations behind a router say of each other: whether only one is slow, or its neighbours are, too. Ports of
//! one address are no neighbours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use tidegate_control::crowd::Why;

/// Demand, and that of it which is slow.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    all: (f64, f64),
    by_address: BTreeMap<IpAddr, (f64, f64)>,
}

impl Neighbours {
    /// Why a server is slow, by the others.
    pub(super) fn why(&self, address: IpAddr) -> Why {
        let own = self.by_address.get(&address).copied().unwrap_or_default();
        // What is left of a sum of others' shares may not be exactly nothing.
        let (all, slow) = (self.all.0 - own.0, self.all.1 - own.1);
        if self.by_address.keys().all(|other| *other == address) {
            return Why::Unknown;
        }
        Why::of(all, slow)
    }
}

/// Destinations whose demand says anything: address, demand, whether they are slow.
impl FromIterator<(IpAddr, f64, bool)> for Neighbours {
    fn from_iter<I: IntoIterator<Item = (IpAddr, f64, bool)>>(heard: I) -> Self {
        let mut neighbours = Self::default();
        for (address, demand, is_slow) in heard {
            let slow = if is_slow { demand } else { 0.0 };
            let own = neighbours.by_address.entry(address).or_default();
            for sum in [own, &mut neighbours.all] {
                *sum = (sum.0 + demand, sum.1 + slow);
            }
        }
        neighbours
    }
}
