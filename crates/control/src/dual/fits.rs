// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether all that comes would fit, were no SYN refused any more.

use super::needed::fresh;
use crate::period_s;
use tidegate_model::signals::Signals;
use tidegate_units::{Rate, Share};

/// Seconds over which the CPU and the requests are averaged: at 400/s what comes varies by 3 %.
const SECONDS: f64 = 2.0;
/// Of these, how many have to be known.
const KNOWN_SECONDS: f64 = 1.0;

/// A CPU that was used up within this many seconds before SYN policing woke was what woke it.
const USED_UP_SECONDS: f64 = 3.0;
/// A rate that is not needed begins at this multiple of what asks: above what comes by chance in a
/// third of a second.
const ABOVE_CHANCE: f64 = 1.25;

/// The CPU and the connections of the last seconds, older ones fading out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fits {
    seconds: f64,
    cpu_s: f64,
    asked: f64,
    admitted: f64,
    /// Seconds since the CPU was last used up.
    used_up_s: Option<f64>,
}

impl Fits {
    /// SYN policing wakes or falls asleep: what was seen with other refusals is forgotten. Whether it
    /// is the CPU that is short.
    pub(super) fn turn(&mut self) -> bool {
        let short = self.used_up_s.is_some_and(|seconds| seconds <= USED_UP_SECONDS);
        *self = Self { used_up_s: self.used_up_s, ..Self::default() };
        short
    }

    /// Takes a tick, with the share at which the CPU counts as used up; one without a CPU or counts
    /// that are young says nothing.
    pub(super) fn see(&mut self, signals: &Signals, full: Option<Share>) {
        let cpu = fresh(signals.resource.cpu, signals);
        let counts = fresh(signals.balance.counts, signals);
        let (Some(cpu), Some(counts)) = (cpu, counts) else { return };
        let seconds = period_s(signals);
        let keep = (-seconds / SECONDS).exp();
        let count = |n: u64| n.min(1 << 40) as f64;
        self.seconds = keep * self.seconds + seconds;
        self.cpu_s = keep * self.cpu_s + seconds * cpu.get();
        let used_up = full.is_some_and(|full| cpu >= full);
        self.used_up_s = if used_up { Some(0.0) } else { self.used_up_s.map(|s| s + seconds) };
        // Who is refused asks again: those are no more load than the first time.
        self.asked = keep * self.asked + count(counts.offered.saturating_sub(counts.repeated));
        self.admitted = keep * self.admitted + count(counts.admitted);
    }

    /// The share of the CPU that all who ask would need, were they as the admitted are. Header rules
    /// admit no more of them than their minimum, which is scaled here with the rest: too much, to the
    /// safe side.
    pub(super) fn cpu(&self) -> Option<f64> {
        let known = self.seconds >= KNOWN_SECONDS && self.admitted >= 1.0;
        known.then(|| self.cpu_s / self.seconds * (self.asked / self.admitted).max(1.0))
    }

    /// A rate that refuses nobody, as long as no more than in the last seconds ask.
    pub(super) fn rate(&self) -> Rate {
        Rate::per_second(ABOVE_CHANCE * self.asked / self.seconds.max(KNOWN_SECONDS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{Counts, Reading};
    use tidegate_units::Nanos;

    fn tick(cpu: Option<f64>, offered: u64, repeated: u64, admitted: u64) -> Signals {
        let mut s = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        s.resource.cpu = cpu.map(|cpu| Reading::fresh(Share::new(cpu)));
        let counts = Counts { offered, repeated, admitted, ..Counts::default() };
        s.balance.counts = Some(Reading::fresh(counts));
        s
    }

    fn after(ticks: usize, signals: &Signals) -> Option<f64> {
        let mut fits = Fits::default();
        (0..ticks).for_each(|_| fits.see(signals, None));
        fits.cpu()
    }

    #[test]
    fn the_cpu_is_scaled_to_all_that_asks_once() {
        let table = [
            // CPU, offered, repeated, admitted: needed
            (0.8, 60, 0, 60, 0.8),
            (0.8, 60, 0, 50, 0.96),
            (0.8, 90, 40, 50, 0.8),
            // Those who asked before are let in: never less than what is used.
            (0.8, 50, 10, 50, 0.8),
        ];
        for (cpu, offered, repeated, admitted, needed) in table {
            let got = after(50, &tick(Some(cpu), offered, repeated, admitted)).unwrap();
            assert!((got - needed).abs() < 1e-9, "{cpu} {offered} {repeated}: {got}");
        }
    }

    /// What woke it counts, not what the CPU was long ago, and a turn forgets how much came.
    #[test]
    fn it_knows_whether_the_cpu_is_short() {
        let full = Some(Share::new(0.97));
        let mut fits = Fits::default();
        assert!(!fits.turn(), "nothing is known");
        fits.see(&tick(Some(0.96), 10, 0, 10), full);
        assert!(!fits.turn());
        (0..20).for_each(|_| fits.see(&tick(Some(0.97), 10, 0, 10), full));
        assert!(fits.cpu().is_some() && fits.turn() && fits.cpu().is_none());
        (0..29).for_each(|_| fits.see(&tick(Some(0.5), 10, 0, 10), full));
        assert!(fits.turn(), "2.9 s ago");
        (0..2).for_each(|_| fits.see(&tick(Some(0.5), 10, 0, 10), full));
        assert!(!fits.turn(), "3.1 s ago");
        fits.see(&tick(Some(1.0), 10, 0, 10), None);
        assert!(!fits.turn(), "nobody asks for the CPU");
    }

    #[test]
    fn what_is_not_known_is_no_room() {
        assert_eq!(after(5, &tick(Some(0.1), 10, 0, 10)), None, "half a second");
        assert!(after(15, &tick(Some(0.1), 10, 0, 10)).is_some());
        assert_eq!(after(50, &tick(None, 10, 0, 10)), None);
        assert_eq!(after(50, &tick(Some(0.1), 10, 0, 0)), None, "nobody was admitted");
    }
}
