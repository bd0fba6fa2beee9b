// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that wait for their next SYN, in the order (time, serial number), without a heap.
//!
//! Waits are few and nearly constant. Without jitter a first-in-first-out queue for each different
//! wait is sorted by itself ([`Fifos`]). With jitter a ring of bins of time holds what is due; a
//! bin is sorted when its time has come ([`Calendar`]). Both give exactly the same order.

use std::collections::VecDeque;

/// A client that has been refused and will send again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Client {
    /// When its next SYN arrives, nanoseconds.
    pub(super) due: u64,
    /// When its first SYN arrived.
    pub(super) start: u64,
    /// Serial number of the request.
    pub(super) id: u32,
    /// The next SYN's number; 1 is the first retransmission.
    pub(super) attempt: u8,
    /// Index of its schedule.
    pub(super) kind: u8,
}
const _: () = assert!(size_of::<Client>() == 24);

impl Client {
    #[inline]
    const fn rank(&self) -> (u64, u32) {
        (self.due, self.id)
    }
}

/// A queue of clients. What is pushed is never due before what was popped last.
pub(super) trait Queue {
    /// Adds a client that waits for `gap` (jitter aside).
    fn push(&mut self, client: Client, gap: u64);

    /// The next client, if it is due at `limit` or before. `limit` never falls, and the caller
    /// goes on at `limit` when there is none.
    fn pop(&mut self, limit: u64) -> Option<Client>;
}

/// Different waits for which a queue each is kept; more are better served by the calendar.
pub(super) const FIFOS_MAX: usize = 8;

/// One queue for each wait.
#[derive(Debug)]
pub(super) struct Fifos {
    gaps: [u64; FIFOS_MAX],
    /// When the first of each queue is due; the largest number if there is none.
    heads: [u64; FIFOS_MAX],
    queues: [VecDeque<Client>; FIFOS_MAX],
}

impl Fifos {
    /// Queues for these waits; `None` if they are too many.
    pub(super) fn new(gaps: &[u64]) -> Option<Self> {
        let mut all = [u64::MAX; FIFOS_MAX];
        all.get_mut(..gaps.len())?.copy_from_slice(gaps);
        Some(Self { gaps: all, heads: [u64::MAX; FIFOS_MAX], queues: Default::default() })
    }

    /// Index of the first: earliest time, then smallest serial number.
    #[inline]
    fn first(&self) -> usize {
        let mut best = 0;
        for (index, due) in self.heads.iter().enumerate().skip(1) {
            let least = self.heads[best];
            if *due < least || (*due == least && least != u64::MAX && self.before(index, best)) {
                best = index;
            }
        }
        best
    }

    #[cold]
    fn before(&self, a: usize, b: usize) -> bool {
        let id = |index: usize| self.queues[index].front().map_or(u32::MAX, |client| client.id);
        id(a) < id(b)
    }
}

impl Queue for Fifos {
    #[inline]
    fn push(&mut self, client: Client, gap: u64) {
        let index = self.gaps.iter().position(|known| *known == gap).unwrap_or(FIFOS_MAX - 1);
        self.heads[index] = self.heads[index].min(client.due);
        self.queues[index].push_back(client);
    }

    #[inline]
    fn pop(&mut self, limit: u64) -> Option<Client> {
        let index = self.first();
        if self.heads[index] > limit {
            return None;
        }
        let client = self.queues[index].pop_front()?;
        self.heads[index] = self.queues[index].front().map_or(u64::MAX, |next| next.due);
        Some(client)
    }
}

/// Bins are 2^25 ns wide, 33.6 ms: about ten clients at the load of the paper.
const BIN_SHIFT: u32 = 25;
/// No node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    client: Client,
    next: u32,
}

/// A ring of bins of time.
#[derive(Debug)]
pub(super) struct Calendar {
    /// First node of each bin; a power of two.
    bins: Vec<u32>,
    nodes: Vec<Node>,
    free: u32,
    /// Number of the bin that `due` is made of; bins before it are empty.
    bin: u64,
    /// Clients of that bin, the first one last.
    due: Vec<Client>,
    /// Clients in bins.
    waiting: usize,
}

impl Calendar {
    /// A calendar for waits of at most `reach` nanoseconds.
    pub(super) fn new(reach: u64) -> Self {
        let bins = ((reach >> BIN_SHIFT) + 2).next_power_of_two() as usize;
        Self {
            bins: vec![NONE; bins],
            nodes: Vec::new(),
            free: NONE,
            bin: 0,
            due: Vec::new(),
            waiting: 0,
        }
    }

    #[inline]
    fn slot(&self, bin: u64) -> usize {
        bin as usize & (self.bins.len() - 1)
    }

    /// Into the bin that is being worked on: keeps it sorted.
    fn insert(&mut self, client: Client) {
        let at = self.due.partition_point(|other| other.rank() > client.rank());
        self.due.insert(at, client);
    }

    /// Turns to the next bin that is not empty, at most to that of `limit`.
    fn turn(&mut self, limit: u64) {
        let last = limit >> BIN_SHIFT;
        while self.due.is_empty() && self.bin < last {
            if self.waiting == 0 {
                self.bin = if last == u64::MAX >> BIN_SHIFT { self.bin } else { last };
                return;
            }
            self.bin += 1;
            self.open();
        }
    }

    /// Takes the clients of the current bin out of the ring, in order.
    fn open(&mut self) {
        let slot = self.slot(self.bin);
        let mut at = std::mem::replace(&mut self.bins[slot], NONE);
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            self.due.push(node.client);
            let next = std::mem::replace(&mut node.next, self.free);
            self.free = at;
            at = next;
            self.waiting -= 1;
        }
        self.due.sort_unstable_by_key(|client| std::cmp::Reverse(client.rank()));
    }
}

impl Queue for Calendar {
    #[inline]
    fn push(&mut self, client: Client, _gap: u64) {
        let bin = client.due >> BIN_SHIFT;
        if bin <= self.bin {
            return self.insert(client);
        }
        let slot = self.slot(bin);
        let node = Node { client, next: self.bins[slot] };
        let at = self.free;
        if at == NONE {
            self.bins[slot] = self.nodes.len() as u32;
            self.nodes.push(node);
        } else {
            self.free = self.nodes[at as usize].next;
            self.nodes[at as usize] = node;
            self.bins[slot] = at;
        }
        self.waiting += 1;
    }

    #[inline]
    fn pop(&mut self, limit: u64) -> Option<Client> {
        if self.due.is_empty() {
            self.turn(limit);
        }
        if self.due.last()?.due > limit {
            return None;
        }
        self.due.pop()
    }
}
