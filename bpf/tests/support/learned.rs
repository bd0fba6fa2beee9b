// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The second stage of abacus_learned by another hand, from the head comment of its header: who
//! will be back stands in a list by slot, and what was learned in a list by attempt and crowd.

use std::collections::BTreeMap;
use tidegate_policy::{AbacusLearnedSpec, Event};

const SETS: u64 = 4096;
const WAYS: usize = 8;
/// Slots in a period.
const QUARTERS: u64 = 4;
/// Periods that are made up for at once: as long as the list of returns looks ahead.
const CATCH_UP_MAX: u64 = 64;
/// A clock further back than this is believed.
const BACK_MAX: u64 = 1_000_000_000;
/// A wait beyond this many slots is never given to anybody.
const AHEAD_MAX: u64 = 248;
/// The crowd that the bucket just serves, and the largest that is told apart.
const CALM: u64 = 5;
const CROWD_MAX: u64 = 31;
/// Most who are counted in one slot.
const BACK_COUNT_MAX: u64 = 0xffff;
/// Sixteenths of a thousandth: how finely an average is kept.
const FINE: u64 = 16;

/// One client that was dropped.
#[derive(Clone, Copy, PartialEq)]
struct Client {
    print: u32,
    /// When it comes again, of a clock of slots with 16 bits.
    due: u16,
    attempt: u64,
    crowd: u64,
}

/// What was learned of one attempt in one crowd.
#[derive(Clone, Copy)]
struct Average {
    cost: u64,
    shift: u32,
    left: u64,
}

/// What becomes of an event that found no token.
pub enum Refused {
    Dropped,
    NoRoom,
    DroppedAgain,
    LastAttempt,
}

/// The memory of the filter, its bucket aside.
pub struct Learned {
    sets: Vec<[Option<Client>; WAYS]>,
    back: BTreeMap<u32, u64>,
    averages: BTreeMap<(u64, u64), Average>,
    arrivals: u64,
    /// New arrivals a period, in thousandths: over 8 periods and over 64; `None` before the first.
    usual: Option<[u64; 2]>,
    now: u32,
    ends: u64,
}

fn slot_ns(spec: &AbacusLearnedSpec) -> u64 {
    spec.period.0 / QUARTERS
}

/// What a rejection costs, in thousandths of a slot.
fn reject(spec: &AbacusLearnedSpec) -> u64 {
    (spec.reject.0 as f64 / slot_ns(spec) as f64 * 1e3) as u64
}

/// Slots from an attempt to the next; `None`: there is none that it would be left to wait for.
fn gap(spec: &AbacusLearnedSpec, attempt: u64) -> Option<u64> {
    let at = |k: usize| k.checked_sub(1).map_or(0, |k| u64::from(spec.schedule[k]));
    let gap = |k: usize| (at(k + 1) - at(k)) * QUARTERS;
    let last = attempt as usize;
    let known = last < spec.schedule.len() && (0..=last).all(|k| gap(k) <= AHEAD_MAX);
    known.then(|| gap(last))
}

fn towards(average: u64, seen: u64, shift: u32) -> u64 {
    if seen >= average {
        average + ((seen - average) >> shift)
    } else {
        average - (average - seen).div_ceil(1 << shift)
    }
}

/// Before anything was seen.
fn prior(spec: &AbacusLearnedSpec, crowd: u64) -> u64 {
    let most = reject(spec);
    (most / 16 + crowd.saturating_sub(CALM) * (most / 11)).min(most) * FINE
}

impl Learned {
    pub fn new() -> Self {
        Self {
            sets: vec![[None; WAYS]; SETS as usize],
            back: BTreeMap::new(),
            averages: BTreeMap::new(),
            arrivals: 0,
            usual: None,
            now: 0,
            ends: 0,
        }
    }

    pub fn turn_to(&mut self, spec: &AbacusLearnedSpec, now: u64) {
        let slot = slot_ns(spec);
        if self.ends == 0 || self.ends > now.wrapping_add(slot).wrapping_add(BACK_MAX) {
            self.ends = now.wrapping_add(slot);
        }
        if self.reach(slot, now) {
            return;
        }
        for _ in 0..CATCH_UP_MAX {
            if now < self.ends.wrapping_add(slot * (QUARTERS - 1)) {
                break;
            }
            for _ in 0..QUARTERS {
                self.step(slot);
            }
            self.average();
        }
        if !self.reach(slot, now) && now >= self.ends {
            self.ends = now.wrapping_add(slot);
        }
    }

    /// Slot by slot, at most to the end of the period; whether the present was reached.
    fn reach(&mut self, slot: u64, now: u64) -> bool {
        for _ in 0..QUARTERS {
            if now < self.ends {
                return true;
            }
            self.step(slot);
            if u64::from(self.now).is_multiple_of(QUARTERS) {
                self.average();
                return false;
            }
        }
        false
    }

    fn step(&mut self, slot: u64) {
        self.back.remove(&self.now);
        self.now = self.now.wrapping_add(1);
        self.ends = self.ends.wrapping_add(slot);
    }

    fn average(&mut self) {
        let seen = (self.arrivals * 1000).min(1 << 31);
        let [soon, long] = self.usual.unwrap_or([seen; 2]);
        self.usual = Some([towards(soon, seen, 3), towards(long, seen, 6)]);
        self.arrivals = 0;
    }

    fn place(event: &Event) -> (usize, u32) {
        ((event.key % SETS) as usize, ((event.key >> 32) as u32).max(1))
    }

    fn find(&self, event: &Event) -> Option<Client> {
        let (set, print) = Self::place(event);
        self.sets[set].iter().flatten().rfind(|client| client.print == print).copied()
    }

    /// Who is due about a slot: the one before it to the second after it.
    fn due_about(&self, slot: u32) -> u64 {
        let around = (0..4).map(|n| slot.wrapping_add(n).wrapping_sub(1));
        around.filter_map(|slot| self.back.get(&slot)).sum()
    }

    /// How crowded a slot ahead looks.
    fn crowd(&self, spec: &AbacusLearnedSpec, ahead: u64) -> u64 {
        let [soon, long] = self.usual.unwrap_or_default();
        let waiting: u64 = self.back.values().sum();
        let due = self.due_about(self.now.wrapping_add(ahead as u32));
        let milli = (due * 1000 + soon / 2 + long / 2 + waiting * 25).min(1 << 31);
        let room = spec.bucket.rate.get() * 1e3 * spec.period.as_secs_f64();
        let fifths = (CALM as f64 / room * (1_u64 << 32) as f64) as u32;
        ((milli * u64::from(fifths)) >> 32).min(CROWD_MAX)
    }

    fn later(&self, spec: &AbacusLearnedSpec, attempt: u64, crowd: u64) -> u64 {
        let learned = self.averages.get(&(attempt % 16, crowd)).map(|average| average.cost);
        learned.unwrap_or_else(|| prior(spec, crowd)) / FINE
    }

    /// What it costs not to serve this attempt now.
    fn refusal(&self, spec: &AbacusLearnedSpec, attempt: u64) -> u64 {
        let Some(gap) = gap(spec, attempt) else { return reject(spec) };
        let later = self.later(spec, attempt, self.crowd(spec, gap));
        (gap * 1000 + later).min(reject(spec))
    }

    fn teach(&mut self, spec: &AbacusLearnedSpec, client: Client, cost: u64) {
        let fresh = Average { cost: prior(spec, client.crowd), shift: 4, left: 32 };
        let average = self.averages.entry((client.attempt % 16, client.crowd)).or_insert(fresh);
        let cost = cost * FINE;
        let step = average.cost.abs_diff(cost) >> average.shift;
        if cost > average.cost {
            average.cost += step;
        } else {
            average.cost -= step;
        }
        // steps of 1/512 are the last ones
        average.left = average.left.wrapping_sub(1);
        if average.left == 0 && average.shift < 9 {
            average.shift += 1;
            average.left = 1 << average.shift;
        }
    }

    /// Whether the client is known, and how many tokens a new one leaves for copies.
    pub fn meet(&mut self, event: &Event) -> (bool, u64) {
        let known = self.find(event).is_some();
        self.arrivals += u64::from(!known);
        (known, if known { 0 } else { self.due_about(self.now) })
    }

    fn put(&mut self, event: &Event, old: Client, new: Option<Client>) {
        let set = &mut self.sets[Self::place(event).0];
        let slot = set.iter_mut().rfind(|slot| **slot == Some(old));
        *slot.expect("who is put somewhere was there") = new;
    }

    /// It got a token; `to_spare`: one that a new arrival would have got, too.
    pub fn admitted(&mut self, spec: &AbacusLearnedSpec, event: &Event, to_spare: bool) {
        let Some(client) = self.find(event) else { return };
        let cost = if to_spare { 0 } else { self.refusal(spec, 0) };
        self.teach(spec, client, cost);
        self.put(event, client, None);
    }

    /// The crowd that it will meet if it had better wait than be rejected.
    fn hope(&self, spec: &AbacusLearnedSpec, event: &Event, attempt: u64) -> Option<u64> {
        let gap = gap(spec, attempt).filter(|gap| gap * 1000 < reject(spec))?;
        let crowd = self.crowd(spec, gap);
        let tries = event.random.is_multiple_of(256);
        let nearly = reject(spec) - reject(spec) / 32;
        (tries || self.later(spec, attempt, crowd) < nearly).then_some(crowd)
    }

    fn expected(&mut self, spec: &AbacusLearnedSpec, client: Client) -> Client {
        let gap = gap(spec, client.attempt).unwrap_or_default();
        let slot = self.now.wrapping_add(gap as u32);
        let count = self.back.entry(slot).or_default();
        *count = (*count + 1).min(BACK_COUNT_MAX);
        Client { due: slot as u16, ..client }
    }

    pub fn refused(&mut self, spec: &AbacusLearnedSpec, event: &Event) -> Refused {
        let Some(client) = self.find(event) else { return self.refused_new(spec, event) };
        let late = (self.now as u16).wrapping_sub(client.due).wrapping_add(QUARTERS as u16);
        if late >= 0x8000 {
            return Refused::DroppedAgain;
        }
        let attempt = client.attempt + 1;
        let cost = self.refusal(spec, attempt);
        self.teach(spec, client, cost);
        let Some(crowd) = self.hope(spec, event, attempt) else {
            self.put(event, client, None);
            return Refused::LastAttempt;
        };
        let again = self.expected(spec, Client { attempt, crowd, ..client });
        self.put(event, client, Some(again));
        Refused::DroppedAgain
    }

    fn refused_new(&mut self, spec: &AbacusLearnedSpec, event: &Event) -> Refused {
        let Some(crowd) = self.hope(spec, event, 0) else { return Refused::NoRoom };
        let (set, print) = Self::place(event);
        let now = self.now as u16;
        let way = (0..WAYS).min_by_key(|way| match self.sets[set][*way] {
            None => 0,
            // nobody is expected further ahead than the list of returns
            Some(client) if (5..0xff00).contains(&now.wrapping_sub(client.due)) => 1,
            Some(client) => 2 + client.attempt,
        });
        let client = self.expected(spec, Client { print, due: 0, attempt: 0, crowd });
        self.sets[set][way.unwrap_or_default()] = Some(client);
        Refused::Dropped
    }
}
