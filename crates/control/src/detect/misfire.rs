// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refusals that do harm and no good: a policy gone wrong. No limit is made of it; whoever asks takes the
//! refusals back.
//!
//! What works well looks much the same: a flood is refused, and the server is calm because of it. So all of
//! these have to hold at once, for [`LASTS`], and soon after the refusals began ([`SOON`]):
//!
//! - a part of what comes is refused ([`REFUSED_SHARE`]), and just before next to nothing was;
//! - **no more comes than usual**, copies of refused SYNs apart: nobody has to be kept off;
//! - **the server is calm**: it does not shed, no family reports a problem, the accept queue is short, the CPU
//!   has room, and no more is in flight than usual;
//! - **less is completed than usual**: those who were refused would have been served. In a canary, which
//!   refuses few, this is not asked for.
//!
//! What is usual is averaged while nothing is refused and the server is calm. Where a signal that is asked
//! for is missing or old, nothing is concluded.

use crate::{Freshness, Watch, period_s};
use tidegate_model::limits::Why;
use tidegate_model::signals::{Counts, Signals};
use tidegate_units::Nanos;

/// So long all of it has to hold.
const LASTS: Nanos = Nanos::from_secs(5);
/// Only within so long after the refusals began: later the load is another, and what is usual is not known.
const SOON: Nanos = Nanos::from_secs(60);
/// Refusals from this share of what comes on are many; below a tenth of it, next to none.
const REFUSED_SHARE: f64 = 0.1;
/// And this many per second, at least.
const REFUSED_MIN: f64 = 5.0;
/// What comes is no more than usual up to this many times of it.
const COMES_MOST: f64 = 1.5;
/// Less is completed than usual below this share of it.
const DONE_LEAST: f64 = 0.7;
/// Seconds over which what happens now is averaged, and what is usual.
const NOW_SECONDS: f64 = 1.0;
/// See [`NOW_SECONDS`].
const USUAL_SECONDS: f64 = 60.0;
/// What was seen for less than this many seconds is not usual.
const USUAL_MIN_SECONDS: f64 = 10.0;
/// A CPU that is used less than this has room; an accept queue shorter than this is short.
const CPU_ROOM: f64 = 0.5;
/// See [`CPU_ROOM`].
const QUEUE_SHORT: f64 = 0.1;
/// A reading older than this says nothing of now.
const AGE_MAX: Nanos = Nanos::SECOND;

/// Per second.
#[derive(Clone, Copy, Debug, Default)]
struct Flows {
    comes: f64,
    refused: f64,
    done: f64,
    waiting: f64,
}

impl Flows {
    fn toward(&mut self, now: &Self, keep: f64) {
        let mix = |old: &mut f64, new: f64| *old = keep * *old + (1.0 - keep) * new;
        mix(&mut self.comes, now.comes);
        mix(&mut self.refused, now.refused);
        mix(&mut self.done, now.done);
        mix(&mut self.waiting, now.waiting);
    }

    fn refuses(&self, share: f64) -> bool {
        self.refused > share * self.comes.max(self.refused)
    }
}

/// What is seen of a service that refuses without need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Misfired {
    /// Refused, per second.
    pub refused: f64,
    /// Completed, per second, and what is usual.
    pub done: (f64, f64),
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Misfire {
    watch: Watch,
    now: Flows,
    usual: Flows,
    /// For how long that was seen.
    usual_s: f64,
    /// Since when many are refused.
    refuses_since: Option<Nanos>,
    /// Since when all of it holds.
    since: Option<Nanos>,
}

impl Misfire {
    /// Takes a tick; what was found, once all of it has held for long enough. `canary`: only a share of the
    /// sources is refused.
    pub fn see(&mut self, signals: &Signals, why: &Why, canary: bool) -> Option<Misfired> {
        let counts = signals.balance.counts;
        let fresh = self.watch.see(counts.map(|it| it.age), signals.period) == Freshness::Fresh;
        let Some(reading) = counts.filter(|_| fresh) else {
            self.since = None;
            return None;
        };
        let seconds = period_s(signals);
        let tick = flows(&reading.value, signals, seconds);
        self.now.toward(&tick, libm::exp(-seconds / NOW_SECONDS));
        let calm = self.is_calm(signals, why);
        if !self.now.refuses(REFUSED_SHARE / 10.0) {
            (self.refuses_since, self.since) = (None, None);
            if calm == Some(true) {
                let span = self.usual_s.clamp(NOW_SECONDS, USUAL_SECONDS);
                self.usual.toward(&tick, libm::exp(-seconds / span));
                self.usual_s += seconds;
            }
            return None;
        }
        let begun = *self.refuses_since.get_or_insert(signals.now);
        let holds = calm == Some(true)
            && self.usual_s >= USUAL_MIN_SECONDS
            && signals.now.since(begun) <= SOON
            && self.does_harm(canary);
        if !holds {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(signals.now);
        (signals.now.since(since) >= LASTS).then(|| {
            self.since = None;
            Misfired { refused: self.now.refused, done: (self.now.done, self.usual.done) }
        })
    }

    fn does_harm(&self, canary: bool) -> bool {
        let Flows { comes, refused, done, .. } = self.now;
        self.now.refuses(REFUSED_SHARE)
            && refused >= REFUSED_MIN
            && comes <= COMES_MOST * self.usual.comes
            && (canary || done < DONE_LEAST * self.usual.done)
    }

    /// `None`: it is not known.
    fn is_calm(&self, signals: &Signals, why: &Why) -> Option<bool> {
        if why.shedding || !why.alarmed.is_empty() {
            return Some(false);
        }
        let cpu = signals.resource.cpu.map(|cpu| cpu.within(AGE_MAX));
        let waiting = signals.time.waiting?.within(AGE_MAX)? as f64;
        let queue = signals.queue.accept.map(|queue| queue.within(AGE_MAX));
        // What is there and old is no longer known; what is nowhere (a gateway's server) is not asked for.
        let room = cpu.map_or(Some(true), |cpu| Some(cpu?.get() < CPU_ROOM))?;
        let short = queue.map_or(Some(true), |queue| {
            let queue = queue?;
            Some((queue.length as f64) <= QUEUE_SHORT * queue.limit as f64)
        })?;
        let usual =
            self.usual_s < USUAL_MIN_SECONDS || waiting <= self.usual.waiting.max(1.0) * 2.0;
        Some(room && short && usual)
    }
}

/// Of one tick, per second. Copies of SYNs that were refused come because they were refused.
fn flows(counts: &Counts, signals: &Signals, seconds: f64) -> Flows {
    let per_second = |count: u64| count as f64 / seconds;
    Flows {
        comes: per_second(counts.offered.saturating_sub(counts.repeated)),
        refused: per_second(counts.refused.saturating_sub(counts.repeated)),
        done: per_second(counts.done()),
        waiting: signals.time.waiting.map_or(0.0, |waiting| waiting.value as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{AcceptQueue, Family, Reading};
    use tidegate_units::Share;

    const TICK: Nanos = Nanos::from_millis(100);

    /// A second of ten ticks.
    #[derive(Clone, Copy, Debug)]
    struct Now {
        comes: u64,
        repeated: u64,
        refused: u64,
        done: u64,
        waiting: u64,
        cpu: Option<f64>,
        shedding: bool,
        alarmed: bool,
        queue: u64,
        /// Of CPU and accept queue.
        age: Nanos,
    }

    const CALM: Now = Now {
        comes: 10,
        repeated: 0,
        refused: 0,
        done: 10,
        waiting: 4,
        cpu: Some(0.3),
        shedding: false,
        alarmed: false,
        queue: 0,
        age: Nanos::ZERO,
    };
    /// Half of the usual clients are refused, and the server does half of the usual work.
    const WRONG: Now = Now { refused: 5, done: 5, waiting: 2, cpu: Some(0.15), ..CALM };

    #[derive(Default)]
    struct Course {
        misfire: Misfire,
        ticks: u64,
    }

    impl Course {
        /// The first tick of these seconds at which something was found.
        fn go(&mut self, seconds: u64, now: Now, canary: bool) -> Option<u64> {
            let mut found = None;
            for n in 0..10 * seconds {
                self.ticks += 1;
                let mut signals =
                    Signals { now: Nanos(self.ticks * TICK.0), period: TICK, ..Signals::default() };
                let counts = Counts {
                    offered: now.comes + now.repeated,
                    repeated: now.repeated,
                    refused: now.refused + now.repeated,
                    completed: now.done,
                    ..Counts::default()
                };
                signals.balance.counts = Some(Reading::fresh(counts));
                signals.time.waiting = Some(Reading::fresh(now.waiting));
                let cpu = now.cpu.map(Share::new);
                signals.resource.cpu = cpu.map(|value| Reading { value, age: now.age });
                let value = AcceptQueue { length: now.queue, limit: 128 };
                signals.queue.accept = Some(Reading { value, age: now.age });
                let alarmed = if now.alarmed { vec![Family::Time] } else { Vec::new() };
                let why = Why { shedding: now.shedding, alarmed, ..Why::default() };
                let seen = self.misfire.see(&signals, &why, canary);
                found = found.or(seen.map(|_| n));
            }
            found
        }
    }

    #[test]
    fn a_policy_gone_wrong_is_found_in_some_seconds() {
        let mut course = Course::default();
        assert_eq!(course.go(60, CALM, false), None);
        let found = course.go(20, WRONG, false);
        assert!(found.is_some_and(|tick| (50..100).contains(&tick)), "{found:?}");
        // Who is refused tries again.
        let mut course = Course::default();
        course.go(60, CALM, false);
        let again = Now { repeated: 10, ..WRONG };
        assert!(course.go(20, again, false).is_some(), "copies are no load of their own");
        // Behind a gateway nothing is known of the CPU.
        let mut course = Course::default();
        course.go(60, Now { cpu: None, ..CALM }, false);
        assert!(course.go(20, Now { cpu: None, ..WRONG }, false).is_some());
    }

    #[test]
    fn what_is_refused_for_a_reason_is_not() {
        for (name, now) in [
            ("more comes", Now { comes: 20, refused: 15, ..WRONG }),
            ("a flood, of which the usual is served", Now { comes: 500, refused: 490, ..CALM }),
            ("the controller sheds", Now { shedding: true, ..WRONG }),
            ("a family reports a problem", Now { alarmed: true, ..WRONG }),
            ("the CPU is used", Now { cpu: Some(0.9), ..WRONG }),
            ("the accept queue is long", Now { queue: 60, ..WRONG }),
            ("a dependency is slow, and much is in flight", Now { waiting: 40, ..WRONG }),
            ("as much is completed as usual", Now { done: 10, ..WRONG }),
            ("few are refused", Now { refused: 0, ..WRONG }),
            ("nobody knows of the server", Now { age: Nanos::from_secs(3), ..WRONG }),
        ] {
            let mut course = Course::default();
            course.go(60, CALM, false);
            assert_eq!(course.go(120, now, false), None, "{name}");
        }
    }

    /// The load of the night is another: what was usual when it began says nothing hours later.
    #[test]
    fn refusals_that_last_are_not_measured_by_what_was_usual_long_ago() {
        let mut course = Course::default();
        course.go(60, CALM, false);
        let flood = Now { comes: 500, refused: 490, ..CALM };
        assert_eq!(course.go(120, flood, false), None);
        assert_eq!(course.go(120, WRONG, false), None);
        // They end, and begin anew.
        course.go(30, CALM, false);
        assert!(course.go(20, WRONG, false).is_some());
    }

    #[test]
    fn without_anything_usual_nothing_is_concluded() {
        let mut course = Course::default();
        assert_eq!(course.go(30, WRONG, false), None);
        let mut course = Course::default();
        course.go(60, CALM, false);
        assert_eq!(course.go(2, WRONG, false), None, "not at once");
    }

    /// A canary refuses a twentieth; that less is completed cannot be seen.
    #[test]
    fn in_a_canary_what_is_completed_is_not_asked_for() {
        let mut course = Course::default();
        course.go(60, CALM, true);
        let canary = Now { refused: 5, ..CALM };
        assert!(course.go(20, canary, true).is_some());
        let mut course = Course::default();
        course.go(60, CALM, false);
        assert_eq!(course.go(20, canary, false), None);
    }
}
