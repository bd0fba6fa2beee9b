// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Models of servers: an accept queue, workers, and what a worker's request goes through.
//!
//! ```text
//!   SYN ─► accept queue (limit) ─► worker (limit) ─► wait ─► CPU (shared) ─► upstream (c at once) ─► answer
//! ```
//!
//! A worker is held from accept to answer. The CPU is shared equally by the requests that want it,
//! one core each at the most (processor sharing: Apache with CGI). The upstream serves `places`
//! requests at a time in order of arrival (nginx in front of a backend of bounded concurrency).
//! Waiting takes no resource but the worker. Each stage is optional; so this one model gives
//! prefork and event, CPU-bound and waiting, one worker, and a slow upstream.
//!
//! What a request takes belongs to the client: with one seed it is the same, whoever else is let in.

use crate::sharing::Sharing;
use std::collections::VecDeque;
use tidegate_units::Nanos;
use tidegate_workload::{Rng, Shape};

/// Streams of random numbers below this one are not those of clients.
const CLIENT_STREAMS: u64 = 1 << 32;

/// A time with a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Mean in seconds.
    pub mean_s: f64,
    /// Distribution around it.
    pub shape: Shape,
}

/// What a server is.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSpec {
    /// Requests in service at once.
    pub workers: usize,
    /// Connections that wait for a worker; the kernel ignores a SYN beyond it.
    pub accept_limit: usize,
    /// Cores.
    pub cpus: u32,
    /// Time that a worker waits for something else before it computes.
    pub wait: Option<Work>,
    /// CPU time.
    pub cpu: Option<Work>,
    /// Requests that the upstream serves at once, and how long it takes for one.
    pub upstream: Option<(usize, Work)>,
}

impl ServerSpec {
    /// Requests per second that it can complete at full speed: the tightest of its stages.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        let mean = |w: &Option<Work>| w.map_or(0.0, |w| w.mean_s);
        let upstream = self.upstream.map_or(0.0, |(_, w)| w.mean_s);
        let held = mean(&self.wait) + mean(&self.cpu) + upstream;
        let mut tightest = self.workers as f64 / held;
        if let Some(cpu) = self.cpu {
            tightest = tightest.min(f64::from(self.cpus) / cpu.mean_s);
        }
        if let Some((places, work)) = self.upstream {
            tightest = tightest.min(places as f64 / work.mean_s);
        }
        tightest
    }
}

/// A request inside the server; the number is the world's.
pub type Request = usize;

/// What the server wants to be told, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The CPU finishes a request, unless the epoch has passed.
    Cpu(u64),
    /// A request's waiting is over.
    Wait(Request),
    /// The upstream answers a request.
    Upstream(Request),
}

/// What came out of one step: the world schedules the timers and delivers the responses.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Timers to set.
    pub timers: Vec<(Nanos, Timer)>,
    /// Requests that were answered.
    pub answered: Vec<Request>,
}

/// What one request takes of each stage, in means.
#[derive(Clone, Copy, Debug, Default)]
struct Factors {
    wait: f64,
    cpu: f64,
    upstream: f64,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    spec: ServerSpec,
    seed: u64,
    /// By the number of the request.
    factors: Vec<Factors>,
    speed: f64,
    accept: VecDeque<Request>,
    busy: usize,
    sharing: Sharing,
    epoch: u64,
    then: Nanos,
    cpu_used_s: f64,
    cpu_pressed_s: f64,
    upstream_busy: usize,
    upstream_queue: VecDeque<Request>,
}

impl Server {
    /// An idle server whose service times come from `seed` and the client.
    #[must_use]
    pub fn new(spec: ServerSpec, seed: u64) -> Self {
        Self {
            spec,
            seed,
            factors: Vec::new(),
            speed: 1.0,
            accept: VecDeque::new(),
            busy: 0,
            sharing: Sharing::default(),
            epoch: 0,
            then: Nanos::ZERO,
            cpu_used_s: 0.0,
            cpu_pressed_s: 0.0,
            upstream_busy: 0,
            upstream_queue: VecDeque::new(),
        }
    }

    /// Connections in the accept queue.
    #[must_use]
    pub fn accept_length(&self) -> usize {
        self.accept.len()
    }

    /// Whether the kernel would ignore a SYN now.
    #[must_use]
    pub fn accept_full(&self) -> bool {
        self.accept.len() >= self.spec.accept_limit
    }

    /// CPU seconds used, and seconds in which a request waited for CPU, since the beginning.
    pub fn cpu(&mut self, now: Nanos) -> (f64, f64) {
        self.advance(now);
        (self.cpu_used_s, self.cpu_pressed_s)
    }

    /// Sets the speed of CPU and upstream: 1 is full. What the upstream has begun keeps its time.
    pub fn set_speed(&mut self, now: Nanos, speed: f64) -> Outcome {
        self.advance(now);
        self.speed = speed.clamp(1e-6, 1e6);
        let mut out = Outcome::default();
        self.plan_cpu(now, &mut out);
        out
    }

    /// Sets the mean time that a worker waits: a dependency that got slower or faster.
    pub fn set_wait(&mut self, mean_s: f64) {
        if let Some(wait) = &mut self.spec.wait {
            wait.mean_s = mean_s.max(0.0);
        }
    }

    /// A connection of the client with this number was established.
    pub fn connect(&mut self, now: Nanos, request: Request, client: u64) -> Outcome {
        if self.factors.len() <= request {
            self.factors.resize(request + 1, Factors::default());
        }
        self.factors[request] = self.factors_of(client);
        self.accept.push_back(request);
        let mut out = Outcome::default();
        self.accept_more(now, &mut out);
        out
    }

    /// Drawn in this order, whichever stages there are.
    fn factors_of(&self, client: u64) -> Factors {
        let mut rng = Rng::new(self.seed, CLIENT_STREAMS + client);
        let mut draw = |work: Option<Work>| work.map_or(1.0, |work| work.shape.sample(&mut rng));
        let upstream = self.spec.upstream.map(|(_, work)| work);
        Factors { wait: draw(self.spec.wait), cpu: draw(self.spec.cpu), upstream: draw(upstream) }
    }

    /// A timer fired. `gone` tells whether the client of a request has left: the upstream does not
    /// begin such a request, a worker goes on with it.
    pub fn fire(&mut self, now: Nanos, timer: Timer, gone: impl Fn(Request) -> bool) -> Outcome {
        let mut out = Outcome::default();
        match timer {
            Timer::Cpu(epoch) if epoch == self.epoch => self.cpu_done(now, &mut out),
            Timer::Cpu(_) => {}
            Timer::Wait(request) => self.compute(now, request, &mut out),
            Timer::Upstream(request) => {
                self.upstream_busy -= 1;
                self.answer(request, &mut out);
            }
        }
        self.upstream_more(now, &gone, &mut out);
        self.accept_more(now, &mut out);
        out
    }

    /// Checks that no stage holds more than it may.
    ///
    /// # Errors
    /// What was exceeded.
    pub fn check(&self) -> Result<(), String> {
        let places = self.spec.upstream.map_or(0, |(places, _)| places);
        let within = self.busy <= self.spec.workers
            && self.upstream_busy <= places
            && self.accept.len() <= self.spec.accept_limit.max(1);
        if within {
            return Ok(());
        }
        Err(format!(
            "server over its limits: {} workers, {} upstream, {} in the accept queue of {:?}",
            self.busy,
            self.upstream_busy,
            self.accept.len(),
            self.spec
        ))
    }

    fn accept_more(&mut self, now: Nanos, out: &mut Outcome) {
        while self.busy < self.spec.workers {
            let Some(request) = self.accept.pop_front() else { return };
            self.busy += 1;
            match self.spec.wait {
                Some(work) => {
                    let wait = Nanos::from_secs_f64(work.mean_s * self.factors[request].wait);
                    out.timers.push((now + wait, Timer::Wait(request)));
                }
                None => self.compute(now, request, out),
            }
        }
    }

    fn compute(&mut self, now: Nanos, request: Request, out: &mut Outcome) {
        let Some(work) = self.spec.cpu else {
            return self.ask_upstream(now, request, out);
        };
        self.advance(now);
        let amount = work.mean_s * self.factors[request].cpu;
        self.sharing.begin(request, amount);
        self.plan_cpu(now, out);
    }

    /// Lets the CPU's clocks run to `now`.
    fn advance(&mut self, now: Nanos) {
        let dt = now.since(self.then).as_secs_f64();
        self.then = self.then.max(now);
        let (n, cores) = (self.sharing.len() as f64, f64::from(self.spec.cpus));
        if n > 0.0 {
            self.sharing.run(dt * self.speed * (cores / n).min(1.0));
            self.cpu_used_s += dt * n.min(cores);
            self.cpu_pressed_s += if n > cores { dt } else { 0.0 };
        }
    }

    /// Sets the timer for the next request that the CPU finishes; earlier timers become void.
    fn plan_cpu(&mut self, now: Nanos, out: &mut Outcome) {
        self.epoch += 1;
        if let Some(left) = self.sharing.left() {
            let n = self.sharing.len() as f64;
            let rate = self.speed * (f64::from(self.spec.cpus) / n).min(1.0);
            let left = (left / rate).max(0.0);
            // Rounded up, so that the virtual clock has got there when the timer fires.
            let at = now + Nanos::from_secs_f64(left) + Nanos(1);
            out.timers.push((at, Timer::Cpu(self.epoch)));
        }
    }

    fn cpu_done(&mut self, now: Nanos, out: &mut Outcome) {
        self.advance(now);
        while let Some(done) = self.sharing.finished() {
            self.ask_upstream(now, done, out);
        }
        self.plan_cpu(now, out);
    }

    fn ask_upstream(&mut self, now: Nanos, request: Request, out: &mut Outcome) {
        if self.spec.upstream.is_none() {
            return self.answer(request, out);
        }
        self.upstream_queue.push_back(request);
        self.upstream_more(now, &|_| false, out);
    }

    fn upstream_more(&mut self, now: Nanos, gone: &impl Fn(Request) -> bool, out: &mut Outcome) {
        let Some((places, work)) = self.spec.upstream else { return };
        while self.upstream_busy < places {
            let Some(request) = self.upstream_queue.pop_front() else { return };
            if gone(request) {
                self.answer(request, out);
                continue;
            }
            self.upstream_busy += 1;
            let amount = work.mean_s * self.factors[request].upstream / self.speed;
            out.timers.push((now + Nanos::from_secs_f64(amount), Timer::Upstream(request)));
        }
    }

    fn answer(&mut self, request: Request, out: &mut Outcome) {
        self.busy -= 1;
        out.answered.push(request);
    }
}
