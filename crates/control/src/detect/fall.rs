// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completions that fall with the jobs in flight: they wait, and in no queue.
//!
//! At a gateway the limit of calm may be filled by a dependency that has become slow: each job waits for it, and for no other
//! job. That looks like an overload, until the limits have an effect. Then a queue becomes shorter and as many complete as before
//! (each takes N/μ). Of jobs that only wait, fewer in flight are as many fewer completions, and each takes as long as
//! before: a capacity that is measured so, and a target that is made of it, chase each other to nothing.
//!
//! So the first time that the limits bring down what is in flight is an experiment that costs little. Where each takes as long as
//! before, four times as many are let in: a server that merely became slow completes no more of them, and nothing is changed.
//! Of jobs that wait more complete. Then what a response takes is its time without a queue, and the target is made of that: it grows
//! with what completes, until all are let in or completions follow no more. Later that time may be too long (the
//! dependency is well again, and the server is at its end): then the same experiment is made on purpose, with an eighth of the time,
//! now and then. Where fewer complete than before, and responses take long with few in flight all the same, more are let in once more.
//!
//! Where the CPU is known, that tells the two apart: see harmless.rs.

use super::detector::Actuator;
use super::episode::Episode;
use super::history::Sums;
use super::scale::{EVENTS_MIN, LASTING_SECONDS, TIME_SECONDS_MAX};
use super::trial::TRIAL_SHARE;
use super::{Detector, Tick};
use tidegate_units::Nanos;

/// What is in flight must have come down to this share, or nothing is known; on purpose, to that.
const FALLEN_JOBS: f64 = 0.5;
const SHORTER_JOBS: f64 = 0.6;
/// What takes less than this share of the objective does not fill the limit of calm.
const WAIT_OBJECTIVE: f64 = 0.5;
/// The times of responses are at least this share of the mean, or it is a few jobs that wait.
const WAIT_TIMES: f64 = 0.2;
/// So many times what completed is let in to confirm it: with the slack of a target, more than four times as many in flight.
const CONFIRM: f64 = 3.0;
/// So many times as many in flight, or it is not confirmed by them.
const CONFIRM_JOBS: f64 = 1.5;
/// An experiment on purpose has this share of the time that is believed, if that is short enough to be one; and so many times the time
/// to end.
const SHORTER: f64 = 0.125;
const SHORTER_MAX: f64 = 0.5;
const SHORTER_TIMES: f64 = 6.0;
/// Where a time was found already, one that is so many times as long is another one: a queue of the target takes half as many.
const LONGER: f64 = 3.0;
/// Seconds to the next experiment on purpose, of those in which more than this share is refused, or anything and responses are late.
/// They double with each in vain, up to so many.
const REFUSED_SHARE: f64 = 0.1;
const PAUSE: f64 = 10.0;
const PAUSE_MAX: f64 = 60.0;
/// Ticks in which the responses before an overload are looked for.
const LATELY_TICKS: usize = 64;
/// Seconds for which an overload is remembered by what it found, and the share of that which responses must take.
const KEPT_SECONDS: f64 = 300.0;
const KEPT_SHARE: f64 = 0.3;

/// What an experiment is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// The limits have their first effect.
    First,
    /// Whether more complete if more are in flight, each for so many seconds; what was believed before, and the capacity.
    Confirm { takes_s: f64, known_s: f64, mu: f64 },
    /// Whether as many complete with a shorter time than this one.
    Shorter { before_s: f64 },
}

/// An experiment: what was so before, and what has been seen since.
#[derive(Clone, Copy, Debug)]
struct Fall {
    purpose: Purpose,
    /// Jobs in flight before, completions per second, and the least capacity that is believed until it ends.
    jobs: f64,
    rate: f64,
    least: f64,
    /// Completions per second now, and the most of that.
    mu: f64,
    most: f64,
    age_s: f64,
    /// Completions since the jobs in flight are as they shall be; `None`: not yet.
    left: Option<f64>,
    now: Window,
}

/// What has been seen since all that were in flight before have left.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    seconds: f64,
    completed: f64,
    refused: f64,
    responses: f64,
    /// Their times: medians of ticks.
    medians_s: f64,
    /// Jobs in flight times seconds.
    job_seconds: f64,
}

/// What an experiment says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    /// Each takes as much less as there are fewer: there was a queue.
    Queue,
    /// Each takes so many seconds, however few are in flight; so many are.
    Delay { takes_s: f64, jobs: f64 },
    /// Nothing, and it will not.
    Nothing,
}

impl Window {
    fn see(&mut self, tick: &Sums, jobs: f64) {
        self.seconds += tick.seconds;
        self.completed += tick.completed;
        self.refused += tick.refused;
        self.responses += tick.responses;
        self.medians_s += tick.medians_s;
        self.job_seconds += jobs * tick.seconds;
    }

    /// Jobs in flight.
    fn held(&self) -> f64 {
        self.job_seconds / self.seconds
    }
}

impl Fall {
    /// One with so many jobs in flight and completions per second.
    fn new(purpose: Purpose, jobs: f64, mu: f64) -> Self {
        Self {
            purpose,
            jobs,
            rate: mu,
            least: mu,
            mu,
            most: mu,
            age_s: 0.0,
            left: None,
            now: Window::default(),
        }
    }

    /// Takes a tick with so many jobs in flight, after those that have left as many as `before`. Whether it counts.
    fn counts(&mut self, tick: &Sums, jobs: f64, before: f64) -> bool {
        // Those that were in flight before leave first.
        match &mut self.left {
            None => self.left = Some(0.0),
            Some(left) if *left < before.max(1.0) => *left += tick.completed,
            Some(left) => {
                *left = f64::INFINITY;
                self.now.see(tick, jobs);
                return true;
            }
        }
        false
    }

    /// Takes a tick with so many jobs in flight that are held down.
    fn held_down(&mut self, tick: &Sums, jobs: f64, objective_s: f64) -> Option<Said> {
        if !self.counts(tick, jobs, jobs) {
            return None;
        }
        let (now, held) = (self.now, self.now.held());
        // All that were in flight have been replaced by others: only then as many long times have been seen as short ones.
        if now.seconds < LASTING_SECONDS || now.completed < held.max(EVENTS_MIN) {
            return None;
        }
        self.now = Window::default();
        let first = matches!(self.purpose, Purpose::First);
        if held > self.jobs * if first { FALLEN_JOBS } else { SHORTER_JOBS } {
            return Some(Said::Nothing);
        }
        // What those that are in flight now take behind each other, and what each took before. The middle of the two, as a factor:
        let rate = if first { self.most } else { self.rate };
        let middle_s = (self.jobs * held).sqrt() / rate;
        // Jobs that came together leave together: then the mean of a window errs, and the times do not.
        let mean_s = now.job_seconds / now.completed;
        let times_s = if now.responses > 0.0 { now.medians_s / now.responses } else { 0.0 };
        let takes_s = mean_s.max(times_s.min(2.0 * mean_s));
        if takes_s <= middle_s.max(WAIT_OBJECTIVE * objective_s) {
            return Some(Said::Queue);
        }
        let waits = times_s > WAIT_TIMES * mean_s;
        Some(if waits { Said::Delay { takes_s, jobs: held } } else { Said::Nothing })
    }

    /// Takes a tick with more jobs in flight, each of which should take so long.
    fn let_in(&mut self, tick: &Sums, jobs: f64, takes_s: f64) -> Option<Said> {
        let before = self.jobs;
        if !self.counts(tick, jobs, before) {
            return None;
        }
        let (now, held) = (self.now, self.now.held());
        let expected = self.rate * now.seconds;
        if now.seconds < takes_s.max(LASTING_SECONDS) || expected < EVENTS_MIN {
            return None;
        }
        // All that come are let in, or as many more as it takes.
        let refused = now.refused > 0.0;
        if held < CONFIRM_JOBS * self.jobs && refused {
            return None;
        }
        let follows = now.completed >= expected * (held / self.jobs).sqrt();
        let said = Said::Delay { takes_s, jobs: held };
        Some(if follows || !refused { said } else { Said::Queue })
    }

    /// Seconds after which it is given up.
    fn age_max_s(&self) -> f64 {
        match self.purpose {
            Purpose::First | Purpose::Confirm { .. } => TIME_SECONDS_MAX,
            Purpose::Shorter { before_s } => {
                let events_s = 2.0 * EVENTS_MIN / self.rate;
                (SHORTER_TIMES * before_s + events_s).clamp(PAUSE, TIME_SECONDS_MAX)
            }
        }
    }
}

/// What an overload that is over has found: how long jobs wait, and what was believed before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delay {
    at: Nanos,
    takes_s: f64,
    known_s: f64,
}

impl Detector {
    /// Keeps what an overload found that ends now.
    pub(super) fn keep_delay(&mut self, episode: &Episode, at: Nanos) {
        self.delay = episode.found().map(|(takes_s, known_s)| Delay { at, takes_s, known_s });
    }

    /// Whether jobs were found to wait in the last minutes.
    pub(super) fn waited(&self, now: Nanos) -> bool {
        self.delay.is_some_and(|delay| now.since(delay.at).as_secs_f64() <= KEPT_SECONDS)
    }

    /// At the beginning of an overload of a gateway: responses that take as long as in the last one wait as long.
    pub(super) fn begin_fall(&mut self, episode: Episode, tick: &Tick) -> Episode {
        if episode.search.is_some() || self.actuator == Actuator::Rules {
            return episode;
        }
        let lately = self.history.responding(EVENTS_MIN, LATELY_TICKS);
        let waited = self.waited(tick.now);
        let delay = self.delay.take().filter(|delay| {
            let least_s = KEPT_SHARE * delay.takes_s * lately.responses;
            waited && lately.responses >= EVENTS_MIN && lately.medians_s >= least_s
        });
        if let Some(Delay { takes_s, known_s, .. }) = delay {
            return Episode { r0_s: takes_s, falls: Falls::known(known_s), ..episode };
        }
        let proxies = episode.in_proxies(self.objective_s);
        let jobs = (tick.waiting - episode.stays() - proxies).max(0.0);
        let on = Some(Fall::new(Purpose::First, jobs, episode.mu));
        Episode { falls: Falls { on, ..Falls::begin() }, ..episode }
    }
}

/// Whether jobs only wait, at a gateway.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Falls {
    /// Nothing is tried elsewhere.
    at_gateway: bool,
    on: Option<Fall>,
    /// The time of a response that was believed until a longer one was found.
    found: Option<f64>,
    /// Seconds to the next experiment, and between the last two.
    left_s: f64,
    pause_s: f64,
    /// What came and was refused in the last second.
    offered: f64,
    refused: f64,
    /// What is seen until an experiment with more begins, and whether responses took long in the window before: after a moment in
    /// which nothing completed they did in one.
    now: Window,
    was_long: bool,
}

impl Falls {
    /// At a gateway.
    pub(super) fn begin() -> Self {
        Self { at_gateway: true, left_s: PAUSE, ..Self::default() }
    }

    /// The same where a longer time is known than this one.
    pub(super) fn known(known_s: f64) -> Self {
        Self { found: Some(known_s), ..Self::begin() }
    }

    /// Goes on at a gateway: from an overload of the process before, from shadow, or after a search.
    pub(super) fn go_on(&mut self) {
        if !self.at_gateway {
            *self = Self::begin();
        }
    }

    /// Whether jobs were found to wait, and longer than was believed before; or whether it looks so.
    pub(super) fn wait(&self, takes_s: f64) -> bool {
        self.found.is_some_and(|known_s| takes_s > known_s) || self.confirms()
    }

    /// Whether more are let in, to see whether more complete.
    pub(super) fn confirms(&self) -> bool {
        self.on.is_some_and(|fall| matches!(fall.purpose, Purpose::Confirm { .. }))
    }

    /// Whether an experiment is on.
    pub(super) const fn are_on(&self) -> bool {
        self.on.is_some()
    }

    /// Takes what came in a tick. Whether anything was refused lately, and whether so much that it counts.
    fn see_refused(&mut self, tick: &Sums) -> (bool, bool) {
        let keep = libm::exp(-tick.seconds / LASTING_SECONDS);
        self.offered = keep * self.offered + tick.offered;
        self.refused = keep * self.refused + tick.refused;
        (self.refused > 0.5, self.refused > REFUSED_SHARE * self.offered)
    }

    /// The capacity after a tick with this rate, which counts by this weight. Jobs that only wait complete less because fewer are in
    /// flight: while that is not known, it is not less than before.
    pub(super) fn capacity(&mut self, mu: f64, rate: f64, weight: f64) -> f64 {
        let Some(fall) = &mut self.on else { return mu + weight * (rate - mu) };
        fall.mu += weight * (rate - fall.mu);
        fall.most = fall.most.max(fall.mu);
        fall.mu.max(fall.least)
    }

    /// What was seen was of another time.
    pub(super) fn again(&mut self) {
        (self.now, self.was_long) = (Window::default(), false);
        if let Some(fall) = &mut self.on {
            (fall.left, fall.now) = (None, Window::default());
        }
    }
}

impl Episode {
    /// How long jobs wait, and what was believed before.
    pub(super) fn found(&self) -> Option<(f64, f64)> {
        let (known_s, takes_s) = (self.falls.found?, self.believed_s());
        (takes_s > known_s).then_some((takes_s, known_s))
    }

    /// The time of a response without a queue, whatever was found since.
    pub(super) fn known_s(&self) -> f64 {
        self.falls.found.unwrap_or_else(|| self.believed_s())
    }

    /// The time of a response, but for an experiment.
    pub(super) fn believed_s(&self) -> f64 {
        match self.falls.on.map(|fall| fall.purpose) {
            Some(Purpose::Shorter { before_s }) => before_s,
            Some(Purpose::Confirm { known_s, .. }) => known_s,
            Some(Purpose::First) | None => self.r0_s,
        }
    }

    /// Takes a tick of an experiment, or begins one when it is time for it. Whether one is on.
    pub(super) fn fall_step(
        &mut self,
        tick: &Sums,
        waiting: f64,
        peak: f64,
        objective_s: f64,
    ) -> bool {
        if self.shadow || !self.falls.at_gateway {
            // Nobody executes the limits.
            self.r0_s = self.known_s();
            self.falls = Falls::default();
            return false;
        }
        let (refuses, much) = self.falls.see_refused(tick);
        let jobs = (waiting - self.stays() - self.in_proxies(objective_s)).max(0.0);
        let Some(mut fall) = self.falls.on.take() else {
            if much || refuses && waiting > objective_s * self.mu {
                self.falls.left_s -= tick.seconds;
            }
            let few = refuses && self.mu < TRIAL_SHARE * peak;
            let more = if few { self.try_more(tick, jobs, objective_s) } else { None };
            if !few {
                self.falls.now = Window::default();
            }
            self.falls.on = more.or_else(|| self.shorten(jobs, peak));
            return self.falls.on.is_some();
        };
        fall.age_s += tick.seconds;
        let most = self.ceiling(objective_s) + self.on_their_way(objective_s) + 1.0;
        let said = match fall.purpose {
            Purpose::Confirm { takes_s, .. } => fall.let_in(tick, jobs, takes_s),
            _ if waiting > most => None,
            _ => fall.held_down(tick, jobs, objective_s),
        };
        let old = fall.age_s > fall.age_max_s();
        let Some(said) = said.or_else(|| old.then_some(Said::Nothing)) else {
            self.falls.on = Some(fall);
            return true;
        };
        self.mu = fall.mu.max(1.0);
        let r0_s = self.r0_s;
        let on = self.end_fall(&fall, said);
        if self.r0_s != r0_s {
            self.trial.again();
        }
        on
    }

    /// An experiment has ended with this. Whether another one is on.
    fn end_fall(&mut self, fall: &Fall, said: Said) -> bool {
        let again_s = (2.0 * self.falls.pause_s).clamp(PAUSE, PAUSE_MAX);
        let mut pause_s = again_s;
        match (fall.purpose, said) {
            (Purpose::First, Said::Delay { takes_s, jobs }) => {
                self.falls.on = Some(self.confirm(jobs, takes_s, fall.most));
                return true;
            }
            (Purpose::First, _) => {}
            (Purpose::Confirm { known_s, mu, .. }, Said::Delay { .. }) => {
                self.falls.found.get_or_insert(known_s);
                self.mu = self.mu.max(mu);
                pause_s = 0.0;
            }
            (Purpose::Confirm { known_s, .. }, _) => self.r0_s = known_s,
            (Purpose::Shorter { .. }, Said::Queue) => pause_s = 0.0,
            (Purpose::Shorter { before_s }, Said::Delay { takes_s, .. }) => {
                self.r0_s = self.r0_s.max(takes_s).min(before_s);
                self.mu = self.mu.max(fall.rate);
            }
            (Purpose::Shorter { before_s }, Said::Nothing) => {
                self.r0_s = before_s;
                self.mu = self.mu.max(fall.rate);
            }
        }
        (self.falls.pause_s, self.falls.left_s) = (pause_s, pause_s.max(PAUSE));
        false
    }

    /// Lets in more, to see whether more complete, where each of these jobs takes so long.
    fn confirm(&mut self, jobs: f64, takes_s: f64, mu: f64) -> Fall {
        let purpose = Purpose::Confirm { takes_s, known_s: self.r0_s, mu };
        let (jobs, takes_s) = (jobs.max(1.0), takes_s.min(TIME_SECONDS_MAX));
        let rate = jobs / takes_s;
        let least = (CONFIRM * rate).max(1.0);
        self.r0_s = self.r0_s.max(takes_s);
        self.mu = self.mu.max(least);
        Fall { least, ..Fall::new(purpose, jobs, rate) }
    }

    /// Where fewer complete than before, and responses take longer than what was found, if anything was: an experiment with more.
    fn try_more(&mut self, tick: &Sums, jobs: f64, objective_s: f64) -> Option<Fall> {
        if self.falls.left_s > 0.0 || self.trial.is_on() {
            self.falls.now = Window::default();
            return None;
        }
        let now = &mut self.falls.now;
        now.see(tick, jobs);
        if now.seconds < LASTING_SECONDS || now.completed < now.held().max(EVENTS_MIN) {
            return None;
        }
        let (held, takes_s) = (now.held(), now.job_seconds / now.completed);
        self.falls.now = Window::default();
        let found_s = self.falls.found.map_or(0.0, |_| LONGER * self.r0_s);
        let long = takes_s > found_s.max(WAIT_OBJECTIVE * objective_s);
        let again = std::mem::replace(&mut self.falls.was_long, long) && long;
        again.then(|| self.confirm(held, takes_s, 0.0))
    }

    /// Where a long time was found, and the server is at its end all the same: an experiment with a shorter one.
    fn shorten(&mut self, jobs: f64, peak: f64) -> Option<Fall> {
        let known_s = self.falls.found?;
        let before_s = self.r0_s;
        let shorter_s = (SHORTER * before_s).max(known_s);
        // As many as ever complete, or it has been so for long.
        let full = self.mu >= TRIAL_SHARE * peak || self.falls.left_s <= -PAUSE_MAX;
        if self.falls.left_s > 0.0
            || self.trial.is_on()
            || !full
            || shorter_s > SHORTER_MAX * before_s
        {
            return None;
        }
        self.r0_s = shorter_s;
        Some(Fall::new(Purpose::Shorter { before_s }, jobs, self.mu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an experiment says where so many jobs in flight complete at this rate, each in so many seconds by its report.
    fn says(mut fall: Fall, jobs: f64, rate: f64, report_s: Option<f64>) -> Option<Said> {
        let completed = rate / 10.0;
        let (responses, each_s) = report_s.map_or((0.0, 0.0), |takes_s| (completed, takes_s));
        let tick = Sums {
            seconds: 0.1,
            offered: 100.0,
            refused: 50.0,
            completed,
            responses,
            medians_s: each_s * responses,
            ..Sums::default()
        };
        (0..300).find_map(|_| match fall.purpose {
            Purpose::Confirm { takes_s, .. } => fall.let_in(&tick, jobs, takes_s),
            _ => fall.held_down(&tick, jobs, 1.0),
        })
    }

    #[test]
    fn what_takes_less_was_a_queue_and_what_takes_as_long_is_a_delay() {
        // 400 in flight at 160/s: 2.5 s each.
        let first = Fall::new(Purpose::First, 400.0, 160.0);
        let delay = |said: Option<Said>| match said {
            Some(Said::Delay { takes_s, .. }) => takes_s,
            said => panic!("{said:?}"),
        };
        assert_eq!(says(first, 40.0, 160.0, Some(0.25)), Some(Said::Queue));
        let takes_s = delay(says(first, 40.0, 16.0, Some(2.5)));
        assert!((takes_s - 2.5).abs() < 0.3, "{takes_s}");
        // Slower by a half.
        assert_eq!(says(first, 40.0, 80.0, Some(0.5)), Some(Said::Queue));
        // Below half of the objective it is none of ours.
        let fast = Fall::new(Purpose::First, 400.0, 1_600.0);
        assert_eq!(says(fast, 40.0, 100.0, Some(0.4)), Some(Said::Queue));
    }

    #[test]
    fn too_many_in_flight_and_few_that_wait_say_nothing() {
        let first = Fall::new(Purpose::First, 400.0, 160.0);
        assert_eq!(says(first, 300.0, 120.0, Some(2.5)), Some(Said::Nothing));
        assert_eq!(says(first, 40.0, 16.0, Some(0.1)), Some(Said::Nothing), "reports are late");
        assert_eq!(says(first, 40.0, 16.0, None), Some(Said::Nothing), "no report");
        assert_eq!(says(first, 40.0, 0.0, None), None, "it hangs");
    }

    #[test]
    fn more_must_complete_with_more_in_flight() {
        let confirm = Purpose::Confirm { takes_s: 2.5, known_s: 0.002, mu: 160.0 };
        let fall = Fall::new(confirm, 40.0, 16.0);
        let follows = says(fall, 180.0, 72.0, Some(2.5));
        assert!(matches!(follows, Some(Said::Delay { takes_s: 2.5, .. })), "{follows:?}");
        assert_eq!(says(fall, 180.0, 16.0, Some(11.0)), Some(Said::Queue));
        assert_eq!(says(fall, 45.0, 18.0, Some(2.5)), None, "hardly more are in flight");
    }

    /// It ends in any case, and on purpose sooner.
    #[test]
    fn an_experiment_has_an_end() {
        let shorter = |before_s| Fall::new(Purpose::Shorter { before_s }, 400.0, 160.0);
        assert_eq!(Fall::new(Purpose::First, 400.0, 160.0).age_max_s(), 60.0);
        assert_eq!((shorter(0.5).age_max_s(), shorter(2.5).age_max_s()), (10.0, 15.2));
        assert_eq!(shorter(30.0).age_max_s(), 60.0);
    }
}
