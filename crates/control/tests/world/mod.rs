// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server with two kinds of work, in steps of a millisecond.
//!
//! ```text
//!   SYN ─► SYN policing ─► request rule (CGI only) ─► accept queue ─► worker ─► CPU (shared) ─► answer
//! ```
#![allow(dead_code, reason = "not every test looks at everything")]

use std::collections::VecDeque;
use tidegate_control::{Controller, Mode};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::{
    AcceptQueue, BucketCounts, BucketSignals, Counts, Reading, Signals, Times,
};
use tidegate_units::{Nanos, Share};

const STEP_S: f64 = 0.001;
const TICK_STEPS: u64 = 100;
/// Clients leave after this many seconds.
const PATIENCE_S: f64 = 10.0;

/// The server; the default has the paper's proportions: it completes 375 requests a second with 20 %
/// CGI, and 640 without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) static_s: f64,
    pub(crate) cgi_s: f64,
    pub(crate) workers: usize,
    pub(crate) accept: usize,
}

impl Default for Spec {
    fn default() -> Self {
        Self { static_s: 1.0 / 640.0, cgi_s: 0.0071, workers: 150, accept: 1024 }
    }
}

impl Spec {
    /// The same, this many times as fast.
    pub(crate) fn times(self, speed: f64) -> Self {
        Self { static_s: self.static_s / speed, cgi_s: self.cgi_s / speed, ..self }
    }

    /// Requests per second that it completes with this share of CGI.
    pub(crate) fn capacity(&self, cgi: f64) -> f64 {
        1.0 / ((1.0 - cgi) * self.static_s + cgi * self.cgi_s)
    }

    /// Requests per second, this share of them CGI, that it completes where `minimum` of the CGI
    /// requests a second are admitted: what request rules can hold.
    pub(crate) fn held_by_rules(&self, cgi: f64, minimum: f64) -> f64 {
        (1.0 - minimum * self.cgi_s) / ((1.0 - cgi) * self.static_s)
    }
}

struct Job {
    cgi: bool,
    left_s: f64,
    at_s: f64,
}

#[derive(Clone, Copy, Default)]
struct Tokens {
    level: f64,
}

impl Tokens {
    fn refill(&mut self, rate: f64, burst: f64) {
        self.level = (self.level + rate * STEP_S).min(burst);
    }

    fn take(&mut self, reserve: f64) -> bool {
        let ok = self.level >= 1.0 + reserve;
        self.level -= f64::from(u8::from(ok));
        ok
    }
}

/// What happened in one second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Second {
    pub(crate) offered: u64,
    pub(crate) syn_refused: u64,
    pub(crate) cgi_offered: u64,
    pub(crate) cgi_refused: u64,
    pub(crate) cgi_done: u64,
    pub(crate) static_done: u64,
    pub(crate) lost: u64,
    pub(crate) response_s: f64,
    pub(crate) cpu: f64,
    pub(crate) cgi_rate: Option<f64>,
    pub(crate) waiting: usize,
}

impl Second {
    pub(crate) fn done(&self) -> u64 {
        self.cgi_done + self.static_done
    }
}

pub(crate) struct World {
    spec: Spec,
    random: u64,
    now: u64,
    speed: f64,
    /// Arrivals per second and the share of CGI.
    load: (f64, f64),
    next: f64,
    accept: VecDeque<Job>,
    busy: Vec<Job>,
    syn: Tokens,
    rule: Tokens,
    limits: ServiceLimits,
    counts: Counts,
    bucket: BucketCounts,
    times: Times,
    cpu_s: f64,
    second: Second,
    pub(crate) seconds: Vec<Second>,
}

impl World {
    pub(crate) fn new(spec: Spec, seed: u64) -> Self {
        Self {
            spec,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: 0,
            speed: 1.0,
            load: (0.0, 0.0),
            next: 0.0,
            accept: VecDeque::new(),
            busy: Vec::new(),
            syn: Tokens::default(),
            rule: Tokens::default(),
            limits: ServiceLimits::default(),
            counts: Counts::default(),
            bucket: BucketCounts::default(),
            times: Times::default(),
            cpu_s: 0.0,
            second: Second::default(),
            seconds: Vec::new(),
        }
    }

    /// From 0 to 1, without 0.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }

    pub(crate) fn speed(&mut self, speed: f64) {
        self.speed = speed;
    }

    /// Runs for `seconds` with `rate` arrivals a second, the share `cgi` of them CGI; `look` sees
    /// the controller's limits after each tick.
    pub(crate) fn run(
        &mut self,
        controller: &mut dyn Controller,
        (rate, cgi, seconds): (f64, f64, u64),
        mut look: impl FnMut(&Signals, &ServiceLimits),
    ) {
        self.load = (rate, cgi);
        self.next = self.now as f64 * STEP_S - self.random().ln() / rate;
        for _ in 0..seconds * 1000 {
            self.step();
            if self.now.is_multiple_of(TICK_STEPS) {
                let signals = self.signals();
                self.limits = controller.tick(&signals, Mode::Enforce);
                look(&signals, &self.limits);
            }
            if self.now.is_multiple_of(1000) {
                self.end_second();
            }
        }
    }

    fn end_second(&mut self) {
        self.second.response_s /= self.second.done().max(1) as f64;
        self.second.cgi_rate =
            self.limits.buckets.first().and_then(|b| b.rate).map(tidegate_units::Rate::get);
        self.second.waiting = self.waiting();
        self.seconds.push(std::mem::take(&mut self.second));
    }

    fn waiting(&self) -> usize {
        self.accept.len() + self.busy.len()
    }

    fn step(&mut self) {
        self.now += 1;
        let now_s = self.now as f64 * STEP_S;
        let (rate, burst) = (self.limits.rate, f64::from(self.limits.burst));
        self.syn.refill(rate.map_or(1e9, tidegate_units::Rate::get), burst.max(1.0));
        let bucket = self.limits.buckets.first().cloned().unwrap_or_default();
        let rate = bucket.rate.map_or(1e9, tidegate_units::Rate::get);
        self.rule.refill(rate, f64::from(bucket.burst.max(1)));
        while self.next <= now_s {
            let at_s = self.next;
            self.next -= self.random().ln() / self.load.0;
            let cgi = self.random() < self.load.1;
            self.arrive(cgi, at_s, bucket.rate.is_some());
        }
        self.serve(now_s);
    }

    fn arrive(&mut self, cgi: bool, at_s: f64, limited: bool) {
        self.counts.offered += 1;
        self.second.offered += 1;
        let full = self.limits.waiting_max.is_some_and(|most| self.waiting() as u64 >= most);
        if full || self.limits.rate.is_some() && !self.syn.take(0.0) {
            self.counts.refused += 1;
            self.second.syn_refused += 1;
            return;
        }
        self.counts.admitted += 1;
        if cgi {
            self.bucket.offered[1] += 1;
            self.second.cgi_offered += 1;
            if limited && !self.rule.take(0.0) {
                self.bucket.refused[1] += 1;
                // A connection has one request here.
                self.bucket.refused_first += 1;
                self.second.cgi_refused += 1;
                return;
            }
            self.bucket.begun += 1;
        }
        if self.accept.len() >= self.spec.accept {
            self.second.lost += 1;
            return;
        }
        let mean = if cgi { self.spec.cgi_s } else { self.spec.static_s };
        let left_s = mean * (0.5 + self.random());
        self.accept.push_back(Job { cgi, left_s, at_s });
    }

    /// Processor sharing: each gets its part; what finishes leaves the rest to the others.
    fn serve(&mut self, now_s: f64) {
        self.accept.retain(|job| now_s - job.at_s < PATIENCE_S);
        while self.busy.len() < self.spec.workers
            && let Some(job) = self.accept.pop_front()
        {
            self.busy.push(job);
        }
        let mut left = STEP_S * self.speed;
        while left > 1e-12 && !self.busy.is_empty() {
            let least = self.busy.iter().map(|job| job.left_s).fold(f64::MAX, f64::min);
            let part = least.min(left / self.busy.len() as f64);
            left -= part * self.busy.len() as f64;
            self.busy.iter_mut().for_each(|job| job.left_s -= part);
            let mut done = Vec::new();
            self.busy.retain(|job| {
                let over = job.left_s <= 1e-12;
                if over {
                    done.push((job.cgi, now_s - job.at_s));
                }
                !over
            });
            done.into_iter().for_each(|(cgi, response_s)| self.answer(cgi, response_s));
            while self.busy.len() < self.spec.workers
                && let Some(job) = self.accept.pop_front()
            {
                self.busy.push(job);
            }
        }
        self.cpu_s += STEP_S - left / self.speed;
        self.second.cpu += STEP_S - left / self.speed;
    }

    fn answer(&mut self, cgi: bool, response_s: f64) {
        self.counts.completed += 1;
        self.times.count += 1;
        self.times.sum += Nanos::from_secs_f64(response_s);
        self.times.p50 = Nanos::from_secs_f64(response_s);
        self.second.response_s += response_s;
        if cgi {
            self.bucket.ended += 1;
            self.second.cgi_done += 1;
        } else {
            self.second.static_done += 1;
        }
    }

    fn signals(&mut self) -> Signals {
        let tick_s = TICK_STEPS as f64 * STEP_S;
        let mut s = Signals {
            now: Nanos::from_secs_f64(self.now as f64 * STEP_S),
            period: Nanos::from_secs_f64(tick_s),
            ..Signals::default()
        };
        // The CPU's share is known to some percent only.
        let noise = 0.02 * (self.random() - 0.5);
        let cpu = Share::new(std::mem::take(&mut self.cpu_s) / tick_s + noise);
        s.resource.cpu = Some(Reading::fresh(cpu));
        s.queue.accept = Some(Reading::fresh(AcceptQueue {
            length: self.accept.len() as u64,
            limit: self.spec.accept as u64,
        }));
        s.time.waiting = Some(Reading::fresh(self.waiting() as u64));
        s.time.first_byte = Some(Reading::fresh(std::mem::take(&mut self.times)));
        s.balance.counts = Some(Reading::fresh(std::mem::take(&mut self.counts)));
        let counts = Some(Reading::fresh(std::mem::take(&mut self.bucket)));
        s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        s
    }
}

/// Mean and coefficient of variation.
pub(crate) fn spread(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / n;
    let variance = values.map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    (mean, variance.sqrt() / mean.max(1e-9))
}
