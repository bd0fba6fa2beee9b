// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what the kernel counted of a rule's requests to its signals: in flight, answers per second,
//! time to the first byte and to the last.
//!
//! Counts only grow, and are summed over the CPUs one after the other: an end may be read before
//! its beginning. Where a number changed hands they begin at zero, and so do differences.

use tidegate_model::signals::Reading;
use tidegate_model::snapshot::{RuleCounts, RuleServed, RuleSignals};
use tidegate_units::{Nanos, Rate};

/// Means are taken over at least so long: rules are many and their requests may be few.
const SPAN: Nanos = Nanos::SECOND;
/// Between two looks that are further apart nobody knows what was in flight.
pub(crate) const GAP: Nanos = Nanos::from_secs(3);

/// The rules of one service.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleWatch {
    /// Where the differences begin.
    base: Option<Look>,
    /// When the rules were last read.
    read: Nanos,
    rules: Vec<RuleSignals>,
    /// Requests in flight summed over time, in seconds, by rule.
    in_flight: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Look {
    at: Nanos,
    served: Vec<RuleServed>,
}

impl RuleWatch {
    /// Takes what was counted up to `now`.
    pub(crate) fn take(&mut self, now: Nanos, counts: &[RuleCounts]) {
        let served: Vec<RuleServed> = counts.iter().map(|count| count.served).collect();
        let same = |look: &&Look| look.served.len() == served.len();
        match self.base.as_ref().filter(same) {
            Some(base) if now.since(base.at) < SPAN => {}
            Some(base) => {
                let seconds = now.since(base.at).as_secs_f64();
                let pairs = served.iter().zip(&base.served);
                self.rules = pairs.map(|(now, then)| over(now, then, seconds)).collect();
                self.base = Some(Look { at: now, served: served.clone() });
            }
            None => {
                self.rules = vec![RuleSignals::default(); served.len()];
                self.base = Some(Look { at: now, served: served.clone() });
            }
        }
        let span = now.since(self.read);
        let seconds = if span <= GAP { span.as_secs_f64() } else { 0.0 };
        self.in_flight.resize(served.len(), 0.0);
        let rules = self.rules.iter_mut().zip(&mut self.in_flight);
        for ((signals, sum), served) in rules.zip(&served) {
            let in_flight = served.begun.saturating_sub(served.ended);
            signals.in_flight = Some(Reading::fresh(in_flight));
            *sum += in_flight as f64 * seconds;
        }
        self.read = now;
    }

    /// Other rules from now on, each with the place that it had among those before: signals begin anew, sums go on.
    pub(crate) fn follow(&mut self, places: &[Option<usize>]) {
        let sum = |place: &Option<usize>| place.map_or(0.0, |place| self.in_flight_sum(place));
        let in_flight = places.iter().map(sum).collect();
        *self = Self { read: self.read, in_flight, ..Self::default() };
    }

    /// The requests of a rule in flight, summed over time, in seconds.
    pub(crate) fn in_flight_sum(&self, rule: usize) -> f64 {
        self.in_flight.get(rule).copied().unwrap_or_default()
    }

    /// The signals of a rule at a moment, with their age.
    pub(crate) fn signals(&self, rule: usize, now: Nanos) -> RuleSignals {
        let Some(signals) = self.rules.get(rule) else { return RuleSignals::default() };
        let span = self.base.as_ref().map_or(now, |base| base.at);
        RuleSignals {
            in_flight: aged(signals.in_flight, now.since(self.read)),
            responses: aged(signals.responses, now.since(span)),
            first_byte: aged(signals.first_byte, now.since(span)),
            end: aged(signals.end, now.since(span)),
        }
    }
}

fn aged<T>(reading: Option<Reading<T>>, age: Nanos) -> Option<Reading<T>> {
    reading.map(|reading| Reading { age, ..reading })
}

fn over(now: &RuleServed, then: &RuleServed, seconds: f64) -> RuleSignals {
    let mean = |count: u64, (sum, before): (Nanos, Nanos)| {
        (count > 0).then(|| Reading::fresh(Nanos(sum.since(before).0 / count)))
    };
    let answered = now.answered.saturating_sub(then.answered);
    let started = now.started.saturating_sub(then.started);
    RuleSignals {
        in_flight: None,
        responses: Some(Reading::fresh(Rate::per_second(answered as f64 / seconds.max(1e-9)))),
        first_byte: mean(started, (now.started_time, then.started_time)),
        end: mean(answered, (now.answered_time, then.answered_time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(
        begun: u64,
        ended: u64,
        started: (u64, u64),
        answered: (u64, u64),
    ) -> [RuleCounts; 1] {
        let served = RuleServed {
            begun,
            ended,
            started: started.0,
            started_time: Nanos::from_millis(started.1),
            answered: answered.0,
            answered_time: Nanos::from_millis(answered.1),
        };
        [RuleCounts { served, ..RuleCounts::default() }]
    }

    /// Rates and means are those of the last second, in flight is that of now; both age while nobody
    /// reads.
    #[test]
    fn differences_become_signals() {
        let ms = Nanos::from_millis;
        let mut watch = RuleWatch::default();
        watch.take(ms(1_000), &counts(10, 8, (9, 90), (8, 160)));
        let first = watch.signals(0, ms(1_000));
        assert_eq!((first.in_flight, first.responses), (Some(Reading::fresh(2)), None));
        watch.take(ms(1_500), &counts(30, 20, (21, 300), (20, 500)));
        let between = watch.signals(0, ms(1_500));
        assert_eq!(between.in_flight, Some(Reading::fresh(10)), "of now");
        assert_eq!(between.responses, None, "half a second says little of rare requests");
        watch.take(ms(3_000), &counts(50, 50, (49, 490), (48, 960)));
        let later = watch.signals(0, ms(3_200));
        let aged = |value| Some(Reading { value, age: ms(200) });
        assert_eq!(later.in_flight, Some(Reading { value: 0, age: ms(200) }));
        assert_eq!(later.responses.map(|r| (r.value.get(), r.age)), Some((20.0, ms(200))));
        assert_eq!((later.first_byte, later.end), (aged(ms(10)), aged(ms(20))));
        let names: Vec<&str> = later.ages().map(|(name, _)| name).collect();
        assert_eq!(names, ["in_flight", "responses", "first_byte", "end"]);
    }

    #[test]
    fn what_is_in_flight_is_summed_over_time_but_not_over_a_gap() {
        let ms = Nanos::from_millis;
        let mut watch = RuleWatch::default();
        let mut look = |at, begun, ended| {
            watch.take(ms(at), &counts(begun, ended, (0, 0), (0, 0)));
            watch.in_flight_sum(0)
        };
        assert_eq!(look(100_000, 10, 6), 0.0, "not since the clock began");
        assert_eq!(look(100_500, 20, 12), 4.0);
        assert_eq!(look(160_500, 30, 12), 4.0, "nobody looked");
        assert_eq!(look(161_500, 32, 12), 24.0);
        assert_eq!(watch.in_flight_sum(1), 0.0);
    }

    #[test]
    fn other_rules_go_on_with_the_sums_that_are_theirs() {
        let ms = Nanos::from_millis;
        let mut watch = RuleWatch::default();
        let [one] = counts(4, 0, (0, 0), (0, 0));
        let [two] = counts(6, 0, (0, 0), (0, 0));
        watch.take(ms(100_000), &[one, two]);
        watch.take(ms(100_500), &[one, two]);
        watch.follow(&[Some(1), None, Some(0)]);
        assert_eq!(watch.signals(0, ms(100_500)), RuleSignals::default(), "of other rules");
        assert_eq!([0, 1, 2].map(|rule| watch.in_flight_sum(rule)), [3.0, 0.0, 2.0]);
        watch.take(ms(101_000), &[two, one, one]);
        assert_eq!([0, 1, 2].map(|rule| watch.in_flight_sum(rule)), [6.0, 2.0, 4.0]);
    }

    /// No answers, no times; counts that begin at zero again are no negative ones; other rules are
    /// no differences.
    #[test]
    fn what_is_not_known_is_not_said() {
        let s = Nanos::from_secs;
        let mut watch = RuleWatch::default();
        watch.take(s(1), &counts(100, 90, (95, 950), (90, 1_800)));
        watch.take(s(2), &counts(1, 2, (0, 0), (0, 0)));
        let anew = watch.signals(0, s(2));
        assert_eq!(anew.in_flight, Some(Reading::fresh(0)));
        assert_eq!(anew.responses.map(|r| r.value.get()), Some(0.0));
        assert_eq!((anew.first_byte, anew.end), (None, None));
        watch.take(s(4), &[]);
        assert_eq!(watch.signals(0, s(4)), RuleSignals::default());
    }
}
