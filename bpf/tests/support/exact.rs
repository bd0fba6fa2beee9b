// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The second stage of abacus_exact by another hand, from the head comment of its header: who is
//! waited for stands in a list by period, not in a ring of sums.

use std::collections::BTreeMap;
use tidegate_policy::{AbacusExactSpec, Event};

const SETS: u64 = 4096;
const WAYS: usize = 8;
/// Periods that are made up for at once.
const CATCH_UP_MAX: usize = 32;
/// A clock further back than this is believed.
const BACK_MAX: u64 = 1_000_000_000;
/// Averages over 1, 2, 4 … 128 periods.
const AVERAGES: usize = 8;

/// One client that was dropped.
#[derive(Clone, Copy, PartialEq)]
struct Client {
    print: u32,
    due: u32,
    attempts: u32,
}

/// What becomes of an event that found no token.
pub enum Refused {
    Booked,
    NoRoom,
    DroppedAgain,
    LastAttempt,
}

/// The memory of the filter, its bucket aside.
pub struct Exact {
    sets: Vec<[Option<Client>; WAYS]>,
    /// How many are due in a period, by the number of the attempt that it will be.
    due: BTreeMap<u32, [u64; 16]>,
    booked: BTreeMap<u32, u64>,
    averages: [u64; AVERAGES],
    arrivals: u64,
    now: u32,
    ends: u64,
}

pub fn room_milli(spec: &AbacusExactSpec) -> u64 {
    let milli = spec.bucket.rate.get() * 1e3 * spec.period.as_secs_f64();
    u64::from(milli.round() as u32)
}

/// The exponent of the power of two that is nearest, the larger of two.
fn nearest(n: u32) -> usize {
    (0..AVERAGES).min_by_key(|k| (n.abs_diff(1 << k), AVERAGES - k)).unwrap_or(0)
}

impl Exact {
    pub fn new() -> Self {
        Self {
            sets: vec![[None; WAYS]; SETS as usize],
            due: BTreeMap::new(),
            booked: BTreeMap::new(),
            averages: [0; AVERAGES],
            arrivals: 0,
            now: 0,
            ends: 0,
        }
    }

    pub fn turn_to(&mut self, spec: &AbacusExactSpec, now: u64) {
        let period = spec.period.0;
        let future = now.wrapping_add(period).wrapping_add(BACK_MAX);
        if self.ends == 0 || self.ends > future {
            self.ends = now.wrapping_add(period);
        }
        for _ in 0..CATCH_UP_MAX {
            if now < self.ends {
                return;
            }
            self.turn(spec);
            self.ends = self.ends.wrapping_add(period);
        }
        if now >= self.ends {
            self.ends = now.wrapping_add(period);
        }
    }

    fn turn(&mut self, spec: &AbacusExactSpec) {
        let taken = (self.arrivals * 1000).min(room_milli(spec));
        for (k, average) in self.averages.iter_mut().enumerate() {
            let length = 1 << k;
            if taken >= *average {
                *average += (taken - *average) / length;
            } else {
                *average -= (*average - taken).div_ceil(length);
            }
        }
        self.arrivals = 0;
        self.now = self.now.wrapping_add(1);
        let now = self.now;
        self.due.retain(|period, _| *period >= now);
        self.booked.retain(|period, _| *period >= now);
    }

    fn place(event: &Event) -> (usize, u32) {
        ((event.key % SETS) as usize, ((event.key >> 40) as u32).max(1))
    }

    fn find(&self, event: &Event) -> Option<Client> {
        let (set, print) = Self::place(event);
        self.sets[set].iter().flatten().find(|client| client.print == print).copied()
    }

    /// Counts an arrival that is new; whether it is known, and who is older and due now.
    pub fn meet(&mut self, event: &Event) -> (bool, u128) {
        let client = self.find(event);
        self.arrivals += u64::from(client.is_none());
        let attempt = client.map_or(0, |client| client.attempts as usize + 1);
        let due = self.due.get(&self.now);
        let older = due.map_or(0, |due| due.iter().skip(attempt + 1).sum());
        (client.is_some(), u128::from(older))
    }

    fn expect(&mut self, client: Client) {
        self.due.entry(client.due).or_default()[client.attempts as usize + 1] += 1;
    }

    /// It came, or was forgotten: nobody waits for it any more.
    fn forget(&mut self, event: &Event, client: Client) {
        let slot = self.sets[Self::place(event).0].iter_mut().find(|slot| **slot == Some(client));
        *slot.expect("who is forgotten was there") = None;
        if let Some(due) = self.due.get_mut(&client.due) {
            due[client.attempts as usize + 1] -= 1;
        }
    }

    pub fn admitted(&mut self, event: &Event) {
        if let Some(client) = self.find(event) {
            self.forget(event, client);
        }
    }

    pub fn refused(&mut self, spec: &AbacusExactSpec, event: &Event) -> Refused {
        let Some(client) = self.find(event) else { return self.refused_new(spec, event) };
        if client.due > self.now + 1 {
            return Refused::DroppedAgain;
        }
        let attempts = client.attempts + 1;
        let at = |k: u32| k.checked_sub(1).map_or(0, |k| spec.schedule[k as usize]);
        let more = (attempts as usize) < spec.schedule.len();
        let gap = if more { at(attempts + 1) - at(attempts) } else { u16::MAX };
        if gap > spec.window {
            self.forget(event, client);
            return Refused::LastAttempt;
        }
        // it keeps its place in the set
        let (set, _) = Self::place(event);
        let way = self.sets[set].iter().position(|slot| *slot == Some(client)).unwrap_or(0);
        self.forget(event, client);
        let aged = Client { due: self.now + u32::from(gap), attempts, ..client };
        self.sets[set][way] = Some(aged);
        self.expect(aged);
        Refused::DroppedAgain
    }

    fn refused_new(&mut self, spec: &AbacusExactSpec, event: &Event) -> Refused {
        let room = room_milli(spec);
        let within = spec.schedule.iter().take_while(|t| **t <= spec.window);
        let found = within.map(|t| u32::from(*t)).find(|t| {
            let booked = self.booked.get(&(self.now + t)).copied().unwrap_or_default();
            booked * 1000 + self.averages[nearest(*t)] + 1000 <= room
        });
        let Some(ahead) = found else { return Refused::NoRoom };
        *self.booked.entry(self.now + ahead).or_default() += 1;
        let (set, print) = Self::place(event);
        let now = self.now;
        let way = (0..WAYS).min_by_key(|way| match self.sets[set][*way] {
            None => 0,
            Some(client) if client.due + 1 < now => 1,
            Some(client) => 2 + client.attempts,
        });
        let way = way.unwrap_or_default();
        if let Some(client) = self.sets[set][way] {
            self.forget(event, client);
        }
        let client = Client { print, due: now + u32::from(spec.schedule[0]), attempts: 0 };
        self.sets[set][way] = Some(client);
        self.expect(client);
        Refused::Booked
    }
}
