// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flow of least cost behind the bound, solved by rising prices (primal-dual).
//!
//! Each bin has a price: what one more token in it would save now. In turns, prices are set to the
//! least cost of finding a token (shortest distances in the residual network), and requests are
//! routed along arcs on which nothing is lost until none is left. Delays without jitter have few
//! different values, so prices have, and the turns are few.

use super::super::spec::Capacity;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_units::Nanos;

const NOWHERE: u32 = u32::MAX;
const FAR: u64 = u64::MAX;

/// What arrives in each bin, and what can be carried to the next.
#[derive(Debug)]
pub(super) struct Tokens {
    /// Whole tokens, for the plan.
    whole: Vec<u32>,
    /// Tokens a bin, exactly, for the bound.
    exact: f64,
    depth: u32,
}

impl Tokens {
    pub(super) fn new(capacity: &Capacity, bin: Nanos, bins: usize) -> Self {
        let exact = capacity.rate.get() * bin.0 as f64 / 1e9;
        let until = |b: usize| (b as f64 * exact) as u64;
        let whole = (0..bins).map(|b| (until(b + 1) - until(b)) as u32);
        Self { whole: whole.collect(), exact, depth: capacity.burst }
    }

    /// The most that all tokens can earn at these prices.
    pub(super) fn earn(&self, prices: &[u64]) -> f64 {
        let sum: u128 = prices.iter().map(|price| u128::from(*price)).sum();
        let first = prices.first().copied().unwrap_or(0);
        let rise = |pair: &[u64]| u128::from(pair[1].saturating_sub(pair[0]));
        let rises: u128 = prices.windows(2).map(rise).sum();
        sum as f64 * self.exact + (u128::from(first) + rises) as f64 * f64::from(self.depth)
    }
}

/// Requests, bins, and who is served where.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    starts: &'a [usize],
    bins: &'a [u32],
    cost: &'a [u64],
    reject: u64,
    depth: u32,
    whole: &'a [u32],
    /// Tokens of a bin that are used, there or later.
    used: Vec<u32>,
    /// Tokens carried from the bin before.
    carried: Vec<u32>,
    /// Requests served in a bin.
    served: Vec<Vec<u32>>,
    /// SYN by which a request is served.
    chosen: Vec<u32>,
    /// SYNs by bin: where each bin's begin, and (request, SYN).
    by_bin: (Vec<usize>, Vec<(u32, u32)>),
    prices: Vec<u64>,
}

/// How a bin was reached in a search.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// By the request that is to be routed, with this SYN.
    First(u32),
    /// Its token comes from the bin before.
    Carry,
    /// A token carried to the bin after is kept.
    Keep,
    /// This request leaves its bin for this SYN.
    Move(u32, u32),
}

impl<'a> Flow<'a> {
    pub(super) fn new(
        starts: &'a [usize],
        bins: &'a [u32],
        cost: &'a [u64],
        tokens: &'a Tokens,
        reject: u64,
    ) -> Self {
        let n = tokens.whole.len();
        let mut by_bin = vec![0; n + 1];
        bins.iter().for_each(|b| by_bin[*b as usize + 1] += 1);
        (0..n).for_each(|b| by_bin[b + 1] += by_bin[b]);
        let mut next = by_bin.clone();
        let mut list = vec![(0, 0); bins.len()];
        for (request, pair) in starts.windows(2).enumerate() {
            for (syn, b) in bins.iter().enumerate().take(pair[1]).skip(pair[0]) {
                let place = &mut next[*b as usize];
                list[*place] = (request as u32, syn as u32);
                *place += 1;
            }
        }
        Self {
            starts,
            bins,
            cost,
            reject,
            depth: tokens.depth,
            whole: &tokens.whole,
            used: vec![0; n],
            carried: vec![0; n],
            served: vec![Vec::new(); n],
            chosen: vec![NOWHERE; starts.len() - 1],
            by_bin: (by_bin, list),
            prices: vec![0; n],
        }
    }

    pub(super) const fn reject(&self) -> u64 {
        self.reject
    }

    pub(super) fn prices(&self) -> &[u64] {
        &self.prices
    }

    /// The SYN by which this request is served; `None`: it is rejected.
    pub(super) fn chosen(&self, request: usize) -> Option<usize> {
        let syn = self.chosen[request];
        (syn != NOWHERE).then_some(syn as usize)
    }

    /// Routes all requests. Each turn routes at least one: the price that a request sees is a
    /// shortest distance, so there is a path on which nothing is lost.
    pub(super) fn solve(&mut self) {
        let mut open: Vec<u32> = (0..self.chosen.len() as u32).collect();
        let mut search = Search::new(self.prices.len());
        while !open.is_empty() {
            self.price();
            loop {
                search.forget();
                let before = open.len();
                open.retain(|request| !self.route(*request, &mut search));
                if open.len() == before {
                    break;
                }
            }
        }
    }

    /// Tokens that a bin has: the bucket is full at the beginning.
    fn supply(&self, b: usize) -> u32 {
        self.whole[b] + if b == 0 { self.depth } else { 0 }
    }

    /// Sets prices to the shortest distances from each bin to a free token or a rejection.
    fn price(&mut self) {
        let old = std::mem::take(&mut self.prices);
        let mut far = vec![FAR; old.len()];
        let mut heap = BinaryHeap::new();
        // keys are distances less old prices: no arc is shorter than nothing
        for b in 0..old.len() {
            let mut least = if self.used[b] < self.supply(b) { 0 } else { FAR };
            for request in &self.served[b] {
                let now = self.cost[self.chosen[*request as usize] as usize];
                least = least.min(self.reject - now);
            }
            if least != FAR {
                far[b] = least;
                heap.push(Reverse((least - old[b], b)));
            }
        }
        while let Some(Reverse((key, b))) = heap.pop() {
            if far[b] != key + old[b] {
                continue;
            }
            self.towards(b, |from, more, less| {
                let way = far[b] + more - less;
                if way < far[from] {
                    far[from] = way;
                    heap.push(Reverse((way - old[from], from)));
                }
            });
        }
        // where no token ever comes, none is worth more than a rejection
        self.prices = far.into_iter().map(|way| way.min(self.reject)).collect();
    }

    /// All residual arcs into a bin: where from, what it costs more, what it costs less.
    fn towards(&self, b: usize, mut arc: impl FnMut(usize, u64, u64)) {
        if b + 1 < self.carried.len() && self.carried[b + 1] < self.depth {
            arc(b + 1, 0, 0);
        }
        if b > 0 && self.carried[b] > 0 {
            arc(b - 1, 0, 0);
        }
        for (request, syn) in &self.by_bin.1[self.by_bin.0[b]..self.by_bin.0[b + 1]] {
            let now = self.chosen[*request as usize];
            if now != NOWHERE && now != *syn {
                let from = self.bins[now as usize] as usize;
                arc(from, self.cost[*syn as usize], self.cost[now as usize]);
            }
        }
    }

    /// Routes a request along a path on which nothing is lost; false if there is none now.
    fn route(&mut self, request: u32, search: &mut Search) -> bool {
        let syns = self.starts[request as usize]..self.starts[request as usize + 1];
        let price = |k: usize| self.cost[k] + self.prices[self.bins[k] as usize];
        let least = syns.clone().map(price).min().unwrap_or(FAR);
        if least >= self.reject {
            return true;
        }
        for syn in syns {
            let b = self.bins[syn] as usize;
            let entered = price(syn) == least && search.enter(b, Step::First(syn as u32));
            if entered && self.seek(search) {
                self.apply(request, search);
                return true;
            }
        }
        false
    }

    /// Depth first from the bin on the stack; true with the path on the stack. Bins without a way
    /// out stay marked.
    fn seek(&self, search: &mut Search) -> bool {
        while let Some(b) = search.top() {
            if self.used[b] < self.supply(b) && self.prices[b] == 0 {
                search.ends = NOWHERE;
                return true;
            }
            if !self.advance(b, search) && search.ends != NOWHERE {
                return true;
            }
        }
        false
    }

    /// One step further from bin b, or back; false with `ends` set if a request is to be rejected.
    fn advance(&self, b: usize, search: &mut Search) -> bool {
        let same = |to: usize| self.prices[to] == self.prices[b];
        if b > 0 && self.carried[b] < self.depth && same(b - 1) && search.enter(b - 1, Step::Carry)
        {
            return true;
        }
        let after = b + 1;
        let kept = after < self.carried.len() && self.carried[after] > 0 && same(after);
        if kept && search.enter(after, Step::Keep) {
            return true;
        }
        search.ends = NOWHERE;
        while let Some(request) = self.served[b].get(search.place[b] as usize) {
            let now = self.cost[self.chosen[*request as usize] as usize];
            let least = now + self.prices[b];
            if self.reject == least {
                search.ends = *request;
                return false;
            }
            for syn in self.starts[*request as usize]..self.starts[*request as usize + 1] {
                let to = self.bins[syn] as usize;
                if self.cost[syn] + self.prices[to] == least
                    && search.enter(to, Step::Move(*request, syn as u32))
                {
                    return true;
                }
            }
            search.place[b] += 1;
        }
        search.leave();
        true
    }

    /// Takes the path on the stack, from its end to its beginning.
    fn apply(&mut self, request: u32, search: &mut Search) {
        if let Some(b) = search.top() {
            if search.ends == NOWHERE {
                self.used[b] += 1;
            } else {
                self.take_out(search.ends, b);
                self.chosen[search.ends as usize] = NOWHERE;
            }
        }
        search.ends = NOWHERE;
        while let Some((b, step)) = search.stack.pop() {
            search.marked[b] = 0;
            search.place[b] = 0;
            match step {
                Step::First(syn) => self.put_in(request, syn),
                Step::Carry => self.carried[b + 1] += 1,
                Step::Keep => self.carried[b] -= 1,
                Step::Move(other, syn) => {
                    self.take_out(other, self.bins[self.chosen[other as usize] as usize] as usize);
                    self.put_in(other, syn);
                }
            }
        }
    }

    fn put_in(&mut self, request: u32, syn: u32) {
        self.chosen[request as usize] = syn;
        self.served[self.bins[syn as usize] as usize].push(request);
    }

    fn take_out(&mut self, request: u32, b: usize) {
        if let Some(place) = self.served[b].iter().position(|other| *other == request) {
            self.served[b].swap_remove(place);
        }
    }
}

/// A path in the making, and what has been seen.
#[derive(Debug)]
struct Search {
    stack: Vec<(usize, Step)>,
    /// Round in which a bin was entered.
    marked: Vec<u32>,
    /// How many of a bin's requests led nowhere.
    place: Vec<u32>,
    round: u32,
    /// The request that the path ends with by rejecting it.
    ends: u32,
}

impl Search {
    fn new(bins: usize) -> Self {
        let (marked, place) = (vec![0; bins], vec![0; bins]);
        Self { stack: Vec::new(), marked, place, round: 0, ends: NOWHERE }
    }

    fn forget(&mut self) {
        self.round += 1;
        self.stack.clear();
        self.place.fill(0);
    }

    /// Goes to a bin; false if it was there in this round.
    fn enter(&mut self, b: usize, step: Step) -> bool {
        if self.marked[b] == self.round {
            return false;
        }
        self.marked[b] = self.round;
        self.place[b] = 0;
        self.stack.push((b, step));
        true
    }

    fn top(&self) -> Option<usize> {
        self.stack.last().map(|(b, _)| *b)
    }

    fn leave(&mut self) {
        self.stack.pop();
    }
}
