// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exchanges in flight that cost the server nothing: long polls, and what waits for a slow dependency.
//!
//! An overload fills the CPU or the accept queue, or what completes has stood in the queue of those in
//! flight. While none of that is so, a growing number in flight is no queue, and refusing shortens
//! nothing: an alarm that only says "more comes than completes" is spared. The limit in flight of calm stays, and bounds what
//! can pile up meanwhile. After [`LASTING_SECONDS`] those that stay while others complete that came later count
//! as harmless, and more of the same with them, for as long as the server is free and fast.

use super::evidence::{busy, lossy};
use super::scale::{LASTING_SECONDS, LASTING_TICKS, SOON_SECONDS};
use super::{Detector, Tick};
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// Where no more of the CPU, or of the thread that the server works in, is used, what is in flight
/// may be harmless,
const HARMLESS_CPU: f64 = 0.8;
/// if so many responses took no longer than this many times the baseline.
pub(super) const HARMLESS_RESPONSES: f64 = 8.0;
/// See [`HARMLESS_RESPONSES`].
const HARMLESS_TIMES: f64 = 2.0;
/// So many ceilings in flight while the server is free and fast show that the ceiling holds nothing
/// off.
pub(super) const HARMLESS_CEILINGS: f64 = 2.0;
/// Responses whose medians decide whether an alarm is spared: with exponential times the chance that
/// they look twice as slow is below 1 in 1,000.
const SPARE_RESPONSES: f64 = 32.0;

/// Share of those in flight that stays, above which what completes is no part of the same queue.
const STAYING_MOST: f64 = 0.5;

/// Who stays in flight while others complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staying {
    pub(super) jobs: f64,
    /// Whether most do.
    pub(super) most: bool,
}

/// What is known of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Harmless {
    /// Their number.
    pub(super) jobs: f64,
    /// Seconds for which more of them may be so.
    follow_s: f64,
    /// Whether the server is free and fast now, and for how many seconds it has been so while more
    /// was in flight than an alarm needs.
    fast: bool,
    spared_s: f64,
}

impl Harmless {
    /// This many are, and what comes next may be.
    pub(super) const fn found(&mut self, jobs: f64) {
        self.jobs = jobs;
        self.follow_s = SOON_SECONDS;
    }

    /// Whether growth in flight is no reason to shed now.
    pub(super) const fn spares(&self) -> bool {
        self.fast || self.follow_s > 0.0
    }

    /// Takes a tick: whether what is `staying` may be harmless, and whether more is in flight than
    /// an alarm needs. Whether it is known to be harmless.
    fn see(&mut self, (staying, seconds): (f64, f64), harmless: bool, excessive: bool) -> bool {
        self.spared_s = if self.fast && excessive { self.spared_s + seconds } else { 0.0 };
        // The first ticks of a flash crowd look like it, too.
        let known = harmless && self.follow_s > 0.0 || self.spared_s >= LASTING_SECONDS;
        if known && staying >= 1.0 {
            self.found(staying);
        } else {
            self.follow_s = (self.follow_s - seconds).max(0.0);
        }
        known
    }
}

impl Detector {
    /// Whether the server is free, and what completes says nothing of a queue; `limit` is the one on
    /// the jobs in flight.
    pub(super) fn see_harmless(
        &mut self,
        tick: &Tick,
        signals: &Signals,
        limit: Option<u64>,
        age_max: Nanos,
    ) -> bool {
        let free = is_free(signals, age_max) && self.standing.queue_passes();
        let lossy = lossy(&self.history);
        let stay = self.staying(tick.waiting);
        self.harmless.fast = free && stay.most && self.completes_fast() && !lossy;
        self.probe(tick, signals, (limit, free), age_max);
        let (excess, alarm) = self.excess(tick.waiting);
        let harmless = free && self.is_fast();
        let now = (stay.jobs, tick.sums.seconds);
        // A server that hangs, and one whose clients leave, is free and has nothing that is slow.
        let follows = harmless && !lossy && !self.stall.is_on();
        if self.harmless.see(now, follows, excess > alarm) {
            self.usual = self.usual.max(self.harmless.jobs);
        }
        harmless
    }

    /// Exchanges in flight that stay while others complete. What completes now was in flight a
    /// response time ago, in a queue together with all that came before it; so of those that were in
    /// flight then, what completes (Little's law) is subtracted.
    pub(super) fn staying(&self, waiting: f64) -> Staying {
        let lately = self.history.responding(HARMLESS_RESPONSES, LASTING_TICKS);
        let seconds = lately.seconds.max(f64::MIN_POSITIVE);
        let took_s = lately.response_s / lately.responses.max(1.0);
        let then = waiting - self.history.lasting(seconds + took_s).growth;
        let then = then.clamp(0.0, waiting);
        let jobs = (then - lately.response_s / seconds).max(0.0);
        Staying { jobs, most: jobs > STAYING_MOST * then }
    }

    /// Whether what completes says nothing of a queue: most of it is as fast as ever, or hardly
    /// anything completes.
    fn is_fast(&self) -> bool {
        let lately = self.history.last(LASTING_TICKS);
        let Some(r0_s) = self.baseline.r0_s else { return false };
        lately.responses < HARMLESS_RESPONSES
            || lately.medians_s <= HARMLESS_TIMES * r0_s * lately.responses
    }

    /// Whether enough completes, and the last of it is as fast as ever. Medians are compared with a
    /// median: a mean that a few slow responses raise would let a queue pass.
    fn completes_fast(&self) -> bool {
        let lately = self.history.responding(SPARE_RESPONSES, LASTING_TICKS);
        let Some(median_s) = self.baseline.median_s() else { return false };
        lately.responses >= SPARE_RESPONSES
            && lately.medians_s <= HARMLESS_TIMES * median_s * lately.responses
    }
}

/// Whether CPU and accept queue are known, and the CPU is not short.
fn is_free(signals: &Signals, age_max: Nanos) -> bool {
    let busy = busy(&signals.resource, age_max);
    let queue = signals.queue.accept.and_then(|queue| queue.within(age_max));
    busy.is_some_and(|busy| busy.get() < HARMLESS_CPU) && queue.is_some()
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::{Controller, DefaultController, DefaultSpec, Mode};
    use tidegate_model::signals::{AcceptQueue, ConnectionCounts, Counts, Reading, Signals, Times};
    use tidegate_units::{Nanos, Share};

    /// A tick of 100 ms: so many came, completed and are in flight, and took so many milliseconds.
    pub(crate) fn tick(
        n: u64,
        (came, completed, waiting): (u64, u64, u64),
        took_ms: u64,
    ) -> Signals {
        let period = Nanos::from_millis(100);
        let mut s = Signals { now: Nanos(period.0 * n), period, ..Signals::default() };
        let connections = ConnectionCounts {
            replied: came,
            proved: came,
            asked: came,
            answered: completed,
            ended: completed,
            ended_exchanges: completed,
            ..ConnectionCounts::default()
        };
        s.balance.counts = Some(Reading::fresh(Counts {
            offered: came,
            admitted: came,
            completed,
            connections: Some(connections),
            ..Counts::default()
        }));
        let took = Nanos::from_millis(took_ms);
        let times =
            Times { count: completed, sum: Nanos(took.0 * completed), p50: took, p99: took };
        s.time.waiting = Some(Reading::fresh(waiting));
        s.time.first_byte = Some(Reading::fresh(times));
        s.resource.cpu = Some(Reading::fresh(Share::new(0.3)));
        s.queue.accept = Some(Reading::fresh(AcceptQueue { length: 0, limit: 511 }));
        s
    }

    /// 20 of 10 ms complete in each tick.
    pub(crate) fn calm() -> DefaultController {
        let mut controller = DefaultController::new(DefaultSpec::default());
        (0..400).for_each(|n| drop(controller.tick(&tick(n, (20, 20, 2), 10), Mode::Enforce)));
        controller
    }

    #[test]
    fn long_polls_beside_a_free_and_fast_server_are_no_overload() {
        let mut controller = calm();
        for n in 0..600 {
            let waiting = 2 + 20 * (n + 1);
            let limits = controller.tick(&tick(400 + n, (40, 20, waiting), 10), Mode::Enforce);
            assert!(!limits.why.shedding, "tick {n}: {}", limits.why.text);
            let most = limits.waiting_max.expect("a limit in flight");
            assert!(most > waiting + 20, "tick {n}: {most} for {waiting}");
        }
    }

    /// Polls come, and then nothing completes any more: what comes from then on is no poll.
    #[test]
    fn nothing_is_harmless_that_comes_while_the_server_hangs() {
        let mut controller = calm();
        let mut waiting = 2;
        for n in 0..100 {
            waiting += 20;
            controller.tick(&tick(400 + n, (40, 20, waiting), 10), Mode::Enforce);
        }
        let polls = waiting;
        for n in 0..100 {
            waiting += 40;
            controller.tick(&tick(500 + n, (40, 0, waiting), 0), Mode::Enforce);
        }
        let harmless = controller.detector.harmless.jobs;
        assert!(harmless < polls as f64 + 200.0, "{harmless} of {waiting}, of which {polls} polls");
    }

    /// A queue behind places that are neither CPU nor accept queue: whoever completes has stood in it.
    #[test]
    fn a_queue_is_an_overload_although_cpu_and_accept_queue_are_free() {
        let mut controller = calm();
        let sheds = (0..20).position(|n| {
            let waiting = 2 + 20 * (n + 1);
            // At 2 times the capacity it grows by half a second each second until it is served.
            let took_ms = 10 + 50 * n;
            let signals = tick(400 + n, (40, 20, waiting), took_ms);
            controller.tick(&signals, Mode::Enforce).why.shedding
        });
        assert!(sheds.is_some_and(|ticks| ticks <= 8), "{sheds:?}");
        let why = controller.last.why.text;
        assert!(
            why.ends_with("begun because more comes than completes, and too much is in flight")
        );
    }
}
