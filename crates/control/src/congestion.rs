// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the way from a router to its servers is congested, by what one interface sent, dropped and
//! holds back. What decides is `policy/router/congestion.h`; here its ticks are made of counters.
//!
//! The paper's threshold is the average queue of each packet's arrival: 15 of a queue of 30, 25 of one of
//! 50. Here the queue is looked at once a tick, so its average is over ticks, and the threshold is half of
//! whatever the queue holds.

use std::collections::VecDeque;
use tidegate_model::signals::LinkUse;
use tidegate_model::snapshot::LinkState;
use tidegate_policy::{Congestion, CongestionSpec, LinkTick};
use tidegate_units::{Nanos, Share};

/// Shares of packets and of the rate are over this time: a tick of a slow link has a few packets.
const WINDOW: Nanos = Nanos::SECOND;
/// Most ticks in it.
const TICKS_MAX: usize = 256;
/// A full queue, in the units of the policy: packets of a queue that holds so many.
const FULL: f64 = 1000.0;
/// A longer tick is none: the daemon stood still, and nobody knows what was between.
const TICK_MAX: Nanos = Nanos::from_secs(2);
/// What a refused connection would have carried where none was admitted lately: its SYN.
const SYN_BYTES: f64 = 74.0;

/// When a link is congested. Values of the paper and of `sim/src/netdraino/spec.rs`; the weight is of a tick.
#[must_use]
pub fn spec() -> CongestionSpec {
    CongestionSpec {
        queue: FULL / 2.0,
        weight: Share::new(0.2),
        drops: Share::new(0.01),
        rate: Share::new(0.95),
        fits: Share::new(0.9),
        calm_ticks: 10,
    }
}

/// New connections of all services of the router in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// That passed.
    pub passed: u64,
    /// That remote limits refused.
    pub refused: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tick {
    at: Nanos,
    link: LinkTick,
    arrivals: Arrivals,
}

/// One interface.
#[derive(Clone, Debug)]
pub struct LinkWatch {
    congestion: Congestion,
    before: Option<(Nanos, LinkUse)>,
    lately: VecDeque<Tick>,
    since: Option<Nanos>,
}

/// What a tick changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Congestion began.
    Began,
    /// It ended, after so long.
    Ended(Nanos),
}

impl Default for LinkWatch {
    fn default() -> Self {
        let (congestion, lately) = (Congestion::new(&spec()), VecDeque::new());
        Self { congestion, before: None, lately, since: None }
    }
}

impl LinkWatch {
    /// A tick has ended.
    pub fn tick(&mut self, now: Nanos, seen: &LinkUse, arrivals: Arrivals) -> Option<Turn> {
        let before = self.before.replace((now, seen.clone()));
        let Some(link) = before.and_then(|(at, before)| difference((at, &before), (now, seen)))
        else {
            // Another queue or a pause: nothing is known of what was, and congestion stays as it is.
            self.lately.clear();
            return None;
        };
        self.lately.push_back(Tick { at: now, link, arrivals });
        let old = |tick: &Tick| now.since(tick.at) >= WINDOW;
        while self.lately.len() > TICKS_MAX || self.lately.front().is_some_and(old) {
            self.lately.pop_front();
        }
        let filled = seen.queue.map_or(0.0, |queue| queue.length / queue.limit.max(1.0));
        self.congestion.queue((filled * FULL) as usize);
        let was = self.congestion.is_congested();
        let is = self.congestion.tick(&self.last_second());
        match (was, is) {
            (false, true) => {
                self.since = Some(now);
                Some(Turn::Began)
            }
            (true, false) => Some(Turn::Ended(now.since(self.since.take().unwrap_or(now)))),
            _ => None,
        }
    }

    fn last_second(&self) -> LinkTick {
        let mut sum = LinkTick::default();
        let mut arrivals = Arrivals::default();
        for tick in &self.lately {
            sum.capacity_bytes = sum.capacity_bytes.saturating_add(tick.link.capacity_bytes);
            sum.sent_bytes = sum.sent_bytes.saturating_add(tick.link.sent_bytes);
            sum.dropped_bytes = sum.dropped_bytes.saturating_add(tick.link.dropped_bytes);
            sum.packets = sum.packets.saturating_add(tick.link.packets);
            sum.dropped = sum.dropped.saturating_add(tick.link.dropped);
            arrivals.passed += tick.arrivals.passed;
            arrivals.refused += tick.arrivals.refused;
        }
        // A refused connection would have carried what one that passes carries: its SYN alone would be
        // almost nothing, and a limit that works would end its own reason.
        let each = match arrivals.passed {
            0 => SYN_BYTES,
            passed => (sum.sent_bytes as f64 / passed as f64).max(SYN_BYTES),
        };
        sum.refused_bytes = (each * arrivals.refused as f64) as u64;
        sum
    }

    /// Whether it is congested.
    #[must_use]
    pub const fn is_congested(&self) -> bool {
        self.congestion.is_congested()
    }

    /// How often it has begun.
    #[must_use]
    pub const fn episodes(&self) -> u32 {
        self.congestion.sequence()
    }

    /// The names of the signs of the last tick.
    #[must_use]
    pub fn signs(&self) -> Vec<String> {
        let named = ["queue", "drops", "rate"].into_iter().zip(self.congestion.signs());
        named.filter(|(_, is)| *is).map(|(name, _)| name.to_owned()).collect()
    }

    /// For people.
    #[must_use]
    pub fn state(&self, now: Nanos) -> LinkState {
        let sum = self.last_second();
        let known = self.before.as_ref().filter(|(at, _)| now.since(*at) <= TICK_MAX);
        let seen = known.map(|(_, seen)| seen);
        let (first, last) = (self.lately.front(), self.lately.back());
        // The first tick of the window has the bytes before it, so its own length is not known.
        let seconds = first.zip(last).map(|(first, last)| last.at.since(first.at).as_secs_f64());
        let first_bytes = first.map_or(0, |tick| tick.link.sent_bytes);
        let bytes = sum.sent_bytes.saturating_sub(first_bytes) as f64;
        LinkState {
            interface: seen.map(|seen| seen.interface.clone()).unwrap_or_default(),
            congested: self.is_congested(),
            lasts: self.since.filter(|_| self.is_congested()).map(|at| now.since(at)),
            signs: self.signs(),
            episodes: self.episodes(),
            sent: seconds.filter(|s| *s > 0.0).map(|seconds| bytes / seconds),
            capacity: seen.and_then(|seen| seen.capacity),
            dropped: (sum.packets > 0).then(|| f64::from(sum.dropped) / f64::from(sum.packets)),
            filled: seen.and_then(|seen| seen.queue).map(|q| q.length / q.limit.max(1.0)),
            problem: String::new(),
        }
    }
}

/// What happened between two looks; `None`: the counters are not of one queue, or the looks too far apart.
fn difference((at, before): (Nanos, &LinkUse), (now, seen): (Nanos, &LinkUse)) -> Option<LinkTick> {
    let elapsed = now.since(at);
    if before.identity != seen.identity || elapsed == Nanos::ZERO || elapsed > TICK_MAX {
        return None;
    }
    let sent_bytes = seen.sent_bytes.checked_sub(before.sent_bytes)?;
    let sent = seen.sent_packets.wrapping_sub(before.sent_packets);
    let dropped = seen.dropped_packets.wrapping_sub(before.dropped_packets);
    let packet = if sent > 0 { sent_bytes / u64::from(sent) } else { 0 };
    let capacity = seen.capacity.unwrap_or(0.0) * elapsed.as_secs_f64();
    Some(LinkTick {
        capacity_bytes: capacity as u64,
        sent_bytes,
        dropped_bytes: packet.saturating_mul(dropped.into()),
        refused_bytes: 0,
        packets: sent.saturating_add(dropped),
        dropped,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::InterfaceQueue;

    /// A link of 2 Mbit/s with a queue of 50, in ticks of 100 ms.
    struct Link {
        watch: LinkWatch,
        seen: LinkUse,
        now: Nanos,
    }

    impl Link {
        fn new() -> Self {
            let seen = LinkUse {
                interface: "v1".into(),
                identity: (3, 1),
                capacity: Some(250_000.0),
                ..LinkUse::default()
            };
            let mut link = Self { watch: LinkWatch::default(), seen, now: Nanos::ZERO };
            link.tick(0, (0, 0.0), (0, 0));
            link
        }

        /// So many packets of 1,000 bytes were sent, so many dropped; so many wait.
        fn tick(
            &mut self,
            sent: u32,
            (dropped, waiting): (u32, f64),
            new: (u64, u64),
        ) -> Option<Turn> {
            self.now += Nanos::from_millis(100);
            self.seen.sent_bytes += 1000 * u64::from(sent);
            self.seen.sent_packets = self.seen.sent_packets.wrapping_add(sent);
            self.seen.dropped_packets = self.seen.dropped_packets.wrapping_add(dropped);
            self.seen.queue = Some(InterfaceQueue { length: waiting, limit: 50.0 });
            let arrivals = Arrivals { passed: new.0, refused: new.1 };
            self.watch.tick(self.now, &self.seen, arrivals)
        }

        fn ticks(&mut self, n: u32, sent: u32, lost: (u32, f64), new: (u64, u64)) -> Vec<Turn> {
            (0..n).filter_map(|_| self.tick(sent, lost, new)).collect()
        }
    }

    #[test]
    fn each_sign_begins_it_and_is_named() {
        for (sent, lost, sign) in
            [(10, (0, 40.0), "queue"), (10, (1, 0.0), "drops"), (24, (0, 0.0), "rate")]
        {
            let mut link = Link::new();
            assert_eq!(link.ticks(20, sent, lost, (0, 0)), [Turn::Began], "{sign}");
            assert_eq!(link.watch.signs(), [sign]);
            let state = link.watch.state(link.now);
            assert!(state.congested && state.episodes == 1 && state.lasts.is_some(), "{state:?}");
            let sent = f64::from(sent) * 10_000.0;
            assert!((state.sent.unwrap() - sent).abs() < 1.0, "{state:?}");
        }
        for (sent, lost) in [(10, (0, 20.0)), (23, (0, 0.0))] {
            let mut link = Link::new();
            assert!(link.ticks(50, sent, lost, (0, 0)).is_empty(), "{sent} {lost:?}");
        }
    }

    #[test]
    fn one_drop_of_many_packets_is_no_sign() {
        let mut link = Link::new();
        // 1 of 201 in the second.
        assert!(link.ticks(9, 20, (0, 0.0), (0, 0)).is_empty());
        assert_eq!(link.tick(20, (1, 0.0), (0, 0)), None);
        assert!(!link.watch.is_congested());
    }

    #[test]
    fn a_limit_that_works_does_not_end_its_reason() {
        let mut link = Link::new();
        assert_eq!(link.ticks(10, 24, (5, 50.0), (10, 0)), [Turn::Began]);
        // With the limit half of the link is used; what is refused would fill the rest and more.
        assert!(link.ticks(100, 12, (0, 0.0), (5, 5)).is_empty());
        assert!(link.watch.is_congested() && link.watch.signs().is_empty());
        // The load is gone.
        let ended = link.ticks(40, 12, (0, 0.0), (5, 0));
        assert!(matches!(ended[..], [Turn::Ended(lasted)] if lasted > Nanos::from_secs(10)));
        assert_eq!(link.ticks(20, 24, (5, 50.0), (10, 0)), [Turn::Began]);
        assert_eq!(link.watch.episodes(), 2);
    }

    #[test]
    fn another_queue_a_pause_and_counters_that_wrap_are_no_signs() {
        let mut link = Link::new();
        link.seen.identity.1 = 9;
        link.seen.dropped_packets = u32::MAX;
        link.seen.sent_packets = u32::MAX - 5;
        link.tick(10, (0, 0.0), (0, 0));
        assert!(link.ticks(20, 20, (0, 0.0), (0, 0)).is_empty(), "wrapped");
        link.seen.identity.1 = 2;
        link.seen.sent_bytes = 0;
        link.seen.dropped_packets = 500;
        assert!(link.ticks(5, 10, (0, 0.0), (0, 0)).is_empty(), "another queue");
        link.now += Nanos::from_secs(60);
        link.seen.sent_bytes += 60 * 250_000;
        assert!(link.ticks(5, 10, (0, 0.0), (0, 0)).is_empty(), "the daemon stood still");
        link.seen.sent_bytes = 0;
        assert!(link.ticks(5, 10, (0, 0.0), (0, 0)).is_empty(), "counters that went back");
    }
}
