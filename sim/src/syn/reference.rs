// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published Abacus filter once more, in Rust: a reference, not a datapath policy.
//!
//! With [`Counts::All`] it gives the verdicts of `policy/algo/abacus.h`, which a test compares SYN
//! by SYN. It is here for one question that the shipped policy cannot answer: what the filter of
//! section 5 would do if λ were what the paper wants it to be, the rate of *new* requests
//! ([`Counts::Fresh`], with the attempt told by the simulator), and nothing else were different.

use super::filter::{Filter, Verdict};
use super::spec::{Capacity, Refill};
use super::tokens::Bucket;
use tidegate_policy::AbacusSpec;
use tidegate_units::Nanos;

/// Periods in the ring.
const PERIODS: usize = 128;

/// Which SYNs λ counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// All, as a filter without memory of clients must.
    All,
    /// First SYNs only.
    Fresh,
}

/// One period of the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    /// r_t·T0 − A\[i\], in thousandths of a SYN.
    used: u64,
    /// B\[i\].
    again: u32,
}

/// The Abacus filter of section 5, for experiments on its estimator.
#[derive(Clone, Debug)]
pub struct AbacusReference {
    spec: AbacusSpec,
    counts: Counts,
    grain: u64,
    bucket: Bucket,
    ring: [Period; PERIODS],
    /// End of the current period; 0: no SYN yet.
    end: u64,
    /// Arrivals a period, in thousandths.
    lambda: u64,
    arrivals: u64,
    now: usize,
}

impl AbacusReference {
    /// A fresh filter; parameters as the shipped policy takes them (the caller has had them
    /// checked by `Params::abacus`), tokens as `refill` says.
    #[must_use]
    pub fn new(spec: AbacusSpec, counts: Counts, refill: Refill) -> Self {
        let capacity = Capacity { rate: spec.bucket.rate, burst: spec.bucket.burst, refill };
        let grain = match refill {
            Refill::Continuous => 1,
            Refill::Every(period) => period.0.max(1),
        };
        let bucket = Bucket::new(&capacity);
        let ring = [Period::default(); PERIODS];
        Self { spec, counts, grain, bucket, ring, end: 0, lambda: 0, arrivals: 0, now: 0 }
    }

    /// r_t·T0, in thousandths of a SYN.
    fn room(&self) -> u64 {
        (self.spec.bucket.rate.get() * 1e3 * self.spec.period.as_secs_f64() + 0.5) as u64
    }

    fn at(&mut self, ahead: u16) -> &mut Period {
        &mut self.ring[(self.now + usize::from(ahead)) % PERIODS]
    }

    fn start(&mut self, now: u64) {
        self.end = now + self.spec.period.0;
        let start = self.spec.lambda_start.get() * self.spec.period.as_secs_f64();
        self.lambda = (start * 1e3 + 0.5) as u64;
        let used = self.lambda.min(self.room());
        (0..=self.spec.window).for_each(|i| self.at(i).used = used);
    }

    fn shift(&mut self) {
        let (seen, shift) = (self.arrivals * 1000, self.spec.ewma_shift);
        self.lambda = if seen >= self.lambda {
            self.lambda + ((seen - self.lambda) >> shift)
        } else {
            self.lambda - ((self.lambda - seen + (1 << shift) - 1) >> shift)
        };
        self.arrivals = 0;
        *self.at(0) = Period::default();
        self.now = (self.now + 1) % PERIODS;
        let used = self.lambda.min(self.room());
        *self.at(self.spec.window) = Period { used, again: 0 };
    }

    fn tick(&mut self, now: u64) {
        if self.end == 0 {
            self.start(now);
        }
        for _ in 0..PERIODS {
            if now < self.end {
                return;
            }
            self.shift();
            self.end += self.spec.period.0;
        }
        if now >= self.end {
            self.end = now + self.spec.period.0;
        }
    }

    /// Figure 7; true if a period with room was found.
    fn borrow(&mut self) -> bool {
        let (room, window) = (self.room(), self.spec.window);
        let within = self.spec.schedule.iter().copied().take_while(|i| *i <= window);
        let steps: Vec<u16> = within.collect();
        let has_room = |filter: &mut Self, i: u16| filter.at(i).used + 1000 <= room;
        let Some(found) = steps.iter().position(|i| has_room(self, *i)) else { return false };
        self.at(steps[found]).used += 1000;
        steps[..found].iter().for_each(|i| self.at(*i).again += 1);
        true
    }
}

impl Filter for AbacusReference {
    fn evaluate(&mut self, now: Nanos, _key: u64, attempt: u8) -> Verdict {
        let now = now.0 / self.grain * self.grain;
        self.tick(now);
        self.arrivals += u64::from(self.counts == Counts::All || attempt == 0);
        if self.bucket.take(now) {
            return Verdict::Admit;
        }
        if self.at(0).again > 0 {
            self.at(0).again -= 1;
            return Verdict::Drop;
        }
        if self.borrow() { Verdict::Drop } else { Verdict::Reject }
    }
}
