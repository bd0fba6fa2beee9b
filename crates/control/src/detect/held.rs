// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Workers that are held by connections which send no request, or send one slowly.
//!
//! Such a server is exhausted while its CPU is free: its accept queue grows, responses become late,
//! and less completes than comes. It looks like an overload, and refusing clients that send their
//! requests frees no worker. So it is a cause of its own: there is no alarm for it, and who holds most of
//! these connections may open fewer. The limit in flight of calm stays: it bounds what waits meanwhile,
//! whatever the cause is.
//!
//! Every client is silent for a moment, between its handshake and its request, in TLS for a round trip.
//! Those do not count: of the silent, as many as ask within a long round trip are on their way. And more
//! connections have to be held than are known to work.
//!
//! Connections that are idle after a response hold workers, too, of a server with one for each connection.
//! For the operator that is a cause with another remedy; limits do not know it.

use super::evidence::busy;
use super::scale::LASTING_SECONDS;
use crate::period_s;
use tidegate_model::signals::{AcceptQueue, Reading, Signals};
use tidegate_units::{Nanos, Share};

/// Least part of the accepted connections that is silent or slow.
const PART_MIN: f64 = 0.5;
/// An accept queue of this share of its limit waits for workers.
const QUEUE_MIN: f64 = 0.1;
/// Below this the CPU is free: it is not work that holds them.
const CPU_FREE: f64 = 0.7;
/// Who is silent and asks within this time holds nothing: a round trip of TLS, as long as those of
/// policy/chain/senders.h.
const ASKS_SECONDS: f64 = 0.25;

/// What silent and slow connections do to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldWorkers {
    /// Connections that are silent and do not ask soon, or that are slow.
    pub held: u64,
    /// All that are open.
    pub open: u64,
    /// The accept queue.
    pub queue: AcceptQueue,
}

/// What connections that are idle after a response do to a service. It is a cause for words only: they
/// look like those of any browser (decision 14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleWorkers {
    /// Connections that got a response, and whose client sends no request now.
    pub idle: u64,
    /// All that are open.
    pub open: u64,
    /// The accept queue.
    pub queue: AcceptQueue,
}

/// The connections of a service whose accept queue waits for workers while its CPU is free.
struct Starved {
    open: u64,
    waiting: u64,
    silent: u64,
    slow: u64,
    queue: AcceptQueue,
}

impl Starved {
    /// By signals that are no older than this; `None`: it is not so, or it is not known.
    fn of(signals: &Signals, age_max: Nanos) -> Option<Self> {
        let young = |reading: Reading<u64>| reading.within(age_max);
        let silent = young(signals.time.silent?)?;
        let slow = signals.time.slow.and_then(young).unwrap_or(0);
        let (open, waiting) = (young(signals.time.open?)?, young(signals.time.waiting?)?);
        let queue = signals.queue.accept?.within(age_max)?;
        let free = busy(&signals.resource, age_max)? < Share::new(CPU_FREE);
        let waits = queue.length as f64 >= QUEUE_MIN * queue.limit.max(1) as f64;
        (waits && free).then_some(Self { open, waiting, silent, slow, queue })
    }

    /// Connections that the server has accepted: who stands in the accept queue has no worker.
    fn accepted(&self) -> u64 {
        self.open.saturating_sub(self.queue.length)
    }
}

impl HeldWorkers {
    /// Whether they hold the workers of a service at this moment, by signals that are no older than
    /// this; `None`: they do not, or it is not known.
    #[must_use]
    pub fn of(signals: &Signals, age_max: Nanos) -> Option<Self> {
        let counts = signals.balance.counts.and_then(|counts| counts.within(age_max));
        let asked = counts.and_then(|counts| counts.connections).map_or(0, |all| all.asked);
        Self::with_asked(signals, asked, age_max)
    }

    /// The same where so many connections sent their first request to the server.
    pub(crate) fn with_asked(signals: &Signals, asked: u64, age_max: Nanos) -> Option<Self> {
        let starved = Starved::of(signals, age_max)?;
        let Starved { open, waiting, silent, slow, queue } = starved;
        let on_their_way = (asked as f64 * ASKS_SECONDS / period_s(signals)) as u64;
        let held = silent.saturating_sub(on_their_way) + slow;
        // At most all of the queue wait there.
        let working = waiting.saturating_sub(queue.length);
        let many = held > working && held as f64 >= PART_MIN * starved.accepted() as f64;
        many.then_some(Self { held, open, queue })
    }
}

impl IdleWorkers {
    /// Whether they hold the workers of a service at this moment, by signals that are no older than
    /// this; `None`: they do not, or it is not known. Where accept is deferred, a silent connection
    /// stands in no queue and holds no worker.
    #[must_use]
    pub fn of(signals: &Signals, defer_accept: bool, age_max: Nanos) -> Option<Self> {
        let starved = Starved::of(signals, age_max)?;
        let Starved { open, waiting, silent, slow, queue } = starved;
        let idle = open.saturating_sub(waiting.saturating_add(silent).saturating_add(slow));
        let without = if defer_accept { silent } else { 0 };
        let accepted = starved.accepted().saturating_sub(without);
        let most = idle as f64 > PART_MIN * accepted as f64;
        most.then_some(Self { idle, open, queue })
    }
}

/// For how long they have held them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    seconds: f64,
    after_s: f64,
}

impl Held {
    /// Takes a tick of so many seconds.
    pub(crate) fn see(&mut self, cause: Option<HeldWorkers>, seconds: f64) {
        self.seconds = if cause.is_some() { self.seconds + seconds } else { 0.0 };
        let on = self.seconds >= LASTING_SECONDS;
        self.after_s = if on { LASTING_SECONDS } else { (self.after_s - seconds).max(0.0) };
    }

    /// Whether they hold them, and for long enough.
    pub(crate) fn lasts(self) -> bool {
        self.after_s > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Controller, DefaultController, DefaultSpec, Mode};
    use tidegate_model::limits::ServiceLimits;
    use tidegate_model::signals::{ConnectionCounts, Counts, Times};

    const AGE_MAX: Nanos = Nanos::from_secs(3);

    fn signals(silent: u64, open: u64, length: u64, cpu: f64) -> Signals {
        let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        signals.time.silent = Some(Reading::fresh(silent));
        signals.time.waiting = Some(Reading::fresh(open - silent));
        signals.time.open = Some(Reading::fresh(open));
        signals.queue.accept = Some(Reading::fresh(AcceptQueue { length, limit: 100 }));
        signals.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
        signals
    }

    fn of(signals: &Signals) -> Option<HeldWorkers> {
        HeldWorkers::of(signals, AGE_MAX)
    }

    #[test]
    fn silent_connections_that_hold_workers_are_a_cause_and_nothing_else_is() {
        let is = |silent, open, length, cpu| of(&signals(silent, open, length, cpu)).is_some();
        assert!(is(60, 104, 40, 0.02), "40 in the queue, 4 work");
        assert!(is(2, 14, 12, 0.69), "a small server has few workers");
        assert!(!is(0, 40, 40, 0.02), "nobody is silent");
        assert!(!is(60, 161, 40, 0.02), "most of the workers work");
        assert!(is(60, 159, 40, 0.02), "who waits in the queue has no worker");
        assert!(!is(60, 73, 9, 0.02), "nobody waits");
        assert!(!is(60, 104, 40, 0.7), "the CPU is what is short");
        let mut at_its_end = signals(60, 104, 40, 0.02);
        at_its_end.resource.busiest_thread = Some(Reading::fresh(Share::new(1.0)));
        assert_eq!(of(&at_its_end), None, "a thread is what is short");
        let mut slow = signals(10, 74, 40, 0.02);
        assert_eq!(of(&slow), None);
        slow.time.slow = Some(Reading::fresh(22));
        slow.time.waiting = Some(Reading::fresh(42));
        assert!(of(&slow).is_some(), "slow requests hold workers, too");
        let mut old = signals(60, 104, 40, 0.02);
        old.time.silent = Some(Reading { value: 60, age: AGE_MAX + Nanos(1) });
        assert_eq!(of(&old), None, "what is old is no reason");
        let mut old = signals(60, 104, 40, 0.02);
        old.resource.cpu = Some(Reading { value: Share::ZERO, age: AGE_MAX + Nanos(1) });
        assert_eq!(of(&old), None, "the CPU may be busy by now");
        for missing in [
            (|s: &mut Signals| s.time.silent = None) as fn(&mut Signals),
            |s| s.time.open = None,
            |s| s.time.waiting = None,
            |s| s.queue.accept = None,
            |s| s.resource.cpu = None,
        ] {
            let mut signals = signals(60, 104, 40, 0.02);
            missing(&mut signals);
            assert_eq!(of(&signals), None, "what is not known is no reason");
        }
    }

    #[test]
    fn idle_connections_that_hold_workers_are_a_cause_and_nothing_else_is() {
        let signals = |idle: u64, working: u64, length: u64, cpu: f64| {
            let mut signals = signals(0, idle + working + length, length, cpu);
            signals.time.waiting = Some(Reading::fresh(working + length));
            signals
        };
        let of = |signals: &Signals| IdleWorkers::of(signals, false, AGE_MAX).map(|it| it.idle);
        let is = |idle, working, length, cpu| of(&signals(idle, working, length, cpu));
        assert_eq!(is(60, 4, 40, 0.02), Some(60));
        assert_eq!(is(33, 31, 40, 0.69), Some(33));
        assert_eq!(is(32, 32, 40, 0.02), None, "half of the workers work");
        assert_eq!(is(60, 4, 9, 0.02), None, "nobody waits");
        assert_eq!(is(9_000, 4, 0, 0.02), None, "an event loop");
        assert_eq!(is(60, 4, 40, 0.7), None, "the CPU is what is short");
        let mut at_its_end = signals(60, 4, 40, 0.02);
        at_its_end.resource.busiest_thread = Some(Reading::fresh(Share::new(1.0)));
        assert_eq!(of(&at_its_end), None, "a thread is what is short");
        let mut slow = signals(60, 4, 40, 0.02);
        slow.time.slow = Some(Reading::fresh(30));
        assert_eq!(of(&slow), None, "half of them send a request slowly");
        let mut old = signals(60, 4, 40, 0.02);
        old.time.open = Some(Reading { value: 104, age: AGE_MAX + Nanos(1) });
        assert_eq!(of(&old), None, "what is old is no reason");
    }

    /// 60 idle connections hold workers, and 70 silent ones do if accept is not deferred.
    #[test]
    fn silent_connections_count_where_the_server_accepts_them() {
        let mut silent = signals(70, 174, 40, 0.02);
        silent.time.waiting = Some(Reading::fresh(44));
        assert_eq!(IdleWorkers::of(&silent, false, AGE_MAX), None);
        assert_eq!(IdleWorkers::of(&silent, true, AGE_MAX).map(|it| it.idle), Some(60));
        assert!(of(&silent).is_some(), "the other cause");
    }

    /// A tick of a prefork server at a light load: so many workers are held by who says nothing, so
    /// few clients are served that more and more of them stand in the accept queue.
    fn starved(n: u64, silent: u64) -> Signals {
        let mut s = light(n);
        let waits = 4 * n.saturating_sub(399);
        s.time.waiting = Some(Reading::fresh(2 + waits));
        s.time.open = Some(Reading::fresh(64 + waits));
        s.time.silent = Some(Reading::fresh(silent));
        s.queue.accept = Some(Reading::fresh(AcceptQueue { length: waits, limit: 511 }));
        s
    }

    fn light(n: u64) -> Signals {
        let served = if n < 400 { 10 } else { 6 };
        let period = Nanos::from_millis(100);
        let mut s = Signals { now: Nanos(period.0 * n), period, ..Signals::default() };
        let connections = ConnectionCounts {
            replied: 10,
            proved: 10,
            asked: 10,
            answered: served,
            ended: served,
            ended_exchanges: served,
            ..ConnectionCounts::default()
        };
        s.balance.counts = Some(Reading::fresh(Counts {
            offered: 10,
            admitted: 10,
            completed: served,
            connections: Some(connections),
            ..Counts::default()
        }));
        let took = Nanos::from_millis(if n < 400 { 10 } else { 10 + (n - 400) * 66 });
        let times = Times { count: served, sum: Nanos(took.0 * served), p50: took, p99: took };
        s.time.waiting = Some(Reading::fresh(2));
        s.time.first_byte = Some(Reading::fresh(times));
        s.time.open = Some(Reading::fresh(4));
        s.time.silent = Some(Reading::fresh(0));
        s.resource.cpu = Some(Reading::fresh(Share::new(0.2)));
        s.queue.accept = Some(Reading::fresh(AcceptQueue { length: 0, limit: 511 }));
        s
    }

    /// Of 40 ticks, those in which it sheds, and in which it limits what is in flight.
    fn limits(silent: u64) -> (usize, usize) {
        let mut controller = DefaultController::new(DefaultSpec::default());
        (0..400).for_each(|n| drop(controller.tick(&light(n), Mode::Enforce)));
        let ticks = (400..500).map(|n| controller.tick(&starved(n, silent), Mode::Enforce));
        let last: Vec<_> = ticks.skip(60).collect();
        let count =
            |is: fn(&ServiceLimits) -> bool| last.iter().filter(|limits| is(limits)).count();
        (count(|limits| limits.why.shedding), count(|limits| limits.waiting_max.is_some()))
    }

    #[test]
    fn there_is_no_alarm_for_silent_connections() {
        assert_eq!(limits(62), (0, 40), "the limit in flight of calm stays");
        let (shedding, in_flight) = limits(0);
        assert!(
            shedding > 30 && in_flight == 40,
            "the same without them is an overload: {shedding}"
        );
    }

    /// 64 workers are busy with requests that wait for a database, and a crowd stands in the queue.
    #[test]
    fn silent_connections_that_hold_no_worker_are_no_cause() {
        // deferred accept: none of 60 silent ones reaches the queue
        let mut deferred = signals(60, 324, 200, 0.3);
        deferred.queue.accept = Some(Reading::fresh(AcceptQueue { length: 200, limit: 511 }));
        assert_eq!(of(&deferred), None);
    }

    /// TLS, 32 workers, a round trip of 60 ms and 20 ms of work: 24 are silent all the time, and each of
    /// them asks in a moment.
    #[test]
    fn who_asks_soon_holds_nothing() {
        let tls = |asked: u64| {
            let mut tls = signals(24, 48, 16, 0.35);
            tls.time.waiting = Some(Reading::fresh(24));
            let connections = Some(ConnectionCounts { asked, ..ConnectionCounts::default() });
            let counts = Counts { connections, ..Counts::default() };
            tls.balance.counts = Some(Reading::fresh(counts));
            of(&tls)
        };
        assert_eq!(tls(40), None);
        assert!(tls(0).is_some(), "the same while nobody asks");
    }

    #[test]
    fn a_burst_is_no_cause_and_one_that_lasts_ends_a_second_after_it() {
        let (cause, mut held) = (of(&signals(60, 104, 40, 0.02)), Held::default());
        (0..9).for_each(|_| held.see(cause, 0.1));
        assert!(!held.lasts());
        held.see(None, 0.1);
        (0..9).for_each(|_| held.see(cause, 0.1));
        assert!(!held.lasts(), "it begins anew");
        (0..2).for_each(|_| held.see(cause, 0.1));
        assert!(held.lasts());
        (0..8).for_each(|_| held.see(None, 0.1));
        assert!(held.lasts(), "a moment without a queue");
        (0..4).for_each(|_| held.see(None, 0.1));
        assert!(!held.lasts());
    }
}
