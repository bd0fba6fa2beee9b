// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the lines of a trace to arrivals: a line says how many came within which time, and they
//! are spread over it uniformly and independently. A second of an access log is such a time.
//!
//! Nothing is sorted and a count is never written out: the times of n arrivals in (0, 1) are drawn
//! in their order, each from what is left, 1 − U^(1/n) of it (the smallest of n uniform draws).

use crate::world::Arrival;
use tidegate_units::{Nanos, Random};
use tidegate_workload::Rng;

/// Most lines of a trace that share one time.
pub const LINES_MAX: usize = 4_000_000;
/// Most arrivals per second that are believed.
pub const RATE_MAX: f64 = 1e7;
/// Copies of arrivals with an exact time are spread over so much.
const COPIES_OVER: Nanos = Nanos::from_millis(100);

/// What one line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its time, or the beginning of it; never before that of the line before.
    pub at: Nanos,
    /// How long that is; zero for an exact time.
    pub over: Nanos,
    /// How many came.
    pub count: u64,
    /// Their class, priority, source, and whether they are exempt; the time in it is not looked at.
    pub kind: Arrival,
}

/// How a load is changed before it is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// How many come for each that came; above 0.
    pub scale: f64,
    /// How much faster time passes: 2 puts an hour into 30 minutes; above 0.
    pub speed: f64,
}

impl Default for Factors {
    fn default() -> Self {
        Self { scale: 1.0, speed: 1.0 }
    }
}

/// Lines that share one time.
#[derive(Debug, Default)]
struct Slot {
    at: Nanos,
    over: Nanos,
    total: u64,
    lines: Vec<(Arrival, u64)>,
}

impl Slot {
    /// Lines of one kind are one line: a slot of a log without classes and addresses takes no memory.
    fn add(&mut self, of: Arrival, more: u64) {
        match self.lines.last_mut() {
            Some((kind, count)) if *kind == of => *count += more,
            _ if more > 0 => self.lines.push((of, more)),
            _ => {}
        }
    }
}

/// Makes arrivals of lines.
#[derive(Debug)]
pub struct Spread {
    factors: Factors,
    rng: Rng,
    slot: Slot,
    reached: Nanos,
}

/// Whoever takes the arrivals.
pub type Sink<'a> = &'a mut dyn FnMut(Arrival) -> Result<(), String>;

impl Spread {
    /// A spread with a generator of its own.
    #[must_use]
    pub fn new(factors: Factors, seed: u64) -> Self {
        let rng = Rng::new(seed, 3);
        Self { factors, rng, slot: Slot::default(), reached: Nanos::ZERO }
    }

    /// Takes a line in. Arrivals come out when a line with a later time ends a slot.
    ///
    /// # Errors
    /// More lines or arrivals at one time than are believed, or what the sink says.
    pub fn push(&mut self, load: Load, sink: Sink<'_>) -> Result<(), String> {
        let at = if load.at < self.slot.at { self.slot.at } else { load.at };
        let exact = load.over == Nanos::ZERO;
        let over = if exact && self.factors.scale > 1.0 { COPIES_OVER } else { load.over };
        if at != self.slot.at || over != self.slot.over {
            self.flush(sink)?;
            (self.slot.at, self.slot.over) = (at, over);
        }
        if self.slot.lines.len() >= LINES_MAX {
            return Err(format!("more than {LINES_MAX} lines have one time"));
        }
        let copies = self.copies(load.count);
        let total = self.slot.total.saturating_add(copies);
        let seconds = over.as_secs_f64().max(1.0);
        if total as f64 / seconds > RATE_MAX {
            return Err(format!("{total} arrivals within {seconds} s: more than {RATE_MAX}/s"));
        }
        self.slot.total = total;
        // Copies stand for clients who were not there: nobody knows their address.
        let own = copies.min(load.count);
        self.slot.add(load.kind, own);
        self.slot.add(Arrival { source: None, ..load.kind }, copies - own);
        Ok(())
    }

    /// Hands out what is left.
    ///
    /// # Errors
    /// What the sink says.
    pub fn finish(&mut self, sink: Sink<'_>) -> Result<(), String> {
        self.flush(sink)
    }

    /// As many as the scale makes of a count, by stochastic rounding.
    fn copies(&mut self, count: u64) -> u64 {
        if self.factors.scale == 1.0 {
            return count;
        }
        let wanted = count as f64 * self.factors.scale;
        let whole = libm::floor(wanted);
        whole as u64 + u64::from(self.rng.next_f64() < wanted - whole)
    }

    fn flush(&mut self, sink: Sink<'_>) -> Result<(), String> {
        let Slot { at, over, total, ref mut lines } = self.slot;
        let (mut left, mut u) = (total, 0.0);
        for (kind, count) in lines.drain(..) {
            for _ in 0..count {
                let smallest = 1.0 - libm::pow(1.0 - self.rng.next_f64(), 1.0 / left as f64);
                u += (1.0 - u) * smallest;
                left -= 1;
                let inside = Nanos((u * over.0 as f64) as u64);
                let time = ((at + inside).0 as f64 / self.factors.speed) as u64;
                // Slots may overlap (copies of exact times): nothing goes back.
                self.reached = self.reached.max(Nanos(time));
                sink(Arrival { at: self.reached, ..kind })?;
            }
        }
        self.slot.total = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(at: u64, over: u64, count: u64) -> Load {
        let kind = Arrival::at(Nanos::ZERO);
        Load { at: Nanos::from_secs(at), over: Nanos::from_secs(over), count, kind }
    }

    fn spread(loads: &[Load], factors: Factors) -> Vec<Arrival> {
        let mut all = Vec::new();
        let mut sink = |arrival| {
            all.push(arrival);
            Ok(())
        };
        let mut spread = Spread::new(factors, 1);
        for load in loads {
            spread.push(*load, &mut sink).expect("believed");
        }
        spread.finish(&mut sink).expect("believed");
        all
    }

    /// Every arrival stays in its period, in order, and a period is filled evenly.
    #[test]
    fn arrivals_are_uniform_inside_their_period_and_in_order() {
        let all = spread(&[load(0, 60, 60_000), load(60, 60, 3)], Factors::default());
        assert_eq!(all.len(), 60_003);
        assert!(all.windows(2).all(|w| w[0].at <= w[1].at));
        assert_eq!(all.iter().filter(|a| a.at >= Nanos::from_secs(60)).count(), 3);
        assert!(all[60_002].at < Nanos::from_secs(120));
        for tenth in 0..10 {
            let (from, to) = (Nanos::from_secs(6 * tenth), Nanos::from_secs(6 * tenth + 6));
            let n = all.iter().filter(|a| a.at >= from && a.at < to).count();
            // 6000 ± 5 standard deviations of a binomial
            assert!((5630..6370).contains(&n), "{n} in tenth {tenth}");
        }
    }

    #[test]
    fn scale_multiplies_the_load_and_speed_compresses_it() {
        let loads: Vec<Load> = (0..100).map(|k| load(k, 1, 10)).collect();
        let more = spread(&loads, Factors { scale: 2.5, speed: 1.0 });
        assert!((2450..2550).contains(&more.len()), "{}", more.len());
        let faster = spread(&loads, Factors { scale: 1.0, speed: 4.0 });
        assert_eq!(faster.len(), 1000);
        assert!(faster[999].at <= Nanos::from_secs(25));
        assert!(faster[999].at > Nanos::from_secs(24));
    }

    #[test]
    fn exact_times_stay_and_their_copies_are_near() {
        let exact: Vec<Load> = [1, 2, 3].map(|at| load(at, 0, 1)).into();
        let times: Vec<Nanos> = spread(&exact, Factors::default()).iter().map(|a| a.at).collect();
        assert_eq!(times, [1, 2, 3].map(Nanos::from_secs));
        let copies = spread(&exact, Factors { scale: 3.0, speed: 1.0 });
        assert_eq!(copies.len(), 9);
        assert!(copies[8].at < Nanos::from_secs(3) + COPIES_OVER);
    }

    #[test]
    fn kinds_stay_in_the_order_of_the_lines() {
        let gold = Arrival { class: 1, priority: 0, ..Arrival::at(Nanos::ZERO) };
        let loads = [load(0, 1, 1), Load { kind: gold, ..load(0, 1, 1) }, load(0, 1, 1)];
        let classes: Vec<u8> = spread(&loads, Factors::default()).iter().map(|a| a.class).collect();
        assert_eq!(classes, [0, 1, 0]);
    }

    #[test]
    fn who_was_in_the_log_has_an_address_and_copies_have_none() {
        let kind = Arrival { source: Some(7), ..Arrival::at(Nanos::ZERO) };
        let of = |scale: f64| {
            let loads = [Load { kind, ..load(0, 1, 1) }, Load { kind, ..load(0, 1, 1) }];
            let all = spread(&loads, Factors { scale, speed: 1.0 });
            (all.len(), all.iter().filter(|a| a.source == Some(7)).count())
        };
        assert_eq!((of(1.0), of(3.0)), ((2, 2), (6, 2)));
    }

    #[test]
    fn what_no_server_ever_saw_is_not_believed() {
        let mut spread = Spread::new(Factors::default(), 1);
        let error = spread.push(load(0, 1, u64::MAX), &mut |_| Ok(())).expect_err("too many");
        assert!(error.contains("more than 10000000/s"), "{error}");
        let most = load(0, 1, RATE_MAX as u64);
        assert_eq!(spread.push(most, &mut |_| Ok(())), Ok(()), "the bound itself is");
    }
}
