// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Thresholds, gap and percent by another hand: from the head comments of their headers, the paper and
//! the two RFCs. A ladder is climbed rung by rung, a bucket is the RFC's X, a share is divided anew for
//! each event.

use tidegate_policy::{Event, GapSpec, PercentSpec, ThresholdSpec, Throttle};
use tidegate_units::{Nanos, Share};

const TOKEN: u128 = 1_000_000_000_000;
/// A clock further back than this is believed.
const BACK_MAX: u64 = 1_000_000_000;
/// Severities of a ladder, repeated where a policy has fewer.
const SEVERITIES: usize = 3;
/// Arrivals from which a mix is measured.
const LEAST: u64 = 64;

fn priority(event: &Event) -> usize {
    usize::from(event.priority) % 8
}

/// What becomes of an event of a priority with thresholds.
pub enum Above {
    Below,
    Let,
    Throttled,
    Discarded,
}

/// One rung for each priority, and when the last one was let through a gap (0: never).
#[derive(Default)]
pub struct Ladders {
    rungs: [usize; 8],
    last: u64,
}

impl Ladders {
    pub fn admit(&mut self, spec: &ThresholdSpec, event: &Event) -> Above {
        for priority in 0..8 {
            self.climb(spec, priority, event.level);
        }
        let at = priority(event);
        let rung = self.rungs[at];
        let severity = rung + usize::from(spec.priorities[at].harder);
        let preferred = spec.preferred >> at & 1 == 1;
        match &spec.throttle {
            _ if rung > SEVERITIES => Above::Discarded,
            Throttle::None => Above::Below,
            _ if rung == 0 => Above::Below,
            _ if preferred => Above::Let,
            Throttle::Share(shares) => {
                let share = (pick(shares, severity).get() * 65_536.0).floor();
                let let_in = f64::from(event.random / 65_536) >= share;
                if let_in { Above::Let } else { Above::Throttled }
            }
            Throttle::Gap(gaps) => self.gap(*pick(gaps, severity), event.now_ns),
        }
    }

    fn climb(&mut self, spec: &ThresholdSpec, priority: usize, level: u32) {
        let ladder = spec.priorities[priority];
        let rise = |severity: usize| match severity {
            1 => 0,
            _ if spec.rises.is_empty() => 0,
            _ => spec.rises[(severity - 2).min(spec.rises.len() - 1)],
        };
        // the threshold that leads to each rung; that of the ground is the abatement
        let reached = |rung: usize| match rung {
            0 => level >= ladder.abatement,
            4 => ladder.discard.is_some_and(|discard| level >= discard),
            _ => level >= ladder.onset + rise(rung),
        };
        let rung = &mut self.rungs[priority];
        while *rung > 0 && !reached(*rung - 1) {
            *rung -= 1;
        }
        for higher in *rung + 1..=SEVERITIES + 1 {
            if reached(higher) {
                *rung = higher;
            }
        }
    }

    fn gap(&mut self, gap: Nanos, now: u64) -> Above {
        if self.last.saturating_sub(now) > BACK_MAX {
            self.last = now;
        }
        if self.last > 0 && now.saturating_sub(self.last) < gap.0 / 1000 * 1000 {
            return Above::Throttled;
        }
        self.last = self.last.max(now);
        Above::Let
    }
}

/// The value of a severity, from 1 on; the last one for all above.
fn pick<T>(values: &[T], severity: usize) -> &T {
    &values[severity.min(values.len()) - 1]
}

/// What becomes of an event before a gap.
pub enum Gapped {
    Sent,
    Waits,
    /// And whether the highest priority would be sent, or wait.
    Refused(bool),
}

/// X and LCT of RFC 7415; X in picotokens.
#[derive(Default)]
pub struct Leaky {
    x: u128,
    then: u64,
    begun: bool,
}

impl Leaky {
    /// No rate is in force.
    pub fn idle(&mut self) {
        self.begun = false;
    }

    pub fn admit(&mut self, spec: &GapSpec, event: &Event) -> Gapped {
        let rate = u128::from(spec.rate.as_milli());
        let tau = |priority: usize| u128::from(spec.tau_milli[priority]) * (TOKEN / 1000);
        let wait = u128::from(spec.wait_max.0) * rate;
        let most = TOKEN + tau(0) + wait;
        let drained = u128::from(event.now_ns.saturating_sub(self.then)) * rate;
        self.x = if drained >= most { 0 } else { self.x.saturating_sub(drained).min(most) };
        if event.now_ns > self.then || self.then - event.now_ns > BACK_MAX {
            self.then = event.now_ns;
        }
        if !self.begun {
            self.x = self.x.max(u128::from(spec.tau0_milli) * (TOKEN / 1000));
            self.begun = true;
        }
        let mine = tau(priority(event));
        let gapped = if self.x <= mine {
            Gapped::Sent
        } else if wait > 0 && self.x <= mine + wait {
            Gapped::Waits
        } else {
            return Gapped::Refused(self.x <= tau(0) + wait);
        };
        self.x += TOKEN;
        gapped
    }
}

/// The counts of RFC 7339, section 7.2, for eight categories.
#[derive(Default)]
pub struct Mix {
    ends: u64,
    counts: [u64; 8],
    mix: [u64; 8],
}

impl Mix {
    /// Whether it is refused.
    pub fn refuses(&mut self, spec: &PercentSpec, event: &Event) -> bool {
        self.turn_to(spec, event.now_ns);
        self.counts[priority(event)] += 1;
        u64::from(event.random) < self.chance(spec.share, priority(event))
    }

    fn turn_to(&mut self, spec: &PercentSpec, now: u64) {
        let next = now.wrapping_add(spec.period.0);
        if self.ends == 0 {
            self.mix = spec.mix.map(u64::from);
        }
        if self.ends == 0 || self.ends > next.wrapping_add(BACK_MAX) {
            self.ends = next;
        }
        if now >= self.ends {
            self.ends = next;
            if self.counts.iter().sum::<u64>() >= LEAST {
                self.mix = std::mem::take(&mut self.counts);
            }
        }
    }

    /// How likely this priority is refused, in 1/2^32.
    fn chance(&self, share: Share, priority: usize) -> u64 {
        let share = (share.get() * 65_536.0).floor() as u128;
        let all = u128::from(self.mix.iter().sum::<u64>());
        let below = u128::from(self.mix[priority + 1..].iter().sum::<u64>());
        let mine = u128::from(self.mix[priority]);
        // events to refuse, in 1/65536: of all, and of this priority
        let (wanted, before) = (share * all, below << 16);
        if share == 1 << 16 || wanted > before && wanted - before >= mine << 16 {
            1 << 32
        } else {
            // here some arrive: else less than none would be wanted
            (wanted.saturating_sub(before) << 16).checked_div(mine).unwrap_or(0) as u64
        }
    }
}
