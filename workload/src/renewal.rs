// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Weibull gaps, Pareto on/off sources, one burst: iterators over rising times of arrivals.

use crate::pareto::Pareto;
use crate::rng::{Rng, exponential};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_units::{Nanos, Random};

/// Shortest mean time on or off: bounds how many of them fit into a run.
const PERIOD_MIN: Nanos = Nanos::from_micros(1);

/// Arrivals with independent Weibull gaps (connection arrivals after Feldmann, cited by the
/// Abacus paper: shapes below 1 are bursty; 1 is Poisson). The first gap begins at time zero.
#[derive(Clone, Debug)]
pub struct Weibull {
    scale_s: f64,
    inverse_shape: f64,
    now_s: f64,
    until_s: f64,
    rng: Rng,
}

impl Weibull {
    /// Arrivals at `rate` per second with this shape until a time; `None` when the rate is not
    /// finite and above 0 or the shape not from 0.1 to 100.
    #[must_use]
    pub fn new(rate: f64, shape: f64, until: Nanos, rng: Rng) -> Option<Self> {
        if !(rate.is_finite() && rate > 0.0 && (0.1..=100.0).contains(&shape)) {
            return None;
        }
        let inverse_shape = 1.0 / shape;
        let scale_s = 1.0 / (rate * libm::tgamma(1.0 + inverse_shape));
        Some(Self { scale_s, inverse_shape, now_s: 0.0, until_s: until.as_secs_f64(), rng })
    }
}

impl Iterator for Weibull {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        self.now_s += self.scale_s * libm::pow(exponential(&mut self.rng), self.inverse_shape);
        (self.now_s < self.until_s).then(|| Nanos::from_secs_f64(self.now_s))
    }
}

/// Many independent sources that are on and off for Pareto times and send regularly while on, as
/// ns-2's Pareto on/off traffic does. Long memory with H = (3 − shape)/2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnOff {
    /// Independent sources, 1 to [`OnOff::SOURCES_MAX`].
    pub sources: u32,
    /// Arrivals per second of one source while it is on, above 0.
    pub rate: f64,
    /// Mean time on, at least 1 us.
    pub on: Nanos,
    /// Mean time off, at least 1 us.
    pub off: Nanos,
    /// Tail index of both times, above 1.
    pub shape: f64,
}

impl OnOff {
    /// Most sources.
    pub const SOURCES_MAX: u32 = 1 << 20;

    /// One source of papers/netdraino: 500 ms on, 1000 ms off, shape 1.5.
    #[must_use]
    pub const fn netdraino(rate: f64) -> Self {
        let (on, off) = (Nanos::from_millis(500), Nanos::from_millis(1000));
        Self { sources: 1, rate, on, off, shape: 1.5 }
    }

    /// Arrivals per second of all sources together, in the long run.
    #[must_use]
    pub fn mean_rate(&self) -> f64 {
        let (on, off) = (self.on.as_secs_f64(), self.off.as_secs_f64());
        f64::from(self.sources) * self.rate * on / (on + off)
    }

    /// Arrivals until a time, stationary from time zero; `None` when a value is out of range.
    #[must_use]
    pub fn arrivals(self, until: Nanos, mut rng: Rng) -> Option<OnOffArrivals> {
        let valid = (1..=Self::SOURCES_MAX).contains(&self.sources)
            && self.rate.is_finite()
            && self.rate > 0.0
            && self.on.min(self.off) >= PERIOD_MIN
            && self.shape.is_finite()
            && self.shape > 1.0;
        if !valid {
            return None;
        }
        let (on_s, off_s) = (self.on.as_secs_f64(), self.off.as_secs_f64());
        let on = Pareto::with_mean(self.shape, on_s);
        let off = Pareto::with_mean(self.shape, off_s);
        let mut sources = Vec::with_capacity(self.sources as usize);
        let mut queue = BinaryHeap::with_capacity(self.sources as usize);
        for index in 0..self.sources {
            let is_on = rng.next_f64() < on_s / (on_s + off_s);
            let left = if is_on { on.residual(&mut rng) } else { off.residual(&mut rng) };
            // Where in its gap a source is when the clock starts is as likely as anywhere.
            let phase = rng.next_f64() / self.rate;
            let next_s = if is_on { phase } else { left + phase };
            let mut source = Source { is_on, ends_s: left, next_s };
            source.settle(&on, &off, &mut rng, until.as_secs_f64());
            queue.push(Reverse((Nanos::from_secs_f64(source.next_s), index)));
            sources.push(source);
        }
        Some(OnOffArrivals { gap_s: 1.0 / self.rate, on, off, until, sources, queue, rng })
    }
}

#[derive(Clone, Copy, Debug)]
struct Source {
    is_on: bool,
    /// When the present period ends.
    ends_s: f64,
    /// When it would send next, were it on.
    next_s: f64,
}

impl Source {
    /// Passes ends of periods until the next sending lies in a period that is on (or too late to
    /// matter). What is left of a gap when a period ends is waited for in the next one.
    fn settle(&mut self, on: &Pareto, off: &Pareto, rng: &mut Rng, until_s: f64) {
        while self.next_s < until_s && (!self.is_on || self.next_s >= self.ends_s) {
            let ended = self.ends_s;
            self.is_on = !self.is_on;
            if self.is_on {
                self.ends_s += on.sample(rng);
            } else {
                let lasts = off.sample(rng);
                self.ends_s = ended + lasts;
                self.next_s += lasts;
            }
        }
    }
}

/// See [`OnOff::arrivals`].
#[derive(Clone, Debug)]
pub struct OnOffArrivals {
    gap_s: f64,
    on: Pareto,
    off: Pareto,
    until: Nanos,
    sources: Vec<Source>,
    queue: BinaryHeap<Reverse<(Nanos, u32)>>,
    rng: Rng,
}

impl Iterator for OnOffArrivals {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let mut first = self.queue.peek_mut()?;
        let Reverse((now, index)) = *first;
        if now >= self.until {
            return None;
        }
        let source = &mut self.sources[index as usize];
        source.next_s += self.gap_s;
        source.settle(&self.on, &self.off, &mut self.rng, self.until.as_secs_f64());
        *first = Reverse((Nanos::from_secs_f64(source.next_s), index));
        Some(now)
    }
}

/// How the arrivals of a burst are spread over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// At equal distances, the first at its beginning.
    Even,
    /// Independent and uniform.
    Uniform,
}

/// One burst: `size` arrivals from `start` on, within `lasts` (all at once when that is zero).
/// The random numbers are only used by [`Spread::Uniform`].
#[must_use]
pub fn burst(size: u32, start: Nanos, lasts: Nanos, spread: (Spread, &mut Rng)) -> Vec<Nanos> {
    let (spread, rng) = spread;
    let mut times: Vec<Nanos> = (0..size)
        .map(|i| match spread {
            Spread::Even => {
                start + Nanos((u128::from(lasts.0) * u128::from(i) / u128::from(size)) as u64)
            }
            Spread::Uniform => start + Nanos((rng.next_f64() * lasts.0 as f64) as u64),
        })
        .collect();
    times.sort_unstable();
    times
}
