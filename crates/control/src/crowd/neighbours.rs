// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the destinations behind a router say of each other: whether only one is slow, or its neighbours are, too. Those of
//! one server are no neighbours.

use super::crowds::Why;
use std::collections::BTreeMap;

/// Demand, and that of it which is slow, of servers that are told apart by `S`.
#[derive(Debug)]
pub struct Neighbours<S> {
    all: (f64, f64),
    by_server: BTreeMap<S, (f64, f64)>,
}

impl<S: Ord> Neighbours<S> {
    /// Why a server is slow, by the others. Right after an alarm a neighbour of few exchanges may not have shown it yet.
    #[must_use]
    pub fn why(&self, server: &S) -> Why {
        let own = self.by_server.get(server).copied().unwrap_or_default();
        // What is left of a sum of others' shares may not be exactly nothing.
        let (all, slow) = (self.all.0 - own.0, self.all.1 - own.1);
        if self.by_server.keys().all(|other| other == server) {
            return Why::Unknown;
        }
        Why::of(all, slow)
    }
}

/// Destinations whose demand says anything: server, demand, whether they are slow.
impl<S: Ord> FromIterator<(S, f64, bool)> for Neighbours<S> {
    fn from_iter<I: IntoIterator<Item = (S, f64, bool)>>(heard: I) -> Self {
        let mut neighbours = Self { all: (0.0, 0.0), by_server: BTreeMap::new() };
        for (server, demand, is_slow) in heard {
            let slow = if is_slow { demand } else { 0.0 };
            let own = neighbours.by_server.entry(server).or_default();
            for sum in [own, &mut neighbours.all] {
                *sum = (sum.0 + demand, sum.1 + slow);
            }
        }
        neighbours
    }
}
