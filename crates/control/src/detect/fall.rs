// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completions that fall with the jobs in flight: they wait, and in no queue.
//!
//! At a gateway the limit of calm may be filled by a dependency that has become slow: each job waits for it, and for no other
//! job. That looks like an overload, until the limits have an effect. Then a queue becomes shorter and as many complete as before
//! (each takes N/μ). Of jobs that only wait, fewer in flight are as many fewer completions, and each takes as long as
//! before: a capacity that is measured so, and a target that is made of it, chase each other to nothing.
//!
//! So the first time that the limits bring down what is in flight is an experiment that costs nothing. Where completions fall with
//! it, what a response takes now is its time without a queue, and the target is made of that: it grows with what completes,
//! until all are let in or completions follow no more. Later that time may be too long (the dependency is well again, and the
//! server is at its end): then the same experiment is made on purpose, with an eighth of the time, now and then.
//!
//! Where the CPU is known, that tells the two apart: see harmless.rs.

use super::episode::Episode;
use super::history::Sums;
use super::scale::{EVENTS_MIN, LASTING_SECONDS, LASTING_TICKS, TIME_SECONDS_MAX};
use super::trial::TRIAL_SHARE;
use super::{Detector, Tick};
use tidegate_units::Nanos;

/// What is in flight must have come down to this share.
const FALLEN_JOBS: f64 = 0.5;
/// What takes less than this share of the objective does not fill the limit of calm.
const WAIT_OBJECTIVE: f64 = 0.5;
/// Half of the responses take at least this share of the mean, or it is a few that wait.
const WAIT_MEDIAN: f64 = 0.2;
/// An experiment on purpose has this share of the time that is believed.
const SHORTER: f64 = 0.125;
/// Seconds to the next experiment on purpose, of those in which more than this share is refused; doubles with each in vain, up to
/// so many.
const REFUSED_SHARE: f64 = 0.1;
const PAUSE: f64 = 10.0;
const PAUSE_MAX: f64 = 60.0;
/// Seconds for which an overload is remembered by what it found.
const KEPT_SECONDS: f64 = 300.0;

/// An experiment: what was so before, and what has been seen since.
#[derive(Clone, Copy, Debug, Default)]
struct Fall {
    jobs: f64,
    /// Completions per second then; 0: the most that are seen.
    rate: f64,
    /// The time of a response that was believed before; `None`: it was not changed for the experiment.
    before_s: Option<f64>,
    age_s: f64,
    /// Completions since the jobs are held down; `None`: not yet.
    left: Option<f64>,
    now: Window,
}

/// What was so in some time.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    seconds: f64,
    completed: f64,
    responses: f64,
    /// Their times.
    medians_s: f64,
    /// Jobs in flight times seconds.
    job_seconds: f64,
}

/// What an experiment says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    /// Each takes as much less as there are fewer: there was a queue.
    Queue,
    /// Each takes so many seconds, however few are in flight.
    Delay(f64),
}

impl Fall {
    /// Takes a tick with so many jobs in flight that are held down, where a server completes `mu` per second.
    fn see(&mut self, tick: &Sums, jobs: f64, mu: f64, objective_s: f64) -> Option<Said> {
        // Those that were in flight before leave first.
        match &mut self.left {
            None => {
                self.left = Some(0.0);
                return None;
            }
            Some(left) if *left < jobs.max(1.0) => {
                *left += tick.completed;
                return None;
            }
            Some(left) => *left = f64::INFINITY,
        }
        self.now.seconds += tick.seconds;
        self.now.completed += tick.completed;
        self.now.responses += tick.responses;
        self.now.medians_s += tick.medians_s;
        self.now.job_seconds += jobs * tick.seconds;
        let now = self.now;
        let held = now.job_seconds / now.seconds;
        // All that were in flight have been replaced by others: only then as many long times have been seen as short ones.
        if now.seconds < LASTING_SECONDS || now.completed < held.max(EVENTS_MIN) {
            return None;
        }
        self.now = Window::default();
        if held > FALLEN_JOBS * self.jobs {
            return None;
        }
        // What those that are in flight now take behind each other, and what each took before. The middle of the two, as a factor:
        let rate = if self.rate > 0.0 { self.rate } else { mu };
        let middle_s = (self.jobs * held).sqrt() / rate;
        // Jobs that came together leave together: then the mean of a window errs, and the median does not.
        let (mean_s, median_s) = (now.job_seconds / now.completed, now.medians_s / now.responses);
        let takes_s = mean_s.max(median_s.min(2.0 * mean_s));
        if takes_s <= middle_s.max(WAIT_OBJECTIVE * objective_s) {
            return Some(Said::Queue);
        }
        (median_s > WAIT_MEDIAN * mean_s).then_some(Said::Delay(takes_s))
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
        let Some(known_s) = episode.falls.found else { return };
        let tried = episode.falls.on.as_ref().and_then(|fall| fall.before_s);
        let takes_s = tried.unwrap_or(episode.r0_s);
        self.delay = (takes_s > known_s).then_some(Delay { at, takes_s, known_s });
    }

    /// At the beginning of an overload of a gateway: responses that take as long as in the last one wait as long.
    pub(super) fn begin_fall(&mut self, episode: Episode, tick: &Tick) -> Episode {
        let lately = self.history.responding(EVENTS_MIN, LASTING_TICKS);
        let delay = self.delay.take().filter(|delay| {
            let old = tick.now.since(delay.at).as_secs_f64() > KEPT_SECONDS;
            !old && lately.medians_s >= SHORTER * delay.takes_s * lately.responses
        });
        match delay {
            Some(Delay { takes_s, known_s, .. }) => {
                let falls = Falls { found: Some(known_s), left_s: PAUSE, ..Falls::default() };
                Episode { r0_s: takes_s.max(episode.r0_s), falls, ..episode }
            }
            None => {
                let jobs = (tick.waiting - episode.stays()).max(0.0);
                let on = Some(Fall { jobs, ..Fall::default() });
                Episode { falls: Falls { on, ..Falls::default() }, ..episode }
            }
        }
    }
}

/// Whether jobs only wait, at a gateway.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Falls {
    on: Option<Fall>,
    /// The time of a response that was believed until a longer one was found.
    found: Option<f64>,
    /// Seconds to the next experiment, and between the last two.
    left_s: f64,
    pause_s: f64,
}

impl Falls {
    /// Whether jobs were found to wait, and longer than was believed before.
    pub(super) fn wait(&self, takes_s: f64) -> bool {
        self.found.is_some_and(|known_s| takes_s > known_s)
    }

    /// Whether an experiment is on.
    pub(super) const fn is_on(&self) -> bool {
        self.on.is_some()
    }
}

impl Episode {
    /// Takes a tick of an experiment, or begins one when it is time for it. Whether one is on.
    pub(super) fn fall_step(
        &mut self,
        tick: &Sums,
        waiting: f64,
        peak: f64,
        objective_s: f64,
    ) -> bool {
        if self.shadow {
            self.falls = Falls::default();
            return false;
        }
        let jobs = (waiting - self.stays() - self.in_proxies(objective_s)).max(0.0);
        let Some(mut fall) = self.falls.on.take() else {
            if tick.refused > REFUSED_SHARE * tick.offered {
                self.falls.left_s -= tick.seconds;
            }
            self.falls.on = self.shorten(jobs, peak);
            return self.falls.on.is_some();
        };
        let most = self.ceiling(objective_s) + self.on_their_way(objective_s) + 1.0;
        let said = if waiting > most { None } else { fall.see(tick, jobs, self.mu, objective_s) };
        fall.age_s += tick.seconds;
        let before_s = fall.before_s.unwrap_or(TIME_SECONDS_MAX);
        let mut pause_s = (2.0 * self.falls.pause_s).clamp(PAUSE, PAUSE_MAX);
        match said {
            Some(Said::Delay(takes_s)) => {
                self.falls.found.get_or_insert(self.r0_s);
                self.r0_s = self.r0_s.max(takes_s).min(before_s);
            }
            Some(Said::Queue) => pause_s = 0.0,
            None if fall.age_s > TIME_SECONDS_MAX => self.r0_s = fall.before_s.unwrap_or(self.r0_s),
            None => {
                self.falls.on = Some(fall);
                return true;
            }
        }
        (self.falls.pause_s, self.falls.left_s) = (pause_s, pause_s.max(PAUSE));
        self.trial.again();
        false
    }

    /// Where a long time was found, and the server is at its end all the same: an experiment with a shorter one.
    fn shorten(&mut self, jobs: f64, peak: f64) -> Option<Fall> {
        let least_s = self.falls.found.filter(|least_s| *least_s < self.r0_s)?;
        let full = self.mu >= TRIAL_SHARE * peak;
        if self.falls.left_s > 0.0 || self.trial.is_on() || !full {
            return None;
        }
        let before_s = Some(self.r0_s);
        self.r0_s = (SHORTER * self.r0_s).max(least_s);
        Some(Fall { jobs, rate: self.mu, before_s, ..Fall::default() })
    }
}
