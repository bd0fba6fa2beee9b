// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service that hooks measure, in requests: what its gateways are told.
//!
//! A gateway takes one request for one connection with one exchange (docs/decisions/0027-gate.md), so sensing,
//! detector and law are the same for both. Here it is the other way round: exchanges that hooks have seen are the
//! connections of such a service. How many began is not counted. What completed, was lost or went out of sight had
//! begun, and so has what more is in flight now.
//!
//! A gateway has the law's limit in flight in line with its requests. From here it would come late, so it becomes a
//! rate: while it is full, as many may come as complete.

use super::super::split::Passed;
use crate::{Beside, Controller, DefaultController, DefaultSpec, Mode, bounded};
use tidegate_model::signals::{ConnectionCounts, Counts, Reading, Signals};
use tidegate_units::Rate;

/// What a service can take in requests per second, by its exchanges.
#[derive(Debug)]
pub struct RequestLaw {
    spec: DefaultSpec,
    law: DefaultController,
    in_flight: Option<u64>,
    completes: Passed,
}

impl RequestLaw {
    /// Of a service of which nothing was seen.
    #[must_use]
    pub fn new(spec: DefaultSpec) -> Self {
        let (law, completes) = (DefaultController::new(spec), Passed::default());
        Self { spec, law, in_flight: None, completes }
    }

    /// What it was made with.
    #[must_use]
    pub const fn spec(&self) -> DefaultSpec {
        self.spec
    }

    /// A round: what the service limits itself to; `None`: no limit.
    pub fn tick(&mut self, signals: &Signals, mode: Mode) -> Option<Rate> {
        let signals = self.in_requests(signals);
        let limits = self.law.decide(&signals, mode, Beside::default()).limits;
        let completes = self.completes(&signals);
        let in_flight = signals.time.waiting.map(|reading| reading.value);
        let full = limits.waiting_max.zip(in_flight).is_some_and(|(most, found)| found >= most);
        limits.rate.or(completes.filter(|_| full))
    }

    /// Of late, or now if that is more: what is in flight has only just become so much.
    fn completes(&mut self, signals: &Signals) -> Option<Rate> {
        let seconds = signals.period.as_secs_f64();
        let counts = signals.balance.counts.filter(|_| seconds > 0.0)?;
        let done = counts.value.done();
        self.completes.see(seconds, done);
        let lately = self.completes.one_of(1).map_or(0.0, Rate::get);
        Some(bounded(lately.max(done as f64 / seconds)))
    }

    /// The signals of the same service as a gateway has them.
    fn in_requests(&mut self, signals: &Signals) -> Signals {
        let mut seen = signals.clone();
        seen.buckets.clear();
        let waiting = signals.time.waiting.map(|reading| reading.value);
        let before = std::mem::replace(&mut self.in_flight, waiting);
        seen.balance.counts = signals.balance.counts.and_then(|counts| {
            let value = exchanges(&counts.value, before?, waiting?);
            Some(Reading { value, ..counts })
        });
        let count = |value| signals.time.waiting.map(|reading| Reading { value, ..reading });
        seen.time.open = signals.time.waiting;
        (seen.time.silent, seen.time.slow) = (count(0), count(0));
        seen
    }
}

/// Exchanges of a tick at whose beginning and end so many were in flight, as connections with one each.
fn exchanges(counts: &Counts, before: u64, after: u64) -> Counts {
    let (done, unseen) = (counts.done(), counts.unseen);
    let lost = counts.connections.map_or(0, |connections| connections.lost);
    let over = done.saturating_add(unseen).saturating_add(lost);
    let begun = over.saturating_add(after).saturating_sub(before);
    Counts {
        offered: begun,
        repeated: 0,
        admitted: begun,
        refused: 0,
        connections: Some(ConnectionCounts {
            replied: begun,
            proved: begun,
            asked: begun,
            answered: done,
            lost,
            ended: done,
            ended_exchanges: done,
        }),
        ..*counts
    }
}

#[cfg(test)]
mod tests {
    use super::super::feedback::Feedback;
    use super::*;
    use tidegate_model::remote::{Hits, Scope, Unit};
    use tidegate_model::signals::Times;
    use tidegate_units::{Nanos, Share};

    const PERIOD: Nanos = Nanos::from_millis(100);
    /// Requests per second of the server, each of 2.5 ms of its CPU.
    const CAPACITY: f64 = 400.0;

    #[test]
    fn what_began_is_what_ended_and_what_stays() {
        let connections = ConnectionCounts { lost: 2, ..ConnectionCounts::default() };
        let counts = Counts {
            offered: 1,
            completed: 30,
            unknown: 5,
            unseen: 3,
            connections: Some(connections),
            ..Counts::default()
        };
        for (before, after, begun) in [(10, 10, 40), (10, 25, 55), (60, 10, 0), (10, 0, 30)] {
            let seen = exchanges(&counts, before, after);
            assert_eq!((seen.offered, seen.admitted, seen.refused), (begun, begun, 0));
            let connections = seen.connections.unwrap();
            assert_eq!((connections.asked, connections.answered, connections.lost), (begun, 35, 2));
        }
    }

    /// A server with one worker behind a gateway that keeps its connections: the hooks see exchanges, and no SYN.
    struct World {
        law: RequestLaw,
        feedback: Feedback,
        now: Nanos,
        /// At the gateway.
        due: f64,
        tokens: f64,
        told: Option<f64>,
        /// At the server.
        queue: f64,
        ready: f64,
    }

    impl World {
        fn new() -> Self {
            Self {
                law: RequestLaw::new(DefaultSpec::default()),
                feedback: Feedback::new(1, Rate::per_second(1.0)),
                now: Nanos::SECOND,
                due: 0.0,
                tokens: 0.0,
                told: None,
                queue: 0.0,
                ready: 0.0,
            }
        }

        /// What the gateway lets through of so many a second; the server hears of the rest.
        fn pass(&mut self, demand: f64) -> f64 {
            let seconds = PERIOD.as_secs_f64();
            self.due += demand * seconds;
            let offered = self.due.floor();
            self.due -= offered;
            self.tokens = match self.told {
                // A bucket of 20, filled while the round lasts.
                Some(rate) => self.tokens.min(20.0) + rate * seconds,
                None => offered,
            };
            let passed = offered.min(self.tokens.floor());
            self.tokens -= passed;
            let hits = Hits {
                scope: Scope::Service("shop".into()),
                unit: Unit::Requests,
                span: PERIOD,
                offered: offered as u64,
                refused: (offered - passed) as u64,
                probe: false,
            };
            self.feedback.hear(self.now, 0, &hits);
            passed
        }

        /// A round in which so many a second want to come; what was served, and what waits then.
        fn round(&mut self, demand: f64) -> (f64, f64) {
            self.now += PERIOD;
            self.queue += self.pass(demand);
            let most = CAPACITY * PERIOD.as_secs_f64();
            self.ready += most;
            let served = self.queue.min(self.ready.floor());
            self.ready = (self.ready - served).min(1.0);
            self.queue -= served;
            let own = self.law.tick(&self.signals(served, served / most), Mode::Enforce);
            self.told = self.feedback.tick(self.now, PERIOD, own)[0].map(Rate::get);
            (served, self.queue)
        }

        /// A pool: no connection comes, and none ends.
        fn signals(&self, served: f64, used: f64) -> Signals {
            let count = served as u64;
            let took = Nanos::from_secs_f64((self.queue + 1.0) / CAPACITY);
            let times = Times { count, sum: Nanos(took.0 * count), p50: took, p99: took };
            let mut signals = Signals { now: self.now, period: PERIOD, ..Signals::default() };
            let connections = Some(ConnectionCounts::default());
            let counts = Counts { completed: count, connections, ..Counts::default() };
            signals.balance.counts = Some(Reading::fresh(counts));
            signals.time.waiting = Some(Reading::fresh(self.queue as u64));
            signals.time.first_byte = Some(Reading::fresh(times));
            signals.resource.cpu = Some(Reading::fresh(Share::new(used.min(1.0))));
            signals
        }
    }

    #[test]
    fn a_server_behind_pools_tells_what_it_can_take() {
        let mut world = World::new();
        for _ in 0..600 {
            world.round(0.6 * CAPACITY);
            assert_eq!(world.told, None, "nothing at 0.6 of what it can do");
        }
        let (mut first, mut served, mut longest) = (None, 0.0, 0.0_f64);
        for round in 0..600 {
            let (good, queue) = world.round(3.0 * CAPACITY);
            first = first.or(world.told.map(|_| round));
            if round >= 100 {
                served += good;
                longest = longest.max(queue);
            }
        }
        let first = first.expect("a limit");
        assert!(first < 50, "within 5 s: {first}");
        let goodput = served / 50.0 / CAPACITY;
        assert!(goodput >= 0.95, "{goodput}");
        assert!(longest < CAPACITY, "{longest} wait, which is more than a second");
        // It ends when all fits again.
        for _ in 0..600 {
            world.round(0.6 * CAPACITY);
        }
        assert_eq!(world.told, None);
    }
}
