// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue of the paper's control node: requests that come too early wait here, and not at the server.
//!
//! The policy gives each request that is to wait a *slot*, the time at which one may go. Slots are not
//! bound to those who brought them: when one is due, the waiting request with the highest priority
//! goes, and among equals the one that came first. So a client that leaves gives its place to those
//! behind it at once, and a higher priority overtakes. A slot that is due while nobody waits is lost:
//! that is the gap. Where the queue is full, a higher priority takes the place of the last of the lowest.

use crate::counters::one;
use crate::front::{Front, duration};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_config::ProxyQueue;
use tidegate_gate::Waiting;
use tidegate_units::Nanos;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

/// A slot may be due after the longest wait, and is then a little late.
const SLACK: Duration = Duration::from_millis(20);

/// In the order in which they go: priority, then who came first.
type Place = (u8, u64);

/// Those who wait for one service.
#[derive(Default)]
struct Line {
    /// With a number each: two may be due at one time.
    slots: BTreeSet<(Nanos, u64)>,
    waiting: BTreeMap<Place, oneshot::Sender<()>>,
}

impl Line {
    /// Those whose turn it is.
    fn due(&mut self, now: Nanos) -> Vec<oneshot::Sender<()>> {
        let mut all = Vec::new();
        while self.slots.first().is_some_and(|(at, _)| *at <= now) {
            self.slots.pop_first();
            let in_order = std::iter::from_fn(|| self.waiting.pop_first());
            // Who is leaving just now does not want it.
            all.extend(in_order.map(|(_, turn)| turn).find(|turn| !turn.is_closed()));
        }
        all
    }
}

/// By service.
#[derive(Default)]
struct Lines {
    by_service: BTreeMap<usize, Line>,
    waiting: usize,
    numbers: u64,
    /// Whether somebody calls those whose turn it is.
    called: bool,
}

impl Lines {
    /// One more, whose slot is due then. Where there are `most` already the last of the lowest priority leaves for
    /// one of a higher priority. `None`: there is none below it, and the slot serves others.
    fn join(
        &mut self,
        (service, priority): (usize, u8),
        due: Nanos,
        most: usize,
    ) -> Option<(Place, oneshot::Receiver<()>)> {
        self.numbers += 1;
        let number = self.numbers;
        let line = self.by_service.entry(service).or_default();
        line.slots.insert((due, number));
        if self.waiting >= most && !self.displace(priority) {
            return None;
        }
        let line = self.by_service.entry(service).or_default();
        let (turn, called) = oneshot::channel();
        line.waiting.insert((priority, number), turn);
        self.waiting += 1;
        Some(((priority, number), called))
    }

    /// Takes out the last of those who would go last, if its priority is below this one: it hears that nobody
    /// will call it.
    fn displace(&mut self, priority: u8) -> bool {
        let last = |line: &Line| line.waiting.last_key_value().map(|(place, _)| *place);
        let lines = self.by_service.iter();
        let lowest = lines.filter_map(|(service, line)| Some((last(line)?, *service))).max();
        let below = lowest.filter(|((lowest, _), _)| *lowest > priority);
        below.map(|(place, service)| self.leave(service, place)).is_some()
    }

    /// It does not wait any more, if it still did.
    fn leave(&mut self, service: usize, place: Place) {
        let line = self.by_service.get_mut(&service);
        if line.is_some_and(|line| line.waiting.remove(&place).is_some()) {
            self.waiting -= 1;
        }
    }

    fn due(&mut self, now: Nanos) -> Vec<oneshot::Sender<()>> {
        let all: Vec<_> = self.by_service.values_mut().flat_map(|line| line.due(now)).collect();
        self.waiting = self.by_service.values().map(|line| line.waiting.len()).sum();
        self.by_service.retain(|_, line| !line.slots.is_empty() || !line.waiting.is_empty());
        all
    }

    /// When the next slot is due.
    fn next(&self) -> Option<Nanos> {
        let first = |line: &Line| line.slots.first().map(|(at, _)| *at);
        self.by_service.values().filter_map(first).min()
    }
}

/// The queue of one proxy.
#[derive(Default)]
pub(crate) struct Queue {
    lines: Mutex<Lines>,
    /// An earlier slot has come.
    changed: Notify,
}

/// Why a request did not get its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTurn {
    Full,
    TooLong,
}

impl Queue {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn. Dropped, it leaves.
    pub(crate) async fn wait(
        front: &Arc<Front>,
        waiting: &Waiting,
        queue: &ProxyQueue,
    ) -> Result<(), NoTurn> {
        let (service, priority) = (waiting.service(), waiting.priority());
        let joined = {
            let mut lines = front.queue.lines();
            let joined = lines.join((service, priority), waiting.due(), queue.length as usize);
            if !std::mem::replace(&mut lines.called, true) {
                tokio::spawn(call(Arc::clone(front)));
            }
            joined
        };
        front.queue.changed.notify_one();
        let (place, turn) = joined.ok_or(NoTurn::Full)?;
        let _waits = Waits { front, service, place };
        match timeout(duration(queue.longest_wait) + SLACK, turn).await {
            Ok(Ok(())) => Ok(()),
            // Its place was given to another.
            Ok(Err(_)) => Err(NoTurn::Full),
            Err(_) => Err(NoTurn::TooLong),
        }
    }
}

/// A request in the queue.
struct Waits<'a> {
    front: &'a Front,
    service: usize,
    place: Place,
}

impl<'a> Drop for Waits<'a> {
    fn drop(&mut self) {
        self.front.queue.lines().leave(self.service, self.place);
    }
}

/// Calls those whose turn it is, until there is no slot left.
async fn call(front: Arc<Front>) {
    loop {
        let next = {
            let mut lines = front.queue.lines();
            for turn in lines.due(front.now()) {
                // Who has left meanwhile does not want it: then the slot is lost.
                let _ = turn.send(());
            }
            let next = lines.next();
            lines.called = next.is_some();
            next
        };
        let Some(next) = next else { return };
        tokio::select! {
            () = sleep(duration(next.since(front.now()))) => {}
            () = front.queue.changed.notified() => {}
        }
    }
}

/// Counts how a request left the queue.
pub(crate) struct Waited<'a> {
    front: &'a Front,
    began: Nanos,
    counted: bool,
}

impl<'a> Waited<'a> {
    pub(crate) fn new(front: &'a Front) -> Self {
        front.counters.waiting.fetch_add(1, Relaxed);
        Self { front, began: front.now(), counted: false }
    }

    pub(crate) fn end(mut self, turn: Result<(), NoTurn>) {
        let counters = &self.front.counters;
        one(match turn {
            Ok(()) => &counters.waited,
            Err(NoTurn::Full) => &counters.queue_full,
            Err(NoTurn::TooLong) => &counters.waited_too_long,
        });
        if turn.is_ok() {
            counters.waited_ns.fetch_add(self.front.now().since(self.began).0, Relaxed);
        }
        self.counted = true;
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.front.counters.waiting.fetch_sub(1, Relaxed);
        if !self.counted {
            one(&self.front.counters.left_queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: usize = 1;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// Who goes at each of these times, by number.
    fn called(lines: &mut Lines, who: &mut [oneshot::Receiver<()>], at: u64) -> Vec<usize> {
        for turn in lines.due(ms(at)) {
            let _ = turn.send(());
        }
        let gone =
            |(n, turn): (usize, &mut oneshot::Receiver<()>)| turn.try_recv().ok().map(|()| n);
        who.iter_mut().enumerate().filter_map(gone).collect()
    }

    fn join(lines: &mut Lines, priority: u8, due: u64) -> (Place, oneshot::Receiver<()>) {
        lines.join((SHOP, priority), ms(due), 10).unwrap()
    }

    #[test]
    fn each_slot_serves_the_highest_priority_and_then_who_came_first() {
        let mut lines = Lines::default();
        let joined = [(7, 100), (7, 200), (3, 300), (7, 400)];
        let mut who: Vec<_> = joined.map(|(p, due)| join(&mut lines, p, due).1).into();
        assert_eq!(lines.next(), Some(ms(100)));
        assert!(called(&mut lines, &mut who, 99).is_empty());
        assert_eq!(called(&mut lines, &mut who, 100), [2]);
        assert_eq!(called(&mut lines, &mut who, 350), [0, 1]);
        assert!(called(&mut lines, &mut who, 399).is_empty());
        assert_eq!(called(&mut lines, &mut who, 400), [3]);
        assert_eq!((lines.waiting, lines.next()), (0, None));
        assert!(lines.by_service.is_empty());
    }

    #[test]
    fn who_leaves_gives_its_place_to_those_behind() {
        let mut lines = Lines::default();
        let (first, _gone) = join(&mut lines, 7, 100);
        let mut who = vec![join(&mut lines, 7, 200).1];
        lines.leave(SHOP, first);
        lines.leave(SHOP, first);
        assert_eq!(lines.waiting, 1);
        assert_eq!(called(&mut lines, &mut who, 100), [0], "in the slot of the one that left");
        // A slot is left over, for who comes before it is due.
        who.push(join(&mut lines, 7, 300).1);
        assert_eq!(called(&mut lines, &mut who, 200), [1]);
        assert!(called(&mut lines, &mut who, 300).is_empty());
        assert_eq!(lines.next(), None, "one that is due while nobody waits is lost");
    }

    #[test]
    fn there_is_a_bound_over_all_services_and_slots_are_not_mixed() {
        let mut lines = Lines::default();
        let one = lines.join((1, 7), ms(100), 2);
        let (_, mut two) = lines.join((2, 7), ms(200), 2).unwrap();
        assert!(one.is_some());
        assert!(lines.join((2, 7), ms(150), 2).is_none(), "full");
        for turn in lines.due(ms(100)) {
            let _ = turn.send(());
        }
        assert!(two.try_recv().is_err(), "that slot was the other service's");
        for turn in lines.due(ms(150)) {
            let _ = turn.send(());
        }
        assert!(two.try_recv().is_ok(), "the slot of the refused serves who waits");
        assert!(lines.join((2, 0), ms(300), 2).is_some());
    }

    #[test]
    fn in_a_full_queue_a_higher_priority_takes_the_place_of_the_last_of_the_lowest() {
        let mut lines = Lines::default();
        let all = [(1, 3), (1, 7), (2, 7), (1, 5)];
        let mut who: Vec<_> = all
            .into_iter()
            .zip([100, 200, 300, 400])
            .map(|(of, due)| lines.join(of, ms(due), 4).unwrap().1)
            .collect();
        let gone = |who: &mut [oneshot::Receiver<()>]| -> Vec<usize> {
            let closed = |turn: &mut oneshot::Receiver<()>| {
                turn.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            };
            let each = who.iter_mut().enumerate();
            each.filter_map(|(n, turn)| closed(turn).then_some(n)).collect()
        };
        who.push(lines.join((2, 6), ms(500), 4).unwrap().1);
        assert_eq!(gone(&mut who), [2], "the last of priority 7, of another service");
        who.push(lines.join((1, 0), ms(600), 4).unwrap().1);
        assert_eq!(gone(&mut who), [1, 2]);
        assert!(lines.join((1, 6), ms(700), 4).is_none(), "nobody is below it");
        who.push(lines.join((1, 0), ms(800), 4).unwrap().1);
        assert_eq!((gone(&mut who), lines.waiting), (vec![1, 2, 4], 4));
        // The slots of those who left serve the others of their service.
        assert_eq!(called(&mut lines, &mut who, 200), [5, 6]);
        assert_eq!(called(&mut lines, &mut who, 700), [0, 3]);
        assert_eq!(lines.waiting, 0);
    }
}
