// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When to shed: which families report trouble, and whether they are enough.

use super::shed::QUEUE_MAX;
use super::{DefaultController, Tick};
use crate::evidence::{balance, lossy};
use tidegate_model::signals::Family;

/// Excess for an alarm, in jobs: with a second family. At 0.9 load its chance is 1.5 %.
const EXCESS_MIN: f64 = 40.0;
/// Deviations of the number in flight (Poisson: √(μ·r0), and of those that cost nothing likewise) that
/// the excess must exceed as well.
const EXCESS_DEVIATIONS: f64 = 4.0;
/// For a fast server this share of the objective is no trouble yet.
const EXCESS_OBJECTIVE: f64 = 0.1;
/// At this multiple of the alarm's excess chance is out of the question at 0.9 load (0.9^90).
const EXCESS_LARGE: f64 = 2.25;
/// CPU that has been used up for this many times what the excess takes at the peak rate is no
/// burst; more than one, because the peak may not be the capacity.
const OVERDUE: f64 = 2.0;

/// An overload as another actuator than the SYN rate has to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overload {
    /// Completions per second under saturation.
    pub(crate) mu: f64,
    /// Jobs in flight to hold.
    pub(crate) target: f64,
    /// Of them, those that a trial adds.
    pub(crate) tried: f64,
}

impl DefaultController {
    /// A controller whose limits nobody executes: another actuator acts upon [`Self::overload`].
    pub(crate) fn detector(spec: super::DefaultSpec) -> Self {
        Self { watched: true, ..Self::new(spec) }
    }

    /// The overload, as long as there is one.
    pub(crate) fn overload(&self) -> Option<Overload> {
        let shed = self.shed.as_ref()?;
        let tried = shed.trial.jobs();
        Some(Overload { mu: shed.mu, target: shed.target(self.objective_s), tried })
    }

    /// Jobs in flight, as of the last tick.
    pub(crate) fn waiting(&self) -> f64 {
        self.waiting_before.unwrap_or(0.0)
    }

    /// Jobs beyond what an unsaturated server holds, and how many of them are an alarm.
    pub(super) fn excess(&self, waiting: f64) -> (f64, f64) {
        let throughput = self.throughput();
        let held = throughput * self.baseline.r0_s.unwrap_or(0.0);
        let idle = self.baseline.idle().max(self.harmless.jobs);
        let chance = EXCESS_DEVIATIONS * (held + idle).sqrt();
        let alarm = (EXCESS_MIN * self.baseline.variability() + chance)
            .max(EXCESS_OBJECTIVE * self.objective_s * throughput);
        (waiting - idle - held, alarm)
    }

    /// The families that report trouble, and whether they are enough to shed.
    pub(super) fn alarm(&self, tick: &Tick) -> (Vec<Family>, bool) {
        let waiting = tick.waiting;
        let (excess, alarm) = self.excess(waiting);
        let time = excess > alarm;
        let (resource, queue) = (self.standing.resource(), self.standing.queue());
        let beyond_chance = excess > EXCESS_LARGE * alarm;
        let losing = lossy(&self.history);
        let unbalanced = losing || balance(&self.history, waiting);
        // The guard already refuses and the CPU is used up: whatever this is, the queue that stands
        // there is worked off sooner without more behind it, and a burst ends the shedding itself.
        // Not where nothing completes at all: see guard.rs.
        let moves = !self.stall.holds();
        let guarded = moves && time && tick.sums.refused > 0.0 && self.standing.cpu_full();
        // A burst uses up the CPU as well, but not for much longer than it takes to work it off.
        let overdue = self.standing.resource_s() * self.peak > OVERDUE * self.excess_max;
        let families = [
            (resource || guarded, Family::Resource),
            (queue, Family::Queue),
            (time, Family::Time),
            (unbalanced, Family::Balance),
        ];
        let on = families.iter().filter(|f| f.0).map(|f| f.1).collect();
        // A short accept queue never holds as much: what it drops is known by its clients only.
        let standing = excess > QUEUE_MAX || self.standing.queue_full();
        // What grows beside a free server that is as fast as ever is no queue.
        let grows = time && unbalanced && !self.harmless.spares();
        let shed = guarded
            || grows
            || queue && standing && unbalanced
            || moves && time && resource && beyond_chance && overdue
            || standing && losing && (resource || time);
        (on, shed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DefaultController, DefaultSpec};
    use crate::{Controller, Mode};
    use tidegate_model::signals::{
        AcceptQueue, ConnectionCounts, Counts, Family, Reading, Signals, Times,
    };
    use tidegate_units::{Nanos, Share};

    /// A tick of 100 ms of a server with a short accept queue: so many SYNs came, the server replied
    /// to as many of them and completed as many.
    fn tick(n: u64, came: u64, done: u64, length: u64) -> Signals {
        let period = Nanos::from_millis(100);
        let mut s = Signals { now: Nanos(period.0 * n), period, ..Signals::default() };
        let connections = ConnectionCounts {
            replied: done,
            proved: done,
            asked: done,
            answered: done,
            ended: done,
            ended_exchanges: done,
            ..ConnectionCounts::default()
        };
        s.balance.counts = Some(Reading::fresh(Counts {
            offered: came,
            admitted: came,
            completed: done,
            connections: Some(connections),
            ..Counts::default()
        }));
        let took = Nanos::from_millis(10 + 5 * length);
        let times = Times { count: done, sum: Nanos(took.0 * done), p50: took, p99: took };
        s.time.waiting = Some(Reading::fresh(1 + length));
        s.time.first_byte = Some(Reading::fresh(times));
        s.resource.cpu = Some(Reading::fresh(Share::new(if length > 4 { 1.0 } else { 0.4 })));
        s.queue.accept = Some(Reading::fresh(AcceptQueue { length, limit: 5 }));
        s
    }

    #[test]
    fn a_full_queue_is_an_overload_however_short_it_is() {
        let mut controller = DefaultController::new(DefaultSpec::default());
        (0..400).for_each(|n| drop(controller.tick(&tick(n, 20, 20, 0), Mode::Enforce)));
        let mut sheds = |came, done, length| {
            (400..430)
                .any(|n| controller.tick(&tick(n, came, done, length), Mode::Enforce).why.shedding)
        };
        assert!(!sheds(25, 25, 4), "busy, and there is a place");
        assert!(sheds(60, 26, 5));
    }

    /// One thread on a machine with four CPUs, which completes 500/s at its end and takes all that
    /// comes out of the accept queue. It begins with what that thread can do, not with what four could.
    #[test]
    fn a_thread_at_its_end_is_an_overload_of_that_thread() {
        let uses = |mut s: Signals, came: u64, done: u64, waiting: u64| {
            let thread = done as f64 / 50.0;
            s.resource.cpu = Some(Reading::fresh(Share::new(thread / 4.0)));
            s.resource.busiest_thread = Some(Reading::fresh(Share::new(thread)));
            s.queue.accept = Some(Reading::fresh(AcceptQueue { length: 0, limit: 511 }));
            s.time.waiting = Some(Reading::fresh(waiting));
            if let Some(counts) = &mut s.balance.counts {
                let connections = counts.value.connections.get_or_insert_default();
                (connections.replied, connections.proved, connections.asked) = (came, came, came);
            }
            s
        };
        let mut controller = DefaultController::new(DefaultSpec::default());
        for n in 0..400 {
            controller.tick(&uses(tick(n, 20, 20, 0), 20, 20, 1), Mode::Enforce);
        }
        let mut tick_of = |n: u64| {
            let waiting = 20 * (n - 399);
            controller.tick(&uses(tick(n, 70, 50, waiting / 10), 70, 50, waiting), Mode::Enforce)
        };
        let begun = (400..430).find(|n| tick_of(*n).why.shedding);
        assert!(begun.is_some_and(|n| n < 412), "{begun:?}");
        let alarmed = tick_of(begun.unwrap_or(429) + 1).why.alarmed;
        assert!(alarmed.contains(&Family::Resource), "{alarmed:?}");
        let mu = controller.overload().expect("it sheds").mu;
        assert!((450.0..600.0).contains(&mu), "{mu}");
    }
}
