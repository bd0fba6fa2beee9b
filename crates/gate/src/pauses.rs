// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For how long nobody asks. A busy proxy does everything in turns of one loop: once in each it asks for all requests
//! that have come meanwhile, and a turn with many connections takes 100 ms. What is let in by one turn has to keep the
//! server busy until the next.

use tidegate_units::Nanos;

/// Seconds in which half of what was seen is forgotten.
const HALF_LIFE: f64 = 1.0;
/// Pauses that are shorter than so many times what chance makes are none.
const CLEARLY: f64 = 2.0;
/// A longer pause is none of a loop: nobody came, or the proxy stood still.
const MOST: Nanos = Nanos::SECOND;

/// Pauses as a random moment finds them: a long one is found for longer. Between arrivals of a Poisson process that
/// is twice their mean distance: that is chance, and no pause.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    asked: Option<Nanos>,
    ticked: Nanos,
    /// Questions, seconds between them, and their squares.
    questions: f64,
    seconds: f64,
    squares: f64,
}

impl Pauses {
    /// Somebody asks.
    pub(crate) fn asks(&mut self, now: Nanos) {
        let pause = self.asked.map_or(Nanos::ZERO, |asked| now.since(asked)).min(MOST);
        self.asked = self.asked.max(Some(now));
        let pause_s = pause.as_secs_f64();
        self.questions += 1.0;
        self.seconds += pause_s;
        self.squares += pause_s * pause_s;
    }

    /// Once a tick: how long they are.
    pub(crate) fn tick(&mut self, now: Nanos) -> Nanos {
        let keep = (-now.since(self.ticked).as_secs_f64() / HALF_LIFE).exp2();
        self.ticked = self.ticked.max(now);
        for sum in [&mut self.questions, &mut self.seconds, &mut self.squares] {
            *sum *= keep;
        }
        if self.seconds <= 0.0 {
            return Nanos::ZERO;
        }
        let (all_s, chance_s) = (self.squares / self.seconds, 2.0 * self.seconds / self.questions);
        if all_s < CLEARLY * chance_s {
            Nanos::ZERO
        } else {
            Nanos::from_secs_f64(all_s - chance_s)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many questions a second for three seconds, in batches of so many at once.
    fn seen(a_second: u64, batch: u64) -> f64 {
        let mut pauses = Pauses::default();
        let mut last = Nanos::ZERO;
        for n in 0..3 * a_second {
            let now = Nanos::from_secs(1) + Nanos(n / batch * batch * 1_000_000_000 / a_second);
            pauses.asks(now);
            if now.since(last) >= Nanos::from_millis(100) {
                last = now;
                pauses.tick(now);
            }
        }
        pauses.tick(last).as_secs_f64()
    }

    #[test]
    fn a_loop_shows_by_its_turns_however_many_ask_in_one() {
        for (a_second, batch, expected) in
            [(9_000, 900, 0.1), (9_000, 450, 0.05), (1_000, 100, 0.1), (400, 40, 0.1)]
        {
            let pause = seen(a_second, batch);
            assert!((pause / expected - 1.0).abs() < 0.1, "{a_second} by {batch}: {pause}");
        }
        assert_eq!((seen(9_000, 1), seen(10, 1)), (0.0, 0.0), "one after the other");
        assert_eq!(Pauses::default().tick(Nanos::SECOND), Nanos::ZERO);
    }

    /// A proxy that stood still for a minute asks quickly again.
    #[test]
    fn a_long_pause_is_soon_forgotten() {
        let mut pauses = Pauses::default();
        let ms = Nanos::from_millis;
        pauses.asks(ms(0));
        pauses.asks(Nanos::from_secs(60));
        pauses.tick(Nanos::from_secs(60));
        let mut seconds = [0.0; 4];
        for (n, pause_s) in (0..4000).zip(1_u64..) {
            let now = Nanos::from_secs(60) + ms(pause_s);
            pauses.asks(now);
            if n % 100 == 99 {
                seconds[n as usize / 1000] = pauses.tick(now).as_secs_f64();
            }
        }
        assert!(seconds[1] < 0.25 && seconds[3] < 0.1, "{seconds:?}");
    }
}
