// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A try, while shedding, whether more jobs in flight give more completions.
//!
//! An overload that is none shows so: a dependency that became slower needs more in flight for as many
//! completions, and a target that was right before holds it down. Nothing else can tell, because what
//! completes is what was let in. So where less completes than was ever seen, without a busy CPU, the
//! target is doubled for a while. Completions that follow raise it for good; where they do not, the next
//! try comes later.
//!
//! Both ends of a trial are decided as soon as they are clear: three deviations of what chance does to
//! the two counts, where the exchanges of a connection may all come together. What stays in between is
//! decided by its length, and then confirmed: the target goes back, and completions have to fall. A
//! connection's requests come in cycles, so nothing is counted for less than one. In shadow nobody executes a
//! target, and nothing is tried.

use super::episode::Episode;
use super::history::Sums;
use super::scale::{
    EVENTS_MIN, LASTING_SECONDS, LONG_SECONDS, MEAN_EVENTS, RATE_EVENTS, TIME_SECONDS_MAX,
};
use tidegate_model::signals::Family;

/// Completions below this share of the peak ask for a trial.
pub(super) const TRIAL_SHARE: f64 = 0.8;
/// A trial raises the target by this share.
const TRIAL_RAISE: f64 = 1.0;
/// What is in flight may change by this share of what completes, or it drains or grows: that tells
/// nothing about one queue or the other.
const TRIAL_STEADY: f64 = 0.25;
/// Completions must follow by this share,
const TRIAL_FOLLOW: f64 = 0.15;
/// and at the end of a trial by this many deviations.
const TRIAL_SURE: f64 = 2.4;
/// Completions that rise by less than this share do not follow.
const TRIAL_FAIL: f64 = 0.5 * TRIAL_RAISE;
/// Deviations that make it clear before its end.
const TRIAL_CLEAR: f64 = 3.0;
/// Seconds to the next trial after a failed one; doubles up to [`TIME_SECONDS_MAX`].
const TRIAL_PAUSE: f64 = 5.0;

/// What happened in some time.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    seconds: f64,
    completed: f64,
    /// Of the jobs in flight.
    growth: f64,
}

impl Window {
    fn rate(self) -> f64 {
        self.completed / self.seconds
    }

    fn is_steady(self) -> bool {
        self.growth.abs() <= TRIAL_STEADY * self.completed
    }
}

/// A trial that is on.
#[derive(Clone, Copy, Debug)]
struct On {
    /// Jobs that it adds.
    jobs: f64,
    /// What completed before it.
    low: Window,
    /// What completed with them: they are taken away again, to confirm it.
    high: Option<Window>,
}

/// The state of trials.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trial {
    on: Option<On>,
    /// Seconds until the present state has had its effect: two response times.
    settle_s: f64,
    /// The present state.
    now: Window,
    pause_s: f64,
}

impl Trial {
    /// Jobs that it adds.
    pub(super) fn jobs(&self) -> f64 {
        self.on.filter(|on| on.high.is_none()).map_or(0.0, |on| on.jobs)
    }

    /// Whether one is on.
    pub(super) const fn is_on(&self) -> bool {
        self.on.is_some()
    }

    /// Seconds and completions in the present state.
    pub(super) const fn seen(&self) -> (f64, f64) {
        (self.now.seconds, self.now.completed)
    }

    /// Counts anew.
    pub(super) fn restart(&mut self) {
        self.now = Window::default();
    }

    /// Is none, and counts anew.
    pub(super) fn again(&mut self) {
        self.on = None;
        self.restart();
    }

    /// Begins, or goes back, where responses take so many seconds.
    fn begin(&mut self, on: On, response_s: f64) {
        self.on = Some(on);
        self.settle_s = (2.0 * response_s).min(LONG_SECONDS);
    }

    /// Takes a tick.
    pub(super) fn see(&mut self, sums: &Sums) {
        if self.settle_s > 0.0 {
            self.settle_s -= sums.seconds;
        } else {
            self.now.seconds += sums.seconds;
            self.now.completed += sums.completed;
            self.now.growth += sums.growth;
        }
    }
}

/// Whether more completes with more in flight, and whether that is beyond doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Follows {
    yes: bool,
    clear: bool,
}

/// `None`: not known yet. `variance` is that of the counts over that of a Poisson process.
fn follows(low: Window, high: Window, (variance, over): (f64, bool)) -> Option<Follows> {
    let same = low.rate() * high.seconds;
    let share = high.seconds / low.seconds;
    let deviation = (variance * (high.completed + same * share)).sqrt();
    let enough = (1.0 + TRIAL_FOLLOW) * same;
    if high.completed - enough >= TRIAL_CLEAR * deviation {
        return Some(Follows { yes: true, clear: true });
    }
    if (1.0 + TRIAL_FAIL) * same - high.completed >= TRIAL_CLEAR * deviation {
        return Some(Follows { yes: false, clear: true });
    }
    let sure = high.completed - same >= TRIAL_SURE * deviation;
    over.then_some(Follows { yes: sure && high.completed >= enough, clear: false })
}

impl Episode {
    /// Begins, evaluates and ends trials.
    pub(super) fn trial_step(&mut self, waiting: f64, peak: f64, objective_s: f64) {
        let least = self.cycle_s.max(LASTING_SECONDS);
        let within =
            |jobs: f64| (jobs * self.variability / self.mu).clamp(least, LONG_SECONDS.max(least));
        let (target, now) = (self.target(objective_s), self.trial.now);
        // Beyond the ceiling it is not the ceiling that holds anything down. One more is let in by the
        // least rate.
        let most = self.ceiling(objective_s) + self.on_their_way(objective_s) + 1.0;
        let telling = now.is_steady() && waiting <= most;
        let variance = self.variability * self.each;
        match self.trial.on {
            None if now.seconds < self.trial.pause_s.max(within(RATE_EVENTS * self.each)) => {
                return;
            }
            Some(_) if now.seconds < least => return,
            None if !telling || now.completed < EVENTS_MIN || self.shadow => {}
            None => {
                let used_up = self.families.contains(&Family::Resource);
                if self.mu < TRIAL_SHARE * peak.max(self.best) && self.unused_s <= 0.0 && !used_up {
                    let held = target.max(waiting - self.in_proxies(objective_s));
                    let jobs = held * (1.0 + TRIAL_RAISE) - target;
                    self.trial.begin(On { jobs, low: now, high: None }, held / self.mu);
                }
            }
            Some(on) => {
                let over = now.seconds >= within(MEAN_EVENTS * self.each);
                let (low, high) = on.high.map_or((on.low, now), |high| (now, high));
                let Some(follows) = follows(low, high, (variance, over)) else { return };
                self.trial.on = None;
                if !telling || !follows.yes {
                    self.trial.pause_s =
                        (self.trial.pause_s * 2.0).clamp(TRIAL_PAUSE, TIME_SECONDS_MAX);
                } else if on.high.is_none() && !follows.clear {
                    self.trial.begin(On { high: Some(now), ..on }, waiting / self.mu);
                } else {
                    self.r0_s = (self.r0_s + on.jobs / self.mu).min(TIME_SECONDS_MAX);
                    self.trial.pause_s = 0.0;
                }
            }
        }
        self.trial.restart();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(seconds: f64, completed: f64) -> Window {
        Window { seconds, completed, growth: 0.0 }
    }

    /// After 64 completions in a second; what takes 8 s is over.
    fn follows(completed: f64, seconds: f64, variance: f64) -> Option<(bool, bool)> {
        let high = window(seconds, completed);
        let said = super::follows(window(1.0, 64.0), high, (variance, seconds >= 8.0));
        said.map(|said| (said.yes, said.clear))
    }

    #[test]
    fn what_is_clear_is_decided_at_once_and_the_rest_at_the_end() {
        let even = 8.0 * 64.0;
        assert_eq!(follows(128.0, 1.0, 1.0), Some((true, true)), "twice as much");
        assert_eq!(follows(128.0, 2.0, 1.0), Some((false, true)), "as much as before");
        assert_eq!(follows(90.0, 1.0, 1.0), None, "1.4 times as much in a second");
        assert_eq!(follows(1.4 * even, 8.0, 1.0), Some((true, false)), "to the end");
        assert_eq!(follows(1.2 * even, 8.0, 1.0), Some((false, false)), "may be chance");
        assert_eq!(follows(0.0, 8.0, 1.0), Some((false, true)), "nothing any more");
    }

    /// Twenty exchanges of one connection may end together: then twice as much says nothing.
    #[test]
    fn what_comes_in_clumps_is_clear_later() {
        assert_eq!(follows(128.0, 1.0, 20.0), None);
        assert_eq!(follows(128.0, 2.0, 20.0), None);
    }

    /// How many times its first ceiling a limit is after so many seconds, where so many complete per
    /// second with so many in flight.
    fn raised(seconds: usize, completes: fn(f64) -> f64, shadow: bool) -> f64 {
        let controller = super::super::harmless::tests::calm();
        let mut episode = controller.detector.episode_at(50.0, Some(0.05), 30.0);
        episode.families = vec![Family::Time];
        episode.shadow = shadow;
        let first = episode.ceiling(1.0);
        let mut before = first;
        for _ in 0..10 * seconds {
            let waiting = episode.ceiling(1.0);
            let completed = completes(waiting) / 10.0;
            let growth = waiting - std::mem::replace(&mut before, waiting);
            episode.mu = (10.0 * completed).max(1.0);
            episode.trial.see(&Sums { seconds: 0.1, completed, growth, ..Sums::default() });
            episode.trial_step(waiting, 500.0, 1.0);
        }
        (episode.ceiling(1.0) - episode.trial.jobs()) / first
    }

    #[test]
    fn a_dependency_that_is_slow_gets_more_and_a_server_at_its_end_does_not() {
        assert!(raised(40, |waiting| waiting / 0.5, false) > 4.0, "each takes half a second");
        assert!(raised(300, |_| 50.0, false) <= 1.5, "50/s whatever is in flight");
        assert!(raised(40, |waiting| waiting / 0.5, true) <= 1.5, "in shadow nothing is tried");
    }

    /// It hangs for five minutes: when it is back, the limit is what it was.
    #[test]
    fn a_server_that_completes_nothing_gets_no_more() {
        assert!(raised(300, |_| 0.0, false) <= 1.0);
        assert!(raised(300, |_| 0.2, false) <= 1.0, "nor one that completes one in five seconds");
    }

    #[test]
    fn what_drains_tells_nothing() {
        assert!(!Window { growth: -17.0, ..window(1.0, 64.0) }.is_steady());
        assert!(Window { growth: 15.0, ..window(1.0, 64.0) }.is_steady());
    }
}
