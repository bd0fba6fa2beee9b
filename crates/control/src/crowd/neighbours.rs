// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the destinations behind a router say of each other: whether only one is slow, or its neighbours are, too. Those of
//! one server are no neighbours.
//!
//! A queue that they share, as that of a link, delays all alike. A neighbour that is slow, but has to wait much less than
//! the destination, has another reason: the server of the destination is what makes that slow.

use super::crowds::{Heard, Why};
use std::collections::BTreeMap;

/// A neighbour with a smaller share of the delay of a destination does not say why that is slow.
const ALIKE: f64 = 1.0 / 3.0;

/// Destinations whose demand says anything, by servers that are told apart by `S`.
#[derive(Debug)]
pub struct Neighbours<S> {
    all: BTreeMap<S, Vec<Heard>>,
}

impl<S: Ord> Neighbours<S> {
    /// Why a server is slow, by the others. Right after an alarm a neighbour of few exchanges may not have shown it yet.
    #[must_use]
    pub fn why(&self, server: &S) -> Why {
        let own = self.all.get(server).map_or(&[][..], Vec::as_slice);
        let delay_s = own.iter().map(|one| one.delay_s).fold(0.0, f64::max);
        let others = || self.all.iter().filter(|(other, _)| *other != server).flat_map(|(_, h)| h);
        let slow = others().filter(|one| one.is_slow && one.delay_s >= ALIKE * delay_s);
        Why::of(others().map(|one| one.demand).sum(), slow.map(|one| one.demand).sum())
    }
}

/// Servers, and what their destinations say.
impl<S: Ord> FromIterator<(S, Heard)> for Neighbours<S> {
    fn from_iter<I: IntoIterator<Item = (S, Heard)>>(heard: I) -> Self {
        let mut all: BTreeMap<S, Vec<Heard>> = BTreeMap::new();
        for (server, one) in heard {
            all.entry(server).or_default().push(one);
        }
        Self { all }
    }
}
