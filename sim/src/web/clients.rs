// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The requests that are under way, in places that are used again.

use super::tcp::Flow;
use tidegate_units::Nanos;
use tidegate_workload::{RequestKind, Schedule};

/// Most requests under way at once.
pub(super) const CLIENTS_MAX: usize = 1 << 22;

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Of the load.
    Surge,
    /// For the one large file beside it.
    Large,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its SYN was not let through yet.
    Trying,
    /// It was; the handshake goes on.
    Connecting,
    /// Admitted: waits for a worker, or has one.
    Waiting,
    /// The answer is under way.
    Sending,
    /// Answered, refused or given up.
    Over,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) stream: Stream,
    pub(super) kind: RequestKind,
    pub(super) size: u64,
    /// Requests of its session that come after it.
    pub(super) later: u32,
    /// Whether it has the session's cookie.
    pub(super) cookie: bool,
    /// When its session began: for the count of sessions.
    pub(super) session: Nanos,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) asked: Asked,
    pub(super) began: Nanos,
    pub(super) schedule: &'static Schedule,
    /// Counted from 1 over the whole run: what the policy's key is made of.
    pub(super) serial: u64,
    pub(super) syns: usize,
    pub(super) policed: bool,
    pub(super) state: State,
    pub(super) requested: Nanos,
    /// Times that its request found the accept queue full.
    pub(super) unheard: u32,
    pub(super) bucket: Option<usize>,
    pub(super) worker: bool,
    pub(super) flow: Option<Box<Flow>>,
    /// Events, packets and places in the server that name it: it keeps its place until there are none.
    held: u32,
}

/// All of them, by the number of their place.
#[derive(Debug, Default)]
pub(super) struct Clients {
    places: Vec<Client>,
    free: Vec<usize>,
    begun: u64,
}

impl Clients {
    /// A new one, held once; `None` if there are [`CLIENTS_MAX`] already.
    pub(super) fn begin(
        &mut self,
        now: Nanos,
        asked: Asked,
        schedule: &'static Schedule,
    ) -> Option<usize> {
        self.begun += 1;
        let client = Client {
            asked,
            began: now,
            schedule,
            serial: self.begun,
            syns: 0,
            policed: false,
            state: State::Trying,
            requested: now,
            unheard: 0,
            bucket: None,
            worker: false,
            flow: None,
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

    pub(super) const fn begun(&self) -> u64 {
        self.begun
    }

    pub(super) fn present(&self) -> usize {
        self.places.len() - self.free.len()
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
