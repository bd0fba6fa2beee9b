// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the way from a router to its servers is congested, by what one interface sent, dropped and
//! holds back. What decides is `policy/router/congestion.h`; here its ticks are made of counters.
//!
//! The paper's threshold is the average queue of each packet's arrival: 15 of a queue of 30, 25 of one of
//! 50. Here the queue is looked at once a tick, so its average is over time, and the threshold is half of
//! whatever the queue holds.

use std::collections::VecDeque;
use tidegate_model::signals::LinkUse;
use tidegate_model::snapshot::{LinkState, LinkSums};
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
/// The queue is averaged over this many seconds.
const QUEUE_SECONDS: f64 = 0.45;
/// An interface that cannot be read for so long is not congested: nobody is limited by what is not known.
const BLIND_MAX: Nanos = Nanos::from_secs(2);
/// What a refused connection would have carried where none was admitted lately: its SYN.
const SYN_BYTES: f64 = 74.0;

/// When a link is congested. Values of the paper and of `sim/src/netdraino/spec.rs`; each look at the queue has
/// the weight of its time.
#[must_use]
pub fn spec() -> CongestionSpec {
    CongestionSpec {
        queue: FULL / 2.0,
        weight: Share::ZERO,
        drops: Share::new(0.01),
        rate: Share::new(0.95),
        fits: Share::new(0.9),
        calm: Nanos::SECOND,
    }
}

/// New connections of all services of the router in a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// That passed.
    pub passed: u64,
    /// First attempts that remote limits refused: a client that sends its SYN again is counted already.
    pub refused: u64,
    /// Bytes of datagrams that remote limits refused: they would have crossed the link.
    pub refused_bytes: u64,
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
    /// Since when nothing is known of it.
    blind: Option<Nanos>,
    sums: LinkSums,
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
        let sums = LinkSums::default();
        Self { congestion, before: None, lately, since: None, blind: None, sums }
    }
}

impl LinkWatch {
    /// A tick has ended.
    pub fn tick(&mut self, now: Nanos, seen: &LinkUse, arrivals: Arrivals) -> Option<Turn> {
        let before = self.before.replace((now, seen.clone()));
        let Some(link) = before.and_then(|(at, before)| difference((at, &before), (now, seen)))
        else {
            // Another queue or a pause: nothing is known of what was, and congestion stays as it is for now.
            self.lately.clear();
            return self.blind(now);
        };
        self.blind = None;
        self.lately.push_back(Tick { at: now, link, arrivals });
        let old = |tick: &Tick| now.since(tick.at) >= WINDOW;
        while self.lately.len() > TICKS_MAX || self.lately.front().is_some_and(old) {
            self.lately.pop_front();
        }
        let filled = seen.queue.map_or(0.0, |queue| queue.length / queue.limit.max(1.0));
        let weight = 1.0 - libm::exp(-link.elapsed.as_secs_f64() / QUEUE_SECONDS);
        self.congestion.look((filled * FULL) as usize, Share::new(weight));
        let was = self.congestion.is_congested();
        let is = self.congestion.tick(&self.last_second());
        self.sum_up(&link);
        match (was, is) {
            (false, true) => {
                self.since = Some(now);
                Some(Turn::Began)
            }
            (true, false) => Some(self.ended(now)),
            _ => None,
        }
    }

    /// A tick has ended in which the interface was not there, or could not be read.
    pub fn unseen(&mut self, now: Nanos) -> Option<Turn> {
        // One that comes back has counters that nobody knows.
        self.before = None;
        self.lately.clear();
        self.blind(now)
    }

    /// Nobody watches it any more.
    pub fn leave(&mut self, now: Nanos) -> Option<Turn> {
        let was = self.is_congested();
        self.congestion.unknown();
        was.then(|| self.ended(now))
    }

    fn sum_up(&mut self, link: &LinkTick) {
        self.sums.sent = self.sums.sent.saturating_add(link.sent_bytes);
        if self.congestion.is_congested() {
            self.sums.congested += link.elapsed;
        }
        for (sum, is) in self.sums.signs.iter_mut().zip(self.congestion.signs()) {
            if is {
                *sum += link.elapsed;
            }
        }
    }

    fn blind(&mut self, now: Nanos) -> Option<Turn> {
        let since = *self.blind.get_or_insert(now);
        if now.since(since) < BLIND_MAX { None } else { self.leave(now) }
    }

    fn ended(&mut self, now: Nanos) -> Turn {
        Turn::Ended(now.since(self.since.take().unwrap_or(now)))
    }

    fn last_second(&self) -> LinkTick {
        let mut sum = LinkTick::default();
        let mut arrivals = Arrivals::default();
        for tick in &self.lately {
            sum.elapsed = tick.link.elapsed;
            sum.capacity_bytes = sum.capacity_bytes.saturating_add(tick.link.capacity_bytes);
            sum.sent_bytes = sum.sent_bytes.saturating_add(tick.link.sent_bytes);
            sum.dropped_bytes = sum.dropped_bytes.saturating_add(tick.link.dropped_bytes);
            sum.packets = sum.packets.saturating_add(tick.link.packets);
            sum.dropped = sum.dropped.saturating_add(tick.link.dropped);
            arrivals.passed += tick.arrivals.passed;
            arrivals.refused += tick.arrivals.refused;
            arrivals.refused_bytes += tick.arrivals.refused_bytes;
        }
        // A refused connection would have carried what one that passes carries: its SYN alone would be
        // almost nothing, and a limit that works would end its own reason.
        let each = match arrivals.passed {
            0 => SYN_BYTES,
            passed => (sum.sent_bytes as f64 / passed as f64).max(SYN_BYTES),
        };
        let connections = (each * arrivals.refused as f64) as u64;
        sum.refused_bytes = connections.saturating_add(arrivals.refused_bytes);
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
            sums: self.sums,
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
    let sent = forward(before.sent_packets, seen.sent_packets)?;
    let dropped = forward(before.dropped_packets, seen.dropped_packets)?;
    // A packet has bytes. A queue that was made anew under the same number counts from zero.
    if u64::from(sent) > sent_bytes {
        return None;
    }
    let packet = if sent > 0 { sent_bytes / u64::from(sent) } else { 0 };
    let capacity = seen.capacity.unwrap_or(0.0) * elapsed.as_secs_f64();
    Some(LinkTick {
        elapsed,
        capacity_bytes: capacity as u64,
        sent_bytes,
        dropped_bytes: packet.saturating_mul(dropped.into()),
        refused_bytes: 0,
        packets: sent.saturating_add(dropped),
        dropped,
    })
}

/// By how much a counter of 32 bits has grown; `None`: it went back. It wraps, but not by half within a tick.
fn forward(before: u32, now: u32) -> Option<u32> {
    Some(now.wrapping_sub(before)).filter(|grown| *grown <= u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::InterfaceQueue;

    /// A link of 2 Mbit/s with a queue of 50, in ticks of 100 ms where nothing else is said.
    struct Link {
        watch: LinkWatch,
        seen: LinkUse,
        now: Nanos,
        tick: Nanos,
    }

    impl Link {
        fn new() -> Self {
            let seen = LinkUse {
                interface: "v1".into(),
                identity: (3, 1),
                capacity: Some(250_000.0),
                ..LinkUse::default()
            };
            let (watch, now, tick) = (LinkWatch::default(), Nanos::ZERO, Nanos::from_millis(100));
            let mut link = Self { watch, seen, now, tick };
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
            self.now += self.tick;
            self.seen.sent_bytes += 1000 * u64::from(sent);
            self.seen.sent_packets = self.seen.sent_packets.wrapping_add(sent);
            self.seen.dropped_packets = self.seen.dropped_packets.wrapping_add(dropped);
            self.seen.queue = Some(InterfaceQueue { length: waiting, limit: 50.0 });
            let arrivals = Arrivals { passed: new.0, refused: new.1, ..Arrivals::default() };
            self.watch.tick(self.now, &self.seen, arrivals)
        }

        /// The same with so many bytes of datagrams that limits refused, and nothing lost.
        fn datagrams(&mut self, sent: u32, refused_bytes: u64) -> Option<Turn> {
            self.now += self.tick;
            self.seen.sent_bytes += 1000 * u64::from(sent);
            self.seen.sent_packets += sent;
            let arrivals = Arrivals { refused_bytes, ..Arrivals::default() };
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
            assert_eq!(state.sums.sent, 20 * 1000 * u64::from(sent), "all bytes of 20 ticks");
            let signs = ["queue", "drops", "rate"].into_iter().zip(state.sums.signs);
            let seen: Vec<&str> =
                signs.filter(|(_, time)| time.0 > 0).map(|(name, _)| name).collect();
            assert_eq!(seen, [sign], "how long it was there");
            let (began, now) = (link.watch.since.unwrap(), link.now);
            // The tick that ends with the begin counts, too.
            assert_eq!(state.sums.congested, now.since(began) + link.tick, "{state:?}");
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

    /// The same of datagrams: of these it is known how many bytes they had.
    #[test]
    fn refused_datagrams_would_have_filled_the_link() {
        let mut link = Link::new();
        assert_eq!(link.ticks(10, 24, (5, 50.0), (0, 0)), [Turn::Began]);
        link.seen.queue = None;
        // 12 of 25 packets of 1,000 bytes pass in a tick; with what is refused it is 23.
        assert!((0..100).all(|_| link.datagrams(12, 11_000).is_none()));
        assert!(link.watch.is_congested() && link.watch.signs().is_empty());
        let ended: Vec<Turn> = (0..40).filter_map(|_| link.datagrams(12, 9_000)).collect();
        assert!(matches!(ended[..], [Turn::Ended(_)]), "{ended:?}");
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

    /// A queue that was made anew has the number of the one before, and counts from zero.
    #[test]
    fn counters_of_a_queue_that_was_made_anew_are_not_compared() {
        type Change = fn(&mut LinkUse);
        let anew: [(&str, Change); 3] = [
            ("bytes", |seen| seen.sent_bytes = 0),
            ("packets dropped", |seen| (seen.sent_bytes, seen.dropped_packets) = (1 << 40, 0)),
            ("packets sent", |seen| seen.sent_packets = 0),
        ];
        for (what, change) in anew {
            let mut link = Link::new();
            link.seen.identity.1 = 9;
            link.seen.sent_bytes = 1 << 30;
            link.seen.sent_packets = 1 << 20;
            link.seen.dropped_packets = 1 << 10;
            link.tick(10, (0, 0.0), (0, 0));
            assert!(link.ticks(20, 10, (0, 0.0), (0, 0)).is_empty());
            change(&mut link.seen);
            assert!(link.ticks(20, 10, (0, 0.0), (0, 0)).is_empty(), "{what}");
        }
        assert_eq!((forward(u32::MAX, 4), forward(4, u32::MAX)), (Some(5), None));
    }

    #[test]
    fn an_interface_that_vanishes_is_soon_not_congested() {
        let mut link = Link::new();
        assert_eq!(link.ticks(10, 24, (5, 50.0), (0, 0)), [Turn::Began]);
        let began = Nanos(link.now.0 - 9 * link.tick.0);
        for at in 0..30_u64 {
            link.now += link.tick;
            let ended = link.watch.unseen(link.now);
            let expected = (at == 20).then(|| Turn::Ended(link.now.since(began)));
            assert_eq!(ended, expected, "{at}");
            assert_eq!(link.watch.is_congested(), at < 20, "{at}");
        }
        assert!(!link.watch.state(link.now).congested && link.watch.signs().is_empty());
        // It comes back, as congested as it was: that is another time.
        link.tick(24, (5, 50.0), (0, 0));
        assert_eq!(link.ticks(10, 24, (5, 50.0), (0, 0)), [Turn::Began]);
        assert_eq!(link.watch.episodes(), 2);
        // Away for less than that it goes on.
        for _ in 0..19 {
            link.now += link.tick;
            assert_eq!(link.watch.unseen(link.now), None);
        }
        assert!(link.ticks(10, 24, (5, 50.0), (0, 0)).is_empty() && link.watch.is_congested());
        assert!(matches!(link.watch.leave(link.now), Some(Turn::Ended(_))));
        assert_eq!(link.watch.leave(link.now), None);
    }

    /// Counters that are new at each look are as good as none.
    #[test]
    fn a_link_of_which_nothing_can_be_known_is_not_congested() {
        let mut link = Link::new();
        assert_eq!(link.ticks(10, 24, (5, 50.0), (0, 0)), [Turn::Began]);
        let mut ended = Vec::new();
        for handle in 10..40 {
            link.seen.identity.1 = handle;
            ended.extend(link.tick(24, (5, 50.0), (0, 0)));
        }
        assert!(matches!(ended[..], [Turn::Ended(_)]), "{ended:?}");
    }

    /// The same course in ticks of any length: what begins and ends it is time.
    #[test]
    fn ticks_of_any_length_see_the_same() {
        for ms in [20, 50, 100, 200, 500] {
            let mut link = Link::new();
            link.tick = Nanos::from_millis(ms);
            let run = |link: &mut Link, seconds: f64, waiting: f64| -> Option<(f64, Turn)> {
                let ticks = (seconds * 1e3 / ms as f64).round() as u32;
                let begin = link.now;
                (0..ticks).find_map(|_| {
                    let turn = link.tick(ms as u32 / 20, (0, waiting), (0, 0))?;
                    Some((link.now.since(begin).as_secs_f64(), turn))
                })
            };
            assert_eq!(run(&mut link, 2.0, 0.0), None);
            // A queue that is full lifts the average over one half after 0.45 s * ln 2.
            let (began, turn) = run(&mut link, 5.0, 50.0).unwrap();
            assert_eq!(turn, Turn::Began);
            let tick = ms as f64 / 1e3;
            assert!((0.31..0.32 + tick).contains(&began), "{began} s in ticks of {ms} ms");
            assert_eq!(run(&mut link, 3.0, 50.0), None);
            // Empty again it takes as long, and a second of calm, in which the first tick of it counts.
            let (ended, turn) = run(&mut link, 5.0, 0.0).unwrap();
            assert!(matches!(turn, Turn::Ended(_)));
            assert!((1.3 - tick..1.33 + tick).contains(&ended), "{ended} s in ticks of {ms} ms");
        }
    }
}
