// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One stream in one process: its arrivals to come and its requests under way.

use super::ask::Asker;
use super::conn::Request;
use super::plan::{Arrive, LoadPlan, Stream};
use super::report::StreamProgress;
use super::table::Key;
use super::told::Told;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::iter::Peekable;
use tidegate_units::Nanos;

/// A request of a session that has begun, by the time at which it is to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Follow {
    pub(crate) at: Nanos,
    pub(crate) number: u64,
    pub(crate) place: u32,
    pub(crate) beside: u32,
    pub(crate) session_start: Nanos,
    pub(crate) kept: Option<Key>,
}

/// One stream's part in this process.
pub(crate) struct Source {
    pub(crate) spec: Stream,
    pub(crate) asker: Asker,
    times: Peekable<Box<dyn Iterator<Item = Nanos>>>,
    /// By how much its arrivals are later than unthrottled ones, and when they end all the same.
    shift: Nanos,
    until: Nanos,
    /// Clients of a closed loop that are between two requests, by time of the next one.
    pub(crate) between: BinaryHeap<Reverse<Nanos>>,
    /// Requests of sessions under way.
    pub(crate) follow: BinaryHeap<Reverse<Follow>>,
    /// Number of the next arrival.
    number: u64,
    /// Requests under way, by the time at which the client gives up (which never falls).
    pub(crate) giving_up: VecDeque<(Nanos, Key)>,
    /// Connections that began, by the time at which the client gives up connecting.
    pub(crate) connecting: VecDeque<(Nanos, Key)>,
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
            asker: Asker::new(plan, index, spec),
            shift: Nanos::ZERO,
            until: spec.arrive.duration(plan.closed_until),
            times: (Box::new(mine) as Box<dyn Iterator<Item = Nanos>>).peekable(),
            between: mine_too.map(|_| Reverse(Nanos::ZERO)).collect(),
            follow: BinaryHeap::new(),
            number: shard.0,
            giving_up: VecDeque::new(),
            connecting: VecDeque::new(),
            idle: Vec::new(),
            in_flight: 0,
            progress: StreamProgress::new(&spec.name),
        }
    }

    /// When the next request of this stream is to start.
    pub(crate) fn next_start(&mut self) -> Option<Nanos> {
        let fresh = self.next_fresh();
        let follow = self.follow.peek().map(|next| next.0.at);
        fresh.into_iter().chain(follow).min()
    }

    fn next_fresh(&mut self) -> Option<Nanos> {
        let open = self.times.peek().map(|at| *at + self.shift);
        // Who was never throttled has all its arrivals.
        let open = open.filter(|at| self.shift == Nanos::ZERO || *at < self.until);
        open.or_else(|| self.between.peek().map(|next| next.0))
    }

    /// Takes the request that starts next off the list; its number says where it comes from.
    /// `told`: which ladders are throttled now.
    pub(crate) fn take_start(&mut self, shards: u64, told: &Told) -> Request {
        let fresh = self.next_fresh().unwrap_or(Nanos(u64::MAX));
        if self.follow.peek().is_some_and(|next| next.0.at <= fresh)
            && let Some(Reverse(next)) = self.follow.pop()
        {
            return Request {
                number: next.number,
                place: next.place,
                beside: next.beside,
                asked: self.asker.draw(next.number, next.place),
                session_start: next.session_start,
                kept: next.kept,
                intended: next.at,
                ..Request::default()
            };
        }
        if self.times.next().is_none() {
            self.between.pop();
        }
        let throttle = self.spec.throttle.filter(|throttle| told.throttles(throttle.ladder));
        self.shift += throttle.map_or(Nanos::ZERO, |throttle| throttle.gap);
        let number = self.number;
        self.number += shards.max(1);
        let asked = self.asker.draw(number, 0);
        Request { number, asked, session_start: fresh, intended: fresh, ..Request::default() }
    }

    /// When the next client gives up.
    pub(crate) fn next_end(&self) -> Option<Nanos> {
        let first = |queue: &VecDeque<(Nanos, Key)>| queue.front().map(|(at, _)| *at);
        first(&self.giving_up).into_iter().chain(first(&self.connecting)).min()
    }

    pub(crate) fn take_progress(&mut self) -> StreamProgress {
        let empty = StreamProgress::new(&self.spec.name);
        let mut progress = std::mem::replace(&mut self.progress, empty);
        progress.in_flight = self.in_flight;
        progress
    }
}
