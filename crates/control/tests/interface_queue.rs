// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Large files on a link with a short queue, beside a small load: controllers hold the queue by the
//! large files, neither starve them nor swing, and are lifted afterwards.
//!
//! ```text
//!   large (142 kB) ─► bucket ─┐
//!                             ├─► flows (window doubles, halves on loss) ─► queue of 100 ─► 100 Mbit/s
//!   small (6 kB) ─────────────┘
//! ```

use std::collections::VecDeque;
use tidegate_control::{
    BucketController, BucketSpec, Context, DefaultBucket, DefaultSpec, Gauge, Mode, PaperBucket,
    PaperBucketSpec,
};
use tidegate_model::signals::{BucketCounts, BucketSignals, InterfaceQueue, Reading, Signals};
use tidegate_units::{Nanos, Rate};

/// Packets of 1500 bytes a millisecond: 100 Mbit/s.
const LINK: f64 = 8.33;
const QUEUE: usize = 100;
const LARGE_PACKETS: u32 = 95;
const SMALL_PACKETS: u32 = 4;
const ROUND_TRIP_MS: u64 = 10;
const TIMEOUT_MS: u64 = 200;
const WINDOW_MAX: u32 = 44;

struct Flow {
    left: u32,
    window: u32,
    due: u64,
    large: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Second {
    queue: f64,
    sent: f64,
    dropped: u64,
    large_offered: u64,
    large_refused: u64,
    rate: Option<f64>,
}

struct Link {
    random: u64,
    now: u64,
    flows: Vec<Flow>,
    queue: f64,
    next: [f64; 2],
    tokens: f64,
    rate: Option<f64>,
    burst: f64,
    counts: BucketCounts,
    lengths: VecDeque<f64>,
    sent: VecDeque<f64>,
    seconds: Vec<Second>,
    second: Second,
}

impl Link {
    fn new() -> Self {
        Self {
            random: 0x9e37_79b9_7f4a_7c15,
            now: 0,
            flows: Vec::new(),
            queue: 0.0,
            next: [0.0; 2],
            tokens: 5.0,
            rate: None,
            burst: 5.0,
            counts: BucketCounts::default(),
            lengths: VecDeque::new(),
            sent: VecDeque::new(),
            seconds: Vec::new(),
            second: Second::default(),
        }
    }

    fn wait_ms(&mut self, rate: f64) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let unit = ((self.random >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        -unit.ln() / rate * 1000.0
    }

    fn arrive(&mut self, large: bool) {
        if large {
            self.counts.offered[1] += 1;
            self.second.large_offered += 1;
            if self.rate.is_some() && self.tokens < 1.0 {
                self.counts.refused[1] += 1;
                self.counts.refused_first += 1;
                self.second.large_refused += 1;
                return;
            }
            self.tokens -= 1.0;
        }
        let left = if large { LARGE_PACKETS } else { SMALL_PACKETS };
        self.flows.push(Flow { left, window: 10, due: self.now, large });
    }

    fn send(&mut self) {
        let mut queue = self.queue;
        let mut dropped = 0;
        let now = self.now;
        for flow in self.flows.iter_mut().filter(|flow| flow.due <= now) {
            let burst = flow.window.min(flow.left);
            let room = (QUEUE as f64 - queue).max(0.0) as u32;
            let fits = burst.min(room);
            queue += f64::from(fits);
            flow.left -= fits;
            if fits < burst {
                dropped += u64::from(burst - fits);
                flow.window = (flow.window / 2).max(2);
                flow.due = now + TIMEOUT_MS;
            } else {
                flow.window = (flow.window * 2).min(WINDOW_MAX);
                flow.due = now + ROUND_TRIP_MS;
            }
        }
        let (counts, flows) = (&mut self.counts, &mut self.flows);
        flows.retain(|flow| {
            counts.ended += u64::from(flow.large && flow.left == 0);
            flow.left > 0
        });
        self.second.dropped += dropped;
        let sent = queue.min(LINK);
        self.queue = queue - sent;
        self.second.sent += sent;
        if let Some(tick) = self.sent.back_mut() {
            *tick += sent;
        }
    }

    /// Runs for `seconds` with `large` and `small` requests a second.
    fn run(&mut self, control: &mut dyn BucketController, large: f64, small: f64, seconds: u64) {
        let now = self.now as f64;
        self.next = [now + self.wait_ms(large), now + self.wait_ms(small)];
        self.sent.push_back(0.0);
        for _ in 0..seconds * 1000 {
            self.now += 1;
            self.tokens = (self.tokens + self.rate.unwrap_or(1e9) / 1000.0).min(self.burst);
            for (kind, rate) in [(0, large), (1, small)] {
                while self.next[kind] <= self.now as f64 {
                    self.next[kind] += self.wait_ms(rate);
                    self.arrive(kind == 0);
                }
            }
            self.send();
            self.second.queue += self.queue / 1000.0;
            if self.now.is_multiple_of(20) {
                self.lengths.push_back(self.queue);
            }
            if self.now.is_multiple_of(100) {
                self.tick(control);
            }
            if self.now.is_multiple_of(1000) {
                self.second.rate = self.rate;
                self.seconds.push(std::mem::take(&mut self.second));
            }
        }
    }

    fn tick(&mut self, control: &mut dyn BucketController) {
        while self.lengths.len() > 50 {
            self.lengths.pop_front();
        }
        let samples = self.lengths.len().max(1) as f64;
        let length = self.lengths.iter().sum::<f64>() / samples;
        let ticks = self.sent.len() as f64;
        let sent = self.sent.iter().sum::<f64>() * 1500.0 / (ticks * 0.1);
        let mut s = Signals {
            now: Nanos::from_millis(self.now),
            period: Nanos::from_millis(100),
            ..Signals::default()
        };
        let queue = InterfaceQueue { length, limit: QUEUE as f64 };
        s.queue.interface = Some(Reading::fresh(queue));
        s.resource.bandwidth = Some(Reading::fresh(sent));
        let counts = Some(Reading::fresh(std::mem::take(&mut self.counts)));
        s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        let limits = control.tick(&s, 0, Context::alone(Mode::Enforce));
        self.rate = limits.rate.map(Rate::get);
        self.burst = f64::from(limits.burst);
        self.sent.push_back(0.0);
        if self.sent.len() > 10 {
            self.sent.pop_front();
        }
    }
}

fn mean(seconds: &[Second], of: impl Fn(&Second) -> f64) -> f64 {
    seconds.iter().map(of).sum::<f64>() / seconds.len().max(1) as f64
}

struct Nobody;
impl BucketController for Nobody {
    fn tick(
        &mut self,
        _: &Signals,
        _: usize,
        _: Context<'_>,
    ) -> tidegate_model::limits::BucketLimits {
        tidegate_model::limits::BucketLimits { burst: 5, ..Default::default() }
    }
    fn headroom(&self, _: tidegate_control::Demand, _: f64) -> tidegate_control::Headroom {
        tidegate_control::Headroom { under_pressure: false, exhausted: true }
    }
}

/// Calm, then large files that need 110 % of the link beside 20 % of small ones, then calm.
fn course(control: &mut dyn BucketController) -> Link {
    let mut link = Link::new();
    link.run(control, 5.0, 400.0, 20);
    link.run(control, 95.0, 400.0, 120);
    link.run(control, 5.0, 400.0, 60);
    link
}

#[test]
fn large_files_are_held_back_and_the_queue_is_short() {
    let bare = course(&mut Nobody);
    let spec = BucketSpec::default();
    let default: Box<dyn BucketController> =
        Box::new(DefaultBucket::new(Gauge::Bandwidth, spec, DefaultSpec::default()));
    let published: Box<dyn BucketController> =
        Box::new(PaperBucket::new(PaperBucketSpec::pd(Gauge::Bandwidth)));
    for (name, mut control) in [("default", default), ("pd", published)] {
        let link = course(&mut *control);
        let (crowd, before) = (&link.seconds[60..140], &bare.seconds[60..140]);
        let lines = link.seconds.iter().enumerate().map(|(t, s)| format!("{t} {s:?}\n"));
        let told = format!("{name}:\n{}", lines.collect::<String>());
        let dropped = mean(crowd, |s| s.dropped as f64) / mean(before, |s| s.dropped as f64);
        assert!(dropped < 0.35, "{dropped} of the drops, {told}");
        assert!(mean(crowd, |s| s.queue) < 45.0, "{told}");
        let used = mean(crowd, |s| s.sent) / (LINK * 1000.0);
        assert!(used > 0.7, "{used} {told}");
        // No swing: the rate stays near its mean.
        let rate = mean(crowd, |s| s.rate.unwrap_or(1e6));
        let variance = mean(crowd, |s| (s.rate.unwrap_or(1e6) - rate).powi(2));
        assert!(variance.sqrt() < 0.35 * rate, "{rate} ± {} {told}", variance.sqrt());
        let after: u64 = link.seconds[170..].iter().map(|s| s.large_refused).sum();
        assert_eq!(after, 0, "{told}");
    }
}
