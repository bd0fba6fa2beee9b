// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checkers: their own accounts, in exact integers, O(1) an event.

use super::spec::{Capacity, Refill};
use std::fmt;
use tidegate_units::Nanos;

/// What makes a run void.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The specification cannot be simulated.
    Spec(&'static str),
    /// An event before the one that went before it.
    Past {
        /// Its time.
        at: Nanos,
        /// The time that had been reached.
        now: Nanos,
    },
    /// More was admitted than any interval may hold.
    Capacity {
        /// When the admission that was too much came.
        at: Nanos,
    },
    /// Not every request ended exactly once.
    Conservation {
        /// Requests that came.
        offered: u64,
        /// Requests that ended.
        ended: u64,
    },
    /// A verdict that this world does not know (delay).
    Verdict {
        /// When it was given.
        at: Nanos,
    },
    /// More requests or bins of a series than a run may have.
    TooMany(&'static str),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(what) => write!(f, "cannot be simulated: {what}"),
            Self::Past { at, now } => write!(f, "an event in the past: {at}, and it was {now}"),
            Self::Capacity { at } => write!(f, "admitted more than the capacity at {at}"),
            Self::Conservation { offered, ended } => {
                write!(f, "not every request ended exactly once: {offered} came, {ended} ended")
            }
            Self::Verdict { at } => write!(f, "a SYN was delayed at {at}: not modelled here"),
            Self::TooMany(what) => write!(f, "too many {what} for one run"),
        }
    }
}

impl std::error::Error for Broken {}

/// A check's answer, in one word: it is given for every event.
pub(super) type Checked = Result<(), Box<Broken>>;

/// Time never goes back.
#[derive(Debug, Default)]
pub(super) struct Watch {
    now: u64,
}

impl Watch {
    #[inline]
    pub(super) fn see(&mut self, at: u64) -> Checked {
        if at < self.now {
            return Err(Box::new(Broken::Past { at: Nanos(at), now: Nanos(self.now) }));
        }
        self.now = at;
        Ok(())
    }
}

/// Every request ends exactly once. One book for beginnings, one for ends: number, sum and sum of
/// squares of the serial numbers. One request lost and another ended twice leave the numbers
/// equal, but not the sums.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    begun: Book,
    ended: Book,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Book {
    number: u64,
    sum: u64,
    squares: u64,
}

impl Book {
    #[inline]
    fn enter(&mut self, id: u32) {
        let id = u64::from(id);
        self.number += 1;
        self.sum = self.sum.wrapping_add(id);
        self.squares = self.squares.wrapping_add(id * id);
    }
}

impl Ledger {
    #[inline]
    pub(super) fn begin(&mut self, id: u32) {
        self.begun.enter(id);
    }

    #[inline]
    pub(super) fn end(&mut self, id: u32) {
        self.ended.enter(id);
    }

    /// `counted`: ends by their kinds, as the outcome has them.
    pub(super) fn close(&self, counted: u64) -> Result<(), Broken> {
        if self.begun == self.ended && self.ended.number == counted {
            return Ok(());
        }
        Err(Broken::Conservation { offered: self.begun.number, ended: self.ended.number })
    }
}

/// One token, in picotokens: nanoseconds times thousandths of a token per second.
const TOKEN: u64 = 1_000_000_000_000;

/// Admissions stay inside `burst + rate·t` over *every* interval: a leaky bucket that is filled by
/// admissions and may never overflow holds exactly then. It does not look at the filter.
#[derive(Debug)]
pub(super) struct Audit {
    rate_milli: u64,
    depth: u64,
    /// Tokens arrive at its multiples; 1 when they arrive continuously.
    grain: u64,
    level: u64,
    then: u64,
}

impl Audit {
    pub(super) fn new(capacity: Option<&Capacity>) -> Result<Self, Broken> {
        let Some(capacity) = capacity else {
            return Ok(Self { rate_milli: u64::MAX, depth: u64::MAX, grain: 1, level: 0, then: 0 });
        };
        let grain = match capacity.refill {
            Refill::Continuous => 1,
            Refill::Every(period) => period.0,
        };
        let depth = u64::from(capacity.burst).checked_mul(TOKEN);
        match depth {
            Some(depth) if grain > 0 && depth < u64::MAX - TOKEN => {
                Ok(Self { rate_milli: capacity.rate.as_milli(), depth, grain, level: 0, then: 0 })
            }
            _ => Err(Broken::Spec("a capacity with a refill of no time, or too deep a bucket")),
        }
    }

    #[inline]
    pub(super) fn admit(&mut self, at: u64) -> Checked {
        let now = if self.grain == 1 { at } else { at / self.grain * self.grain };
        let leaked = now.saturating_sub(self.then).saturating_mul(self.rate_milli);
        self.level = self.level.saturating_sub(leaked) + TOKEN;
        self.then = now;
        if self.level > self.depth {
            return Err(Box::new(Broken::Capacity { at: Nanos(at) }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Rate;

    fn audit(refill: Refill) -> Audit {
        let capacity = Capacity { rate: Rate::per_second(10.0), burst: 3, refill };
        Audit::new(Some(&capacity)).expect("in range")
    }

    /// Over every interval: the burst at once, then one token each 100 ms, and not 1 ns sooner.
    #[test]
    fn the_capacity_is_exact_to_the_nanosecond() {
        const TENTH: u64 = 100_000_000;
        let mut exact = audit(Refill::Continuous);
        assert!((0..3).all(|_| exact.admit(5 * TENTH).is_ok()));
        assert!(exact.admit(6 * TENTH).is_ok());
        assert!(exact.admit(7 * TENTH - 1).is_err());
        // a long silence gives the burst again, and no more
        let mut exact = audit(Refill::Continuous);
        assert!((0..3).all(|_| exact.admit(u64::MAX / 2).is_ok()));
        let error = exact.admit(u64::MAX / 2).map_err(|error| *error);
        assert_eq!(error, Err(Broken::Capacity { at: Nanos(u64::MAX / 2) }));
    }

    #[test]
    fn tokens_once_a_period_come_at_its_multiples() {
        let second = 1_000_000_000;
        let mut audit = audit(Refill::Every(Nanos::SECOND));
        assert!((0..3).all(|_| audit.admit(second - 1).is_ok()));
        assert!((0..3).all(|_| audit.admit(second).is_ok()), "all at once at the whole second");
        assert!(audit.admit(2 * second - 1).is_err());
    }

    #[test]
    fn capacities_without_sense_are_refused() {
        let rate = Rate::per_second(1.0);
        for (burst, refill) in [(1, Refill::Every(Nanos::ZERO)), (u32::MAX, Refill::Continuous)] {
            assert!(Audit::new(Some(&Capacity { rate, burst, refill })).is_err());
        }
    }

    /// One lost, another twice: the number is right and the run is void.
    #[test]
    fn the_ledger_finds_a_loss_that_a_count_does_not() {
        let mut ledger = Ledger::default();
        (0..10).for_each(|id| ledger.begin(id));
        (0..9).for_each(|id| ledger.end(id));
        assert!(ledger.close(9).is_err(), "one has not ended");
        ledger.end(3);
        assert_eq!(ledger.close(10), Err(Broken::Conservation { offered: 10, ended: 10 }));
        let mut ledger = Ledger::default();
        ledger.begin(1);
        ledger.end(1);
        assert!(ledger.close(1).is_ok());
        assert!(ledger.close(2).is_err(), "the outcome counts otherwise");
    }

    #[test]
    fn time_may_stand_still_and_not_go_back() {
        let mut watch = Watch::default();
        assert!(watch.see(7).is_ok() && watch.see(7).is_ok());
        let error = watch.see(6).map_err(|error| *error);
        assert_eq!(error, Err(Broken::Past { at: Nanos(6), now: Nanos(7) }));
    }
}
