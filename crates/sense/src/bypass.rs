// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that come to a service past our hooks, in one direction or in both.
//!
//! A hook on the port of a bridge, behind a program of somebody else that ends the chain, on one of two
//! interfaces by which clients come: it is attached, everything looks well, and some or all of the traffic
//! is not protected. The kernel knows better: it has the connections (`crate::rounds`). Those that are new
//! from one round to a later one are compared with the SYNs that hooks let pass in that time.
//!
//! Every error must hide connections, and none may make some up: who is woken by a false "not ready" takes
//! the program off. So what hooks saw is counted from before the first list to after the last; connections
//! that came and went in between are missing in the list, and SYNs that opened nothing count as seen. What
//! may still be opened for a SYN before the first list is known to it as a half-open connection, but for
//! two kinds: one whose SYN the server ignored and the client sent again, which hooks do not count twice,
//! and one behind a SYN cookie. As many as these may be are taken off ([`Round::late`]).

use crate::rounds::LOOK_EVERY;
use std::collections::VecDeque;
use std::net::IpAddr;
use tidegate_model::snapshot::Bypassed;
use tidegate_units::Nanos;

/// So long it lasts before anything is said.
const SPAN_MIN: Nanos = Nanos::from_secs(3);
/// So many connections at least, beside those that may be late.
const CONNECTIONS_MIN: u64 = 5;
/// And at least one of so many that were opened: below this, a few SYNs that hooks pass without counting
/// them (IP options, fragments) might be all.
const ONE_OF_MAX: u64 = 10;
/// What was found counts for so long while hooks see nothing.
const HOLD: Nanos = Nanos::from_secs(60);
/// And for so long while they see a part: somebody's check now and then by another interface is no way in.
const PART_HOLD: Nanos = Nanos::from_secs(10);
/// After so long without a round, what hooks saw since counts, too: there was no surplus.
const SKIPPED: Nanos = Nanos(2 * LOOK_EVERY.0);
/// So long after its first SYN a copy passes uncounted (bpf/track/flow.h, TG_COPY_NS).
const COPIES: Nanos = Nanos::from_secs(70);
/// So long a handshake takes at most that has no half-open connection (SYN cookies).
const HANDSHAKE: Nanos = Nanos::from_secs(10);
/// After so long between two ticks nothing is known of the time between.
const ASLEEP: Nanos = Nanos::from_secs(10);

/// What the hooks saw of one service since the tick before; `None`: not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// SYNs that passed.
    pub(crate) passed: u64,
    /// SYNs that the server replied to.
    pub(crate) replied: Option<u64>,
    /// Handshakes that the client completed.
    pub(crate) proved: u64,
    /// Since the hooks' state was made: SYNs without a reply, and replies without the client's.
    pub(crate) unreplied: u64,
    pub(crate) unproved: u64,
}

impl Seen {
    /// SYNs of which a connection may come. Those that pass while the lease has run out are not counted, but
    /// their replies are.
    pub(crate) fn syns(&self) -> u64 {
        self.passed.max(self.replied.unwrap_or_default())
    }
}

/// Of services whose connections cannot be told apart.
impl std::iter::Sum for Seen {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let add = |sum: Self, of: Self| Self {
            passed: sum.passed + of.syns(),
            replied: sum.replied.zip(of.replied).map(|(sum, of)| sum + of),
            proved: sum.proved + of.proved,
            unreplied: sum.unreplied + of.unreplied,
            unproved: sum.unproved + of.unproved,
        };
        all.fold(Self { replied: Some(0), ..Self::default() }, add)
    }
}

/// What came past the hooks of one service of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Connections whose SYN no hook saw.
    pub(crate) bypassed: Option<Bypassed>,
    /// Connections whose SYN was seen, and no packet of the server.
    pub(crate) unreplied: Option<Bypassed>,
}

/// One round of lists.
#[derive(Clone, Copy, Debug)]
struct Round {
    number: u64,
    begin: Nanos,
    /// Connections that were opened of those that are new since the round before.
    listed: u64,
    /// What hooks had seen in all before its first list, and after its last.
    seen_before: u64,
    seen_after: Option<u64>,
    /// SYNs without a reply that may be sent again, and handshakes that may be under way, when it began.
    unreplied: u64,
    unproved: u64,
}

impl Round {
    /// Connections that may be opened behind it for SYNs before it.
    fn late(&self) -> u64 {
        self.unreplied + self.unproved
    }
}

/// What hooks saw within about a second.
#[derive(Clone, Copy, Debug)]
struct Second {
    begin: Nanos,
    syns: u64,
    replied: u64,
    proved: u64,
}

/// What is known of one service.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    ticked: Option<Nanos>,
    /// When it began, and what was open then of what came before (a state that was kept).
    born: Option<(Nanos, u64, u64)>,
    /// SYNs that hooks saw since the beginning.
    seen: u64,
    recent: VecDeque<Second>,
    rounds: VecDeque<Round>,
    /// The last round ended in the tick before.
    ended: bool,
    /// A SYN has passed since the last reply was seen, and none was since then.
    mute: Option<Nanos>,
    /// The last client that came by an interface without hooks, and the last of all.
    bare: Option<(Nanos, IpAddr, String)>,
    last: Option<(IpAddr, String)>,
}

/// From one round on: connections that no hook saw, what hooks saw beside them, since when.
struct Surplus {
    connections: u64,
    seen: u64,
    begin: Nanos,
}

impl Bypass {
    /// What the hooks saw since the tick before, to be called before [`Self::begin`].
    pub(crate) fn saw(&mut self, now: Nanos, seen: Option<&Seen>) {
        let asleep = self.ticked.is_some_and(|ticked| now.since(ticked) >= ASLEEP);
        let Some(seen) = seen.filter(|_| !asleep) else {
            // What is not known is no evidence.
            *self = Self { ticked: Some(now), ..Self::default() };
            return;
        };
        self.ticked = Some(now);
        self.born.get_or_insert((now, seen.unreplied, seen.unproved));
        self.seen += seen.syns();
        if std::mem::take(&mut self.ended)
            && let Some(round) = self.rounds.back_mut()
        {
            round.seen_after = Some(self.seen);
        }
        self.note(now, seen);
        match seen.replied {
            Some(0) if seen.passed > 0 => _ = self.mute.get_or_insert(now),
            Some(0) => {}
            _ => self.mute = None,
        }
        while self.rounds.front().is_some_and(|round| now.since(round.begin) > HOLD) {
            self.rounds.pop_front();
        }
    }

    /// Other services from now on: which of them a connection belongs to is another question.
    pub(crate) fn begin_anew(&mut self) {
        self.rounds.clear();
        self.mute = None;
    }

    fn note(&mut self, now: Nanos, seen: &Seen) {
        if self.recent.back().is_none_or(|second| now.since(second.begin) >= Nanos::SECOND) {
            self.recent.push_back(Second { begin: now, syns: 0, replied: 0, proved: 0 });
        }
        if let Some(second) = self.recent.back_mut() {
            second.syns += seen.syns();
            second.replied += seen.replied.unwrap_or_default();
            second.proved += seen.proved;
        }
        let limit = COPIES + Nanos::SECOND;
        while self.recent.front().is_some_and(|second| now.since(second.begin) > limit) {
            self.recent.pop_front();
        }
    }

    /// Whether it has to be looked because replies are missing.
    pub(crate) fn is_mute(&self) -> bool {
        self.mute.is_some()
    }

    /// A round begins.
    pub(crate) fn begin(&mut self, now: Nanos, number: u64) {
        if number <= self.newest() {
            // Another namespace, whose rounds are counted anew.
            self.begin_anew();
        }
        // Without it, it is not known what came before.
        let Some((born, of_replies, of_proofs)) = self.born else { return };
        let mut unreplied = if now.since(born) <= COPIES { of_replies } else { 0 };
        let mut unproved = if now.since(born) <= HANDSHAKE { of_proofs } else { 0 };
        unreplied += self.open(now, COPIES, |of| (of.syns, of.replied));
        unproved += self.open(now, HANDSHAKE, |of| (of.replied, of.proved));
        let (seen_before, seen_after) = (self.seen, None);
        let round =
            Round { number, begin: now, listed: 0, seen_before, seen_after, unreplied, unproved };
        self.rounds.push_back(round);
    }

    /// Of what came within a time, what was not followed by something else. The last of a second is younger
    /// than its begin.
    fn open(&self, now: Nanos, span: Nanos, of: fn(&Second) -> (u64, u64)) -> u64 {
        let span = span + Nanos::SECOND;
        let recent = self.recent.iter().filter(|second| now.since(second.begin) <= span).map(of);
        let (came, followed) = recent.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        u64::saturating_sub(came, followed)
    }

    /// So many connections were opened that are new since this round.
    pub(crate) fn count(&mut self, number: u64, connections: u64) {
        let round = self.rounds.iter_mut().rev().find(|round| round.number == number);
        // One that is not known was before the beginning.
        if let Some(round) = round {
            round.listed += connections;
        }
    }

    /// One of them came from here, and by this interface, which has hooks or not; empty: not known.
    pub(crate) fn client(&mut self, now: Nanos, client: IpAddr, (name, hooked): (&str, bool)) {
        if !hooked && !name.is_empty() {
            self.bare = Some((now, client, name.to_owned()));
        }
        self.last = Some((client, name.to_owned()));
    }

    /// The round that runs has ended.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    pub(crate) fn found(&self, now: Nanos) -> Found {
        Found { bypassed: self.bypassed(now), unreplied: self.unreplied(now) }
    }

    /// Of the surpluses from any round on, the largest that counts.
    fn bypassed(&self, now: Nanos) -> Option<Bypassed> {
        let counts = |of: &Surplus| {
            let span = now.since(of.begin);
            span >= SPAN_MIN && (of.seen == 0 || span <= PART_HOLD)
        };
        let largest = self.surpluses(now).filter(counts).max_by_key(|of| of.connections)?;
        let Surplus { connections, seen, begin } = largest;
        Some(self.told(now, connections, seen, begin))
    }

    fn surpluses(&self, now: Nanos) -> impl Iterator<Item = Surplus> {
        let last = self.rounds.iter().rposition(|round| round.seen_after.is_some());
        let rounds = last.map_or(0, |last| last + 1);
        let after = last.and_then(|last| self.rounds.get(last)).map_or(self.seen, |last| {
            let skipped = now.since(last.begin) >= SKIPPED && last.number == self.newest();
            last.seen_after.filter(|_| !skipped).unwrap_or(self.seen)
        });
        let mut listed = 0;
        let from = move |at: usize| {
            let (first, next) = (self.rounds.get(at)?, self.rounds.get(at + 1)?);
            listed += next.listed;
            let seen = after - first.seen_before;
            let connections = listed.saturating_sub(seen + first.late());
            let much = connections.saturating_mul(ONE_OF_MAX) >= listed;
            let counts = connections >= CONNECTIONS_MIN && much;
            Some(counts.then_some(Surplus { connections, seen, begin: first.begin }))
        };
        (0..rounds.saturating_sub(1)).rev().filter_map(from).flatten()
    }

    fn newest(&self) -> u64 {
        self.rounds.back().map_or(0, |round| round.number)
    }

    /// What was opened of late without a reply that hooks saw.
    fn unreplied(&self, now: Nanos) -> Option<Bypassed> {
        let since = self.mute.filter(|since| now.since(*since) >= SPAN_MIN)?;
        let first = self.rounds.iter().position(|round| round.begin >= since)?;
        let late = self.rounds.get(first)?.unproved;
        let listed: u64 = self.rounds.iter().skip(first + 1).map(|round| round.listed).sum();
        let connections = listed.saturating_sub(late);
        (connections >= CONNECTIONS_MIN).then(|| self.told(now, connections, 0, since))
    }

    fn told(&self, now: Nanos, connections: u64, seen: u64, begin: Nanos) -> Bypassed {
        let bare = self.bare.as_ref().filter(|(at, ..)| now.since(*at) <= HOLD);
        let bare = bare.map(|(_, client, name)| (*client, name.clone()));
        let (client, interface) = bare.or_else(|| self.last.clone()).unzip();
        let interface = interface.unwrap_or_default();
        Bypassed { connections, seen, span: now.since(begin).min(HOLD), client, interface }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Nanos = Nanos::from_millis(100);
    const QUIET: Seen = Seen { passed: 0, replied: Some(0), proved: 0, unreplied: 0, unproved: 0 };

    /// So many SYNs, of which connections came.
    fn busy(syns: u64) -> Seen {
        Seen { passed: syns, replied: Some(syns), proved: syns, ..QUIET }
    }

    /// A service in virtual time: a tick every 100 ms, a round every second.
    struct World {
        begin: Nanos,
        bypass: Bypass,
        number: u64,
    }

    impl World {
        fn new() -> Self {
            Self::born(&QUIET)
        }

        fn born(first: &Seen) -> Self {
            let mut world = Self { begin: Nanos::SECOND, bypass: Bypass::default(), number: 0 };
            world.bypass.saw(world.begin, Some(first));
            world.round(world.begin, 0);
            world.bypass.saw(world.begin + TICK, Some(&QUIET));
            world
        }

        fn round(&mut self, now: Nanos, listed: u64) {
            self.number += 1;
            self.bypass.begin(now, self.number);
            self.bypass.count(self.number, listed);
            self.bypass.end();
        }

        /// A second in which hooks see something, and after which so many connections are new.
        fn second(&mut self, seen: &Seen, listed: u64) -> Found {
            self.during(seen, Some(listed))
        }

        fn during(&mut self, seen: &Seen, listed: Option<u64>) -> Found {
            for tick in 2..=10 {
                let now = self.begin + Nanos(tick * TICK.0);
                self.bypass.saw(now, Some(if tick == 5 { seen } else { &QUIET }));
                if let Some(listed) = listed.filter(|_| tick == 10) {
                    self.round(now, listed);
                }
            }
            self.begin += Nanos::SECOND;
            self.bypass.saw(self.begin + TICK, Some(&QUIET));
            self.bypass.found(self.begin + TICK)
        }

        fn seconds(&mut self, seconds: usize, seen: &Seen, listed: u64) -> Found {
            (0..seconds).map(|_| self.second(seen, listed)).last().unwrap()
        }
    }

    fn count(found: &Found) -> Option<(u64, u64)> {
        found.bypassed.as_ref().map(|found| (found.connections, found.seen))
    }

    #[test]
    fn connections_that_no_hook_saw_are_told_from_five_and_three_seconds_on() {
        let after = |seconds, listed| World::new().seconds(seconds, &QUIET, listed);
        assert_eq!(after(2, 50), Found::default(), "2.1 s");
        assert_eq!(count(&after(3, 50)), Some((150, 0)));
        assert_eq!(after(3, 50).bypassed.unwrap().span, Nanos::from_millis(3100));
        assert_eq!(after(4, 1), Found::default(), "4 connections");
        assert_eq!(count(&after(5, 1)), Some((5, 0)));
        assert_eq!(after(9, 0), Found::default());
        assert_eq!(after(9, 50).unreplied, None, "no SYN was seen that a reply is owed to");
    }

    #[test]
    fn beside_those_that_hooks_saw_a_tenth_is_told_and_less_is_not() {
        let after = |seen, listed| World::new().seconds(9, &busy(seen), listed);
        assert_eq!(after(90, 99), Found::default());
        assert_eq!(after(90, 90), Found::default());
        assert_eq!(after(90, 20), Found::default(), "most are gone before they are listed");
        assert_eq!(count(&after(90, 100)), Some((90, 810)));
        let at = |seconds| count(&World::new().seconds(seconds, &busy(90), 100));
        assert_eq!((at(2), at(3)), (None, Some((30, 270))));
    }

    #[test]
    fn what_comes_seldom_beside_others_is_no_way_in_and_without_others_it_is() {
        for (every, seen, told) in [(2, 1, true), (3, 1, false), (3, 0, true), (16, 0, false)] {
            let mut world = World::new();
            let one = |second| u64::from(second % every == 0);
            let found = |second| world.second(&busy(seen), seen + one(second));
            let found = (0..120).map(found).filter(|found| *found != Found::default()).count();
            assert_eq!(found > 0, told, "every {every} s beside {seen}");
        }
    }

    #[test]
    fn a_syn_is_seen_before_its_connection_is_listed_whatever_the_tick() {
        // Between the counters and the list: its counter is read one tick later.
        let mut world = World::new();
        for _ in 0..9 {
            for tick in 2..=10 {
                world.bypass.saw(world.begin + Nanos(tick * TICK.0), Some(&QUIET));
            }
            world.begin += Nanos::SECOND;
            world.round(world.begin, 50);
            world.bypass.saw(world.begin + TICK, Some(&busy(50)));
            assert_eq!(world.bypass.found(world.begin + TICK), Found::default());
        }
    }

    #[test]
    fn syns_that_may_be_sent_again_are_taken_off_for_as_long_as_copies_pass() {
        let ignored = Seen { passed: 20, ..QUIET };
        for (quiet, listed, told) in
            [(2, 24, None), (2, 25, Some(5)), (69, 24, None), (71, 24, Some(24)), (71, 4, None)]
        {
            let mut world = World::new();
            world.second(&ignored, 0);
            world.seconds(quiet, &busy(1), 0);
            world.seconds(1, &QUIET, listed);
            let found = world.seconds(2, &QUIET, 0);
            assert_eq!(count(&found).map(|found| found.0), told, "{listed} after {quiet} s");
        }
    }

    #[test]
    fn handshakes_that_may_be_under_way_are_taken_off_for_ten_seconds() {
        let unproved = Seen { proved: 0, ..busy(20) };
        for (quiet, listed, told) in
            [(2, 24, None), (2, 25, Some(5)), (9, 24, None), (11, 24, Some(24))]
        {
            let mut world = World::new();
            world.second(&unproved, 0);
            world.seconds(quiet, &busy(1), 0);
            world.seconds(1, &QUIET, listed);
            let found = world.seconds(2, &QUIET, 0);
            assert_eq!(count(&found).map(|found| found.0), told, "{listed} after {quiet} s");
        }
    }

    /// A daemon that takes over the hooks of one before it does not know when their SYNs came.
    #[test]
    fn what_was_open_in_a_state_that_was_kept_is_taken_off_at_first() {
        for (seconds, told) in [(3, None), (80, Some(24))] {
            let mut world = World::born(&Seen { unreplied: 20, ..QUIET });
            world.seconds(seconds, &busy(1), 1);
            world.second(&QUIET, 24);
            let found = world.seconds(2, &QUIET, 0);
            assert_eq!(count(&found).map(|found| found.0), told, "{seconds} s");
        }
    }

    /// Those that were half-open count where they were first seen: their SYN may be as old.
    #[test]
    fn a_connection_counts_to_the_round_in_which_it_was_first() {
        let after = |back: u64| {
            let mut world = World::new();
            world.second(&busy(20), 0);
            world.seconds(3, &QUIET, 0);
            world.bypass.count(world.number - back, 20);
            count(&world.bypass.found(world.begin + TICK))
        };
        assert_eq!(after(3), None, "in the round behind its SYN");
        assert_eq!(after(2), Some((20, 0)));
        assert_eq!(after(5), None, "before the beginning");
    }

    #[test]
    fn what_hooks_saw_while_no_round_was_due_counts_and_without_news_it_is_over_in_time() {
        let mut world = World::new();
        assert!(world.seconds(4, &QUIET, 10).bypassed.is_some());
        assert!(world.during(&busy(300), None).bypassed.is_some(), "a round may come yet");
        assert_eq!(world.during(&QUIET, None), Found::default());
        let mut world = World::new();
        world.seconds(4, &QUIET, 10);
        let found = |world: &mut World| world.during(&QUIET, None).bypassed.is_some();
        let held = (0..100).take_while(|_| found(&mut world)).count();
        assert_eq!(held, 58, "the round before the last one is over after 60 s");
        let mut world = World::new();
        world.seconds(4, &QUIET, 10);
        let told = |world: &mut World| world.second(&busy(10), 10).bypassed.is_some();
        let told = (0..100).take_while(|_| told(&mut world)).count();
        assert!((3..=10).contains(&told), "mended: {told} s");
    }

    #[test]
    fn after_a_gap_nothing_is_known_of_the_time_before() {
        for (gap, told) in [(9_800, true), (9_900, false)] {
            let mut world = World::new();
            assert!(world.seconds(4, &QUIET, 10).bypassed.is_some());
            let now = world.begin + TICK + Nanos::from_millis(100 + gap);
            world.bypass.saw(now, Some(&QUIET));
            assert_eq!(world.bypass.found(now).bypassed.is_some(), told, "{gap}");
        }
        let mut world = World::new();
        assert!(world.seconds(4, &QUIET, 10).bypassed.is_some());
        let now = world.begin + TICK + TICK;
        world.bypass.saw(now, None);
        assert_eq!(world.bypass.found(now), Found::default(), "counters that cannot be read");
        world.bypass.begin_anew();
        assert_eq!(world.seconds(3, &QUIET, 0), Found::default());
    }

    #[test]
    fn replies_that_no_hook_saw_are_found_where_syns_were_seen() {
        let mute = Seen { replied: Some(0), proved: 0, ..busy(9) };
        let after = |seconds, seen: &Seen, listed| {
            let mut world = World::new();
            world.seconds(2, &busy(9), 9);
            let found = world.seconds(seconds, seen, listed);
            assert_eq!(found.bypassed, None);
            found.unreplied.map(|found| found.connections)
        };
        assert_eq!(after(2, &mute, 9), None, "too early");
        assert_eq!(after(4, &mute, 9), Some(27), "of the rounds that began since");
        assert_eq!(after(4, &mute, 1), None, "3 of them");
        assert_eq!(after(6, &mute, 1), Some(5));
        assert_eq!(after(9, &mute, 0), None, "a full queue, or a server that is down");
        assert_eq!(after(9, &busy(9), 9), None);
        assert_eq!(after(9, &Seen { replied: None, ..mute }, 9), None, "not known");
    }

    /// The lease has run out: SYNs are not counted, their replies are.
    #[test]
    fn syns_that_pass_uncounted_are_known_by_their_replies() {
        let uncounted = Seen { passed: 0, ..busy(50) };
        assert_eq!(World::new().seconds(9, &uncounted, 50), Found::default());
    }

    /// What an operator must not be woken by: handshakes, deferred ones, an accept queue that fills and
    /// empties, clients that go at once, in any order within 70 s.
    #[test]
    fn a_service_all_of_whose_clients_come_by_hooks_is_never_told_of() {
        let mut world = World::new();
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        // SYNs without a reply that their clients send again, and when.
        let mut again: VecDeque<u64> = VecDeque::from(vec![0; 64]);
        for second in 0..2000 {
            let syns = random(if second % 90 < 45 { 400 } else { 3 });
            let ignored = if second % 60 < 20 { random(syns + 1) } else { 0 };
            let copies = again.pop_front().unwrap();
            again.push_back(0);
            again[random(60) as usize] += ignored;
            let replied = syns - ignored + copies;
            let seen = Seen { passed: syns, replied: Some(replied), proved: replied, ..QUIET };
            let found = world.second(&seen, replied - random(replied + 1) / 4);
            assert_eq!(found, Found::default(), "second {second}");
        }
    }
}
