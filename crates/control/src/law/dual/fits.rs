// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether all that comes would fit, were no SYN refused any more.

use super::needed::fresh;
use crate::detect::{CPU_USED_UP, Window, busy};
use crate::{age_max, period_s};
use tidegate_model::signals::Signals;
use tidegate_units::Rate;

/// Seconds over which the CPU and the requests are averaged: at 400/s what comes varies by 4 %.
const WINDOW_SECONDS: f64 = 2.0;
/// Of these seconds, how many have to be known; and in how many the CPU has to be used up to be what
/// is short: one busy tick is none.
const KNOWN_SECONDS: f64 = 1.0;
/// A rate that is not needed begins at this multiple of what asks: above what comes by chance in a
/// third of a second.
const ABOVE_CHANCE: f64 = 1.25;

#[derive(Clone, Copy, Debug)]
struct Tick {
    cpu: f64,
    asked: f64,
    admitted: f64,
}

/// The CPU and the connections of the last seconds.
#[derive(Clone, Debug)]
pub(super) struct Fits {
    window: Window<Tick>,
    /// Seconds since the CPU was last short.
    short_ago_s: Option<f64>,
}

impl Default for Fits {
    fn default() -> Self {
        Self { window: Window::new(WINDOW_SECONDS), short_ago_s: None }
    }
}

impl Fits {
    /// SYN policing becomes active or goes to standby: what was seen with other refusals is forgotten.
    pub(super) fn turn(&mut self) {
        self.window.clear();
    }

    /// Takes a tick. Without a CPU or counts that are young, what was known before is forgotten.
    pub(super) fn see(&mut self, signals: &Signals) {
        let seconds = period_s(signals);
        self.short_ago_s = self.short_ago_s.map(|ago| ago + seconds);
        let cpu = busy(&signals.resource, age_max(signals));
        let counts = fresh(signals.balance.counts, signals);
        let (Some(cpu), Some(counts)) = (cpu, counts) else {
            self.window.clear();
            return;
        };
        let count = |n: u64| n.min(1 << 40) as f64;
        let tick = Tick {
            cpu: cpu.get(),
            // Who is refused asks again: those are no more load than the first time.
            asked: count(counts.offered.saturating_sub(counts.repeated)),
            admitted: count(counts.admitted),
        };
        self.window.push(seconds, tick);
        let used_up =
            |seconds: f64, tick: &Tick| if tick.cpu >= CPU_USED_UP { seconds } else { 0.0 };
        if self.window.sum(used_up) >= KNOWN_SECONDS - 5e-4 {
            self.short_ago_s = Some(0.0);
        }
    }

    /// The share of the CPU, or of the thread that the server works in, that all who ask would need,
    /// were they as the admitted are. Request rules admit no more of them than their minimum, which is scaled here with the rest: too much, to the
    /// safe side.
    pub(super) fn cpu(&self) -> Option<f64> {
        let cpu = self.window.sum(|seconds, tick| seconds * tick.cpu) / self.window.seconds();
        let admitted = self.window.sum(|_, tick| tick.admitted);
        let known = self.window.holds(KNOWN_SECONDS) && admitted >= 1.0;
        known.then(|| cpu * (self.asked() / admitted).max(1.0))
    }

    /// Whether the CPU was short within so many seconds.
    pub(super) fn short_within(&self, seconds: f64) -> bool {
        self.short_ago_s.is_some_and(|ago| ago <= seconds)
    }

    /// A rate that refuses nobody, as long as no more than in the last seconds ask.
    pub(super) fn rate(&self) -> Rate {
        let seconds = self.window.seconds().max(KNOWN_SECONDS);
        Rate::per_second(ABOVE_CHANCE * self.asked() / seconds)
    }

    fn asked(&self) -> f64 {
        self.window.sum(|_, tick| tick.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{Counts, Reading};
    use tidegate_units::{Nanos, Share};

    fn tick(cpu: Option<f64>, offered: u64, repeated: u64, admitted: u64) -> Signals {
        let mut s = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        s.resource.cpu = cpu.map(|cpu| Reading::fresh(Share::new(cpu)));
        let counts = Counts { offered, repeated, admitted, ..Counts::default() };
        s.balance.counts = Some(Reading::fresh(counts));
        s
    }

    fn see(fits: &mut Fits, ticks: usize, signals: &Signals) {
        (0..ticks).for_each(|_| fits.see(signals));
    }

    fn after(ticks: usize, signals: &Signals) -> Fits {
        let mut fits = Fits::default();
        see(&mut fits, ticks, signals);
        fits
    }

    #[test]
    fn the_cpu_is_scaled_to_all_that_asks_once() {
        let table = [
            // CPU, offered, repeated, admitted: needed, and a rate for all
            (0.8, 60, 0, 60, 0.8, 750.0),
            (0.8, 60, 0, 50, 0.96, 750.0),
            (0.8, 90, 40, 50, 0.8, 625.0),
            // Those who asked before are let in: never less than what is used.
            (0.8, 50, 10, 50, 0.8, 500.0),
        ];
        for (cpu, offered, repeated, admitted, needed, rate) in table {
            let fits = after(50, &tick(Some(cpu), offered, repeated, admitted));
            let name = format!("{cpu} {offered} {repeated}: {:?} {}", fits.cpu(), fits.rate());
            assert!((fits.cpu().unwrap() - needed).abs() < 1e-9, "{name}");
            assert!((fits.rate().get() - rate).abs() < 1e-6, "{name}");
        }
    }

    /// On a machine with 16 CPUs a thread at 0.8 has no room for half as many again.
    #[test]
    fn a_server_with_one_thread_fits_in_that_thread() {
        let mut one_thread = tick(Some(0.05), 90, 0, 60);
        one_thread.resource.busiest_thread = Some(Reading::fresh(Share::new(0.8)));
        let needed = after(50, &one_thread).cpu();
        assert!(needed.is_some_and(|needed| (needed - 1.2).abs() < 1e-9), "{needed:?}");
    }

    #[test]
    fn what_is_not_known_or_no_longer_is_no_room() {
        let calm = tick(Some(0.1), 10, 0, 10);
        assert_eq!(after(5, &calm).cpu(), None, "half a second");
        let mut fits = after(15, &calm);
        assert!(fits.cpu().is_some());
        see(&mut fits, 1, &tick(None, 10, 0, 10));
        assert_eq!(fits.cpu(), None, "lost");
        see(&mut fits, 15, &calm);
        let mut old = calm.clone();
        old.resource.cpu.as_mut().unwrap().age = Nanos::from_secs(5);
        see(&mut fits, 1, &old);
        assert_eq!(fits.cpu(), None, "old");
        assert_eq!(after(50, &tick(Some(0.1), 10, 0, 0)).cpu(), None, "nobody was admitted");
    }

    /// A CPU that is used up is seen within the window, whatever it was before.
    #[test]
    fn a_step_is_seen_within_the_window() {
        let mut fits = after(100, &tick(Some(0.2), 10, 0, 10));
        see(&mut fits, 20, &tick(Some(1.0), 10, 0, 10));
        assert_eq!(fits.cpu(), Some(1.0));
    }

    #[test]
    fn the_cpu_is_short_after_a_second_of_it_and_not_for_ever() {
        let (busy, free) = (tick(Some(CPU_USED_UP), 10, 0, 10), tick(Some(0.5), 10, 0, 10));
        let mut fits = after(50, &free);
        assert!(!fits.short_within(60.0));
        see(&mut fits, 9, &busy);
        assert!(!fits.short_within(60.0), "a peak");
        see(&mut fits, 1, &busy);
        assert!(fits.short_within(0.0));
        fits.turn();
        assert!(fits.cpu().is_none() && fits.short_within(0.0), "that is not forgotten");
        see(&mut fits, 30, &free);
        assert!(fits.short_within(3.05) && !fits.short_within(2.95));
        // Ages without a CPU, too.
        see(&mut fits, 30, &tick(None, 10, 0, 10));
        assert!(fits.short_within(6.05) && !fits.short_within(5.95));
    }
}
