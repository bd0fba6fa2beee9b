// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a turn of a busy proxy takes. It does everything in turns of one loop, and a turn with many connections takes
//! 100 ms: once in each it asks for all requests that have come meanwhile. What is let in by one turn has to keep the
//! server busy until the next.
//!
//! It shows by the time for which nobody asks. Where the proxy shares its processor with this process, questions are spread over
//! the turn, and nothing shows; nginx says what time it was when its turn began (`$msec`), and which worker it is.
//!
//! Caddy has no turns: each thing that is to be done waits behind all others. It says how long it waited for our answer, which takes
//! us no time. Two things were to be done for that, to ask and to read; so half of it counts as a turn.

use crate::counters::Counter;
use tidegate_units::Nanos;

/// Seconds in which half of what was seen is forgotten.
const HALF_LIFE: f64 = 0.5;
/// Longer pauses of which there were fewer lately count as those that are next in length: one alone is no turn, nor does it
/// hide those that are.
const TURNS_MIN: f64 = 2.0;
/// So many times what chance makes is none.
const CHANCE: f64 = 2.0;
/// A longer pause is none of a loop: nobody came, or the proxy stood still.
const MOST: Nanos = Nanos::from_millis(500);
/// Things that a proxy without turns does between its question and our answer.
const THINGS: f64 = 2.0;
/// So many workers are told apart.
const WORKERS: usize = 64;
/// A turn in which a worker asks less often says nothing: a quiet worker begins one for each request.
const BUSY: u32 = 3;
/// Pauses are sorted by their length: of what is shorter than this, and then two sizes for each doubling, up to [`MOST`].
const LEAST_S: f64 = 250e-6;
const SIZES: usize = 23;

/// When the turn began in which a worker of a proxy asks, by the proxy's own clock, which it reads once a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Tells the proxy's workers apart.
    pub worker: u32,
    /// What that clock says. Only differences count.
    pub began: Nanos,
}

/// What is known of the turns of proxies.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    asked: Option<Nanos>,
    ticked: Nanos,
    between_questions: Pauses,
    workers: Vec<Worker>,
    /// The place that the next unknown one takes, once all are taken.
    oldest: usize,
    between_turns: Pauses,
    waits: Waits,
}

/// How long proxies have waited for answers.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    ns: Counter,
    number: Counter,
}

impl Waited {
    pub(crate) fn add(&self, waited: Nanos) {
        self.ns.add(waited.min(MOST).0);
        self.number.one();
    }
}

/// The same as the last tick found it, and the sums of late: seconds, and how many.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    ns: u64,
    number: u64,
    seconds: f64,
    of: f64,
}

impl Waits {
    /// Keeps so much of what is old; what one thing waits.
    fn take(&mut self, waited: &Waited, keep: f64) -> Nanos {
        // First what is counted last.
        let number = waited.number.get();
        let ns = waited.ns.get();
        let new = Nanos(ns.saturating_sub(self.ns)).as_secs_f64();
        self.seconds = keep * self.seconds + new;
        self.of = keep * self.of + number.saturating_sub(self.number) as f64;
        (self.ns, self.number) = (ns, number);
        // One alone says nothing, nor does what was so long ago.
        if self.of < TURNS_MIN {
            return Nanos::ZERO;
        }
        Nanos::from_secs_f64(self.seconds / self.of / THINGS)
    }
}

/// The present turn of one worker, and how often it has asked in it.
#[derive(Clone, Copy, Debug)]
struct Worker {
    turn: Turn,
    questions: u32,
}

/// Pauses as a random moment finds them: a long one is found for longer. Between arrivals of a Poisson process that
/// is twice their mean distance: that is chance, and no pause.
#[derive(Debug, Default)]
struct Pauses {
    questions: f64,
    sizes: [Size; SIZES],
}

/// Pauses of about one length: how many, their seconds, and the sum of the squares.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    pauses: f64,
    seconds: f64,
    squares: f64,
}

impl Turns {
    /// Somebody asks; `turn`: of proxies that say it.
    pub(crate) fn asks(&mut self, now: Nanos, turn: Option<Turn>) {
        let pause = self.asked.map_or(MOST, |asked| now.since(asked));
        self.asked = self.asked.max(Some(now));
        if pause >= MOST {
            self.between_questions = Pauses::default();
        } else {
            self.between_questions.add(pause, 1);
        }
        if let Some(turn) = turn {
            self.says(turn);
        }
    }

    fn says(&mut self, turn: Turn) {
        let new = Worker { turn, questions: 1 };
        let place = self.workers.iter().position(|known| known.turn.worker == turn.worker);
        let Some(known) = place.and_then(|place| self.workers.get_mut(place)) else {
            if self.workers.len() < WORKERS {
                self.workers.push(new);
            } else {
                self.workers[self.oldest] = new;
                self.oldest = (self.oldest + 1) % WORKERS;
            }
            return;
        };
        let began = known.turn.began;
        // One of an earlier turn may be read later; a clock that was set back begins anew.
        let is_earlier = turn.began < began && began.since(turn.began) < MOST;
        if is_earlier || turn.began == began {
            known.questions += 1;
            return;
        }
        let (pause, questions) = (turn.began.since(began), known.questions);
        *known = new;
        // A longer one is none of a loop, and says nothing of those of other workers.
        if questions >= BUSY && pause < MOST {
            self.between_turns.add(pause, questions);
        }
    }

    /// Once a tick: how long turns are.
    pub(crate) fn tick(&mut self, now: Nanos, waited: &Waited) -> Nanos {
        let keep = (-now.since(self.ticked).as_secs_f64() / HALF_LIFE).exp2();
        self.ticked = self.ticked.max(now);
        let turns = self.between_questions.fade(keep).max(self.between_turns.fade(keep));
        turns.max(self.waits.take(waited, keep))
    }
}

impl Pauses {
    /// A pause with so many questions.
    fn add(&mut self, pause: Nanos, questions: u32) {
        self.questions += f64::from(questions);
        let pause_s = pause.as_secs_f64();
        if pause_s <= 0.0 {
            return;
        }
        let doublings = (pause_s / LEAST_S).log2().max(0.0);
        let size = &mut self.sizes[((2.0 * doublings) as usize).min(SIZES - 1)];
        size.pauses += 1.0;
        size.seconds += pause_s;
        size.squares += pause_s * pause_s;
    }

    /// Keeps so much of them; how long they are.
    fn fade(&mut self, keep: f64) -> Nanos {
        self.questions *= keep;
        for size in &mut self.sizes {
            for sum in [&mut size.pauses, &mut size.seconds, &mut size.squares] {
                *sum *= keep;
            }
        }
        let (mut few, mut all) = (0.0, Size::default());
        for size in self.sizes.iter().rev().filter(|size| size.pauses > 0.0) {
            if all.pauses <= 0.0 && few + size.pauses < TURNS_MIN {
                few += size.pauses;
                continue;
            }
            let mean_s = size.seconds / size.pauses;
            all.pauses += few + size.pauses;
            all.seconds += few * mean_s + size.seconds;
            all.squares += few * mean_s * mean_s + size.squares;
            few = 0.0;
        }
        if all.seconds <= 0.0 {
            return Nanos::ZERO;
        }
        let chance_s = 2.0 * all.seconds / self.questions;
        Nanos::from_secs_f64((all.squares / all.seconds - CHANCE * chance_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns with a tick each tenth of a second, and what the last one found, in seconds.
    #[derive(Default)]
    struct Watched {
        turns: Turns,
        ticked: Nanos,
        found: f64,
    }

    impl Watched {
        fn asks(&mut self, now: Nanos, turn: Option<Turn>) {
            self.turns.asks(now, turn);
            if now.since(self.ticked) >= Nanos::from_millis(100) {
                self.ticked = now;
                self.found = self.turns.tick(now, &Waited::default()).as_secs_f64();
            }
        }
    }

    /// Asks so many times a second for three seconds, in batches of so many at once.
    fn ask(a_second: u64, batch: u64) -> Watched {
        let mut watched = Watched::default();
        for n in 0..3 * a_second {
            let now = Nanos::SECOND + Nanos(n / batch * batch * 1_000_000_000 / a_second);
            watched.asks(now, None);
        }
        watched
    }

    #[test]
    fn half_of_what_a_proxy_waits_for_an_answer_is_a_turn() {
        let (mut turns, waited) = (Turns::default(), Waited::default());
        let mut tick = |tenths: u64, waits: &[Nanos]| {
            waits.iter().for_each(|wait| waited.add(*wait));
            turns.tick(Nanos::from_millis(100 * tenths), &waited)
        };
        let millis = Nanos::from_millis;
        assert_eq!(tick(10, &[]), Nanos::ZERO);
        assert_eq!(tick(11, &[millis(400)]), Nanos::ZERO, "one alone");
        assert_eq!(tick(40, &[]), Nanos::ZERO);
        let near = |turn: Nanos, ms: f64| (turn.as_secs_f64() * 1e3 - ms).abs() < 0.5;
        assert!(near(tick(41, &[millis(60), millis(100)].repeat(10)), 40.0));
        assert!(near(tick(42, &[]), 40.0), "nothing says otherwise");
        let mut now = 42;
        let mut last = millis(40);
        for _ in 0..9_000 {
            now += 1;
            last = tick(now, &[]);
        }
        assert_eq!(last, Nanos::ZERO, "a quarter of an hour of silence");
        for _ in 0..50 {
            now += 1;
            last = tick(now, &[Nanos(400_000); 80]);
        }
        assert!(last > Nanos::ZERO && last < Nanos(250_000), "calm: {last}");
        assert!(
            tick(now + 1, &[Nanos::from_secs(60); 8_000]) <= millis(250),
            "as long as any turn"
        );
    }

    #[test]
    fn a_loop_shows_by_its_turns_however_many_ask_in_one() {
        for (a_second, batch, expected) in
            [(9_000, 900, 0.1), (9_000, 450, 0.05), (1_000, 100, 0.1), (400, 40, 0.1)]
        {
            let pause = ask(a_second, batch).found;
            assert!((pause / expected - 1.0).abs() < 0.15, "{a_second} by {batch}: {pause}");
        }
        for even in [1, 3, 10, 100, 9_000] {
            assert_eq!(ask(even, 1).found, 0.0, "{even}, one after the other");
        }
        assert_eq!(Turns::default().tick(Nanos::SECOND, &Waited::default()), Nanos::ZERO);
    }

    /// Arrivals by chance at any rate are no turns, but for moments.
    #[test]
    fn chance_makes_no_turns() {
        for a_second in [2.0, 10.0, 50.0, 200.0, 5_000.0] {
            let (mut turns, mut dice, mut now) =
                (Turns::default(), 88_172_645_463_325_252_u64, 0.0);
            let (mut ticks, mut found) = (0, 0);
            while now < 60.0 {
                for shift in [(13, true), (7, false), (17, true)] {
                    dice ^= if shift.1 { dice << shift.0 } else { dice >> shift.0 };
                }
                let random = (dice >> 11) as f64 / (1_u64 << 53) as f64;
                now += -(1.0 - random).ln() / a_second;
                turns.asks(Nanos::from_secs_f64(now), None);
                while f64::from(ticks) * 0.1 < now {
                    ticks += 1;
                    found += u32::from(
                        turns.tick(Nanos::from_secs_f64(now), &Waited::default()) > Nanos::ZERO,
                    );
                }
            }
            assert!(found * 50 <= ticks, "{a_second}/s: in {found} of {ticks} ticks");
        }
    }

    /// After a lull, or a proxy that stood still, a crowd asks: that was no turn.
    #[test]
    fn a_lull_is_no_turn() {
        for before in [1, 3, 20] {
            let mut watched = ask(before, 1);
            for n in 0..8_000_u64 {
                let now = Nanos::from_secs(5) + Nanos(n * 250_000);
                watched.asks(now, None);
                assert_eq!(watched.found, 0.0, "{before}/s before, {now}");
            }
        }
    }

    /// So many workers with turns of so many milliseconds ask evenly, and say when their turns began.
    fn say(workers: u32, turn_ms: u64, a_second: u64) -> f64 {
        let (mut watched, turn) = (Watched::default(), Nanos::from_millis(turn_ms));
        for n in 0..3 * a_second {
            let now = Nanos::SECOND + Nanos(n * 1_000_000_000 / a_second);
            let worker = (n % u64::from(workers)) as u32;
            let offset = u64::from(worker) * turn.0 / u64::from(workers);
            let began = Nanos((now.0 + offset) / turn.0 * turn.0 - offset);
            // Every fifth question was asked in the turn before.
            let began = if n % 5 == 0 { Nanos(began.0 - turn.0) } else { began };
            watched.asks(now, Some(Turn { worker: 4242 + worker, began }));
        }
        watched.found
    }

    /// Also where questions come evenly, from several workers, and some of them late.
    #[test]
    fn a_proxy_says_its_turns() {
        for (workers, ms, a_second) in
            [(1, 100, 1_300), (1, 30, 1_300), (1, 200, 500), (4, 100, 5_000), (16, 50, 9_000)]
        {
            let turn = say(workers, ms, a_second);
            let expected = ms as f64 / 1e3;
            assert!((turn / expected - 1.0).abs() < 0.2, "{workers}, {ms} ms: {turn}");
        }
        // Each in a turn of its own is no busy loop.
        for (workers, ms, a_second) in [(1, 1, 900), (1, 1, 100), (2, 1, 5_000)] {
            let turn = say(workers, ms, a_second);
            assert!(turn < 0.005, "{workers}, {ms} ms, {a_second}/s: {turn}");
        }
    }

    /// One turn that is much longer, as when a crowd begins TLS, neither hides the others nor counts for all of them.
    #[test]
    fn a_long_turn_hides_no_others() {
        let mut turns = Turns::default();
        let mut began = Nanos::SECOND;
        for n in 0..60_u64 {
            began += Nanos::from_millis(if n == 50 { 300 } else { 20 });
            for _ in 0..20 {
                turns.asks(began, Some(Turn { worker: 7, began }));
            }
            if n == 49 || n == 52 {
                let turn = turns.tick(began, &Waited::default()).as_secs_f64();
                assert!((0.015..0.025).contains(&turn), "{n}: {turn}");
            }
        }
    }

    /// A clock that jumps, or a worker that was gone for a while, is no turn.
    #[test]
    fn a_clock_that_is_set_says_nothing() {
        let mut turns = Turns::default();
        for n in 0..3_000_u64 {
            let now = Nanos::SECOND + Nanos::from_millis(n);
            let set = [0, 3_600, 7, 90_000][n as usize / 100 % 4];
            let began = now + Nanos::from_secs(set);
            (0..5).for_each(|_| turns.asks(now, Some(Turn { worker: 1, began })));
            if n % 100 == 50 {
                assert!(turns.tick(now, &Waited::default()) < Nanos::from_millis(5), "{n}");
            }
        }
        // More workers than are told apart forget each other, and say nothing.
        let mut many = Turns::default();
        for n in 0..3_000_u64 {
            let now = Nanos::SECOND + Nanos::from_millis(n);
            let began = Nanos(now.0 / 100_000_000 * 100_000_000);
            many.asks(now, Some(Turn { worker: (n % 100) as u32, began }));
        }
        assert_eq!(many.tick(Nanos::from_secs(4), &Waited::default()), Nanos::ZERO);
    }

    /// Eight workers that are asked now and then, and one that has much to do: none has long turns. Nor do they hide
    /// those of one that has.
    #[test]
    fn quiet_workers_neither_have_turns_nor_hide_those_of_others() {
        for (ms, least, most) in [(1_u64, 0.0, 0.005), (100, 0.08, 0.12)] {
            let (mut watched, turn) = (Watched::default(), Nanos::from_millis(ms).0);
            for n in 0..4_000_u64 {
                let now = Nanos::SECOND + Nanos(n * 1_000_000);
                watched.asks(now, Some(Turn { worker: 1, began: Nanos(now.0 / turn * turn) }));
                // One of them asks each 97 ms, and each of them seldom.
                if n % 97 == 0 {
                    let worker = 2 + (n / 97 % 8) as u32;
                    watched.asks(now, Some(Turn { worker, began: now }));
                }
            }
            let found = watched.found;
            assert!((least..=most).contains(&found), "{ms} ms: {found}");
        }
    }
}
