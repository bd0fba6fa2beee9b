// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What makes retransmissions of a burst spread: timers and delays are not quite constant.

use crate::rng::Rng;
use crate::syn::Schedule;
use serde::{Deserialize, Serialize};
use tidegate_units::{Nanos, Random};

/// Half widths of uniform deviations (the Abacus paper, section 3.1, equations 1 and 2).
///
/// A time-out is counted from the sending of a SYN, not from its arrival: the deviations of the
/// time-outs add up, those of the delay do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Jitter {
    /// Of the first retransmission time-out.
    pub rto_first: Nanos,
    /// Of each later one.
    pub rto_later: Nanos,
    /// Of the network's delay, for each SYN.
    pub delay: Nanos,
}

impl Jitter {
    /// Perfect timers, constant delay.
    pub const NONE: Self =
        Self { rto_first: Nanos::ZERO, rto_later: Nanos::ZERO, delay: Nanos::ZERO };

    /// The paper's: ±50 ms for the first time-out; the later ones "within a few ms" – ±2.5 ms,
    /// as 90 % of them lay within 5 ms; ±5 ms of delay.
    pub const PAPER: Self = Self {
        rto_first: Nanos::from_millis(50),
        rto_later: Nanos::from_micros(2500),
        delay: Nanos::from_millis(5),
    };

    /// The same half width for all three.
    #[must_use]
    pub const fn uniform(half_width: Nanos) -> Self {
        Self { rto_first: half_width, rto_later: half_width, delay: half_width }
    }

    /// Time between the sending of the n-th SYN after the first (n = 0) and of the next; `None`
    /// when the client sends no more. Takes a random number only when there is a deviation.
    pub fn gap(&self, schedule: &Schedule, n: usize, rng: &mut Rng) -> Option<Nanos> {
        let nominal = schedule.gap(n)?;
        let half = if n == 0 { self.rto_first } else { self.rto_later };
        Some((nominal + deviation(half, rng)) - half)
    }

    /// Delay of one SYN, from 0 to twice the half width: nothing arrives before it was sent, so
    /// the delay that varies is as long as the half width. Takes a random number only then.
    pub fn delay(&self, rng: &mut Rng) -> Nanos {
        deviation(self.delay, rng)
    }
}

/// Uniform from 0 to twice the half width.
fn deviation(half: Nanos, rng: &mut Rng) -> Nanos {
    if half == Nanos::ZERO {
        return Nanos::ZERO;
    }
    // The upper half of a product of 64 by 64 bits: uniform without a division.
    Nanos(((u128::from(rng.next_u64()) * u128::from(2 * half.0.min(u64::MAX / 2))) >> 64) as u64)
}
