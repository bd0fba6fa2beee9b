// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether refusing new connections brings down what is in flight.
//!
//! A limit in flight that the number stays far above, second after second, while new connections are
//! refused and the server answers, does not hold what it should: the work comes from connections that
//! are open. It is told by the effect, because the count of exchanges a connection is late, and too small
//! where several requests look like one. What hides in exchanges whose number stays at the limit is not
//! seen. Nothing is controlled by it.
//!
//! Four things must hold together, so that it is none of these:
//! - the onset of an overload, or the end of a pause: what piled up before the limit drains in a second
//!   or two. So the number has to stay for [`HOLD_S`];
//! - a slow dependency, lost capacity, long polls: what was in flight is not answered yet. So as much
//!   has to have been answered as stood above the limit at most: it would have drained;
//! - connections with one request, late ones too: no response goes to an open connection. So most
//!   responses have to be other than the first of their connection;
//! - chance: see [`FAR`] and [`LIMIT_MIN`].

use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// In flight is far above the limit at this multiple of it. The default controller's limit has three
/// deviations above its target already.
const FAR: f64 = 1.5;
/// And it is near again at this one: in between what was said is said on, and nothing is said first.
const NEAR: f64 = 1.2;
/// A smaller limit counts as this much: half of it, 16, is the standing queue that the default
/// controller allows.
const LIMIT_MIN: f64 = 32.0;
/// Seconds in which the number in flight is averaged: ten ticks.
const LEVEL_S: f64 = 1.0;
/// For so many seconds it must stay. What one request a connection piled up at an onset drains in a
/// second or two.
const HOLD_S: f64 = 3.0;
/// Without a refusal for so long, nobody is held off: between two of them, one in 20 is longer at one
/// a second.
const QUIET_S: f64 = 3.0;
/// Of the responses more than this part must go to connections that had one before: most of the work.
const LATER_MIN: f64 = 0.5;
/// Seconds in which responses are forgotten.
const SECONDS: f64 = 20.0;
/// A longer tick follows a gap, and an older reading says nothing of now.
const GAP_MIN: Nanos = Nanos::from_millis(1500);

/// What SYN policing has brought about, lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Effect {
    /// Average number in flight.
    level: Option<f64>,
    far: Option<Far>,
    quiet_s: f64,
}

/// A number in flight far above its limit.
#[derive(Clone, Copy, Debug, Default)]
struct Far {
    seconds: f64,
    /// In flight above the limit, at most.
    excess: f64,
    /// Responses since then.
    completed: f64,
    /// Responses of late, and those of them that were the first of their connection.
    lately: f64,
    first: f64,
    level: f64,
    limit: f64,
    /// All conditions were met, with a number that was still far above.
    said: bool,
}

/// Refusals that bring nothing down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct InVain {
    /// For so many seconds.
    pub(crate) seconds: f64,
    /// In flight.
    pub(crate) level: f64,
    /// The limit that was set.
    pub(crate) limit: f64,
    /// Part of the responses that goes to connections that had one before.
    pub(crate) later: f64,
}

impl InVain {
    /// The evidence, in words.
    pub(crate) fn words(self) -> String {
        let Self { seconds, level, limit, later } = self;
        let percent = later * 100.0;
        format!(
            "{seconds:.0} s of refusing new connections have not brought down what is in flight: \
             {level:.0} requests, with a limit of {limit:.0}. The work comes from open connections: \
             {percent:.0} % of the responses are not the first of theirs"
        )
    }
}

impl Effect {
    /// Takes a tick, and the limits that were in force in it.
    pub(crate) fn see(&mut self, signals: &Signals, limits: &ServiceLimits) {
        let counts = signals.balance.counts.and_then(|counts| counts.within(GAP_MIN));
        let waiting = signals.time.waiting.and_then(|waiting| waiting.within(GAP_MIN));
        let first = counts.and_then(|counts| counts.connections.map(|each| each.answered));
        let limit = limits.waiting_max.filter(|_| limits.why.shedding);
        let (Some(counts), Some(waiting), Some(first), Some(limit)) =
            (counts, waiting, first, limit)
        else {
            *self = Self::default();
            return;
        };
        if signals.period > GAP_MIN {
            *self = Self::default();
            return;
        }
        let seconds = signals.period.as_secs_f64();
        let (waiting, limit) = (waiting as f64, limit as f64);
        let before = self.level.unwrap_or(waiting);
        let level = waiting + (-seconds / LEVEL_S).exp() * (before - waiting);
        self.level = Some(level);
        self.quiet_s = if counts.refused > 0 { 0.0 } else { self.quiet_s + seconds };
        let above = |level: f64, times: f64| level - limit > (times - 1.0) * limit.max(LIMIT_MIN);
        let goes_on = match self.far {
            Some(_) => above(level, NEAR) && self.quiet_s < QUIET_S,
            None => above(level, FAR) && counts.refused > 0,
        };
        if !goes_on {
            self.far = None;
            return;
        }
        let far = self.far.get_or_insert_default();
        let (completed, keep) = (counts.done() as f64, (-seconds / SECONDS).exp());
        far.seconds += seconds;
        far.completed += completed;
        far.lately = keep * far.lately + completed;
        far.first = keep * far.first + first as f64;
        far.excess = far.excess.max(level.max(waiting) - limit);
        (far.level, far.limit) = (level, limit);
        let answered = far.completed >= far.excess && far.first < (1.0 - LATER_MIN) * far.lately;
        // The mean is late where the number falls.
        far.said |= far.seconds >= HOLD_S && answered && above(level.min(waiting), FAR);
    }

    /// Whether refusals are in vain.
    pub(crate) fn in_vain(&self) -> Option<InVain> {
        let far = self.far.filter(|far| far.said)?;
        let Far { seconds, level, limit, .. } = far;
        let later = 1.0 - far.first / far.lately.max(1.0);
        Some(InVain { seconds, level, limit, later })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::limits::Why;
    use tidegate_model::signals::{ConnectionCounts, Counts, Reading};

    /// A tick of 100 ms.
    #[derive(Clone, Copy, Debug)]
    struct Tick {
        waiting: u64,
        /// Responses, and those that were the first of their connection.
        completed: u64,
        first: u64,
        refused: u64,
    }

    const LIMIT: u64 = 40;

    fn signals(tick: Tick) -> Signals {
        let Tick { waiting, completed, first, refused } = tick;
        let connections = ConnectionCounts { answered: first, ..ConnectionCounts::default() };
        let connections = Some(connections);
        let counts = Counts { completed, refused, connections, ..Counts::default() };
        let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        signals.time.waiting = Some(Reading::fresh(waiting));
        signals
    }

    fn sheds(limit: u64) -> ServiceLimits {
        let why = Why { shedding: true, ..Why::default() };
        ServiceLimits { waiting_max: Some(limit), why, ..ServiceLimits::default() }
    }

    /// After which ticks it was said, with this limit.
    fn said(limit: u64, ticks: impl IntoIterator<Item = Tick>) -> Vec<usize> {
        let mut effect = Effect::default();
        let mut said = Vec::new();
        for (n, tick) in ticks.into_iter().enumerate() {
            effect.see(&signals(tick), &sheds(limit));
            said.extend(effect.in_vain().map(|_| n + 1));
        }
        said
    }

    /// Three exchanges a connection: one response of three is the first of its connection.
    const THREE: Tick = Tick { waiting: 110, completed: 6, first: 2, refused: 4 };

    fn lasting(tick: Tick, ticks: usize) -> Vec<Tick> {
        vec![tick; ticks]
    }

    #[test]
    fn few_exchanges_a_connection_are_told_by_their_effect() {
        let said = said(LIMIT, lasting(THREE, 80));
        assert_eq!(said, (30..=80).collect::<Vec<_>>());
        let mut effect = Effect::default();
        (0..50).for_each(|_| effect.see(&signals(THREE), &sheds(LIMIT)));
        let words = effect.in_vain().unwrap().words();
        for part in ["5 s of", "110 requests", "limit of 40", "67 %"] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    /// What an onset, or a pause of the server, piled up drains within two seconds.
    #[test]
    fn what_drains_soon_was_only_piled_up() {
        let tick = |n: u64| Tick { waiting: 130 - 5 * n, completed: 40, first: 8, refused: 100 };
        assert!(said(LIMIT, (0..20).map(tick)).is_empty());
        // Nor does it count that the last of it is still in flight after three.
        let last = |n: u64| Tick { waiting: (130 - 80 * n / 30).max(45), ..tick(0) };
        assert!(said(LIMIT, (0..45).map(last)).is_empty());
        // As much again is no such thing.
        let slower = |n: u64| Tick { waiting: 130 - n, ..tick(0) };
        assert!(!said(LIMIT, (0..60).map(slower)).is_empty());
    }

    /// With one request a connection refusing is right, however long it takes: a server that lost
    /// capacity, clients that come late or again, an accept queue full of old ones.
    #[test]
    fn with_one_request_a_connection_nothing_is_said() {
        for (waiting, completed) in [(110, 6), (9_600, 40), (300, 400)] {
            let one = Tick { waiting, completed, first: completed, refused: 90 };
            assert!(said(LIMIT, lasting(one, 600)).is_empty(), "{one:?}");
        }
    }

    /// A dependency became slow, or capacity was lost: those who are in have not been answered yet.
    #[test]
    fn what_could_not_drain_yet_does_not_count() {
        let slow = Tick { waiting: 340, completed: 3, first: 1, refused: 20 };
        let first = said(LIMIT, lasting(slow, 150));
        assert_eq!(first.first(), Some(&100), "300 above the limit, 3 in a tick");
        // And where more and more wait, as much more has to be answered.
        let grows = |n: u64| Tick { waiting: 340 + 4 * n, ..slow };
        assert!(said(LIMIT, (0..600).map(grows)).is_empty());
    }

    /// 10,000 clients who poll for a minute, on connections that stay, beside others.
    #[test]
    fn long_polls_are_not_answered_yet() {
        let tick = |n: u64| Tick {
            waiting: (17 * n).min(10_000),
            completed: if n < 600 { 8 } else { 24 },
            first: 3,
            refused: 5,
        };
        assert!(said(LIMIT, (0..700).map(tick)).is_empty());
    }

    #[test]
    fn each_condition_has_two_sides() {
        let with = |change: fn(&mut Tick)| {
            let mut tick = THREE;
            change(&mut tick);
            !said(LIMIT, lasting(tick, 80)).is_empty()
        };
        assert!(with(|tick| tick.waiting = 61) && !with(|tick| tick.waiting = 60));
        assert!(with(|tick| tick.first = 2) && !with(|tick| tick.first = 3));
        assert!(with(|tick| tick.refused = 1) && !with(|tick| tick.refused = 0));
        let small = |waiting| said(2, lasting(Tick { waiting, ..THREE }, 80)).is_empty();
        assert!(small(18) && !small(19), "a small limit is exceeded by chance");
    }

    /// It says it until the number is near the limit, and then not again until it is far.
    #[test]
    fn it_does_not_flap() {
        let at = |waiting| Tick { waiting, ..THREE };
        let course = |waiting| {
            let (far, near) = (lasting(THREE, 40), lasting(at(44), 60));
            let course = [far, lasting(at(waiting), 100), near, lasting(at(52), 100)].concat();
            said(LIMIT, course).last().copied()
        };
        assert_eq!(course(52).map(|last| last > 140 && last < 160), Some(true));
        assert_eq!(course(44).map(|last| last > 40 && last < 80), Some(true));
    }

    #[test]
    fn it_is_over_when_nobody_is_refused() {
        let calm = Tick { refused: 0, ..THREE };
        let said = said(LIMIT, [lasting(THREE, 40), lasting(calm, 60)].concat());
        let last = said.last().copied();
        assert!((68..=71).contains(&last.unwrap()), "{last:?}");
    }

    #[test]
    fn it_is_counted_from_the_first_refusal() {
        let calm = Tick { refused: 0, ..THREE };
        let said = said(LIMIT, [lasting(calm, 20), lasting(THREE, 40)].concat());
        assert_eq!(said.first(), Some(&50));
    }

    #[test]
    fn without_limit_signals_or_ticks_nothing_is_said() {
        let gap = |signals: &mut Signals| signals.period = Nanos::from_secs(2);
        type Change = (&'static str, fn(&mut Signals));
        let silent: [Change; 4] = [
            ("gap", gap),
            ("in flight", |signals| signals.time.waiting = None),
            ("counts", |signals| signals.balance.counts = None),
            ("old", |signals| {
                let old = Reading { value: 110, age: Nanos::from_secs(2) };
                signals.time.waiting = Some(old);
            }),
        ];
        for (what, change) in silent {
            let mut effect = Effect::default();
            (0..50).for_each(|_| effect.see(&signals(THREE), &sheds(LIMIT)));
            assert!(effect.in_vain().is_some());
            let mut other = signals(THREE);
            change(&mut other);
            effect.see(&other, &sheds(LIMIT));
            assert!(effect.in_vain().is_none(), "{what}");
        }
        let mut effect = Effect::default();
        let calm = ServiceLimits { waiting_max: Some(LIMIT), ..ServiceLimits::default() };
        let unlimited = ServiceLimits { waiting_max: None, ..sheds(LIMIT) };
        for limits in [calm, unlimited] {
            (0..50).for_each(|_| effect.see(&signals(THREE), &limits));
            assert!(effect.in_vain().is_none());
        }
    }
}
