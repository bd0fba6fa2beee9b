// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The beginning of an overload, request by request.
//!
//! The control loop needs three ticks to see an overload, and by the first of them a crowd has brought in
//! what the service completes in a second. Here every question counts. Two families have to agree:
//!
//! - **balance**: more requests came than the service completes at its best, and not by few. A sum of those who
//!   came, less the pace at which the service responds at best, never below zero (a CUSUM, Page 1954);
//! - **time**: as many requests are there for longer than one usually takes: those in flight, less those
//!   who have passed within a usual response time. What is usually in flight does not count.
//!
//! A dependency that becomes slow, a release whose requests take longer, a moment without responses: as
//! many come as before, so the sum stays low. Idle workers that take up a crowd: nobody is there for long.
//! Either shows one family alone, and changes nothing.
//!
//! How many are few is what the controller says, and twice the largest burst that was drained lately
//! without an overload. Beyond it the limit in flight is there, and not at what the service answers within the
//! objective. It is the same limit: once it has refused, its lower level holds. Where the controller gives
//! none ([`tidegate_model::limits::Onset`]) nothing here limits anything.
//!
//! Reports that are late make requests look old. So their delay counts as time that is usual: the later
//! they are, the less is seen.

use tidegate_model::limits;
use tidegate_units::Nanos;

/// Parts of the time in which one who passed counts as young.
const PARTS: usize = 16;
/// That time is so much longer than what is usual: it does not change with every tick.
const YOUNG: f64 = 1.25;
/// A burst that was borne says so much about a larger one.
const BORNE: f64 = 2.0;
/// Seconds in which it is half forgotten: what comes once a day is still known.
const BORNE_HALF_LIFE: f64 = 86_400.0;
/// Where so many should have come and nobody did, that is no chance (e^-16): they were held up, and come
/// together.
const HELD_UP: f64 = 16.0;
/// Seconds of which what was held up comes, at most.
const HELD_UP_SECONDS: f64 = 3.0;
/// Seconds in which the rate of those who ask is averaged.
const RATE_SECONDS: f64 = 1.0;
/// What responses take lately is the least of their means of so many seconds, and of those before.
const TOOK: Nanos = Nanos::from_secs(10);
/// A tick that is so many times as late as the one before is missing.
const OVERDUE: u64 = 2;
/// The sum ends at so many times what alarms: a crowd that has left is soon forgotten.
const SUM_MAX: f64 = 2.0;

/// Who passed lately: exactly those of a time, and of up to one part more.
#[derive(Debug)]
struct Passed {
    /// The last is the present part.
    parts: [u64; PARTS + 1],
    since: Nanos,
    part: Nanos,
    /// They have been counted so from this time on.
    from: Nanos,
}

impl Default for Passed {
    fn default() -> Self {
        Self { parts: [0; PARTS + 1], since: Nanos::ZERO, part: Nanos(1), from: Nanos::ZERO }
    }
}

impl Passed {
    /// Counts those within this time at least. Who passed before is not known of a longer one.
    fn within(&mut self, now: Nanos, time: Nanos) {
        let held = self.part.0 * PARTS as u64;
        if time.0 > held || time.0 < held / 2 {
            let part = time.as_secs_f64() * YOUNG / PARTS as f64;
            *self = Self { from: now, since: now, ..Self::default() };
            self.part = Nanos::from_secs_f64(part).max(Nanos(1));
        }
    }

    fn go_on(&mut self, now: Nanos) {
        let over = now.since(self.since).0 / self.part.0;
        if over > PARTS as u64 {
            self.parts = [0; PARTS + 1];
        } else {
            for _ in 0..over {
                self.parts.rotate_left(1);
                self.parts[PARTS] = 0;
            }
        }
        self.since = Nanos(self.since.0 + over * self.part.0);
    }

    /// How many they are; `None`: not known yet.
    fn all(&mut self, now: Nanos) -> Option<u64> {
        self.go_on(now);
        let known = now.since(self.from).0 >= self.part.0 * PARTS as u64;
        known.then(|| self.parts.iter().sum())
    }
}

/// What responses take lately: a release may have made all of them longer, and the baseline follows for
/// minutes.
#[derive(Debug, Default)]
struct Took {
    since: Nanos,
    /// The least mean since then, and in the time before.
    least: Option<Nanos>,
    before: Option<Nanos>,
}

impl Took {
    fn see(&mut self, now: Nanos, mean: Nanos) {
        if now.since(self.since) >= TOOK {
            (self.before, self.least, self.since) = (self.least, None, now);
        }
        self.least = Some(self.least.map_or(mean, |least| least.min(mean)));
    }

    fn lately(&self) -> Nanos {
        [self.least, self.before].into_iter().flatten().min().unwrap_or_default()
    }
}

/// When the control loop was here, and how many asked since.
#[derive(Debug, Default)]
struct Ticks {
    at: Nanos,
    period: Nanos,
    /// It was late: what was decided may be old.
    late: bool,
    asked: u64,
    /// Those who ask per second.
    rate: f64,
}

impl Ticks {
    fn tick(&mut self, now: Nanos) {
        let period = now.since(std::mem::replace(&mut self.at, now));
        self.late = period.0 > OVERDUE * self.period.0;
        self.period = period;
        // A moment without anybody says nothing of the rate: they may be held up.
        let asked = std::mem::take(&mut self.asked);
        if asked > 0 && period > Nanos::ZERO {
            let keep = (-period.as_secs_f64() / RATE_SECONDS).exp();
            self.rate = keep * self.rate + (1.0 - keep) * asked as f64 / period.as_secs_f64();
        }
    }

    fn are_missing(&self, now: Nanos) -> bool {
        self.late || now.since(self.at).0 > OVERDUE * self.period.0
    }
}

/// How many may be in flight where an overload begins, and how many of them beyond who is usual or young.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Most {
    pub(crate) all: u64,
    pub(crate) beyond: u64,
}

/// What one service shows of it.
#[derive(Debug, Default)]
pub(crate) struct Onset {
    limits: Option<limits::Onset>,
    passed: Passed,
    took: Took,
    ticks: Ticks,
    /// Those who came beyond the pace, at this time; below zero: who was held up may come beyond it.
    sum: f64,
    at: Nanos,
    /// The largest burst that was borne, when that was, and the one that is not drained yet.
    borne: f64,
    borne_at: Nanos,
    stands: f64,
}

impl Onset {
    /// What the controller says; what stands in an overload was not borne.
    pub(crate) fn set(&mut self, limits: Option<limits::Onset>, shedding: bool) {
        if let (Some(before), Some(now)) = (&self.limits, &limits) {
            // A stall is over: what usually comes in its time was no beginning, and is none now.
            let excused = before.piles.saturating_sub(now.piles) as f64;
            self.sum = self.sum.min((self.sum - excused).max(0.0));
        }
        self.limits = limits;
        if shedding {
            self.stands = 0.0;
        }
    }

    /// Once a tick: how late reports are, and what responses took of the server lately.
    pub(crate) fn tick(&mut self, now: Nanos, late: Nanos, took: Nanos) {
        self.ticks.tick(now);
        if let Some(limits) = self.limits {
            // While more comes than completes a queue would excuse itself.
            if self.sum < limits.most as f64 / 2.0 {
                self.took.see(now, took);
            }
            let response = limits.response.max(self.took.lately());
            self.passed.within(now, Nanos(response.0 + late.0));
        }
    }

    /// Somebody asks while so many are in flight. How many may be; `None`: no overload begins here.
    pub(crate) fn asks(&mut self, now: Nanos, waiting: u64) -> Option<Most> {
        let silent_s = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.ticks.asked += 1;
        let Some(limits) = self.limits else {
            // What came before an overload says nothing of what comes after it.
            self.sum = 0.0;
            return None;
        };
        let most = (BORNE * self.borne(now)).max(limits.most as f64) + limits.piles as f64;
        self.sum = self.summed(silent_s, limits.pace.get()).min(SUM_MAX * most);
        let young = self.passed.all(now)?.max(limits.usual);
        let old = waiting.saturating_sub(young) as f64;
        if old > 0.0 {
            // What a stall piles up is no burst that the service bears.
            if limits.piles == 0 {
                self.stands = self.stands.max(old.min(self.sum));
            }
        } else if self.stands > 0.0 {
            self.borne = self.borne(now).max(self.stands);
            (self.borne_at, self.stands) = (now, 0.0);
        }
        let begins = self.sum > most && !self.ticks.are_missing(now);
        let beyond = most as u64;
        begins.then(|| Most { all: young.saturating_add(beyond), beyond })
    }

    /// The sum with one more, after a silence.
    fn summed(&self, silent_s: f64, pace: f64) -> f64 {
        let held_up = self.ticks.rate * silent_s.min(HELD_UP_SECONDS);
        let worked_off = pace * silent_s;
        let before = if held_up >= HELD_UP {
            (self.sum + worked_off).min(-held_up)
        } else if self.sum < 0.0 {
            // It is owed for as long as it takes to come.
            (self.sum + worked_off).min(0.0)
        } else {
            (self.sum - worked_off).max(0.0)
        };
        before + 1.0
    }

    /// Somebody has passed.
    pub(crate) fn passes(&mut self, now: Nanos) {
        self.passed.go_on(now);
        self.passed.parts[PARTS] += 1;
    }

    fn borne(&self, now: Nanos) -> f64 {
        self.borne * (-now.since(self.borne_at).as_secs_f64() / BORNE_HALF_LIFE).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Rate;

    /// A service of 100/s whose responses take 20 ms, while so many pile up.
    fn limits(piles: u64) -> Option<limits::Onset> {
        let (pace, response) = (Rate::per_second(100.0), Nanos::from_millis(20));
        Some(limits::Onset { pace, response, usual: 2, most: 40, piles })
    }

    /// The same, ten seconds after its start.
    fn onset(late_ms: u64) -> Onset {
        let mut onset = Onset::default();
        onset.set(limits(0), false);
        ticks(&mut onset, 1, late_ms);
        ticks(&mut onset, 6, late_ms);
        onset
    }

    /// Three ticks before that second.
    fn ticks(onset: &mut Onset, second: u64, late_ms: u64) {
        for before in [2000, 1000, 0] {
            let now = Nanos(Nanos::from_secs(second + 3).0 - Nanos::from_millis(before).0);
            onset.tick(now, Nanos::from_millis(late_ms), Nanos::ZERO);
        }
    }

    /// So many ask within a second from second 10 on and pass, while `waiting` are in flight after so
    /// many of them. The first for whom that is too many.
    fn first(onset: &mut Onset, many: u64, waiting: fn(u64) -> u64) -> Option<u64> {
        (0..many).find(|n| {
            let now = Nanos(Nanos::from_secs(10).0 + n * Nanos::SECOND.0 / many);
            let full = onset.asks(now, waiting(*n)).is_some_and(|most| waiting(*n) >= most.all);
            onset.passes(now);
            full
        })
    }

    /// What usually comes in a stall is no part of the sum, also when it is over, and teaches no burst.
    #[test]
    fn what_piles_up_in_a_stall_is_excused_once() {
        let mut onset = onset(0);
        onset.set(limits(60), false);
        let now = Nanos::from_secs(10);
        assert!((0..100).all(|n| onset.asks(now, n).is_none()), "40 and 60 that pile up");
        assert!(onset.asks(now, 101).is_some(), "and one more");
        onset.set(limits(0), false);
        assert!(onset.asks(now, 102).is_some(), "those beyond are still there");
        onset.set(limits(0), false);
        assert!(onset.sum > 40.0, "{}", onset.sum);
        let later = now + Nanos::from_secs(20);
        assert!(onset.asks(later, 0).is_none());
        assert!(onset.borne < 60.0, "{}", onset.borne);
    }

    #[test]
    fn it_takes_those_who_come_and_those_who_stay() {
        assert_eq!(first(&mut onset(0), 100, |_| 500), None, "as many come as are served");
        assert_eq!(first(&mut onset(0), 1000, |_| 40), None, "nobody stays");
        assert_eq!(first(&mut onset(0), 1000, |n| n.min(20)), None, "nor here");
        let begins = first(&mut onset(0), 1000, |n| n - n / 10);
        assert!(begins.is_some_and(|n| (60..85).contains(&n)), "{begins:?}");
        let mut none = onset(0);
        none.set(None, false);
        assert_eq!(first(&mut none, 1000, |n| n), None);
    }

    /// Reports that are late hide who has left.
    #[test]
    fn what_is_late_is_seen_late_or_never() {
        let begins = |late_ms| first(&mut onset(late_ms), 1000, |n| n - n / 10);
        assert!(begins(100) > begins(0), "{:?}", begins(100));
        assert_eq!(begins(1000), None);
        let mut onset = onset(0);
        onset.tick(Nanos::from_secs(10), Nanos::from_millis(500), Nanos::ZERO);
        let few = first(&mut onset, 1000, |n| n - n / 10);
        assert!(few.is_none_or(|n| n > 500), "who passed before is not known: {few:?}");
    }

    /// Where the gate or its proxy stands still, all who would have come ask at once. Nor does a limit
    /// hold that nobody has looked at for two ticks.
    #[test]
    fn what_was_held_up_is_no_crowd() {
        let begins = |held_up_ms: u64, tick_ms: u64| {
            let mut onset = onset(0);
            let at = |ms: u64| Nanos(Nanos::from_secs(10).0 + Nanos::from_millis(ms).0);
            for ms in 0..1000 {
                if ms % tick_ms == 0 {
                    onset.tick(at(ms), Nanos::ZERO, Nanos::ZERO);
                }
                if ms % 10 == 0 {
                    assert_eq!(onset.asks(at(ms), 1), None);
                }
            }
            onset.tick(at(1000), Nanos::ZERO, Nanos::ZERO);
            onset.tick(at(1000 + tick_ms), Nanos::ZERO, Nanos::ZERO);
            (0..200).find(|n| onset.asks(at(1000 + held_up_ms), 60 + n).is_some())
        };
        let (new, held_up) = (begins(150, 100), begins(1000, 1000));
        assert!(new.is_some_and(|n| n < 60), "{new:?}");
        assert!(held_up.is_none_or(|n| n > 100), "{held_up:?}");
        assert_eq!(begins(1000, 100), None, "no tick for 0.9 s");
    }

    /// What came in an overload is no beginning of the next one.
    #[test]
    fn what_came_before_an_overload_is_forgotten() {
        let mut onset = onset(0);
        let limits = onset.limits;
        let at = |ms: u64| Nanos(Nanos::from_secs(10).0 + Nanos::from_millis(ms).0);
        let crowd = (0..100_u64).filter(|n| onset.asks(at(n / 10), 500).is_some()).count();
        assert!(crowd > 0);
        onset.set(None, true);
        assert_eq!(onset.asks(at(20), 500), None);
        onset.set(limits, false);
        assert_eq!(onset.asks(at(21), 500), None, "one more is no crowd");
    }

    #[test]
    fn what_comes_each_hour_is_borne() {
        let mut onset = Onset { borne: 100.0, ..Onset::default() };
        assert!(BORNE * onset.borne(Nanos::from_secs(3_600)) > 190.0);
        onset.borne_at = Nanos::from_secs(3_600);
        assert!(BORNE * onset.borne(Nanos::from_secs(90_000)) >= 99.9, "and once a day");
    }

    /// Twice a burst that was drained is few, and one that ended in an overload says nothing.
    #[test]
    fn a_burst_that_was_borne_is_known() {
        for (sheds, known) in [(false, true), (true, false)] {
            let mut onset = onset(0);
            let burst = |onset: &mut Onset, second: u64, many: u64| {
                ticks(onset, second - 3, 0);
                let now = Nanos::from_secs(second);
                (0..many).filter(|n| onset.asks(now, *n).is_some_and(|most| *n >= most.all)).count()
            };
            assert_eq!(burst(&mut onset, 10, 40), 0);
            onset.set(onset.limits, sheds);
            onset.asks(Nanos::from_secs(11), 0);
            let lost = burst(&mut onset, 20, 70);
            assert_eq!(lost == 0, known, "{lost} of 70");
            onset.asks(Nanos::from_secs(21), 0);
            assert!(burst(&mut onset, 1_000_000, 70) > 0, "days later it is forgotten");
        }
    }
}
