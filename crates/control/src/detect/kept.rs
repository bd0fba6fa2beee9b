// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What outlives the process: the baseline, the peak, what a connection brings, its delay, who only holds
//! a connection, and, while the limits that another process left are still in force, the capacity they
//! were made of.
//!
//! Numbers that are none, or beyond what can be, are refused as a whole: a fresh start is slower to
//! see a flash crowd, and never wrong.

use super::detector::{Detector, PEAK_HALF_LIFE};
use super::episode::Episode;
use super::fall::Falls;
use super::scale::{SPREAD_MAX, TIME_SECONDS_MAX};
use crate::RATE_CEILING;
use crate::kept::number;
use serde_json::{Value, json};
use tidegate_units::Nanos;

/// Raised whenever a number changes its meaning.
const VERSION: u64 = 2;
/// An overload is taken over for as long as the lease holds its limits.
const OVERLOAD_AGE_MAX: Nanos = Nanos::from_secs(10);
/// Most jobs in flight that are believed.
const JOBS_MAX: f64 = 1e9;

impl Detector {
    /// What the next process needs; `None`: nothing was learned.
    pub(crate) fn kept(&self) -> Option<Value> {
        let r0_s = self.baseline.r0_s?;
        let overload = self.episode.as_ref().filter(|episode| episode.search.is_none());
        let overload = overload.map(|it| {
            let (r0_s, known_s) = it.found().unzip();
            json!({"mu": it.mu, "r0_s": r0_s.unwrap_or_else(|| it.believed_s()), "known_s": known_s})
        });
        let (each, answered) = self.exchanges.kept();
        Some(json!({
            "version": VERSION,
            "r0_s": r0_s,
            "spread": self.baseline.spread,
            "peak": self.peak,
            "usual": self.usual,
            "each": each,
            "answered": answered,
            "delay_s": self.coming.kept(&self.history),
            "held": self.baseline.waiting,
            "explained": self.baseline.explained,
            "harmless": self.harmless.jobs,
            "overload": overload,
        }))
    }

    /// Goes on from there; `None`: it is of no use, and nothing of it was taken.
    pub(crate) fn take(&mut self, value: &Value, age: Nanos) -> Option<()> {
        if value.get("version")?.as_u64()? != VERSION {
            return None;
        }
        let r0_s = number(value, "r0_s", (1e-9, TIME_SECONDS_MAX))?;
        let spread = number(value, "spread", (0.0, SPREAD_MAX))?;
        let peak = number(value, "peak", (0.0, RATE_CEILING))?;
        let usual = number(value, "usual", (0.0, JOBS_MAX))?;
        let each = number(value, "each", (1.0, JOBS_MAX))?;
        let answered = number(value, "answered", (0.0, JOBS_MAX))?;
        let delay_s = number(value, "delay_s", (0.0, TIME_SECONDS_MAX))?;
        let held = number(value, "held", (0.0, JOBS_MAX))?;
        let explained = number(value, "explained", (0.0, JOBS_MAX))?;
        let harmless = number(value, "harmless", (0.0, JOBS_MAX))?;
        let overload = match value.get("overload") {
            None | Some(Value::Null) => None,
            Some(overload) => {
                let seconds = |key| number(overload, key, (1e-9, TIME_SECONDS_MAX));
                let mu = number(overload, "mu", (1.0, RATE_CEILING))?;
                let falls = match overload.get("known_s") {
                    None | Some(Value::Null) => Falls::default(),
                    Some(_) => Falls::known(seconds("known_s")?),
                };
                Some((mu, seconds("r0_s")?, falls))
            }
        };
        self.baseline.r0_s = Some(r0_s);
        self.baseline.spread = spread;
        self.peak = peak * libm::exp2(-age.as_secs_f64() / PEAK_HALF_LIFE);
        self.usual = usual;
        self.exchanges.take(each, answered);
        self.coming.take(delay_s);
        (self.baseline.waiting, self.baseline.explained) = (held, explained);
        self.harmless.jobs = harmless;
        if let Some((mu, r0_s, falls)) = overload.filter(|_| age <= OVERLOAD_AGE_MAX) {
            self.episode = Some(Episode { falls, ..self.episode_at(mu, Some(r0_s), 0.0) });
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BucketSpec, Controller, DefaultController, DefaultSpec, Dual, FixedBucket, Interaction,
        Mode,
    };
    use tidegate_model::signals::{ConnectionCounts, Counts, Reading, Signals, Times};
    use tidegate_units::Rate;

    /// How long jobs wait was found in an overload: the next process may look for less, too.
    #[test]
    fn what_jobs_wait_for_is_kept_with_what_was_believed_before() {
        let mut detector = Detector::new(Nanos::SECOND);
        detector.baseline.r0_s = Some(0.002);
        let episode = detector.episode_at(100.0, Some(2.5), 0.0);
        detector.episode = Some(Episode { falls: Falls::known(0.002), ..episode });
        let kept = detector.kept().unwrap();
        let mut next = Detector::new(Nanos::SECOND);
        next.take(&kept, Nanos::SECOND).unwrap();
        assert_eq!(next.episode.unwrap().found(), Some((2.5, 0.002)));
        detector.episode.as_mut().unwrap().falls = Falls::default();
        let mut next = Detector::new(Nanos::SECOND);
        next.take(&detector.kept().unwrap(), Nanos::SECOND).unwrap();
        assert_eq!(next.episode.unwrap().found(), None);
        let mut wrong = kept;
        wrong["overload"]["known_s"] = json!(-1.0);
        assert_eq!(Detector::new(Nanos::SECOND).take(&wrong, Nanos::SECOND), None);
    }

    fn tick(now_ms: u64, offered: u64, completed: u64, waiting: u64) -> Signals {
        let mut s = Signals {
            now: Nanos::from_millis(now_ms),
            period: Nanos::from_millis(100),
            ..Signals::default()
        };
        let connections = ConnectionCounts {
            replied: offered,
            proved: offered,
            asked: offered,
            answered: completed,
            ended: completed,
            ended_exchanges: completed,
            ..ConnectionCounts::default()
        };
        s.balance.counts = Some(Reading::fresh(Counts {
            offered,
            admitted: offered,
            completed,
            connections: Some(connections),
            ..Counts::default()
        }));
        s.time.waiting = Some(Reading::fresh(waiting));
        let took = Nanos::from_millis(20);
        let sum = Nanos(took.0 * completed);
        s.time.first_byte =
            Some(Reading::fresh(Times { count: completed, sum, p50: took, p99: took }));
        s
    }

    /// Calm, then twice the capacity until it sheds.
    fn shedding() -> DefaultController {
        let mut controller = DefaultController::new(DefaultSpec::default());
        for n in 0..400 {
            controller.tick(&tick(n * 100, 20, 20, 1), Mode::Enforce);
        }
        let mut waiting = 1;
        for n in 400..440 {
            waiting += 26;
            controller.tick(&tick(n * 100, 52, 26, waiting), Mode::Enforce);
        }
        assert!(controller.detector.episode.is_some());
        controller
    }

    #[test]
    fn an_overload_goes_on_in_the_next_process_while_its_limits_hold() {
        let before = shedding();
        let kept = before.save().unwrap();
        let mu = before.detector.episode.as_ref().unwrap().mu;
        for (age_s, goes_on) in [(1, true), (10, true), (11, false)] {
            let mut after = DefaultController::new(DefaultSpec::default());
            assert!(after.restore(kept.clone(), Nanos::from_secs(age_s)));
            assert_eq!(after.detector.episode.is_some(), goes_on, "{age_s} s");
            assert_eq!(after.detector.baseline.r0_s, before.detector.baseline.r0_s);
            let limits = after.tick(&tick(50_000, 52, 26, 40), Mode::Enforce);
            assert_eq!(limits.rate.is_some(), goes_on, "{age_s} s");
            if let Some(episode) = &after.detector.episode {
                assert!((episode.mu / mu - 1.0).abs() < 0.2, "{} after {mu}", episode.mu);
            }
        }
    }

    /// Both detectors of a service with request rules go on, each by itself.
    #[test]
    fn beside_request_rules_both_detectors_are_kept() {
        let dual = || {
            let bucket = FixedBucket::new(Rate::per_second(9.0), BucketSpec::default());
            let detector = Detector::of_rules(DefaultSpec::default().objective);
            let syn = Box::new(DefaultController::new(DefaultSpec::default()));
            Dual::new(vec![Box::new(bucket)], detector, syn, Interaction::Released)
        };
        let mut before = dual();
        assert!(before.save().is_none());
        for n in 0..400 {
            before.tick(&tick(n * 100, 20, 20, 1), Mode::Enforce);
        }
        let kept = before.save().unwrap();
        assert!(kept["syn"]["r0_s"].is_f64() && kept["rules"]["r0_s"].is_f64(), "{kept}");
        let mut after = dual();
        assert!(after.restore(kept.clone(), Nanos::ZERO));
        assert_eq!(after.save().unwrap(), kept);
        for part in ["syn", "rules"] {
            let mut one = kept.clone();
            one[part] = json!({"version": 0});
            let mut after = dual();
            assert!(after.restore(one, Nanos::ZERO));
            assert!(after.save().unwrap()[part].is_null(), "{part}");
        }
        assert!(!dual().restore(json!({"syn": null, "rules": 7}), Nanos::ZERO));
    }

    #[test]
    fn what_cannot_be_is_refused_and_nothing_of_it_is_taken() {
        let kept = shedding().save().unwrap();
        let bad = |name: &str, value: Value| {
            let mut bad = kept.clone();
            bad[name] = value;
            let mut fresh = DefaultController::new(DefaultSpec::default());
            assert!(!fresh.restore(bad, Nanos::ZERO), "{name}");
            assert!(
                fresh.detector.baseline.r0_s.is_none() && fresh.detector.episode.is_none(),
                "{name}"
            );
        };
        bad("version", json!(1));
        let names = ["r0_s", "spread", "peak", "usual", "each", "answered"];
        for name in names.into_iter().chain(["delay_s", "held", "explained", "harmless"]) {
            for value in [json!(-1.0), json!(1e300), json!("1"), Value::Null] {
                bad(name, value);
            }
        }
        bad("overload", json!({"mu": 0.0, "r0_s": 0.1}));
        bad("overload", json!({"mu": 10.0}));
        for value in [json!([]), json!(3), Value::Null] {
            assert!(!DefaultController::new(DefaultSpec::default()).restore(value, Nanos::ZERO));
        }
    }

    #[test]
    fn who_has_learned_nothing_keeps_nothing() {
        assert!(DefaultController::new(DefaultSpec::default()).save().is_none());
    }
}
