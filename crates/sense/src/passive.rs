// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Differences of the dataplane's totals: the families Time and Balance.

use std::io;
use tidegate_model::signals::{
    Balance, BucketCounts, BucketSignals, ConnectionCounts, Counts, Reading, Time, Times,
};
use tidegate_model::totals::{BucketTotals, ConnectionTotals, Histogram, ServiceTotals, Totals};
use tidegate_units::Nanos;

/// What is there at one moment.
#[derive(Clone, Copy, Debug)]
struct Levels {
    waiting: u64,
    open: u64,
    silent: u64,
    slow: u64,
}

/// The totals of one service at the tick before.
#[derive(Debug, Default)]
pub(crate) struct Passive {
    last: Option<ServiceTotals>,
    levels: Option<(Nanos, Levels)>,
    buckets: Vec<BucketSignals>,
    read: Nanos,
}

impl Passive {
    /// Reads the totals of `service` and gives what happened since the tick before.
    ///
    /// After a gap there is no difference for one tick: it would be over another span than the
    /// tick's. Totals that went back (a fresh state) are a new beginning, not a difference.
    pub(crate) fn tick(
        &mut self,
        now: Nanos,
        service: usize,
        source: &dyn Totals,
    ) -> io::Result<(Time, Balance)> {
        let before = self.last.take();
        let totals = source.totals(service)?;
        self.buckets = buckets(&totals.buckets, before.as_ref().map(|b| &*b.buckets));
        self.read = now;
        if !source.sees_answers() {
            return Ok(self.unanswered(totals, before.as_ref()));
        }
        let ServiceTotals { waiting, open, silent, slow, .. } = totals;
        self.levels = Some((now, Levels { waiting, open, silent, slow }));
        let mut time = self.levels(now);
        time.proxy_turn = totals.proxy_turn.map(Reading::fresh);
        let mut balance = Balance::default();
        if let Some(before) = before
            && let Some(counts) = counts(&totals, &before)
        {
            time.first_byte =
                Some(Reading::fresh(times(&totals.first_byte.since(&before.first_byte))));
            time.end = Some(Reading::fresh(times(&totals.end.since(&before.end))));
            balance.counts = Some(Reading::fresh(counts));
        }
        self.last = Some(totals);
        Ok((time, balance))
    }

    /// Their places are others' now: the next look begins anew with them.
    pub(crate) fn forget_buckets(&mut self) {
        self.buckets.clear();
        if let Some(last) = &mut self.last {
            last.buckets.clear();
        }
    }

    /// Where answers are not seen, only what arrived and what was evaluated is known: no family Time,
    /// and nothing completed that could be told.
    fn unanswered(
        &mut self,
        totals: ServiceTotals,
        before: Option<&ServiceTotals>,
    ) -> (Time, Balance) {
        self.levels = None;
        let counts = before.and_then(|before| counts(&totals, before));
        let counts = counts
            .map(|counts| Reading::fresh(Counts { completed: 0, connections: None, ..counts }));
        self.last = Some(totals);
        (Time::default(), Balance { counts })
    }

    /// The totals as they were read in this tick; `None`: they could not be.
    pub(crate) const fn totals(&self) -> Option<&ServiceTotals> {
        self.last.as_ref()
    }

    /// The buckets: what happened since the tick before, and the requests in flight as they were last
    /// read, with their age. Answers are seen where the requests are, or no request is evaluated.
    pub(crate) fn buckets(&self, now: Nanos) -> Vec<BucketSignals> {
        let age = now.since(self.read);
        if age == Nanos::ZERO {
            return self.buckets.clone();
        }
        let held = |bucket: &BucketSignals| BucketSignals {
            in_flight: bucket.in_flight.map(|r| Reading { age, ..r }),
            ..BucketSignals::default()
        };
        let known = age <= crate::HOLD_MAX;
        self.buckets
            .iter()
            .map(|b| if known { held(b) } else { BucketSignals::default() })
            .collect()
    }

    /// The levels as they were last read, with their age.
    pub(crate) fn levels(&self, now: Nanos) -> Time {
        let held = self.levels.filter(|(at, _)| now.since(*at) <= crate::HOLD_MAX);
        let level = |of: fn(&Levels) -> u64| {
            held.as_ref().map(|(at, levels)| Reading { value: of(levels), age: now.since(*at) })
        };
        Time {
            waiting: level(|levels| levels.waiting),
            open: level(|levels| levels.open),
            silent: level(|levels| levels.silent),
            slow: level(|levels| levels.slow),
            ..Time::default()
        }
    }
}

fn counts(now: &ServiceTotals, before: &ServiceTotals) -> Option<Counts> {
    Some(Counts {
        offered: now.offered.checked_sub(before.offered)?,
        repeated: now.repeated.checked_sub(before.repeated)?,
        admitted: now.admitted.checked_sub(before.admitted)?,
        refused: now.refused.checked_sub(before.refused)?,
        refused_remote: now
            .refused_remote
            .zip(before.refused_remote)
            .map(|(now, before)| now.saturating_sub(before)),
        completed: now.first_byte.count.checked_sub(before.first_byte.count)?,
        unknown: now.unknown.saturating_sub(before.unknown),
        // a reload may count on from elsewhere
        unseen: now.unseen.saturating_sub(before.unseen),
        connections: Some(connections(&now.connections, &before.connections)?),
    })
}

fn connections(now: &ConnectionTotals, before: &ConnectionTotals) -> Option<ConnectionCounts> {
    Some(ConnectionCounts {
        replied: now.replied.checked_sub(before.replied)?,
        proved: now.proved.checked_sub(before.proved)?,
        asked: now.asked.checked_sub(before.asked)?,
        answered: now.answered.checked_sub(before.answered)?,
        lost: now.lost.checked_sub(before.lost)?,
        ended: now.ended.checked_sub(before.ended)?,
        ended_exchanges: now.ended_exchanges.checked_sub(before.ended_exchanges)?,
    })
}

fn buckets(now: &[BucketTotals], before: Option<&[BucketTotals]>) -> Vec<BucketSignals> {
    // Another number of buckets is another configuration: no difference.
    let before = before.filter(|before| before.len() == now.len());
    let of = |(index, now): (usize, &BucketTotals)| {
        let mut signals = BucketSignals {
            in_flight: Some(Reading::fresh(now.begun.saturating_sub(now.ended))),
            ..BucketSignals::default()
        };
        if let Some(before) = before.and_then(|before| before.get(index))
            && let Some(counts) = bucket_counts(now, before)
        {
            signals.counts = Some(Reading::fresh(counts));
            let since = |now: &Histogram, then| Some(Reading::fresh(times(&now.since(then))));
            signals.first_byte = since(&now.first_byte, &before.first_byte);
            signals.end = since(&now.end, &before.end);
        }
        signals
    };
    now.iter().enumerate().map(of).collect()
}

fn bucket_counts(now: &BucketTotals, before: &BucketTotals) -> Option<BucketCounts> {
    let mut counts = BucketCounts {
        refused_first: now.refused_first.checked_sub(before.refused_first)?,
        begun: now.begun.checked_sub(before.begun)?,
        ended: now.ended.checked_sub(before.ended)?,
        ..BucketCounts::default()
    };
    for rank in 0..tidegate_model::RANKS {
        counts.offered[rank] = now.offered[rank].checked_sub(before.offered[rank])?;
        counts.refused[rank] = now.refused[rank].checked_sub(before.refused[rank])?;
    }
    Some(counts)
}

fn times(histogram: &Histogram) -> Times {
    Times {
        count: histogram.count,
        sum: Nanos(histogram.sum_ns),
        p50: histogram.quantile(0.5),
        p99: histogram.quantile(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Fake(RefCell<io::Result<ServiceTotals>>);
    impl Totals for Fake {
        fn totals(&self, _: usize) -> io::Result<ServiceTotals> {
            match &*self.0.borrow() {
                Ok(totals) => Ok(totals.clone()),
                Err(e) => Err(io::Error::from(e.kind())),
            }
        }
    }

    fn totals(offered: u64, completed: u64) -> ServiceTotals {
        let mut totals =
            ServiceTotals { offered, admitted: offered, waiting: 3, open: 5, ..Default::default() };
        (0..completed).for_each(|_| totals.first_byte.record(Nanos::from_millis(10)));
        totals
    }

    #[test]
    fn differences_need_two_ticks_and_a_gap_or_a_fresh_state_gives_none() {
        let fake = Fake(RefCell::new(Ok(totals(100, 90))));
        let mut passive = Passive::default();
        let second = Nanos::from_secs;
        let (time, balance) = passive.tick(second(1), 0, &fake).unwrap();
        assert_eq!((time.waiting, balance.counts), (Some(Reading::fresh(3)), None));

        *fake.0.borrow_mut() = Ok(totals(130, 110));
        let (time, balance) = passive.tick(second(2), 0, &fake).unwrap();
        let counts = balance.counts.unwrap().value;
        assert_eq!((counts.offered, counts.completed), (30, 20));
        let first = time.first_byte.unwrap().value;
        assert_eq!((first.count, first.sum), (20, Nanos::from_millis(200)));
        assert!((first.p99.as_millis_f64() - 10.0).abs() < 0.7, "{first:?}");

        *fake.0.borrow_mut() = Err(io::Error::from(io::ErrorKind::Other));
        assert!(passive.tick(second(3), 0, &fake).is_err());
        assert_eq!(passive.levels(second(3)).waiting.unwrap().age, second(1));
        *fake.0.borrow_mut() = Ok(totals(200, 120));
        assert_eq!(passive.tick(second(4), 0, &fake).unwrap().1.counts, None, "after a gap");

        *fake.0.borrow_mut() = Ok(totals(1, 1));
        assert_eq!(passive.tick(second(5), 0, &fake).unwrap().1.counts, None, "fresh state");
        *fake.0.borrow_mut() = Ok(totals(4, 2));
        assert_eq!(passive.tick(second(6), 0, &fake).unwrap().1.counts.unwrap().value.offered, 3);
    }

    struct Blind(Fake);
    impl Totals for Blind {
        fn totals(&self, service: usize) -> io::Result<ServiceTotals> {
            self.0.totals(service)
        }
        fn sees_answers(&self) -> bool {
            false
        }
    }

    #[test]
    fn where_answers_are_not_seen_times_and_levels_are_unknown_and_not_zero() {
        let blind = Blind(Fake(RefCell::new(Ok(totals(100, 0)))));
        let mut passive = Passive::default();
        passive.tick(Nanos::from_secs(1), 0, &blind).unwrap();
        *blind.0.0.borrow_mut() = Ok(totals(130, 0));
        let (time, balance) = passive.tick(Nanos::from_secs(2), 0, &blind).unwrap();
        assert_eq!(time, Time::default());
        assert_eq!(passive.levels(Nanos::from_secs(2)), Time::default());
        assert_eq!(balance.counts.unwrap().value.offered, 30, "arrivals are known");
    }

    fn bucket(new: u64, refused: u64, ended: u64) -> ServiceTotals {
        let mut bucket = BucketTotals {
            offered: [0, new, 0],
            refused: [0, refused, 0],
            refused_first: refused / 10,
            begun: new - refused,
            ended,
            ..BucketTotals::default()
        };
        (0..ended).for_each(|_| bucket.end.record(Nanos::from_millis(20)));
        ServiceTotals { buckets: vec![bucket], ..ServiceTotals::default() }
    }

    #[test]
    fn buckets_are_differences_too_and_their_requests_in_flight_age() {
        let fake = Fake(RefCell::new(Ok(bucket(100, 10, 80))));
        let mut passive = Passive::default();
        let second = Nanos::from_secs;
        passive.tick(second(1), 0, &fake).unwrap();
        let first = passive.buckets(second(1));
        assert_eq!((first[0].counts, first[0].in_flight), (None, Some(Reading::fresh(10))));

        *fake.0.borrow_mut() = Ok(bucket(150, 40, 105));
        passive.tick(second(2), 0, &fake).unwrap();
        let seen = &passive.buckets(second(2))[0];
        let counts = seen.counts.unwrap().value;
        assert_eq!((counts.offered, counts.refused), ([0, 50, 0], [0, 30, 0]));
        assert_eq!(counts.refused_first, 3, "4 of 40, after 1 of 10");
        assert_eq!((counts.begun, counts.ended), (20, 25));
        assert_eq!(seen.end.unwrap().value.count, 25);
        assert_eq!(seen.in_flight, Some(Reading::fresh(5)));

        *fake.0.borrow_mut() = Err(io::Error::from(io::ErrorKind::Other));
        passive.tick(second(3), 0, &fake).unwrap_err();
        let held = &passive.buckets(second(3))[0];
        assert_eq!((held.counts, held.in_flight.unwrap().age), (None, second(1)));
        assert_eq!(passive.buckets(second(13))[0].in_flight, None);

        // Fewer than before: a fresh state, or other buckets.
        *fake.0.borrow_mut() = Ok(bucket(1, 0, 0));
        passive.tick(second(4), 0, &fake).unwrap();
        *fake.0.borrow_mut() = Ok(bucket(0, 0, 0));
        passive.tick(second(5), 0, &fake).unwrap();
        assert_eq!(passive.buckets(second(5))[0].counts, None);
        let mut two = bucket(5, 0, 0);
        two.buckets.push(BucketTotals::default());
        *fake.0.borrow_mut() = Ok(two);
        passive.tick(second(6), 0, &fake).unwrap();
        assert!(passive.buckets(second(6)).iter().all(|bucket| bucket.counts.is_none()));
    }

    #[test]
    fn levels_are_forgotten_when_they_are_too_old() {
        let fake = Fake(RefCell::new(Ok(totals(1, 1))));
        let mut passive = Passive::default();
        passive.tick(Nanos::from_secs(1), 0, &fake).unwrap();
        assert!(passive.levels(Nanos::from_secs(1) + crate::HOLD_MAX).waiting.is_some());
        assert!(passive.levels(Nanos::from_secs(2) + crate::HOLD_MAX).waiting.is_none());
    }
}
