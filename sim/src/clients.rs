// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clients under way, in places that are used again: a long load needs no more memory than its
//! busiest time-out.

use crate::world::gate::Syn;
use std::ops::{Index, IndexMut};
use tidegate_model::PRIORITIES;

/// Most clients under way at once.
pub const CLIENTS_MAX: usize = 1 << 24;

#[derive(Debug)]
struct Place<C> {
    client: C,
    /// Events, packets and the server hold a client. It keeps its place until none of them does.
    held: u32,
}

/// All of them, by the number of their place.
#[derive(Debug)]
pub(crate) struct Clients<C> {
    places: Vec<Place<C>>,
    free: Vec<usize>,
    begun: u64,
}

impl<C> Default for Clients<C> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), begun: 0 }
    }
}

impl<C> Clients<C> {
    /// A new client, held once; `client` makes it of its number, counted from 1. `None` if there are
    /// [`CLIENTS_MAX`] already.
    pub(crate) fn begin(&mut self, client: impl FnOnce(u64) -> C) -> Option<usize> {
        self.begun += 1;
        let place = Place { client: client(self.begun), held: 1 };
        if let Some(index) = self.free.pop() {
            self.places[index] = place;
            return Some(index);
        }
        if self.places.len() >= CLIENTS_MAX {
            return None;
        }
        self.places.push(place);
        Some(self.places.len() - 1)
    }

    pub(crate) fn hold(&mut self, index: usize) {
        self.places[index].held += 1;
    }

    pub(crate) fn release(&mut self, index: usize) {
        self.places[index].held -= 1;
        if self.places[index].held == 0 {
            self.free.push(index);
        }
    }

    /// Clients that began so far.
    pub(crate) const fn begun(&self) -> u64 {
        self.begun
    }

    /// Clients that still have a place.
    pub(crate) fn present(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The most places that were in use at once.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }
}

/// The SYN of the client with this number: of the default class, with an address that is not known.
pub(crate) const fn syn_of(number: u64) -> Syn {
    // Any injection serves as the seeded hash of tuple and sequence number.
    let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Syn { key: key ^ (key >> 29), priority: PRIORITIES as u8 - 1, source: None }
}

impl<C> Index<usize> for Clients<C> {
    type Output = C;

    fn index(&self, index: usize) -> &C {
        &self.places[index].client
    }
}

impl<C> IndexMut<usize> for Clients<C> {
    fn index_mut(&mut self, index: usize) -> &mut C {
        &mut self.places[index].client
    }
}
