// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several routers in front of one server, in virtual time. Reports take their time, and some are lost.

use std::collections::VecDeque;
use std::net::SocketAddr;
use tidegate_control::crowd::{CrowdTick, Crowds, LimitBounds, Sharing, Sight, Took};
use tidegate_model::sharing::{DestinationReport, RouterReports};
use tidegate_units::Nanos;

/// Steps of the world, and those that make a tick.
const STEP_S: f64 = 0.05;
const STEP: Nanos = Nanos::from_millis(50);
const TICK_STEPS: u64 = 10;
/// What the server completes a second, and how long an exchange takes that does not wait.
pub(crate) const CAPACITY: f64 = 50.0;
const USUAL_S: f64 = 0.2;
const KEY: u64 = 1;
const LEAST: f64 = 1.0;

/// An exchange.
#[derive(Clone, Copy)]
struct Exchange {
    router: usize,
    came_s: f64,
    ends_s: f64,
}

/// A router, its clients, and what it has counted since its last tick.
pub(crate) struct Router {
    name: String,
    /// Clients a second.
    pub(crate) offered: f64,
    pub(crate) crowds: Crowds,
    pub(crate) sharing: Sharing,
    bounds: LimitBounds,
    /// What it lets pass.
    pub(crate) limit: Option<f64>,
    pub(crate) alarm: bool,
    tokens: f64,
    overdue_after: f64,
    came: u32,
    refused: u32,
    passed: u32,
    took: Vec<Took>,
    completed: u32,
    /// It is away: its clients pass, and nothing is told or heard.
    pub(crate) away: bool,
    /// The others do not hear it, nor it them.
    pub(crate) cut: bool,
    /// What it says instead of what it sees.
    pub(crate) lies: Option<fn(DestinationReport) -> DestinationReport>,
    /// All exchanges completed in time (within a second).
    pub(crate) good: u64,
}

/// What is on its way: when it arrives, from whom, to whom.
struct Flying(Nanos, usize, usize, Vec<DestinationReport>);

pub(crate) struct World {
    pub(crate) routers: Vec<Router>,
    queue: VecDeque<Exchange>,
    serving: VecDeque<Exchange>,
    credit: f64,
    /// Exchanges that the server completes a second.
    pub(crate) capacity: f64,
    /// The clients of this router have a server that carries all of them.
    pub(crate) elsewhere: Option<usize>,
    pub(crate) now: Nanos,
    steps: u64,
    seed: u64,
    flying: Vec<Flying>,
    pub(crate) delay: Nanos,
    pub(crate) loss: f64,
}

fn destination() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 80))
}

/// The bucket of a duration, as `policy/router/durations.h` has them.
fn bucket(seconds: f64) -> usize {
    let units = (seconds / 256e-6).max(1.0);
    let power = libm::floor(libm::log2(units));
    let quarter = libm::floor(4.0 * (units / libm::exp2(power) - 1.0));
    ((4.0 * power + quarter) as usize).min(63)
}

impl Router {
    fn new(name: String, others: &[String]) -> Self {
        let mut sharing = Sharing::default();
        sharing.follow(others);
        Self {
            name,
            offered: 0.0,
            crowds: Crowds::default(),
            sharing,
            bounds: LimitBounds::default(),
            limit: None,
            alarm: false,
            tokens: 2.0,
            overdue_after: f64::MAX,
            came: 0,
            refused: 0,
            passed: 0,
            took: Vec::new(),
            completed: 0,
            away: false,
            cut: false,
            lies: None,
            good: 0,
        }
    }

    fn admits(&mut self) -> bool {
        self.came += 1;
        let passes = self.limit.is_none() || self.tokens >= 1.0;
        if passes {
            self.tokens = (self.tokens - 1.0).max(0.0);
            self.passed += 1;
        } else {
            self.refused += 1;
        }
        passes
    }

    fn tick(&mut self, now: Nanos, (in_flight, overdue): (u32, u32)) {
        let took = std::mem::take(&mut self.took);
        let period = Nanos(STEP.0 * TICK_STEPS);
        let tick = CrowdTick {
            period,
            took: &took,
            first_attempts: f64::from(self.came),
            refused: f64::from(self.refused),
            tokens: if self.limit.is_some() { f64::from(self.passed) } else { 0.0 },
            connected: self.passed,
            started: self.passed,
            completed: self.completed,
            in_flight,
            overdue,
            ..CrowdTick::default()
        };
        let said = self.crowds.tick(KEY, &tick, true);
        let (destination, key) = (destination(), KEY);
        let sight = Sight { now, key, destination, sample: 1, enforced: true };
        let said = self.sharing.tick(&sight, &tick, (&self.crowds, said));
        self.overdue_after = said.overdue_after.map_or(f64::MAX, Nanos::as_secs_f64);
        self.alarm = said.alarm;
        let held = self.bounds.hold((period, f64::from(self.passed)), said.limit, LEAST);
        self.limit = held.map(|limit| limit.rate);
        (self.came, self.refused, self.passed, self.completed) = (0, 0, 0, 0);
    }
}

impl World {
    /// Routers with so many clients a second each.
    pub(crate) fn new(offered: &[f64], seed: u64) -> Self {
        let name = |n: usize| format!("r{n}");
        let names: Vec<String> = (0..offered.len()).map(name).collect();
        let router = |n: usize| {
            let others: Vec<String> = names.iter().filter(|o| **o != name(n)).cloned().collect();
            Router { offered: offered[n], ..Router::new(name(n), &others) }
        };
        Self {
            routers: (0..offered.len()).map(router).collect(),
            queue: VecDeque::new(),
            serving: VecDeque::new(),
            credit: 0.0,
            capacity: CAPACITY,
            elsewhere: None,
            now: Nanos::from_secs(1000),
            steps: 0,
            seed,
            flying: Vec::new(),
            delay: Nanos::from_millis(50),
            loss: 0.0,
        }
    }

    /// The same that does not share.
    pub(crate) fn apart(mut self) -> Self {
        self.routers.iter_mut().for_each(|router| router.sharing.follow(&[]));
        self
    }

    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.seed >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn offer(&mut self, offered: &[f64]) {
        for (router, offered) in self.routers.iter_mut().zip(offered) {
            router.offered = *offered;
        }
    }

    /// So many seconds; the sum of all limits in each of them, as far as all that are there have one.
    pub(crate) fn run(&mut self, seconds: u64) -> Vec<f64> {
        let mut sums = Vec::new();
        for _ in 0..seconds {
            let mut sum = 0.0;
            for _ in 0..20 {
                self.step();
                let rates = self.routers.iter().map(|r| r.limit.unwrap_or(r.offered));
                sum += rates.sum::<f64>() / 20.0;
            }
            sums.push(sum);
        }
        sums
    }

    fn step(&mut self) {
        self.now += STEP;
        self.steps += 1;
        self.come();
        self.serve();
        if self.steps.is_multiple_of(TICK_STEPS) {
            self.tick();
        }
        self.carry();
    }

    fn come(&mut self) {
        for n in 0..self.routers.len() {
            let rate = self.routers[n].limit.unwrap_or_default();
            let router = &mut self.routers[n];
            router.tokens = (router.tokens + rate * STEP_S).min((rate * 0.25).max(2.0));
            // As many as by chance in so short a time, one after the other.
            let chance = router.offered * STEP_S / 20.0;
            for _ in 0..20 {
                if self.random() < chance && self.routers[n].admits() {
                    let came_s = self.now.as_secs_f64();
                    let one = Exchange { router: n, came_s, ends_s: came_s + USUAL_S };
                    match self.elsewhere == Some(n) {
                        true => self.serving.push_back(one),
                        false => self.queue.push_back(one),
                    }
                }
            }
        }
    }

    fn serve(&mut self) {
        let now_s = self.now.as_secs_f64();
        self.credit = (self.credit + self.capacity * STEP_S).min(1.0 + self.capacity * STEP_S);
        while self.credit >= 1.0
            && let Some(next) = self.queue.pop_front()
        {
            self.credit -= 1.0;
            self.serving.push_back(Exchange { ends_s: now_s + USUAL_S, ..next });
        }
        while self.serving.front().is_some_and(|next| next.ends_s <= now_s)
            && let Some(done) = self.serving.pop_front()
        {
            let took_s = done.ends_s - done.came_s;
            let router = &mut self.routers[done.router];
            router.completed += 1;
            router.took.push(Took { class: 4, bucket: bucket(took_s), count: 1 });
            router.good += u64::from(took_s < 1.0);
        }
    }

    fn tick(&mut self) {
        let now_s = self.now.as_secs_f64();
        for n in 0..self.routers.len() {
            let mut flight = (0, 0);
            let after = self.routers[n].overdue_after;
            for one in self.queue.iter().chain(&self.serving).filter(|one| one.router == n) {
                flight.0 += 1;
                flight.1 += u32::from(now_s - one.came_s > after);
            }
            let now = self.now;
            let router = &mut self.routers[n];
            if router.away {
                (router.came, router.refused, router.passed, router.completed) = (0, 0, 0, 0);
                router.took.clear();
                router.limit = None;
                continue;
            }
            router.tick(now, flight);
            let Some(reports) = router.sharing.tell(now) else { continue };
            let lies = router.lies;
            let said: Vec<_> = match lies {
                Some(lies) => reports.into_iter().map(lies).collect(),
                None => reports,
            };
            assert!(said.iter().all(DestinationReport::is_sound), "{said:?}");
            for to in (0..self.routers.len()).filter(|to| *to != n) {
                if self.random() >= self.loss {
                    self.flying.push(Flying(now + self.delay, n, to, said.clone()));
                }
            }
        }
    }

    fn carry(&mut self) {
        let now = self.now;
        let (here, flying): (Vec<_>, _) = self.flying.drain(..).partition(|one| one.0 <= now);
        self.flying = flying;
        for Flying(at, from, to, reports) in here {
            let apart = self.routers[from].cut || self.routers[to].cut;
            if !apart && !self.routers[to].away {
                let router = self.routers[from].name.clone();
                self.routers[to].sharing.hear(now, RouterReports { router, at, reports });
            }
        }
    }

    /// A router's daemon ends; without `kept` the next one knows nothing of before.
    pub(crate) fn restart(&mut self, n: usize, kept: bool) {
        let now = self.now;
        let names: Vec<String> = self.routers.iter().map(|router| router.name.clone()).collect();
        let before = &mut self.routers[n];
        let value = before.crowds.kept(KEY).filter(|_| kept);
        let others: Vec<String> = names.iter().filter(|o| **o != before.name).cloned().collect();
        let fresh = Router::new(before.name.clone(), &others);
        *before = Router { offered: before.offered, good: before.good, ..fresh };
        if let Some(value) = value {
            assert_eq!(before.crowds.restore(KEY, &value, Nanos::SECOND), Some(true));
            let (destination, key) = (destination(), KEY);
            let sight = Sight { now, key, destination, sample: 1, enforced: true };
            before.sharing.restore(&sight, &before.crowds);
        }
    }

    pub(crate) fn limits(&self) -> Vec<Option<f64>> {
        self.routers.iter().map(|router| router.limit).collect()
    }

    pub(crate) fn good(&self) -> u64 {
        self.routers.iter().map(|router| router.good).sum()
    }

    /// The mean of each router's limit over so many seconds.
    pub(crate) fn means(&mut self, seconds: u64) -> Vec<f64> {
        let mut sums = vec![0.0; self.routers.len()];
        for _ in 0..2 * seconds {
            (0..10).for_each(|_| self.step());
            for (sum, router) in sums.iter_mut().zip(&self.routers) {
                *sum += router.limit.unwrap_or(router.offered) / (2 * seconds) as f64;
            }
        }
        sums
    }
}
