// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What policies need beside the rate of a law.
//!
//! - *Loss*: a policy that refuses a share of all that arrives (`percent`) is told 1 − rate / offered,
//!   with what was offered averaged over a second.
//! - *Time of a request*: a level in virtual waiting time is the number of requests in flight times
//!   what one takes of the service, 1 / capacity. Of the capacity only what was reached is known. So
//!   the time is the least of a period of 5 min and the one before:
//!
//!   ```text
//!   min(1 / completions per second, mean response time)
//!   ```
//!
//!   measured over a second and 16 completions at least. The first term is right once the server was
//!   saturated. Before that the second one bounds it: a request that finds the server idle takes no
//!   longer, however few come. While neither was measured there is no time, and no level.

use crate::period_s;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::{BucketSignals, Signals};
use tidegate_units::{Nanos, Rate, Share};

/// Seconds in which an average forgets.
const OFFERED_SECONDS: f64 = 1.0;
/// Shortest time over which completions are counted.
const WINDOW: Nanos = Nanos::SECOND;
/// Fewest completions from which a time is told.
const WINDOW_LEAST: u64 = 16;
/// A time is believed for two of these.
const SPAN: Nanos = Nanos::from_secs(300);
/// The limits are written again only for a change of more than this share.
const CHANGE_LEAST: f64 = 0.05;

/// What the policies of a service need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// That of the service refuses a share.
    pub loss: bool,
    /// A level is a virtual waiting time.
    pub per_request: bool,
    /// Which buckets have a policy that refuses a share.
    pub buckets: Vec<bool>,
}

/// Measures it, tick by tick.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    offered: Offered,
    buckets: Vec<Offered>,
    time: RequestTime,
}

impl Measured {
    /// Takes a tick, and completes limits that a law has set.
    pub fn complete(&mut self, signals: &Signals, wants: &Wants, limits: &mut ServiceLimits) {
        let seconds = period_s(signals);
        let counts = signals.balance.counts.map(|counts| counts.value.offered);
        let loss = self.offered.see(counts, seconds).loss(limits.rate);
        limits.loss = loss.filter(|_| wants.loss);
        let per_request = self.time.see(signals);
        limits.per_request = per_request.filter(|_| wants.per_request);
        self.buckets.resize_with(limits.buckets.len(), Offered::default);
        let offered = |bucket: &BucketSignals| {
            bucket.counts.map(|counts| counts.value.offered.iter().sum::<u64>())
        };
        for (at, (limits, measured)) in limits.buckets.iter_mut().zip(&mut self.buckets).enumerate()
        {
            let count = signals.buckets.get(at).and_then(offered);
            let loss = measured.see(count, seconds).loss(limits.rate);
            limits.loss = loss.filter(|_| wants.buckets.get(at) == Some(&true));
        }
    }
}

/// What arrives, per second.
#[derive(Clone, Copy, Debug, Default)]
struct Offered {
    per_second: Option<f64>,
}

impl Offered {
    /// Counts that are not known change nothing.
    fn see(&mut self, count: Option<u64>, seconds: f64) -> &Self {
        if let Some(count) = count {
            let now = count as f64 / seconds;
            let weight = 1.0 - libm::exp(-seconds / OFFERED_SECONDS);
            let then = self.per_second.unwrap_or(now);
            self.per_second = Some(then + weight * (now - then));
        }
        self
    }

    /// The share that has to be refused; `None`: none.
    fn loss(&self, rate: Option<Rate>) -> Option<Share> {
        let offered = self.per_second.filter(|offered| *offered > 0.0)?;
        let loss = 1.0 - rate?.get() / offered;
        (loss > 0.0).then(|| Share::new(loss))
    }
}

/// What one request takes of the service.
#[derive(Clone, Copy, Debug, Default)]
struct RequestTime {
    /// Of the window that is open: how long it is, completions, first bytes and their times.
    length: Nanos,
    completed: u64,
    answered: u64,
    answered_time: Nanos,
    /// The least of this span and of the one before, in seconds.
    least: [Option<f64>; 2],
    since: Nanos,
    told: Option<Nanos>,
}

impl RequestTime {
    fn see(&mut self, signals: &Signals) -> Option<Nanos> {
        let counts = signals.balance.counts.map(|counts| counts.value);
        let Some(counts) = counts else { return self.told };
        self.length += signals.period;
        self.completed += counts.done();
        if let Some(times) = signals.time.first_byte.map(|times| times.value) {
            self.answered += times.count;
            self.answered_time += times.sum;
        }
        if self.length >= WINDOW && self.completed >= WINDOW_LEAST {
            self.close(signals.now);
        }
        self.told
    }

    fn close(&mut self, now: Nanos) {
        let by_rate = self.length.as_secs_f64() / self.completed as f64;
        let mean = self.answered_time.as_secs_f64() / self.answered as f64;
        let found = if self.answered > 0 && mean > 0.0 { by_rate.min(mean) } else { by_rate };
        if now.since(self.since) >= SPAN {
            (self.least, self.since) = ([None, self.least[0]], now);
        }
        self.least[0] = Some(self.least[0].map_or(found, |least| least.min(found)));
        (self.length, self.completed) = (Nanos::ZERO, 0);
        (self.answered, self.answered_time) = (0, Nanos::ZERO);
        let least = self.least.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let before = self.told.map_or(0.0, Nanos::as_secs_f64);
        if (least - before).abs() > CHANGE_LEAST * before {
            self.told = Some(Nanos::from_secs_f64(least));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::limits::BucketLimits;
    use tidegate_model::signals::{BucketCounts, Counts, Reading, Times};

    const TICK: Nanos = Nanos::from_millis(100);

    fn all() -> Wants {
        Wants { loss: true, per_request: true, buckets: vec![true, false] }
    }

    /// A tick with so many SYNs, completions and a mean response time.
    fn tick(n: u64, offered: u64, completed: u64, mean: Nanos) -> Signals {
        let mut signals = Signals { now: Nanos(TICK.0 * n), period: TICK, ..Signals::default() };
        let counts = Counts { offered, completed, ..Counts::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        let times = Times { count: completed, sum: Nanos(mean.0 * completed), ..Times::default() };
        signals.time.first_byte = Some(Reading::fresh(times));
        signals
    }

    fn run(
        measured: &mut Measured,
        ticks: std::ops::Range<u64>,
        signals: impl Fn(u64) -> Signals,
    ) -> ServiceLimits {
        let mut last = ServiceLimits::default();
        for n in ticks {
            last = ServiceLimits { rate: Some(Rate::per_second(30.0)), ..ServiceLimits::default() };
            measured.complete(&signals(n), &all(), &mut last);
        }
        last
    }

    #[test]
    fn the_loss_is_what_the_rate_leaves_out_of_what_arrives() {
        let mut measured = Measured::default();
        let loss = |limits: ServiceLimits| limits.loss.map(|share| (share.get() * 1e3).round());
        let twice = run(&mut measured, 0..100, |n| tick(n, 6, 3, TICK));
        assert_eq!(loss(twice), Some(500.0), "60/s for 30");
        let fewer = run(&mut measured, 100..200, |n| tick(n, 3, 3, TICK));
        assert!(loss(fewer).is_none_or(|loss| loss < 1.0), "30/s");
        let few = run(&mut measured, 200..300, |n| tick(n, 1, 1, TICK));
        assert_eq!(loss(few), None);
        let unknown = run(&mut measured, 300..301, |_| Signals::default());
        assert_eq!(loss(unknown), None, "as before");
        let mut limits = ServiceLimits::default();
        measured.complete(&tick(301, 100, 3, TICK), &all(), &mut limits);
        assert_eq!(limits.loss, None, "without a rate nothing is refused");
        let mut limits = ServiceLimits { rate: Some(Rate::per_second(1.0)), ..limits };
        measured.complete(&tick(302, 100, 3, TICK), &Wants::default(), &mut limits);
        assert_eq!((limits.loss, limits.per_request), (None, None), "nobody wants it");
    }

    #[test]
    fn a_bucket_has_its_own_loss() {
        let mut measured = Measured::default();
        let mut limits = ServiceLimits::default();
        for n in 0..50 {
            let rate = Some(Rate::per_second(100.0));
            limits.buckets = vec![BucketLimits { rate, ..BucketLimits::default() }; 2];
            let mut signals = tick(n, 1, 1, TICK);
            let counts = BucketCounts { offered: [10, 20, 10], ..BucketCounts::default() };
            let counts = Some(Reading::fresh(counts));
            signals.buckets = vec![BucketSignals { counts, ..BucketSignals::default() }; 2];
            measured.complete(&signals, &all(), &mut limits);
        }
        let loss = limits.buckets.iter().map(|bucket| bucket.loss.map(Share::get));
        assert_eq!(loss.collect::<Vec<_>>(), [Some(0.75), None], "the second wants none");
    }

    /// A single server of 50/s, at a tenth of its load, then saturated: 20 ms either way.
    #[test]
    fn the_time_of_a_request_is_known_before_the_server_is_full() {
        let mut measured = Measured::default();
        let millis = |limits: ServiceLimits| limits.per_request.map(|t| t.as_secs_f64() * 1e3);
        let calm = |n: u64| tick(n, 1, n % 2, Nanos::from_millis(20));
        assert_eq!(millis(run(&mut measured, 0..20, calm)), None, "10 completions are few");
        assert_eq!(millis(run(&mut measured, 20..60, calm)), Some(20.0));
        let full = |n: u64| tick(n, 9, 5, Nanos::from_millis(700));
        assert_eq!(millis(run(&mut measured, 60..200, full)), Some(20.0));
        // As fast as it ever was, for 10 min at most.
        let slow = |n: u64| tick(n, 9, 2, Nanos::from_millis(900));
        assert_eq!(millis(run(&mut measured, 200..3000, slow)), Some(20.0));
        assert_eq!(millis(run(&mut measured, 3000..9000, slow)), Some(50.0));
    }

    /// Many workers: what was completed at once tells more than how long one took.
    #[test]
    fn a_server_with_many_workers_takes_less_of_itself_for_each() {
        let mut measured = Measured::default();
        let limits = run(&mut measured, 0..50, |n| tick(n, 90, 80, Nanos::from_millis(125)));
        assert_eq!(limits.per_request, Some(Nanos(1_250_000)), "800/s");
    }
}
