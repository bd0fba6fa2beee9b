// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One stream in one process: its arrivals to come and its requests under way.

use super::conn;
use super::plan::{Arrive, LoadPlan, Stream};
use super::report::StreamProgress;
use super::table::Key;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::iter::Peekable;
use tidegate_units::Nanos;

/// One stream's part in this process.
pub(crate) struct Source {
    pub(crate) spec: Stream,
    pub(crate) bytes: Vec<u8>,
    times: Peekable<Box<dyn Iterator<Item = Nanos>>>,
    /// Clients of a closed loop that are between two requests, by time of the next one.
    pub(crate) between: BinaryHeap<Reverse<Nanos>>,
    /// Number of the next arrival.
    number: u64,
    /// Requests under way, by the time at which the client gives up (which never falls).
    pub(crate) giving_up: VecDeque<(Nanos, Key)>,
    pub(crate) idle: Vec<Key>,
    pub(crate) in_flight: u64,
    pub(crate) progress: StreamProgress,
}

impl Source {
    pub(crate) fn new(plan: &LoadPlan, index: usize, spec: &Stream, shard: (u64, u64)) -> Self {
        let mine = spec.arrive.times(plan.seed, index as u64);
        let mine = mine.skip(shard.0 as usize).step_by(shard.1.max(1) as usize);
        let clients = match spec.arrive {
            Arrive::Closed { clients } => u64::from(clients),
            _ => 0,
        };
        let mine_too = (0..clients).filter(|c| c % shard.1.max(1) == shard.0);
        Self {
            spec: spec.clone(),
            bytes: conn::request_bytes(spec),
            times: (Box::new(mine) as Box<dyn Iterator<Item = Nanos>>).peekable(),
            between: mine_too.map(|_| Reverse(Nanos::ZERO)).collect(),
            number: shard.0,
            giving_up: VecDeque::new(),
            idle: Vec::new(),
            in_flight: 0,
            progress: StreamProgress::new(&spec.name),
        }
    }

    /// When the next request of this stream is to start.
    pub(crate) fn next_start(&mut self) -> Option<Nanos> {
        let open = self.times.peek().copied();
        open.or_else(|| self.between.peek().map(|next| next.0))
    }

    /// Takes that start off the list; gives the arrival's number, which says where it comes from.
    pub(crate) fn take_start(&mut self, shards: u64) -> u64 {
        if self.times.next().is_none() {
            self.between.pop();
        }
        let number = self.number;
        self.number += shards.max(1);
        number
    }

    pub(crate) fn take_progress(&mut self) -> StreamProgress {
        let empty = StreamProgress::new(&self.spec.name);
        let mut progress = std::mem::replace(&mut self.progress, empty);
        progress.in_flight = self.in_flight;
        progress
    }
}
