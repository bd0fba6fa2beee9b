// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connections under way, in places that are used again. An event names a connection by place
//! and serial number, so that one that comes too late finds nobody.

use super::track::Track;
use crate::world::Arrival;
use tidegate_units::{Nanos, Random};
use tidegate_workload::Schedule;

/// Most connections under way at once.
pub const CONNECTIONS_MAX: usize = 1 << 24;

/// A connection, as events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) slot: u32,
    serial: u32,
}

/// Where the client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// Sends SYNs.
    Trying,
    /// Its SYN has passed.
    Open,
    /// Has what it wanted, or has left.
    Over,
}

/// Where the server has the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not in the accept queue yet.
    Away,
    /// In the accept queue.
    Queued,
    /// Accepted, with something to read, and waiting for a worker.
    Ready,
    /// With a worker, or in work.
    Served,
    /// Accepted, and nothing to do.
    Parked,
}

/// What has come from the client and is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A ClientHello.
    Hello,
    /// The requests of a turn.
    Requests,
}

#[derive(Debug)]
pub(super) struct Conn {
    serial: u32,
    pub(super) stream: usize,
    pub(super) service: usize,
    pub(super) schedule: &'static Schedule,
    /// Counted over the whole run: what the policy's key and all draws are made of.
    pub(super) number: u64,
    /// Number among the sessions of its stream, from 1.
    pub(super) ordinal: u64,
    pub(super) began: Nanos,
    pub(super) syns: usize,
    pub(super) refused: bool,
    pub(super) admitted: Nanos,
    pub(super) client: Client,
    /// Requests that have not been sent, and index of the first of the present turn.
    pub(super) left: u32,
    pub(super) index: u32,
    /// The present turn, the requests of it without a response, and their intended start.
    pub(super) turn: u32,
    pub(super) pending: u32,
    pub(super) intended: Nanos,
    pub(super) place: Place,
    pub(super) worker: bool,
    pub(super) inbox: Option<Message>,
    /// Tasks in the server for this connection, and how often it was looked at.
    pub(super) working: u32,
    pub(super) looks: u32,
    pub(super) shaking: bool,
    /// How often its first payload found the accept queue full.
    pub(super) retries: u32,
    /// Its handshake is complete, and its first payload comes later.
    pub(super) asks_later: bool,
    pub(super) track: Track,
}

impl Conn {
    /// Its session, for whoever reports; `at` is what is reported of.
    pub(super) fn session(&self, at: Nanos) -> Arrival {
        Arrival { number: self.ordinal, ..Arrival::at(at) }
    }
}

/// What a new connection begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) stream: usize,
    pub(super) service: usize,
    pub(super) ordinal: u64,
    pub(super) schedule: &'static Schedule,
    pub(super) at: Nanos,
    pub(super) requests: u32,
}

/// All that are under way.
#[derive(Debug, Default)]
pub(super) struct Conns {
    places: Vec<Conn>,
    free: Vec<u32>,
    begun: u64,
    serial: u32,
}

impl Conns {
    /// A new connection whose first turn is one request; `None` if there are too many.
    pub(super) fn begin(&mut self, new: Begun) -> Option<Id> {
        self.begun += 1;
        self.serial = self.serial.wrapping_add(1);
        let first = new.requests.min(1);
        let conn = Conn {
            serial: self.serial,
            stream: new.stream,
            service: new.service,
            schedule: new.schedule,
            number: self.begun,
            ordinal: new.ordinal,
            began: new.at,
            syns: 0,
            refused: false,
            admitted: Nanos::ZERO,
            client: Client::Trying,
            left: new.requests - first,
            index: 0,
            turn: 0,
            pending: first,
            intended: new.at,
            place: Place::Away,
            worker: false,
            inbox: None,
            working: 0,
            looks: 0,
            shaking: false,
            retries: 0,
            asks_later: false,
            track: Track::default(),
        };
        if let Some(slot) = self.free.pop() {
            self.places[slot as usize] = conn;
            return Some(Id { slot, serial: self.serial });
        }
        if self.places.len() >= CONNECTIONS_MAX {
            return None;
        }
        self.places.push(conn);
        Some(Id { slot: (self.places.len() - 1) as u32, serial: self.serial })
    }

    /// Whether an event's connection is still there.
    pub(super) fn alive(&self, id: Id) -> bool {
        self.places[id.slot as usize].serial == id.serial
    }

    /// The connection in a place; it must be there.
    pub(super) fn id(&self, slot: usize) -> Id {
        Id { slot: slot as u32, serial: self.places[slot].serial }
    }

    pub(super) fn end(&mut self, id: Id) {
        // Whoever still names it finds another serial number.
        self.places[id.slot as usize].serial = 0;
        self.free.push(id.slot);
    }

    pub(super) fn present(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl std::ops::Index<Id> for Conns {
    type Output = Conn;

    fn index(&self, id: Id) -> &Conn {
        &self.places[id.slot as usize]
    }
}

impl std::ops::IndexMut<Id> for Conns {
    fn index_mut(&mut self, id: Id) -> &mut Conn {
        &mut self.places[id.slot as usize]
    }
}

/// Numbers that depend on seed, connection, request and purpose alone: a protected and an
/// unprotected run of one seed have the same work to do (SplitMix64, Steele, Lea and Flood 2014).
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64, connection: u64, (request, purpose): (u32, u32)) -> Self {
        let mut draws = Self(seed ^ connection.wrapping_mul(0xd6e8_feb8_6659_fd93));
        draws.0 = draws.next_u64() ^ (u64::from(request) << 32 | u64::from(purpose));
        draws
    }
}

impl Random for Draws {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
