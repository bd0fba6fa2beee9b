// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has which number in the tables of request rules. A rule, a bucket, an answer keeps its number
//! for as long as it is the same, through reloads and restarts: so its counts go on, and what a
//! packet remembers of it stays true. Numbers that are let go are taken again as late as possible.

use crate::Error;
use crate::maps::Maps;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;
use tidegate_model::Fnv;

/// Name of the map that remembers the numbers: the loader's own, unknown to the hooks.
pub(crate) const MAP: &str = "tg_numbers";

/// Who holds the numbers of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// Where they stand in the map.
    places: Range<u32>,
    /// The lowest number in use for anything: rule 0 is none.
    first: u32,
    /// Identity by number; 0: free.
    holders: Vec<u64>,
    /// The number to try next.
    next: u32,
}

/// What an assignment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    /// A number for each identity, in their order; equal ones share one.
    pub(crate) numbers: Vec<u32>,
    /// Those of them that change hands.
    pub(crate) fresh: Vec<u32>,
}

/// Creates the map for so many numbers.
pub(crate) fn create_map(numbers: u32) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some(MAP), 4, 8, numbers, &options).map_err(Error::map(MAP))
}

impl Numbers {
    /// Takes over the numbers at these places of the map.
    pub(crate) fn adopt(maps: &Maps, places: Range<u32>, first: u32) -> Result<Self, Error> {
        let map = maps.get(MAP)?;
        let mut holders = Vec::new();
        for place in places.clone() {
            let value = map.lookup(&place.to_ne_bytes(), MapFlags::ANY).map_err(Error::map(MAP))?;
            let value = value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
            holders.push(value);
        }
        let used = holders.iter().rposition(|holder| *holder != 0);
        let next = used.map_or(first, |last| last as u32 + 1);
        Ok(Self { places, first, holders, next })
    }

    /// Numbers for these identities, none of them 0: those that they have, else free ones, and only
    /// where there are too few, numbers that somebody has who is not wanted any more. `None`: there
    /// are more identities than numbers.
    pub(crate) fn assign(&self, wanted: &[u64]) -> Option<Assigned> {
        let size = self.holders.len() as u32;
        let mut held: BTreeMap<u64, u32> = (0..)
            .zip(&self.holders)
            .filter(|(_, holder)| **holder != 0 && wanted.contains(holder))
            .map(|(number, holder)| (*holder, number))
            .collect();
        let ring = || (0..size).map(|step| (self.next + step) % size.max(1));
        let usable = |number: &u32| *number >= self.first;
        let holder = |number: &u32| self.holders[*number as usize];
        let free = ring().filter(usable).filter(|number| holder(number) == 0);
        let left = ring()
            .filter(usable)
            .filter(|number| holder(number) != 0 && !held.contains_key(&holder(number)));
        let spare: Vec<u32> = free.chain(left).collect();
        let mut spare = spare.into_iter();
        let mut assigned = Assigned { numbers: Vec::new(), fresh: Vec::new() };
        for identity in wanted {
            let number = match held.get(identity) {
                Some(number) => *number,
                None => {
                    let number = spare.next()?;
                    held.insert(*identity, number);
                    assigned.fresh.push(number);
                    number
                }
            };
            assigned.numbers.push(number);
        }
        Some(assigned)
    }

    /// Writes down who has which number: those who get one before they are used, those who let go
    /// after nobody uses it any more.
    pub(crate) fn hold(&mut self, maps: &Maps, held: &[(u32, u64)]) -> Result<(), Error> {
        for (number, holder) in held {
            let place = self.places.start + number;
            maps.write(MAP, &place.to_ne_bytes(), &holder.to_ne_bytes())?;
            self.holders[*number as usize] = *holder;
            if *holder != 0 {
                self.next = number + 1;
            }
        }
        Ok(())
    }

    /// The numbers that somebody has who is not among these.
    pub(crate) fn others(&self, wanted: &[u64]) -> Vec<u32> {
        let held = (0..).zip(&self.holders);
        held.filter(|(_, holder)| **holder != 0 && !wanted.contains(holder))
            .map(|(number, _)| number)
            .collect()
    }
}

/// Identities: a hash of what is written, never 0.
#[derive(Debug, Default)]
pub(crate) struct Identity(Fnv);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0.get() | 1
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.with(bytes.iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(first: u32, holders: &[u64]) -> Numbers {
        let next = holders.iter().rposition(|h| *h != 0).map_or(first, |last| last as u32 + 1);
        Numbers { places: 0..holders.len() as u32, first, holders: holders.to_vec(), next }
    }

    #[test]
    fn who_has_a_number_keeps_it_and_others_get_what_was_free_longest() {
        let assigned = numbers(1, &[0, 7, 0, 9, 0, 0]).assign(&[9, 5, 7, 5, 6]).unwrap();
        assert_eq!(assigned.numbers, [3, 4, 1, 4, 5]);
        assert_eq!(assigned.fresh, [4, 5]);
    }

    #[test]
    fn numbers_of_the_unwanted_are_taken_last_and_none_twice() {
        let some = numbers(0, &[7, 8, 0]);
        assert_eq!(some.assign(&[1, 2]).unwrap().numbers, [2, 0], "the free one first");
        assert_eq!(some.assign(&[1, 2, 3]).unwrap().numbers, [2, 0, 1]);
        assert_eq!(some.assign(&[1, 2, 3, 4]), None, "too many");
        assert_eq!(some.assign(&[7, 2, 3]).unwrap().numbers, [0, 2, 1]);
        assert_eq!(numbers(1, &[0, 0]).assign(&[1, 2]), None, "0 is not used");
        assert_eq!(some.others(&[8]), [0]);
    }
}
