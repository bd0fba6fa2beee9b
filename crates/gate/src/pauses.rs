// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For how long nobody asks. A busy proxy does everything in turns of one loop: once in each it asks for all requests
//! that have come meanwhile, and a turn with many connections takes 100 ms. What is let in by one turn has to keep the
//! server busy until the next.

use tidegate_units::Nanos;

/// Seconds in which half of what was seen is forgotten.
const HALF_LIFE: f64 = 0.5;
/// Only pauses of which there were so many lately are turns.
const TURNS_MIN: f64 = 3.0;
/// So many times what chance makes is none.
const CHANCE: f64 = 2.0;
/// A longer pause is none of a loop: nobody came, or the proxy stood still.
const MOST: Nanos = Nanos::from_millis(500);

/// Pauses as a random moment finds them: a long one is found for longer. Between arrivals of a Poisson process that
/// is twice their mean distance: that is chance, and no pause.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    asked: Option<Nanos>,
    ticked: Nanos,
    sums: Sums,
}

/// Questions, seconds between them, and their squares and fourth powers.
#[derive(Debug, Default)]
struct Sums {
    questions: f64,
    seconds: f64,
    squares: f64,
    fourths: f64,
}

impl Pauses {
    /// Somebody asks.
    pub(crate) fn asks(&mut self, now: Nanos) {
        let pause = self.asked.map_or(MOST, |asked| now.since(asked));
        self.asked = self.asked.max(Some(now));
        if pause >= MOST {
            self.sums = Sums::default();
            return;
        }
        let pause_s = pause.as_secs_f64();
        let square = pause_s * pause_s;
        self.sums.questions += 1.0;
        self.sums.seconds += pause_s;
        self.sums.squares += square;
        self.sums.fourths += square * square;
    }

    /// Once a tick: how long they are.
    pub(crate) fn tick(&mut self, now: Nanos) -> Nanos {
        let keep = (-now.since(self.ticked).as_secs_f64() / HALF_LIFE).exp2();
        self.ticked = self.ticked.max(now);
        let Sums { questions, seconds, squares, fourths } = &mut self.sums;
        for sum in [&mut *questions, &mut *seconds, &mut *squares, &mut *fourths] {
            *sum *= keep;
        }
        // Of as many equal ones the powers are so.
        if *fourths <= 0.0 || *squares * *squares < TURNS_MIN * *fourths {
            return Nanos::ZERO;
        }
        let chance_s = 2.0 * *seconds / *questions;
        Nanos::from_secs_f64((*squares / *seconds - CHANCE * chance_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks so many times a second for three seconds, in batches of so many at once.
    fn ask(pauses: &mut Pauses, from: Nanos, a_second: u64, batch: u64) -> f64 {
        let (mut last, mut found) = (from, Nanos::ZERO);
        for n in 0..3 * a_second {
            let now = from + Nanos(n / batch * batch * 1_000_000_000 / a_second);
            pauses.asks(now);
            if now.since(last) >= Nanos::from_millis(100) {
                last = now;
                found = pauses.tick(now);
            }
        }
        found.as_secs_f64()
    }

    #[test]
    fn a_loop_shows_by_its_turns_however_many_ask_in_one() {
        for (a_second, batch, expected) in
            [(9_000, 900, 0.1), (9_000, 450, 0.05), (1_000, 100, 0.1), (400, 40, 0.1)]
        {
            let pause = ask(&mut Pauses::default(), Nanos::SECOND, a_second, batch);
            assert!((pause / expected - 1.0).abs() < 0.15, "{a_second} by {batch}: {pause}");
        }
        for even in [1, 3, 10, 100, 9_000] {
            let pause = ask(&mut Pauses::default(), Nanos::SECOND, even, 1);
            assert_eq!(pause, 0.0, "{even}, one after the other");
        }
        assert_eq!(Pauses::default().tick(Nanos::SECOND), Nanos::ZERO);
    }

    /// Arrivals by chance at any rate are no turns, but for moments.
    #[test]
    fn chance_makes_no_pauses() {
        for a_second in [2.0, 10.0, 50.0, 200.0, 5_000.0] {
            let (mut pauses, mut dice, mut now) =
                (Pauses::default(), 88_172_645_463_325_252_u64, 0.0);
            let (mut ticks, mut turns) = (0, 0);
            while now < 60.0 {
                for shift in [(13, true), (7, false), (17, true)] {
                    dice ^= if shift.1 { dice << shift.0 } else { dice >> shift.0 };
                }
                let random = (dice >> 11) as f64 / (1_u64 << 53) as f64;
                now += -(1.0 - random).ln() / a_second;
                pauses.asks(Nanos::from_secs_f64(now));
                while f64::from(ticks) * 0.1 < now {
                    ticks += 1;
                    turns += u32::from(pauses.tick(Nanos::from_secs_f64(now)) > Nanos::ZERO);
                }
            }
            assert!(turns * 50 <= ticks, "{a_second}/s: in {turns} of {ticks} ticks");
        }
    }

    /// After a lull, or a proxy that stood still, a crowd asks: that was no turn.
    #[test]
    fn a_lull_is_no_turn() {
        for before in [1, 3, 20] {
            let mut pauses = Pauses::default();
            ask(&mut pauses, Nanos::SECOND, before, 1);
            let mut last = Nanos::from_secs(5);
            for n in 0..8_000_u64 {
                let now = Nanos::from_secs(5) + Nanos(n * 250_000);
                pauses.asks(now);
                if now.since(last) >= Nanos::from_millis(100) {
                    last = now;
                    assert_eq!(pauses.tick(now), Nanos::ZERO, "{before}/s before, {now}");
                }
            }
        }
    }
}
