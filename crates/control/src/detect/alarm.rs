// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When it is an overload: the causes, each of two families of evidence that agree.

use super::episode::QUEUE_MAX;
use super::evidence::{balance, lossy};
use super::scale::DEVIATIONS;
use super::{Detector, Tick};
use tidegate_model::limits::Cause;
use tidegate_model::signals::Family;

/// Excess for an alarm, in jobs: with a second family. At 0.9 load its chance is 1.5 %.
const EXCESS_MIN: f64 = 40.0;
/// For a fast server this share of the objective is no problem yet.
const EXCESS_OBJECTIVE: f64 = 0.1;
/// At this multiple of the alarm's excess chance is out of the question at 0.9 load (0.9^90).
const EXCESS_LARGE: f64 = 2.25;
/// CPU that has been used up for this many times what the excess takes at the peak rate is no
/// burst; more than one, because the peak may not be the capacity.
const OVERDUE: f64 = 2.0;

/// Why it is an overload, the first that is shown; each alone is enough.
///
/// - in flight: the limit of calm refuses, and the CPU is used up: what stands there drains sooner
///   without more behind it, and a burst ends the overload itself;
/// - growth: more comes than completes, and what is in flight is more than a healthy server shows:
///   not beside a free server that is as fast as ever;
/// - accept queue: more comes than completes, and it stands there;
/// - CPU: far more is in flight than by chance, and the CPU is used up for longer than a burst takes.
const CAUSES: [Cause; 4] = [Cause::InFlight, Cause::Growth, Cause::AcceptQueue, Cause::Cpu];

/// Whether a tick shows it.
fn is_shown(cause: Cause, evidence: &Evidence) -> bool {
    let Evidence { excess, cpu, queue, unbalanced, stands, .. } = *evidence;
    match cause {
        Cause::InFlight => evidence.is_limited(),
        Cause::Growth => excess && unbalanced && !evidence.spared,
        Cause::AcceptQueue => queue && stands && unbalanced,
        Cause::Cpu => excess && cpu && evidence.is_no_burst && !evidence.stalls,
        // Found by no detector.
        Cause::Reference | Cause::Earlier | Cause::Limit | Cause::Remote => false,
    }
}

/// What a tick shows, and the ticks before it.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    /// More is in flight than a healthy server shows.
    excess: bool,
    /// The CPU was used up in the last tick, and for the whole interval.
    cpu_now: bool,
    cpu: bool,
    /// The accept queue stands.
    queue: bool,
    /// More comes than completes, or leaves without a response.
    unbalanced: bool,
    /// More is in flight than ever stands in a queue that is held short, or the accept queue is full:
    /// a short one never holds as much, and what it drops is known by its clients only.
    stands: bool,
    /// The excess is beyond chance, and the CPU has been used up for longer than a burst takes.
    is_no_burst: bool,
    /// The limit in flight refuses.
    refuses: bool,
    /// Nothing completes at all for a moment, or what piled up then still drains: see stall.rs.
    stalls: bool,
    /// What grows in flight may be harmless: see harmless.rs.
    spared: bool,
}

impl Evidence {
    fn is_limited(&self) -> bool {
        self.refuses && self.excess && self.cpu_now && !self.stalls
    }

    fn families(&self) -> Vec<Family> {
        let families = [
            (self.cpu || self.is_limited(), Family::Resource),
            (self.queue, Family::Queue),
            (self.excess, Family::Time),
            (self.unbalanced, Family::Balance),
        ];
        families.iter().filter(|family| family.0).map(|family| family.1).collect()
    }
}

impl Detector {
    /// Jobs beyond what an unsaturated server holds, and how many of them are an alarm.
    pub(super) fn excess(&self, waiting: f64) -> (f64, f64) {
        let throughput = self.throughput();
        let resident = self.resident;
        let held = (1.0 - resident.part) * throughput * self.baseline.r0_s.unwrap_or(0.0);
        let idle = self.baseline.idle().max(self.harmless.jobs).max(resident.jobs);
        let chance = DEVIATIONS * (held + idle).sqrt();
        let alarm = (EXCESS_MIN * self.baseline.variability() + chance)
            .max(EXCESS_OBJECTIVE * self.objective_s * throughput);
        (waiting - idle - held, alarm)
    }

    /// The families that report a problem, and what they show if they are enough.
    pub(super) fn alarm(&self, tick: &Tick) -> (Vec<Family>, Option<Cause>) {
        let evidence = self.evidence(tick);
        let cause = CAUSES.into_iter().find(|cause| is_shown(*cause, &evidence));
        (evidence.families(), cause)
    }

    fn evidence(&self, tick: &Tick) -> Evidence {
        let (excess, alarm) = self.excess(tick.waiting);
        // A burst uses up the CPU as well, but not for much longer than it takes to serve it.
        let overdue = self.standing.resource_s() * self.peak > OVERDUE * self.excess_max;
        Evidence {
            excess: excess > alarm,
            cpu_now: self.standing.cpu_full(),
            cpu: self.standing.resource(),
            queue: self.standing.queue(),
            unbalanced: lossy(&self.history) || balance(&self.history, tick.waiting),
            stands: excess > QUEUE_MAX || self.standing.queue_full(),
            is_no_burst: overdue && excess > EXCESS_LARGE * alarm,
            refuses: tick.sums.refused > 0.0,
            stalls: self.stall.holds(),
            spared: self.harmless.spares(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CAUSES, Cause, Evidence, is_shown};
    use crate::{Controller, DefaultController, DefaultSpec, Mode};
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

    /// Two families that agree are a cause with a name; each alone is none, nor what a stall explains.
    #[test]
    fn causes_are_pairs_and_one_family_alone_is_none() {
        type Set = fn(&mut Evidence);
        let excess: Set = |e| e.excess = true;
        let cpu: Set = |e| (e.cpu, e.cpu_now, e.is_no_burst) = (true, true, true);
        let queue: Set = |e| (e.queue, e.stands) = (true, true);
        let unbalanced: Set = |e| e.unbalanced = true;
        let refuses: Set = |e| e.refuses = true;
        let spared: Set = |e| e.spared = true;
        let stalls: Set = |e| e.stalls = true;
        let cases: [(&[Set], Option<Cause>); 12] = [
            (&[excess], None),
            (&[cpu], None),
            (&[queue], None),
            (&[unbalanced], None),
            (&[excess, queue], None),
            (&[excess, unbalanced], Some(Cause::Growth)),
            (&[excess, unbalanced, spared], None),
            (&[queue, unbalanced], Some(Cause::AcceptQueue)),
            (&[excess, cpu], Some(Cause::Cpu)),
            (&[excess, cpu, stalls], None),
            (&[excess, cpu, refuses], Some(Cause::InFlight)),
            (&[excess, cpu, refuses, stalls], None),
        ];
        for (n, (sets, expected)) in cases.into_iter().enumerate() {
            let mut evidence = Evidence::default();
            sets.iter().for_each(|set| set(&mut evidence));
            let shown = CAUSES.into_iter().find(|cause| is_shown(*cause, &evidence));
            assert_eq!(shown, expected, "{n}: {evidence:?}");
        }
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
        let episode = controller.detector.episode.as_ref().expect("it sheds");
        assert!((450.0..600.0).contains(&episode.mu), "{}", episode.mu);
    }
}
