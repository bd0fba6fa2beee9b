// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clients that are under way, in places that are used again: a long load needs no more memory
//! than its busiest time-out.

use super::Arrival;
use tidegate_units::Nanos;
use tidegate_workload::Schedule;

/// Most clients under way at once.
pub const CLIENTS_MAX: usize = 1 << 24;

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Trying,
    Admitted(Nanos),
    Over,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) arrival: Arrival,
    pub(super) schedule: &'static Schedule,
    pub(super) syns: usize,
    pub(super) refused: bool,
    pub(super) state: State,
    /// Events and places in the server that name this client: it keeps its place until there are none.
    held: u32,
}

/// All that are under way, by the number of their place.
#[derive(Debug, Default)]
pub(super) struct Clients {
    places: Vec<Client>,
    free: Vec<usize>,
    begun: u64,
}

impl Clients {
    /// A new client, held once; `None` if there are [`CLIENTS_MAX`] already.
    pub(super) fn begin(&mut self, arrival: Arrival, schedule: &'static Schedule) -> Option<usize> {
        self.begun += 1;
        let client = Client {
            arrival: Arrival { number: self.begun, ..arrival },
            schedule,
            syns: 0,
            refused: false,
            state: State::Trying,
            held: 1,
        };
        if let Some(index) = self.free.pop() {
            self.places[index] = client;
            return Some(index);
        }
        if self.places.len() >= CLIENTS_MAX {
            return None;
        }
        self.places.push(client);
        Some(self.places.len() - 1)
    }

    pub(super) fn hold(&mut self, index: usize) {
        self.places[index].held += 1;
    }

    pub(super) fn release(&mut self, index: usize) {
        self.places[index].held -= 1;
        if self.places[index].held == 0 {
            self.free.push(index);
        }
    }

    /// Clients that began so far.
    pub(super) const fn begun(&self) -> u64 {
        self.begun
    }

    /// Clients that still have a place.
    pub(super) fn present(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The most places that were in use at once.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }
}

impl std::ops::Index<usize> for Clients {
    type Output = Client;

    fn index(&self, index: usize) -> &Client {
        &self.places[index]
    }
}

impl std::ops::IndexMut<usize> for Clients {
    fn index_mut(&mut self, index: usize) -> &mut Client {
        &mut self.places[index]
    }
}
