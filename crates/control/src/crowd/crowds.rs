// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All destinations behind a router, and why one of them is slow.

use super::crowd::{Crowd, CrowdSaid, CrowdTick};
use std::collections::BTreeMap;

/// Demand of a neighbour per second from which on it says anything.
const HEARD: f64 = 0.5;

/// Why a destination is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Only it: its server is.
    Server,
    /// Its neighbours, too: the link that they share is.
    Link,
    /// It has no neighbour that says anything.
    Unknown,
}

impl Why {
    /// For people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Server => "only this destination is slow: its server is at its limit",
            Self::Link => "its neighbours are slow, too: the link is at its limit",
            Self::Unknown => "it is slow, and no neighbour tells whether the link is",
        }
    }
}

/// The detectors of all destinations behind a router; keys are hashes of destinations.
#[derive(Clone, Debug, Default)]
pub struct Crowds {
    all: BTreeMap<u64, Crowd>,
}

impl Crowds {
    /// One tick of a destination; see [`Crowd::tick`].
    pub fn tick(&mut self, key: u64, tick: &CrowdTick<'_>, enforced: bool) -> CrowdSaid {
        self.all.entry(key).or_default().tick(tick, enforced)
    }

    /// Why a destination is slow: by most of the demand of its neighbours. Right after an alarm a neighbour
    /// of few exchanges may not have shown it yet.
    #[must_use]
    pub fn why(&self, key: u64) -> Why {
        let (mut slow, mut all) = (0.0, 0.0);
        for (_, crowd) in self.all.iter().filter(|(other, _)| **other != key) {
            if crowd.demand() >= HEARD {
                all += crowd.demand();
                slow += if crowd.is_slow() { crowd.demand() } else { 0.0 };
            }
        }
        match slow {
            _ if all <= 0.0 => Why::Unknown,
            slow if slow > 0.5 * all => Why::Link,
            _ => Why::Server,
        }
    }

    /// Demand of a destination per second, lately.
    #[must_use]
    pub fn demand(&self, key: u64) -> f64 {
        self.all.get(&key).map_or(0.0, Crowd::demand)
    }

    /// Forgets a destination.
    pub fn forget(&mut self, key: u64) {
        self.all.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::Took;
    use tidegate_units::Nanos;

    fn run(crowds: &mut Crowds, key: u64, (halves, n, bucket): (u32, u32, usize)) -> bool {
        let took = [Took { class: 3, bucket, count: n as i32 }];
        let tick = CrowdTick {
            period: Nanos::from_millis(500),
            took: &took,
            first_attempts: n,
            connected: n,
            started: n,
            completed: n,
            ..CrowdTick::default()
        };
        (0..halves).any(|_| crowds.tick(key, &tick, false).alarm)
    }

    #[test]
    fn neighbours_say_whether_it_is_the_link() {
        for (neighbour, why) in [(30, Why::Server), (40, Why::Link)] {
            let mut crowds = Crowds::default();
            for key in [1, 2] {
                assert!(!run(&mut crowds, key, (400, 10, 30)));
            }
            assert!(run(&mut crowds, 1, (40, 50, 40)), "the crowd is at 1");
            assert!(!run(&mut crowds, 2, (40, 10, neighbour)), "and not at its neighbour");
            assert_eq!(crowds.why(1), why, "{}", why.text());
            crowds.forget(2);
            assert_eq!(crowds.why(1), Why::Unknown);
        }
    }
}
