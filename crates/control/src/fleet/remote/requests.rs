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
//!
//! What gateways refuse because of this limit are the law's own refusals: without them a limit that works looks like
//! calm, ends, and what is held then is the rate by which the server was drained. They are known late, and only from
//! whoever refuses. So they count only while a limit is told, and once at least half of it completes: a rise has to
//! show at the server before the next one. (A few completions in one tick show little: below some tens a second the
//! least that a rise has to show is small.) Where hooks see less than half of the exchanges, they do not count.

use super::super::split::Passed;
use crate::{Beside, Controller, DefaultController, DefaultSpec, Mode, bounded};
use tidegate_model::signals::{ConnectionCounts, Counts, Reading, Signals};
use tidegate_units::Rate;

/// Of what was told so much has to complete before refusals count.
const SHOWN: f64 = 0.5;

/// What a service can take in requests per second, by its exchanges.
#[derive(Debug)]
pub struct RequestLaw {
    spec: DefaultSpec,
    law: DefaultController,
    in_flight: Option<u64>,
    completes: Passed,
    /// What the last round told.
    told: Option<Rate>,
}

impl RequestLaw {
    /// Of a service of which nothing was seen.
    #[must_use]
    pub fn new(spec: DefaultSpec) -> Self {
        let (law, completes) = (DefaultController::new(spec), Passed::default());
        Self { spec, law, in_flight: None, completes, told: None }
    }

    /// What it was made with.
    #[must_use]
    pub const fn spec(&self) -> DefaultSpec {
        self.spec
    }

    /// Why it told what it told last, in words.
    #[must_use]
    pub fn why(&self) -> String {
        let why = &self.law.last.why;
        match self.told {
            Some(told) if !why.shedding => {
                format!("{}; the limit in flight is full, and {told} complete", why.text)
            }
            _ => why.text.clone(),
        }
    }

    /// A round: what the service limits itself to; `None`: no limit. Since the last one gateways have said that they
    /// refused so many because of it.
    pub fn tick(&mut self, signals: &Signals, mode: Mode, refused: u64) -> Option<Rate> {
        let completes = self.completes(signals);
        let signals = self.in_requests(signals, (refused, completes));
        let limits = self.law.decide(&signals, mode, Beside::default()).limits;
        let in_flight = signals.time.waiting.map(|reading| reading.value);
        let full = limits.waiting_max.zip(in_flight).is_some_and(|(most, found)| found >= most);
        self.told = limits.rate.or(completes.filter(|_| full));
        self.told
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

    /// The signals of the same service as a gateway has them that has refused so many, while so many complete.
    fn in_requests(
        &mut self,
        signals: &Signals,
        (refused, completes): (u64, Option<Rate>),
    ) -> Signals {
        let shows = self.told.is_none_or(|told| {
            completes.is_some_and(|completes| completes.get() >= SHOWN * told.get())
        });
        let mut seen = signals.clone();
        seen.buckets.clear();
        let waiting = signals.time.waiting.map(|reading| reading.value);
        let before = std::mem::replace(&mut self.in_flight, waiting);
        seen.balance.counts = signals.balance.counts.and_then(|counts| {
            let mut value = exchanges(&counts.value, before?, waiting?);
            value.offered = value.offered.saturating_add(refused);
            value.refused = if shows { refused } else { 0 };
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
    use std::collections::VecDeque;
    use tidegate_model::remote::{Hits, Scope, Unit};
    use tidegate_model::signals::Times;
    use tidegate_units::{Nanos, Share};

    const PERIOD: Nanos = Nanos::from_millis(100);

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
        /// Requests per second that the server can do.
        capacity: f64,
        /// Of its exchanges so many are seen.
        seen: f64,
        /// Rounds by which what the gateway says, and what it is told, is late.
        late: usize,
        said: VecDeque<Option<Hits>>,
        tells: VecDeque<Option<f64>>,
        /// What it claims to have refused in each round, beside what it has.
        claims: u64,
        /// At the gateway.
        due: f64,
        tokens: f64,
        told: Option<f64>,
        /// At the server.
        queue: f64,
        ready: f64,
    }

    impl World {
        fn new(capacity: f64) -> Self {
            Self {
                law: RequestLaw::new(DefaultSpec::default()),
                feedback: Feedback::new(1, Rate::per_second(1.0)),
                now: Nanos::SECOND,
                capacity,
                seen: 1.0,
                late: 0,
                said: VecDeque::new(),
                tells: VecDeque::new(),
                claims: 0,
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
            let refused = if self.told.is_some() { (offered - passed) as u64 } else { 0 };
            self.says(offered as u64, refused);
            passed
        }

        fn says(&mut self, offered: u64, refused: u64) {
            let (scope, unit) = (Scope::Service("shop".into()), Unit::Requests);
            let offered = offered.saturating_add(self.claims);
            let refused = refused.saturating_add(self.claims);
            let hits = Hits { scope, unit, span: PERIOD, offered, refused, probe: false };
            self.said.push_back(Some(hits));
            if self.said.len() > self.late
                && let Some(hits) = self.said.pop_front().flatten()
            {
                self.feedback.hear(self.now, 0, &hits);
            }
        }

        /// A round in which so many a second want to come; what was served, and what waits then.
        fn round(&mut self, demand: f64) -> (f64, f64) {
            self.now += PERIOD;
            self.queue += self.pass(demand);
            let most = self.capacity * PERIOD.as_secs_f64();
            self.ready += most;
            let served = self.queue.min(self.ready.floor());
            self.ready = (self.ready - served).min(1.0);
            self.queue -= served;
            let signals = self.signals(served, served / most);
            let refused = self.feedback.take_refused();
            let own = self.law.tick(&signals, Mode::Enforce, refused);
            self.tells.push_back(self.feedback.tick(self.now, PERIOD, own)[0].map(Rate::get));
            if self.tells.len() > self.late {
                self.told = self.tells.pop_front().flatten();
            }
            (served, self.queue)
        }

        /// A pool: no connection comes, and none ends.
        fn signals(&self, served: f64, used: f64) -> Signals {
            let count = (self.seen * served) as u64;
            let took = Nanos::from_secs_f64((self.queue + 1.0) / self.capacity);
            let times = Times { count, sum: Nanos(took.0 * count), p50: took, p99: took };
            let mut signals = Signals { now: self.now, period: PERIOD, ..Signals::default() };
            let connections = Some(ConnectionCounts::default());
            let counts = Counts { completed: count, connections, ..Counts::default() };
            signals.balance.counts = Some(Reading::fresh(counts));
            signals.time.waiting = Some(Reading::fresh((self.seen * self.queue) as u64));
            signals.time.first_byte = Some(Reading::fresh(times));
            signals.resource.cpu = Some(Reading::fresh(Share::new(used.min(1.0))));
            signals
        }

        /// So many rounds in which so many times what it can do want to come.
        fn rounds(&mut self, number: usize, times: f64) -> Seen {
            let (mut served, mut longest, mut first) = (0.0, 0.0_f64, None);
            for round in 0..number {
                let (good, queue) = self.round(times * self.capacity);
                first = first.or(self.told.map(|_| round));
                served += good;
                longest = longest.max(queue);
            }
            let all = self.capacity * number as f64 * PERIOD.as_secs_f64();
            Seen { first, goodput: served / all, longest_s: longest / self.capacity }
        }
    }

    struct Seen {
        /// The round of the first limit.
        first: Option<usize>,
        /// Of the capacity.
        goodput: f64,
        /// The longest queue, as seconds of work.
        longest_s: f64,
    }

    #[test]
    fn a_server_behind_pools_tells_what_it_can_take() {
        for (capacity, times) in
            [(400.0, 3.0), (400.0, 1.2), (400.0, 10.0), (200.0, 3.0), (2_000.0, 3.0)]
        {
            let of = format!("{times} times {capacity}/s");
            let mut world = World::new(capacity);
            assert_eq!(world.rounds(600, 0.6).first, None, "{of}: nothing at 0.6 of it");
            let first = world.rounds(100, times);
            assert!(first.first.is_some_and(|first| first < 50), "{of}: {:?}", first.first);
            assert!(first.goodput >= 0.95, "{of}: {} in the first 10 s", first.goodput);
            let then = world.rounds(500, times);
            assert!(then.goodput >= 0.95, "{of}: {} after 10 s", then.goodput);
            assert!(then.longest_s < 0.5, "{of}: {} s wait", then.longest_s);
            let why = world.law.why();
            assert!(why.starts_with("shedding: capacity "), "{of}: {why}");
            // It ends when all fits again.
            world.rounds(600, 0.6);
            assert_eq!(world.told, None, "{of}");
            let why = world.law.why();
            assert!(why.starts_with("calm: "), "{of}: {why}");
        }
    }

    /// Connections that are older than the hooks are never seen. A crowd comes by new ones.
    #[test]
    fn a_server_of_which_little_was_seen_before_finds_its_limit_soon() {
        let mut world = World::new(400.0);
        world.seen = 0.02;
        assert_eq!(world.rounds(600, 0.2).first, None);
        world.seen = 0.95;
        world.rounds(50, 3.0);
        let seen = world.rounds(200, 3.0);
        assert!(seen.goodput >= 0.9, "{} from the sixth second on", seen.goodput);
    }

    #[test]
    fn news_may_be_late() {
        for (late, goodput_min) in [(3, 0.95), (10, 0.9), (25, 0.85)] {
            let mut world = World::new(400.0);
            world.late = late;
            world.rounds(600, 0.6);
            world.rounds(100, 3.0);
            let seen = world.rounds(500, 3.0);
            assert!(seen.goodput >= goodput_min, "{late} rounds: {}", seen.goodput);
        }
    }

    /// Its claims begin no limit, and none rises for them far beyond what the server has shown.
    #[test]
    fn a_gateway_that_always_claims_refusals_winds_nothing_up() {
        for claims in [1, 1_000, u64::MAX] {
            let mut world = World::new(400.0);
            world.claims = claims;
            assert_eq!(world.rounds(600, 0.6).first, None, "{claims}");
            let mut most = 0.0_f64;
            for _ in 0..600 {
                world.round(3.0 * 400.0);
                most = most.max(world.told.unwrap_or(0.0));
            }
            assert!(most <= 4.0 * 400.0, "{claims}: {most}/s");
            world.claims = 0;
            world.rounds(50, 3.0);
            let seen = world.rounds(100, 3.0);
            assert!(seen.goodput >= 0.95, "{claims}: {} when it is over", seen.goodput);
        }
    }
}
