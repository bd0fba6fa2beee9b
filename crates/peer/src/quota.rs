// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one peer may send: messages and bytes, each with a bucket.

use tidegate_units::Nanos;

/// Messages per second for each service that may be reported and for each limit that may be told: twice what is
/// sent at the shortest interval between two reports.
const PER_SUBJECT: f64 = 20.0;
/// More of them give no larger budget.
pub(crate) const SUBJECTS_MAX: usize = 256;
/// Messages per second besides.
const BESIDES: f64 = 10.0;
/// Seconds of that which may come at once.
const BURST_SECONDS: f64 = 3.0;
/// Bytes per message, on average: a report has about 60, and as many again.
const BYTES_PER_MESSAGE: f64 = 160.0;
/// So many messages above the quota end the session. They are forgotten as fast as the quota allows messages.
pub(crate) const STRIKES_MAX: u32 = 1_000;

/// The budget of one session.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    rate: f64,
    messages: f64,
    bytes: f64,
    at: Nanos,
    strikes: f64,
}

/// What the budget says to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// Within.
    Within,
    /// Above: refuse it.
    Above,
    /// Far above, and for long: end the session.
    Flood,
}

impl Quota {
    /// The full budget of a peer that may speak of so many services and limits.
    pub(crate) fn new(subjects: usize, now: Nanos) -> Self {
        let rate = rate(subjects);
        let messages = rate * BURST_SECONDS;
        // One message of full length must fit, however small the budget.
        let bytes = messages * BYTES_PER_MESSAGE + crate::frame::BODY_MAX as f64;
        Self { rate, messages, bytes, at: now, strikes: 0.0 }
    }

    /// The configuration allows so many from now on.
    pub(crate) fn follow(&mut self, subjects: usize) {
        self.rate = rate(subjects);
    }

    /// Charges one message of `bytes`.
    pub(crate) fn charge(&mut self, now: Nanos, bytes: usize) -> Allowance {
        // Time going back is no time; the buckets bound what a long pause brings.
        let earned = now.since(self.at).as_secs_f64() * self.rate;
        self.at = self.at.max(now);
        self.strikes = (self.strikes - earned).max(0.0);
        let burst = self.rate * BURST_SECONDS;
        let most = burst * BYTES_PER_MESSAGE + crate::frame::BODY_MAX as f64;
        self.messages = (self.messages + earned).min(burst);
        self.bytes = (self.bytes + earned * BYTES_PER_MESSAGE).min(most);
        if self.messages >= 1.0 && self.bytes >= bytes as f64 {
            self.messages -= 1.0;
            self.bytes -= bytes as f64;
            return Allowance::Within;
        }
        self.strikes += 1.0;
        if self.strikes > f64::from(STRIKES_MAX) { Allowance::Flood } else { Allowance::Above }
    }
}

fn rate(subjects: usize) -> f64 {
    PER_SUBJECT * subjects.min(SUBJECTS_MAX) as f64 + BESIDES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_reporter_is_never_refused_and_a_flood_ends() {
        let mut quota = Quota::new(1, Nanos::ZERO);
        for i in 0..600 {
            let now = Nanos::from_millis(100 * i);
            assert_eq!(quota.charge(now, 80), Allowance::Within, "report {i}");
        }
        let now = Nanos::from_secs(60);
        let verdicts: Vec<_> = (0..2_000).map(|_| quota.charge(now, 80)).collect();
        let within = verdicts.iter().filter(|v| **v == Allowance::Within).count();
        assert_eq!(within, 90, "three seconds of 30 messages");
        assert_eq!(verdicts[90 + STRIKES_MAX as usize - 1], Allowance::Above);
        assert_eq!(verdicts[90 + STRIKES_MAX as usize], Allowance::Flood);
    }

    /// Each of so many limits falls all the time, and is told at the shortest interval.
    #[test]
    fn limits_that_all_fall_fit_and_the_budget_is_bounded() {
        for subjects in [1, 6, SUBJECTS_MAX] {
            let mut quota = Quota::new(subjects, Nanos::ZERO);
            let round = |at: u64| Nanos::from_millis(60 * at);
            let charge = |at| (0..subjects).map(move |_| round(at));
            let above = (0..500).flat_map(charge);
            let above = above.filter(|now| quota.charge(*now, 80) != Allowance::Within).count();
            assert_eq!(above, 0, "{subjects}");
        }
        let mut quota = Quota::new(usize::MAX, Nanos::ZERO);
        let within = (0..100_000).filter(|_| quota.charge(Nanos::ZERO, 80) == Allowance::Within);
        assert_eq!(within.count(), (20 * SUBJECTS_MAX + 10) * 3, "three seconds of it");
        // Another configuration holds at once.
        let mut quota = Quota::new(1, Nanos::ZERO);
        quota.follow(6);
        quota.charge(Nanos::from_secs(10), 80);
        let within =
            (0..1_000).filter(|_| quota.charge(Nanos::from_secs(10), 80) == Allowance::Within);
        assert_eq!(within.count(), 130 * 3 - 1);
    }

    #[test]
    fn messages_within_the_quota_do_not_make_up_for_a_flood() {
        // 30 a second are within.
        for (per_second, ends) in [(30, false), (59, false), (100, true)] {
            let mut quota = Quota::new(1, Nanos::ZERO);
            let ended = (0..600 * per_second).any(|i| {
                let now = Nanos(i * Nanos::SECOND.0 / per_second);
                quota.charge(now, 80) == Allowance::Flood
            });
            assert_eq!(ended, ends, "{per_second} messages a second");
        }
    }

    #[test]
    fn bytes_count_too_and_time_going_back_earns_nothing() {
        let mut quota = Quota::new(1, Nanos::from_secs(10));
        let full =
            (0..10).filter(|_| quota.charge(Nanos::from_secs(10), 4096) == Allowance::Within);
        assert_eq!(full.count(), 4, "of 4096 bytes each");
        assert_eq!(quota.charge(Nanos::ZERO, 4096), Allowance::Above);
        assert_eq!(quota.charge(Nanos::from_secs(11), 4096), Allowance::Within);
    }
}
