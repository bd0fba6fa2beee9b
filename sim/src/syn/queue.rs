// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that wait for their next SYN, in the order (time, serial number), without a heap.
//!
//! Waits are few and nearly constant. With one schedule and no jitter a first-in-first-out queue for
//! each different wait is sorted by itself ([`Fifos`]). Otherwise a ring of bins of time holds what
//! is due; a bin is sorted when its time has come ([`Calendar`]). Both give exactly the same order.

use super::spec::ATTEMPTS_MAX;
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
    /// Adds a client.
    fn push(&mut self, client: Client);

    /// The next client, if it is due at `limit` or before. `limit` never falls, and the caller
    /// goes on at `limit` when there is none.
    fn pop(&mut self, limit: u64) -> Option<Client>;
}

/// Different waits for which a queue each is kept.
pub(super) const FIFOS_MAX: usize = 8;
/// Bits of a head that hold the index of its queue.
const INDEX_BITS: u32 = 3;
const _: () = assert!(FIFOS_MAX == 1 << INDEX_BITS);
/// Head of a queue that is empty.
const EMPTY: u64 = u64::MAX;

/// One queue for each wait, the longest wait first.
///
/// Exact only if all clients have one schedule whose waits never fall, and no jitter: then of two
/// SYNs that are due at the same instant the older request has waited longer or, in one queue, was
/// pushed first. So no serial numbers need comparing.
#[derive(Debug)]
pub(super) struct Fifos {
    /// Queue of the wait before each attempt.
    stages: [u8; ATTEMPTS_MAX],
    /// When the first of each queue is due (2^61 ns are 73 years), and the queue's index: the
    /// least of them is found without a branch that depends on the data.
    heads: [u64; FIFOS_MAX],
    queues: [VecDeque<Client>; FIFOS_MAX],
}

impl Fifos {
    /// Queues for the waits before attempts 1, 2, …; `None` if they fall, or are too many.
    pub(super) fn new(gaps: &[u64]) -> Option<Self> {
        if !gaps.is_sorted() || gaps.len() >= ATTEMPTS_MAX {
            return None;
        }
        let mut different = gaps.to_vec();
        different.dedup();
        different.reverse();
        let mut stages = [0; ATTEMPTS_MAX];
        for (attempt, gap) in gaps.iter().enumerate() {
            stages[attempt + 1] = different.iter().position(|known| known == gap)? as u8;
        }
        let (heads, queues) = ([EMPTY; FIFOS_MAX], Default::default());
        (different.len() <= FIFOS_MAX).then_some(Self { stages, heads, queues })
    }

    #[inline]
    const fn head(due: u64, index: usize) -> u64 {
        due << INDEX_BITS | index as u64
    }
}

impl Queue for Fifos {
    #[inline]
    fn push(&mut self, client: Client) {
        let attempt = usize::from(client.attempt) % ATTEMPTS_MAX;
        let index = usize::from(self.stages[attempt]) % FIFOS_MAX;
        self.heads[index] = self.heads[index].min(Self::head(client.due, index));
        self.queues[index].push_back(client);
    }

    #[inline]
    fn pop(&mut self, limit: u64) -> Option<Client> {
        let [a, b, c, d, e, f, g, h] = self.heads;
        let least = a.min(b).min(c.min(d)).min(e.min(f).min(g.min(h)));
        if least >> INDEX_BITS > limit {
            return None;
        }
        let index = least as usize % FIFOS_MAX;
        let client = self.queues[index].pop_front()?; // none, if all are empty
        let next = self.queues[index].front();
        self.heads[index] = next.map_or(EMPTY, |next| Self::head(next.due, index));
        Some(client)
    }
}

/// Bins are 2^24 ns wide, 16.8 ms: a few clients at the load of the paper.
const BIN_SHIFT: u32 = 24;
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
    fn push(&mut self, client: Client) {
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
