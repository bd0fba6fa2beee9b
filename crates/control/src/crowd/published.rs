// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detector and control logic as published: papers/news.txt, figures 4, 5 and 6.
//!
//! ```text
//!            ARR below its average, and Rq above its average
//!     calm ─────────────────────────────────────────────────► alarm
//!      ▲    rate := average of Rq, bucket := small              │ each interval: rate and bucket
//!      └──────────────────── ARR rises again ◄──────────────────┘ are reduced further
//!  each interval: the limit is released by a step, until there is none
//! ```
//!
//! Numbers that the paper does not print are fields; the defaults say why.

use tidegate_units::Nanos;

/// Rates below this are no limit that anybody could mean.
const RATE_MIN: f64 = 0.1;
/// A limit this many times above what comes is none.
const RELEASED: f64 = 4.0;

/// When the alarm ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// ARR is above that of the last interval, by the band: "NEWS resets alarm signal when it observes an
    /// increase in aggregate response rate".
    Rise,
    /// ARR is above its long-term average by the band: the authors' code for ns.
    Average,
}

/// What happens while the alarm stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Adjust {
    /// The limit is multiplied by this (figure 6: "reduces token rate and bucket size further"). The
    /// factor is not printed.
    Reduce(f64),
    /// The authors' code: times 1.2 or 0.8, in the direction that helped last (by ARR); the limit begins
    /// with the rate admitted now, and is never released.
    Search,
}

/// Numbers of the published detector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedSpec {
    /// T. The paper suggests 64 s.
    pub interval: Nanos,
    /// ARR below this share of its average is a fall (authors' code: 0.9).
    pub response_on: f64,
    /// ARR above this many times the reference is a rise (authors' code: 1.1).
    pub response_off: f64,
    /// Rq above this many times its average is an increase (authors' code: 1.1).
    pub request_on: f64,
    /// Weight of an interval in the averages while calm: high (authors' code: 1/8).
    pub gain_calm: f64,
    /// And while the alarm is on: low, "to keep the value of long-term average stable". Not printed. A
    /// sixteenth of the calm one moves it by a tenth in a quarter of an hour at 64 s.
    pub gain_alarm: f64,
    /// When the alarm ends.
    pub reset: Reset,
    /// What happens while it stays. Not printed: 0.9 halves the rate in seven intervals.
    pub adjust: Adjust,
    /// The limit grows by this factor an interval once the alarm is over. Not printed. Twice is four
    /// intervals from a strangled site to full use, and no more than one step beyond what is right.
    pub release: f64,
    /// The bucket at the alarm, in seconds of the rate. Not printed: "a small value".
    pub bucket_s: f64,
}

impl PublishedSpec {
    /// With the authors' band and this interval.
    #[must_use]
    pub const fn new(interval: Nanos) -> Self {
        Self {
            interval,
            response_on: 0.9,
            response_off: 1.1,
            request_on: 1.1,
            gain_calm: 0.125,
            gain_alarm: 0.125 / 16.0,
            reset: Reset::Rise,
            adjust: Adjust::Reduce(0.9),
            release: 2.0,
            bucket_s: 0.1,
        }
    }
}

/// What was measured in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Aggregate response rate of the fastest connections, bits per second; none if none was active.
    pub arr: Option<f64>,
    /// New connections admitted per second (Rq).
    pub admitted: f64,
    /// New connections that came per second, refused ones and their repetitions included.
    pub offered: f64,
}

/// A limit on new connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedLimit {
    /// Tokens per second.
    pub rate: f64,
    /// Bucket, in tokens.
    pub burst: f64,
}

/// What the detector says after an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedSaid {
    /// Whether there is a flash crowd.
    pub alarm: bool,
    /// The limit from now on; none admits everybody.
    pub limit: Option<PublishedLimit>,
}

/// The detector and its control.
#[derive(Clone, Debug)]
pub struct Published {
    spec: PublishedSpec,
    /// Long-term averages, from the first interval on.
    arr: Option<f64>,
    admitted: Option<f64>,
    last_arr: Option<f64>,
    alarm: bool,
    limit: Option<PublishedLimit>,
    /// Of the scored search: the direction tried last.
    grows: bool,
}

impl Published {
    /// One that has seen nothing.
    #[must_use]
    pub const fn new(spec: PublishedSpec) -> Self {
        let (arr, admitted, last_arr, limit) = (None, None, None, None);
        Self { spec, arr, admitted, last_arr, alarm: false, limit, grows: false }
    }

    /// T.
    #[must_use]
    pub const fn interval(&self) -> Nanos {
        self.spec.interval
    }

    /// The long-term averages: ARR and Rq.
    #[must_use]
    pub const fn averages(&self) -> (Option<f64>, Option<f64>) {
        (self.arr, self.admitted)
    }

    /// One interval is over.
    pub fn tick(&mut self, seen: &Interval) -> PublishedSaid {
        let was = self.alarm;
        self.alarm = self.decide(seen);
        self.average(seen);
        match (was, self.alarm) {
            (false, true) => self.begin(seen),
            (true, true) => self.adjust(seen),
            (_, false) => self.release(seen),
        }
        self.last_arr = seen.arr.or(self.last_arr);
        PublishedSaid { alarm: self.alarm, limit: self.limit }
    }

    /// Figure 4. Without a connection to measure nothing changes.
    fn decide(&self, seen: &Interval) -> bool {
        let (Some(arr), Some(usual), Some(requests)) = (seen.arr, self.arr, self.admitted) else {
            return self.alarm;
        };
        if !self.alarm {
            let falls = arr < self.spec.response_on * usual;
            return falls && seen.admitted > self.spec.request_on * requests;
        }
        let reference = match self.spec.reset {
            Reset::Average => usual,
            Reset::Rise => self.last_arr.unwrap_or(usual),
        };
        arr <= self.spec.response_off * reference
    }

    fn average(&mut self, seen: &Interval) {
        let gain = if self.alarm { self.spec.gain_alarm } else { self.spec.gain_calm };
        let move_to = |average: Option<f64>, value: f64| {
            Some(average.map_or(value, |average| average + gain * (value - average)))
        };
        if let Some(arr) = seen.arr {
            self.arr = move_to(self.arr, arr);
        }
        self.admitted = move_to(self.admitted, seen.admitted);
    }

    /// 0 → 1.
    fn begin(&mut self, seen: &Interval) {
        let rate = match self.spec.adjust {
            Adjust::Reduce(_) => self.admitted.unwrap_or(seen.admitted),
            Adjust::Search => seen.admitted,
        };
        self.grows = false;
        self.limit = Some(self.limited(rate));
    }

    fn limited(&self, rate: f64) -> PublishedLimit {
        let rate = rate.max(RATE_MIN);
        PublishedLimit { rate, burst: (rate * self.spec.bucket_s).max(1.0) }
    }

    /// 1 → 1.
    fn adjust(&mut self, seen: &Interval) {
        let Some(limit) = self.limit else { return };
        let factor = match self.spec.adjust {
            Adjust::Reduce(factor) => factor,
            Adjust::Search => {
                let helped = seen.arr.unwrap_or(0.0) > self.last_arr.unwrap_or(0.0);
                self.grows = if helped { self.grows } else { !self.grows };
                if self.grows { 1.2 } else { 0.8 }
            }
        };
        self.limit = Some(self.limited(limit.rate * factor));
    }

    /// 1 → 0 and 0 → 0: a step towards full use. The authors' code never releases.
    fn release(&mut self, seen: &Interval) {
        let Some(limit) = self.limit else { return };
        if self.spec.adjust == Adjust::Search {
            return;
        }
        let rate = limit.rate * self.spec.release;
        let is_open = rate > RELEASED * seen.offered.max(RATE_MIN);
        self.limit = (!is_open).then(|| {
            let burst = limit.burst * self.spec.release;
            PublishedLimit { rate, burst }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(arr: f64, admitted: f64) -> Interval {
        Interval { arr: Some(arr), admitted, offered: admitted }
    }

    fn calm(spec: PublishedSpec) -> Published {
        let mut published = Published::new(spec);
        for _ in 0..15 {
            let said = published.tick(&seen(260_000.0, 22.0));
            assert_eq!(said, PublishedSaid { alarm: false, limit: None });
        }
        published
    }

    fn spec() -> PublishedSpec {
        PublishedSpec::new(Nanos::from_secs(64))
    }

    /// The crowd of the paper begins at 1000 s, in the 16th interval of 64 s: at its end (1024 s) little of
    /// it is seen, and at the end of the next, at 1088 s, it is found.
    #[test]
    fn the_papers_crowd_is_found_at_1088_s() {
        let mut published = calm(spec());
        let course = [(250_000.0, 30.0), (133_000.0, 110.0)];
        let found = course.iter().position(|(arr, rq)| published.tick(&seen(*arr, *rq)).alarm);
        assert_eq!(found.map(|n| (15 + n + 1) * 64), Some(1088));
    }

    /// Both sides of both bands; each half alone is no crowd.
    #[test]
    fn an_alarm_needs_a_fall_and_an_increase_beyond_the_band() {
        let rows = [
            (0.89, 1.11, true),
            (0.91, 1.11, false),
            (0.89, 1.09, false),
            (0.1, 1.0, false),
            (1.0, 9.0, false),
        ];
        for (arr, requests, alarm) in rows {
            let said = calm(spec()).tick(&seen(260_000.0 * arr, 22.0 * requests));
            assert_eq!(said.alarm, alarm, "{arr} of ARR, {requests} of Rq");
        }
    }

    /// Figure 6: 0→1 sets the long-term average of Rq and a small bucket, 1→1 reduces both, 1→0 and 0→0
    /// release them by steps.
    #[test]
    fn the_limit_follows_figure_6() {
        let mut published = calm(spec());
        let begun = published.tick(&seen(130_000.0, 110.0)).limit.expect("a limit");
        // The average has moved by the low gain only: it was decided that there is a crowd before.
        let expected = 22.0 + 0.125 / 16.0 * 88.0;
        assert!((begun.rate - expected).abs() < 1e-9, "{begun:?}");
        assert!(begun.burst < 3.0);
        let mut last = begun;
        for _ in 0..3 {
            let limit = published.tick(&seen(130_000.0, last.rate)).limit.expect("a limit");
            assert!((limit.rate / last.rate - 0.9).abs() < 1e-9 && limit.burst <= last.burst);
            last = limit;
        }
        let said = published.tick(&Interval { offered: 110.0, ..seen(144_000.0, last.rate) });
        assert!(!said.alarm, "ARR has risen by more than a tenth");
        let mut rates = vec![said.limit.expect("not at once").rate];
        while let Some(limit) =
            published.tick(&Interval { offered: 110.0, ..seen(250_000.0, 40.0) }).limit
        {
            rates.push(limit.rate);
            assert!(rates.len() < 10, "{rates:?}");
        }
        assert!(rates.windows(2).all(|pair| (pair[1] / pair[0] - 2.0).abs() < 1e-9), "{rates:?}");
    }

    /// Once the crowd has ended the limit is no limit within two intervals.
    #[test]
    fn full_use_is_back_two_intervals_after_the_crowd() {
        let mut published = calm(spec());
        assert!(published.tick(&seen(130_000.0, 110.0)).alarm);
        published.tick(&seen(130_000.0, 22.0));
        let said = [seen(260_000.0, 22.0), seen(260_000.0, 22.0)].map(|i| published.tick(&i));
        assert!(!said[0].alarm);
        let open = said[1].limit.is_none_or(|limit| limit.rate > 2.0 * 22.0);
        assert!(open, "{said:?}");
    }

    /// The averages stay put under the alarm, and an interval without any connection decides nothing.
    #[test]
    fn averages_are_stable_under_the_alarm_and_silence_decides_nothing() {
        let mut published = calm(spec());
        published.tick(&seen(130_000.0, 110.0));
        for _ in 0..3 {
            published.tick(&seen(130_000.0, 22.0));
        }
        let (arr, requests) = published.averages();
        assert!(arr.is_some_and(|arr| arr > 250_000.0), "{arr:?}");
        assert!(requests.is_some_and(|rq| rq < 24.0), "{requests:?}");
        let silence = Interval { arr: None, ..seen(0.0, 500.0) };
        assert!(published.tick(&silence).alarm);
        assert!(!calm(spec()).tick(&silence).alarm);
        assert!(!Published::new(spec()).tick(&seen(1.0, 1.0)).alarm, "the first interval");
    }

    /// The authors' code: from the rate admitted now, by 0.8 and 1.2, in the direction that helps; never
    /// released.
    #[test]
    fn the_scored_search_goes_where_it_helps() {
        let mut published =
            calm(PublishedSpec { adjust: Adjust::Search, reset: Reset::Average, ..spec() });
        let mut limit = published.tick(&seen(130_000.0, 110.0)).limit.expect("a limit");
        assert!((limit.rate - 110.0).abs() < 1e-9);
        // From 110/s on fewer help, until fewer than 56/s leave the link idle.
        let mut rates = Vec::new();
        for _ in 0..40 {
            let arr = 100_000.0 - (limit.rate - 56.0).abs() * 1_000.0;
            limit = published.tick(&seen(arr, limit.rate)).limit.expect("a limit");
            rates.push(limit.rate);
        }
        let late = &rates[20..];
        assert!(late.iter().all(|rate| (35.0..90.0).contains(rate)), "{late:?}");
        published.tick(&seen(400_000.0, 20.0));
        assert!(published.tick(&seen(400_000.0, 20.0)).limit.is_some());
    }

    /// What the paper's method hides: ARR is made of sizes, so larger responses are a recovery, and smaller
    /// ones with more requests a crowd, without any overload.
    #[test]
    fn a_changed_mix_of_sizes_moves_it() {
        assert!(calm(spec()).tick(&seen(200_000.0, 30.0)).alarm);
    }
}
