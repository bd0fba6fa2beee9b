// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What speaks for an overload, family by family.
//!
//! **Balance.** More comes than completes, and not by chance, not for a moment, and not
//! because responses merely take longer than before. What does not complete is what is in flight
//! since, turned away, or lost: the same as arrivals less completions where a connection has one
//! request, and right where it has many. A window of the last ticks is cut into up to 8
//! blocks and must show all of
//! 1. an excess of at least 4 standard deviations. The deviation is the larger of what Poisson
//!    arrivals and departures of connections would have, and of what the blocks really
//!    show: bursts and heavy tails raise the bar by themselves;
//! 2. the excess is lasting: the later half of the window has at least 0.4 of it, the earlier 0.2
//!    (a burst is all in one half, and after it completions exceed arrivals);
//! 3. completions are steady: no quarter has less than half of its part, and they do not rise (a
//!    dependency that became slower shows a gap, then completions rising to meet arrivals).
//!
//! Windows of 3 ticks to 51 s, each 1.4 times the one before: ten times the capacity shows within
//! 3 ticks, twice within about 50 departures, 1.1 times within some thousand. (A family of windows
//! does what a CUSUM test does, Page 1954, with the shape of the growth at hand for 2 and 3.) Parts of a window count by
//! their seconds: where the processor is full the control loop may be late by several ticks.
//!
//! **Time.** Jobs in flight beyond what an unsaturated server holds at the present throughput
//! (Little's law with the baseline; TCP Vegas' diff).
//!
//! **Resource.** CPU used up, or the thread that a server works in. **Queue.** The accept queue was
//! never empty during an interval (the standing queue of CoDel).

use super::history::{History, Sums, TICKS_MAX};
use super::scale::{DEVIATIONS, RATE_EVENTS};
use crate::period_s;
use tidegate_model::signals::{Resource, Signals};
use tidegate_units::{Nanos, Share};

/// Fewest completions that show a server at work.
const COMPLETED_MIN: f64 = 4.0;
/// Shortest window in ticks: two would be a burst at the turn of a tick.
const WINDOW_MIN: usize = 3;
/// Blocks into which a window is cut.
const BLOCKS: usize = 8;
/// Ticks before a window that tell what completions were.
const BEFORE_TICKS_MIN: usize = 64;
/// Share of them that is lost for an alarm; at 0.9 load it is below 1 % even where a response takes
/// 0.2 s and clients leave after 10 s.
const LOST_SHARE: f64 = 0.25;
/// Share of its even part of the excess that the later half must have, and the earlier.
const LATE_MIN: f64 = 0.8;
/// See [`LATE_MIN`].
const EARLY_MIN: f64 = 0.4;
/// CPU of what the service may use, or of a thread, that counts as used up; the rest is accounting
/// noise.
pub(crate) const CPU_USED_UP: f64 = 0.97;
/// Ticks over which CPU and accept queue must stand: five times 100 ms.
const STANDING_TICKS: u32 = 5;
/// Ticks in which an accept queue that is found waiting is no passing one: an event loop that is at
/// work leaves it for a moment, and three moments in a row are no chance.
const PASSING_TICKS: u32 = 3;

/// How busy a service is: the share of its CPUs that is used, or of the thread that it works in, if that
/// is more (decision 11). `None`: its CPU is not known, or the reading is older than this. A thread that
/// is not known says nothing.
pub(crate) fn busy(resource: &Resource, age_max: Nanos) -> Option<Share> {
    let cpu = resource.cpu?.within(age_max)?;
    let thread = resource.busiest_thread.and_then(|thread| thread.within(age_max));
    Some(thread.map_or(cpu, |thread| if thread > cpu { thread } else { cpu }))
}

/// Whether the last ticks show a lasting excess of arrivals over completions of [`DEVIATIONS`] deviations.
/// `waiting` jobs are in flight.
pub(crate) fn balance(history: &History, waiting: f64) -> bool {
    let mut window = WINDOW_MIN;
    while window <= history.len().min(TICKS_MAX) {
        if lasting(history, window) && !fallen(history, window, waiting) {
            return true;
        }
        window = window + 1 + window * 2 / 5;
    }
    false
}

/// Sums of the k-th of `of` parts of the window with as many ticks each, oldest first.
fn part(history: &History, window: usize, k: usize, of: usize) -> Sums {
    history.between(window - window * k / of, window - window * (k + 1) / of)
}

fn lasting(history: &History, window: usize) -> bool {
    let all = history.last(window);
    let excess = all.excess();
    if all.completed < COMPLETED_MIN || excess <= 0.0 {
        return false;
    }
    // Connections that came, and those that went.
    let poisson = all.offered + (all.offered - excess).max(0.0);
    if excess * excess < DEVIATIONS * DEVIATIONS * poisson {
        return false;
    }
    let blocks = window.min(BLOCKS);
    let even = excess / all.seconds;
    let squares: f64 = (0..blocks)
        .map(|k| part(history, window, k, blocks))
        .map(|sums| sums.excess() - even * sums.seconds)
        .map(|d| d * d)
        .sum();
    // Variance of the sum of the blocks: blocks times the sample variance of one.
    let shown = squares / (blocks - 1) as f64 * blocks as f64;
    if excess * excess < DEVIATIONS * DEVIATIONS * shown {
        return false;
    }
    let (early, late) = (part(history, window, 0, 2), part(history, window, 1, 2));
    if late.excess() < LATE_MIN * even * late.seconds
        || early.excess() < EARLY_MIN * even * early.seconds
    {
        return false;
    }
    // What the earlier half says about the later one.
    let expected = early.rate() * late.seconds;
    let rising = late.completed > 1.25 * expected + 2.0 * expected.sqrt();
    !rising && steady(history, window, all.rate())
}

/// Whether completions are below what they were, in a way that may also be a server whose responses
/// only take longer now. It lost capacity if the window is longer than a response takes (Little's
/// law: N/D), and completions are not on their way back.
fn fallen(history: &History, window: usize, waiting: f64) -> bool {
    let now = history.last(window);
    let before = history.between(window + BEFORE_TICKS_MIN.max(2 * window), window);
    let (early, late) = (part(history, window, 0, 2), part(history, window, 1, 2));
    let even = early.rate() * late.seconds;
    let on_the_way = late.completed > 1.1 * even + even.sqrt();
    if before.seconds <= 0.0 {
        // Nothing before: completions that rise are a server that is only getting to work.
        return on_the_way;
    }
    let expected = before.rate() * now.seconds;
    let below = now.completed < 0.9 * expected - expected.sqrt();
    below && (now.completed < waiting || on_the_way)
}

/// Whether clients leave without a response, or SYNs are ignored by the server: a quarter of the
/// last arrivals is neither answered nor in flight.
pub(crate) fn lossy(history: &History) -> bool {
    let last = history.since_offered(RATE_EVENTS);
    last.is_some_and(|sums| sums.lost() > LOST_SHARE * sums.offered)
}

fn steady(history: &History, window: usize, completed_a_second: f64) -> bool {
    let quarters = window.min(4);
    (0..quarters).map(|k| part(history, window, k, quarters)).all(|sums| {
        let even = completed_a_second * sums.seconds;
        sums.completed >= 0.5 * even - even.sqrt()
    })
}

/// Counts for how many ticks CPU (see [`busy`]) and accept queue have stood.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    cpu: u32,
    queue: u32,
    /// Ticks for which the queue has had no place.
    full: u32,
    cpu_s: f64,
}

impl Standing {
    /// Takes a tick's readings; missing or stale ones count as calm.
    pub(crate) fn see(&mut self, signals: &Signals, age_max: Nanos) {
        let busy = busy(&signals.resource, age_max);
        let full = busy.is_some_and(|busy| busy.get() >= CPU_USED_UP);
        self.cpu = if full { self.cpu.saturating_add(1) } else { 0 };
        self.cpu_s = if full { self.cpu_s + period_s(signals) } else { 0.0 };
        let queue = signals.queue.accept.and_then(|q| q.within(age_max));
        let stands = queue.is_some_and(|q| q.length > 0);
        self.queue = if stands { self.queue.saturating_add(1) } else { 0 };
        let full = queue.is_some_and(|q| q.length >= q.limit.max(1));
        self.full = if full { self.full.saturating_add(1) } else { 0 };
    }

    /// Whether the CPU has been used up for the whole interval.
    pub(crate) const fn resource(&self) -> bool {
        self.cpu >= STANDING_TICKS
    }

    /// Whether the CPU was used up in the last tick.
    pub(crate) const fn cpu_full(&self) -> bool {
        self.cpu > 0
    }

    /// For how many seconds the CPU has been used up.
    pub(crate) const fn resource_s(&self) -> f64 {
        self.cpu_s
    }

    /// Whether the accept queue was empty lately.
    pub(crate) const fn queue_passes(&self) -> bool {
        self.queue < PASSING_TICKS
    }

    /// Whether the accept queue is found without a place again and again: what more comes is dropped,
    /// and is not in flight.
    pub(crate) const fn queue_full(&self) -> bool {
        self.full >= PASSING_TICKS
    }

    /// Whether the accept queue has not been empty for the whole interval.
    pub(crate) const fn queue(&self) -> bool {
        self.queue >= STANDING_TICKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::Reading;

    fn history(ticks: &[(f64, f64)]) -> History {
        let even: Vec<_> = ticks.iter().map(|(came, done)| (0.1, *came, *done)).collect();
        uneven(&even)
    }

    /// Ticks of so many seconds each.
    fn uneven(ticks: &[(f64, f64, f64)]) -> History {
        let mut history = History::default();
        for (seconds, offered, completed) in ticks {
            history.push(Sums {
                seconds: *seconds,
                offered: *offered,
                completed: *completed,
                growth: *offered - *completed,
                ..Sums::default()
            });
        }
        history
    }

    #[test]
    fn many_that_leave_without_a_response_are_an_overload_and_some_are_none() {
        for (lost, is) in [(0.0, false), (4.0, false), (8.0, true), (20.0, true)] {
            let mut history = History::default();
            let tick = Sums {
                seconds: 0.1,
                offered: 20.0,
                completed: 20.0 - lost,
                lost,
                ..Sums::default()
            };
            (0..20).for_each(|_| history.push(tick));
            assert_eq!(lossy(&history), is, "{lost} of 20");
        }
    }

    fn uses(cpu: Option<f64>, thread: Option<f64>) -> Resource {
        let share = |share: f64| Reading::fresh(Share::new(share));
        Resource { cpu: cpu.map(share), busiest_thread: thread.map(share), ..Resource::default() }
    }

    /// Node on a machine with 16 CPUs.
    #[test]
    fn a_server_with_one_thread_is_as_busy_as_that_thread() {
        for (cpu, thread, expected) in [
            (Some(0.07), Some(1.0), Some(1.0)),
            (Some(0.07), None, Some(0.07)),
            (Some(0.9), Some(0.4), Some(0.9)),
            (None, Some(1.0), None),
        ] {
            let busy = busy(&uses(cpu, thread), Nanos::SECOND);
            assert_eq!(busy.map(Share::get), expected, "{cpu:?} {thread:?}");
        }
        let old = |mut resource: Resource, cpu: bool| {
            let (cpu_share, thread) = (&mut resource.cpu, &mut resource.busiest_thread);
            let reading = if cpu { cpu_share } else { thread };
            reading.as_mut().unwrap().age = Nanos::SECOND + Nanos(1);
            busy(&resource, Nanos::SECOND).map(Share::get)
        };
        assert_eq!(old(uses(Some(0.07), Some(1.0)), true), None);
        assert_eq!(
            old(uses(Some(0.07), Some(1.0)), false),
            Some(0.07),
            "an old thread says nothing"
        );
    }

    #[test]
    fn a_thread_at_its_end_is_a_resource_that_is_used_up() {
        let stands = |thread: Option<f64>| {
            let mut standing = Standing::default();
            let resource = uses(Some(0.07), thread);
            let signals =
                Signals { resource, period: Nanos::from_millis(100), ..Signals::default() };
            (0..STANDING_TICKS).for_each(|_| standing.see(&signals, Nanos::SECOND));
            (standing.resource(), standing.cpu_full(), standing.resource_s() > 0.45)
        };
        assert_eq!(stands(Some(1.0)), (true, true, true));
        assert_eq!(stands(Some(0.96)), (false, false, false));
        assert_eq!(stands(None), (false, false, false));
    }

    #[test]
    fn twice_the_capacity_shows_and_a_burst_does_not() {
        let calm = vec![(20.0, 20.0); 20];
        let with = |tail: &[(f64, f64)]| history(&[&calm[..], tail].concat());
        assert!(balance(&with(&[(52.0, 26.0); 8]), 200.0));
        assert!(balance(&with(&[(260.0, 26.0); 3]), 700.0));
        let mut burst = vec![(220.0, 26.0)];
        for _ in 0..12 {
            assert!(!balance(&with(&burst), 200.0), "burst after {} ticks", burst.len());
            burst.push((20.0, 26.0));
        }
    }

    /// A tick of 0.75 s among those of 0.1 s has as much of all as the time says; the next one is short.
    #[test]
    fn ticks_that_are_late_hide_nothing_and_make_nothing_up() {
        for (came, shows) in [(600.0, true), (1800.0, true), (200.0, false)] {
            let mut ticks = vec![(0.1, 20.0, 20.0); 20];
            let mut shown = false;
            for seconds in [0.1, 0.1, 0.75, 0.05, 0.1, 0.1, 0.3, 0.02, 0.1] {
                let done = if shows { 260.0 } else { came };
                ticks.push((seconds, came * seconds, done * seconds));
                shown |= balance(&uneven(&ticks), 200.0);
            }
            assert_eq!(shown, shows, "{came}/s");
        }
        let mut burst = vec![(0.1, 20.0, 20.0); 20];
        burst.push((0.75, 350.0, 195.0));
        for seconds in [0.05, 0.1, 0.1, 0.3, 0.1, 0.1] {
            assert!(!balance(&uneven(&burst), 200.0), "after {} ticks", burst.len());
            burst.push((seconds, 200.0 * seconds, 260.0 * seconds));
        }
    }

    #[test]
    fn a_dependency_ten_times_slower_does_not_show() {
        // 1000/s; responses take 500 ms from some moment on: nothing for 5 ticks, then all again.
        let mut ticks = vec![(100.0, 100.0); 20];
        for tick in 0..40 {
            ticks.push((100.0, if tick < 5 { 0.0 } else { 100.0 }));
            assert!(!balance(&history(&ticks), 550.0), "tick {tick}");
        }
        // The same with exponential times: completions rise to meet arrivals.
        let mut ticks = vec![(100.0, 100.0); 20];
        for tick in 0..40 {
            ticks.push((100.0, 100.0 * (1.0 - (-0.2 * f64::from(tick)).exp())));
            assert!(!balance(&history(&ticks), 550.0), "tick {tick}");
        }
    }
}
