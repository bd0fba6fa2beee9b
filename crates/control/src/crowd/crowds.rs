// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All destinations behind a router, and why one of them is slow.

use super::crowd::{Crowd, CrowdSaid, CrowdTick};
use serde_json::Value;
use std::collections::BTreeMap;
use tidegate_units::Nanos;

/// Demand of a neighbour per second from which on it says anything.
const HEARD: f64 = 0.5;

/// Who brings less than this share of what is beyond the usual, and less than twice its own usual, has no part in the
/// crowd.
const PART: f64 = 0.1;

/// A destination is hot with this share of the handshakes at those that are slow.
const HOT: f64 = 0.1;

/// Why a destination gets no limit, though it is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// It is not hot.
    Cold,
    /// It has no part in what is beyond the usual.
    Bystander,
}

impl Spared {
    /// For people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Cold => "it has less than a tenth of the connections to what is slow",
            Self::Bystander => "others bring the crowd: little more than usual comes to it",
        }
    }
}

/// What comes to all destinations that are slow.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    hits: f64,
    excess: f64,
}

/// Why a destination is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Only it: its server is.
    Server,
    /// Its neighbours, too: the link is, or something else that they share.
    Link,
    /// It has no neighbour that says anything.
    Unknown,
}

impl Why {
    /// By the demand of its neighbours, and how much of that is at those that are slow.
    pub(super) fn of(all: f64, slow: f64) -> Self {
        match slow {
            _ if all <= 0.0 => Self::Unknown,
            slow if slow > 0.5 * all => Self::Link,
            _ => Self::Server,
        }
    }

    /// The reason that has this text.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        [Self::Server, Self::Link, Self::Unknown].into_iter().find(|why| why.text() == text)
    }

    /// For people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Server => "only its server is slow",
            Self::Link => "others are slow, too: the link, or what they share",
            Self::Unknown => "its server or the link: no other server tells which",
        }
    }
}

/// What a destination says of how slow it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Heard {
    /// Demand per second.
    pub demand: f64,
    /// Whether it is slow at the moment.
    pub is_slow: bool,
    /// How much longer than usual its exchanges take, seconds.
    pub delay_s: f64,
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

    /// Those whose demand says anything, by their keys. What [`Neighbours`](super::Neighbours) are made of.
    pub fn heard(&self) -> impl Iterator<Item = (u64, Heard)> + '_ {
        let all = self.all.iter().filter(|(_, crowd)| crowd.demand() >= HEARD);
        all.map(|(key, crowd)| {
            let (demand, is_slow) = (crowd.demand(), crowd.is_slow());
            (*key, Heard { demand, is_slow, delay_s: crowd.delay_s() })
        })
    }

    /// Demand of a destination per second, lately.
    #[must_use]
    pub fn demand(&self, key: u64) -> f64 {
        self.all.get(&key).map_or(0.0, Crowd::demand)
    }

    /// What comes to all destinations that are slow, now.
    #[must_use]
    pub fn beside(&self) -> Beside {
        let slow = self.all.values().filter(|crowd| crowd.is_slow());
        Beside { hits: slow.map(Crowd::hits).sum(), excess: self.excess() }
    }

    /// Why a destination gets no limit, if so. It gets one if it is hot: if a tenth of the handshakes that were completed lately at all
    /// that are slow are its own. So one that is slow alone is hot, however many servers there are, and behind a slow link the few
    /// are that fill it. And only if it has a part in what is beyond the usual there.
    #[must_use]
    pub fn spares(&self, key: u64, beside: Beside) -> Option<Spared> {
        let hits = self.all.get(&key).map_or(0.0, Crowd::hits);
        if hits < HOT * beside.hits {
            return Some(Spared::Cold);
        }
        (!self.takes_part(key, beside.excess)).then_some(Spared::Bystander)
    }

    /// What comes beyond the usual to all that are slow, per second.
    fn excess(&self) -> f64 {
        self.all.values().map(Crowd::excess).sum()
    }

    /// Whether a destination has a part in that. A neighbour that suffers with others, and to which by chance a little
    /// more comes, has none: a limit on it would cost its clients, and relieve nobody.
    fn takes_part(&self, key: u64, excess: f64) -> bool {
        let own = self.all.get(&key);
        own.is_some_and(|own| own.is_doubled() || own.excess() >= PART * excess)
    }

    /// The detector of a destination.
    pub(super) fn get(&self, key: u64) -> Option<&Crowd> {
        self.all.get(&key)
    }

    /// What the next process needs of a destination with a crowd.
    #[must_use]
    pub fn kept(&self, key: u64) -> Option<Value> {
        self.all.get(&key)?.kept()
    }

    /// A destination goes on from what was kept so long ago ([`Crowd::take`]): whether it has a crowd; `None`: nothing
    /// was taken.
    pub fn restore(&mut self, key: u64, value: &Value, age: Nanos) -> Option<bool> {
        let crowd = Crowd::take(value, age)?;
        let alarm = crowd.has_alarm();
        self.all.insert(key, crowd);
        Some(alarm)
    }

    /// Hardly anything was completed at a destination for long: its alarm and its limit end, and what was seen lately says
    /// nothing of what comes next. What is usual stays known.
    pub fn rest(&mut self, key: u64) {
        if let Some(crowd) = self.all.get_mut(&key) {
            crowd.rest();
        }
    }

    /// Forgets a destination.
    pub fn forget(&mut self, key: u64) {
        self.all.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::{Neighbours, Took};

    fn run(crowds: &mut Crowds, key: u64, (halves, n, bucket): (u32, u32, usize)) -> bool {
        let took = [Took { class: 3, bucket, count: n }];
        let tick = CrowdTick {
            period: Nanos::from_millis(500),
            took: &took,
            first_attempts: f64::from(n),
            connected: n,
            started: n,
            completed: n,
            ..CrowdTick::default()
        };
        (0..halves).any(|_| crowds.tick(key, &tick, false).alarm)
    }

    /// A neighbour that suffers with others has no part in the crowd, although a little more comes to it; one with a crowd
    /// of its own has, and so has whoever is slow alone.
    #[test]
    fn who_brings_a_tenth_of_a_crowd_or_twice_its_usual_takes_part() {
        for (more, part) in [(12, false), (16, true), (20, true)] {
            let mut crowds = Crowds::default();
            for key in [1, 2] {
                assert!(!run(&mut crowds, key, (400, 10, 30)));
            }
            for _ in 0..80 {
                run(&mut crowds, 1, (1, 60, 40));
                run(&mut crowds, 2, (1, more, 40));
            }
            let excess = crowds.excess();
            assert!((90.0..130.0).contains(&excess), "{excess}");
            assert!(crowds.takes_part(1, excess));
            assert_eq!(crowds.takes_part(2, excess), part, "{more}");
        }
        let mut crowds = Crowds::default();
        run(&mut crowds, 1, (400, 10, 30));
        assert!(crowds.takes_part(1, crowds.excess()) && crowds.excess() == 0.0, "nobody is slow");
        (0..80).for_each(|_| _ = run(&mut crowds, 1, (1, 12, 40)));
        assert!(crowds.takes_part(1, crowds.excess()), "it is slow alone");
    }

    /// Two are slow, and others have most of the handshakes.
    #[test]
    fn a_destination_is_hot_by_its_share_of_what_is_slow() {
        for (few, spared) in [(3, Some(Spared::Cold)), (8, None)] {
            let mut crowds = Crowds::default();
            for (key, n) in [(1, 2), (2, 10), (3, 200)] {
                assert!(!run(&mut crowds, key, (400, n, 30)));
            }
            for _ in 0..80 {
                run(&mut crowds, 1, (1, few, 40));
                run(&mut crowds, 2, (1, 60, 40));
                run(&mut crowds, 3, (1, 200, 30));
            }
            let beside = crowds.beside();
            let slow = |key| crowds.get(key).is_some_and(Crowd::is_slow);
            assert!(slow(1) && slow(2) && !slow(3));
            assert_eq!(crowds.spares(1, beside), spared, "{few}");
            assert_eq!(crowds.spares(2, beside), None);
        }
    }

    /// A queue that they share delays all alike: a neighbour that waits less than a third of what the destination does says nothing.
    #[test]
    fn neighbours_say_whether_it_is_the_link() {
        for (neighbour, why) in
            [(30, Why::Server), (35, Why::Server), (36, Why::Link), (40, Why::Link)]
        {
            let mut crowds = Crowds::default();
            for key in [1, 2] {
                assert!(!run(&mut crowds, key, (400, 10, 30)));
            }
            assert!(run(&mut crowds, 1, (40, 50, 40)), "the crowd is at 1");
            assert!(!run(&mut crowds, 2, (40, 10, neighbour)), "and not at its neighbour");
            let neighbours = |crowds: &Crowds| crowds.heard().collect::<Neighbours<u64>>();
            assert_eq!(neighbours(&crowds).why(&1), why, "{}", why.text());
            crowds.forget(2);
            assert_eq!(neighbours(&crowds).why(&1), Why::Unknown);
        }
    }
}
