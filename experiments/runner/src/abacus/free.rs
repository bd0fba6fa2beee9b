// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Abacus filter once more, in plain Rust, with everything that the paper leaves
//! open as an option. Never judged in place of the shipped policies: with the default options it
//! is the same filter (a test compares them), with others it says what a choice is worth.

use super::setting::{Leftover, Seen, Walk};
use std::collections::VecDeque;
use tidegate_sim::syn::{Filter, Verdict};
use tidegate_units::Nanos;

/// One token, as the policies count: rate in thousandths times nanoseconds.
const TOKEN: u128 = 1_000_000_000_000;
/// One SYN in the unit of λ and A.
const MILLI: u64 = 1000;
/// So many periods of silence are caught up one by one; then all is new.
const CATCH_UP_MAX: u32 = 128;

/// Which schedule is walked for a SYN.
#[derive(Clone, Debug)]
pub enum Tables {
    /// One for all.
    One(Vec<u16>),
    /// One of these by these weights, drawn anew for each SYN.
    Drawn(Vec<(Vec<u16>, f64)>),
    /// Each client's own, by its key: what no filter knows.
    Known(Vec<(Vec<u16>, f64)>),
}

/// Everything that a filter is made of.
#[derive(Clone, Debug)]
pub struct Choices {
    /// Thousandths of a token per second.
    pub rate_milli: u64,
    /// Depth in tokens.
    pub burst: u64,
    /// T0.
    pub period: Nanos,
    /// S in periods.
    pub window: u16,
    /// Schedules in periods.
    pub tables: Tables,
    /// First λ, thousandths of a SYN per period.
    pub lambda_milli: u64,
    /// λ moves by 1/2^shift a period.
    pub ewma_shift: u32,
    /// What λ sees.
    pub seen: Seen,
    /// What becomes of B[0].
    pub leftover: Leftover,
    /// Which bucket first.
    pub walk: Walk,
    /// Whether S is tested after the first look only.
    pub test_late: bool,
}

/// A period that lies ahead.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    /// A[i], thousandths of a SYN.
    room_milli: u64,
    /// B[i].
    again: u64,
}

/// The filter.
#[derive(Clone, Debug)]
pub struct Free {
    choices: Choices,
    tokens: u128,
    then: Nanos,
    ends: Option<Nanos>,
    lambda_milli: u64,
    arrivals: u64,
    ahead: VecDeque<Ahead>,
    draws: u64,
}

impl Free {
    /// A fresh filter.
    #[must_use]
    pub fn new(choices: Choices) -> Self {
        let tokens = u128::from(choices.burst) * TOKEN;
        let lambda_milli = choices.lambda_milli;
        let none = (Nanos::ZERO, None, VecDeque::new());
        let (then, ends, ahead) = none;
        Self { choices, tokens, then, ends, lambda_milli, arrivals: 0, ahead, draws: 0 }
    }

    /// r_t · T0, thousandths of a SYN.
    fn per_period(&self) -> u64 {
        let milli = u128::from(self.choices.rate_milli) * u128::from(self.choices.period.0);
        (milli / 1_000_000_000) as u64
    }

    fn fresh(&self) -> Ahead {
        Ahead { room_milli: self.per_period().saturating_sub(self.lambda_milli), again: 0 }
    }

    fn start(&mut self, now: Nanos) {
        self.ends = Some(now + self.choices.period);
        let fresh = self.fresh();
        // the late test of S may look one schedule entry beyond the window
        let first = match &self.choices.tables {
            Tables::One(table) => table.first().copied().unwrap_or(0),
            Tables::Drawn(_) | Tables::Known(_) => 0,
        };
        let periods = usize::from(self.choices.window.max(first)) + 1;
        self.ahead = std::iter::repeat_n(fresh, periods).collect();
    }

    fn shift(&mut self) {
        let seen = self.arrivals * MILLI;
        let shift = self.choices.ewma_shift;
        if self.choices.seen != Seen::Fixed {
            if seen >= self.lambda_milli {
                self.lambda_milli += (seen - self.lambda_milli) >> shift;
            } else {
                self.lambda_milli -= (self.lambda_milli - seen + (1 << shift) - 1) >> shift;
            }
        }
        self.arrivals = 0;
        let gone = self.ahead.pop_front().unwrap_or_default();
        let fresh = self.fresh();
        self.ahead.push_back(fresh);
        if let (Leftover::Carry, Some(next)) = (self.choices.leftover, self.ahead.front_mut()) {
            next.again += gone.again;
        }
    }

    fn tick(&mut self, now: Nanos) {
        if self.ends.is_none() {
            self.start(now);
        }
        for _ in 0..CATCH_UP_MAX {
            let Some(ends) = self.ends.filter(|ends| *ends <= now) else { break };
            self.shift();
            self.ends = Some(ends + self.choices.period);
        }
        if self.ends.is_some_and(|ends| ends <= now) {
            self.ends = Some(now + self.choices.period);
        }
        let gained = u128::from(now.since(self.then).0) * u128::from(self.choices.rate_milli);
        self.tokens = (self.tokens + gained).min(u128::from(self.choices.burst) * TOKEN);
        self.then = self.then.max(now);
    }

    /// Which of the schedules this SYN walks.
    fn table(&mut self, key: u64) -> Vec<u16> {
        match &self.choices.tables {
            Tables::One(table) => table.clone(),
            // the upper half of its key chooses a client's kind (sim::syn)
            Tables::Known(tables) => pick(tables, key),
            Tables::Drawn(tables) => {
                // golden-ratio sequence: shares are met evenly, and nothing is random
                self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
                pick(tables, self.draws)
            }
        }
    }

    /// Figure 7; whether a period with room was found.
    fn borrow(&mut self, table: &[u16]) -> bool {
        let window = self.choices.window;
        let late = self.choices.test_late;
        let inside =
            |&(k, at): &(usize, u16)| at <= window || (k == 0 && late && self.has(usize::from(at)));
        let steps: Vec<(usize, u16)> = table.iter().copied().enumerate().filter(inside).collect();
        let has_room = |&&(_, at): &&(usize, u16)| self.has(usize::from(at));
        let found = match self.choices.walk {
            Walk::Earliest => steps.iter().find(has_room),
            Walk::Latest => steps.iter().rev().find(has_room),
        };
        let Some(&(k, at)) = found else { return false };
        self.ahead[usize::from(at)].room_milli -= MILLI;
        for at in &table[..k] {
            if let Some(passed) = self.ahead.get_mut(usize::from(*at)) {
                passed.again += 1;
            }
        }
        true
    }

    fn has(&self, at: usize) -> bool {
        self.ahead.get(at).is_some_and(|ahead| ahead.room_milli >= MILLI)
    }
}

/// The table whose share of the whole the upper half of `bits` falls into.
fn pick(tables: &[(Vec<u16>, f64)], bits: u64) -> Vec<u16> {
    let total: f64 = tables.iter().map(|(_, weight)| weight).sum();
    let draw = (bits >> 32) as f64;
    let mut sum = 0.0;
    for (table, weight) in tables {
        sum += weight;
        if draw < (sum / total * (1u64 << 32) as f64).floor() {
            return table.clone();
        }
    }
    tables.last().map(|(table, _)| table.clone()).unwrap_or_default()
}

impl Filter for Free {
    fn evaluate(&mut self, now: Nanos, key: u64, attempt: u8) -> Verdict {
        self.tick(now);
        if self.choices.seen == Seen::All || attempt == 0 {
            self.arrivals += 1;
        }
        if self.tokens >= TOKEN {
            self.tokens -= TOKEN;
            return Verdict::Admit;
        }
        if let Some(now) = self.ahead.front_mut().filter(|ahead| ahead.again > 0) {
            now.again -= 1;
            return Verdict::Drop;
        }
        let table = self.table(key);
        if self.borrow(&table) { Verdict::Drop } else { Verdict::Reject }
    }
}
