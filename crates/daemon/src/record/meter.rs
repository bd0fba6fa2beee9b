// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sums over time of one service or one request bucket, and where its episodes of shedding begin
//! and end.
//!
//! An episode is on while the controller sheds, or while a share of what comes is refused that is
//! worth a word: by the limits of a policy, of a peer or of a calm service no controller sheds. It
//! is over once neither was so for [`HOLD`]; its end is the last moment in which it was.

use tidegate_model::limits::{BucketLimits, Cause, ServiceLimits, Why};
use tidegate_model::record::{FAMILIES, Levels, Sums};
use tidegate_model::signals::{BucketSignals, Reading, Signals};
use tidegate_units::{Nanos, Share};

/// Between two moments of one episode lies at most this: a controller that opens for a moment, or
/// a limit that refuses a few times a minute, is no row of episodes.
pub(crate) const HOLD: Nanos = Nanos::from_secs(5);
/// Refusals without a controller that sheds count from this share of what comes on.
const REFUSED_SHARE: f64 = 0.01;
/// And from so many on, in about a second.
const REFUSED_MIN: f64 = 3.0;
/// In this many seconds they are forgotten.
const RECENT_S: f64 = 1.0;
/// A longer tick is a gap: nobody knows what was so in it.
const PERIOD_MAX: Nanos = Nanos::from_secs(3);
/// A reading older than this says nothing of the tick.
pub(crate) const AGE_MAX: Nanos = Nanos::SECOND;

/// What one tick shows.
pub(crate) struct Look<'a> {
    pub(crate) now: Nanos,
    pub(crate) period: Nanos,
    pub(crate) why: &'a Why,
    /// Refusals are only computed.
    pub(crate) shadow: bool,
    /// A limit of a peer is the tightest.
    pub(crate) remote: bool,
    /// What came and what was refused in the tick.
    pub(crate) offered: u64,
    pub(crate) refused: u64,
}

/// An episode of shedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Episode {
    pub(crate) cause: Cause,
    pub(crate) shadow: bool,
    pub(crate) began: Nanos,
    /// The last moment in which it was on.
    pub(crate) last: Nanos,
}

/// What a tick changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Began(Episode),
    Ended(Episode),
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    sums: Sums,
    episode: Option<Episode>,
    /// What came and what was refused lately.
    offered: f64,
    refused: f64,
}

impl Meter {
    /// Takes a tick.
    pub(crate) fn see(&mut self, look: &Look<'_>) -> Option<Turn> {
        let period = Nanos(look.period.0.min(PERIOD_MAX.0));
        let keep = (-period.as_secs_f64() / RECENT_S).exp();
        self.offered = keep * self.offered + look.offered as f64;
        self.refused = keep * self.refused + look.refused as f64;
        for (sum, family) in self.sums.alarmed.iter_mut().zip(FAMILIES) {
            if look.why.alarmed.contains(&family) {
                *sum += period;
            }
        }
        let Some(cause) = self.cause(look) else { return self.quiet(look.now) };
        self.sums.shed(cause, look.shadow, period);
        match &mut self.episode {
            Some(episode) => {
                episode.last = look.now;
                // It may begin as a limit that refuses, and be recognised a moment later.
                if episode.cause == Cause::Limit && cause != Cause::Limit {
                    episode.cause = cause;
                }
                episode.shadow &= look.shadow;
                None
            }
            None => {
                // It began with what the tick shows.
                let began = look.now.since(period);
                let episode = Episode { cause, shadow: look.shadow, began, last: look.now };
                self.episode = Some(episode);
                self.sums.episodes += 1;
                self.sums.began = Some(began);
                Some(Turn::Began(episode))
            }
        }
    }

    /// Why something is shed now.
    fn cause(&self, look: &Look<'_>) -> Option<Cause> {
        if look.why.shedding {
            return Some(look.why.cause.unwrap_or(Cause::Reference));
        }
        let refuses = look.refused > 0
            && self.refused >= REFUSED_MIN
            && self.refused >= REFUSED_SHARE * self.offered;
        let limit = if look.remote { Cause::Remote } else { Cause::Limit };
        refuses.then_some(limit)
    }

    fn quiet(&mut self, now: Nanos) -> Option<Turn> {
        let over = self.episode.is_some_and(|episode| now.since(episode.last) >= HOLD);
        if over { self.end() } else { None }
    }

    /// The episode is over, or what is known of it ends here.
    pub(crate) fn end(&mut self) -> Option<Turn> {
        let episode = self.episode.take()?;
        self.sums.ended = Some(episode.last);
        Some(Turn::Ended(episode))
    }

    /// What came and what was refused in about the last second.
    pub(crate) fn lately(&self) -> (f64, f64) {
        let short = |count: f64| (count * 10.0).round() / 10.0;
        (short(self.offered), short(self.refused))
    }

    /// Whether something is shed in this very tick.
    pub(crate) fn is_on(&self, now: Nanos) -> bool {
        self.episode.is_some_and(|episode| episode.last == now)
    }

    /// Adds the levels of a tick that took `period`.
    pub(crate) fn measure(&mut self, period: Nanos, levels: &Levels) {
        self.sums.hold(levels, Nanos(period.0.min(PERIOD_MAX.0)).as_secs_f64());
    }

    /// All of it.
    pub(crate) const fn sums(&self) -> &Sums {
        &self.sums
    }
}

/// What held of a service in a tick. Limits are decided, and have no age.
pub(crate) fn levels_of_service(signals: &Signals, limits: &ServiceLimits) -> Levels {
    let (resource, queue, time) = (&signals.resource, &signals.queue, &signals.time);
    let share = |reading| level(reading, |share: Share| share.get());
    let count = |reading| level(reading, |count: u64| count as f64);
    Levels {
        cpu: share(resource.cpu),
        busiest_thread: share(resource.busiest_thread),
        waiting: count(time.waiting),
        accept_queue: level(queue.accept, |queue| queue.length as f64),
        sent: level(resource.bandwidth, |bytes| bytes),
        open: count(time.open),
        silent: count(time.silent),
        slow: count(time.slow),
        interface_queue: level(queue.interface, |queue| queue.length),
        cpu_pressure: share(resource.cpu_pressure),
        memory_pressure: share(resource.memory_pressure),
        io_pressure: share(resource.io_pressure),
        limit_rate: limits.rate.map(|rate| rate.get()),
        limit_burst: limits.rate.map(|_| f64::from(limits.burst)),
        limit_waiting: limits.waiting_max.map(|most| most as f64),
    }
}

/// The same of a request bucket.
pub(crate) fn levels_of_bucket(signals: &BucketSignals, limits: &BucketLimits) -> Levels {
    Levels {
        waiting: level(signals.in_flight, |count| count as f64),
        limit_rate: limits.rate.map(|rate| rate.get()),
        limit_burst: limits.rate.map(|_| f64::from(limits.burst)),
        ..Levels::default()
    }
}

/// A reading that says something of the tick.
fn level<T: Copy>(reading: Option<Reading<T>>, value: impl Fn(T) -> f64) -> Option<f64> {
    reading.and_then(|reading| reading.within(AGE_MAX)).map(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::Family;
    use tidegate_units::Rate;

    const TICK: Nanos = Nanos::from_millis(100);

    #[derive(Default)]
    struct Course {
        meter: Meter,
        ticks: u64,
        turns: Vec<(u64, Turn)>,
    }

    impl Course {
        fn go(&mut self, ticks: u64, why: &Why, offered: u64, refused: u64) -> &mut Self {
            for _ in 0..ticks {
                self.ticks += 1;
                let now = Nanos(self.ticks * TICK.0);
                let look =
                    Look { now, period: TICK, why, shadow: false, remote: false, offered, refused };
                let turn = self.meter.see(&look);
                self.turns.extend(turn.map(|turn| (self.ticks, turn)));
            }
            self
        }

        /// Ticks of the episodes that are over, first and last.
        fn over(&self) -> Vec<(u64, u64)> {
            let ended = self.turns.iter().filter_map(|(_, turn)| match turn {
                Turn::Ended(e) => Some((e.began.0 / TICK.0 + 1, e.last.0 / TICK.0)),
                Turn::Began(_) => None,
            });
            ended.collect()
        }
    }

    fn sheds() -> Why {
        let alarmed = vec![Family::Time, Family::Balance];
        Why { shedding: true, cause: Some(Cause::Growth), alarmed, ..Why::default() }
    }

    #[test]
    fn an_episode_has_the_moments_of_its_first_and_its_last_tick() {
        let (calm, sheds) = (Why::default(), sheds());
        let mut course = Course::default();
        course.go(20, &calm, 10, 0).go(600, &sheds, 100, 60).go(49, &calm, 10, 0);
        assert_eq!(course.turns.len(), 1, "not over yet");
        course.go(1, &calm, 10, 0);
        assert_eq!(course.over(), [(21, 620)]);
        let sums = course.meter.sums();
        assert_eq!((sums.episodes, sums.shedding.len()), (1, 1));
        assert_eq!(sums.shedding[0].time, Nanos::from_secs(60), "the hold is not shedding");
        assert_eq!((sums.shedding[0].cause, sums.shedding[0].shadow), (Cause::Growth, false));
        let began = sums.began.zip(sums.ended);
        assert_eq!(began, Some((Nanos::from_secs(2), Nanos::from_secs(62))));
        let alarmed = Nanos::from_secs(60);
        assert_eq!(sums.alarmed, [Nanos::ZERO, Nanos::ZERO, alarmed, alarmed]);
    }

    /// A controller that opens for less than the hold, and one that opens for longer.
    #[test]
    fn a_pause_shorter_than_the_hold_ends_nothing() {
        let (calm, sheds) = (Why::default(), sheds());
        let mut course = Course::default();
        course.go(10, &sheds, 9, 1).go(49, &calm, 9, 0).go(10, &sheds, 9, 1);
        course.go(50, &calm, 9, 0).go(1, &sheds, 9, 1).go(60, &calm, 9, 0);
        assert_eq!(course.over(), [(1, 69), (120, 120)]);
    }

    #[test]
    fn refusals_of_a_limit_are_an_episode_where_they_are_more_than_a_few() {
        let calm = Why::default();
        // One in a thousand, and two in a row without any traffic beside them.
        for (offered, refused) in [(1000, 1), (1, 0)] {
            let mut course = Course::default();
            course.go(50, &calm, offered, refused);
            assert!(course.turns.is_empty(), "{offered} {refused}");
        }
        let mut few = Course::default();
        few.go(2, &calm, 1, 1).go(60, &calm, 0, 0);
        assert!(few.turns.is_empty());
        let mut many = Course::default();
        many.go(10, &calm, 100, 20).go(60, &calm, 100, 0);
        let [(_, Turn::Began(began)), (_, Turn::Ended(ended))] = many.turns[..] else {
            panic!("{:?}", many.turns)
        };
        assert_eq!((began.cause, ended.last), (Cause::Limit, Nanos(10 * TICK.0)));
    }

    #[test]
    fn what_began_as_a_limit_takes_the_cause_that_is_found_and_the_stricter_mode() {
        let mut course = Course::default();
        course.go(5, &Why::default(), 100, 20).go(5, &sheds(), 100, 60);
        let episode = course.meter.episode.unwrap();
        assert_eq!(episode.cause, Cause::Growth);
        assert_eq!(course.turns.len(), 1);
        let shadow = Why { shedding: true, ..Why::default() };
        let mut meter = Meter::default();
        let look = |now: u64, shadow_now| Look {
            now: Nanos(now),
            period: TICK,
            why: &shadow,
            shadow: shadow_now,
            remote: false,
            offered: 0,
            refused: 0,
        };
        meter.see(&look(1, true));
        assert!(meter.episode.is_some_and(|episode| episode.shadow));
        meter.see(&look(2, false));
        assert!(meter.episode.is_some_and(|episode| !episode.shadow));
    }

    #[test]
    fn levels_are_summed_over_time_and_what_is_unknown_is_left_out() {
        let mut meter = Meter::default();
        let measure = |meter: &mut Meter, signals: &Signals, limits: &ServiceLimits| {
            meter.measure(signals.period, &levels_of_service(signals, limits));
        };
        let (mut signals, mut limits) =
            (Signals { period: TICK, ..Signals::default() }, ServiceLimits::default());
        measure(&mut meter, &signals, &limits);
        assert_eq!(meter.sums(), &Sums::default());
        signals.resource.cpu = Some(Reading::fresh(Share::new(0.5)));
        signals.resource.io_pressure = Some(Reading::fresh(Share::new(0.25)));
        signals.time.open = Some(Reading::fresh(40));
        signals.time.waiting = Some(Reading { value: 9, age: Nanos::from_secs(2) });
        (0..10).for_each(|_| measure(&mut meter, &signals, &limits));
        // A limit is in force for the second half, and halves in the middle of it.
        (limits.rate, limits.burst, limits.waiting_max) =
            (Some(Rate::per_second(300.0)), 20, Some(64));
        (0..5).for_each(|_| measure(&mut meter, &signals, &limits));
        limits.rate = Some(Rate::per_second(150.0));
        (0..5).for_each(|_| measure(&mut meter, &signals, &limits));
        let (levels, known) = (meter.sums().levels, meter.sums().known);
        let about = |sum: Option<f64>, of: f64| sum.is_some_and(|sum| (sum - of).abs() < 1e-9);
        assert!(about(levels.cpu, 1.0) && about(known.cpu, 2.0), "{levels:?} {known:?}");
        assert!(about(levels.io_pressure, 0.5) && about(levels.open, 80.0), "{levels:?}");
        assert!(about(levels.limit_rate, 225.0) && about(known.limit_rate, 1.0), "{levels:?}");
        assert!(about(levels.limit_burst, 20.0) && about(levels.limit_waiting, 64.0), "{levels:?}");
        assert_eq!((levels.waiting, known.waiting), (None, None), "too old");
        // A daemon that stood still for a minute does not know what was so meanwhile.
        signals.period = Nanos::from_secs(60);
        measure(&mut meter, &signals, &limits);
        assert!(meter.sums().levels.cpu.is_some_and(|cpu| cpu < 3.0));
    }

    #[test]
    fn levels_of_a_bucket_are_its_own() {
        let signals =
            BucketSignals { in_flight: Some(Reading::fresh(7)), ..BucketSignals::default() };
        let rate = Some(Rate::per_second(80.0));
        let limits = BucketLimits { rate, burst: 4, ..BucketLimits::default() };
        let expected = Levels {
            waiting: Some(7.0),
            limit_rate: Some(80.0),
            limit_burst: Some(4.0),
            ..Levels::default()
        };
        assert_eq!(levels_of_bucket(&signals, &limits), expected);
        assert_eq!(
            levels_of_bucket(&BucketSignals::default(), &BucketLimits::default()),
            Levels::default()
        );
    }
}
