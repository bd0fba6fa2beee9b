// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server in virtual time behind a gate, with the shipped controller.
//!
//! ```text
//! Poisson arrivals ─► gate ─► FIFO ─► one worker, 1.25 ms on average ─► report ─► gate
//!                      ▲                                                          │
//!                      └──────────── limits ◄─ controller ◄─ totals ◄─────────────┘   every 100 ms
//! ```
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of several tests: to panic is to fail")]

mod sensed;

use sensed::since;
use std::collections::BTreeMap;
use tidegate_config::{Config, Registry, parse};
use tidegate_control::{Controller, DefaultController, DefaultSpec, Mode};
use tidegate_gate::{Ask, Completion, Gate, Id, NoHeaders, Token, Turn};
use tidegate_model::signals::Signals;
use tidegate_model::totals::ServiceTotals;
use tidegate_units::Nanos;

/// Responses per second of the server.
pub(crate) const CAPACITY: f64 = 800.0;
pub(crate) const TICK: Nanos = Nanos::from_millis(100);
pub(crate) const OBJECTIVE: Nanos = Nanos::SECOND;

/// What reports are like, and who asks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reports {
    /// Share that is lost.
    pub(crate) lost: f64,
    /// How late all come.
    pub(crate) late: Nanos,
    /// Share of requests that wait for [`POLL`] without work for the server, and for nothing else.
    pub(crate) polls: f64,
    /// Share of clients that are slow: the proxy reports them when they have received everything, 1 s to
    /// 100 s after the server has sent it.
    pub(crate) slow: f64,
}

/// A long poll.
pub(crate) const POLL: Nanos = Nanos::from_secs(60);

impl Reports {
    /// Beside short requests 1 % long polls and 5 % slow clients.
    pub(crate) const fn mixed(self) -> Self {
        Self { polls: 0.01, slow: 0.05, ..self }
    }
}

/// What the server is like.
#[derive(Clone, Copy)]
pub(crate) struct Server {
    /// What a request costs, in usual ones.
    pub(crate) work: f64,
    /// What each waits for beside that, which costs nothing.
    pub(crate) dependency: Nanos,
    /// Workers without bound, that sleep for so long on average: nobody waits for another.
    pub(crate) sleeps: Option<Nanos>,
    /// So many of them, where there is a bound: who finds none waits.
    pub(crate) places: usize,
    /// How many come at once, on average.
    pub(crate) batch: f64,
}

impl Default for Server {
    fn default() -> Self {
        Self { work: 1.0, dependency: Nanos::ZERO, sleeps: None, places: 0, batch: 1.0 }
    }
}

pub(crate) struct World {
    pub(crate) gate: Gate,
    pub(crate) config: Config,
    pub(crate) controller: DefaultController,
    pub(crate) before: Option<ServiceTotals>,
    pub(crate) now: Nanos,
    /// When the server is free.
    pub(crate) free: Nanos,
    /// The same of each of its workers, where they have a bound.
    pub(crate) places: Vec<Nanos>,
    pub(crate) next: Nanos,
    /// Reports on their way, by their time.
    pub(crate) reports: BTreeMap<(Nanos, u64), (Token, Completion)>,
    pub(crate) numbers: u64,
    pub(crate) dice: u64,
    pub(crate) kind: Reports,
    pub(crate) server: Server,
    /// The proxy does everything in turns of its loop that take so long; zero: at once.
    pub(crate) turn: Nanos,
    /// It asks all through its turn, as one does that shares its processor with the gate, and says when that began.
    pub(crate) says: bool,
    /// The proxy has no turns: each thing that is to be done waits for so long behind all others. It tells the time of the
    /// server, and what it waited for the answer.
    pub(crate) queues: Nanos,
    /// Clients have so many connections, with one request at a time on each: who finds none does not come.
    pub(crate) seats: usize,
    /// Those that are taken, by the time at which they become free.
    pub(crate) taken: BTreeMap<(Nanos, u64), ()>,
    /// What tells a beginning is not passed on.
    pub(crate) blind: bool,
    pub(crate) shed: bool,
    /// Why the limits are as they are.
    pub(crate) why: String,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) offered: u64,
    pub(crate) refused: u64,
    pub(crate) good: u64,
    pub(crate) times: Vec<Nanos>,
}

impl World {
    pub(crate) fn new(kind: Reports) -> Self {
        let text = "services: {shop: {mode: enforce}}
gateways: {edge: {adapter: envoy, listen: '127.0.0.1:9470', routes: [{service: shop}]}}
";
        let config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        Self {
            gate: Gate::new(&config, 1),
            config,
            controller: DefaultController::new(DefaultSpec { objective: OBJECTIVE }),
            before: None,
            now: Nanos::SECOND,
            free: Nanos::SECOND,
            places: Vec::new(),
            next: Nanos::SECOND,
            reports: BTreeMap::new(),
            numbers: 0,
            dice: 88_172_645_463_325_252,
            kind,
            server: Server::default(),
            turn: Nanos::ZERO,
            says: false,
            queues: Nanos::ZERO,
            seats: usize::MAX,
            taken: BTreeMap::new(),
            blind: false,
            shed: false,
            why: String::new(),
        }
    }

    pub(crate) fn seeded(mut self, seed: u64) -> Self {
        self.dice ^= seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self
    }

    pub(crate) fn random(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether it belongs to this share.
    pub(crate) fn is_one_of(&mut self, share: f64) -> bool {
        share > 0.0 && self.random() < share
    }

    pub(crate) fn exponential(&mut self, mean_s: f64) -> Nanos {
        Nanos::from_secs_f64(-mean_s * (1.0 - self.random()).ln())
    }

    /// Runs at this load, a multiple of the capacity.
    pub(crate) fn run(&mut self, load: f64, seconds: u64) -> Seen {
        self.run_for(load, Nanos::from_secs(seconds))
    }

    pub(crate) fn run_for(&mut self, load: f64, time: Nanos) -> Seen {
        let (end, mut seen) = (self.now + time, Seen::default());
        while self.now < end {
            let tick = self.now + TICK;
            while self.next < tick {
                self.arrive(&mut seen);
                let batch = self.server.batch;
                if batch <= 1.0 || self.is_one_of(1.0 / batch) {
                    let gap = self.exponential(batch / (load * CAPACITY));
                    self.next += gap;
                }
            }
            self.take_reports(tick);
            self.now = tick;
            self.tick();
        }
        seen
    }

    pub(crate) fn take_reports(&mut self, until: Nanos) {
        while let Some(first) = self.reports.first_entry().filter(|first| first.key().0 <= until) {
            let at = first.key().0;
            let (token, completion) = first.remove();
            self.gate.complete(at, Id::Token(token), &completion);
        }
    }

    /// The turn in which the proxy sees what happens now.
    pub(crate) fn in_turn(&self, at: Nanos) -> Nanos {
        match self.turn.0 {
            0 => at,
            turn => Nanos(at.0.div_ceil(turn) * turn),
        }
    }

    /// When the turn began in which this happens, by the proxy's clock: milliseconds.
    pub(crate) fn began(&self, at: Nanos) -> Nanos {
        let turn = self.turn.0.max(1_000_000);
        Nanos(at.0 / turn * turn)
    }

    pub(crate) fn arrive(&mut self, seen: &mut Seen) {
        let came = self.next;
        let at = if self.says { came } else { self.in_turn(came) };
        self.taken = self.taken.split_off(&(came, 0));
        if self.taken.len() >= self.seats {
            return;
        }
        self.take_reports(at);
        seen.offered += 1;
        let ask = Ask {
            gateway: "edge",
            method: "GET",
            host: Some("shop.example"),
            target: "/",
            client: None,
            request_id: None,
            reported_by_id: false,
            share: None,
            turn: self.says.then(|| Turn { worker: 1, began: self.began(at) }),
            headers: &NoHeaders,
        };
        let answer = self.gate.ask(at, &ask);
        if !answer.passes() {
            seen.refused += 1;
            return;
        }
        let took = if self.is_one_of(self.kind.polls) {
            POLL
        } else {
            // The proxy reads the answer in its next turn.
            let sent = if self.says { self.in_turn(at) } else { at + self.turn } + self.queues;
            let served = sent + self.serve(sent) + self.queues;
            let begun = if self.queues > Nanos::ZERO { sent } else { at };
            let took = self.in_turn(served).since(begun);
            let all = begun.since(came) + took + self.queues;
            seen.good += u64::from(all <= OBJECTIVE);
            seen.times.push(all);
            self.taken.insert((came + all, seen.offered), ());
            took
        };
        let slow = self.is_one_of(self.kind.slow);
        let receiving = Nanos::from_secs_f64(if slow { 1.0 + 99.0 * self.random() } else { 0.0 });
        let lost = self.random() < self.kind.lost;
        if let Some(token) = answer.token.filter(|_| !lost) {
            self.numbers += 1;
            let queues = Some(self.queues).filter(|queues| *queues > Nanos::ZERO);
            let waited = queues.map(|queues| queues + queues);
            let completion =
                Completion { status: 200, duration: Some(took), waited, first_byte: None };
            let at = at + self.queues + took + self.queues + receiving + self.kind.late;
            self.reports.insert((at, self.numbers), (token, completion));
        }
    }

    /// How long a request takes of the server.
    pub(crate) fn serve(&mut self, at: Nanos) -> Nanos {
        if let Some(sleeps) = self.server.sleeps {
            let takes = self.exponential(sleeps.as_secs_f64());
            self.places.resize(self.server.places, Nanos::ZERO);
            let Some(place) = self.places.iter_mut().min() else { return takes };
            *place = (*place).max(at) + takes;
            return place.since(at);
        }
        self.free = self.free.max(at) + self.exponential(self.server.work / CAPACITY);
        self.free.since(at) + self.server.dependency
    }

    pub(crate) fn tick(&mut self) {
        self.gate.tick(self.now);
        let mut signals = Signals { now: self.now, period: TICK, ..Signals::default() };
        if !self.gate.reports_missing(0) {
            let totals = self.gate.totals(0).unwrap();
            if let Some(before) = self.before.replace(totals.clone()) {
                (signals.time, signals.balance) = since(&totals, &before);
            }
        }
        let mut limits = self.controller.tick(&signals, Mode::Enforce);
        limits.onset = limits.onset.filter(|_| !self.blind);
        self.shed |= limits.why.shedding;
        self.why.clone_from(&limits.why.text);
        assert!(self.gate.set_limits(&self.config, &[limits]).is_empty());
    }
}

pub(crate) fn p99(mut times: Vec<Nanos>) -> Nanos {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Goodput per second and capacity.
pub(crate) fn goodput(seen: &Seen, seconds: u64) -> f64 {
    seen.good as f64 / seconds as f64 / CAPACITY
}
